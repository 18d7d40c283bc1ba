/* The standard containers in a heap: random programs in step with twins in ordinary memory, compared after every
   commit, roll-back and restart. heap DIRECTORY [SEED] */

#include "untorn_heap.hpp"

#include <cassert>
#include <cstdio>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

template <class T> using scoped = untorn::scoped_allocator<T>;
using vector = std::vector<untorn::string, scoped<untorn::string>>;
using tree = std::map<int, vector, std::less<>, scoped<std::pair<const int, vector>>>;
using table = std::unordered_map<untorn::string, int, untorn::string_hash, std::equal_to<>,
                                 scoped<std::pair<const untorn::string, int>>>;
using numbers = std::set<long, std::less<>, untorn::allocator<long>>;
using row = std::deque<int, untorn::allocator<int>>;
using chain = std::list<untorn::string, scoped<untorn::string>>;

struct world {
    explicit world(const untorn::heap &heap)
        : by_number(heap.allocator<char>()), by_name(heap.allocator<char>()), all(heap.allocator<long>()),
          ends(heap.allocator<int>()), order(heap.allocator<char>()) {}
    tree by_number;
    table by_name;
    numbers all;
    row ends;
    chain order;
};

struct twin {
    std::map<int, std::vector<std::string>> by_number;
    std::map<std::string, int> by_name;
    std::set<long> all;
    std::deque<int> ends;
    std::list<std::string> order;
};

static void compare(const world &world, const twin &twin) {
    assert(world.by_number.size() == twin.by_number.size());
    auto mine = world.by_number.begin();
    for (auto &[number, texts] : twin.by_number) {
        assert(mine->first == number && mine->second.size() == texts.size());
        for (std::size_t i = 0; i < texts.size(); i++) assert(std::string_view(mine->second[i]) == texts[i]);
        ++mine;
    }
    assert(world.by_name.size() == twin.by_name.size());
    for (auto &[name, number] : world.by_name) assert(twin.by_name.at(std::string(name)) == number);
    assert(std::equal(world.all.begin(), world.all.end(), twin.all.begin(), twin.all.end()));
    assert(std::equal(world.ends.begin(), world.ends.end(), twin.ends.begin(), twin.ends.end()));
    assert(world.order.size() == twin.order.size());
    auto text = world.order.begin();
    for (auto &wanted : twin.order) assert(std::string_view(*text++) == wanted);
}

int main(int argc, char **argv) {
    assert(argc > 1);
    const std::string path = std::string(argv[1]) + "/heap";
    const unsigned seed = argc > 2 ? std::stoul(argv[2]) : 1;
    std::printf("seed %u\n", seed);
    std::mt19937 random(seed);
    auto below = [&](unsigned n) { return random() % n; };
    auto text = [&] { return std::string(below(60), static_cast<char>('a' + below(26))); };

    auto heap = std::make_unique<untorn::heap>(path);
    world *here = heap->root_or<world>("world", *heap);
    heap->commit();
    twin now, committed;
    for (int step = 0; step < 4000; step++) {
        auto in_heap = [&](const std::string &text) { return untorn::string(text, heap->allocator<char>()); };
        const std::string word = text();
        const int number = static_cast<int>(below(300));
        switch (below(16)) {
        case 0: case 1: case 2:
            here->by_number[number].emplace_back(in_heap(word));
            now.by_number[number].push_back(word);
            break;
        case 3:
            here->by_number.erase(number);
            now.by_number.erase(number);
            break;
        case 4: case 5:
            here->by_name.insert_or_assign(in_heap(word), number);
            now.by_name.insert_or_assign(word, number);
            break;
        case 6:
            here->by_name.erase(in_heap(word));
            now.by_name.erase(word);
            break;
        case 7:
            here->all.insert(number);
            now.all.insert(number);
            break;
        case 8: case 9:
            here->ends.push_back(number);
            now.ends.push_back(number);
            if (below(2)) here->ends.pop_front(), now.ends.pop_front();
            break;
        case 10: case 11:
            here->order.push_front(in_heap(word));
            now.order.push_front(word);
            if (here->order.size() > 50) here->order.pop_back(), now.order.pop_back();
            break;
        case 12:
            heap->commit();
            committed = now;
            break;
        case 13:
            if (below(4) == 0) {
                heap->rollback();
                now = committed;
            }
            break;
        case 14:
            if (below(8) == 0) {
                heap->commit_async().wait();
                committed = now;
            }
            break;
        case 15:
            if (below(20) == 0) {
                heap->close();
                heap = std::make_unique<untorn::heap>(path);
                here = heap->root<world>("world");
                assert(here);
                now = committed;
                compare(*here, now);
            }
            break;
        }
        if (step % 50 == 0) compare(*here, now);
    }
    compare(*here, now);

    // A layout that is not the root's, a second opening, roots that are not there.
    try {
        heap->root<twin>("world");
        assert(!"another type");
    } catch (const untorn::error &e) {
        assert(e.kind() == UNTORN_E_INVALID);
    }
    try {
        heap->root<world>("world", 2);
        assert(!"another version");
    } catch (const untorn::error &e) {
        assert(e.kind() == UNTORN_E_INVALID);
    }
    assert(!heap->root<int>("none"));
    try {
        untorn::heap again(path);
        assert(!"open already");
    } catch (const untorn::error &e) {
        assert(e.kind() == UNTORN_E_BUSY);
    }
    {
        auto guard = heap->mutate();
        auto inner = heap->mutate();
        try {
            heap->commit();
            assert(!"a commit inside of a change");
        } catch (const untorn::error &e) {
            assert(e.kind() == UNTORN_E_INVALID);
        }
    }
    heap->set_root<world>("world", nullptr);
    heap->destroy(here);
    heap->commit();
    heap->close();
    std::puts("ok");
}
