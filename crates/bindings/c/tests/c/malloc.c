/* Heaps by the calls of C: memory, roots, commits, statistics, races; NULL, closed handles, handles of another kind
   and wrong arguments fail with errors. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#define ROOT(heap, name, type, version, found) \
    untorn_heap_root(heap, name, #type, sizeof(type), _Alignof(type), version, (void **)(found))
#define SET_ROOT(heap, name, type, version, address) \
    untorn_heap_set_root(heap, name, address, #type, sizeof(type), _Alignof(type), version)

struct node {
    struct node *next;
    char *text;
};

static untorn_heap *open_heap(const char *path, const untorn_heap_options *options) {
    union {
        untorn_heap_options known;
        char newer[256];
    } create = {.known = {.size = sizeof create.known}};
    if (options) memcpy(&create, options, options->size);
    create.known.flags |= UNTORN_CREATE;
    untorn_heap *heap = untorn_heap_open(path, &create.known, NULL);
    CHECK(heap);
    return heap;
}

static untorn_heap_stats stats_of(untorn_heap *heap) {
    untorn_heap_stats stats = {.size = sizeof stats};
    CHECK(untorn_heap_get_stats(heap, &stats) == 0);
    return stats;
}

/* The program reports its stores, and the heap reports its own. */
static void told(void) {
    untorn_heap_options options = {.size = sizeof options, .tracker = UNTORN_TRACKER_EXPLICIT};
    untorn_heap *heap = open_heap("told", &options);
    struct node *node = untorn_heap_malloc(heap, sizeof *node);
    char *zeros = untorn_heap_calloc(heap, 100, 1);
    char *text = untorn_heap_malloc(heap, 20);
    CHECK(node && zeros && text);
    memset(text, '.', 20);
    strcpy(text, "moved");
    CHECK(untorn_heap_mark_dirty(heap, text, 6) == 0);
    text = untorn_heap_realloc(heap, text, 3000);
    *node = (struct node){.text = text, .next = (struct node *)zeros};
    CHECK(text && untorn_heap_mark_dirty(heap, node, sizeof *node) == 0);
    CHECK(SET_ROOT(heap, "node", struct node, 0, node) == 0 && untorn_heap_commit(heap) == 0);
    node->next = NULL; /* and does not report it */
    CHECK(untorn_heap_commit(heap) == 0);
    FAILS(untorn_heap_mark_dirty(heap, NULL, 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_mark_dirty(heap, &heap, 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_mark_dirty(heap, node, SIZE_MAX), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_close(heap) == 0);
    FAILS(untorn_heap_mark_dirty(heap, node, 1), EBADF, UNTORN_E_BAD_HANDLE);
    heap = open_heap("told", NULL);
    CHECK(ROOT(heap, "node", struct node, 0, &node) == 1 && node && node->text == text);
    CHECK(strcmp(text, "moved") == 0 && node->next == (struct node *)zeros && stats_of(heap).allocations == 3);
    for (int i = 0; i < 100; i++) CHECK(zeros[i] == 0);
    CHECK(untorn_heap_mark_dirty(heap, node, 1) == 0 && untorn_heap_close(heap) == 0);
}

static void memory(void) {
    untorn_heap *heap = open_heap("memory", NULL);
    char *block = untorn_heap_malloc(heap, 100);
    CHECK(block && (uintptr_t)block % 16 == 0 && untorn_heap_malloc_usable_size(heap, block) >= 100);
    memset(block, 'x', 100);
    char *larger = untorn_heap_realloc(heap, block, 5000);
    CHECK(larger && larger != block && larger[0] == 'x' && larger[99] == 'x');
    CHECK(untorn_heap_realloc(heap, larger, 4900) == larger);
    char *smaller = untorn_heap_realloc(heap, larger, 50);
    CHECK(smaller && smaller[49] == 'x' && untorn_heap_malloc_usable_size(heap, smaller) < 100);
    CHECK(untorn_heap_free(heap, smaller) == 0);
    /* Zeros, also in a block that was used before. */
    char *zeros = untorn_heap_calloc(heap, 25, 4);
    CHECK(zeros);
    for (int i = 0; i < 100; i++) CHECK(zeros[i] == 0);
    for (size_t align = 1; align <= 4096; align *= 2) {
        void *aligned = untorn_heap_aligned_alloc(heap, align, 10);
        CHECK(aligned && (uintptr_t)aligned % align == 0 && untorn_heap_free(heap, aligned) == 0);
    }
    char *huge = untorn_heap_malloc(heap, 10 << 20);
    CHECK(huge);
    huge[(10 << 20) - 1] = 'h';
    void *base = untorn_heap_base(heap);
    CHECK(base && (char *)base < huge);
    void *at = untorn_heap_allocate_at(base, 8, 40);
    CHECK(at && untorn_heap_free_at(base, at) == 0);

    untorn_heap_stats stats = stats_of(heap);
    CHECK(stats.allocations == 2 && stats.roots == 0 && stats.address_space_bytes == 64ull << 30);
    CHECK(stats.used_bytes >= (10 << 20) + 100 && stats.used_bytes + stats.free_bytes < stats.heap_bytes);
    CHECK(stats.private_bytes > 0);
    CHECK(untorn_heap_free(heap, NULL) == 0 && untorn_heap_free_at(base, NULL) == 0);

    FAILS(untorn_heap_free(heap, huge + 16), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_free(heap, huge) == 0);
    FAILS(untorn_heap_free(heap, huge), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_free(heap, &stats), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_free_at(base, &stats), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_realloc(heap, huge, 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_malloc(heap, SIZE_MAX), ENOMEM, UNTORN_E_NO_MEMORY);
    FAILS(untorn_heap_malloc(heap, (size_t)1 << 62), ENOMEM, UNTORN_E_NO_MEMORY);
    FAILS(untorn_heap_calloc(heap, SIZE_MAX / 2, 3), ENOMEM, UNTORN_E_NO_MEMORY);
    FAILS(untorn_heap_aligned_alloc(heap, 48, 100), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_aligned_alloc(heap, 8192, 100), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_malloc_usable_size(heap, huge) == 0 && errno == EINVAL);
    CHECK(untorn_heap_malloc_usable_size(heap, NULL) == 0 && errno == EFAULT);
    CHECK(untorn_heap_close(heap) == 0);
}

/* The root of a heap, made if it is missing; returns 1 if it was made. */
static int set_once(void *heap) {
    long *number;
    if (ROOT(heap, "number", long, 0, &number) == 1) return 0;
    number = untorn_heap_malloc(heap, sizeof *number);
    CHECK(number && SET_ROOT(heap, "number", long, 0, number) == 0);
    return 1;
}

static atomic_int ready, made;

static void *set_by_many(void *heap) {
    for (ready++; ready < 4;) sched_yield();
    int done = untorn_heap_with_roots(heap, set_once, heap);
    CHECK(done == 0 || done == 1);
    made += done;
    return NULL;
}

static void roots_of_many_threads(void) {
    untorn_heap *heap = open_heap("many threads", NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, set_by_many, heap) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(made == 1 && stats_of(heap).allocations == 1 && untorn_heap_commit(heap) == 0);
    CHECK(untorn_heap_close(heap) == 0);
}

static void roots_and_commits(void) {
    untorn_heap *heap = open_heap("roots", NULL);
    struct node *list = NULL, *found;
    CHECK(ROOT(heap, "list", struct node, 0, &found) == 0 && !found);
    for (int i = 0; i < 100; i++) {
        struct node *node = untorn_heap_malloc(heap, sizeof *node);
        CHECK(node && (node->text = untorn_heap_malloc(heap, 20)));
        snprintf(node->text, 20, "number %d", i);
        node->next = list;
        list = node;
    }
    CHECK(SET_ROOT(heap, "list", struct node, 0, list) == 0);
    CHECK(untorn_heap_commit(heap) == 0);
    list->text[0] = '!';
    CHECK(SET_ROOT(heap, "list", struct node, 0, NULL) == 0);
    CHECK(untorn_heap_rollback(heap) == 0 && list->text[0] == 'n');
    list->text[0] = 'N';
    untorn_ticket *ticket = untorn_heap_commit_async(heap);
    CHECK(ticket && untorn_ticket_wait(ticket) == 0 && untorn_ticket_poll(ticket) == 1 && untorn_ticket_free(ticket) == 0);
    list->text[0] = '?';
    CHECK(untorn_heap_close(heap) == 0);

    heap = open_heap("roots", NULL);
    CHECK(ROOT(heap, "list", struct node, 0, &found) == 1 && found == list);
    int nodes = 0;
    for (struct node *node = found; node; node = node->next) nodes++;
    CHECK(nodes == 100 && strcmp(found->text, "Number 99") == 0);

    /* Another type, size, alignment or version. */
    void *none = &nodes;
    FAILS(ROOT(heap, "list", double, 0, &none), EINVAL, UNTORN_E_LAYOUT_CHANGED);
    CHECK(none == NULL && strstr(untorn_error_message(), "struct node") && strstr(untorn_error_message(), "double"));
    FAILS(ROOT(heap, "list", struct node, 1, &none), EINVAL, UNTORN_E_LAYOUT_CHANGED);
    FAILS(untorn_heap_root(heap, "list", "struct node", 24, 8, 0, &none), EINVAL, UNTORN_E_LAYOUT_CHANGED);
    FAILS(untorn_heap_root(heap, "list", "struct node", 16, 16, 0, &none), EINVAL, UNTORN_E_LAYOUT_CHANGED);
    /* A migration: describe the old root, set the new one, commit both as one. */
    untorn_heap_root_info info = {.size = sizeof info};
    CHECK(untorn_heap_get_root_info(heap, "list", &info) == 1);
    CHECK(info.address == found && info.bytes == sizeof *found && info.align == 8 && info.version == 0);
    CHECK(strcmp(info.name, "list") == 0 && strcmp(info.type_name, "struct node") == 0);
    int *count = untorn_heap_malloc(heap, sizeof *count);
    CHECK(count);
    *count = nodes;
    CHECK(SET_ROOT(heap, "list", int, 1, count) == 0 && SET_ROOT(heap, "other", int, 0, count) == 0);
    CHECK(untorn_heap_commit(heap) == 0);
    CHECK(ROOT(heap, "list", int, 1, &found) == 1 && *(int *)found == 100);
    CHECK(untorn_heap_get_root_info(heap, "none", &info) == 0);
    size_t roots = 0;
    while (untorn_heap_nth_root_info(heap, roots, &info) == 1) roots++;
    CHECK(roots == 2 && stats_of(heap).roots == 2);
    /* A newer caller gets zeros for unknown members; a caller that set no size gets an error. */
    struct {
        untorn_heap_root_info known;
        uint64_t newer;
    } tomorrow = {.known = {.size = sizeof tomorrow}, .newer = 7};
    CHECK(untorn_heap_get_root_info(heap, "other", &tomorrow.known) == 1);
    CHECK(tomorrow.newer == 0 && tomorrow.known.size == sizeof tomorrow && tomorrow.known.address == count);
    info.size = 0;
    FAILS(untorn_heap_get_root_info(heap, "list", &info), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_nth_root_info(heap, 0, &info), EINVAL, UNTORN_E_INVALID);

    char name[60] = "";
    FAILS(SET_ROOT(heap, name, int, 0, count), EINVAL, UNTORN_E_INVALID);
    memset(name, 'n', 48);
    FAILS(SET_ROOT(heap, name, int, 0, count), EINVAL, UNTORN_E_INVALID);
    FAILS(ROOT(heap, name, int, 0, &none), EINVAL, UNTORN_E_INVALID);
    FAILS(SET_ROOT(heap, "\xff", int, 0, count), EINVAL, UNTORN_E_INVALID);
    FAILS(SET_ROOT(heap, "out", int, 0, &nodes), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_set_root(heap, "odd", count, "int", 3, 3, 0), EINVAL, UNTORN_E_INVALID);
    for (int i = 0; i < 126; i++) {
        snprintf(name, sizeof name, "root %d", i);
        CHECK(SET_ROOT(heap, name, int, 0, count) == 0);
    }
    FAILS(SET_ROOT(heap, "one too many", int, 0, count), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_close(heap) == 0);
}

static void changes(void) {
    untorn_heap *heap = open_heap("changes", NULL);
    CHECK(untorn_heap_begin(heap) == 0 && untorn_heap_begin(heap) == 0);
    untorn_heap_stats stats = {.size = sizeof stats};
    FAILS(untorn_heap_commit(heap), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_commit_async(heap), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_rollback(heap), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_get_stats(heap, &stats), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_malloc(heap, 100));
    CHECK(untorn_heap_end(heap) == 0 && untorn_heap_end(heap) == 0);
    FAILS(untorn_heap_end(heap), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_commit(heap) == 0);
    /* Closing the heap ends changes that were not ended. */
    CHECK(untorn_heap_begin(heap) == 0 && untorn_heap_close(heap) == 0);
    BAD_HANDLE(untorn_heap_end(heap));
    heap = open_heap("changes", NULL);
    CHECK(untorn_heap_commit(heap) == 0 && stats_of(heap).allocations == 1);
    CHECK(untorn_heap_close(heap) == 0);
}

static void with_files(void) {
    untorn_store *store = open_store("store", NULL);
    FAILS(untorn_heap_open_at(store, "heap", NULL), ENOENT, UNTORN_E_IO);
    untorn_heap_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open_at(store, "heap", &create);
    untorn_file *file = untorn_open_at(store, "file", UNTORN_CREATE, 0644);
    untorn_file *alone = untorn_open("alone", UNTORN_CREATE, 0644, NULL);
    CHECK(heap && file && alone);
    long *number = untorn_heap_malloc(heap, sizeof *number);
    CHECK(number && SET_ROOT(heap, "number", long, 0, number) == 0);
    *number = 7;
    write_text(file, "seven", 0);
    CHECK(untorn_heap_syncv(heap, &file, 1) == 0);
    *number = 8;
    CHECK(untorn_heap_rollback(heap) == 0 && untorn_rollback(file) == 0 && *number == 7);
    check_reads(file, "seven");
    write_text(alone, "x", 0);
    FAILS(untorn_heap_syncv(heap, &alone, 1), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_syncv(heap, NULL, 1), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_syncv(heap, &file, 0), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_close(alone) == 0);
    BAD_HANDLE(untorn_heap_syncv(heap, &alone, 1));
    CHECK(untorn_close(file) == 0 && untorn_heap_close(heap) == 0 && untorn_store_close(store) == 0);
}

static void openings(void) {
    untorn_heap_options options = {.size = sizeof options};
    FAILS(untorn_heap_open("none", &options, NULL), ENOENT, UNTORN_E_IO);
    options.flags = 1u << 31;
    FAILS(untorn_heap_open("none", &options, NULL), EINVAL, UNTORN_E_INVALID);
    options.flags = 0, options.tracker = 4;
    FAILS(untorn_heap_open("none", &options, NULL), EINVAL, UNTORN_E_INVALID);
    options.tracker = 0, options.size = 31;
    FAILS(untorn_heap_open("none", &options, NULL), EINVAL, UNTORN_E_INVALID);
    struct {
        untorn_heap_options known;
        uint64_t newer;
    } tomorrow = {.known = {.size = sizeof tomorrow}, .newer = 1};
    FAILS(untorn_heap_open("none", &tomorrow.known, NULL), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_heap_open(NULL, NULL, NULL), EFAULT, UNTORN_E_NULL);
    BAD_HANDLE(untorn_heap_open_at(NULL, "heap", NULL));

    tomorrow.newer = 0, tomorrow.known.address_space = 8 << 20;
    untorn_heap *heap = open_heap("small", &tomorrow.known);
    CHECK(stats_of(heap).address_space_bytes == 8 << 20);
    CHECK(!untorn_heap_malloc(heap, 9 << 20) && *untorn_error_message());
    FAILS(untorn_heap_open("small", NULL, NULL), EBUSY, UNTORN_E_BUSY);
    CHECK(untorn_heap_commit(heap) == 0 && untorn_heap_close(heap) == 0);
    /* A copy of an open heap has its address. */
    CHECK(system("cp --sparse=always small copy") == 0);
    heap = open_heap("small", NULL);
    FAILS(untorn_heap_open("copy", NULL, NULL), EINVAL, UNTORN_E_INVALID);
    CHECK(untorn_heap_close(heap) == 0);
    FILE *text = fopen("text", "w");
    CHECK(text && fputs("this is no heap", text) > 0 && fclose(text) == 0);
    FAILS(untorn_heap_open("text", NULL, NULL), EMEDIUMTYPE, UNTORN_E_FOREIGN);
}

static void bad_handles(untorn_heap *heap, void *base) {
    untorn_heap_stats stats = {.size = sizeof stats};
    untorn_heap_root_info info = {.size = sizeof info};
    void *found;
    BAD_HANDLE(untorn_heap_malloc(heap, 1));
    BAD_HANDLE(untorn_heap_calloc(heap, 1, 1));
    BAD_HANDLE(untorn_heap_realloc(heap, NULL, 1));
    BAD_HANDLE(untorn_heap_aligned_alloc(heap, 16, 1));
    BAD_HANDLE(untorn_heap_free(heap, NULL));
    CHECK(untorn_heap_malloc_usable_size(heap, &stats) == 0 && errno == EBADF);
    BAD_HANDLE(untorn_heap_base(heap));
    BAD_HANDLE(untorn_heap_allocate_at(base, 16, 1));
    BAD_HANDLE(untorn_heap_free_at(base, &stats));
    BAD_HANDLE(untorn_heap_root(heap, "r", "t", 1, 1, 0, &found));
    BAD_HANDLE(untorn_heap_set_root(heap, "r", NULL, "t", 1, 1, 0));
    BAD_HANDLE(untorn_heap_get_root_info(heap, "r", &info));
    BAD_HANDLE(untorn_heap_nth_root_info(heap, 0, &info));
    BAD_HANDLE(untorn_heap_with_roots(heap, set_once, NULL));
    BAD_HANDLE(untorn_heap_begin(heap));
    BAD_HANDLE(untorn_heap_end(heap));
    BAD_HANDLE(untorn_heap_commit(heap));
    BAD_HANDLE(untorn_heap_commit_async(heap));
    BAD_HANDLE(untorn_heap_rollback(heap));
    BAD_HANDLE(untorn_heap_get_stats(heap, &stats));
    BAD_HANDLE(untorn_heap_close(heap));
}

static void null_and_stale(void) {
    untorn_heap *heap = open_heap("stale", NULL);
    void *base = untorn_heap_base(heap), *found;
    CHECK(untorn_heap_malloc(heap, 1) && untorn_heap_commit(heap) == 0);
    FAILS(untorn_heap_root(heap, NULL, "t", 1, 1, 0, &found), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_root(heap, "r", NULL, 1, 1, 0, &found), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_root(heap, "r", "t", 1, 1, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_set_root(heap, NULL, NULL, "t", 1, 1, 0), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_get_root_info(heap, "r", NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_nth_root_info(heap, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_with_roots(heap, NULL, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_heap_get_stats(heap, NULL), EFAULT, UNTORN_E_NULL);
    bad_handles(NULL, NULL);
    CHECK(untorn_heap_close(heap) == 0);
    bad_handles(heap, base);
    /* The next heap, at the same address, is another heap. */
    untorn_heap *next = open_heap("stale", NULL);
    CHECK(untorn_heap_base(next) == base && untorn_heap_malloc(next, 1));
    BAD_HANDLE(untorn_heap_malloc(heap, 1));
    BAD_HANDLE(untorn_heap_begin(heap));
    CHECK(untorn_heap_close(next) == 0);
    untorn_file *file = untorn_open("file", UNTORN_CREATE, 0644, NULL);
    CHECK(file);
    bad_handles((untorn_heap *)file, file);
    CHECK(untorn_close(file) == 0);
}

/* In a forked child, calls on the parent's heap fail. */
static void forked(void) {
    untorn_heap *heap = open_heap("forked", NULL);
    void *base = untorn_heap_base(heap);
    /* The heap is looked up again by its address: the thread remembers the heap that it used last. */
    CHECK(untorn_heap_allocate_at(base, 8, 1) && untorn_heap_malloc(heap, 1));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        FAILS(untorn_heap_malloc(heap, 1), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_heap_begin(heap), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_heap_allocate_at(base, 8, 1), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_heap_free_at(base, base), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_heap_commit(heap), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_heap_close(heap), ECHILD, UNTORN_E_FORKED);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(untorn_heap_commit(heap) == 0 && untorn_heap_close(heap) == 0);
}

static atomic_bool stop;

static void *store_always(void *number) {
    while (!stop) ++*(_Atomic long *)number;
    return NULL;
}

/* A store during a commit is found in debug mode, and reported with its address. */
static void races(void) {
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_HEAP_DEBUG_RACES};
    untorn_heap *heap = open_heap("races", &options);
    long *number = untorn_heap_calloc(heap, 1, sizeof *number);
    CHECK(number && untorn_heap_commit(heap) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, store_always, number) == 0);
    int result = 0;
    /* On a busy machine the two threads may share a processor for long. Only a broken library ends it. */
    alarm(300);
    while (result == 0) {
        /* So that there is something to commit. */
        long before = *(_Atomic long *)number;
        while (*(_Atomic long *)number == before) sched_yield();
        result = untorn_heap_commit(heap);
    }
    alarm(0);
    CHECK(result == -1 && errno == EBUSY && untorn_last_error() == UNTORN_E_RACING_STORE);
    /* The first byte that differs, which is not the number's first byte if that has its old value again. */
    const char *address = strstr(untorn_error_message(), "address 0x");
    CHECK(address && strtoul(strchr(address, ' '), NULL, 16) - (unsigned long)number < sizeof *number);
    stop = true;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(untorn_heap_commit(heap) == 0 && untorn_heap_close(heap) == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    memory();
    told();
    roots_and_commits();
    roots_of_many_threads();
    changes();
    with_files();
    openings();
    null_and_stale();
    forked();
    races();
    return 0;
}
