/*
 * The hash map of Procrastination Beats Prevention (HPL-2014-70), with a lock for each 1,000 buckets. With -DPLAIN in ordinary
 * memory under std::mutex, else in a live heap under untorn::mutex.
 *
 *     live_map HEAP WORK KEYS THREADS MILLISECONDS [CUT_EVERY_MS]     prints operations per second
 *
 * WORK: update (of a random key), lookup, churn (removes a random key and puts it in again), inside and outside (of a section of
 * 16 such operations: allocates a block, stores to it, and frees the one before), paper (sets a counter of the thread, adds to the
 * number of a random key, sets another counter of the thread: three sections).
 */

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#ifdef PLAIN
using mutex = std::mutex;
static void *allocate(std::size_t bytes) { return std::malloc(bytes); }
static void release(void *block) { std::free(block); }
#else
#include "untorn.hpp"
using mutex = untorn::mutex;
static untorn_heap *heap;
static void *allocate(std::size_t bytes) {
    void *block = untorn_heap_malloc(heap, bytes);
    if (!block) std::abort();
    return block;
}
static void release(void *block) { untorn_heap_free(heap, block); }
#endif

constexpr std::size_t buckets_of_a_lock = 1000;

struct entry {
    entry *next;
    long key, value, count;
};

static entry **buckets;
static std::size_t bucket_count;
static std::vector<mutex> *locks;

static std::size_t bucket_of(long key) { return (std::size_t)key * 0x9e3779b97f4a7c15u % bucket_count; }

static void put(long key) {
    const std::size_t at = bucket_of(key);
    const std::lock_guard<mutex> guard((*locks)[at / buckets_of_a_lock]);
    for (entry *one = buckets[at]; one; one = one->next) {
        if (one->key == key) {
            one->value += key;
            one->count++;
            return;
        }
    }
    entry *made = static_cast<entry *>(allocate(sizeof(entry)));
    made->key = key;
    made->value = made->count = 0;
    made->next = buckets[at];
    buckets[at] = made;
}

static void set(long key, long value) {
    const std::size_t at = bucket_of(key);
    const std::lock_guard<mutex> guard((*locks)[at / buckets_of_a_lock]);
    for (entry *one = buckets[at]; one; one = one->next) {
        if (one->key == key) {
            one->value = value;
            return;
        }
    }
}

static long get(long key) {
    const std::size_t at = bucket_of(key);
    const std::lock_guard<mutex> guard((*locks)[at / buckets_of_a_lock]);
    for (entry *one = buckets[at]; one; one = one->next) {
        if (one->key == key) return one->value;
    }
    return 0;
}

static void remove_key(long key) {
    const std::size_t at = bucket_of(key);
    const std::lock_guard<mutex> guard((*locks)[at / buckets_of_a_lock]);
    for (entry **one = &buckets[at]; *one; one = &(*one)->next) {
        if ((*one)->key == key) {
            entry *gone = *one;
            *one = gone->next;
            release(gone);
            return;
        }
    }
}

constexpr int blocks_of_a_section = 16;

/* Allocates and frees some blocks; `blocks` is this thread's own. */
static void allocate_some(void **blocks, mutex *lock) {
    if (lock) lock->lock();
    for (int n = 0; n < blocks_of_a_section; n++) {
        void *made = allocate(64);
        std::memset(made, n, 8);
        if (blocks[n]) release(blocks[n]);
        blocks[n] = made;
    }
    if (lock) lock->unlock();
}

int main(int argc, char **arguments) {
    if (argc != 6 && argc != 7) return 2;
    const char *work = arguments[2];
    const long keys = std::atol(arguments[3]), threads = std::atol(arguments[4]), time = std::atol(arguments[5]);
    bucket_count = 2 * keys;
#ifdef PLAIN
    buckets = static_cast<entry **>(std::calloc(bucket_count, sizeof(entry *)));
#else
    untorn::heap_options how;
    how.flags = UNTORN_HEAP_LIVE;
    how.cut_every_ms = argc == 7 ? std::atoi(arguments[6]) : 0;
    auto opened = untorn::heap::open_or_create(arguments[1], how);
    heap = opened.handle();
    buckets = static_cast<entry **>(untorn_heap_calloc(heap, bucket_count, sizeof(entry *)));
#endif
    std::vector<mutex> all((bucket_count + buckets_of_a_lock - 1) / buckets_of_a_lock);
    locks = &all;
    /* The last two for each thread are its counters. */
    for (long key = 0; key < keys + 2 * threads; key++) put(key);
#ifndef PLAIN
    if (untorn_heap_commit(heap)) std::abort();
#endif
    std::atomic<bool> go(false), stop(false);
    std::atomic<long> sum(0), seen(0);
    std::vector<std::thread> workers;
    for (long thread = 0; thread < threads; thread++) {
        workers.emplace_back([&, thread] {
            unsigned long random = 88172645463325252ul + thread * 7919;
            void *blocks[blocks_of_a_section] = {};
            mutex own;
            mutex *const lock = work[0] == 'i' ? &own : nullptr;
            long done = 0, found = 0;
            while (!go) std::this_thread::yield();
            /* At least once: on a busy machine a thread may begin when the time is over. */
            do {
                if (work[0] == 'i' || work[0] == 'o') {
                    allocate_some(blocks, lock);
                    done += blocks_of_a_section;
                    continue;
                }
                for (int n = 0; n < 64; n++, done++) {
                    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                    const long key = random % keys;
                    switch (work[0]) {
                    case 'u': put(key); break;
                    case 'l': found += get(key); break;
                    case 'p': set(keys + 2 * thread, done), put(key), set(keys + 2 * thread + 1, done); break;
                    default: remove_key(key), put(key);
                    }
                }
            } while (!stop);
            sum += done;
            seen += found;
        });
    }
    const auto begun = std::chrono::steady_clock::now();
    go = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(time));
    stop = true;
    for (std::thread &worker : workers) worker.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    std::printf("%.0f %ld\n", sum / took.count(), seen.load() & 1);
    std::fflush(stdout);
    /* As if it was killed: the last cut is no part of this. */
    std::_Exit(0);
}
