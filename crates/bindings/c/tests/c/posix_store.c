/* Files of one store by ordinary descriptors: commits of several as one, and transactions with names. */
#include <untorn_posix.h>

#include "check.h"
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

static int file(const char *path, const char *text) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && untorn_fd_is_managed(fd) == 1);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
    return fd;
}

/* Reads a file as a program without Untorn does; NULL: there is none. */
static void on_disk(const char *path, const char *expected) {
    char command[256];
    if (expected)
        snprintf(command, sizeof command, "test -e %s && test \"$(cat %s)\" = '%s'", path, path, expected);
    else
        snprintf(command, sizeof command, "test ! -e %s", path);
    if (system(command) != 0) {
        fprintf(stderr, "%s: expected %s\n", path, expected ? expected : "nothing");
        CHECK(0);
    }
}

static void shows(int fd, const char *expected) {
    char buf[64];
    ssize_t n = pread(fd, buf, sizeof buf, 0);
    CHECK(n == (ssize_t)strlen(expected) && !memcmp(buf, expected, (size_t)n));
}

static void several_as_one(void) {
    int fds[] = {file("d/a.db", "a1"), file("d/sub/b.db", "b1")};
    CHECK(untorn_fd_syncv(fds, 2) == 0);
    CHECK(access("d/.untorn", F_OK) == 0 && access("d/a.db.untorn", F_OK) != 0);
    CHECK(pwrite(fds[0], "a2", 2, 0) == 2 && pwrite(fds[1], "b2", 2, 0) == 2 && fsync(fds[0]) == 0);
    CHECK(untorn_fd_rollback(fds[1]) == 0);
    shows(fds[1], "b1");
    FAILS_WITH(untorn_fd_syncv(fds, 0), EINVAL);
    FAILS_WITH(untorn_fd_syncv(NULL, 2), EFAULT);
    int other = file("lone.db", "own"), both[] = {fds[0], other, fds[0]};
    FAILS_WITH(untorn_fd_syncv(both, 2), EINVAL);
    CHECK(untorn_fd_syncv(&other, 1) == 0);
    int twice[] = {fds[1], fds[1]};
    CHECK(pwrite(fds[1], "b3", 2, 0) == 2 && untorn_fd_syncv(twice, 2) == 0);
    CHECK(close(other) == 0 && close(fds[0]) == 0);
    /* A closed file is plain, although the store is open; it can be opened again, also for reading only. */
    on_disk("d/a.db", "a2");
    int again = open("d/a.db", O_RDONLY);
    shows(again, "a2");
    CHECK(close(again) == 0 && close(fds[1]) == 0);
    on_disk("d/sub/b.db", "b3");
    CHECK(open("d/a.db", O_RDWR) >= 0); /* for the transactions */
}

static void contents(void) {
    int a = open("d/a.db", O_RDWR), b = open("d/sub/b.db", O_RDWR);
    int txn = untorn_fd_txn_begin(&a, 1);
    CHECK(txn > 0 && untorn_fd_txn_add(txn, b) == 0 && untorn_fd_txn_add(txn, b) == 0);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b, 0);
    CHECK(map != MAP_FAILED && pwrite(a, "x", 1, 0) == 1);
    memcpy(map, "yy", 2);
    FAILS_WITH(fsync(a), EBUSY);
    FAILS_WITH(untorn_fd_rollback(b), EBUSY);
    FAILS_WITH(msync(map, 4096, MS_SYNC), EBUSY);
    FAILS_WITH(untorn_fd_txn_begin(&a, 1), EBUSY);
    CHECK(untorn_fd_txn_abort(txn) == 0);
    shows(a, "a2");
    CHECK(!memcmp(map, "b3", 2));
    FAILS_WITH(untorn_fd_txn_commit(txn), EBADF);
    FAILS_WITH(untorn_fd_txn_abort(txn), EBADF);
    FAILS_WITH(untorn_fd_txn_add(txn, a), EBADF);

    int fds[] = {a, b};
    txn = untorn_fd_txn_begin(fds, 2);
    CHECK(txn > 0 && pwrite(a, "a4", 2, 0) == 2);
    memcpy(map, "b4", 2);
    /* The last descriptor and map may go: the changes belong to the transaction. */
    CHECK(munmap(map, 4096) == 0 && close(b) == 0);
    on_disk("d/sub/b.db", "b3");
    CHECK(untorn_fd_txn_commit(txn) == 0);
    on_disk("d/sub/b.db", "b4");
    CHECK(close(a) == 0);
    FAILS_WITH(untorn_fd_txn_begin(&b, 1), EINVAL);
    int lone = open("lone.db", O_RDWR);
    FAILS_WITH(untorn_fd_txn_begin(&lone, 1), EINVAL);
    CHECK(close(lone) == 0);
}

static void names(void) {
    int txn = untorn_fd_txn_begin(NULL, 0);
    CHECK(txn > 0);
    int fresh = open("d/fresh.db", O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0640);
    CHECK(fresh >= 0 && untorn_fd_is_managed(fresh) == 1);
    CHECK(write(fresh, "new", 3) == 3 && write(fresh, "er", 2) == 2);
    on_disk("d/fresh.db", NULL);
    FAILS_WITH(open("d/fresh.db", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
    CHECK(rename("d/a.db", "d/moved.db") == 0 && unlink("d/sub/b.db") == 0);
    on_disk("d/a.db", "a4");
    on_disk("d/sub/b.db", "b4");
    CHECK(untorn_fd_txn_abort(txn) == 0);
    on_disk("d/fresh.db", NULL);
    on_disk("d/a.db", "a4");
    CHECK(close(fresh) == 0);

    int old = open("d/sub/b.db", O_RDWR);
    txn = untorn_fd_txn_begin(NULL, 0);
    fresh = open("d/tmp.db", O_RDWR | O_CREAT, 0640);
    CHECK(fresh >= 0 && write(fresh, "newer", 5) == 5 && lseek(fresh, 2, SEEK_SET) == 2);
    CHECK(rename("d/tmp.db", "d/sub/b.db") == 0 && rename("d/a.db", "d/moved.db") == 0);
    CHECK(untorn_fd_txn_commit(txn) == 0);
    on_disk("d/sub/b.db", "newer");
    on_disk("d/moved.db", "a4");
    on_disk("d/a.db", NULL);
    on_disk("d/tmp.db", NULL);
    /* The descriptor of the new file is now of the file itself; that of the replaced one is of the old file. */
    struct stat by_fd, by_path;
    CHECK(fstat(fresh, &by_fd) == 0 && stat("d/sub/b.db", &by_path) == 0);
    CHECK(by_fd.st_ino == by_path.st_ino && by_fd.st_size == 5 && by_fd.st_nlink == 1);
    CHECK((by_path.st_mode & 0777) == 0640 && lseek(fresh, 0, SEEK_CUR) == 2);
    shows(old, "b4");
    CHECK(pwrite(old, "B", 1, 0) == 1 && fsync(old) == 0);
    shows(old, "B4");
    CHECK(pwrite(fresh, "N", 1, 0) == 1 && fsync(fresh) == 0 && close(old) == 0 && close(fresh) == 0);
    on_disk("d/sub/b.db", "Newer");

    /* Outside of a transaction each change of a name is a commit. */
    fresh = file("d/one.db", "one");
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fresh, 0);
    CHECK(map != MAP_FAILED && rename("d/one.db", "d/two.db") == 0);
    memcpy(map, "ONE", 3);
    CHECK(msync(map, 4096, MS_SYNC) == 0 && access("d/one.db", F_OK) != 0);
    CHECK(unlink("d/two.db") == 0);
    on_disk("d/two.db", NULL);
    memcpy(map, "two", 3);
    shows(fresh, "two");
    CHECK(munmap(map, 4096) == 0 && close(fresh) == 0);
    /* A file that was not managed replaces one that is. */
    int plain = open("d/plain", O_RDWR | O_CREAT, 0644), replaced = open("d/moved.db", O_RDWR);
    CHECK(write(plain, "plain", 5) == 5 && untorn_fd_is_managed(plain) == 0);
    CHECK(rename("d/plain", "d/moved.db") == 0 && untorn_fd_is_managed(plain) == 1);
    shows(replaced, "a4");
    CHECK(close(replaced) == 0);
    FAILS_WITH(rename("d/moved.db", "outside.db"), EXDEV);
    FAILS_WITH(rename("lone.db", "d/lone.db"), EXDEV);
    FAILS_WITH(rename("d", "e"), EBUSY);
    FAILS_WITH(link("d/moved.db", "d/linked.db"), EPERM);
    CHECK(renameat2(AT_FDCWD, "d/moved.db", AT_FDCWD, "d/sub/b.db", RENAME_EXCHANGE) == 0);
    FAILS_WITH(renameat2(AT_FDCWD, "d/moved.db", AT_FDCWD, "d/sub/b.db", RENAME_NOREPLACE), EEXIST);
    CHECK(close(plain) == 0);
    on_disk("d/moved.db", "Newer");
    on_disk("d/sub/b.db", "plain");
    CHECK(unlink("d/moved.db") == 0);
    on_disk("d/moved.db", NULL);
}

/* Names that change more than once in a transaction. The descriptors stay with their files. */
static void names_again(void) {
    int cur = file("d/cur.db", "first"), next = file("d/next.db", "second");
    int txn = untorn_fd_txn_begin(NULL, 0);
    CHECK(rename("d/cur.db", "d/old.db") == 0 && rename("d/next.db", "d/cur.db") == 0);
    FAILS_WITH(rename("d/next.db", "d/x.db"), ENOENT);
    FAILS_WITH(renameat2(AT_FDCWD, "d/old.db", AT_FDCWD, "d/none.db", RENAME_EXCHANGE), ENOENT);
    CHECK(untorn_fd_txn_commit(txn) == 0);
    CHECK(untorn_fd_is_managed(cur) == 1 && pwrite(cur, "FIRST", 5, 0) == 5 && fsync(cur) == 0);
    on_disk("d/old.db", "FIRST");
    on_disk("d/cur.db", "second");
    /* Two replace one, the second of them also the first. */
    txn = untorn_fd_txn_begin(NULL, 0);
    int one = open("d/one.db", O_RDWR | O_CREAT, 0644), two = open("d/two.db", O_RDWR | O_CREAT, 0644);
    struct stat made;
    CHECK(fstat(one, &made) == 0 && (made.st_mode & 0777) == 0644);
    CHECK(write(one, "one", 3) == 3 && write(two, "two", 3) == 3);
    CHECK(rename("d/old.db", "d/cur.db") == 0 && rename("d/one.db", "d/cur.db") == 0);
    CHECK(rename("d/two.db", "d/cur.db") == 0 && close(open("d/gone.db", O_RDWR | O_CREAT, 0644)) == 0);
    CHECK(unlink("d/gone.db") == 0 && untorn_fd_txn_commit(txn) == 0);
    on_disk("d/cur.db", "two");
    shows(cur, "FIRST");
    shows(next, "second");
    shows(one, "one");
    shows(two, "two");
    CHECK(pwrite(one, "O", 1, 0) == 1 && fsync(one) == 0 && untorn_fd_is_managed(one) == 0);
    /* The name of a file in another transaction. */
    CHECK((txn = untorn_fd_txn_begin(&two, 1)) > 0 && pwrite(two, "TWO", 3, 0) == 3);
    int other = untorn_fd_txn_begin(NULL, 0);
    FAILS_WITH(unlink("d/cur.db"), EBUSY);
    CHECK(untorn_fd_txn_commit(other) == 0 && untorn_fd_txn_commit(txn) == 0);
    on_disk("d/cur.db", "TWO");
    CHECK(close(cur) == 0 && close(next) == 0 && close(one) == 0 && unlink("d/cur.db") == 0 && close(two) == 0);
    /* Nothing keeps the store open. */
    pid_t child = fork();
    int state = 0;
    if (child == 0) {
        CHECK(close(open("d/sub/b.db", O_RDWR)) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &state, 0) == child && state == 0);
}

static void processes(void) {
    int a = file("d/a.db", "a5");
    CHECK(fsync(a) == 0);
    int txn = untorn_fd_txn_begin(&a, 1), state = 0;
    CHECK(txn > 0 && pwrite(a, "a6", 2, 0) == 2);
    pid_t child = fork();
    if (child == 0) {
        FAILS_WITH(untorn_fd_txn_commit(txn), ECHILD);
        FAILS_WITH(untorn_fd_txn_abort(txn), ECHILD);
        FAILS_WITH(untorn_fd_txn_begin(&a, 1), ECHILD);
        FAILS_WITH(open("d/sub/b.db", O_RDWR), EBUSY);
        _exit(0);
    }
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    CHECK(untorn_fd_txn_commit(txn) == 0 && close(a) == 0);
    /* A killed process: of a transaction that was not committed there is nothing, of others all. */
    child = fork();
    if (child == 0) {
        int fds[] = {open("d/a.db", O_RDWR), open("d/sub/b.db", O_RDWR)};
        txn = untorn_fd_txn_begin(fds, 2);
        int made = open("d/made.db", O_RDWR | O_CREAT, 0644);
        CHECK(pwrite(fds[0], "a7", 2, 0) == 2 && pwrite(fds[1], "b7", 2, 0) == 2 && write(made, "m7", 2) == 2);
        CHECK(untorn_fd_txn_commit(txn) == 0);
        txn = untorn_fd_txn_begin(fds, 2);
        CHECK(pwrite(fds[0], "a8", 2, 0) == 2 && pwrite(fds[1], "b8", 2, 0) == 2 && unlink("d/made.db") == 0);
        raise(SIGKILL);
    }
    CHECK(waitpid(child, &state, 0) == child && WIFSIGNALED(state));
    a = open("d/a.db", O_RDWR);
    int b = open("d/sub/b.db", O_RDWR), made = open("d/made.db", O_RDWR);
    CHECK(a >= 0 && b >= 0 && made >= 0);
    shows(a, "a7");
    shows(b, "b7ain");
    shows(made, "m7");
    CHECK(close(a) == 0 && close(b) == 0 && close(made) == 0);
}

/* Another process reads a file: the commit of its opening, and the newest one whenever it begins again. */
static void a_reader(const char *path) {
    int ask[2], say[2], state = 0;
    char go = 'g', buf[16];
    CHECK(pipe(ask) == 0 && pipe(say) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ask[1]);
        int fd = open(path, O_RDONLY), copy = dup(fd);
        struct flock shared = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        for (int turn = 0; read(ask[0], &go, 1) == 1; turn++) {
            switch (go) {
            case 's': CHECK(lseek(fd, 0, SEEK_SET) == 0); break;
            case 'l': CHECK(lseek(fd, 3, SEEK_SET) == 3 && fcntl(fd, F_SETLK, &shared) == 0); break;
            case 'c': CHECK(lseek(copy, 0, SEEK_SET) == 0 && pread(copy, buf, 16, 0) >= 0); break;
            }
            if (go == 'l') CHECK(lseek(fd, 0, SEEK_CUR) == 3);
            memset(buf, 0, sizeof buf);
            CHECK(pread(go == 'c' ? copy : fd, buf, 15, 0) >= 0 && write(say[1], buf, 16) == 16);
        }
        FAILS_WITH(write(fd, "x", 1), EBADF);
        CHECK(close(fd) == 0 && close(copy) == 0);
        _exit(0);
    }
    close(ask[0]);
#define READS(how, expected) CHECK(write(ask[1], how, 1) == 1 && read(say[0], buf, 16) == 16 && !strcmp(buf, expected))
    READS("n", "plain"); /* nobody has the file open */
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "first", 5, 0) == 5);
    READS("s", "plain"); /* from now on a copy, as checkpoints write to the data file */
    CHECK(fsync(fd) == 0);
    READS("s", "first");
    CHECK(pwrite(fd, "second", 6, 0) == 6 && fsync(fd) == 0);
    READS("n", "first");
    READS("c", "second");
    READS("n", "first");
    READS("l", "second");
    CHECK(pwrite(fd, "third!!", 7, 0) == 7 && fsync(fd) == 0 && close(fd) == 0);
    READS("s", "third!!");
    close(ask[1]);
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    close(say[0]), close(say[1]);
}

/* A process waits for a file that another one has open, if the environment allows it time. */
static void a_writer_waits(const char *path) {
    int ready[2], state = 0;
    char one;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0 && write(ready[1], "r", 1) == 1);
        usleep(300000);
        CHECK(pwrite(fd, "waited", 6, 0) == 6 && fsync(fd) == 0 && close(fd) == 0);
        _exit(0);
    }
    CHECK(read(ready[0], &one, 1) == 1);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    shows(fd, "waited");
    CHECK(close(fd) == 0 && waitpid(child, &state, 0) == child && state == 0);
    close(ready[0]), close(ready[1]);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    CHECK(untorn_manage("*.db") == 0);
    if (fork() == 0) {
        /* Longer than any machine takes for it. */
        CHECK(setenv("UNTORN_WAIT", "100", 1) == 0 && mkdir("w", 0755) == 0 && untorn_manage_store("w") == 0);
        CHECK(close(file("wait.db", "before")) == 0 && close(file("w/wait.db", "before")) == 0);
        a_writer_waits("wait.db");
        a_writer_waits("w/wait.db");
        exit(0);
    }
    int waited = 0;
    CHECK(wait(&waited) > 0 && waited == 0);
    FAILS_WITH(untorn_manage_store("d"), ENOENT);
    FAILS_WITH(untorn_manage_store(NULL), EFAULT);
    CHECK(mkdir("d", 0755) == 0 && mkdir("d/sub", 0755) == 0);
    FAILS_WITH(untorn_manage_store("/dev/null"), ENOTDIR);
    /* A file that had a store of its own comes into this one. */
    int before = file("d/before.db", "before");
    CHECK(fsync(before) == 0 && access("d/before.db.untorn", F_OK) == 0);
    CHECK(untorn_manage_store("d") == 0 && untorn_manage_store("./d") == 0);
    FAILS_WITH(untorn_fd_txn_begin(&before, 1), EINVAL);
    FAILS_WITH(rename("d/before.db", "d/after.db"), EBUSY);
    CHECK(close(before) == 0);
    before = open("d/before.db", O_RDWR);
    shows(before, "before");
    CHECK(access("d/before.db.untorn", F_OK) != 0 && close(before) == 0);
    several_as_one();
    contents();
    names();
    names_again();
    processes();
    const char *const paths[] = {"read.db", "d/read.db"};
    for (int i = 0; i < 2; i++) {
        int fd = file(paths[i], "plain");
        CHECK(fsync(fd) == 0 && close(fd) == 0);
        a_reader(paths[i]);
    }
    return 0;
}
