/* The standard containers in a heap whose program is killed and started again. Commit number n depends only on the
   seed and on n. So the model of any commit can be made in ordinary memory, and compared with the heap.
   heap_kill DIRECTORY [SEED [COMMITS]]; prints "ack n" after each commit, and ends after COMMITS commits; 0: never. */

#include "untorn_heap.hpp"

#include <cassert>
#include <cstdio>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

template <class T> using scoped = untorn::scoped_allocator<T>;
using lines = std::vector<untorn::string, scoped<untorn::string>>;
using tree = std::map<untorn::string, lines, std::less<>, scoped<std::pair<const untorn::string, lines>>>;
using table = std::unordered_map<int, untorn::string, std::hash<int>, std::equal_to<>,
                                 scoped<std::pair<const int, untorn::string>>>;
using row = std::deque<int, untorn::allocator<int>>;
using chain = std::list<untorn::string, scoped<untorn::string>>;

struct fixture {
    explicit fixture(const untorn::heap &heap)
        : by_name(heap.allocator<char>()), by_number(heap.allocator<char>()), ends(heap.allocator<int>()),
          order(heap.allocator<char>()) {}
    unsigned long commits = 0;
    tree by_name;
    table by_number;
    row ends;
    chain order;
};

struct model {
    unsigned long commits = 0;
    std::map<std::string, std::vector<std::string>> by_name;
    std::unordered_map<int, std::string> by_number;
    std::deque<int> ends;
    std::list<std::string> order;
};

/* Makes the changes of commit number n, to the containers or to a model; `text` makes their strings. */
template <class Containers, class Text>
static void change(Containers &all, unsigned seed, unsigned long n, const Text &text) {
    std::mt19937 random(seed * 2654435761u + static_cast<unsigned>(n));
    auto below = [&](unsigned most) { return random() % most; };
    auto word = [&](unsigned most) {
        const unsigned length = below(most), letter = below(26);
        return text(std::string(length, static_cast<char>('a' + letter)));
    };
    for (unsigned steps = 1 + below(12); steps > 0; steps--) {
        const int number = static_cast<int>(below(200));
        auto name = text("name " + std::to_string(number));
        switch (below(10)) {
        case 0: case 1: case 2: {
            auto &found = all.by_name[std::move(name)];
            found.push_back(word(200));
            if (found.size() > 8) found.erase(found.begin());
            break;
        }
        case 3:
            all.by_name.erase(name);
            break;
        case 4: case 5:
            all.by_number.insert_or_assign(number, word(below(20) == 0 ? 100000 : 500));
            break;
        case 6:
            all.by_number.erase(number);
            break;
        case 7:
            for (int i = 0; i < number; i++) all.ends.push_back(i);
            while (all.ends.size() > 2000) all.ends.pop_front();
            break;
        case 8:
            all.order.push_front(word(60));
            break;
        case 9:
            if (!all.order.empty()) all.order.pop_back();
            break;
        }
    }
    all.commits = n;
}

template <class A, class B> static bool same_texts(const A &a, const B &b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](auto &a, auto &b) { return std::string_view(a) == std::string_view(b); });
}

#define MUST(condition)                                                                                                \
    ((condition) ? (void)0 : (std::fprintf(stderr, "commit %lu: not true: %s\n", all.commits, #condition), std::abort()))

static void compare(const fixture &all, const model &model) {
    MUST(all.by_name.size() == model.by_name.size());
    auto mine = all.by_name.begin();
    for (auto &[name, texts] : model.by_name) {
        MUST(std::string_view(mine->first) == name);
        MUST(same_texts(mine->second, texts));
        ++mine;
    }
    MUST(all.by_number.size() == model.by_number.size());
    for (auto &[number, text] : model.by_number) {
        auto found = all.by_number.find(number);
        MUST(found != all.by_number.end());
        MUST(std::string_view(found->second) == text);
    }
    MUST(std::equal(all.ends.begin(), all.ends.end(), model.ends.begin(), model.ends.end()));
    MUST(same_texts(all.order, model.order));
}

int main(int argc, char **argv) {
    assert(argc > 1);
    const std::string path = std::string(argv[1]) + "/heap";
    const unsigned seed = argc > 2 ? static_cast<unsigned>(std::stoul(argv[2])) : 1;
    const unsigned long commits_max = argc > 3 ? std::stoul(argv[3]) : 300;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);

    auto heap = std::make_unique<untorn::heap>(untorn::heap::open_or_create(path));
    auto in_heap = [&](const std::string &text) { return untorn::string(text, heap->allocator<char>()); };
    auto outside = [](const std::string &text) { return text; };
    fixture *all = heap->root_or<fixture>("fixture", *heap);
    model now;
    for (unsigned long n = 1; n <= all->commits; n++) change(now, seed, n, outside);
    compare(*all, now);
    for (unsigned long n = all->commits + 1; commits_max == 0 || n <= commits_max; n++) {
        if (n > 1 && n % 7 == 0) {
            // A change that is never committed.
            change(*all, ~seed, n, in_heap);
            heap->rollback();
        }
        change(*all, seed, n, in_heap);
        if (n % 5 == 0) {
            heap->commit_async().wait();
        } else {
            heap->commit();
        }
        std::printf("ack %lu\n", n);
        change(now, seed, n, outside);
        if (n % 40 == 0) {
            compare(*all, now);
            heap->close();
            heap = std::make_unique<untorn::heap>(untorn::heap::open_or_create(path));
            all = heap->root<fixture>("fixture");
            assert(all);
        }
        if (n % 10 == 0) compare(*all, now);
    }
    compare(*all, now);
    heap->close();
}
