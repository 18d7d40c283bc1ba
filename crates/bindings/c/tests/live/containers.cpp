/*
 * Containers of the standard library in a live heap, changed in sections that are then taken back, or that end: with each,
 * every byte of the heap must be as it was, and each container whole. Prints how many sections there were.
 */

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "untorn.hpp"

namespace in_heap = untorn::in_heap;
using numbers = in_heap::map<long, long>;
using table = in_heap::unordered_map<long, untorn::string>;
using row = in_heap::list<long>;
using queue = in_heap::deque<long>;
using field = in_heap::vector<long>;

static void require(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

int main(int, char **arguments) {
    untorn::heap_options how;
    how.flags = UNTORN_HEAP_LIVE;
    auto heap = untorn::heap::open_or_create(arguments[1], how);
    const int rounds = std::atoi(arguments[2]);
    numbers &all = *heap.root_or<numbers>("numbers");
    table &names = *heap.root_or<table>("names");
    row &order = *heap.root_or<row>("order");
    queue &waiting = *heap.root_or<queue>("waiting");
    field &flat = *heap.root_or<field>("flat");
    std::map<long, long> wanted;
    std::vector<long> list;
    std::mt19937 random(7);
    const auto memory = static_cast<const unsigned char *>(untorn_heap_base(heap.handle()));
    for (int round = 0; round < rounds; round++) {
        const bool abort = random() % 2;
        const std::size_t bytes = heap.stats().heap_bytes;
        std::vector<unsigned char> before;
        if (abort) before.assign(memory, memory + bytes);
        std::map<long, long> mirror = wanted;
        std::vector<long> listed = list;
        {
            untorn::section section(heap);
            for (int change = 0; change < 10; change++) {
                const long key = random() % 200;
                switch (random() % 8) {
                case 0: case 1: case 2:
                    all[key] = round;
                    mirror[key] = round;
                    break;
                case 3: case 4:
                    all.erase(key);
                    mirror.erase(key);
                    break;
                case 5:
                    names[key] = "a name that is longer than what fits into the object itself";
                    waiting.push_back(key);
                    break;
                case 6:
                    names.erase(key);
                    if (!waiting.empty()) waiting.pop_front();
                    order.push_front(key);
                    listed.insert(listed.begin(), key);
                    break;
                default:
                    flat.push_back(key);
                    order.reverse();
                    std::vector<long>(listed.rbegin(), listed.rend()).swap(listed);
                    if (order.size() > 20) {
                        order.pop_back();
                        listed.pop_back();
                    }
                }
            }
            if (abort) section.abort();
        }
        if (abort) {
            /* All bytes except the allocator's notes in the first chunk of each segment. */
            constexpr std::size_t piece = 64 << 10, segment = 4 << 20;
            for (std::size_t at = 0; at < before.size(); at += piece) {
                if (at % segment == 0 || !std::memcmp(&before[at], memory + at, piece)) continue;
                std::fprintf(stderr, "round %d: a byte behind %zx is not as it was\n", round, at);
                return 1;
            }
        } else {
            wanted = mirror;
            list = listed;
        }
        require(std::map<long, long>(all.begin(), all.end()) == wanted, "the map");
        require(std::vector<long>(order.begin(), order.end()) == list, "the list");
    }
    /* Mutexes and the standard's guards. */
    untorn::mutex one, other;
    untorn::shared_mutex shared;
    std::condition_variable_any changed;
    bool ready = false, told = false;
    std::thread waits([&] {
        std::unique_lock<untorn::mutex> lock(one);
        changed.wait(lock, [&] { return ready; });
        all[1000] = 1;
    });
    {
        const std::scoped_lock<untorn::mutex, untorn::mutex> both(one, other);
        ready = true;
        untorn::on_stable(heap, [&] { told = true; });
        require(!told, "a section has not ended");
    }
    require(told, "a section has ended");
    changed.notify_all();
    waits.join();
    {
        const std::shared_lock<untorn::shared_mutex> reads(shared);
        require(!shared.try_lock() && shared.try_lock_shared(), "readers");
        shared.unlock_shared();
    }
    require(all[1000] == 1, "what was done under a condition");
    heap.commit_async().wait();
    std::printf("%d\n", rounds);
    heap.close();
    return 0;
}
