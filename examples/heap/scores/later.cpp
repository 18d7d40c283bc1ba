/* Points of players: a later version of the program, which migrates the data of the first version.
 * c++ -std=c++17 later.cpp $(pkg-config --cflags --libs untorn) -o later && ./later */
#include <algorithm>
#include <iostream>
#include <untorn.hpp>

struct player {
    long points = 0;
    long best = 0;
    untorn::in_heap::vector<long> games;
};
using players = untorn::in_heap::map<untorn::string, player>;
template <> inline constexpr std::uint32_t untorn::layout_version<players> = 2;

namespace first {
struct player {
    long points = 0;
    untorn::in_heap::vector<long> games;
};
using players = untorn::in_heap::map<untorn::string, player>;
} // namespace first

static players &open_players(untorn::heap &heap) {
    players *all = heap.root<players>("players", 2, [&](const untorn::root_info &old) {
        first::players &before = old.as<first::players>();
        players *now = heap.make<players>();
        for (auto &[name, was] : before) {
            player &who = (*now)[name];
            who.points = was.points;
            who.games = std::move(was.games);
            who.best = *std::max_element(who.games.begin(), who.games.end());
        }
        heap.destroy(&before);
        return now;
    });
    return all ? *all : *heap.root_or<players>("players");
}

int main() {
    auto heap = untorn::heap::open_or_create("players.heap");
    players &all = open_players(heap);
    std::string name;
    long points;
    while (std::cin >> name >> points) {
        player &who = all[name];
        who.games.push_back(points);
        who.points += points;
        who.best = std::max(who.best, points);
        heap.commit();
        std::cout << name << ": " << who.points << " points in " << who.games.size() << " games, " << who.best
                  << " in the best" << std::endl;
    }
}
