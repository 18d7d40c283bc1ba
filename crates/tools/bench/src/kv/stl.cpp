/* std::map and std::unordered_map as key-value stores, on Untorn's heap and, without durability, in ordinary
   memory; built and called by the benchmark. A function that fails returns 0 or NULL; kv_error() returns the reason. */

#include "untorn_heap.hpp"

#include <array>
#include <map>
#include <memory>
#include <unordered_map>

namespace {

using key = std::array<unsigned char, 24>;

struct key_hash {
    std::size_t operator()(const key &key) const noexcept {
        return std::hash<std::string_view>()({reinterpret_cast<const char *>(key.data()), key.size()});
    }
};

const key &key_at(const unsigned char *bytes) { return *reinterpret_cast<const key *>(bytes); }

/* The work done for each value that is read, equal for all stores. */
std::uint64_t taste(std::string_view value) {
    if (value.empty()) return 0;
    return value.size() + static_cast<unsigned char>(value.front()) + static_cast<unsigned char>(value.back());
}

struct entry {
    const unsigned char *key;
    const char *value;
    std::size_t bytes;
};

struct counters {
    std::uint64_t commits, commits_waited, groups, checkpoints, syncs, journal_bytes;
};

struct kv_store {
    virtual ~kv_store() = default;
    virtual void put(const entry *entries, std::size_t n) = 0;
    virtual void remove(const unsigned char *key) = 0;
    virtual std::uint64_t read(const unsigned char *keys, std::size_t n) = 0;
    virtual void scan(std::uint64_t &count, std::uint64_t &sum) = 0;
    virtual counters count() { return {}; }
};

/* Operations on any map, and a way to make the map durable. */
template <class Map> class store : public kv_store {
public:
    void put(const entry *entries, std::size_t n) override {
        for (const entry *e = entries; e != entries + n; e++) all()[key_at(e->key)].assign(e->value, e->bytes);
        commit();
    }
    void remove(const unsigned char *key) override {
        all().erase(key_at(key));
        commit();
    }
    std::uint64_t read(const unsigned char *keys, std::size_t n) override {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < n; i++) {
            const auto found = all().find(key_at(keys + i * sizeof(key)));
            if (found != all().end()) sum += taste(found->second);
        }
        return sum;
    }
    void scan(std::uint64_t &count, std::uint64_t &sum) override {
        for (const auto &each : all()) count++, sum += taste(each.second);
    }

protected:
    virtual Map &all() = 0;
    virtual void commit() = 0;
};

/* With hooks, which report all stores, the tracker is explicit. */
#ifndef TRACKER
#define TRACKER UNTORN_TRACKER_ANY
#endif

untorn::heap_options options() {
    untorn::heap_options options;
    options.tracker = TRACKER;
    return options;
}

template <class Map> class durable : public store<Map> {
public:
    explicit durable(const char *directory)
        : store_(untorn::store::open_or_create(directory)), heap_(untorn::heap::open_or_create(store_, "heap", options())),
          all_(*heap_.root_or<Map>("all", heap_.allocator<typename Map::value_type>())) {}
    counters count() override {
        const untorn_status s = store_.status();
        return {s.commits, s.commits_waited, s.commit_groups, s.checkpoints, s.syncs, s.journal_bytes_written};
    }

protected:
    Map &all() override { return all_; }
    void commit() override { heap_.commit(); }

private:
    untorn::store store_;
    untorn::heap heap_;
    Map &all_;
};

template <class Map> class forgetful : public store<Map> {
protected:
    Map &all() override { return all_; }
    void commit() override {}

private:
    Map all_;
};

template <class T> using scoped = untorn::scoped_allocator<T>;
using tree = std::map<key, untorn::string, std::less<>, scoped<std::pair<const key, untorn::string>>>;
using table = std::unordered_map<key, untorn::string, key_hash, std::equal_to<>,
                                 scoped<std::pair<const key, untorn::string>>>;

std::string failure;

template <class Call> bool guarded(Call call) {
    try {
        call();
        return true;
    } catch (const std::exception &e) {
        failure = e.what();
        return false;
    }
}

} // namespace

extern "C" {

const char *kv_error() { return failure.c_str(); }

kv_store *kv_open(int kind, const char *directory) {
    std::unique_ptr<kv_store> opened;
    guarded([&] {
        switch (kind) {
        case 0: opened = std::make_unique<durable<tree>>(directory); break;
        case 1: opened = std::make_unique<durable<table>>(directory); break;
        case 2: opened = std::make_unique<forgetful<std::map<key, std::string>>>(); break;
        default: throw std::invalid_argument("no such kind of map");
        }
    });
    return opened.release();
}

bool kv_put(kv_store *store, const entry *entries, std::size_t n) {
    return guarded([&] { store->put(entries, n); });
}

bool kv_remove(kv_store *store, const unsigned char *key) {
    return guarded([&] { store->remove(key); });
}

bool kv_read(kv_store *store, const unsigned char *keys, std::size_t n, std::uint64_t *sum) {
    return guarded([&] { *sum = store->read(keys, n); });
}

bool kv_scan(kv_store *store, std::uint64_t *count, std::uint64_t *sum) {
    return guarded([&] { store->scan(*count, *sum); });
}

bool kv_count(kv_store *store, counters *counters) {
    return guarded([&] { *counters = store->count(); });
}

void kv_close(kv_store *store) { delete store; }
}
