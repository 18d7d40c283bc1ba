/* The standard containers in a heap: random operations on the containers and on models in ordinary memory, compared
   after every rollback and restart; roots, migrations, owners, guards, errors. heap DIRECTORY [SEED] */

#include <untorn.hpp>

#undef NDEBUG
#include <atomic>
#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace in_heap = untorn::in_heap;

using texts = in_heap::vector<untorn::string>;
using tree = in_heap::map<int, texts>;
using table = in_heap::unordered_map<untorn::string, int>;
using numbers = std::set<long, std::less<>, untorn::allocator<long>>;
using row = std::deque<int, untorn::allocator<int>>;
using chain = in_heap::list<untorn::string>;
using nested = in_heap::multimap<std::pair<int, int>, in_heap::map<untorn::string, in_heap::forward_list<int>>>;

struct fixture {
    explicit fixture(const untorn::heap &heap)
        : by_number(heap.allocator<char>()), by_name(heap.allocator<char>()), all(heap.allocator<long>()),
          ends(heap.allocator<int>()), order(heap.allocator<char>()), deep(heap.allocator<char>()) {}
    tree by_number;
    table by_name;
    numbers all;
    row ends;
    chain order;
    nested deep;
    std::optional<untorn::string> last;
};

struct model {
    std::map<int, std::vector<std::string>> by_number;
    std::map<std::string, int> by_name;
    std::set<long> all;
    std::deque<int> ends;
    std::list<std::string> order;
    std::multimap<std::pair<int, int>, std::map<std::string, std::forward_list<int>>> deep;
    std::optional<std::string> last;
};

static void compare(const fixture &fixture, const model &model) {
    assert(fixture.by_number.size() == model.by_number.size());
    auto mine = fixture.by_number.begin();
    for (auto &[number, texts] : model.by_number) {
        assert(mine->first == number && mine->second.size() == texts.size());
        for (std::size_t i = 0; i < texts.size(); i++) assert(std::string_view(mine->second[i]) == texts[i]);
        ++mine;
    }
    assert(fixture.by_name.size() == model.by_name.size());
    for (auto &[name, number] : fixture.by_name) assert(model.by_name.at(std::string(name)) == number);
    assert(std::equal(fixture.all.begin(), fixture.all.end(), model.all.begin(), model.all.end()));
    assert(std::equal(fixture.ends.begin(), fixture.ends.end(), model.ends.begin(), model.ends.end()));
    assert(fixture.order.size() == model.order.size());
    auto text = fixture.order.begin();
    for (auto &wanted : model.order) assert(std::string_view(*text++) == wanted);
    assert(fixture.deep.size() == model.deep.size());
    auto outer = fixture.deep.begin();
    for (auto &[pair, maps] : model.deep) {
        assert(outer->first == pair && outer->second.size() == maps.size());
        auto inner = outer->second.begin();
        for (auto &[name, list] : maps) {
            assert(std::string_view(inner->first) == name);
            assert(std::equal(inner->second.begin(), inner->second.end(), list.begin(), list.end()));
            ++inner;
        }
        ++outer;
    }
    assert(fixture.last.has_value() == model.last.has_value());
    if (model.last) assert(std::string_view(*fixture.last) == *model.last);
}

template <class Call> static void fails(untorn_error kind, Call call) {
    try {
        call();
    } catch (const untorn::error &e) {
        if (e.kind() == kind && e.code() != 0 && *e.what()) return;
        std::fprintf(stderr, "kind %d: %s\n", e.kind(), e.what());
        std::abort();
    }
    std::fprintf(stderr, "did not fail with %d\n", kind);
    std::abort();
}

static void random_programs(const std::string &path, unsigned seed, int steps) {
    std::mt19937 random(seed);
    auto below = [&](unsigned n) { return random() % n; };
    auto text = [&] { return std::string(below(60), static_cast<char>('a' + below(26))); };

    auto heap = std::make_unique<untorn::heap>(untorn::heap::open_or_create(path));
    fixture *here = heap->root_or<fixture>("fixture", *heap);
    heap->commit();
    model now, committed;
    for (int step = 0; step < steps; step++) {
        auto in_heap = [&](const std::string &text) { return untorn::string(text, heap->allocator<char>()); };
        const std::string word = text();
        const int number = static_cast<int>(below(300));
        switch (below(20)) {
        case 0: case 1: case 2:
            here->by_number[number].emplace_back(word);
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
            here->order.emplace_front(word);
            now.order.push_front(word);
            if (here->order.size() > 50) here->order.pop_back(), now.order.pop_back();
            break;
        case 12: case 13: {
            const std::pair<int, int> pair(number % 10, number % 3);
            auto mine = here->deep.find(pair);
            if (mine == here->deep.end() || below(4) == 0) {
                mine = here->deep.emplace(std::piecewise_construct, std::forward_as_tuple(pair), std::tuple<>());
                now.deep.emplace(pair, decltype(now.deep)::mapped_type());
            }
            mine = here->deep.lower_bound(pair);
            mine->second[in_heap(word)].push_front(number);
            now.deep.lower_bound(pair)->second[word].push_front(number);
            if (below(8) == 0) here->deep.erase(pair), now.deep.erase(pair);
            break;
        }
        case 14:
            if (below(3)) {
                here->last.emplace(word, heap->allocator<char>());
                now.last = word;
            } else {
                here->last.reset();
                now.last.reset();
            }
            break;
        case 15: case 16:
            heap->commit();
            committed = now;
            break;
        case 17:
            if (below(4) == 0) {
                heap->rollback();
                now = committed;
                compare(*here, now);
            }
            break;
        case 18:
            if (below(8) == 0) {
                heap->commit_async().wait();
                committed = now;
            }
            break;
        case 19:
            if (below(20) == 0) {
                heap->close();
                heap = std::make_unique<untorn::heap>(untorn::heap::open_or_create(path));
                here = heap->root<fixture>("fixture");
                assert(here);
                now = committed;
                compare(*here, now);
            }
            break;
        }
        if (step % 50 == 0) compare(*here, now);
    }
    compare(*here, now);
    heap->set_root<fixture>("fixture", nullptr);
    heap->destroy(here);
    assert(heap->stats().allocations == 0 && heap->stats().roots == 0);
    heap->commit();
    heap->close();
}

/* Containers that refer to themselves, and owners that are stored in the heap. */
struct folder {
    using allocator_type = untorn::allocator<char>;
    explicit folder(const allocator_type &memory) : name(memory), folders(memory) {}
    folder(folder &&other, const allocator_type &memory)
        : name(std::move(other.name), memory), folders(std::move(other.folders), memory) {}
    untorn::string name;
    in_heap::vector<folder> folders;
};

struct chained {
    chained(const untorn::heap &heap, int number) : number(number), next(nullptr, untorn::deleter<chained>(heap)) {}
    int number;
    untorn::unique_ptr<chained> next;
};

static void empty_moved_and_swapped(const std::string &directory) {
    using words = in_heap::vector<untorn::string>;
    const std::string path = directory + "/moves";
    const std::string text = "a text that is too long for the inside of a string";
    {
        auto heap = untorn::heap::open_or_create(path), other = untorn::heap::open_or_create(path + "-other");
        assert(heap.allocator<int>() == heap.allocator<long>());
        assert(heap.allocator<int>() != other.allocator<int>());
        static_assert(sizeof(untorn::allocator<int>) == sizeof(void *) && !std::is_polymorphic_v<untorn::allocator<int>>);
        static_assert(std::is_trivially_copyable_v<untorn::allocator<int>>);
        try {
            untorn::allocator<int>();
            assert(!"no heap is named");
        } catch (const std::logic_error &) {
        }
        words *a = heap.root_or<words>("a"), *b = heap.root_or<words>("b"), *c = heap.root_or<words>("c");
        b->emplace_back(text);
        a->swap(*b);
        *c = std::move(*a);
        a->emplace_back("moved from, and good for more");
        // Across heaps: every container stays in its own heap, also when another one is assigned to it.
        words *far = other.root_or<words>("far");
        *far = *c;
        *b = std::move(*far);
        far->clear();
        far->emplace_back(text + " far away");
        assert(far->get_allocator() != c->get_allocator() && b->get_allocator() == c->get_allocator());
        auto *deep = heap.root_or<std::pair<untorn::string, words>>("pair");
        deep->second.emplace_back(text);
        auto *folders = heap.root_or<folder>("folders");
        folders->folders.emplace_back();
        folders->folders.emplace_back();
        folders->folders[1].name = text;
        folders->folders[1].folders.emplace_back().name = "inner";
        auto *first = heap.root_or<chained>("links", heap, 1);
        first->next = heap.make_unique<chained>(heap, 2);
        first->next->next = heap.make_unique<chained>(heap, 3);
        first->next = std::move(first->next->next);
        heap.root_or<table>("empty");
        heap.root_or<in_heap::unordered_set<untorn::string>>("set")->emplace(text);
        heap.root_or<in_heap::unordered_multimap<int, int>>("many")->emplace(1, 1);
        heap.root_or<in_heap::multiset<int>>("multiset")->insert({3, 1, 3});
        heap.commit();
        other.commit();
    }
    auto heap = untorn::heap::open_or_create(path), other = untorn::heap::open_or_create(path + "-other");
    words *a = heap.root<words>("a"), *b = heap.root<words>("b"), *c = heap.root<words>("c");
    assert(a->size() == 1 && b->size() == 1 && c->size() == 1 && std::string_view((*c)[0]) == text && *b == *c);
    for (words *each : {a, b, c}) each->emplace_back(text), each->shrink_to_fit();
    assert(other.root<words>("far")->at(0).size() == text.size() + 9);
    assert(std::string_view(heap.root<folder>("folders")->folders[1].folders[0].name) == "inner");
    chained *first = heap.root<chained>("links");
    assert(first->number == 1 && first->next->number == 3 && !first->next->next);
    heap.root<table>("empty")->emplace(text, 1);
    assert(heap.root<table>("empty")->count(untorn::string(text, heap.allocator<char>())) == 1);
    assert(heap.root<in_heap::multiset<int>>("multiset")->count(3) == 2);

    // Everything can be freed, and nothing is left.
    auto end = [&](auto *object, const char *name) {
        heap.set_root(name, static_cast<decltype(object)>(nullptr));
        heap.destroy(object);
    };
    end(a, "a"), end(b, "b"), end(c, "c");
    end(first, "links");
    end(heap.root<folder>("folders"), "folders");
    end(heap.root<table>("empty"), "empty");
    end(heap.root<std::pair<untorn::string, words>>("pair"), "pair");
    end(heap.root<in_heap::unordered_set<untorn::string>>("set"), "set");
    end(heap.root<in_heap::unordered_multimap<int, int>>("many"), "many");
    end(heap.root<in_heap::multiset<int>>("multiset"), "multiset");
    const untorn_heap_stats stats = heap.stats();
    assert(stats.allocations == 0 && stats.roots == 0 && stats.used_bytes == 0);
    assert(stats.free_bytes > 0 && stats.heap_bytes >= stats.free_bytes);
    heap.commit();
}

/* An account as two versions of a program have it. */
struct account_1 {
    long coins;
};
struct account {
    account(const untorn::heap &heap, long coins) : coins(coins), owner(heap.allocator<char>()) {}
    long coins;
    untorn::string owner;
};
template <> inline constexpr std::uint32_t untorn::layout_version<account> = 2;

static void migrations(const std::string &directory) {
    const std::string path = directory + "/accounts";
    {
        auto heap = untorn::heap::open_or_create(path);
        heap.root_or<account_1>("first")->coins = 70;
        heap.commit();
    }
    {
        auto heap = untorn::heap::open_or_create(path);
        fails(UNTORN_E_LAYOUT_CHANGED, [&] { heap.root<account>("first"); });
        fails(UNTORN_E_LAYOUT_CHANGED, [&] { heap.root_or<account>("first", heap, 0); });
        fails(UNTORN_E_LAYOUT_CHANGED, [&] { heap.root<account_1>("first", 1); });
        // If the function fails, its changes are undone.
        const auto blocks = heap.stats().allocations;
        fails(UNTORN_E_INVALID, [&] {
            heap.root<account>("first", 2, [&](const untorn::root_info &) -> account * {
                heap.make<account>(heap, 1);
                heap.commit();
                return nullptr;
            });
        });
        assert(heap.stats().allocations == blocks && heap.root<account_1>("first")->coins == 70);
        try {
            heap.root<account>("first", 2, [&](const untorn::root_info &old) { return &old.as<account>(); });
            assert(!"another size");
        } catch (const std::logic_error &) {
        }
    }
    for (int run = 0; run < 2; run++) {
        // The program ends without a commit of its own: the migration is a commit.
        auto heap = untorn::heap::open_or_create(path);
        account *first = heap.root<account>("first", 2, [&](const untorn::root_info &old) {
            assert(run == 0 && old.version == 0 && std::string_view(old.name) == "first");
            account_1 &before = old.as<account_1>();
            account *now = heap.make<account>(heap, before.coins);
            now->owner = "somebody who has a name that is not short";
            heap.destroy(&before);
            return now;
        });
        assert(first->coins == 70 && first->owner.size() == 41 && heap.stats().allocations == 2);
        heap.commit();
    }
    auto heap = untorn::heap::open_or_create(path);
    assert(heap.root<account>("first")->coins == 70);
    auto never = [](const untorn::root_info &) -> account * { std::abort(); };
    assert(!heap.root<account>("none", 2, never));
    assert(heap.roots().size() == 1 && heap.roots()[0].version == 2 && heap.roots()[0].bytes == sizeof(account));
    assert(!heap.info("none") && &heap.info("first")->as<account>() == heap.root<account>("first"));
}

static void errors_and_guards(const std::string &directory) {
    const std::string path = directory + "/errors";
    untorn::heap_options small;
    small.address_space = 8 << 20;
    auto heap = std::make_unique<untorn::heap>(untorn::heap::open_or_create(path, small));
    heap->root_or<long>("number");
    heap->commit();
    fails(UNTORN_E_LAYOUT_CHANGED, [&] { heap->root<double>("number"); });
    fails(UNTORN_E_LAYOUT_CHANGED, [&] { heap->root<long>("number", 2); });
    fails(UNTORN_E_INVALID, [&] { heap->root<long>(""); });
    fails(UNTORN_E_BUSY, [&] { untorn::heap again(path); });
    long outside = 0;
    fails(UNTORN_E_INVALID, [&] { heap->set_root("outside", &outside); });
    assert(!heap->root<int>("none") && heap->roots().size() == 1);
    {
        auto guard = heap->mutate();
        auto inner = heap->mutate();
        fails(UNTORN_E_INVALID, [&] { heap->commit(); });
        fails(UNTORN_E_INVALID, [&] { heap->rollback(); });
    }
    // A constructor that throws leaves nothing behind.
    struct thrower {
        thrower() { throw 7; }
    };
    const auto blocks = heap->stats().allocations;
    try {
        heap->make<thrower>();
        assert(!"no exception");
    } catch (int) {
    }
    assert(heap->stats().allocations == blocks);
    // A heap that is full, then one that is closed.
    try {
        heap->make<std::array<char, 16 << 20>>();
        assert(!"more than there is");
    } catch (const std::bad_alloc &e) {
        const auto &full = dynamic_cast<const untorn::bad_alloc &>(e);
        assert(*full.what() && full.why().kind() != UNTORN_E_NONE);
    }
    const untorn::allocator<int> late = heap->allocator<int>();
    heap->close();
    try {
        assert(!untorn::allocator<int>(late).allocate(1));
    } catch (const untorn::bad_alloc &e) {
        assert(e.why().kind() == UNTORN_E_BAD_HANDLE);
    }
    fails(UNTORN_E_BAD_HANDLE, [&] { heap->commit(); });
    fails(UNTORN_E_BAD_HANDLE, [&] { auto guard = heap->mutate(); });
    fails(UNTORN_E_BAD_HANDLE, [&] { heap->allocator<int>(); });
    fails(UNTORN_E_IO, [&] { untorn::heap nowhere(directory + "/nowhere"); });
}

/* Many threads change the heap, and one commits; the heap and a file in one commit. */
static void threads_and_files(const std::string &directory) {
    auto store = untorn::store::open_or_create(directory + "/store");
    auto heap = untorn::heap::open_or_create(store, "heap");
    untorn::file log = store.open_or_create_file("log");
    using counts = in_heap::map<int, std::pair<long, long>>;
    counts *all = heap.root_or<counts>("counts");
    for (int n = 0; n < 3; n++) all->emplace(n, std::pair(0L, 0L));
    heap.commit();
    std::atomic<bool> done = false;
    std::vector<std::thread> threads;
    for (int n = 0; n < 3; n++) {
        threads.emplace_back([&, n] {
            while (!done) {
                auto guard = heap.mutate();
                auto &[once, twice] = all->at(n);
                once += 1;
                heap.destroy(heap.make<untorn::string>("made and gone in one change, and longer than a few bytes"));
                twice += 2;
            }
        });
    }
    for (int n = 0; n < 20; n++) {
        log.append("commit\n");
        heap.syncv({log});
    }
    done = true;
    for (auto &thread : threads) thread.join();
    heap.rollback();
    log.rollback();
    for (auto &[n, pair] : *all) assert(pair.second == 2 * pair.first);
    assert(log.size() == 20 * 7);
}

/* Slow to construct. */
struct slow {
    static inline std::atomic<int> made = 0;
    long number = 7;
    slow() {
        made++;
        for (int n = 0; n < 200; n++) std::this_thread::yield();
    }
};

struct broken {
    long number = 0;
    broken() { throw 5; }
};

struct outer {
    long number;
    explicit outer(untorn::heap &heap) : number(*heap.root_or<long>("inner", 3)) {}
};

/* The task of four threads at the same moment. */
template <class Work> static void at_once(const Work &work) {
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; n++) {
        threads.emplace_back([&] {
            for (++ready; ready < 4;) std::this_thread::yield();
            work();
        });
    }
    for (auto &thread : threads) thread.join();
}

/* Threads that look for a root and make it, or migrate it, at the same moment do so once. */
static void roots_of_many_threads(const std::string &directory) {
    auto heap = untorn::heap::open_or_create(directory + "/roots");
    for (int round = 0; round < 25; round++) {
        const std::string name = "root" + std::to_string(round), old = "old" + std::to_string(round);
        slow::made = 0;
        std::atomic<slow *> found = nullptr;
        at_once([&] {
            slow *mine = heap.root_or<slow>(name.c_str()), *first = nullptr;
            assert(found.compare_exchange_strong(first, mine) || first == mine);
        });
        assert(slow::made == 1 && heap.root<slow>(name.c_str()) == found);
        heap.set_root(old.c_str(), heap.make<long>(1));
        heap.commit();
        at_once([&] {
            slow *mine = heap.root<slow>(old.c_str(), 2, [&](const untorn::root_info &info) {
                long *before = &info.as<long>();
                slow *now = heap.make<slow>();
                heap.destroy(before);
                return now;
            });
            assert(mine == heap.root<slow>(old.c_str(), 2));
        });
        assert(slow::made == 2);
    }
    assert(heap.stats().allocations == 50 && heap.roots().size() == 50);
    /* Exceptions reach the caller, and leave nothing behind; making a root may need another root. */
    try {
        heap.root_or<broken>("broken");
        assert(false);
    } catch (int thrown) {
        assert(thrown == 5 && heap.root<broken>("broken") == nullptr && heap.stats().allocations == 50);
    }
    assert(heap.root_or<outer>("outer", heap)->number == 3 && *heap.root<long>("inner") == 3);
}

/* A store without a guard, while a commit runs, is found in debug mode, with its address. */
static void racing_stores(const std::string &directory) {
    untorn::heap_options debug;
    debug.flags = UNTORN_HEAP_DEBUG_RACES;
    auto heap = untorn::heap::open_or_create(directory + "/races", debug);
    auto *number = heap.root_or<std::atomic<long>>("number");
    heap.commit();
    std::atomic<bool> done = false;
    std::thread thread([&] {
        while (!done) ++*number;
    });
    char address[32];
    std::snprintf(address, sizeof address, "%#lx", reinterpret_cast<unsigned long>(number));
    bool found = false;
    for (int n = 0; n < 10000 && !found; n++) {
        // So that there is something to commit.
        for (const long before = *number; *number == before;) std::this_thread::yield();
        try {
            heap.commit();
        } catch (const untorn::error &e) {
            assert(e.kind() == UNTORN_E_RACING_STORE);
            found = std::string(e.what()).find(address) != std::string::npos;
            if (!found) std::fprintf(stderr, "%s, not %s\n", e.what(), address);
            assert(found);
        }
    }
    done = true;
    thread.join();
    assert(found);
}

// An object that is made before main() and uses a heap at the end of the program, when other static objects are gone.
static struct at_end {
    using type = untorn::in_heap::vector<untorn::string>;
    std::string path;

    void use() const {
        auto heap = untorn::heap::open_or_create(path);
        heap.root_or<type>("at end")->emplace_back("a string that is too long for the place of a short one");
        heap.commit();
        heap.close();
    }
    ~at_end() {
        try {
            if (!path.empty()) use();
        } catch (const std::exception &e) {
            std::fprintf(stderr, "at the end of the program: %s\n", e.what());
            std::_Exit(1);
        }
    }
} at_end;

struct score {
    long points, moves;
};

/* The program reports its stores; blocks from allocators, and roots, are reported by the library. */
static void told(const std::string &directory) {
    untorn::heap_options options;
    options.tracker = UNTORN_TRACKER_EXPLICIT;
    const std::string path = directory + "/told";
    using scores = in_heap::vector<score>;
    {
        auto heap = untorn::heap::open_or_create(path, options);
        auto *all = heap.make<scores>(3, score{7, 0});
        heap.set_root("scores", all);
        heap.commit();
        {
            const auto guard = heap.mutate();
            (*all)[1].points = 5;
            heap.mark_dirty((*all)[1].points);
            (*all)[2].points = 1; /* and does not report it */
            all->push_back({9, 9});
            heap.mark_dirty(*all);
        }
        heap.commit();
        try {
            heap.mark_dirty(options);
            assert(false);
        } catch (const untorn::error &e) {
            assert(e.kind() == UNTORN_E_INVALID);
        }
    }
    {
        auto heap = untorn::heap::open_or_create(path, options);
        const auto &all = *heap.root<scores>("scores");
        /* The vector grew, into a block that was reported as a whole. */
        assert(all.size() == 4 && all[0].points == 7 && all[1].points == 5 && all[2].points == 1 && all[3].moves == 9);
        const_cast<score &>(all[2]).points = 2;
        heap.commit();
    }
    auto heap = untorn::heap::open_or_create(path);
    assert((*heap.root<scores>("scores"))[2].points == 1);
}

/* The stores of a killed process are there. */
static void live(const std::string &directory) {
    untorn::heap_options options;
    options.flags = UNTORN_HEAP_LIVE;
    const std::string path = directory + "/live";
    const pid_t child = fork();
    if (child == 0) {
        auto heap = untorn::heap::open_or_create(path, options);
        assert(untorn_heap_live_start(heap.handle()) == UNTORN_LIVE_NEW);
        long *number = heap.make<long>(1);
        heap.set_root("number", number);
        heap.commit();
        *number = 2;
        raise(SIGKILL);
    }
    int status = 0;
    assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    {
        options.cut_every_ms = 5;
        options.cut_within_ms = 1000;
        auto heap = untorn::heap::open_or_create(path, options);
        assert(untorn_heap_live_start(heap.handle()) == UNTORN_LIVE_WENT_ON && *heap.root<long>("number") == 2);
        assert(untorn_heap_hold_cuts(heap.handle()) == 0);
        *heap.root<long>("number") = 3;
        assert(untorn_heap_release_cuts(heap.handle()) == 0);
        assert(untorn_heap_release_cuts(heap.handle()) == -1 && untorn_last_error() == UNTORN_E_INVALID);
    }
    options = untorn::heap_options();
    options.cut_every_ms = 5;
    try {
        auto heap = untorn::heap::open_or_create(path, options);
        assert(false);
    } catch (const untorn::error &e) {
        assert(e.kind() == UNTORN_E_INVALID);
    }
    auto heap = untorn::heap::open_or_create(path);
    assert(untorn_heap_live_start(heap.handle()) == 0 && *heap.root<long>("number") == 3);
}

int main(int argc, char **argv) {
    assert(argc > 1);
    const std::string directory = argv[1];
    const char *chosen = std::getenv("UNTORN_TEST_SEED");
    const unsigned seed = argc > 2 ? std::stoul(argv[2]) : chosen ? std::stoul(chosen) : 1;
    std::printf("seed %u\n", seed);
    /* Runs before any thread exists, because it forks. */
    live(directory);
    random_programs(directory + "/heap", seed, std::getenv("BRIEF") || std::getenv("UNDER_VALGRIND") ? 1000 : 4000);
    empty_moved_and_swapped(directory);
    migrations(directory);
    errors_and_guards(directory);
    threads_and_files(directory);
    roots_of_many_threads(directory);
    racing_stores(directory);
    told(directory);
    at_end.path = directory + "/at-end";
    at_end.use();
    std::puts("ok");
}
