/* Programs written for POSIX that rename, replace, unlink and list their data files, use streams, and end without
 * closing. Each function is one such program; a child process is "another program" or a crash. */
#include <untorn_posix.h>

#include "check.h"
#include <aio.h>
#include <dirent.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <utime.h>

/* For a header that has no patterns yet. */
#pragma weak untorn_manage

static size_t page;
static const char *program;

/* Creates a database: one page, mapped, with a text that is synced. */
static char *create(const char *path, const char *text, int *fd) {
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(*fd >= 0 && ftruncate(*fd, (off_t)page) == 0);
    char *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(at != MAP_FAILED);
    strcpy(at, text);
    CHECK(msync(at, page, MS_SYNC) == 0);
    return at;
}

/* Runs a part in a process of its own, which is killed when the part returns. */
#define IN_A_KILLED_PROCESS(...)                                                                                       \
    do {                                                                                                               \
        fflush(NULL);                                                                                                  \
        pid_t pid_ = fork();                                                                                           \
        CHECK(pid_ >= 0);                                                                                              \
        if (pid_ == 0) {                                                                                               \
            __VA_ARGS__;                                                                                                    \
            raise(SIGKILL);                                                                                            \
        }                                                                                                              \
        int status_;                                                                                                   \
        CHECK(waitpid(pid_, &status_, 0) == pid_ && WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL);             \
    } while (0)

/* Reads a file like a program without Untorn. */
static void check_disk(const char *path, const char *text) {
    char command[256];
    snprintf(command, sizeof command, "test \"$(head -c %zu %s)\" = '%s'", strlen(text), path, text);
    CHECK(system(command) == 0);
}

/* Reads a file like the ported program after a start, with recovery. */
static void check_reopened(const char *path, const char *text) {
    char buf[64];
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, buf, strlen(text), 0) == (ssize_t)strlen(text));
    CHECK(memcmp(buf, text, strlen(text)) == 0 && close(fd) == 0);
}

static int exists(const char *path) { return access(path, F_OK) == 0; }

/* Runs a part in a process that is started with this standard error: messages go to no other. */
static void run_with_stderr(const char *part, int to) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (dup2(to, 2) == 2) execl(program, program, ".", part, (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* GDBM's gdbm_reorganize: a new file, mapped, is renamed over the old one, which is mapped, too. */
static void reorganize(void) {
    int old_fd, new_fd;
    char *old = create("reorganized.db", "old", &old_fd), *new = create("reorganized.db.tmp", "new", &new_fd);
    strcpy(new, "new, with changes that were not synced");
    CHECK(rename("reorganized.db.tmp", "reorganized.db") == 0);
    CHECK(!exists("reorganized.db.tmp") && !exists("reorganized.db.tmp.untorn"));
    check_disk("reorganized.db", "new, with changes");
    CHECK(strcmp(old, "old") == 0);
    strcpy(old, "written to the file that has no name");
    char buf[8];
    CHECK(pread(old_fd, buf, 7, 0) == 7 && memcmp(buf, "written", 7) == 0);
    CHECK(munmap(old, page) == 0 && close(old_fd) == 0);
    /* The new file stays managed: same map, same descriptor, atomic. */
    CHECK(strcmp(new, "new, with changes that were not synced") == 0 && untorn_fd_is_managed(new_fd) == 1);
    strcpy(new, "synced after the rename");
    CHECK(fsync(new_fd) == 0);
    strcpy(new, "not synced");
    CHECK(munmap(new, page) == 0 && close(new_fd) == 0);
    check_disk("reorganized.db", "synced after the rename");
    check_reopened("reorganized.db", "synced after the rename");
}

/* The same, killed at each step: the old contents or the new ones, whole. */
static void reorganize_killed(void) {
    int fd;
    char *at = create("killed.db", "old contents", &fd);
    CHECK(munmap(at, page) == 0 && close(fd) == 0);
    for (int step = 0; step < 4; step++) {
        IN_A_KILLED_PROCESS({
            int a, b;
            a = open("killed.db", O_RDWR);
            CHECK(a >= 0);
            char *old = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
            CHECK(old != MAP_FAILED);
            strcpy(old, "torn old");
            char *new = create("killed.db.tmp", "new contents", &b);
            if (step >= 1) CHECK(rename("killed.db.tmp", "killed.db") == 0);
            if (step >= 2) strcpy(new, "newer contents");
            if (step >= 3) CHECK(msync(new, page, MS_SYNC) == 0);
            strcpy(new, "torn new");
        });
        check_reopened("killed.db", step == 0 ? "old contents" : step < 3 ? "new contents" : "newer contents");
        if (exists("killed.db.tmp")) CHECK(unlink("killed.db.tmp") == 0);
    }
}

/* Sync and close the new file, rename it over the old one, which stays open. */
static void replace_open(void) {
    int old_fd, new_fd;
    char *old = create("replaced.db", "old", &old_fd), *new = create("replaced.db.new", "new", &new_fd);
    CHECK(munmap(new, page) == 0 && close(new_fd) == 0 && rename("replaced.db.new", "replaced.db") == 0);
    check_disk("replaced.db", "new");
    check_reopened("replaced.db", "new");
    CHECK(strcmp(old, "old") == 0 && msync(old, page, MS_SYNC) == 0 && munmap(old, page) == 0 && close(old_fd) == 0);
    check_reopened("replaced.db", "new");
    CHECK(unlink("replaced.db") == 0 && !exists("replaced.db.untorn") && !exists("replaced.db.new.untorn"));
}

/* A file that is not managed gets a managed name while it is open: from then on it is managed. */
static void becomes_named(void) {
    int fd = open("plain", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && write(fd, "plain", 5) == 5 && untorn_fd_is_managed(fd) == 0);
    CHECK(rename("plain", "named.db") == 0 && untorn_fd_is_managed(fd) == 1);
    CHECK(pwrite(fd, "x", 1, 0) == 1);
    check_disk("named.db", "plain");
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    check_disk("named.db", "xlain");
    /* A mapped file cannot become managed: refused, nothing changes. */
    fd = open("plain", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)page) == 0);
    char *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    FAILS_WITH(rename("plain", "named.db"), EBUSY);
    CHECK(exists("plain") && munmap(at, page) == 0 && close(fd) == 0 && unlink("plain") == 0);
    check_disk("named.db", "xlain");
}

static void exchanged(void) {
    int a, b;
    char *one = create("one.db", "one", &a), *two = create("two.db", "two", &b);
    strcpy(one, "ONE");
    CHECK(renameat2(AT_FDCWD, "one.db", AT_FDCWD, "two.db", RENAME_EXCHANGE) == 0);
    check_disk("two.db", "ONE");
    check_disk("one.db", "two");
    strcpy(two, "TWO");
    CHECK(msync(two, page, MS_SYNC) == 0 && munmap(one, page) == 0 && munmap(two, page) == 0);
    CHECK(close(a) == 0 && close(b) == 0);
    check_disk("one.db", "TWO");
    /* A rename that fails changes nothing, and keeps the uncommitted changes of the file to be replaced. */
    one = create("one.db", "one", &a);
    strcpy(one, "changed");
    CHECK(mkdir("directory", 0755) == 0);
    FAILS_WITH(rename("one.db", "directory"), EISDIR);
    FAILS_WITH(rename("directory", "one.db"), ENOTDIR);
    strcpy(one, "changed again");
    FAILS_WITH(renameat2(AT_FDCWD, "two.db", AT_FDCWD, "one.db", RENAME_NOREPLACE), EEXIST);
    CHECK(strcmp(one, "changed again") == 0 && untorn_fd_is_managed(a) == 1 && untorn_fd_rollback(a) == 0);
    CHECK(strcmp(one, "changed") == 0); /* a rename is a sync of the file that it moves, also one that fails */
    CHECK(munmap(one, page) == 0 && close(a) == 0 && rmdir("directory") == 0);
}

/* Unlinked while it is open: an ordinary file without a name, and the name is free. */
/* A name that is too long for the name of its store creates nothing. */
static void long_names(void) {
    char name[256];
    memset(name, 'n', sizeof name);
    strcpy(name + 246, ".db");
    FAILS_WITH(open(name, O_RDWR | O_CREAT, 0644), ENAMETOOLONG);
    CHECK(!exists(name));
    strcpy(name + 245, ".db");
    int fd;
    char *at = create(name, "as long as can be", &fd);
    CHECK(untorn_fd_is_managed(fd) == 1 && munmap(at, page) == 0 && close(fd) == 0 && unlink(name) == 0);
}

static void unlinked(void) {
    int fd, again;
    char *at = create("unlinked.db", "synced", &fd);
    strcpy(at + 100, "not synced");
    CHECK(unlink("unlinked.db") == 0 && !exists("unlinked.db") && !exists("unlinked.db.untorn"));
    char buf[16];
    CHECK(strcmp(at, "synced") == 0 && pread(fd, buf, 10, 100) == 10 && memcmp(buf, "not synced", 10) == 0);
    strcpy(at, "stored");
    CHECK(pread(fd, buf, 6, 0) == 6 && memcmp(buf, "stored", 6) == 0 && fsync(fd) == 0);
    char *next = create("unlinked.db", "another", &again);
    CHECK(strcmp(at, "stored") == 0 && munmap(at, page) == 0 && close(fd) == 0);
    CHECK(munmap(next, page) == 0 && close(again) == 0 && remove("unlinked.db") == 0);
    CHECK(!exists("unlinked.db.untorn"));
    FAILS_WITH(unlink("unlinked.db"), ENOENT);
    /* At random: many, one after the other, leave neither descriptors nor addresses. */
    for (int i = 0; i < 40; i++) {
        at = create("unlinked.db", "again", &fd);
        CHECK(unlink("unlinked.db") == 0 && munmap(at, page) == 0 && close(fd) == 0);
    }
    fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && fd < 20 && close(fd) == 0);
    /* Two maps that have the same address stay two maps. */
    at = create("unlinked.db", "twice", &fd);
    char *second = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(second == at && unlink("unlinked.db") == 0 && munmap(second, page) == 0 && strcmp(at, "twice") == 0);
    CHECK(munmap(at, page) == 0 && close(fd) == 0);
}

/* Removed by another program after a crash: the name can be used again, and the journal is kept. */
static void removed_after_a_crash(void) {
    IN_A_KILLED_PROCESS({
        int fd;
        create("crashed.db", "committed", &fd);
    });
    CHECK(system("rm crashed.db") == 0);
    for (int i = 0; i < 2; i++) {
        int fd;
        char *at = create("crashed.db", "made anew", &fd);
        CHECK(munmap(at, page) == 0 && close(fd) == 0);
        check_disk("crashed.db", "made anew");
    }
    CHECK(exists("crashed.db.removed-1.untorn"));
    /* If this program removes it, its journal is removed, too. */
    IN_A_KILLED_PROCESS({
        int fd;
        create("crashed.db", "committed", &fd);
    });
    CHECK(unlink("crashed.db") == 0 && !exists("crashed.db.untorn"));
}

/* QDBM's Curia: a directory of databases that is removed file by file. */
static void directories(void) {
    int fd;
    CHECK(mkdir("curia", 0755) == 0);
    char *at = create("curia/a.db", "a", &fd);
    CHECK(munmap(at, page) == 0 && close(fd) == 0 && unlink("curia/a.db") == 0 && rmdir("curia") == 0);
    CHECK(mkdir("curia", 0755) == 0);
    at = create("curia/a.db", "a", &fd);
    CHECK(munmap(at, page) == 0 && close(fd) == 0);
    FAILS_WITH(rmdir("curia"), ENOTEMPTY);
    CHECK(system("rm curia/a.db") == 0); /* and leaves the store */
    CHECK(exists("curia/a.db.untorn") && rmdir("curia") == 0 && !exists("curia"));
    /* Renamed to and from another directory. */
    CHECK(mkdir("here", 0755) == 0 && mkdir("there", 0755) == 0);
    at = create("here/a.db", "moved", &fd);
    int dir = open("there", O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && renameat(AT_FDCWD, "here/a.db", dir, "b.db") == 0);
    strcpy(at, "moved, then synced");
    CHECK(msync(at, page, MS_SYNC) == 0 && munmap(at, page) == 0 && close(fd) == 0);
    check_disk("there/b.db", "moved, then synced");
    CHECK(unlinkat(dir, "b.db", 0) == 0 && close(dir) == 0 && rmdir("here") == 0 && rmdir("there") == 0);
}

/* Other ways to open, look at, copy and cut a file. */
static void relatives(void) {
    int dir = open(".", O_RDONLY | O_DIRECTORY), fd = openat(dir, "rel.db", O_RDWR | O_CREAT, 0644);
    CHECK(dir >= 0 && fd >= 0 && untorn_fd_is_managed(fd) == 1 && write(fd, "12345678", 8) == 8);
    struct stat st;
    CHECK(stat("rel.db", &st) == 0 && st.st_size == 8 && lstat("rel.db", &st) == 0 && st.st_size == 8);
    CHECK(fstatat(dir, "rel.db", &st, 0) == 0 && st.st_size == 8 && fsync(fd) == 0 && truncate("rel.db", 4) == 0);
    CHECK(stat("rel.db", &st) == 0 && st.st_size == 4 && untorn_fd_rollback(fd) == 0);
    CHECK(stat("rel.db", &st) == 0 && st.st_size == 8);
    int copy = dup(fd), third = fcntl(fd, F_DUPFD, 30), fourth = dup2(fd, 40);
    CHECK(copy >= 0 && third >= 30 && fourth == 40 && close(fd) == 0 && pwrite(copy, "x", 1, 0) == 1);
    CHECK(close(copy) == 0 && pwrite(third, "y", 1, 1) == 1 && fsync(fourth) == 0 && close(third) == 0);
    CHECK(untorn_fd_is_managed(40) == 1 && dup2(dir, 40) == 40 && untorn_fd_is_managed(40) == 0 && close(40) == 0);
    check_disk("rel.db", "xy345678");
    CHECK(truncate("rel.db", 2) == 0); /* of a file that is not open: a commit */
    check_disk("rel.db", "xy");
    fd = creat("rel.db", 0644);
    CHECK(fd >= 0 && untorn_fd_is_managed(fd) == 1 && close(fd) == 0);
    check_disk("rel.db", "xy");
    char template[] = "made-XXXXXX.db";
    fd = mkstemps(template, 3);
    CHECK(fd >= 0 && untorn_fd_is_managed(fd) == 1 && close(fd) == 0 && unlink(template) == 0 && close(dir) == 0);
}

/* Calls that cannot be correct are refused. */
static void refused(void) {
    int fd, plain = open("plain", O_RDWR | O_CREAT, 0644);
    char *at = create("refused.db", "refused", &fd);
    int pipes[2];
    CHECK(plain >= 0 && write(plain, "plain", 5) == 5 && pipe(pipes) == 0);
    struct aiocb control = {.aio_fildes = fd, .aio_buf = (char[4]){0}, .aio_nbytes = 4};
    for (int i = 0; i < 2; i++) {
        FAILS_WITH(link("refused.db", "second"), EPERM);
        FAILS_WITH(sendfile(fd, plain, NULL, 5), EINVAL);
        FAILS_WITH(copy_file_range(fd, NULL, plain, NULL, 5, 0), EXDEV);
        FAILS_WITH(futimens(fd, NULL), ENOTSUP);
        FAILS_WITH(utimensat(AT_FDCWD, "refused.db", NULL, 0), ENOTSUP);
        FAILS_WITH(linkat(AT_FDCWD, "refused.db", AT_FDCWD, "second", 0), EPERM);
        FAILS_WITH(splice(fd, NULL, pipes[1], NULL, 5, 0), EINVAL);
        FAILS_WITH(futimes(fd, NULL), ENOTSUP);
        FAILS_WITH(utimes("refused.db", NULL), ENOTSUP);
        FAILS_WITH(utime("refused.db", NULL), ENOTSUP);
        FAILS_WITH(ioctl(fd, FICLONE, plain), EOPNOTSUPP);
        FAILS_WITH(ioctl(plain, FICLONE, (void *)(long)fd), EOPNOTSUPP);
        FAILS_WITH(aio_read(&control), EINVAL);
        FAILS_WITH(aio_write(&control), EINVAL);
        FAILS_WITH(aio_fsync(O_SYNC, &control), EINVAL);
        FAILS_WITH(close_range((unsigned)fd, (unsigned)fd, CLOSE_RANGE_UNSHARE), ENOTSUP);
        FAILS_WITH((void *)mmap((void *)page, page, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ? -1 : 0,
                   ENOTSUP);
    }
    CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
    CHECK(munmap(at, page) == 0 && close(fd) == 0 && close(plain) == 0 && unlink("plain") == 0);
}

/* Refused calls are reported on standard error. */
static void refusals_are_said(void) {
    int said = open("said", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(said >= 0);
    run_with_stderr("refused", said);
    /* Each call is named once, with the file where the call has one. */
    const char *const calls[] = {"link",     "sendfile", "copy_file_range", "futimens",   "utimensat",
                                 "linkat",   "splice",   "futimes",         "utimes",     "utime",
                                 "ioctl",    "aio_read", "aio_write",       "aio_fsync",  "close_range",
                                 "mmap"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char command[128];
        snprintf(command, sizeof command, "grep -q '^untorn: %s: ' said", calls[i]);
        if (system(command) != 0) fprintf(stderr, "%s is not named\n", calls[i]);
        CHECK(system(command) == 0);
    }
    CHECK(system("grep -q 'sendfile: .*refused.db' said && test -z \"$(sort said | uniq -d)\"") == 0);
    CHECK(close(said) == 0);
}

static void streams(void) {
    FILE *to = fopen("stream.db", "w+");
    CHECK(to && untorn_fd_is_managed(fileno(to)) == 1 && fprintf(to, "%d lines\n", 2) > 0 && fputs("two\n", to) >= 0);
    CHECK(fflush(to) == 0);
    struct stat st;
    CHECK(stat("stream.db", &st) == 0 && st.st_size == 12);
    check_disk("stream.db", "");
    CHECK(fsync(fileno(to)) == 0 && fputs("lost\n", to) >= 0 && fflush(to) == 0);
    char line[32];
    rewind(to);
    CHECK(fgets(line, sizeof line, to) && strcmp(line, "2 lines\n") == 0 && ftell(to) == 8);
    CHECK(fseek(to, 0, SEEK_END) == 0 && ftell(to) == 17 && fclose(to) == 0);
    check_disk("stream.db", "2 lines");
    CHECK(stat("stream.db", &st) == 0 && st.st_size == 12);
    FILE *more = fopen("stream.db", "a");
    CHECK(more && fputs("three\n", more) >= 0 && fflush(more) == 0);
    FILE *from = fopen("stream.db", "r");
    CHECK(from && fgets(line, sizeof line, from) && fgets(line, sizeof line, from) && fgets(line, sizeof line, from));
    CHECK(strcmp(line, "three\n") == 0 && !freopen("stream.db", "r", from) && errno == ENOTSUP);
    CHECK(fclose(from) == 0 && fsync(fileno(more)) == 0 && fclose(more) == 0);
    CHECK(stat("stream.db", &st) == 0 && st.st_size == 18 && unlink("stream.db") == 0);
    FILE *plain = fopen("plain", "w");
    CHECK(plain && fileno(plain) >= 0 && fputs("x", plain) >= 0 && fclose(plain) == 0 && unlink("plain") == 0);
}

/* Nothing but named files is managed. */
static void everything_else(void) {
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/untorn-test-%d", (int)getpid());
    int fd = open(name, O_RDWR | O_CREAT, 0600), anonymous = open(".", O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)page) == 0 && anonymous >= 0 && ftruncate(anonymous, (off_t)page) == 0);
    char *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *nameless = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, anonymous, 0);
    FILE *temporary = tmpfile();
    CHECK(shared != MAP_FAILED && nameless != MAP_FAILED && temporary && ftruncate(fileno(temporary), (off_t)page) == 0);
    char *third = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(temporary), 0);
    CHECK(third != MAP_FAILED);
    int locked = open("lock", O_RDWR | O_CREAT, 0600);
    CHECK(locked >= 0 && ftruncate(locked, (off_t)page) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        strcpy(shared, "seen by both");
        strcpy(nameless, "seen");
        int mine = open("lock", O_RDWR); /* as a second program does */
        CHECK(mine >= 0 && mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0) != MAP_FAILED);
        _exit(0);
    }
    CHECK(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, locked, 0) != MAP_FAILED);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(strcmp(shared, "seen by both") == 0 && strcmp(nameless, "seen") == 0 && untorn_fd_is_managed(fd) == 0);
    CHECK(!exists("lock.untorn") && unlink(name) == 0 && unlink("lock") == 0 && close(fd) == 0 && close(locked) == 0);
    CHECK(close(anonymous) == 0 && fclose(temporary) == 0);
    snprintf(name, sizeof name, "test ! -e /dev/shm/untorn-test-%d.untorn", (int)getpid());
    CHECK(system(name) == 0);
}

static void at_exit_too(void) {
    int fd = open("exit.db", O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "later", 5, 20) == 5 && fsync(fd) == 0);
}

/* The process ends without closing: its synced changes are in the plain file. */
static void ends_without_closing(void) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int fd;
        CHECK(atexit(at_exit_too) == 0);
        char *at = create("exit.db", "synced", &fd);
        strcpy(at, "SYNCED, and not synced");
        CHECK(untorn_fd_rollback(fd) == 0);
        at[0] = 'S';
        CHECK(msync(at, page, MS_SYNC) == 0);
        strcpy(at, "not synced");
        CHECK(untorn_fd_rollback(fd) == 0);
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    check_disk("exit.db", "Synced");
    CHECK(system("cp exit.db copy && test \"$(tail -c +21 copy | head -c 5)\" = later") == 0);
    CHECK(unlink("copy") == 0 && unlink("exit.db") == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int fd;
        char *at = create("exit.db", "synced", &fd);
        strcpy(at, "kept");
        CHECK(untorn_fd_commit_on_close(fd, 1) == 0);
        exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    check_disk("exit.db", "kept");
    CHECK(unlink("exit.db") == 0);
    CHECK(setenv("UNTORN_COMMIT_ON_CLOSE", "1", 1) == 0);
    int fd;
    char *at = create("exit.db", "synced", &fd);
    strcpy(at, "closed");
    CHECK(munmap(at, page) == 0 && close(fd) == 0 && unsetenv("UNTORN_COMMIT_ON_CLOSE") == 0);
    check_disk("exit.db", "closed");
    CHECK(unlink("exit.db") == 0);
}

/* A child made by vfork closes and replaces descriptors, as posix_spawn and Python's subprocess do. */
static void vfork_child(void) {
    int fd = open("vfork.db", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && untorn_fd_manage(fd) == 0 && pwrite(fd, "during", 6, 0) == 6);
    pid_t pid = vfork();
    if (pid == 0) {
        close(fd);
        dup2(1, fd);
        for (int i = 3; i < 100; i++) close(i);
        _exit(0);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(untorn_fd_is_managed(fd) == 1 && fsync(fd) == 0 && close(fd) == 0);
    check_disk("vfork.db", "during");
    CHECK(unlink("vfork.db") == 0);
}

/* Record locks outlive a map that is made anew, with more room. */
static void record_locks(void) {
    if (getenv("UNDER_VALGRIND")) return; /* which has no such addresses */
    int fd, status;
    char *at = create("locks.db", "locked", &fd);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && munmap(at, page) == 0);
    CHECK(lseek(fd, 100, SEEK_SET) == 100 && lockf(fd, F_LOCK, 7) == 0);
    char *far = mmap(NULL, (size_t)100 << 30, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(far != MAP_FAILED && strcmp(far, "locked") == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int mine = untorn_fd_is_managed(fd) ? (int)syscall(SYS_openat, AT_FDCWD, "locks.db", O_RDWR) : -1;
        for (int i = 0; i < 2; i++) {
            struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i ? 100 : 10, .l_len = 1};
            CHECK(mine >= 0 && fcntl(mine, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK);
        }
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(munmap(far, (size_t)100 << 30) == 0 && close(fd) == 0 && unlink("locks.db") == 0);
}

/* Calls on files that are not managed cost nothing: the kernel is not even asked which file it is. */
static void others_cost_nothing(void) {
    int fd, status, other = open("other", O_RDWR | O_CREAT, 0644);
    char *at = create("cost.db", "managed", &fd), buf[8];
    CHECK(other >= 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int mine = open("other.db", O_RDWR | O_CREAT, 0644); /* so that this process manages a file, too */
        CHECK(mine >= 0 && untorn_fd_manage(mine) == 0);
        struct sock_filter no_stat[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstat, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog filter = {.len = sizeof no_stat / sizeof *no_stat, .filter = no_stat};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(0);
        CHECK(write(other, "some", 4) == 4 && pwrite(other, "more", 4, 4) == 4 && lseek(other, 0, SEEK_SET) == 0);
        CHECK(read(other, buf, 4) == 4 && pread(other, buf, 4, 4) == 4 && memcmp(buf, "more", 4) == 0);
        CHECK(fsync(other) == 0 && ftruncate(other, 2) == 0 && close(other) == 0);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(munmap(at, page) == 0 && close(fd) == 0 && close(other) == 0 && unlink("other") == 0);
}

static int in_handler;
static volatile sig_atomic_t in_call, handled, in_calls, wrong_in_handler;

/* Calls by descriptor that a handler may make (signal-safety(7)), on a file that is not managed. */
static void handler(int signal) {
    int saved = errno;
    char found[4] = {0};
    struct stat now;
    int ok = signal == SIGUSR1 && pwrite(in_handler, "hand", 4, 0) == 4 && pread(in_handler, found, 4, 0) == 4 &&
             memcmp(found, "hand", 4) == 0 && lseek(in_handler, 0, SEEK_SET) == 0 && read(in_handler, found, 4) == 4 &&
             lseek(in_handler, 0, SEEK_SET) == 0 && write(in_handler, "made", 4) == 4 && ftruncate(in_handler, 4) == 0 &&
             fstat(in_handler, &now) == 0 && now.st_size == 4 && fcntl(in_handler, F_GETFL) >= 0;
    int copy = dup(in_handler);
    ok = ok && copy >= 0 && pread(copy, found, 4, 0) == 4 && memcmp(found, "made", 4) == 0 && close(copy) == 0;
    if (!ok) wrong_in_handler = 1;
    handled++;
    in_calls += in_call;
    errno = saved;
}

/* A timer interrupts this thread at random moments, many times, most of them inside of a call on a managed file. The
 * handler makes calls by descriptor on a file that is not managed, also by a copy whose number a managed file had a
 * moment ago or is about to get. A lock that the interrupted call holds would be a deadlock, which the alarm ends. */
static void in_signal_handlers(void) {
    handled = in_calls = 0;
    in_handler = open("handler", O_RDWR | O_CREAT, 0644);
    CHECK(in_handler >= 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && signal(SIGALRM, SIG_DFL) != SIG_ERR);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    alarm(300); /* a deadlock ends by this */
    const long enough = getenv("UNDER_VALGRIND") ? 20 : 2000;
    const long slower = getenv("UNDER_VALGRIND") ? 10 : 1;
    for (unsigned round = 0; in_calls < enough; round++) {
        /* Periods of 97 to 223 microseconds, so that the moments wander over the calls. Under Valgrind, where the handler
         * takes as long itself and would leave no time for the calls, ten times that. */
        struct itimerspec period = {.it_interval.tv_nsec = slower * (97000 + round * 7919 % 126000),
                                    .it_value.tv_nsec = 50000};
        in_call = 1;
        CHECK(timer_settime(timer, 0, &period, NULL) == 0);
        int fd = open("handled.db", O_RDWR | O_CREAT, 0644), copy = dup(fd);
        CHECK(fd >= 0 && copy >= 0 && untorn_fd_is_managed(fd) == 1);
        char *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(pwrite(fd, "data", 4, 0) == 4 && at != MAP_FAILED);
        for (int i = 0; i < 200; i++) {
            char found[4];
            CHECK(pread(copy, found, 4, 0) == 4 && lseek(fd, 0, SEEK_END) >= 4 && flock(copy, LOCK_SH) == 0);
            CHECK(pwrite(copy, "more", 4, 4 + i) == 4);
        }
        CHECK(msync(at, page, MS_SYNC) == 0 && rename("handled.db", "handled-too.db") == 0);
        CHECK(munmap(at, page) == 0 && close(copy) == 0 && close(fd) == 0 && unlink("handled-too.db") == 0);
        in_call = 0;
    }
    CHECK(timer_delete(timer) == 0);
    alarm(0);
    CHECK(signal(SIGUSR1, SIG_DFL) != SIG_ERR && handled >= in_calls && !wrong_in_handler);
    struct stat now;
    CHECK(fstat(in_handler, &now) == 0 && now.st_size == 4 && close(in_handler) == 0);
    CHECK(unlink("handler") == 0);
}

static int logged_fd;
static char *logged_map;
static volatile sig_atomic_t logged, refused_in_handler;

/* Logs to a managed file, as programs do on a signal: written, or refused because it interrupted another call. */
static void log_handler(int signal) {
    int saved = errno;
    (void)signal;
    ssize_t n = write(logged_fd, "line\n", 5);
    if (n == 5) {
        logged++;
    } else if (n == -1 && errno == EDEADLK) {
        refused_in_handler++;
        struct stat now;
        int refused = fsync(logged_fd) == -1 && errno == EDEADLK && msync(logged_map, page, MS_SYNC) == -1 &&
                      errno == EDEADLK && dup(logged_fd) == -1 && errno == EDEADLK && close(logged_fd) == -1 &&
                      errno == EDEADLK && stat("log.db", &now) == -1 && errno == EDEADLK &&
                      open("log.db", O_RDWR) == -1 && errno == EDEADLK && rename("log.db", "log2.db") == -1 &&
                      errno == EDEADLK && unlink("log.db") == -1 && errno == EDEADLK &&
                      munmap(logged_map, page) == -1 && errno == EDEADLK;
        if (!refused) wrong_in_handler = 1;
    } else {
        wrong_in_handler = 1;
    }
    errno = saved;
}

#ifndef __SANITIZE_ADDRESS__
/* Ends the process in the middle of a call, which the system has stopped. */
static void exit_handler(int signal) {
    (void)signal;
    if (fsync(logged_fd) == -1 && errno == EDEADLK) exit(3);
    _exit(1);
}
#endif

/* Calls on a managed file, interrupted all the time. */
static void work_and_be_interrupted(long enough) {
    logged = refused_in_handler = wrong_in_handler = 0;
    struct sigaction action = {.sa_handler = log_handler, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && signal(SIGALRM, SIG_DFL) != SIG_ERR);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    int fd = open("log.db", O_RDWR | O_CREAT | O_TRUNC, 0644);
    logged_fd = open("log.db", O_RDWR | O_APPEND);
    logged_map = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && logged_fd >= 0 && logged_map != MAP_FAILED && write(fd, "begin", 5) == 5 && fsync(fd) == 0);
    alarm(300); /* a deadlock ends by this */
    for (unsigned round = 0; refused_in_handler < enough; round++) {
        struct itimerspec period = {.it_interval.tv_nsec = 997000 + round * 7919 % 126000, .it_value.tv_nsec = 50000};
        CHECK(timer_settime(timer, 0, &period, NULL) == 0);
        for (int i = 0; i < 100; i++) {
            char found[5];
            CHECK(pread(fd, found, 5, 0) == 5 && pwrite(fd, "begin", 5, 0) == 5 && lseek(fd, 0, SEEK_END) >= 5);
        }
        CHECK(fsync(fd) == 0);
    }
    CHECK(timer_delete(timer) == 0 && signal(SIGUSR1, SIG_DFL) != SIG_ERR);
    alarm(0);
    struct stat now;
    CHECK(!wrong_in_handler && fstat(fd, &now) == 0 && now.st_size == 5 + 5 * (off_t)logged);
    CHECK(fsync(fd) == 0 && munmap(logged_map, page) == 0 && close(fd) == 0 && close(logged_fd) == 0);
}

/* A handler that makes calls on a managed file in the middle of such a call is refused, and never waits for ever. */
static void managed_in_signal_handlers(void) {
    int interrupted[2], kept = dup(2);
    CHECK(pipe(interrupted) == 0 && kept >= 0 && dup2(interrupted[1], 2) == 2);
    work_and_be_interrupted(getenv("UNDER_VALGRIND") ? 5 : 200);
    CHECK(dup2(kept, 2) == 2 && close(kept) == 0 && close(interrupted[1]) == 0);
    char said[4096] = {0};
    ssize_t n = read(interrupted[0], said, sizeof said - 1);
    CHECK(close(interrupted[0]) == 0);
    /* Said once, with the call. */
    CHECK(n > 0 && strncmp(said, "untorn: write: refused (EDEADLK)", 32) == 0 && !strstr(said + 1, "untorn:"));
#ifndef __SANITIZE_ADDRESS__ /* neither the sanitizer's leak check nor Valgrind works under the filter */
    fflush(NULL);
    pid_t pid = getenv("UNDER_VALGRIND") ? -1 : fork();
    if (pid == 0) {
        struct sigaction action = {.sa_handler = exit_handler};
        struct sock_filter stops[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_lseek, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        };
        struct sock_fprog filter = {.len = sizeof stops / sizeof *stops, .filter = stops};
        logged_fd = open("log.db", O_RDWR | O_TRUNC);
        CHECK(logged_fd >= 0 && write(logged_fd, "begin", 5) == 5 && fsync(logged_fd) == 0);
        CHECK(sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        alarm(300);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(3);
        (void)!write(logged_fd, "more", 4); /* asks for the offset, and is stopped there */
        _exit(2);
    }
    int status;
    CHECK(pid == -1 || waitpid(pid, &status, 0) == pid);
    CHECK(pid == -1 ? getenv("UNDER_VALGRIND") != NULL : WIFEXITED(status) && WEXITSTATUS(status) == 3);
#endif
    check_reopened("log.db", "begin");
    CHECK(unlink("log.db") == 0);
}

/* A write by a descriptor of O_SYNC or O_DSYNC is durable when it returns. */
static void synced_writes(void) {
    static const int FLAGS[] = {O_SYNC, O_DSYNC, O_SYNC | O_APPEND};
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        IN_A_KILLED_PROCESS({
            int fd = open("synced.db", O_RDWR | O_CREAT | O_TRUNC | FLAGS[i], 0644);
            struct iovec more = {.iov_base = "and more", .iov_len = 8};
            CHECK(fd >= 0 && write(fd, "written ", 8) == 8 && writev(fd, &more, 1) == 8);
        });
        check_reopened("synced.db", "written and more");
        CHECK(unlink("synced.db") == 0);
    }
}

/* Programs close all descriptors, and choose numbers for new ones. Untorn's own descriptors are not the program's. */
static void own_descriptors(void) {
    char before[1024];
    const int numbers = sysconf(_SC_OPEN_MAX) < 1024 ? (int)sysconf(_SC_OPEN_MAX) : 1024;
    for (int i = 0; i < numbers; i++) before[i] = fcntl(i, F_GETFD) != -1;
    int fd = open("own.db", O_RDWR | O_CREAT, 0644), other = open("own", O_RDWR | O_CREAT, 0644), refused_ = 0;
    CHECK(fd >= 0 && other >= 0 && write(fd, "first", 5) == 5 && fsync(fd) == 0);
    for (int i = 3; i < numbers; i++) {
        if (before[i] || i == fd || i == other || fcntl(i, F_GETFD) == -1) continue;
        FAILS_WITH(dup2(other, i), EBUSY);
        FAILS_WITH(dup3(other, i, O_CLOEXEC), EBUSY);
        FAILS_WITH(close(i), EBADF);
        refused_++;
    }
    struct stat now;
    CHECK(refused_ >= 3 && pwrite(fd, "second", 6, 0) == 6 && fsync(fd) == 0);
    CHECK(fstat(other, &now) == 0 && now.st_size == 0 && close(other) == 0 && unlink("own") == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) { /* The calls of a child before it executes a program. */
        for (int i = 3; i < numbers; i++) {
            if (i != fd && !before[i] && dup2(2, i) != i) _exit(1);
            close(i);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0 && pwrite(fd, "third!", 6, 0) == 6 && fsync(fd) == 0);
    CHECK(close(fd) == 0);
    check_disk("own.db", "third!");
    CHECK(unlink("own.db") == 0);
}

/* Streams and other programs would write past Untorn by these descriptors. */
static void descriptors_for_others(void) {
    posix_spawn_file_actions_t actions;
    int fd = open("others.db", O_RDWR | O_CREAT, 0644), plain = open("others", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && plain >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(plain, F_GETFD) == 0);
    for (int i = 0; i < 3; i++) FAILS_WITH(dup2(fd, i), EINVAL);
    int copy = dup(fd);
    CHECK(copy >= 0 && fcntl(copy, F_GETFD) == FD_CLOEXEC && close(copy) == 0);
    FAILS_WITH(fcntl(fd, F_SETFD, 0), EINVAL);
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(plain, F_SETFD, 0) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 20) == EINVAL);
    CHECK(posix_spawn_file_actions_adddup2(&actions, plain, 20) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    CHECK(close(fd) == 0 && close(plain) == 0 && unlink("others.db") == 0 && unlink("others") == 0);
}

/* A close discards changes that were not synced. */
static void discarding(void) {
    int fd = open("discarded.db", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && write(fd, "synced", 6) == 6 && fsync(fd) == 0 && close(fd) == 0);
    CHECK(write(2, "|", 1) == 1);
    fd = open("discarded.db", O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "not synced", 10, 0) == 10 && close(fd) == 0);
    check_disk("discarded.db", "synced");
    CHECK(unlink("discarded.db") == 0);
}

/* Changes that a close discards are reported on standard error. */
static void discarding_is_said(void) {
    int said[2];
    char text[1024] = {0};
    CHECK(pipe(said) == 0);
    run_with_stderr("discarding", said[1]);
    CHECK(close(said[1]) == 0 && read(said[0], text, sizeof text - 1) > 0 && close(said[0]) == 0);
    CHECK(text[0] == '|' && strstr(text, "untorn: close: ") && strstr(text, "discarded.db: ") && strstr(text, "fsync"));
}

/* A backup by a command of the shell is as of the last sync. */
static void backup_by_a_command(void) {
    int fd = open("backed-up.db", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && write(fd, "synced", 6) == 6 && fsync(fd) == 0);
    CHECK(system("cp backed-up.db backup && test \"$(cat backup)\" = synced") == 0);
    CHECK(pwrite(fd, "SYNCED", 6, 0) == 6 && fsync(fd) == 0 && pwrite(fd, "not yet", 7, 0) == 7);
    char found[8] = {0};
    FILE *command = popen("cat backed-up.db", "r");
    CHECK(command && fread(found, 1, 7, command) == 6 && strcmp(found, "SYNCED") == 0 && pclose(command) == 0);
    CHECK(system(NULL) != 0 && fsync(fd) == 0 && close(fd) == 0);
    check_disk("backed-up.db", "not yet");
    CHECK(unlink("backed-up.db") == 0 && unlink("backup") == 0);
}

static const struct part {
    const char *name;
    void (*run)(void);
} PARTS[] = {
    {"reorganize", reorganize}, {"reorganize_killed", reorganize_killed}, {"replace_open", replace_open},
    {"becomes_named", becomes_named}, {"exchanged", exchanged}, {"unlinked", unlinked}, {"long_names", long_names},
    {"removed_after_a_crash", removed_after_a_crash}, {"directories", directories}, {"relatives", relatives},
    {"refused", refused}, {"refusals_are_said", refusals_are_said}, {"streams", streams}, {"everything_else", everything_else},
    {"ends_without_closing", ends_without_closing}, {"vfork_child", vfork_child}, {"record_locks", record_locks},
    {"others_cost_nothing", others_cost_nothing}, {"in_signal_handlers", in_signal_handlers},
    {"managed_in_signal_handlers", managed_in_signal_handlers}, {"synced_writes", synced_writes},
    {"own_descriptors", own_descriptors}, {"descriptors_for_others", descriptors_for_others}, {"discarding", discarding},
    {"discarding_is_said", discarding_is_said}, {"backup_by_a_command", backup_by_a_command},
};

int main(int argc, char **argv) {
    const char *only = argc == 3 ? argv[2] : NULL;
    program = argv[0];
    CHECK(*program == '/');
    enter_scratch(2, argv);
    page = (size_t)sysconf(_SC_PAGESIZE);
    if (untorn_manage) CHECK(untorn_manage("*.db") == 0 && untorn_manage("*.db.*") == 0);
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (!only || strcmp(only, PARTS[i].name) == 0) PARTS[i].run();
    return 0;
}
