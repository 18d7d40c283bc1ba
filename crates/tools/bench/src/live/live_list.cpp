/*
 * A lock-free skip list (examples/heap/skip_list). With -DPLAIN in ordinary memory, else in a live heap; nothing else differs.
 *
 *     live_list HEAP WORK KEYS THREADS MILLISECONDS     prints "ready", then operations per second
 *
 * WORK: update (adds to the number of a random key), lookup, churn (removes a random key and puts it in again), paper (sets a
 * counter of the thread, adds to the number of a random key, sets another counter of the thread). After a kill, paper checks the
 * list that is left (paper_iteration.hpp), completes it, and goes on with it.
 */

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "live_memory.hpp"
#include "paper_iteration.hpp"
#include "skip_list.hpp"

static std::atomic<long> &number_of(const skip_list &list, long key) {
    skip_list::node *one = list.find(key);
    if (!one) std::abort();
    return one->number;
}

/* Checks the list that a killed process has left, and completes the iterations of its threads. */
static void go_on(const skip_list &list, long keys, long threads) {
    left_by_kill all(threads);
    list.for_each([&](const skip_list::node &one) {
        const long counter = one.key - keys - 1;
        if (counter < 0) {
            all.added += one.number;
        } else {
            (counter % 2 ? all.threads[counter / 2].second : all.threads[counter / 2].first) = one.number;
        }
    });
    all.check();
    number_of(list, 1) += all.firsts() - all.added;
    for (long thread = 0; thread < threads; thread++) {
        number_of(list, keys + 2 * thread + 2) = all.threads[thread].first;
    }
}

int main(int argc, char **arguments) {
    if (argc != 6) return 2;
    const char *work = arguments[2];
    const long keys = std::atol(arguments[3]), threads = std::atol(arguments[4]), time = std::atol(arguments[5]);
    open_memory(arguments[1], 0);
    skip_list *const old = found<skip_list>("list");
    skip_list &list = *(old ? old : new (allocate(sizeof(skip_list))) skip_list(allocate));
    const auto next = [](unsigned long &random) { random ^= random << 13, random ^= random >> 7, random ^= random << 17; };
    if (old) {
        go_on(list, keys, threads);
    } else {
        unsigned long random = 88172645463325252ul;
        /* The last two for each thread are its counters. */
        for (long key = 1; key <= keys + 2 * threads; key++) {
            next(random);
            list.put(skip_list::make(allocate, key, 0, skip_list::height_of(random >> 8)));
        }
        keep("list", &list);
    }
    std::atomic<bool> go(false), stop(false);
    std::atomic<long> sum(0), seen(0);
    std::vector<std::thread> workers;
    for (long thread = 0; thread < threads; thread++) {
        workers.emplace_back([&, thread] {
            unsigned long random = 88172645463325252ul + thread * 7919;
            const long before = work[0] == 'p' ? number_of(list, keys + 2 * thread + 1).load() : 0;
            long done = before, found = 0;
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
                        iterate_once(
                            done + 1, key,
                            [&](int which, long n) { number_of(list, keys + 2 * thread + which + 1) = n; },
                            [&](long key) { number_of(list, key) += 1; });
                        break;
                    }
                    case 'l': {
                        const skip_list::node *one = list.find(key);
                        found += one ? one->number.load() : 0;
                        break;
                    }
                    default:
                        if (list.remove(key)) list.put(skip_list::make(allocate, key, 0, skip_list::height_of(random >> 8)));
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
