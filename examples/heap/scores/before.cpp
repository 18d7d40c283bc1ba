/* Points of players, in memory: they are lost when the program ends.
 * c++ -std=c++17 before.cpp -o before && ./before */
#include <iostream>
#include <map>
#include <string>
#include <vector>

struct player {
    long points = 0;
    std::vector<long> games;
};
using players = std::map<std::string, player>;

int main() {
    players all;
    std::string name;
    long points;
    while (std::cin >> name >> points) {
        player &who = all[name];
        who.games.push_back(points);
        who.points += points;
        std::cout << name << ": " << who.points << " points in " << who.games.size() << " games" << std::endl;
    }
}
