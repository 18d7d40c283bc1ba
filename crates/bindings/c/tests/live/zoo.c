/*
 * Kinds of stores, each made in a section of a live heap and then taken back: every byte must be as it was. What is not was
 * not announced by a hook. Prints "missed NAME" for each kind; the last line is the number of kinds.
 */

#define _GNU_SOURCE
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "untorn.h"

#define SIZE 512

typedef long vector_16 __attribute__((vector_size(16), aligned(1), may_alias));
#if defined(__AVX2__)
typedef long vector_32 __attribute__((vector_size(32), aligned(1), may_alias));
#endif
#if defined(__AVX512F__)
typedef long vector_64 __attribute__((vector_size(64), aligned(1), may_alias));
#endif

struct small { char a; short b; int c; long d; };
struct large { long n[20]; };
struct bits { unsigned a : 3, b : 7, c : 22; };
struct packed { char a; long b; } __attribute__((packed));

static volatile long one = 1;
static int pipe_ends[2];

static int compare_ints(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

__attribute__((noinline)) static struct large make_large(long n) {
    struct large made;
    for (int i = 0; i < 20; i++) made.n[i] = n + i;
    return made;
}
__attribute__((noinline)) static struct small make_small(long n) { return (struct small){(char)n, (short)n, (int)n, n}; }
__attribute__((noinline)) static int format(char *to, size_t n, const char *how, ...) {
    va_list arguments;
    va_start(arguments, how);
    int length = vsnprintf(to, n, how, arguments);
    va_end(arguments);
    return length;
}

#define KIND(name, ...)                                                                                                  \
    __attribute__((noinline)) static void name(unsigned char *p) { __VA_ARGS__; }

KIND(store_1, *p = (unsigned char)one)
KIND(store_2, *(short *)p = (short)one)
KIND(store_4, *(int *)p = (int)one)
KIND(store_8, *(long *)p = one)
KIND(store_16, *(__int128 *)p = one)
KIND(store_float, *(float *)p = (float)one)
KIND(store_double, *(double *)p = (double)one)
KIND(store_long_double, *(long double *)p = (long double)one)
KIND(store_unaligned, __builtin_memcpy(p + 3, (const void *)&one, 8))
KIND(store_packed, ((struct packed *)p)->b = one)
KIND(store_constant_zero, *(long *)p = 0; ((long *)p)[1] = 0; ((long *)p)[2] = 0; ((long *)p)[3] = 0)
KIND(add, *(long *)p += one)
KIND(increment, ++*(int *)p)
KIND(or_bit, *p |= 0x80)
KIND(bit_field, ((struct bits *)p)->b = (unsigned)one & 0x7f)
KIND(bit_field_all, struct bits *b = (struct bits *)p; b->a = 5; b->b = 77; b->c = 123456)
KIND(exchange_variables, long *n = (long *)p; long old = n[0]; n[0] = n[1]; n[1] = old + 1)
KIND(assign_small, *(struct small *)p = make_small(one))
KIND(assign_large, *(struct large *)p = make_large(one))
KIND(return_into, struct large *to = (struct large *)p; to[1] = make_large(3))
KIND(assign_constant, *(struct large *)p = (struct large){{7}})
KIND(copy_struct, ((struct large *)p)[1] = ((struct large *)p)[0])
KIND(vector_store_16, *(vector_16 *)p = (vector_16){one, 2})
#if defined(__AVX2__)
KIND(vector_store_32, *(vector_32 *)p = (vector_32){one, 2, 3, 4})
#endif
#if defined(__AVX512F__)
KIND(vector_store_64, *(vector_64 *)p = (vector_64){one, 2, 3, 4, 5, 6, 7, 8})
#endif
KIND(loop_bytes, for (int i = 0; i < 100; i++) p[i] = (unsigned char)(i + one))
KIND(loop_longs, for (int i = 0; i < 40; i++) ((long *)p)[i] = i * one)
KIND(loop_doubles, for (int i = 0; i < 40; i++) ((double *)p)[i] *= 1.5)
KIND(loop_zero, for (int i = 0; i < 300; i++) p[i] = 0)
KIND(loop_copy, for (int i = 0; i < 200; i++) p[i] = p[i + 250])
KIND(loop_strided, for (int i = 0; i < 30; i++) p[i * 9] = (unsigned char)one)
KIND(memset_8, memset(p, 9, 8))
KIND(memset_64, memset(p, 9, 64))
KIND(memset_n, memset(p, 9, 100 * (size_t)one))
KIND(memcpy_16, memcpy(p, p + 100, 16))
KIND(memcpy_100, memcpy(p, p + 200, 100))
KIND(memcpy_n, memcpy(p, p + 200, 150 * (size_t)one))
KIND(memmove_n, memmove(p, p + 20, 150 * (size_t)one))
KIND(memmove_12, memmove(p, p + 5, 12))
KIND(strcpy_literal, strcpy((char *)p, "a literal of some length"))
KIND(strcpy_n, strcpy((char *)p, getenv("PATH") ? "found" : "not"))
KIND(strncpy_n, strncpy((char *)p, "some", 60 * (size_t)one))
KIND(strcat_n, p[4] = 0; strcat((char *)p, one ? "behind" : "not"))
KIND(stpcpy_n, *stpcpy((char *)p, one ? "until here" : "not") = 'x')
KIND(print_n, snprintf((char *)p, 80, "%ld and %s", one, "more"))
KIND(print_literal, sprintf((char *)p, "just text"))
KIND(print_list, format((char *)p, 20, "%s", "much more than fits into it"))
KIND(read_bytes, if (write(pipe_ends[1], "0123456789", 10) != 10 || read(pipe_ends[0], p, 10) != 10) abort())
KIND(stream_bytes, FILE *f = fopen("/proc/self/stat", "r"); if (fread(p, 1, 50, f) != 50) abort(); fclose(f))
KIND(stream_line, FILE *f = fopen("/proc/self/status", "r"); if (!fgets((char *)p, 50, f)) abort(); fclose(f))
KIND(read_at, FILE *f = tmpfile(); if (!f || fwrite("0123456789", 1, 10, f) != 10 || fflush(f) || pread64(fileno(f), p, 10, 0) != 10) abort(); fclose(f))
KIND(read_parts, struct iovec parts[2] = {{p, 5}, {p + 100, 5}}; if (write(pipe_ends[1], "0123456789", 10) != 10 || readv(pipe_ends[0], parts, 2) != 10) abort())
KIND(receive_from, int s[2]; if (socketpair(AF_UNIX, SOCK_DGRAM, 0, s) || write(s[0], "01234", 5) != 5 || recvfrom(s[1], p, 5, 0, NULL, NULL) != 5) abort(); close(s[0]); close(s[1]))
KIND(random_bytes, if (getrandom(p, 40, 0) != 40) abort())
KIND(sort_numbers, qsort(p, 40, 4, compare_ints))
KIND(copy_up_to, memccpy(p, "01234;6789", ';', 10))
KIND(zero_explicitly, explicit_bzero(p, 33))
KIND(zero_bytes, bzero(p, (size_t)one * 30))
KIND(copy_back, bcopy(p, p + 1, (size_t)one * 30))
KIND(token, p[9] = ' '; p[20] = 0; p[0] = 'x'; p[1] = 'y'; char *rest; if (!strtok_r((char *)p, " ", &rest)) abort())
KIND(time_text, struct tm when = {0}; strftime((char *)p, 40, "%Y-%m-%d", &when))
KIND(clock_time, clock_gettime(CLOCK_MONOTONIC, (struct timespec *)p))
KIND(local_time, time_t when = one; localtime_r(&when, (struct tm *)p))
KIND(world_time, time_t when = one; gmtime_r(&when, (struct tm *)p))
KIND(atomic_store_8, atomic_store((_Atomic long *)p, one))
KIND(atomic_relaxed_4, atomic_store_explicit((_Atomic int *)p, (int)one, memory_order_relaxed))
KIND(atomic_add_8, atomic_fetch_add((_Atomic long *)p, 5))
KIND(atomic_exchange_1, (void)atomic_exchange((_Atomic char *)p, 5))
KIND(atomic_compare, long was = *(long *)p; (void)atomic_compare_exchange_strong((_Atomic long *)p, &was, 77))
KIND(through_volatile, *(volatile long *)p = 6)
KIND(through_function, void *(*volatile fill)(void *, int, size_t) = memset; fill(p, 3, 70))
KIND(complex_number, *(_Complex double *)p = 1.0 + one)
KIND(restrict_arrays, long *restrict a = (long *)p; const long *restrict b = (const long *)(p + 256); for (int i = 0; i < 20; i++) a[i] = b[i] + 1)
KIND(conditional, if (one) *(int *)p = 4; else *(long *)p = 5)
KIND(array_of_structs, for (int i = 0; i < 8; i++) ((struct small *)p)[i].c = i)
#if defined(__x86_64__)
KIND(assembly, __asm__ volatile("movq $1, (%0)" : : "r"(p) : "memory"))
#endif

#define ROW(name) {#name, name}
static const struct { const char *name; void (*store)(unsigned char *); } kinds[] = {
    ROW(store_1), ROW(store_2), ROW(store_4), ROW(store_8), ROW(store_16), ROW(store_float), ROW(store_double),
    ROW(store_long_double), ROW(store_unaligned), ROW(store_packed), ROW(store_constant_zero), ROW(add), ROW(increment),
    ROW(or_bit), ROW(bit_field), ROW(bit_field_all), ROW(exchange_variables), ROW(assign_small), ROW(assign_large),
    ROW(return_into), ROW(assign_constant), ROW(copy_struct), ROW(vector_store_16),
#if defined(__AVX2__)
    ROW(vector_store_32),
#endif
#if defined(__AVX512F__)
    ROW(vector_store_64),
#endif
    ROW(loop_bytes), ROW(loop_longs), ROW(loop_doubles), ROW(loop_zero), ROW(loop_copy), ROW(loop_strided), ROW(memset_8),
    ROW(memset_64), ROW(memset_n), ROW(memcpy_16), ROW(memcpy_100), ROW(memcpy_n), ROW(memmove_n), ROW(memmove_12),
    ROW(strcpy_literal), ROW(strcpy_n), ROW(strncpy_n), ROW(strcat_n), ROW(stpcpy_n), ROW(print_n), ROW(print_literal),
    ROW(print_list), ROW(read_bytes), ROW(stream_bytes), ROW(stream_line), ROW(read_at), ROW(read_parts), ROW(receive_from), ROW(random_bytes),
    ROW(sort_numbers), ROW(copy_up_to), ROW(zero_explicitly), ROW(zero_bytes), ROW(copy_back), ROW(token), ROW(time_text),
    ROW(clock_time), ROW(local_time), ROW(world_time), ROW(atomic_store_8), ROW(atomic_relaxed_4),
    ROW(atomic_add_8), ROW(atomic_exchange_1), ROW(atomic_compare), ROW(through_volatile), ROW(through_function),
    ROW(complex_number), ROW(restrict_arrays), ROW(conditional), ROW(array_of_structs),
#if defined(__x86_64__)
    ROW(assembly),
#endif
};

static void check(int result) {
    if (result < 0) {
        fprintf(stderr, "%s\n", untorn_error_message());
        exit(2);
    }
}

/* An ordinary heap with the tracker `explicit`: a commit is refused if a store was not reported. */
static int told(const char *file) {
    const size_t count = sizeof kinds / sizeof *kinds;
    untorn_heap_options options = {
        .size = sizeof options, .flags = UNTORN_HEAP_DEBUG_UNMARKED | UNTORN_CREATE, .tracker = UNTORN_TRACKER_EXPLICIT};
    untorn_heap *heap = untorn_heap_open(file, &options, NULL);
    unsigned char *block, before[SIZE], expected[SIZE];
    if (!heap) check(-1);
    if (pipe(pipe_ends)) return 2;
    block = untorn_heap_aligned_alloc(heap, 64, SIZE);
    check(untorn_heap_set_root(heap, "block", block, "block", SIZE, 64, 1));
    for (size_t kind = 0; kind < count; kind++) {
        for (int i = 0; i < SIZE; i++) block[i] = (unsigned char)(0x5a + i * 7);
        check(untorn_heap_commit(heap));
        memcpy(before, block, SIZE);
        kinds[kind].store(block);
        if (!memcmp(before, block, SIZE)) printf("nothing %s\n", kinds[kind].name);
        if (untorn_heap_commit(heap)) {
            printf("missed %s\n", kinds[kind].name);
            check(untorn_heap_mark_dirty(heap, block, SIZE));
            check(untorn_heap_commit(heap));
        }
        memcpy(expected, block, SIZE);
    }
    printf("%zu\n", count);
    check(untorn_heap_close(heap));
    /* What was committed is there, without a store of its own. */
    heap = untorn_heap_open(file, &options, NULL);
    if (!heap || untorn_heap_root(heap, "block", "block", SIZE, 64, 1, (void **)&block) != 1) check(-1);
    if (memcmp(expected, block, SIZE)) printf("missed the last one\n");
    check(untorn_heap_close(heap));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3) return told(argv[2]);
    const size_t count = sizeof kinds / sizeof *kinds;
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_HEAP_LIVE | UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open(argv[argc - 1], &options, NULL);
    unsigned char *block, before[SIZE], after[SIZE];
    if (!heap) check(-1);
    if (pipe(pipe_ends)) return 2;
    block = untorn_heap_aligned_alloc(heap, 64, SIZE);
    for (size_t kind = 0; kind < count; kind++) {
        for (int i = 0; i < SIZE; i++) block[i] = (unsigned char)(0x5a + i * 7);
        memcpy(before, block, SIZE);
        check(untorn_section_begin(heap));
        kinds[kind].store(block);
        memcpy(after, block, SIZE);
        check(untorn_section_abort(heap));
        check(untorn_section_end(heap));
        if (!memcmp(before, after, SIZE)) printf("nothing %s\n", kinds[kind].name);
        if (memcmp(before, block, SIZE)) printf("missed %s\n", kinds[kind].name);
    }
    printf("%zu\n", count);
    check(untorn_heap_close(heap));
    return 0;
}
