/* Shared by all test programs: checks that report where they failed, and a directory for files. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <untorn.h>

static inline void report_and_exit(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n  errno %d (%s), untorn error %d: %s\n", file, line, what, errno, strerror(errno),
            (int)untorn_last_error(), untorn_error_message());
    _exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : report_and_exit(__FILE__, __LINE__, "not true: " #condition))

/* The call fails with this errno and kind, and with a message. */
#define FAILS(call, expected_errno, expected_kind)                                                                     \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if (!failed(call)) report_and_exit(__FILE__, __LINE__, "did not fail: " #call);                                \
        if (errno != (expected_errno) || untorn_last_error() != (expected_kind) || !*untorn_error_message())           \
            report_and_exit(__FILE__, __LINE__, "failed otherwise than by " #expected_errno ": " #call);               \
    } while (0)

/* As FAILS, but only errno is checked: the failed call may be one of the C library. */
#define FAILS_WITH(call, expected_errno)                                                                               \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if ((intptr_t)(call) != -1) report_and_exit(__FILE__, __LINE__, "did not fail: " #call);                       \
        if (errno != (expected_errno)) report_and_exit(__FILE__, __LINE__, "not by " #expected_errno ": " #call);      \
    } while (0)

static inline int failed_number(int64_t result) { return result == -1; }
static inline int failed_pointer(const void *result) { return result == NULL; }
#define failed(call)                                                                                                   \
    _Generic((call),                                                                                                   \
        int: failed_number, long: failed_number, long long: failed_number, default: failed_pointer)(call)

#define BAD_HANDLE(call) FAILS(call, EBADF, UNTORN_E_BAD_HANDLE)

/* Changes to the empty directory that the test was started with. */
static inline void enter_scratch(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(chdir(argv[1]) == 0);
}

/* Opens a store in a directory, which is created if it is missing. */
static inline untorn_store *open_store(const char *path, const untorn_options *options) {
    union {
        untorn_options known;
        char newer[256];
    } create = {.known = {.size = sizeof create.known}};
    if (options) memcpy(&create, options, options->size);
    create.known.flags |= UNTORN_CREATE;
    CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
    untorn_store *store = untorn_store_open(path, &create.known);
    CHECK(store);
    return store;
}

/* The library reads exactly these contents. */
static inline void check_reads(untorn_file *file, const char *expected) {
    char buf[256];
    size_t len = strlen(expected);
    CHECK(untorn_size(file) == (int64_t)len);
    CHECK(untorn_pread(file, buf, sizeof buf, 0) == (ssize_t)len);
    CHECK(memcmp(buf, expected, len) == 0);
}

/* Every other program reads exactly these contents. */
static inline void check_plain(const char *path, const char *expected) {
    char buf[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    ssize_t len = read(fd, buf, sizeof buf);
    CHECK(len == (ssize_t)strlen(expected) && memcmp(buf, expected, (size_t)len) == 0);
    close(fd);
}

static inline void write_text(untorn_file *file, const char *text, uint64_t offset) {
    CHECK(untorn_pwrite(file, text, strlen(text), offset) == (ssize_t)strlen(text));
}

#endif
