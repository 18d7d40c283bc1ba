/* Points of players, in a heap: they survive crashes of the program.
 * c++ -std=c++17 after.cpp $(pkg-config --cflags --libs untorn) -o after && ./after */
#include <iostream>
#include <untorn.hpp>

struct player {
    long points = 0;
    untorn::in_heap::vector<long> games;
};
using players = untorn::in_heap::map<untorn::string, player>;

int main() {
    auto heap = untorn::heap::open_or_create("players.heap");
    players &all = *heap.root_or<players>("players");
    heap.commit();
    std::string name;
    long points;
    while (std::cin >> name >> points) {
        player &who = all[name];
        who.games.push_back(points);
        who.points += points;
        if (who.points < 0) {
            heap.rollback();
            std::cout << name << " has too few points" << std::endl;
            continue;
        }
        heap.commit();
        std::cout << name << ": " << who.points << " points in " << who.games.size() << " games" << std::endl;
    }
}
