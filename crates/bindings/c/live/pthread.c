/*
 * Locks of pthread that make sections, for programs whose locks are not changed: `UNTORN_PTHREAD=1 untorn-cc`. A
 * thread's stores from its first mutex or read-write lock until it has released all of them are a section of the open
 * live heap; see docs/LIVE_HEAPS.md, "Locks of pthread".
 *
 * Each lock that the program has ever taken has a mutex of the library beside it. That mutex is locked after the lock
 * and unlocked before it, so no thread ever waits for it. It records which thread had the lock last.
 *
 * The section begins before the thread waits for its first lock, as with the library's own locks. To begin a section,
 * the thread may have to wait for a commit, which may wait for another thread that waits for that lock. So a thread
 * that waits to begin a section does not hold the lock.
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

/* The most locks of a program; only locks that exist take memory. */
#define LOCKS ((size_t)1 << 20)

/* The most read-write locks that a thread holds at the same time. */
#define RWLOCKS 256

/* The entry beside a lock. All members but the address belong to the thread that holds the lock. */
struct beside {
    uintptr_t address;
    /* How many times a recursive mutex is locked. */
    unsigned depth;
    /* The generation of the process that holds the mutex below, because a live heap was open when the lock was taken.
     * 0: the mutex is not held. */
    unsigned marked;
    untorn_mutex mutex;
};

/* The state of this thread. */
static __thread struct {
    /* Number of locks that it holds as part of its section. */
    unsigned locks;
    /* Set if the thread was in a section when it became the only thread of a forked child; the section is not the
     * child's. */
    int forked;
    /* Its own mutex, which begins a section. */
    untorn_mutex own;
    /* Read-write locks that it holds as part of its section, with one entry for each time that it holds one. */
    unsigned rwlocks;
    struct {
        struct beside *lock;
        int shared;
    } rwlock[RWLOCKS];
} thread;

/* Counts forks: a child must not release the locks that its parent has taken. */
static unsigned generation = 1;

static struct beside *all;

/* For pthread_cxx.c. */
unsigned untorn_pthread_wait_begins(void *mutex);
void untorn_pthread_wait_ended(void *mutex, unsigned depth, int result);

/* In hooks.c: begins a section with a mutex, if that need not wait. */
int untorn_hooks_lock_at_once(untorn_mutex *mutex);

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

static void in_child(void) {
    generation++;
    if (thread.locks) thread.forked = 1;
    thread.locks = thread.rwlocks = 0;
}

__attribute__((constructor(101))) static void watch_forks(void) {
    if (pthread_atfork(NULL, NULL, in_child)) give_up("no memory");
}

/* Called before the thread waits for a lock. Returns whether it has begun a section for the lock; within a section
 * there is nothing to do. */
static int begins(void) {
    int before = errno, begun;
    if (thread.locks || thread.forked) return 0;
    /* Fails if no live heap is open, or several are, or the thread ends, which the library logs; the lock is then an
     * ordinary lock. A shared hold leaves no mark when it is released. */
    begun = !untorn_mutex_lock_shared(&thread.own);
    errno = before;
    return begun;
}

/* Called after the wait, whether the thread has the lock or not. A section without a lock ends here. */
static void has_begun(int begun) {
    int before = errno;
    if (begun && untorn_mutex_unlock_shared(&thread.own)) give_up(untorn_error_message());
    errno = before;
}

/* Called after the thread has locked the lock: the lock becomes a part of its section, if it has one. */
static int joins(struct beside *lock, int shared, int begun) {
    int before = errno, joined = 0;
    if (begun || thread.locks) {
        joined = !(shared ? untorn_mutex_lock_shared(&lock->mutex) : untorn_mutex_lock(&lock->mutex));
        if (joined) thread.locks++;
    }
    errno = before;
    return joined;
}

/* Called before the thread unlocks the lock. */
static void leaves(struct beside *lock, int shared) {
    int before = errno;
    if (shared ? untorn_mutex_unlock_shared(&lock->mutex) : untorn_mutex_unlock(&lock->mutex)) give_up(untorn_error_message());
    thread.locks--;
    errno = before;
}

/* Like joins(), for a mutex. */
static void taken(struct beside *lock, int begun) { lock->marked = joins(lock, 0, begun) ? generation : 0; }

static void gives_back(struct beside *lock) {
    unsigned marked = lock->marked;
    lock->marked = 0;
    if (marked == generation) leaves(lock, 0);
}

/* A mutex may be recursive. */
static int has_mutex(void *mutex, int begun, int result) {
    if (result == 0 || result == EOWNERDEAD) {
        struct beside *lock = beside(mutex);
        /* The thread that held it has ended, with everything that it held. */
        if (result == EOWNERDEAD) {
            lock->depth = 0;
            lock->mutex = (untorn_mutex){{0}};
        }
        if (lock->depth++ == 0) taken(lock, begun);
    }
    has_begun(begun);
    return result;
}

#define WRAP(result, name, parameters)                                                                                     \
    result __real_##name parameters;                                                                                       \
    result __wrap_##name parameters;                                                                                       \
    result __wrap_##name parameters

WRAP(int, pthread_mutex_trylock, (pthread_mutex_t * mutex)) {
    int begun = begins();
    return has_mutex(mutex, begun, __real_pthread_mutex_trylock(mutex));
}
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);

/* Makes an empty section, after which the thread's next section can begin at once, unless it must wait again. */
static int can_begin(void) {
    int before = errno, can = !untorn_mutex_lock(&thread.own);
    if (can && untorn_mutex_unlock(&thread.own)) give_up(untorn_error_message());
    errno = before;
    return can;
}

/* Most often a mutex is free, and a section can begin at once: then the section begins after the mutex is locked.
 * Otherwise the mutex is unlocked again. */
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * mutex)) {
    int begun, result, tries;
    for (tries = 0; tries < 2 && !thread.locks && !thread.forked; tries++) {
        struct beside *lock;
        if ((result = __real_pthread_mutex_trylock(mutex)) == EBUSY) break;
        /* A mutex whose owner has died must not be unlocked. */
        if (result) return has_mutex(mutex, begins(), result);
        lock = beside(mutex);
        if (lock->depth == 0 && untorn_hooks_lock_at_once(&lock->mutex)) {
            lock->depth = 1;
            lock->marked = generation;
            thread.locks = 1;
            return 0;
        }
        __real_pthread_mutex_unlock(mutex);
        if (!can_begin()) break;
    }
    begun = begins();
    return has_mutex(mutex, begun, __real_pthread_mutex_lock(mutex));
}
WRAP(int, pthread_mutex_timedlock, (pthread_mutex_t * mutex, const struct timespec *until)) {
    int begun = begins();
    return has_mutex(mutex, begun, __real_pthread_mutex_timedlock(mutex, until));
}
WRAP(int, pthread_mutex_clocklock, (pthread_mutex_t * mutex, clockid_t clock, const struct timespec *until)) {
    int begun = begins();
    return has_mutex(mutex, begun, __real_pthread_mutex_clocklock(mutex, clock, until));
}
WRAP(int, pthread_mutex_unlock, (pthread_mutex_t * mutex)) {
    struct beside *lock = beside(mutex);
    /* A mutex that is not locked is left to pthread. */
    if (lock->depth && --lock->depth == 0) gives_back(lock);
    return __real_pthread_mutex_unlock(mutex);
}

/* A wait unlocks the mutex and locks it again. Waiting with a recursive mutex that is locked several times is a
 * mistake. */
unsigned untorn_pthread_wait_begins(void *mutex) {
    struct beside *lock = beside(mutex);
    unsigned depth = lock->depth;
    lock->depth = 0;
    if (depth) gives_back(lock);
    return depth;
}

/* The wait has locked the mutex. Unlock it again, so that the thread does not hold it while it waits to begin a
 * section: a thread that waits for a condition checks the condition again anyway. A mutex whose owner has died must
 * not be unlocked. */
void untorn_pthread_wait_ended(void *mutex, unsigned depth, int result) {
    struct beside *lock;
    int begun = 0;
    if (!depth || result == ENOTRECOVERABLE) return;
    if (!thread.locks && !thread.forked && result != EOWNERDEAD && depth == 1) {
        int again;
        if (__real_pthread_mutex_unlock(mutex)) give_up("a mutex that was waited with cannot be given back");
        begun = begins();
        again = __real_pthread_mutex_lock(mutex);
        if (again) give_up("a mutex that was waited with cannot be taken again");
    } else {
        begun = begins();
    }
    lock = beside(mutex);
    lock->depth = depth;
    taken(lock, begun);
    has_begun(begun);
}

#define WAIT(mutex, call)                                                                                                  \
    unsigned depth = untorn_pthread_wait_begins(mutex);                                                                    \
    int result = call;                                                                                                     \
    untorn_pthread_wait_ended(mutex, depth, result);                                                                               \
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

/* Readers share the entry beside the lock: each holds its mutex together with the others. */
static int has_rwlock(void *rwlock, int shared, int begun, int result) {
    if (result == 0) {
        struct beside *lock = beside(rwlock);
        if (joins(lock, shared, begun)) {
            if (thread.rwlocks == RWLOCKS) give_up("a thread has more than 256 read-write locks at the same time");
            thread.rwlock[thread.rwlocks].lock = lock;
            thread.rwlock[thread.rwlocks++].shared = shared;
        }
    }
    has_begun(begun);
    return result;
}

#define RWLOCK(name, shared, parameters, arguments)                                                                        \
    WRAP(int, pthread_rwlock_##name, parameters) {                                                                         \
        int begun = begins();                                                                                              \
        return has_rwlock(lock, shared, begun, __real_pthread_rwlock_##name arguments);                                    \
    }

RWLOCK(wrlock, 0, (pthread_rwlock_t * lock), (lock))
RWLOCK(trywrlock, 0, (pthread_rwlock_t * lock), (lock))
RWLOCK(timedwrlock, 0, (pthread_rwlock_t * lock, const struct timespec *until), (lock, until))
RWLOCK(clockwrlock, 0, (pthread_rwlock_t * lock, clockid_t clock, const struct timespec *until), (lock, clock, until))
RWLOCK(rdlock, 1, (pthread_rwlock_t * lock), (lock))
RWLOCK(tryrdlock, 1, (pthread_rwlock_t * lock), (lock))
RWLOCK(timedrdlock, 1, (pthread_rwlock_t * lock, const struct timespec *until), (lock, until))
RWLOCK(clockrdlock, 1, (pthread_rwlock_t * lock, clockid_t clock, const struct timespec *until), (lock, clock, until))

WRAP(int, pthread_rwlock_unlock, (pthread_rwlock_t * rwlock)) {
    struct beside *lock = beside(rwlock);
    unsigned n = thread.rwlocks;
    /* A lock that the thread holds in another way does not concern its section. */
    while (n > 0 && thread.rwlock[n - 1].lock != lock) n--;
    if (n > 0) {
        int shared = thread.rwlock[n - 1].shared;
        thread.rwlock[n - 1] = thread.rwlock[--thread.rwlocks];
        leaves(lock, shared);
    }
    return __real_pthread_rwlock_unlock(rwlock);
}
