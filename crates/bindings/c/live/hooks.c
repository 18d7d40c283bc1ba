/*
 * The hooks of untorn-cc and untorn-c++: functions that a compiler calls before each store, and replacements of
 * functions of the C library that store. In a section of a live heap they log the old bytes; see docs/LIVE_HEAPS.md.
 * For mappings and heaps with the tracker `explicit` they report the stored-to bytes.
 *
 * Compiled once, without hooks of its own, into libuntorn-live.a, which is linked into the program: a call through a
 * shared library would cost more than the rest.
 */

#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "untorn.h"

#define VERSION 5
#define FILTER 128
#define RECORD 16
#define KIND_STORE (1ull << 48)

/* LogWriter in crates/core/untorn/src/heap/log/section_log.rs. */
struct writer {
    uintptr_t base;
    size_t bytes;
    uint64_t *tail;
    unsigned char *records;
    size_t begun;
    size_t room;
    uint64_t epoch;
    void *section;
    uint64_t filter[FILTER];
    size_t limit;
    uint64_t generation, first;
} __attribute__((aligned(64)));

static __thread struct writer this_threads __attribute__((tls_model("initial-exec")));

/* Mappings with the tracker `explicit`, as in crates/core/untorn/src/engine/region/mark_hooks.rs: a byte for each line of
 * 64 bytes that was stored to, and for each page with such a line. The pointers in the table never change, and their
 * targets are never freed. */
#define MAPPINGS 64
struct mapping {
    uintptr_t base;
    size_t bytes;
    unsigned char *lines, *pages;
};
static struct {
    size_t used;
    const struct mapping *all[MAPPINGS];
} marked;

static void *writer_of_this_thread(void) { return &this_threads; }

/* Runs before constructors of static objects, which have no priority and may open a heap or take locks. */
__attribute__((constructor(101))) static void tell(void) {
    if (untorn_live_hooks(VERSION, writer_of_this_thread, &marked)) {
        fprintf(stderr, "untorn: %s\n", untorn_error_message());
        abort();
    }
}

#define barrier() __asm__ volatile("" ::: "memory")

/* For measuring the cost of flushing each record; no other code needs this. FLUSH writes back a cache line, FENCE waits. */
#ifdef FLUSH
#ifndef FLUSH_END
#define FLUSH_END(address) FLUSH(address); FENCE
#endif
static void log_range(struct writer *w, const void *address, size_t size) {
    size_t used = __atomic_load_n(w->tail, __ATOMIC_RELAXED), at = used < w->begun ? w->begun : used;
    untorn_section_log(address, size);
    used = __atomic_load_n(w->tail, __ATOMIC_RELAXED);
    for (at &= ~(size_t)63; at < used; at += 64) FLUSH(w->records + at);
    FENCE;
    FLUSH_END(w->tail);
}
#else
#define FLUSH(address)
#define FLUSH_END(address)
#define FENCE
static inline __attribute__((always_inline)) void log_range(struct writer *w, const void *address, size_t size) {
    (void)w;
    untorn_section_log(address, size);
}
#endif

static inline __attribute__((always_inline)) void log_word(struct writer *w, uintptr_t at, size_t size) {
    uint64_t key = (uint64_t)at | (uint64_t)size << 48 | w->epoch;
    uint64_t *known = &w->filter[at >> 3 & (FILTER - 1)];
    uint64_t old = 0;
    uint64_t *record;
    size_t used;
    if (*known == key) return;
    used = __atomic_load_n(w->tail, __ATOMIC_RELAXED);
    if (used < w->begun) used = w->begun;
    /* Keep room for the record that ends the section. */
    if (__builtin_expect(used + 2 * RECORD > w->room, 0)) {
        log_range(w, (const void *)at, size);
        return;
    }
    *known = key;
    switch (size) {
    case 1: old = *(const unsigned char *)at; break;
    case 2: memcpy(&old, (const void *)at, 2); break;
    case 4: memcpy(&old, (const void *)at, 4); break;
    case 8: memcpy(&old, (const void *)at, 8); break;
    default: {
        unsigned char *to = (unsigned char *)&old;
        const volatile unsigned char *from = (const volatile unsigned char *)at;
        size_t n;
        for (n = 0; n < size; n++) to[n] = from[n];
    }
    }
    record = (uint64_t *)(void *)(w->records + used);
    record[0] = (uint64_t)at | KIND_STORE | (uint64_t)size << 52;
    record[1] = old;
    FLUSH(record);
    FENCE;
    /* The record, the tail, and then the store: a killed process stops at an instruction, so only the compiler
     * matters. */
    barrier();
    __atomic_store_n(w->tail, used + RECORD, __ATOMIC_RELAXED);
    FLUSH_END(w->tail);
    barrier();
}

static inline __attribute__((always_inline)) void set(unsigned char *flag) {
    /* Most are set already, and a cache line that is only read can be shared by all processors. */
    if (!__atomic_load_n(flag, __ATOMIC_RELAXED)) __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

/* Bytes that may be in a mapping with the tracker `explicit`. */
static __attribute__((noinline)) void tell_of(uintptr_t at, size_t size) {
    size_t used = __atomic_load_n(&marked.used, __ATOMIC_ACQUIRE), n;
    for (n = 0; n < used; n++) {
        const struct mapping *one = __atomic_load_n(&marked.all[n], __ATOMIC_ACQUIRE);
        size_t from, most = size, line, last;
        if (!one) continue;
        from = at - one->base;
        /* The range may begin before the mapping, and end behind it. */
        if (from >= one->bytes) {
            if (at >= one->base || size <= one->base - at) continue;
            from = 0;
            most = size - (one->base - at);
        }
        if (most > one->bytes - from) most = one->bytes - from;
        last = (from + most - 1) >> 6;
        for (line = from >> 6; line <= last; line++) {
            set(&one->lines[line]);
            /* Set after the line's byte: the thread that clears the page's byte takes the line bytes afterwards. */
            set(&one->pages[line >> 6]);
        }
    }
}

static inline __attribute__((always_inline)) void before_word(uintptr_t at, size_t size) {
    struct writer *w = &this_threads;
    if (__builtin_expect(at - w->base < w->bytes, 0)) {
        log_word(w, at, size);
    } else if (__builtin_expect(__atomic_load_n(&marked.used, __ATOMIC_RELAXED) != 0, 0)) {
        tell_of(at, size);
    }
}

/* Any bytes; the heap ignores those outside of it. */
static void before(const void *address, size_t size) {
    struct writer *w = &this_threads;
    uintptr_t at = (uintptr_t)address;
    if (__atomic_load_n(&marked.used, __ATOMIC_RELAXED) && size) tell_of(at, size);
    if (__builtin_expect(!w->bytes || at >= w->base + w->bytes || at + size <= w->base, 1)) return;
    if (size > 64 || at < w->base || at + size > w->base + w->bytes) {
        log_range(w, address, size);
        return;
    }
    for (; size >= 8; at += 8, size -= 8) log_word(w, at, 8);
    if (size) log_word(w, at, size);
}

/* After a call that may have waited: another thread's commit may have taken the bytes that were reported before. */
static void after(const void *address, size_t size) {
    if (__atomic_load_n(&marked.used, __ATOMIC_RELAXED) && size) tell_of((uintptr_t)address, size);
}

/* The library finds the thread's state by the address of its log, which only the program knows without a call. */
int __wrap_untorn_mutex_lock(untorn_mutex *mutex);
int __wrap_untorn_mutex_unlock(untorn_mutex *mutex);
int __wrap_untorn_mutex_lock(untorn_mutex *mutex) { return untorn_live_lock(&this_threads, mutex); }
int __wrap_untorn_mutex_unlock(untorn_mutex *mutex) { return untorn_live_unlock(&this_threads, mutex); }

/* For pthread.c. */
int untorn_hooks_lock_at_once(untorn_mutex *mutex);
int untorn_hooks_lock_at_once(untorn_mutex *mutex) { return untorn_live_lock_at_once(&this_threads, mutex); }

/* The functions that compilers call with -fsanitize=kernel-address. */
void __asan_store1_noabort(uintptr_t at);
void __asan_store2_noabort(uintptr_t at);
void __asan_store4_noabort(uintptr_t at);
void __asan_store8_noabort(uintptr_t at);
void __asan_store16_noabort(uintptr_t at);
void __asan_storeN_noabort(uintptr_t at, size_t size);
void __asan_handle_no_return(void);

void __asan_store1_noabort(uintptr_t at) { before_word(at, 1); }
void __asan_store2_noabort(uintptr_t at) { before_word(at, 2); }
void __asan_store4_noabort(uintptr_t at) { before_word(at, 4); }
void __asan_store8_noabort(uintptr_t at) { before_word(at, 8); }
void __asan_store16_noabort(uintptr_t at) {
    before_word(at, 8);
    before_word(at + 8, 8);
}
void __asan_storeN_noabort(uintptr_t at, size_t size) { before((const void *)at, size); }
void __asan_handle_no_return(void) {}

/* Other sanitizer functions that compilers and standard libraries call; sections ignore them. */
void __asan_before_dynamic_init(const char *module);
void __asan_before_dynamic_init(const char *module) { (void)module; }
void __asan_after_dynamic_init(void);
void __asan_after_dynamic_init(void) {}
void __sanitizer_annotate_contiguous_container(const void *a, const void *b, const void *c, const void *d);
void __sanitizer_annotate_contiguous_container(const void *a, const void *b, const void *c, const void *d) {
    (void)a, (void)b, (void)c, (void)d;
}

/* Loads are not requested; these are for a compiler that announces some all the same. */
#define LOAD(name)                                                                                                         \
    void __asan_load##name##_noabort(uintptr_t at);                                                                        \
    void __asan_load##name##_noabort(uintptr_t at) { (void)at; }
LOAD(1)
LOAD(2)
LOAD(4)
LOAD(8)
LOAD(16)
void __asan_loadN_noabort(uintptr_t at, size_t size);
void __asan_loadN_noabort(uintptr_t at, size_t size) { (void)at, (void)size; }

/* Functions of the C library that store to the caller's memory. */
#define WRAP(result, name, parameters)                                                                                     \
    result __real_##name parameters;                                                                                       \
    result __wrap_##name parameters;                                                                                       \
    result __wrap_##name parameters

WRAP(void *, memcpy, (void *to, const void *from, size_t n)) {
    before(to, n);
    return __real_memcpy(to, from, n);
}
WRAP(void *, memmove, (void *to, const void *from, size_t n)) {
    before(to, n);
    return __real_memmove(to, from, n);
}
WRAP(void *, memset, (void *to, int byte, size_t n)) {
    before(to, n);
    return __real_memset(to, byte, n);
}
WRAP(void *, mempcpy, (void *to, const void *from, size_t n)) {
    before(to, n);
    return __real_mempcpy(to, from, n);
}
WRAP(char *, strcpy, (char *to, const char *from)) {
    before(to, strlen(from) + 1);
    return __real_strcpy(to, from);
}
WRAP(char *, stpcpy, (char *to, const char *from)) {
    before(to, strlen(from) + 1);
    return __real_stpcpy(to, from);
}
WRAP(char *, strncpy, (char *to, const char *from, size_t n)) {
    before(to, n);
    return __real_strncpy(to, from, n);
}
WRAP(char *, stpncpy, (char *to, const char *from, size_t n)) {
    before(to, n);
    return __real_stpncpy(to, from, n);
}
WRAP(char *, strcat, (char *to, const char *from)) {
    before(to + strlen(to), strlen(from) + 1);
    return __real_strcat(to, from);
}
WRAP(char *, strncat, (char *to, const char *from, size_t n)) {
    before(to + strlen(to), strnlen(from, n) + 1);
    return __real_strncat(to, from, n);
}
WRAP(ssize_t, read, (int fd, void *to, size_t n)) {
    before(to, n);
    ssize_t result = __real_read(fd, to, n);
    after(to, n);
    return result;
}
WRAP(ssize_t, pread, (int fd, void *to, size_t n, off_t at)) {
    before(to, n);
    ssize_t result = __real_pread(fd, to, n, at);
    after(to, n);
    return result;
}
WRAP(ssize_t, recv, (int fd, void *to, size_t n, int flags)) {
    before(to, n);
    ssize_t result = __real_recv(fd, to, n, flags);
    after(to, n);
    return result;
}
WRAP(size_t, fread, (void *to, size_t size, size_t n, FILE *from)) {
    before(to, size * n);
    size_t result = __real_fread(to, size, n, from);
    after(to, size * n);
    return result;
}
WRAP(char *, fgets, (char *to, int n, FILE *from)) {
    before(to, n > 0 ? (size_t)n : 0);
    char * result = __real_fgets(to, n, from);
    after(to, n > 0 ? (size_t)n : 0);
    return result;
}
WRAP(ssize_t, pread64, (int fd, void *to, size_t n, off64_t at)) {
    before(to, n);
    ssize_t result = __real_pread64(fd, to, n, at);
    after(to, n);
    return result;
}
static void before_each(const struct iovec *to, int n) {
    for (int i = 0; i < n; i++) before(to[i].iov_base, to[i].iov_len);
}
static void after_each(const struct iovec *to, int n) {
    for (int i = 0; i < n; i++) after(to[i].iov_base, to[i].iov_len);
}
WRAP(ssize_t, readv, (int fd, const struct iovec *to, int n)) {
    before_each(to, n);
    ssize_t result = __real_readv(fd, to, n);
    after_each(to, n);
    return result;
}
WRAP(ssize_t, preadv, (int fd, const struct iovec *to, int n, off_t at)) {
    before_each(to, n);
    ssize_t result = __real_preadv(fd, to, n, at);
    after_each(to, n);
    return result;
}
WRAP(ssize_t, recvfrom, (int fd, void *to, size_t n, int flags, __SOCKADDR_ARG from, socklen_t *from_bytes)) {
    socklen_t room = from_bytes ? *from_bytes : 0;
    ssize_t result;
    before(to, n);
    if (from_bytes) {
        before(*(void *const *)&from, room);
        before(from_bytes, sizeof *from_bytes);
    }
    result = __real_recvfrom(fd, to, n, flags, from, from_bytes);
    after(to, n);
    if (from_bytes) {
        after(*(void *const *)&from, room);
        after(from_bytes, sizeof *from_bytes);
    }
    return result;
}
WRAP(ssize_t, getrandom, (void *to, size_t n, unsigned flags)) {
    before(to, n);
    ssize_t result = __real_getrandom(to, n, flags);
    after(to, n);
    return result;
}
WRAP(void, qsort, (void *all, size_t n, size_t size, int (*compare)(const void *, const void *))) {
    before(all, n * size);
    __real_qsort(all, n, size, compare);
    after(all, n * size);
}
WRAP(void *, memccpy, (void *to, const void *from, int end, size_t n)) {
    const unsigned char *found = memchr(from, end, n);
    before(to, found ? (size_t)(found - (const unsigned char *)from) + 1 : n);
    return __real_memccpy(to, from, end, n);
}
WRAP(void, explicit_bzero, (void *to, size_t n)) {
    before(to, n);
    __real_explicit_bzero(to, n);
}
WRAP(void, bzero, (void *to, size_t n)) {
    before(to, n);
    __real_bzero(to, n);
}
WRAP(void, bcopy, (const void *from, void *to, size_t n)) {
    before(to, n);
    __real_bcopy(from, to, n);
}
/* A byte is stored where a token ends; the rest is kept for the next call. */
WRAP(char *, strtok_r, (char *text, const char *ends, char **rest)) {
    char *from = text ? text : *rest;
    before(rest, sizeof *rest);
    if (from) before(from, strlen(from));
    return __real_strtok_r(text, ends, rest);
}
WRAP(size_t, strftime, (char *to, size_t n, const char *format, const struct tm *when)) {
    before(to, n);
    return __real_strftime(to, n, format, when);
}
WRAP(int, clock_gettime, (clockid_t clock, struct timespec *now)) {
    before(now, sizeof *now);
    return __real_clock_gettime(clock, now);
}
WRAP(struct tm *, localtime_r, (const time_t *when, struct tm *to)) {
    before(to, sizeof *to);
    return __real_localtime_r(when, to);
}
WRAP(struct tm *, gmtime_r, (const time_t *when, struct tm *to)) {
    before(to, sizeof *to);
    return __real_gmtime_r(when, to);
}

/* The length must be known before the store, so the text is made twice. */
WRAP(int, vsnprintf, (char *to, size_t n, const char *format, va_list arguments)) {
    va_list again;
    int length;
    va_copy(again, arguments);
    length = this_threads.bytes || marked.used ? __real_vsnprintf(NULL, 0, format, again) : 0;
    va_end(again);
    if (length >= 0 && n) before(to, (size_t)length + 1 < n ? (size_t)length + 1 : n);
    return __real_vsnprintf(to, n, format, arguments);
}
int __wrap_snprintf(char *to, size_t n, const char *format, ...);
int __wrap_snprintf(char *to, size_t n, const char *format, ...) {
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = __wrap_vsnprintf(to, n, format, arguments);
    va_end(arguments);
    return length;
}
int __wrap_vsprintf(char *to, const char *format, va_list arguments);
int __wrap_vsprintf(char *to, const char *format, va_list arguments) {
    return __wrap_vsnprintf(to, (size_t)1 << 30, format, arguments);
}
int __wrap_sprintf(char *to, const char *format, ...);
int __wrap_sprintf(char *to, const char *format, ...) {
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = __wrap_vsnprintf(to, (size_t)1 << 30, format, arguments);
    va_end(arguments);
    return length;
}
