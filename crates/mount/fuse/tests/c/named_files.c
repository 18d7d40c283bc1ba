/* Named files on a mount under the porting header: what a sync commits, and what is given up. The argument is an empty
 * directory on the mount. */
#include <untorn_posix.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

static int open_file(const char *path, int flags) {
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

/* What another program reads. */
static void check_seen_at(int line, const char *path, const char *expected) {
    char command[256];
    snprintf(command, sizeof command, "test \"$(tr -d '\\0' < %s)\" = '%s' || { cat %s >&2; false; }", path, expected, path);
    if (system(command) != 0) failed(line, path);
}
#define check_seen(path, expected) check_seen_at(__LINE__, path, expected)

/* The file as of its last commit, as nothing has it open: opened and closed, its uncommitted changes are gone. */
#define check_committed(path, expected) (close(open_file(path, O_RDWR)), check_seen(path, expected))

static void put(int fd, const char *text) {
    CHECK(pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
}

static void commits_and_rolls_back(void) {
    int fd = open_file("a.db", O_RDWR | O_CREAT);
    CHECK(untorn_fd_is_managed(fd) == 1);
    put(fd, "one");
    CHECK(fsync(fd) == 0);
    put(fd, "two");
    check_seen("a.db", "two"); /* other programs see it, and it is not committed */
    CHECK(untorn_fd_rollback(fd) == 0);
    check_seen("a.db", "one");
    put(fd, "three");
    CHECK(ftruncate(fd, 2) == 0 && close(fd) == 0);
    check_committed("a.db", "one");

    fd = open_file("a.db", O_RDWR | O_TRUNC);
    CHECK(lseek(fd, 0, SEEK_END) == 0 && close(fd) == 0);
    check_committed("a.db", "one");

    fd = open_file("a.db", O_RDWR);
    int copy = dup(fd), reader = open_file("a.db", O_RDONLY);
    put(fd, "six");
    CHECK(close(fd) == 0 && fdatasync(reader) == 0); /* any descriptor syncs the file */
    put(copy, "ten");
    CHECK(close(copy) == 0 && close(reader) == 0);
    check_committed("a.db", "six");

    fd = open_file("a.db", O_RDWR);
    put(fd, "last");
    CHECK(untorn_fd_commit_on_close(fd, 1) == 0 && untorn_fd_reclaim(fd) == 0 && close(fd) == 0);
    check_committed("a.db", "last");
    CHECK(access("a.db.untorn", F_OK) != 0); /* no store of its own */
}

/* What was written before the file was opened by the header is not given up. */
static void what_was_there(void) {
    CHECK(system("printf before > there.db") == 0);
    int fd = open_file("there.db", O_RDWR);
    put(fd, "x");
    CHECK(close(fd) == 0);
    check_committed("there.db", "before");
    fd = open_file("late.sync", O_RDWR | O_CREAT | O_SYNC);
    FAILS_WITH(untorn_fd_manage(fd), EINVAL);
    CHECK(write(fd, "1", 1) == 1 && close(fd) == 0);
    fd = open_file("mine", O_RDWR | O_CREAT);
    put(fd, "mine");
    CHECK(untorn_fd_manage(fd) == 0 && close(fd) == 0);
    check_seen("mine", "mine");
}

static void maps(void) {
    const size_t page = 4096;
    int fd = open_file("map.db", O_RDWR | O_CREAT);
    CHECK(ftruncate(fd, 3 * 4096) == 0);
    char *at = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && close(fd) == 0); /* the map keeps it */
    strcpy(at, "one");
    strcpy(at + 2 * page, "end");
    FAILS_WITH(msync(at, page, MS_SYNC | MS_ASYNC), EINVAL);
    CHECK(msync(at, page, MS_ASYNC) == 0 && msync(at + page, page, MS_SYNC) == 0); /* of the whole file */
    strcpy(at, "two");
    char *twice = mremap(at, 3 * page, 3 * page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (twice != MAP_FAILED) { /* Linux before 5.13 has it for private memory only */
        CHECK(msync(at, page, MS_SYNC) == 0 && munmap(twice, 3 * page) == 0 && untorn_fd_rollback(-1) == -1);
    }
    at = mremap(at, 3 * page, page, 0);
    CHECK(at != MAP_FAILED);
    at = mremap(at, page, 64 * page, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED && strcmp(at, "two") == 0);
    fd = open_file("map.db", O_RDWR);
    CHECK(untorn_fd_rollback(fd) == 0 && strcmp(at, "one") == 0 && strcmp(at + 2 * page, "end") == 0);
    CHECK(close(fd) == 0);
    strcpy(at, "six");
    CHECK(munmap(at + page, 63 * page) == 0);
    check_seen("map.db", "sixend");
    CHECK(munmap(at, page) == 0); /* the last of it */
    fd = open_file("map.db", O_RDONLY);
    char found[4] = "";
    CHECK(read(fd, found, 4) == 4 && strcmp(found, "one") == 0 && close(fd) == 0);

    /* Named after its opening: from its first writable map on. */
    fd = open_file("late", O_RDWR | O_CREAT);
    CHECK(untorn_manage("late") == 0 && ftruncate(fd, 4096) == 0 && untorn_fd_is_managed(fd) == 0);
    at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && untorn_fd_is_managed(fd) == 1);
    strcpy(at, "late");
    CHECK(msync(at, page, MS_SYNC) == 0);
    strcpy(at, "lost");
    /* Something else in its place: the map is gone. */
    CHECK(mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && close(fd) == 0);
    fd = open_file("late", O_RDONLY);
    CHECK(read(fd, found, 4) == 4 && memcmp(found, "late", 4) == 0 && close(fd) == 0);
}

/* Files that no pattern names. */
static void named_by_flags(void) {
    const size_t page = 4096;
    int fd = open_file("flagged", O_RDWR | O_CREAT | O_ATOMIC);
    CHECK(untorn_fd_is_managed(fd) == 1);
    put(fd, "one");
    CHECK(fsync(fd) == 0);
    put(fd, "two");
    CHECK(close(fd) == 0);
    check_seen("flagged", "one");
    fd = open_file("flagged", O_RDWR | O_SYNC | O_ATOMIC);
    put(fd, "six");
    CHECK(untorn_fd_rollback(fd) == 0 && close(fd) == 0);
    check_seen("flagged", "six");

    fd = open_file("mapped", O_RDWR | O_CREAT);
    CHECK(ftruncate(fd, 2 * 4096) == 0 && untorn_fd_is_managed(fd) == 0);
    char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ATOMIC, fd, 0);
    CHECK(at != MAP_FAILED && untorn_fd_is_managed(fd) == 1);
    strcpy(at, "one");
    CHECK(msync(at, page, MS_SYNC) == 0);
    strcpy(at, "two");
    CHECK(msync(at, page, MS_INVALIDATE) == 0 && strcmp(at, "two") == 0);
    CHECK(untorn_invalidate_rolls_back(1) == 0);
    strcpy(at + page, "two");
    CHECK(msync(at, page, MS_INVALIDATE) == 0 && strcmp(at, "one") == 0 && at[page] == 0); /* of the whole file */
    strcpy(at, "six");
    CHECK(msync(at, page, MS_SYNC | MS_INVALIDATE) == 0 && strcmp(at, "six") == 0);
    CHECK(untorn_invalidate_rolls_back(0) == 0 && munmap(at, 2 * page) == 0 && close(fd) == 0);
    check_seen("mapped", "six");
}

static void writes_that_sync(void) {
    int fd = open_file("sync.db", O_RDWR | O_CREAT | O_SYNC | O_APPEND);
    int other = open_file("sync.db", O_RDWR);
    CHECK(write(fd, "1", 1) == 1);
    put(other, "x");
    CHECK(untorn_fd_rollback(fd) == 0);
    check_seen("sync.db", "1");
    struct iovec two[] = {{"2", 1}, {"3", 1}};
    CHECK(writev(fd, two, 2) == 2 && untorn_fd_rollback(fd) == 0);
    check_seen("sync.db", "123");
    CHECK(pwritev2(other, two, 2, 3, RWF_DSYNC) == 2 && untorn_fd_rollback(fd) == 0);
    check_seen("sync.db", "12323");
    int copy = dup(fd);
    CHECK(write(copy, "4", 1) == 1 && untorn_fd_rollback(fd) == 0);
    check_seen("sync.db", "123234");
    int from = open_file("from", O_RDWR | O_CREAT);
    put(from, "56");
    off_t begin = 0;
    CHECK(sendfile(fd, from, &begin, 2) == -1); /* not to O_APPEND, as Linux */
    CHECK(close(from) == 0 && close(fd) == 0 && close(other) == 0 && close(copy) == 0);

    /* Where the mode forbids another opening; and record locks stay. */
    unlink("mode.db");
    fd = open("mode.db", O_RDWR | O_CREAT | O_DSYNC, 0444);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0 && write(fd, "kept", 4) == 4);
    CHECK(untorn_fd_rollback(fd) == 0);
    check_seen("mode.db", "kept");
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    from = open_file("from", O_RDONLY);
    begin = 0;
    CHECK(sendfile(fd, from, &begin, 2) == 2 && untorn_fd_rollback(fd) == 0 && close(from) == 0);
    check_seen("mode.db", "56pt");
    CHECK(chmod("mode.db", 0644) == 0);
    other = open_file("mode.db", O_RDWR | O_SYNC);
    pid_t child = fork();
    if (child == 0) _exit(fcntl(fd, F_SETLK, &lock) == -1 ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && close(other) == 0 && close(fd) == 0);
}

static atomic_int stops;

static void *writes(void *fd) {
    for (int n = 0; !stops; n++) CHECK(pwrite(*(int *)fd, &n, sizeof n, 8) == sizeof n);
    return NULL;
}

static void *maps_much(void *unused) {
    while (!stops) {
        void *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && munmap(at, 4096) == 0);
    }
    return unused;
}

/* Opens and closes the file, over and over. */
static void *opens(void *unused) {
    while (!stops) CHECK(close(open_file("race.db", O_RDONLY)) == 0);
    return unused;
}

static void threads(void) {
    int fd;
    pthread_t thread;
    close(open_file("race.db", O_RDWR | O_CREAT));
    stops = 0;
    CHECK(pthread_create(&thread, NULL, opens, NULL) == 0);
    for (int n = 0; n < 300; n++) {
        fd = open_file("race.db", O_RDWR);
        CHECK(untorn_fd_is_managed(fd) == 1);
        put(fd, "new");
        CHECK(fsync(fd) == 0);
        put(fd, "not");
        CHECK(untorn_fd_rollback(fd) == 0 && close(fd) == 0);
    }
    stops = 1;
    CHECK(pthread_join(thread, NULL) == 0);

    /* What one thread unmaps, another one may get at once. */
    fd = open_file("race.db", O_RDWR);
    CHECK(ftruncate(fd, 4096) == 0);
    stops = 0;
    CHECK(pthread_create(&thread, NULL, maps_much, NULL) == 0);
    for (int n = 0; n < 300; n++) {
        int *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        *at = n;
        CHECK(msync(at, 4096, MS_SYNC) == 0 && munmap(at, 4096) == 0);
    }
    stops = 1;
    CHECK(pthread_join(thread, NULL) == 0 && close(fd) == 0);
}

/* A file beside the mount has a store: its place in memory is not replaced. */
static void beside_a_store(void) {
    char dir[] = "/var/tmp/untorn-test-XXXXXX", path[64];
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/store.db", dir);
    int stored = open_file(path, O_RDWR | O_CREAT), fd = open_file("fixed.db", O_RDWR | O_CREAT);
    CHECK(ftruncate(stored, 4096) == 0 && ftruncate(fd, 4096) == 0);
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, stored, 0);
    CHECK(at != MAP_FAILED);
    FAILS_WITH(mmap(at, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), ENOTSUP);
    char *other = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(other != MAP_FAILED);
    FAILS_WITH(mremap(other, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, at), ENOTSUP);
    CHECK(munmap(other, 4096) == 0);
    CHECK(munmap(at, 4096) == 0 && close(stored) == 0 && close(fd) == 0 && unlink(path) == 0 && rmdir(dir) == 0);
}

/* A file that comes with a store, in which a commit waits, goes on with that. */
static void with_a_store(void) {
    char dir[] = "/var/tmp/untorn-test-XXXXXX", path[64], command[256];
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/brought", dir);
    pid_t child = fork();
    if (child == 0) {
        int fd = open_file(path, O_RDWR | O_CREAT);
        CHECK(untorn_fd_manage(fd) == 0);
        put(fd, "kept");
        CHECK(fsync(fd) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    snprintf(command, sizeof command, "cp -a %s %s.untorn . && rm -r %s", path, path, dir);
    CHECK(system(command) == 0);
    int fd = open_file("brought", O_RDWR);
    CHECK(untorn_fd_manage(fd) == 0);
    put(fd, "lost");
    CHECK(close(fd) == 0);
    check_seen("brought", "kept");
}

static void names(void) {
    int fd = open_file("new.db", O_RDWR | O_CREAT), old = open_file("old.db", O_RDWR | O_CREAT);
    put(old, "old");
    CHECK(fsync(old) == 0);
    put(old, "lost");
    put(fd, "new");
    CHECK(rename("new.db", "old.db") == 0 && access("new.db", F_OK) != 0); /* commits it */
    put(fd, "xxx");
    CHECK(close(fd) == 0 && close(old) == 0);
    check_committed("old.db", "new");

    /* What was never committed replaces nothing. */
    fd = open_file("young.db", O_RDWR | O_CREAT);
    put(fd, "young");
    if (strcmp(getenv("MODE"), "store") != 0) { /* there no name is committed without a sync */
        CHECK(system("mv young.db old.db 2> /dev/null") != 0);
    }
    CHECK(close(fd) == 0);
    check_seen("old.db", "new");

    /* A file that is not named gets a managed name. */
    fd = open_file("plain", O_RDWR | O_CREAT);
    put(fd, "plain");
    CHECK(untorn_fd_is_managed(fd) == 0 && rename("plain", "old.db") == 0 && untorn_fd_is_managed(fd) == 1);
    put(fd, "xxxxx");
    CHECK(close(fd) == 0);
    check_committed("old.db", "plain");

    fd = open_file("old.db", O_RDWR);
    int other = open_file("other.db", O_RDWR | O_CREAT);
    put(fd, "PLAIN");
    put(other, "other");
    CHECK(renameat2(AT_FDCWD, "old.db", AT_FDCWD, "other.db", RENAME_EXCHANGE) == 0);
    CHECK(untorn_fd_rollback(fd) == 0 && untorn_fd_rollback(other) == 0);
    check_seen("old.db", "other");
    check_seen("other.db", "PLAIN");
    CHECK(link("other.db", "linked.db") == 0); /* a mount has hard links */
    CHECK(unlink("other.db") == 0 && unlink("old.db") == 0);
    /* Under names that are not named. */
    int third = open_file("third.db", O_RDWR | O_CREAT);
    put(third, "third");
    CHECK(rename("third.db", "third") == 0);
    put(third, "THIRD");
    CHECK(rename("third", "fourth") == 0);
    put(third, "xxxxx");
    CHECK(close(third) == 0);
    check_seen("fourth", "THIRD");
    put(fd, "gone?");
    CHECK(fsync(fd) == 0 && fsync(other) == 0 && close(fd) == 0 && close(other) == 0);
    check_seen("linked.db", "gone?");

    CHECK(truncate("linked.db", 4) == 0); /* a commit by itself */
    check_committed("linked.db", "gone");
    fd = open_file("linked.db", O_RDWR);
    CHECK(truncate("linked.db", 1) == 0 && close(fd) == 0); /* of an open file it is none */
    check_committed("linked.db", "gone");
}

static void streams(void) {
    FILE *out = fopen("stream.db", "w");
    CHECK(out && fputs("kept\n", out) >= 0 && fflush(out) == 0 && fsync(fileno(out)) == 0);
    CHECK(fputs("lost\n", out) >= 0 && fclose(out) == 0);
    check_committed("stream.db", "kept");
}

/* Waits for a child, which ends well. */
static void check_child(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void other_processes(const char *self) {
    int fd = open_file("shared.db", O_RDWR | O_CREAT);
    put(fd, "one");
    CHECK(fsync(fd) == 0);
    put(fd, "two");
    pid_t child = fork();
    if (child == 0) {
        FAILS_WITH(fsync(fd), ECHILD);
        FAILS_WITH(untorn_fd_rollback(fd), ECHILD);
        int reader = open_file("shared.db", O_RDONLY);
        char *at = mmap(NULL, 3, PROT_READ, MAP_SHARED, reader, 0);
        CHECK(at != MAP_FAILED && memcmp(at, "two", 3) == 0 && munmap(at, 3) == 0 && close(reader) == 0);
        CHECK(close(fd) == 0);
        exit(0); /* gives nothing up that is the parent's */
    }
    check_child(child);
    check_seen("shared.db", "two");
    child = vfork();
    if (child == 0) {
        close(fd);
        execl(self, self, "other", (char *)NULL); /* gets EBUSY */
        _exit(1);
    }
    check_child(child);
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    check_committed("shared.db", "two");

    /* One that is killed: what it did not sync is given up, also while a child of its own goes on. */
    int ready[2];
    CHECK(pipe(ready) == 0);
    child = fork();
    if (child == 0) {
        fd = open_file("shared.db", O_RDWR);
        put(fd, "six");
        pid_t grandchild = fork();
        if (grandchild == 0) {
            usleep(2000000);
            _exit(0);
        }
        CHECK(write(ready[1], &grandchild, sizeof grandchild) == sizeof grandchild);
        pause();
    }
    pid_t grandchild;
    CHECK(read(ready[0], &grandchild, sizeof grandchild) == sizeof grandchild);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    check_committed("shared.db", "two"); /* at once */
    kill(grandchild, SIGKILL);

    /* The end of a process by `exit`. */
    child = fork();
    if (child == 0) {
        put(open_file("shared.db", O_RDWR), "ten");
        exit(0);
    }
    check_child(child);
    check_seen("shared.db", "two");
    /* The C library empties streams behind everything else, and threads go on until then. */
    child = fork();
    if (child == 0) {
        FILE *out = fopen("shared.db", "w");
        fd = open_file("shared.db", O_RDWR);
        pthread_t thread;
        CHECK(out && fputs("lost", out) >= 0 && pthread_create(&thread, NULL, writes, &fd) == 0);
        exit(0);
    }
    check_child(child);
    check_committed("shared.db", "two");
}

static void own_descriptors(void) {
    int fd = open_file("own.db", O_RDWR | O_CREAT), busy = 0;
    put(fd, "kept");
    for (int other = 3; other < 1024; other++) {
        if (fcntl(other, F_GETFD) < 0 || other == fd) continue;
        if (dup2(fd, other) == -1 && errno == EBUSY) busy++;
    }
    CHECK(busy > 0);
    /* Closes descriptors of the program alone. */
    CHECK(close_range(fd + 1, ~0U, 0) == 0 && fcntl(fd + 1, F_GETFD) < 0);
    CHECK(flock(fd, LOCK_EX) == 0 && fsync(fd) == 0 && close(fd) == 0);
    check_committed("own.db", "kept");
}

int main(int argc, char **argv) {
    if (argc < 2 || untorn_manage("*.db") != 0) return 2;
    if (strcmp(argv[1], "other") == 0) {
        FAILS_WITH(open("shared.db", O_RDWR), EBUSY);
        CHECK(open("shared.db", O_RDONLY) >= 0);
        return 0;
    }
    CHECK(chdir(argv[1]) == 0);
    commits_and_rolls_back();
    what_was_there();
    maps();
    named_by_flags();
    writes_that_sync();
    threads();
    beside_a_store();
    with_a_store();
    names();
    streams();
    other_processes(argv[0]);
    own_descriptors();
    return 0;
}
