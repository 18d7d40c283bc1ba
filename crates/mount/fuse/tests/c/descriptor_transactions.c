/* Named files on a mount under the porting header, committed together by their descriptors. Arguments: a directory on
 * the mount, and nothing; `count` or, if the mount may end, `dying`: counts in three files until killed; `shown`: prints the
 * number; `many`: uses many files; or `full FILLER`: fills the disk below the mount. */
#include <untorn_posix.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

static void on_bus_error(int number) {
    (void)number;
    while (outlives_mount) pause();
    _exit(1);
}

static int open_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && untorn_fd_is_managed(fd) == 1);
    return fd;
}

static void put(int fd, const char *text) { CHECK(pwrite(fd, text, 3, 0) == 3); }

static void shows(int fd, const char *expected) {
    char found[4] = "";
    CHECK(pread(fd, found, 3, 0) == 3 && strcmp(found, expected) == 0);
}

/* The file as of its last commit: nothing has it open, so opening it discards nothing. */
static void committed(const char *path, const char *expected) {
    int fd = open_file(path);
    shows(fd, expected);
    CHECK(close(fd) == 0);
}

static void several_as_one(void) {
    int a = open_file("a.db"), b = open_file("sub/b.db"), fds[] = {a, b, a};
    put(a, "one");
    put(b, "one");
    CHECK(untorn_fd_syncv(fds, 3) == 0);
    put(a, "two");
    FAILS_WITH(untorn_fd_syncv(fds, 0), EINVAL);
    FAILS_WITH(untorn_fd_syncv(NULL, 1), EFAULT);
    /* A file of a store, and one that is not managed. */
    char elsewhere[] = "/var/tmp/untorn-descriptors-XXXXXX";
    CHECK(mkdtemp(elsewhere) && chmod(elsewhere, 0755) == 0);
    char path[64];
    snprintf(path, sizeof path, "%s/x.db", elsewhere);
    int other = open_file(path), mixed[] = {a, other};
    FAILS_WITH(untorn_fd_syncv(mixed, 2), EINVAL);
    FAILS_WITH(untorn_fd_txn_begin(mixed, 2), EINVAL);
    CHECK(close(other) == 0 && unlink(path) == 0 && rmdir(elsewhere) == 0);
    mixed[1] = open("plain", O_RDWR | O_CREAT, 0644);
    FAILS_WITH(untorn_fd_syncv(mixed, 2), EINVAL);
    CHECK(close(mixed[1]) == 0 && unlink("plain") == 0);
    CHECK(close(a) == 0 && close(b) == 0);
    committed("a.db", "one");
    committed("sub/b.db", "one");
}

static void transactions(void) {
    int a = open_file("a.db"), b = open_file("sub/b.db");
    put(a, "two"); /* earlier changes belong to it, too */
    int txn = untorn_fd_txn_begin(&a, 1);
    CHECK(txn > 0 && untorn_fd_txn_add(txn, b) == 0 && untorn_fd_txn_add(txn, b) == 0);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
    CHECK(map != MAP_FAILED);
    memcpy(map, "two", 3);
    FAILS_WITH(fsync(a), EBUSY);
    FAILS_WITH(fdatasync(b), EBUSY);
    FAILS_WITH(msync(map, 4096, MS_SYNC), EBUSY);
    FAILS_WITH(untorn_fd_rollback(a), EBUSY);
    FAILS_WITH(untorn_fd_syncv(&a, 1), EBUSY);
    FAILS_WITH(untorn_fd_txn_begin(&a, 1), EBUSY);
    CHECK(untorn_fd_txn_abort(txn) == 0);
    shows(a, "one");
    CHECK(memcmp(map, "one", 3) == 0);
    FAILS_WITH(untorn_fd_txn_commit(txn), EBADF);
    FAILS_WITH(untorn_fd_txn_add(txn, a), EBADF);

    /* The program may close the files meanwhile. */
    int fds[] = {a, b};
    CHECK((txn = untorn_fd_txn_begin(fds, 2)) > 0);
    put(a, "six");
    memcpy(map, "six", 3);
    CHECK(munmap(map, 4096) == 0 && close(b) == 0 && close(a) == 0);
    a = open_file("a.db");
    shows(a, "six");
    CHECK(close(a) == 0 && untorn_fd_txn_commit(txn) == 0);
    committed("a.db", "six");
    committed("sub/b.db", "six");

    /* Of a refused one, no file is in it. */
    a = open_file("a.db"), b = open_file("sub/b.db");
    int first = untorn_fd_txn_begin(&b, 1), both[] = {a, b};
    FAILS_WITH(untorn_fd_txn_begin(both, 2), EBUSY);
    put(a, "ten");
    CHECK(fsync(a) == 0 && untorn_fd_txn_commit(first) == 0);
    FAILS_WITH(untorn_fd_txn_begin((int[]){-1}, 1), EINVAL);
    CHECK(close(a) == 0 && close(b) == 0);
    committed("a.db", "ten");
}

/* Changes that are commits of their own elsewhere are not, in a transaction. */
static void writes_that_sync(void) {
    int fd = open("a.db", O_RDWR | O_SYNC), txn = untorn_fd_txn_begin(&fd, 1);
    CHECK(fd >= 0 && txn > 0 && untorn_fd_commit_on_close(fd, 1) == 0);
    put(fd, "bad");
    CHECK(close(fd) == 0 && untorn_fd_txn_abort(txn) == 0);
    committed("a.db", "ten");
    fd = open("a.db", O_RDWR | O_SYNC);
    put(fd, "yes");
    CHECK(close(fd) == 0);
    committed("a.db", "yes");
}

static void *elsewhere(void *ignored) {
    CHECK(close(open_file("other.db")) == 0 && rename("other.db", "moved.db") == 0 && unlink("moved.db") == 0);
    FAILS_WITH(rename("a.db", "moved.db"), EBUSY);
    FAILS_WITH(unlink("a.db"), EBUSY);
    return ignored;
}

/* They are refused at the call, and nothing has changed. */
static void names(void) {
    pthread_t thread;
    int a = open_file("a.db"), txn = untorn_fd_txn_begin(NULL, 0);
    for (int turn = 0; turn < 2; turn++) {
        FAILS_WITH(rename("a.db", "moved.db"), EOPNOTSUPP);
        FAILS_WITH(rename("a.db", "plain"), EOPNOTSUPP);
        FAILS_WITH(unlink("sub/b.db"), EOPNOTSUPP);
        FAILS_WITH(open("fresh.db", O_RDWR | O_CREAT, 0644), EOPNOTSUPP);
        CHECK(access("a.db", F_OK) == 0 && access("sub/b.db", F_OK) == 0 && access("fresh.db", F_OK) != 0);
        CHECK(turn || untorn_fd_txn_add(txn, a) == 0);
    }
    /* Other files, and another thread's names, do not belong to it. */
    CHECK(close(open("plain", O_RDWR | O_CREAT, 0644)) == 0 && rename("plain", "other") == 0 && unlink("other") == 0);
    CHECK(pthread_create(&thread, NULL, elsewhere, NULL) == 0 && pthread_join(thread, NULL) == 0);
    put(a, "new");
    CHECK(untorn_fd_txn_commit(txn) == 0 && rename("a.db", "moved.db") == 0 && rename("moved.db", "a.db") == 0);
    CHECK(close(a) == 0);
    committed("a.db", "new");
}

static void processes(void) {
    int a = open_file("a.db"), b = open_file("sub/b.db"), fds[] = {a, b}, txn = untorn_fd_txn_begin(fds, 2), state;
    put(a, "old");
    put(b, "old");
    pid_t child = fork();
    if (child == 0) {
        FAILS_WITH(untorn_fd_txn_commit(txn), ECHILD);
        FAILS_WITH(untorn_fd_txn_abort(txn), ECHILD);
        FAILS_WITH(untorn_fd_txn_begin(&a, 1), ECHILD);
        FAILS_WITH(untorn_fd_syncv(fds, 2), ECHILD);
        exit(0);
    }
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    CHECK(untorn_fd_txn_commit(txn) == 0 && close(a) == 0 && close(b) == 0);
    for (int is_killed = 0; is_killed < 2; is_killed++) {
        child = fork();
        if (child == 0) {
            fds[0] = open_file("a.db"), fds[1] = open_file("sub/b.db");
            CHECK(untorn_fd_commit_on_close(fds[1], 1) == 0);
            txn = untorn_fd_txn_begin(fds, 2);
            put(fds[0], "bad");
            put(fds[1], "bad");
            is_killed ? raise(SIGKILL) : (exit(0), 0);
        }
        CHECK(waitpid(child, &state, 0) == child && WIFSIGNALED(state) == is_killed);
        committed("a.db", "old");
        committed("sub/b.db", "old");
    }
}

enum { LARGE = 200000 };

/* Counts in a small file, a large one and a mapped one. Prints the number of each commit, at first that of the last. */
static void count(int goes_on) {
    int fds[] = {open_file("a.db"), open_file("b.db"), open_file("c.db")};
    uint64_t found[3] = {0}, n;
    CHECK(ftruncate(fds[1], LARGE) == 0 && ftruncate(fds[2], 4096) == 0 && untorn_fd_syncv(fds, 3) == 0);
    uint64_t *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
    CHECK(map != MAP_FAILED && pread(fds[0], &found[0], 8, 0) >= 0 && pread(fds[1], &found[1], 8, LARGE - 8) == 8);
    found[2] = map[0];
    if (found[0] != found[1] || found[0] != found[2]) {
        fprintf(stderr, "torn: %lu %lu %lu\n", found[0], found[1], found[2]);
        _exit(2);
    }
    for (n = found[0], dprintf(1, "ack %lu\n", n); goes_on;) {
        uint64_t next = n + 1;
        for (int aborts = n % 4 == 0; aborts >= 0; aborts--) {
            uint64_t put = next + aborts * 1000000;
            int txn = untorn_fd_txn_begin(fds, 2);
            CHECK(txn > 0 && untorn_fd_txn_add(txn, fds[2]) == 0);
            CHECK(pwrite(fds[0], &put, 8, 0) == 8 && pwrite(fds[1], &put, 8, LARGE - 8) == 8);
            map[0] = put;
            if (aborts)
                CHECK(untorn_fd_txn_abort(txn) == 0);
            else if (untorn_fd_txn_commit(txn) == 0)
                dprintf(1, "ack %lu\n", n = next);
            else
                CHECK(errno == EIO); /* a write on its way to a daemon that was killed is lost */
            CHECK(map[0] == n);
        }
    }
}

/* One file more than a transaction on a mount can have. */
static void many(void) {
    enum { MOST = 511 };
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int fds[MOST + 1];
    for (int i = 0; i <= MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.db", i);
        fds[i] = open_file(name);
        put(fds[i], "one");
    }
    FAILS_WITH(untorn_fd_syncv(fds, MOST + 1), EINVAL);
    CHECK(untorn_fd_syncv(fds, MOST) == 0 && fsync(fds[MOST]) == 0);
    FAILS_WITH(untorn_fd_txn_begin(fds, MOST + 1), EINVAL);
    int txn = untorn_fd_txn_begin(fds, MOST);
    CHECK(txn > 0);
    FAILS_WITH(untorn_fd_txn_add(txn, fds[MOST]), EINVAL);
    for (int i = 0; i < MOST; i++) put(fds[i], "two");
    CHECK(untorn_fd_txn_commit(txn) == 0);
    for (int i = 0; i < MOST; i++) put(fds[i], "bad");
    for (int i = 0; i < MOST; i++) {
        CHECK(untorn_fd_rollback(fds[i]) == 0);
        shows(fds[i], "two");
    }
    shows(fds[MOST], "one");
}

static void fill(const char *path) {
    static char bytes[1 << 20];
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    CHECK(fd >= 0);
    for (size_t size = sizeof bytes; size >= 4096; size /= 256)
        while (write(fd, bytes, size) > 0) {}
    CHECK(close(fd) == 0);
}

/* Overwrites two files until a commit finds no room. */
static void full(const char *filler) {
    int fds[] = {open_file("a.db"), open_file("b.db")}, refused = 0;
    static char bytes[6000000], found[6000000];
    for (int version = 1; version <= 200 && !refused; version++) {
        int txn = untorn_fd_txn_begin(fds, 2);
        memset(bytes, version, sizeof bytes);
        for (int i = 0; i < 2; i++) CHECK(pwrite(fds[i], bytes, sizeof bytes, 0) == sizeof bytes);
        fill(filler);
        if (untorn_fd_txn_commit(txn) == -1) {
            CHECK(errno == ENOSPC);
            FAILS_WITH(untorn_fd_txn_commit(txn), ENOSPC);
            FAILS_WITH(fsync(fds[0]), EBUSY);
            CHECK(unlink(filler) == 0);
            /* The error of a try that began before there was room may be reported first. */
            while (untorn_fd_txn_commit(txn) == -1) CHECK(errno == ENOSPC);
            FAILS_WITH(untorn_fd_txn_commit(txn), EBADF);
            refused = 1;
        }
        CHECK(unlink(filler) == 0 || refused);
        CHECK(fsync(fds[0]) == 0 && untorn_fd_rollback(fds[0]) == 0 && untorn_fd_rollback(fds[1]) == 0);
        for (int i = 0; i < 2; i++) {
            CHECK(pread(fds[i], found, sizeof found, 0) == sizeof found && memcmp(bytes, found, sizeof found) == 0);
        }
    }
    puts(refused ? "refused" : "never refused");
}

int main(int argc, char **argv) {
    CHECK(argc >= 2 && chdir(argv[1]) == 0 && untorn_manage("*.db") == 0);
    if (argc == 3 && strcmp(argv[2], "many") == 0) return many(), 0;
    if (argc == 3) {
        outlives_mount = strcmp(argv[2], "dying") == 0;
        signal(SIGBUS, on_bus_error);
        return count(strcmp(argv[2], "shown") != 0), 0;
    }
    if (argc == 4) return full(argv[3]), 0;
    CHECK(mkdir("sub", 0755) == 0);
    several_as_one();
    transactions();
    writes_that_sync();
    names();
    processes();
    return 0;
}
