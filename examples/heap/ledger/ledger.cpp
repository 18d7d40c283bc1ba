/*
 * A ledger that goes on after the process was killed, at any moment: std::map and std::unordered_map in a live heap, under
 * ordinary locks, by several threads. Nothing is written to disk for that; a cut every second is for power cuts.
 *
 *     untorn-c++ -std=c++17 -O2 ledger.cpp -o ledger
 *     ./ledger FILE THREADS       looks whether all is well, then transfers until it is killed
 *
 * Each transfer is a critical section: it is there whole after a kill, or not at all. It gives the lock of the journal back
 * first, so that others may see it before it has ended. If it never ends, they are undone with it: what is said of a transfer
 * waits until that cannot be any more.
 */

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <untorn.hpp>

namespace in_heap = untorn::in_heap;

constexpr int accounts = 64, threads_most = 16;

struct ledger {
    /* What each account has: the sum is 0. */
    long coins[accounts];
    /* Transfers of each thread. */
    long done[threads_most];
    untorn::mutex lock_of[accounts];
    /* The last transfers, by number, and how much was moved in them: the same keys in both. */
    untorn::mutex journal;
    long next;
    in_heap::map<long, long> by_number;
    in_heap::unordered_map<long, untorn::string> texts;

    using allocator_type = untorn::scoped_allocator<char>;
    explicit ledger(const allocator_type &memory)
        : coins(), done(), next(0), by_number(memory), texts(memory) {}
    UNTORN_LAYOUT(ledger, coins, done, lock_of, journal, next, by_number, texts);
};

static void check(const ledger &all) {
    long sum = 0, moved = 0;
    for (const long coins : all.coins) sum += coins;
    for (const long done : all.done) moved += done;
    bool right = sum == 0 && moved == all.next && all.by_number.size() == all.texts.size();
    for (const auto &[number, coins] : all.by_number) {
        const auto text = all.texts.find(number);
        right = right && text != all.texts.end() && text->second.c_str() == std::to_string(number) + " moved " + std::to_string(coins) + " coins";
    }
    if (!right) {
        std::cerr << "the ledger is wrong: " << sum << " coins, " << moved << " of " << all.next << " transfers\n";
        std::exit(1);
    }
}

static long transfer(ledger &all, int thread, std::mt19937 &random) {
    int from = random() % accounts, to = random() % accounts;
    if (from == to) to = (to + 1) % accounts;
    const long coins = random() % 100;
    const std::scoped_lock both(all.lock_of[from], all.lock_of[to]);
    all.coins[from] -= coins;
    all.coins[to] += coins;
    const std::lock_guard<untorn::mutex> guard(all.journal);
    const long number = all.next++;
    all.by_number[number] = coins;
    all.texts[number] = (std::to_string(number) + " moved " + std::to_string(coins) + " coins").c_str();
    if (all.by_number.size() > 500) {
        const long oldest = all.by_number.begin()->first;
        all.texts.erase(oldest);
        all.by_number.erase(oldest);
    }
    return ++all.done[thread];
}

int main(int argc, char **arguments) {
    const int threads = argc == 3 ? std::atoi(arguments[2]) : 0;
    if (threads < 1 || threads > threads_most) {
        std::cerr << "usage: ledger FILE THREADS (at most " << threads_most << ")\n";
        return 2;
    }
    try {
        untorn::heap_options how;
        how.flags = UNTORN_HEAP_LIVE;
        how.cut_every_ms = 1000;
        auto heap = untorn::heap::open_or_create(arguments[1], how);
        ledger &all = *heap.root_or<ledger>("ledger");
        check(all);
        std::cout << "ready " << all.next << std::endl;
        std::vector<std::thread> workers;
        for (int thread = 0; thread < threads; thread++) {
            workers.emplace_back([&, thread] {
                std::mt19937 random(std::random_device{}());
                for (;;) {
                    const long done = transfer(all, thread, random);
                    if (done % 16 == 0) {
                        untorn::on_stable(heap, [thread, done] { std::printf("did %d %ld\n", thread, done), std::fflush(stdout); });
                    }
                }
            });
        }
        for (std::thread &worker : workers) worker.join();
    } catch (const untorn::error &e) {
        std::cerr << "ledger: " << e.what() << "\n";
        return 1;
    }
}
