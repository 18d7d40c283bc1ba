/* Typical first programs: text of any kind as key, structs without constructors, guards, several runs.
   heap_plain DIRECTORY */

#include <untorn.hpp>

#undef NDEBUG
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace in_heap = untorn::in_heap;

/* Longer than the inside of a string, so that it needs memory. */
static const char long_text[] = "a text that is too long for the inside of a string";

struct player {
    untorn::string name;
    long points = 0;
    in_heap::vector<long> games;
    std::optional<untorn::string> club;
};

class ball {
public:
    explicit ball(std::string_view color) : color_(color) {}
    const untorn::string &color() const { return color_; }

private:
    untorn::string color_;
    int size_ = 3;

public:
    UNTORN_LAYOUT(ball, color_, size_);
};

struct tree_node {
    long value;
    tree_node *left, *right;
};

struct everything {
    in_heap::map<untorn::string, player> by_name;
    in_heap::unordered_map<untorn::string, long> counts;
    in_heap::map<untorn::string, std::pair<untorn::string, untorn::string>> pairs;
    in_heap::unordered_map<untorn::string, std::pair<untorn::string, untorn::string>> more_pairs;
    in_heap::set<untorn::string> words;
    in_heap::unordered_set<untorn::string> table;
    in_heap::vector<player> players;
    in_heap::list<untorn::string> lines;
    in_heap::deque<untorn::string> row;
    in_heap::vector<ball> balls;
    tree_node *top = nullptr;
};

template <class Map> static void text_in_maps(untorn::heap &heap, Map &map) {
    const std::string name = std::string(long_text) + " of the program";
    const std::string_view view = name;
    map["x"];
    map[name];
    map[view];
    map[std::string(long_text)];
    assert(map.size() == 3);
    const Map &same = map;
    assert(map.find("x") != map.end() && same.find("x") != same.end() && map.find("y") == map.end());
    assert(map.find(name) != map.end() && same.find(view) != same.end() && map.find(long_text) != map.end());
    assert(map.count("x") == 1 && map.count(name) == 1 && same.count("none") == 0);
    assert(&map.at("x") == &map["x"] && &same.at(name) == &map[view]);
    assert(same.contains("x") && same.contains(name) && !same.contains("none"));
    assert(map.equal_range("x").first->first == "x");
    assert(!map.try_emplace("x").second && map.try_emplace("tried").second);
    {
        auto guard = heap.mutate();
        assert(map.insert_or_assign("assigned", typename Map::mapped_type()).second);
        map.emplace(long_text + std::string("!"), typename Map::mapped_type());
    }
    assert(map.erase("tried") == 1 && map.erase(std::string("assigned")) == 1 && map.erase("none") == 0);
    map.erase(map.find("x"));
    for (auto at = map.begin(); at != map.end();) at = at->first == name ? map.erase(at) : std::next(at);
    assert(map.size() == 2);
}

static void text(untorn::heap &heap) {
    everything &all = *heap.root_or<everything>("everything");
    text_in_maps(heap, all.counts);
    text_in_maps(heap, all.pairs);
    text_in_maps(heap, all.more_pairs);
    {
        auto guard = heap.mutate();
        all.pairs["a"] = {"b", "c"};
    }
    all.pairs[long_text].first = long_text;
    assert(all.pairs.at(long_text).second.empty());
    all.words.insert("word");
    all.words.insert(std::string(long_text));
    assert(all.words.count("word") && all.words.find(long_text) != all.words.end() && all.words.erase("word"));
    all.table.insert(long_text);
    assert(!all.table.insert(std::string(long_text)).second && all.table.contains(long_text));
    all.lines.push_back(long_text);
    all.row.push_back(std::string(long_text));

    // Strings with strings.
    untorn::string &line = all.lines.back();
    const std::string own = long_text;
    assert(line == own && own == line && line == long_text && !(line != own) && line < "b" && std::string_view("b") > line);
    assert(line <= own && own >= line && !(own < line));
    assert(line + "x" == own + "x" && "x" + line == "x" + own && line + 'x' == own + "x" && line + line == own + own);
    line += "x";
    line = own;
    line = "short";
    line = long_text;
    assert(std::hash<untorn::string>()(line) == std::hash<std::string>()(own));
}

static void structs(untorn::heap &heap) {
    everything &all = *heap.root<everything>("everything");
    player &anna = all.by_name["anna"];
    anna.name = long_text;
    anna.games.push_back(7);
    anna.club = anna.name;
    all.players.emplace_back();
    all.players.back().games.push_back(1);
    all.players.back().name = long_text;
    all.players.emplace_back(player{anna});
    for (int n = 0; n < 20; n++) all.players.emplace_back().name = long_text;
    all.balls.emplace_back(long_text);
    try {
        all.players.push_back(player{});
        assert(!"made without a heap");
    } catch (const std::logic_error &e) {
        assert(std::string(e.what()).find("heap.mutate()") != std::string::npos);
    }
    {
        auto guard = heap.mutate();
        all.players.push_back({long_text, 3, {1, 2}, std::nullopt});
        player made;
        made.name = long_text;
        all.players.push_back(made);
        all.players.push_back(std::move(made));
        all.balls.push_back(ball(long_text));
        all.counts.insert({long_text, 1});
    }
    all.top = heap.make<tree_node>(1L, nullptr, nullptr);
    all.top->left = heap.make<tree_node>(2L, nullptr, nullptr);
}

static void found_again(untorn::heap &heap) {
    everything &all = *heap.root<everything>("everything");
    assert(all.by_name.at("anna").name == long_text && all.by_name.at("anna").games.at(0) == 7);
    assert(*all.by_name.at("anna").club == long_text);
    assert(all.players.size() == 25 && all.players[1].name == long_text && all.players[0].games.at(0) == 1);
    for (const player &each : all.players) assert(each.name == long_text);
    assert(all.players[22].games.size() == 2 && all.players[22].points == 3);
    assert(all.balls.size() == 2 && all.balls[1].color() == long_text);
    assert(all.pairs.at(long_text).first == long_text && all.lines.back() == long_text);
    assert(all.top->left->value == 2 && !all.top->right);
    heap.destroy(all.top->left);
    heap.destroy(all.top);
    heap.set_root("everything", static_cast<everything *>(nullptr));
    heap.destroy(&all);
    assert(heap.stats().allocations == 0);
}

/* Files in containers. */
static void many_files(const std::string &directory) {
    auto store = untorn::store::open_or_create(directory + "/files");
    std::vector<untorn::file> files;
    for (const char *name : {"a", "b", "c"}) files.push_back(store.open_or_create_file(name));
    for (untorn::file &file : files) file.append("one");
    untorn::syncv(files);
    std::vector<untorn::file *> pointers = {&files[0], &files[1]};
    files[0].append("two");
    untorn::syncv(pointers);
    std::vector<std::reference_wrapper<untorn::file>> references(files.begin(), files.end());
    files[1].append("two");
    untorn::syncv_async(references).wait();
    untorn::syncv({files[0], files[1]});
    store.close();
    untorn::store again(directory + "/files");
    assert(again.open_file("a").size() == 6 && again.open_file("b").size() == 6 && again.open_file("c").size() == 3);
}

/* Members that the compiler cannot see: a class with a constructor, without UNTORN_LAYOUT. */
struct hidden {
    hidden() : number(7), name(long_text) {}
    long number;
    std::string name;
};

static std::string report_of(const std::string &path, std::uint32_t flags) {
    char *report = nullptr;
    assert(untorn_heap_check_file(path.c_str(), flags, &report) == 1);
    return untorn::detail::text(report);
}

/* For other processes an open heap is busy. */
static void fails_check(const std::string &path) {
    char *report = nullptr;
    assert(untorn_heap_check_file(path.c_str(), 0, &report) == -1 && errno == EBUSY && !report);
}

static void pointers_out_of_the_heap(const std::string &directory) {
    const std::string path = directory + "/pointers";
    untorn::heap_options debug;
    debug.flags = UNTORN_HEAP_DEBUG_POINTERS;
    {
        auto heap = untorn::heap::open_or_create(path, debug);
        everything &all = *heap.root_or<everything>("everything");
        all.counts[long_text] = 1;
        all.by_name[long_text].games.push_back(1);
        all.lines.push_back("short");
        heap.commit();
        hidden *object = heap.root_or<hidden>("hidden");
        // The position of a string's pointer depends on the standard library.
        const unsigned long target = reinterpret_cast<unsigned long>(object->name.data());
        unsigned long words[sizeof(hidden) / sizeof(long)];
        std::memcpy(words, static_cast<void *>(object), sizeof words);
        const auto offset = (std::find(std::begin(words), std::end(words), target) - words) * sizeof(long);
        char place[100];
        std::snprintf(place, sizeof place, "at %#lx has at offset %zu the address %#lx",
                      reinterpret_cast<unsigned long>(object), static_cast<std::size_t>(offset), target);
        try {
            heap.commit();
            assert(!"a pointer out of the heap");
        } catch (const untorn::error &e) {
            if (std::string(e.what()).find(place) == std::string::npos) std::fprintf(stderr, "%s, not %s\n", e.what(), place);
            assert(e.kind() == UNTORN_E_INVALID && std::string(e.what()).find(place) != std::string::npos);
        }
        object->~hidden();
        heap.rollback();
        heap.commit();
        char *report = nullptr;
        assert(untorn_heap_check(heap.handle(), &report) == 1);
        assert(untorn::detail::text(report).find("\"sound\":true") != std::string::npos);
    }
    assert(report_of(path, UNTORN_CHECK_POINTERS).find("\"pointers\":{\"count\":0") != std::string::npos);
    assert(report_of(path, 0).find("\"pointers\"") == std::string::npos);
    {
        // Without the flag the pointer goes unnoticed until the heap is checked.
        auto heap = untorn::heap::open_or_create(path);
        heap.root_or<hidden>("hidden")->number = 8;
        heap.commit();
        heap.root<hidden>("hidden")->name.~basic_string();
        fails_check(path);
    }
    const std::string described = untorn::detail::text(untorn_heap_dump_file(path.c_str()));
    assert(described.find("\"name\":\"hidden\"") != std::string::npos);
    assert(!untorn_heap_dump_file((path + "-none").c_str()) && errno == ENOENT);
    assert(untorn_heap_check_file(path.c_str(), 2, nullptr) == -1 && errno == EINVAL);
}

int main(int argc, char **argv) {
    assert(argc > 1);
    const std::string directory = argv[1], path = directory + "/heap";
    {
        auto heap = untorn::heap::open_or_create(path);
        text(heap);
        structs(heap);
        heap.commit();
    }
    {
        auto heap = untorn::heap::open_or_create(path);
        found_again(heap);
    }
    many_files(directory);
    // Valgrind has the program's memory at addresses that are taken for numbers.
    if (!std::getenv("UNDER_VALGRIND")) pointers_out_of_the_heap(directory);
    std::puts("ok");
}
