/* Transactions on a mount by the C interface. The argument is an empty directory on the mount. */
#include <untorn.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

static void put(int fd, const char *text) { CHECK(pwrite(fd, text, 3, 0) == 3); }

static int is(int fd, const char *text) {
    char found[3];
    return pread(fd, found, 3, 0) == 3 && memcmp(found, text, 3) == 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    int fds[] = {open("a", O_RDWR | O_CREAT, 0644), open("b", O_RDWR | O_CREAT, 0644)}, a = fds[0], b = fds[1];
    put(a, "one");
    put(b, "one");
    CHECK(untorn_mount_syncv(fds, 2) == 0);
    untorn_mount_txn *txn = untorn_mount_txn_begin(a);
    CHECK(txn && untorn_mount_txn_add(txn, b) == 0 && untorn_mount_txn_begin(b) == NULL && errno == EBUSY);
    put(a, "two");
    put(b, "two");
    CHECK(untorn_mount_txn_commit_and_chain(txn) == 0);
    CHECK(untorn_mount_txn_abort_and_chain(txn) == 0 && is(a, "two"));
    put(a, "six");
    CHECK(fsync(a) == -1 && errno == EBUSY);
    pid_t child = fork();
    if (child == 0) {
        /* It is the parent's. */
        CHECK(untorn_mount_txn_commit_and_chain(txn) == -1 && errno == ECHILD);
        CHECK(untorn_mount_txn_abort(txn) == -1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && is(a, "six"));
    CHECK(untorn_mount_txn_abort_and_chain(txn) == 1 && is(a, "two") && is(b, "two"));
    put(b, "ten");
    CHECK(untorn_mount_txn_commit(txn) == 0);
    CHECK(untorn_mount_txn_commit_and_chain(txn) == -1 && errno == EBADF);
    CHECK(untorn_mount_txn_abort_and_chain(NULL) == -1 && errno == EBADF);
    put(a, "one");
    CHECK(fsync(a) == 0 && is(b, "ten"));
    return 0;
}
