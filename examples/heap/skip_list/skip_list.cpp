/*
 * A lock-free skip list that goes on after the process was killed, at any moment: nothing in it was done for that. Compiled by
 * any compiler, without hooks. CUT_EVERY_MS makes cuts in the background, for power cuts.
 *
 *     c++ -std=c++17 -O2 skip_list.cpp -o skip_list $(pkg-config --cflags --libs untorn)
 *     ./skip_list FILE THREADS [CUT_EVERY_MS]       looks whether all is well, then changes the list until it is killed
 *
 * Each thread puts its numbers in, in order, notes in each what another thread had put in by then, and removes those that are
 * older than the last hundred. So at every moment the numbers of a thread are without gaps, and nothing is there without what
 * it has seen.
 */

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <untorn.hpp>

#include "skip_list.hpp"

constexpr long threads_most = 16, kept = 100;

static untorn_heap *heap;

static void *memory(std::size_t bytes) {
    void *block = untorn_heap_malloc(heap, bytes);
    if (!block) std::cerr << untorn_error_message() << "\n", std::_Exit(1);
    return block;
}

static void wrong(const char *what, long thread, long number) {
    std::cerr << "the list is wrong: " << what << ", thread " << thread << ", number " << number << "\n";
    std::exit(1);
}

/* The last number of each thread. */
static std::vector<long> check(const skip_list &list) {
    std::vector<long> last(threads_most), count(threads_most);
    long before = 0;
    list.for_each([&](const skip_list::node &one) {
        const long thread = one.key % threads_most, number = one.key / threads_most;
        if (one.key <= before) wrong("out of order", thread, number);
        if (last[thread] && number != last[thread] + 1) wrong("a number is missing", thread, number);
        if (list.find(one.key) != &one) wrong("not found", thread, number);
        before = one.key, last[thread] = number, count[thread]++;
    });
    list.for_each([&](const skip_list::node &one) {
        const long other = one.number % threads_most, seen = one.number / threads_most;
        if (last[other] < seen) wrong("what it has seen is not there", one.key % threads_most, one.key / threads_most);
    });
    for (long thread = 0; thread < threads_most; thread++) {
        const long most = last[thread] < kept ? last[thread] : kept;
        if (count[thread] != most && count[thread] != most + 1) wrong("lost", thread, last[thread]);
    }
    return last;
}

int main(int argc, char **arguments) {
    const long threads = argc >= 3 ? std::atol(arguments[2]) : 0;
    if (threads < 1 || threads > threads_most) {
        std::cerr << "usage: skip_list FILE THREADS [CUT_EVERY_MS] (at most " << threads_most << " threads)\n";
        return 2;
    }
    try {
        untorn::heap_options how;
        how.flags = UNTORN_HEAP_LIVE;
        how.cut_every_ms = argc >= 4 ? std::atoi(arguments[3]) : 0;
        auto opened = untorn::heap::open_or_create(arguments[1], how);
        heap = opened.handle();
        void *found;
        const auto is_there = untorn_heap_root(heap, "list", "skip_list", sizeof(skip_list), alignof(skip_list), 1, &found);
        if (is_there < 0) throw untorn::error();
        if (!is_there) {
            found = new (memory(sizeof(skip_list))) skip_list(memory);
            if (untorn_heap_set_root(heap, "list", found, "skip_list", sizeof(skip_list), alignof(skip_list), 1))
                throw untorn::error();
        }
        skip_list &list = *static_cast<skip_list *>(found);
        const std::vector<long> last = check(list);
        list.recover([](skip_list::node *one) { untorn_heap_free(heap, one); });
        check(list);
        const char *begun[] = {"", "new", "went-on", "last-cut"};
        std::cout << "begun " << begun[untorn_heap_live_start(heap)] << "\n";
        for (long thread = 0; thread < threads_most; thread++) std::cout << "has " << thread << " " << last[thread] << "\n";
        std::cout << "ready" << std::endl;
        std::vector<std::atomic<long>> done(threads);
        std::vector<std::thread> workers;
        for (long thread = 0; thread < threads; thread++) {
            workers.emplace_back([&, thread] {
                const long other = (thread + 1) % threads;
                std::uint64_t random = 0x9e3779b97f4a7c15u * (thread + 1);
                done[thread] = last[thread];
                if (last[thread] > kept) list.remove((last[thread] - kept) * threads_most + thread);
                for (long number = last[thread] + 1;; number++) {
                    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                    const long seen = done[other] * threads_most + other;
                    const long key = number * threads_most + thread;
                    if (!list.put(skip_list::make(memory, key, seen, skip_list::height_of(random)))) wrong("there", thread, number);
                    done[thread] = number;
                    if (number > kept && !list.remove(key - kept * threads_most)) wrong("gone", thread, number - kept);
                    if (number % 16 == 0) std::printf("put %ld %ld\n", thread, number), std::fflush(stdout);
                }
            });
        }
        for (std::thread &worker : workers) worker.join();
    } catch (const untorn::error &e) {
        std::cerr << "skip_list: " << e.what() << "\n";
        return 1;
    }
}
