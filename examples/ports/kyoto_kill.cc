/* Kills a program that uses Kyoto Cabinet with automatic synchronization and without transactions, many
 * times, and compares the database with an oracle after each kill: kyoto_kill hash|tree FILE ROUNDS SEED.
 * The database is opened with ONOREPAIR: only Untorn recovers it. */
#include <kchashdb.h>
#include <kcplantdb.h>

#include <map>
#include <memory>
#include <string>

#include "kill.h"

using namespace kyotocabinet;

using Model = std::map<std::string, std::string>;

static std::string path;
static bool tree;

static std::unique_ptr<BasicDB> open_database() {
    std::unique_ptr<BasicDB> db;
    if (tree) {
        auto made = std::make_unique<TreeDB>();
        made->tune_buckets(500);
        made->tune_page(512); /* so that pages split and merge often */
        db = std::move(made);
    } else {
        auto made = std::make_unique<HashDB>();
        made->tune_buckets(500);
        db = std::move(made);
    }
    const uint32_t mode = BasicDB::OWRITER | BasicDB::OCREATE | BasicDB::OAUTOSYNC | BasicDB::ONOREPAIR;
    return db->open(path, mode) ? std::move(db) : nullptr;
}

/* Makes the changes of step n, to the database or to the oracle. */
template <class Set, class Remove> static void step(uint64_t n, Set set, Remove remove) {
    const uint64_t chance = mix(n);
    const std::string key = "key " + std::to_string(chance % 700);
    if (chance >> 32 & 3) {
        set(key, std::to_string(n) + std::string(chance >> 40 & 255, 'x'));
    } else {
        remove(key);
    }
}

static void take(Model &model, uint64_t n) {
    step(n, [&](const auto &key, const auto &value) { model[key] = value; }, [&](const auto &key) { model.erase(key); });
}

static void work(volatile struct progress *progress) {
    auto db = open_database();
    if (!db) _exit(2);
    for (uint64_t n = progress->done + 1;; n++) {
        progress->begun = n;
        auto set = [&](const auto &key, const auto &value) {
            if (!db->set(key, value)) _exit(3);
        };
        auto remove = [&](const auto &key) {
            if (!db->remove(key) && db->error() != BasicDB::Error::NOREC) _exit(4);
        };
        step(n, set, remove);
        progress->done = n;
    }
}

/* All records of the database; none if it is broken. */
static bool contents(Model &found) {
    auto db = open_database();
    if (!db) return false;
    std::unique_ptr<BasicDB::Cursor> cursor(db->cursor());
    cursor->jump();
    std::string key, value;
    while (cursor->get(&key, &value, true)) {
        std::string again;
        if (!db->get(key, &again) || again != value || !found.emplace(key, value).second) return false;
    }
    return cursor->error() == BasicDB::Error::NOREC && db->count() == (int64_t)found.size();
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    tree = std::string(argv[1]) == "tree";
    path = argv[2];
    const int rounds = std::atoi(argv[3]);
    const uint64_t seed = std::strtoull(argv[4], nullptr, 0);
    volatile struct progress *progress = shared_progress();
    Model model;
    uint64_t known = 0, torn = 0, in_flight = 0, steps = 0;
    for (int round = 0; round < rounds; round++) {
        const bool killed = kill_at(mix(seed + round), work, progress);
        for (; known < progress->done; known++) take(model, known + 1);
        Model next = model, found;
        if (progress->begun > known) take(next, progress->begun);
        if (!killed || !contents(found) || (found != model && found != next)) {
            torn++;
            File::remove(path);
            model.clear();
            steps += known;
            known = progress->begun = progress->done = 0;
            continue;
        }
        if (found == next && progress->begun > known) {
            in_flight++;
            model = next;
            known = progress->done = progress->begun;
        }
    }
    std::printf("%s: %d kills, %llu steps, %llu finished by recovery, %llu torn (seed %#llx)\n", argv[1], rounds,
                (unsigned long long)(steps + known), (unsigned long long)in_flight, (unsigned long long)torn,
                (unsigned long long)seed);
    return torn > 0;
}
