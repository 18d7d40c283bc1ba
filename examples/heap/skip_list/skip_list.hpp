/*
 * A lock-free skip list: sorted keys, each with a number, for any number of threads at once (Herlihy, Lev and Shavit). Nothing
 * in it knows of heaps, kills or commits: it is whole after each of its stores, so that in a live heap it is whole whenever the
 * process ends, too.
 *
 * A removed node stays in memory as long as the threads run, as one of them may be at it; skip_list::recover(), before the
 * threads begin, frees it.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <set>

class skip_list {
public:
    static constexpr int levels = 16;

    struct node {
        long key;
        std::atomic<long> number;
        /* The next one of those that were removed. */
        std::atomic<node *> removed_before;
        int height;
        /* As many as the node is high. The lowest bit: this node is removed from that level. */
        std::atomic<std::uintptr_t> next[1];
    };

    /* `memory(bytes)` allocates. */
    template <class Memory> explicit skip_list(Memory &&memory) : first(make(memory, 0, 0, levels)), removed(nullptr) {}

    template <class Memory> static node *make(Memory &&memory, long key, long number, int height) {
        const std::size_t bytes = sizeof(node) + (height - 1) * sizeof(std::atomic<std::uintptr_t>);
        node *made = static_cast<node *>(memory(bytes));
        made->key = key;
        new (&made->number) std::atomic<long>(number);
        new (&made->removed_before) std::atomic<node *>(nullptr);
        made->height = height;
        for (int level = 0; level < height; level++) new (&made->next[level]) std::atomic<std::uintptr_t>(0);
        return made;
    }

    /* One in two nodes has a second level, one in four a third one, and so on. */
    static int height_of(std::uint64_t random) {
        int height = 1;
        for (; random & 1 && height < levels; random >>= 1) height++;
        return height;
    }

    /* The node of a key, or NULL. */
    node *find(long key) const {
        const node *left = first;
        node *right = nullptr;
        for (int level = levels - 1; level >= 0; level--) {
            for (right = to(left->next[level]); right; right = to(right->next[level])) {
                if (right->next[level].load() & 1) continue;
                if (right->key >= key) break;
                left = right;
            }
        }
        return right && right->key == key ? right : nullptr;
    }

    /* Puts a node in. False: its key is there. */
    bool put(node *made) {
        node *before[levels], *after[levels];
        for (;;) {
            if (search(made->key, before, after)) return false;
            for (int level = 0; level < made->height; level++) made->next[level].store(address(after[level]));
            /* From here on it is in the list. */
            if (link(before[0], 0, after[0], made)) break;
        }
        for (int level = 1; level < made->height; level++) {
            for (;;) {
                std::uintptr_t own = made->next[level].load();
                if (own & 1) return true;
                /* Fails if somebody removes the node. */
                if (own != address(after[level]) && !made->next[level].compare_exchange_strong(own, address(after[level])))
                    return true;
                if (link(before[level], level, after[level], made)) break;
                if (!search(made->key, before, after) || after[0] != made) return true;
            }
        }
        return true;
    }

    /* Removes the node of a key, which was put in whole. False: there is none. */
    bool remove(long key) {
        node *before[levels], *after[levels];
        if (!search(key, before, after)) return false;
        node *gone = after[0];
        for (int level = gone->height - 1; level >= 1; level--) gone->next[level].fetch_or(1);
        /* From here on it is not in the list. */
        if (gone->next[0].fetch_or(1) & 1) return false;
        search(key, before, after);
        remember(gone);
        return true;
    }

    /* Calls `each` with all nodes, in order. */
    template <class Each> void for_each(Each &&each) const {
        for (node *one = to(first->next[0]); one; one = to(one->next[0])) {
            if (!is_removed(one)) each(*one);
        }
    }

    /* Before the threads begin: unlinks nodes whose removal was interrupted, and gives `release` what was removed. May be
       interrupted, too. */
    template <class Release> void recover(Release &&release) {
        std::set<node *> known;
        for (node *one = removed; one; one = one->removed_before) known.insert(one);
        for (int level = levels - 1; level >= 0; level--) {
            for (node *left = first, *right; (right = to(left->next[level]));) {
                if (!is_removed(right) && !(right->next[level].load() & 1)) {
                    left = right;
                    continue;
                }
                if (is_removed(right) && known.insert(right).second) remember(right);
                left->next[level].store(address(to(right->next[level])));
            }
        }
        while (node *one = removed) {
            removed.store(one->removed_before);
            /* Nothing leads to it any more: a program that ends here leaks it. */
            release(one);
        }
    }

private:
    /* Less than all keys. */
    node *const first;
    std::atomic<node *> removed;

    static std::uintptr_t address(const node *one) { return reinterpret_cast<std::uintptr_t>(one); }
    static node *to(const std::atomic<std::uintptr_t> &link) {
        return reinterpret_cast<node *>(link.load() & ~std::uintptr_t(1));
    }
    static bool is_removed(const node *one) { return one->next[0].load() & 1; }

    static bool link(node *before, int level, node *after, node *made) {
        std::uintptr_t expected = address(after);
        return before->next[level].compare_exchange_strong(expected, address(made));
    }

    void remember(node *gone) {
        node *other = removed.load();
        do gone->removed_before.store(other);
        while (!removed.compare_exchange_weak(other, gone));
    }

    /* The nodes before and behind a key's place, by level; unlinks removed ones on the way. Whether the key is there. */
    bool search(long key, node **before, node **after) {
    again:
        node *left = first;
        for (int level = levels - 1; level >= 0; level--) {
            node *right = to(left->next[level]);
            while (right) {
                const std::uintptr_t next = right->next[level].load();
                if (next & 1) {
                    std::uintptr_t expected = address(right);
                    if (!left->next[level].compare_exchange_strong(expected, next & ~std::uintptr_t(1))) goto again;
                    right = to(left->next[level]);
                } else if (right->key < key) {
                    left = right;
                    right = reinterpret_cast<node *>(next);
                } else {
                    break;
                }
            }
            before[level] = left;
            after[level] = right;
        }
        return after[0] && after[0]->key == key;
    }
};
