/* UNTORN_COMMIT on a mount: the argument is an empty directory there. */
#include <untorn_posix.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

static off_t size_of(int fd) {
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return st.st_size;
}

static void each_change_is_a_commit(void) {
    int fd = open("write.db", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "one", 3) == 3 && untorn_fd_rollback(fd) == 0 && size_of(fd) == 3);
    CHECK(ftruncate(fd, 2) == 0 && untorn_fd_rollback(fd) == 0 && size_of(fd) == 2);
    CHECK(posix_fallocate(fd, 0, 9) == 0 && untorn_fd_rollback(fd) == 0 && size_of(fd) == 9);
    CHECK(fallocate(fd, 0, 0, 4096) == 0 && untorn_fd_rollback(fd) == 0 && size_of(fd) == 4096);
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    at[0] = 'X';
    CHECK(untorn_fd_rollback(fd) == 0 && at[0] == 'o'); /* not stores */
    CHECK(munmap(at, 4096) == 0 && close(fd) == 0);
    fd = open("write.db", O_RDWR | O_TRUNC);
    CHECK(fd >= 0 && untorn_fd_rollback(fd) == 0 && size_of(fd) == 0 && close(fd) == 0 && unlink("write.db") == 0);
}

static void the_last_writer_commits(void) {
    int fd = open("close.db", O_RDWR | O_CREAT, 0600), reader = open("close.db", O_RDONLY), copy = dup(fd);
    CHECK(fd >= 0 && reader >= 0 && write(fd, "one", 3) == 3 && close(fd) == 0);
    CHECK(untorn_fd_rollback(copy) == 0 && size_of(copy) == 0); /* there is another writer */
    CHECK(pwrite(copy, "two", 3, 0) == 3 && close(copy) == 0);
    CHECK(untorn_fd_rollback(reader) == 0 && size_of(reader) == 3);
    fd = open("close.db", O_RDWR);
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && close(fd) == 0);
    at[0] = 'T';
    CHECK(munmap(at, 4096) == 0 && untorn_fd_rollback(reader) == 0);
    char byte;
    CHECK(pread(reader, &byte, 1, 0) == 1 && byte == 'T' && close(reader) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0 && untorn_manage("*.db") == 0);
    if (strcmp(getenv("UNTORN_COMMIT"), "write") == 0) each_change_is_a_commit();
    else the_last_writer_commits();
    return 0;
}
