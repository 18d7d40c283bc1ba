/*
 * The hash map of Procrastination Beats Prevention (HPL-2014-70), with a lock for each 1,000 buckets. live_memory.hpp says in
 * which memory, and under which locks.
 *
 *     live_map HEAP WORK KEYS THREADS MILLISECONDS [CUT_EVERY_MS]     prints "ready", then operations per second
 *
 * WORK: update (of a random key), lookup, churn (removes a random key and puts it in again), inside and outside (of a section of
 * 16 such operations: allocates a block, stores to it, and frees the one before), paper (sets a counter of the thread, adds to the
 * number of a random key, sets another counter of the thread: three sections). After a kill, paper checks the map that is left
 * (paper_iteration.hpp), completes it, and goes on with it.
 */

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "live_memory.hpp"
#include "paper_iteration.hpp"

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
            log_old(&one->value, 2 * sizeof(long));
            one->value += key;
            wait_a_little();
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
            log_old(&one->value, sizeof(long));
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

/* The map that a killed process has left: the counters of its threads, and the additions to its numbers. */
static left_by_kill left(long keys, long threads) {
    left_by_kill all(threads);
    for (std::size_t at = 0; at < bucket_count; at++) {
        for (const entry *one = buckets[at]; one; one = one->next) {
            const long counter = one->key - keys;
            if (counter >= 0) {
                (counter % 2 ? all.threads[counter / 2].second : all.threads[counter / 2].first) = one->value;
            } else if (one->value == one->key * one->count) {
                all.added += one->count;
            } else {
                left_by_kill::violated(3, one->value, one->count);
            }
        }
    }
    return all;
}

/* Checks the map that a killed process has left, and completes the iterations of its threads. */
static void go_on(long keys, long threads) {
    const left_by_kill all = left(keys, threads);
    all.check();
    for (long more = all.firsts() - all.added; more > 0; more--) put(0);
    for (long thread = 0; thread < threads; thread++) set(keys + 2 * thread + 1, all.threads[thread].first);
}

int main(int argc, char **arguments) {
    if (argc != 6 && argc != 7) return 2;
    const char *work = arguments[2];
    const long keys = std::atol(arguments[3]), threads = std::atol(arguments[4]), time = std::atol(arguments[5]);
    bucket_count = 2 * keys;
    open_memory(arguments[1], (bucket_count / 2 + 2 * threads) * sizeof(entry) + bucket_count * sizeof(entry *),
                argc == 7 ? std::atoi(arguments[6]) : 0);
    std::vector<mutex> all((bucket_count + buckets_of_a_lock - 1) / buckets_of_a_lock);
    locks = &all;
    buckets = found<entry *>("buckets");
    if (buckets) {
        go_on(keys, threads);
    } else {
        buckets = static_cast<entry **>(allocate_zeroed(bucket_count * sizeof(entry *)));
        /* The last two for each thread are its counters. */
        for (long key = 0; key < keys + 2 * threads; key++) put(key);
        keep("buckets", buckets);
        if (!commit()) std::abort();
    }
    begin_logging();
    std::atomic<bool> go(false), stop(false);
    std::atomic<long> sum(0), seen(0);
    std::vector<std::thread> workers;
    for (long thread = 0; thread < threads; thread++) {
        workers.emplace_back([&, thread] {
            unsigned long random = 88172645463325252ul + thread * 7919;
            void *blocks[blocks_of_a_section] = {};
            mutex own;
            mutex *const lock = work[0] == 'i' ? &own : nullptr;
            const long before = work[0] == 'p' ? get(keys + 2 * thread) : 0;
            long done = before, found = 0;
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
                    case 'p':
                        iterate_once(
                            done + 1, key, [&](int which, long n) { set(keys + 2 * thread + which, n); }, put);
                        break;
                    default: remove_key(key), put(key);
                    }
                }
            } while (!stop);
            sum += done - before;
            seen += found;
        });
    }
    std::puts("ready");
    std::fflush(stdout);
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
