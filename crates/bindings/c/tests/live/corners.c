/*
 * Corners of hooks and of locks of pthread, each of which ends with 0 if all is well:
 *
 *     corners WHICH HEAP
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "untorn.h"

#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what)) {                                                                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, untorn_error_message());                               \
            _Exit(1);                                                                                                    \
        }                                                                                                                \
    } while (0)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static untorn_heap *heap;
static char *block;
static int ends[2];
static volatile int step, thread_id;

static untorn_heap *open_heap(const char *file, unsigned flags, unsigned tracker) {
    untorn_heap_options options = {.size = sizeof options, .flags = flags | UNTORN_CREATE, .tracker = tracker};
    untorn_heap *opened = untorn_heap_open(file, &options, NULL);
    CHECK(opened);
    return opened;
}

/* A thread that holds a lock through a section is in one. */
static int is_in_section(void) { return untorn_section_abort(heap) == 0; }

static void wait_for(int n) {
    while (step < n) usleep(1000);
}

/* Until the thread waits for something that does not come by itself. */
static void wait_asleep(void) {
    char name[64], text[512];
    int waits = 0;
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread_id);
    while (waits < 20) {
        FILE *file = fopen(name, "r");
        size_t n = fread(text, 1, sizeof text - 1, file);
        text[n] = 0;
        fclose(file);
        waits = strrchr(text, ')')[2] == 'S' ? waits + 1 : 0;
        usleep(1000);
    }
}

/* Before main, as a constructor of a static object does: locks, and a heap with the tracker told. */
__attribute__((constructor)) static void early(void) {
    const char *file = getenv("EARLY");
    CHECK(!pthread_mutex_lock(&mutex) && !pthread_mutex_unlock(&mutex));
    CHECK(!pthread_rwlock_wrlock(&rwlock) && !pthread_rwlock_unlock(&rwlock));
    if (!file) return;
    heap = open_heap(file, 0, UNTORN_TRACKER_EXPLICIT);
    block = untorn_heap_aligned_alloc(heap, 64, 4096);
    CHECK(!untorn_heap_set_root(heap, "block", block, "block", 4096, 64, 1) && !untorn_heap_commit(heap));
}

static char *found(const char *file) {
    void *root = NULL;
    heap = open_heap(file, 0, UNTORN_TRACKER_EXPLICIT);
    CHECK(untorn_heap_root(heap, "block", "block", 4096, 64, 1, &root) >= 0 && root);
    return root;
}

static void early_told(const char *file) {
    block[100] = 7;
    CHECK(!untorn_heap_commit(heap) && !untorn_heap_close(heap));
    CHECK(found(file)[100] == 7);
}

static void *reads(void *none) {
    thread_id = (int)syscall(SYS_gettid);
    step = 1;
    CHECK(read(ends[0], block, 5) == 5);
    return none;
}

/* Data that comes behind a commit, by a call that began before it. */
static void blocked_read(const char *file) {
    pthread_t thread;
    CHECK(!pipe(ends) && !pthread_create(&thread, NULL, reads, NULL));
    wait_for(1);
    wait_asleep();
    CHECK(!untorn_heap_commit(heap));
    CHECK(write(ends[1], "later", 5) == 5 && !pthread_join(thread, NULL));
    CHECK(!untorn_heap_commit(heap) && !untorn_heap_close(heap));
    CHECK(!memcmp(found(file), "later", 5));
}

/* More mappings one after the other than the hooks know at a time, each larger than the one before. */
static void one_after_the_other(const char *file) {
    CHECK(!untorn_heap_close(heap));
    for (int n = 0; n < 200; n++) {
        untorn_heap_options options = {.size = sizeof options, .tracker = UNTORN_TRACKER_EXPLICIT};
        void *root = NULL;
        options.address_space = (64ull << 30) + ((uint64_t)n << 22);
        CHECK(heap = untorn_heap_open(file, &options, NULL));
        CHECK(untorn_heap_root(heap, "block", "block", 4096, 64, 1, &root) >= 0 && root);
        CHECK(((char *)root)[200] == (char)n);
        ((char *)root)[200] = (char)(n + 1);
        CHECK(!untorn_heap_commit(heap) && !untorn_heap_close(heap));
    }
}

static void *commits(void *none) {
    thread_id = (int)syscall(SYS_gettid);
    step = 1;
    CHECK(!untorn_heap_commit(heap));
    return none;
}
static void *locks(void *none) {
    thread_id = (int)syscall(SYS_gettid);
    step = 2;
    CHECK(!pthread_mutex_lock(&mutex) && is_in_section() && !pthread_mutex_unlock(&mutex));
    return none;
}

/* A commit waits for a guard, whose thread waits for a lock, which another thread takes that waits for the commit. */
static void commit_that_waits(const char *file) {
    pthread_t committer, other;
    heap = open_heap(file, UNTORN_HEAP_LIVE | UNTORN_HEAP_CUTS_WAIT, 0);
    CHECK(!untorn_heap_begin(heap) && !pthread_create(&committer, NULL, commits, NULL));
    wait_for(1);
    wait_asleep();
    CHECK(!pthread_create(&other, NULL, locks, NULL));
    wait_for(2);
    wait_asleep();
    CHECK(!pthread_mutex_lock(&mutex) && !pthread_mutex_unlock(&mutex) && !untorn_heap_end(heap));
    CHECK(!pthread_join(committer, NULL) && !pthread_join(other, NULL) && !untorn_heap_close(heap));
}

static void *reader(void *none) {
    CHECK(!pthread_rwlock_rdlock(&rwlock));
    step = 1;
    wait_for(2);
    CHECK(is_in_section() && !pthread_rwlock_unlock(&rwlock) && !is_in_section());
    return none;
}

/* A reader that has the lock from before the heap was open gives back its own hold, and not another's. */
static void early_reader(const char *file) {
    pthread_t thread;
    CHECK(!pthread_rwlock_rdlock(&rwlock));
    heap = open_heap(file, UNTORN_HEAP_LIVE, 0);
    CHECK(!pthread_create(&thread, NULL, reader, NULL));
    wait_for(1);
    CHECK(!pthread_mutex_lock(&mutex) && is_in_section());
    CHECK(!pthread_rwlock_unlock(&rwlock) && is_in_section() && !pthread_mutex_unlock(&mutex) && !is_in_section());
    step = 2;
    CHECK(!pthread_join(thread, NULL) && !untorn_heap_close(heap));
}

/* Timed locks make sections, and a lock that times out leaves no section behind. */
static void clocks(const char *file) {
    struct timespec until;
    pthread_rwlock_t *lock = &rwlock;
    heap = open_heap(file, UNTORN_HEAP_LIVE, 0);
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &until));
    until.tv_sec += 60;
    CHECK(!pthread_rwlock_clockwrlock(lock, CLOCK_MONOTONIC, &until) && is_in_section());
    CHECK(pthread_rwlock_trywrlock(lock) && is_in_section());
    CHECK(!pthread_rwlock_unlock(lock) && !is_in_section());
    CHECK(!pthread_rwlock_clockrdlock(lock, CLOCK_MONOTONIC, &until) && is_in_section());
    CHECK(!pthread_rwlock_tryrdlock(lock) && is_in_section());
    CHECK(!pthread_rwlock_unlock(lock) && is_in_section() && !pthread_rwlock_unlock(lock) && !is_in_section());
    CHECK(!pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until) && is_in_section());
    CHECK(pthread_mutex_trylock(&mutex) && is_in_section() && !pthread_mutex_unlock(&mutex) && !is_in_section());
    CHECK(!untorn_heap_close(heap));
}

/* A child releases the locks that its parent has taken, and takes locks. */
static void forked(const char *file) {
    int status;
    pid_t child;
    heap = open_heap(file, UNTORN_HEAP_LIVE, 0);
    CHECK(!pthread_mutex_lock(&mutex) && !pthread_rwlock_rdlock(&rwlock));
    child = fork();
    if (child == 0) {
        CHECK(!pthread_rwlock_unlock(&rwlock) && !pthread_mutex_unlock(&mutex));
        CHECK(!pthread_mutex_lock(&mutex) && !pthread_mutex_unlock(&mutex));
        _Exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_in_section() && !pthread_rwlock_unlock(&rwlock) && !pthread_mutex_unlock(&mutex) && !is_in_section());
    for (int n = 0; n < 3; n++) CHECK(!pthread_mutex_lock(&mutex) && is_in_section() && !pthread_mutex_unlock(&mutex));
    child = fork();
    if (child == 0) {
        CHECK(!pthread_mutex_lock(&mutex) && !is_in_section() && !pthread_mutex_unlock(&mutex));
        CHECK(!pthread_rwlock_rdlock(&rwlock) && !is_in_section() && !pthread_rwlock_unlock(&rwlock));
        _Exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!untorn_heap_close(heap));
}

static void *dies(void *none) {
    CHECK(!pthread_mutex_lock(none));
    return NULL;
}

/* The owner of a robust mutex ended, before a heap was open. */
static void owner_died(const char *file) {
    pthread_mutexattr_t robust;
    pthread_mutex_t lock;
    pthread_t thread;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    CHECK(!pthread_mutex_init(&lock, &robust));
    CHECK(!pthread_create(&thread, NULL, dies, &lock) && !pthread_join(thread, NULL));
    heap = open_heap(file, UNTORN_HEAP_LIVE, 0);
    CHECK(pthread_mutex_lock(&lock) && is_in_section() && !pthread_mutex_consistent(&lock));
    CHECK(!pthread_mutex_unlock(&lock) && !is_in_section());
    CHECK(!untorn_heap_close(heap));
}

static const struct {
    const char *name;
    void (*run)(const char *);
} all[] = {
    {"early_told", early_told},   {"blocked_read", blocked_read}, {"one_after_the_other", one_after_the_other},
    {"commit_that_waits", commit_that_waits}, {"early_reader", early_reader}, {"clocks", clocks},
    {"forked", forked},           {"owner_died", owner_died},
};

int main(int argc, char **argv) {
    /* What waits for ever ends. */
    alarm(60);
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        if (argc == 3 && !strcmp(argv[1], all[n].name)) {
            all[n].run(argv[2]);
            return 0;
        }
    }
    return 2;
}
