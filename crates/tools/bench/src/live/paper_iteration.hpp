/*
 * The iteration of Table 1 of Procrastination Beats Prevention (HPL-2014-70), and its equations. In its n-th iteration a thread
 *
 *     sets its first counter to n;  adds to the number of a random key;  sets its second counter to n.
 *
 * Each step is a section, or one atomic store. A kill stops each thread within a step: the earlier steps are kept, and this one is
 * there or not. So after each kill
 *
 *     (1)  first counter >= second counter >= first counter - 1, for each thread;
 *     (2)  sum of the second counters <= additions to all numbers <= sum of the first counters;
 *     (3)  in the map, each number is its key times the additions to it: both are stored in one section.
 *
 * The controls of the tests: -DSWAPPED sets the second counter before it adds, against (2). -DSLOW waits between the two stores
 * of an addition, so that a kill comes there often; without a log this is against (3).
 */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

inline void wait_a_little() {
#ifdef SLOW
    for (volatile int n = 0; n < 500;) n = n + 1;
#endif
}

/* Set, add, set: three calls. */
template <class Set, class Add> void iterate_once(long n, long key, Set &&set, Add &&add) {
    set(0, n);
#ifdef SWAPPED
    set(1, n);
    add(key);
#else
    add(key);
    set(1, n);
#endif
}

/* The counters and the additions that a kill has left. */
struct left_by_kill {
    struct thread {
        long first = 0, second = 0;
    };
    std::vector<thread> threads;
    long added = 0;

    explicit left_by_kill(long count) : threads(count) {}

    long firsts() const {
        long sum = 0;
        for (const thread &one : threads) sum += one.first;
        return sum;
    }

    /* Ends the process if an equation does not hold; else prints how many threads were within an iteration. */
    void check() const {
        long second = 0, within = 0;
        for (const thread &one : threads) {
            if (one.first < one.second || one.second < one.first - 1) violated(1, one.first, one.second);
            second += one.second;
            within += one.first != one.second;
        }
        if (second > added || added > firsts()) violated(2, added, second);
        std::printf("holds %ld iterations, threads within one: %ld\n", second, within);
    }

    [[noreturn]] static void violated(int equation, long one, long other) {
        std::printf("violated (%d): %ld, %ld\n", equation, one, other);
        std::fflush(stdout);
        std::_Exit(1);
    }
};
