/* Shared by the test programs: checks that report where they failed. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <untorn.h>

/* The mount may end: the program waits until it is killed. */
static int outlives_mount;

static inline void failed(int line, const char *text) {
    while (outlives_mount && (errno == ENOTCONN || errno == ECONNABORTED)) pause();
    fprintf(stderr, "line %d: not true: %s (errno %d, %s; untorn: %s)\n", line, text, errno, strerror(errno),
            untorn_error_message());
    _exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))
#define FAILS_WITH(call, number)                                                                                       \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if ((intptr_t)(call) != -1 || errno != (number)) failed(__LINE__, #call " fails by " #number);                 \
    } while (0)

#endif
