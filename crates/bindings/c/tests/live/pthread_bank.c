/*
 * A typical program: pthread mutexes, condition variables and read-write locks, without any code for sections. Its
 * data is in a live heap. Checks the data, then runs until it is killed.
 *
 *     pthread_bank HEAP THREADS
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "untorn.h"

#define ACCOUNTS 32
#define QUEUE 8
#define THREADS 16

struct bank {
    long coins[ACCOUNTS];
    long transfers[THREADS];
    /* A queue: the items that were put in and not yet taken, and the sums. */
    long queue[QUEUE], length, put, taken, put_sum, taken_sum;
    /* Twice the same. */
    long pair[2];
    /* Each a step behind the other within a recursive lock. */
    long steps[2];
    char note[2][64];
};

static pthread_mutex_t locks[ACCOUNTS], queue_lock = PTHREAD_MUTEX_INITIALIZER, step_lock;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t pair_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct bank *bank;

static void wrong(const char *what) {
    fprintf(stderr, "the bank is wrong: %s\n", what);
    _Exit(1);
}

static void check(void) {
    long sum = 0, queued = 0;
    for (int i = 0; i < ACCOUNTS; i++) sum += bank->coins[i];
    for (long i = 0; i < bank->length; i++) queued += bank->queue[i];
    if (sum) wrong("coins");
    if (bank->length < 0 || bank->length > QUEUE || bank->put - bank->taken != bank->length) wrong("queue");
    if (bank->put_sum - bank->taken_sum != queued) wrong("sum of the queue");
    if (bank->pair[0] != bank->pair[1] || strcmp(bank->note[0], bank->note[1])) wrong("pair");
    if (bank->steps[0] != bank->steps[1]) wrong("steps");
}

static void step(int n) {
    pthread_mutex_lock(&step_lock);
    bank->steps[n]++;
    if (n == 0) step(1);
    pthread_mutex_unlock(&step_lock);
}

static void *work(void *argument) {
    long thread = (long)argument;
    unsigned seed = (unsigned)thread * 7919 + 1;
    for (;;) {
        int from = rand_r(&seed) % ACCOUNTS, to = rand_r(&seed) % ACCOUNTS, first, second;
        if (from == to) continue;
        first = from < to ? from : to, second = from < to ? to : from;
        pthread_mutex_lock(&locks[first]);
        if (pthread_mutex_trylock(&locks[second])) pthread_mutex_lock(&locks[second]);
        bank->coins[from] -= 5;
        bank->coins[to] += 5;
        bank->transfers[thread]++;
        pthread_mutex_unlock(&locks[first]);
        pthread_mutex_unlock(&locks[second]);

        pthread_mutex_lock(&queue_lock);
        if (thread % 2) {
            while (!bank->length) pthread_cond_wait(&not_empty, &queue_lock);
            bank->taken_sum += bank->queue[0];
            memmove(bank->queue, bank->queue + 1, sizeof(long) * (size_t)--bank->length);
            bank->taken++;
            pthread_cond_signal(&not_full);
        } else {
            while (bank->length == QUEUE) pthread_cond_wait(&not_full, &queue_lock);
            bank->queue[bank->length++] = rand_r(&seed) % 100;
            bank->put_sum += bank->queue[bank->length - 1];
            bank->put++;
            pthread_cond_signal(&not_empty);
        }
        pthread_mutex_unlock(&queue_lock);

        if (rand_r(&seed) % 4) {
            pthread_rwlock_rdlock(&pair_lock);
            if (bank->pair[0] != bank->pair[1]) wrong("pair, while it runs");
            pthread_rwlock_unlock(&pair_lock);
        } else {
            pthread_rwlock_wrlock(&pair_lock);
            bank->pair[0]++;
            snprintf(bank->note[0], sizeof bank->note[0], "%ld times, by %ld", bank->pair[0], thread);
            strcpy(bank->note[1], bank->note[0]);
            bank->pair[1]++;
            pthread_rwlock_unlock(&pair_lock);
        }
        step(0);
        if (bank->transfers[thread] % 16 == 0) printf("did %ld %ld\n", thread, bank->transfers[thread]), fflush(stdout);
    }
    return NULL;
}

int main(int argc, char **argv) {
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_HEAP_LIVE | UNTORN_CREATE};
    int threads = argc == 3 ? atoi(argv[2]) : 0;
    untorn_heap *heap = threads ? untorn_heap_open(argv[1], &options, NULL) : NULL;
    pthread_mutexattr_t recursive;
    pthread_t started[THREADS];
    void *found = NULL;
    if (!heap || untorn_heap_root(heap, "bank", "bank", sizeof *bank, 64, 1, &found) < 0) {
        fprintf(stderr, "%s\n", untorn_error_message());
        return 1;
    }
    if (!found) {
        found = untorn_heap_aligned_alloc(heap, 64, (sizeof *bank + 63) / 64 * 64);
        memset(found, 0, sizeof *bank);
        if (untorn_heap_set_root(heap, "bank", found, "bank", sizeof *bank, 64, 1)) return 1;
    }
    bank = found;
    check();
    printf("begun %d\n", untorn_heap_live_start(heap));
    for (int i = 0; i < THREADS; i++) printf("has %d %ld\n", i, bank->transfers[i]);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < ACCOUNTS; i++) pthread_mutex_init(&locks[i], NULL);
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&step_lock, &recursive);
    for (long i = 0; i < threads; i++) pthread_create(&started[i], NULL, work, (void *)i);
    pthread_join(started[0], NULL);
    return 0;
}
