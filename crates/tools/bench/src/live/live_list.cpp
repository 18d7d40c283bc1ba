/*
 * A lock-free skip list (examples/heap/skip_list). With -DPLAIN in ordinary memory, else in a live heap; nothing else differs.
 *
 *     live_list HEAP WORK KEYS THREADS MILLISECONDS     prints operations per second
 *
 * WORK: update (adds to the number of a random key), lookup, churn (removes a random key and puts it in again), paper (sets a
 * counter of the thread, adds to the number of a random key, sets another counter of the thread).
 */

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "skip_list.hpp"

#ifdef PLAIN
static void *memory(std::size_t bytes) { return std::malloc(bytes); }
#else
#include "untorn.hpp"
static untorn_heap *heap;
static void *memory(std::size_t bytes) {
    void *block = untorn_heap_malloc(heap, bytes);
    if (!block) std::abort();
    return block;
}
#endif

int main(int argc, char **arguments) {
    if (argc != 6) return 2;
    const char *work = arguments[2];
    const long keys = std::atol(arguments[3]), threads = std::atol(arguments[4]), time = std::atol(arguments[5]);
#ifndef PLAIN
    untorn::heap_options how;
    how.flags = UNTORN_HEAP_LIVE;
    auto opened = untorn::heap::open_or_create(arguments[1], how);
    heap = opened.handle();
#endif
    skip_list &list = *new (memory(sizeof(skip_list))) skip_list(memory);
    unsigned long random = 88172645463325252ul;
    const auto next = [](unsigned long &random) { random ^= random << 13, random ^= random >> 7, random ^= random << 17; };
    /* The last two for each thread are its counters. */
    for (long key = 1; key <= keys + 2 * threads; key++) {
        next(random);
        list.put(skip_list::make(memory, key, 0, skip_list::height_of(random >> 8)));
    }
    std::atomic<bool> go(false), stop(false);
    std::atomic<long> sum(0), seen(0);
    std::vector<std::thread> workers;
    for (long thread = 0; thread < threads; thread++) {
        workers.emplace_back([&, thread] {
            unsigned long random = 88172645463325252ul + thread * 7919;
            long done = 0, found = 0;
            while (!go) std::this_thread::yield();
            /* At least once: on a busy machine a thread may begin when the time is over. */
            do {
                for (int n = 0; n < 64; n++, done++) {
                    next(random);
                    const long key = random % keys + 1;
                    switch (work[0]) {
                    case 'u': {
                        skip_list::node *one = list.find(key);
                        if (one) one->number.fetch_add(1);
                        break;
                    }
                    case 'p': {
                        const auto set = [&](long counter) {
                            skip_list::node *one = list.find(keys + 2 * thread + counter);
                            if (one) one->number.store(done);
                        };
                        set(1);
                        skip_list::node *one = list.find(key);
                        if (one) one->number.fetch_add(1);
                        set(2);
                        break;
                    }
                    case 'l': {
                        const skip_list::node *one = list.find(key);
                        found += one ? one->number.load() : 0;
                        break;
                    }
                    default:
                        if (list.remove(key)) list.put(skip_list::make(memory, key, 0, skip_list::height_of(random >> 8)));
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
