/*
 * Locks of pthread that make sections, for programs whose locks are not changed: `UNTORN_PTHREAD=1 untorn-cc`. What a thread does
 * from its first mutex or read-write lock until it has given all of them back is a section of the live heap that is open; see
 * docs/LIVE_HEAPS.md, "Locks of pthread".
 *
 * Each lock that the program has ever taken has a mutex of the library's beside it, which is taken behind it and given back
 * before it, so that nobody ever waits for that one. It says who had the lock last.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "untorn.h"

/* Locks of a program, at most; memory is taken by those that there are. */
#define LOCKS ((size_t)1 << 20)

/* What is beside a lock. But for the address, whoever has the lock has it. */
struct beside {
    uintptr_t address;
    /* How often a recursive mutex is taken. */
    unsigned depth;
    /* The mutex is held: a live heap was open when the lock was taken. */
    int marked;
    /* A read-write lock is held by a writer. */
    int writing;
    untorn_mutex mutex;
};

static struct beside *all;

/* For pthread_cxx.c. */
unsigned untorn_pthread_wait_begins(void *mutex);
void untorn_pthread_wait_ended(void *mutex, unsigned depth);

static __attribute__((noreturn)) void give_up(const char *why) {
    fprintf(stderr, "untorn: locks of pthread: %s\n", why);
    abort();
}

static struct beside *table(void) {
    struct beside *known = __atomic_load_n(&all, __ATOMIC_ACQUIRE), *made, *none = NULL;
    if (known) return known;
    made = mmap(NULL, LOCKS * sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) give_up("no memory");
    if (__atomic_compare_exchange_n(&all, &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return made;
    munmap(made, LOCKS * sizeof *made);
    return none;
}

static struct beside *beside(const void *lock) {
    struct beside *one = table();
    uintptr_t address = (uintptr_t)lock, there;
    size_t at = address / 8 * 0x9e3779b97f4a7c15u >> 44, n;
    for (n = 0; n < LOCKS; n++) {
        struct beside *found = &one[(at + n) % LOCKS];
        there = __atomic_load_n(&found->address, __ATOMIC_ACQUIRE);
        if (there == address) return found;
        if (there) continue;
        if (__atomic_compare_exchange_n(&found->address, &there, address, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return found;
        if (there == address) return found;
    }
    give_up("too many");
}

/* The thread has just taken the lock. */
static void taken(struct beside *lock) {
    int before = errno;
    lock->marked = !untorn_mutex_lock(&lock->mutex);
    if (!lock->marked && untorn_last_error() == UNTORN_E_UNSUPPORTED) give_up(untorn_error_message());
    errno = before;
}

/* The thread is about to give it back. */
static void gives_back(struct beside *lock) {
    int before = errno;
    if (lock->marked) {
        lock->marked = 0;
        if (untorn_mutex_unlock(&lock->mutex)) give_up(untorn_error_message());
    }
    errno = before;
}

/* As above, of a mutex, which may be recursive. */
static int has_mutex(void *mutex, int result) {
    if (result == 0 || result == EOWNERDEAD) {
        struct beside *lock = beside(mutex);
        if (lock->depth++ == 0) taken(lock);
    }
    return result;
}

#define WRAP(result, name, parameters)                                                                                     \
    result __real_##name parameters;                                                                                       \
    result __wrap_##name parameters;                                                                                       \
    result __wrap_##name parameters

WRAP(int, pthread_mutex_lock, (pthread_mutex_t * mutex)) { return has_mutex(mutex, __real_pthread_mutex_lock(mutex)); }
WRAP(int, pthread_mutex_trylock, (pthread_mutex_t * mutex)) {
    return has_mutex(mutex, __real_pthread_mutex_trylock(mutex));
}
WRAP(int, pthread_mutex_timedlock, (pthread_mutex_t * mutex, const struct timespec *until)) {
    return has_mutex(mutex, __real_pthread_mutex_timedlock(mutex, until));
}
WRAP(int, pthread_mutex_clocklock, (pthread_mutex_t * mutex, clockid_t clock, const struct timespec *until)) {
    return has_mutex(mutex, __real_pthread_mutex_clocklock(mutex, clock, until));
}
WRAP(int, pthread_mutex_unlock, (pthread_mutex_t * mutex)) {
    struct beside *lock = beside(mutex);
    /* A mutex that nobody has is pthread's affair. */
    if (lock->depth && --lock->depth == 0) gives_back(lock);
    return __real_pthread_mutex_unlock(mutex);
}

/* A wait gives the mutex back and takes it again. A recursive one that is held several times is a mistake in any program. */
unsigned untorn_pthread_wait_begins(void *mutex) {
    struct beside *lock = beside(mutex);
    unsigned depth = lock->depth;
    lock->depth = 0;
    if (depth) gives_back(lock);
    return depth;
}

void untorn_pthread_wait_ended(void *mutex, unsigned depth) {
    struct beside *lock = beside(mutex);
    lock->depth = depth;
    if (depth) taken(lock);
}

#define WAIT(mutex, call)                                                                                                  \
    unsigned depth = untorn_pthread_wait_begins(mutex);                                                                    \
    int result = call;                                                                                                     \
    untorn_pthread_wait_ended(mutex, depth);                                                                               \
    return result

WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex)) {
    WAIT(mutex, __real_pthread_cond_wait(condition, mutex));
}
WRAP(int, pthread_cond_timedwait, (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *until)) {
    WAIT(mutex, __real_pthread_cond_timedwait(condition, mutex, until));
}
WRAP(int, pthread_cond_clockwait,
     (pthread_cond_t * condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)) {
    WAIT(mutex, __real_pthread_cond_clockwait(condition, mutex, clock, until));
}
static int has_written(void *rwlock, int result) {
    if (result == 0) {
        struct beside *lock = beside(rwlock);
        lock->writing = 1;
        taken(lock);
    }
    return result;
}
/* Readers share what is beside the lock: each of them has the mutex together with the others, or, as no live heap was open, none
 * of them knows of it. */
static int has_read(void *rwlock, int result) {
    int before = errno;
    if (result == 0 && untorn_mutex_lock_shared(&beside(rwlock)->mutex) && untorn_last_error() == UNTORN_E_UNSUPPORTED)
        give_up(untorn_error_message());
    errno = before;
    return result;
}

WRAP(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock)) { return has_written(lock, __real_pthread_rwlock_wrlock(lock)); }
WRAP(int, pthread_rwlock_trywrlock, (pthread_rwlock_t * lock)) {
    return has_written(lock, __real_pthread_rwlock_trywrlock(lock));
}
WRAP(int, pthread_rwlock_timedwrlock, (pthread_rwlock_t * lock, const struct timespec *until)) {
    return has_written(lock, __real_pthread_rwlock_timedwrlock(lock, until));
}
WRAP(int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock)) { return has_read(lock, __real_pthread_rwlock_rdlock(lock)); }
WRAP(int, pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock)) {
    return has_read(lock, __real_pthread_rwlock_tryrdlock(lock));
}
WRAP(int, pthread_rwlock_timedrdlock, (pthread_rwlock_t * lock, const struct timespec *until)) {
    return has_read(lock, __real_pthread_rwlock_timedrdlock(lock, until));
}
WRAP(int, pthread_rwlock_unlock, (pthread_rwlock_t * rwlock)) {
    struct beside *lock = beside(rwlock);
    int before = errno;
    if (lock->writing) {
        lock->writing = 0;
        gives_back(lock);
    } else {
        untorn_mutex_unlock_shared(&lock->mutex);
    }
    errno = before;
    return __real_pthread_rwlock_unlock(rwlock);
}
