/*
 * Programs that a program starts. Each is looked at first: one that no library can be preloaded into is named on standard
 * error, or refused. The environment of each gets back what the library needs, if the program has taken that out.
 *
 * These functions may run in a child of `vfork`, which shares its parent's memory, or in a forked child of a process
 * with several threads: they allocate nothing, take no lock, and leave nothing behind. The linker's `--wrap` makes
 * the calls of `execve` and the others here calls of the C library's functions.
 */

#define _GNU_SOURCE
#include "preload.h"
#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD"
/* More than this is not put on a stack; such an environment stays as it is. */
#define ENVIRONMENT_BYTES_MAX (256 << 10)

/* Headers before glibc 2.34 lack it. */
int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags);

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* Noted at the start of this process, as programs write over their own environment; shared with forked children. */
struct noted {
    /* Programs that were named. */
    uint64_t told[64];
    int looks, strict;
    /* The path of this library; after its NUL, the variables UNTORN_*, each with its NUL; an empty one. */
    char texts[];
};

/* NULL: children do not inherit this library. */
static struct noted *noted;

static int begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* Whether an entry of an environment is of the same variable as another entry. */
static int is_same_variable(const char *entry, const char *other) {
    size_t name = strcspn(other, "=");
    return strncmp(entry, other, name) == 0 && entry[name] == '=';
}

static const char *value_of(char *const *environment, const char *name) {
    size_t len = strlen(name);
    for (char *const *entry = environment; entry && *entry; entry++)
        if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=') return *entry + len + 1;
    return NULL;
}

static int is_off(char *const *environment) {
    const char *value = value_of(environment, "UNTORN_PRELOAD");
    return value && !strcmp(value, "off");
}

/* Whether a list of libraries has this one. */
static int is_listed(const char *list, const char *library) {
    size_t len = strlen(library);
    for (const char *at = list; at && *at; at += strcspn(at, ": ")) {
        at += strspn(at, ": ");
        if (strncmp(at, library, len) == 0 && strchr(": ", at[len])) return 1;
    }
    return 0;
}

static const char *own_path(void) {
    for (const struct link_map *library = _r_debug.r_map; library; library = library->l_next)
        if (library->l_ld == _DYNAMIC) return library->l_name;
    return "";
}

/* A variable that children get back. */
static int is_kept(const char *entry) { return begins(entry, "UNTORN_") && !begins(entry, "UNTORN_PRELOAD="); }

int untorn_preload_note_environment(char *const *environment) {
    if (is_off(environment)) return 0;
    const char *path = own_path(), *list = value_of(environment, PRELOAD);
    /* A list may name it without a directory. */
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (!*path || !list) return 1;
    const char *library = is_listed(list, path) ? path : is_listed(list, name) ? name : NULL;
    if (!library) return 1;
    size_t bytes = sizeof(struct noted) + strlen(library) + 2;
    for (char *const *entry = environment; *entry; entry++)
        if (is_kept(*entry)) bytes += strlen(*entry) + 1;
    struct noted *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return 1;
    char *at = stpcpy(fresh->texts, library) + 1;
    for (char *const *entry = environment; *entry; entry++)
        if (is_kept(*entry)) at = stpcpy(at, *entry) + 1;
    const char *strict = value_of(environment, "UNTORN_STRICT"), *log = value_of(environment, "UNTORN_LOG");
    fresh->strict = strict && *strict && strcmp(strict, "0");
    fresh->looks = fresh->strict || !log || (strcasecmp(log, "off") && strcmp(log, "0"));
    noted = fresh;
    return 1;
}

/* The variables that are to be added to an environment. */
struct completion {
    char *const *given;
    size_t entries;
    /* The entry of LD_PRELOAD, which may be missing, and whether it lacks this library. */
    size_t list_at;
    int lacks_library;
    /* Room for all of it; 0: nothing is missing. */
    size_t bytes;
};

#define FOR_EACH_KEPT(entry)                                                                                           \
    for (const char *entry = strchr(noted->texts, 0) + 1; *entry; entry = strchr(entry, 0) + 1)

static struct completion completion_of(char *const *given) {
    static char *const none[] = {NULL};
    struct completion found = {.given = given ? given : none};
    if (!noted || is_off(given)) return found;
    while (found.given[found.entries]) found.entries++;
    found.list_at = found.entries;
    size_t missing = 0;
    for (size_t n = 0; n < found.entries; n++)
        if (found.list_at == found.entries && is_same_variable(found.given[n], PRELOAD "=")) found.list_at = n;
    const char *list = found.list_at < found.entries ? found.given[found.list_at] : "";
    found.lacks_library = !is_listed(*list ? list + sizeof PRELOAD : "", noted->texts);
    FOR_EACH_KEPT(kept) {
        size_t n = 0;
        while (n < found.entries && !is_same_variable(found.given[n], kept)) n++;
        missing += n == found.entries;
    }
    if (!found.lacks_library && !missing) return found;
    size_t text = strlen(list) + sizeof PRELOAD + strlen(noted->texts) + 2;
    found.bytes = (found.entries + missing + 2) * sizeof(char *) + text;
    if (found.bytes > ENVIRONMENT_BYTES_MAX) found.bytes = 0;
    return found;
}

/* Makes the whole environment in a place of its size. */
static char *const *complete(const struct completion *found, void *place) {
    if (!found->bytes) return found->given;
    char **whole = place, **end = whole + found->entries;
    memcpy(whole, found->given, found->entries * sizeof *whole);
    FOR_EACH_KEPT(kept) {
        size_t n = 0;
        while (n < found->entries && !is_same_variable(found->given[n], kept)) n++;
        if (n == found->entries) *end++ = (char *)kept;
    }
    if (found->lacks_library) {
        int is_new = found->list_at == found->entries;
        const char *list = is_new ? PRELOAD "=" : found->given[found->list_at];
        char *text = (char *)(end + 1 + is_new);
        char *at = stpcpy(text, list);
        /* Last, as it calls no library behind it. */
        if (at[-1] != '=') *at++ = ':';
        strcpy(at, noted->texts);
        if (is_new) *end++ = text;
        else whole[found->list_at] = text;
    }
    *end = NULL;
    return whole;
}

/* The environment for a program: in the frame of the caller, which starts the program. */
#define ENVIRONMENT(whole, given)                                                                                      \
    struct completion completion = completion_of(given);                                                               \
    char *const *whole = complete(&completion, completion.bytes ? alloca(completion.bytes) : NULL)

/* Looks at a program. Returns 0, or an errno: it is not to be started. `directories`: where it is searched, or NULL. */
static int look_at(const char *program, const char *directories, char *const *environment) {
    if (!noted || !noted->looks || !program || is_off(environment)) return 0;
    int before = errno;
    int refused = untorn_preload_look_at(program, directories, noted->told, noted->strict);
    errno = before;
    return refused;
}

/* Where `execvp` and `posix_spawnp` search. */
static const char *directories(void) {
    const char *path = value_of(environ, "PATH");
    return path ? path : "/bin:/usr/bin";
}

/* A path below a descriptor, or that of the descriptor itself. NULL: it is too long. */
static const char *path_below(int dir, const char *path, char *place, size_t bytes) {
    static const char own[] = "/proc/self/fd/";
    if (dir == AT_FDCWD || *path == '/') return path;
    size_t digits = 1;
    for (int n = dir; n >= 10; n /= 10) digits++;
    if (dir < 0 || sizeof own + digits + 1 + strlen(path) > bytes) return NULL;
    char *at = stpcpy(place, own) + digits, *end = at;
    for (int n = dir; at > place + sizeof own - 1; n /= 10) *--at = (char)('0' + n % 10);
    if (*path) *end++ = '/';
    strcpy(end, path);
    return place;
}

static int refuse(int number) {
    errno = number;
    return -1;
}

int untorn_preload_execve(const char *path, char *const argv[], char *const envp[]) {
    ENVIRONMENT(whole, envp);
    int refused = look_at(path, NULL, whole);
    return refused ? refuse(refused) : execve(path, argv, whole);
}

int untorn_preload_execv(const char *path, char *const argv[]) { return untorn_preload_execve(path, argv, environ); }

int untorn_preload_execvpe(const char *file, char *const argv[], char *const envp[]) {
    ENVIRONMENT(whole, envp);
    int refused = look_at(file, directories(), whole);
    return refused ? refuse(refused) : execvpe(file, argv, whole);
}

int untorn_preload_execvp(const char *file, char *const argv[]) { return untorn_preload_execvpe(file, argv, environ); }

int untorn_preload_fexecve(int fd, char *const argv[], char *const envp[]) {
    char place[64];
    ENVIRONMENT(whole, envp);
    int refused = look_at(path_below(fd, "", place, sizeof place), NULL, whole);
    return refused ? refuse(refused) : fexecve(fd, argv, whole);
}

int untorn_preload_execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags) {
    char place[PATH_MAX];
    ENVIRONMENT(whole, envp);
    int refused = path ? look_at(path_below(dir, path, place, sizeof place), NULL, whole) : 0;
    return refused ? refuse(refused) : execveat(dir, path, argv, whole, flags);
}

int untorn_preload_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                               const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    ENVIRONMENT(whole, envp);
    int refused = look_at(path, NULL, whole);
    return refused ? refused : posix_spawn(pid, path, actions, attributes, argv, whole);
}

int untorn_preload_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                                const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    ENVIRONMENT(whole, envp);
    int refused = look_at(file, directories(), whole);
    return refused ? refused : posix_spawnp(pid, file, actions, attributes, argv, whole);
}

/* The arguments of a call as a vector, on the stack. `rest` stands behind the NULL then. */
#define GATHER(argv, first, rest)                                                                                      \
    va_list rest;                                                                                                      \
    size_t count = 0;                                                                                                  \
    va_start(rest, first);                                                                                             \
    for (const char *next = first; next; next = va_arg(rest, const char *)) count++;                                   \
    va_end(rest);                                                                                                      \
    char *argv[count + 1];                                                                                             \
    va_start(rest, first);                                                                                             \
    argv[0] = (char *)first;                                                                                           \
    for (size_t n = 1; n <= count; n++) argv[n] = va_arg(rest, char *)

int untorn_preload_execl(const char *path, const char *first, ...) {
    GATHER(argv, first, rest);
    va_end(rest);
    return untorn_preload_execve(path, argv, environ);
}

int untorn_preload_execlp(const char *file, const char *first, ...) {
    GATHER(argv, first, rest);
    va_end(rest);
    return untorn_preload_execvpe(file, argv, environ);
}

int untorn_preload_execle(const char *path, const char *first, ...) {
    GATHER(argv, first, rest);
    char *const *envp = va_arg(rest, char *const *);
    va_end(rest);
    return untorn_preload_execve(path, argv, envp);
}
