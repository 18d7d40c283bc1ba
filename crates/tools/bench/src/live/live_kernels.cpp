/*
 * Three kernels in the manner of Splash-2, whose shared data are in a live heap and change in sections only. live_memory.hpp says
 * in which memory, and under which locks. Each checks its result.
 *
 *     live_kernels HEAP KERNEL SIZE THREADS MILLISECONDS     prints operations per second
 *
 * KERNEL: lu (factors a matrix of SIZE x SIZE numbers by blocks: a block is computed in private memory, and stored under its lock;
 * operations are multiplications with an addition), radix (sorts SIZE numbers of 32 bits by their bytes: the histogram that all
 * threads share has locks; numbers move to another array outside of sections, as a pass that was interrupted can be repeated;
 * operations are numbers moved), water (forces between SIZE molecules and their motion: for each pair, the force is added under the
 * lock of a molecule; operations are pairs).
 */

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "live_memory.hpp"

using guard = std::lock_guard<mutex>;

static long thread_count;

static std::uint64_t next(std::uint64_t &random) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
}

static double next_number(std::uint64_t &random) { return double(next(random) >> 11) / double(1ull << 53) - 0.5; }

[[noreturn]] static void wrong(const char *kernel, double by) {
    std::fprintf(stderr, "%s: the result is wrong by %g\n", kernel, by);
    std::exit(1);
}

/* Threads wait here for each other. */
class meeting {
    std::atomic<long> arrived{0}, rounds{0};

public:
    void wait() {
        const long round = rounds;
        if (++arrived == thread_count) {
            arrived = 0;
            rounds++;
        }
        while (rounds == round) std::this_thread::yield();
    }
};
static meeting all_threads;

/* LU factorisation without pivoting, of a matrix whose diagonal dominates. Blocks lie one after the other. */
class lu {
    static constexpr long side = 16;
    struct block {
        double number[side][side];
    };
    const long blocks;
    block *matrix;
    std::vector<mutex> locks;
    std::vector<double> first;

    block &at(long row, long column) { return matrix[row * blocks + column]; }
    mutex &lock(long row, long column) { return locks[row * blocks + column]; }
    bool is_of(long thread, long row, long column) const { return (row * blocks + column) % thread_count == thread; }
    double &number(long row, long column) { return at(row / side, column / side).number[row % side][column % side]; }

    void store(long row, long column, const block &made) {
        const guard section(lock(row, column));
        at(row, column) = made;
    }
    void factor(long k) {
        block a = at(k, k);
        for (long step = 0; step < side; step++) {
            for (long row = step + 1; row < side; row++) {
                const double by = a.number[row][step] /= a.number[step][step];
                for (long column = step + 1; column < side; column++) a.number[row][column] -= by * a.number[step][column];
            }
        }
        store(k, k, a);
    }
    /* A block right of the diagonal, by the lower half of the diagonal's. */
    void by_lower(long k, long column) {
        const block &diagonal = at(k, k);
        block a = at(k, column);
        for (long step = 0; step < side; step++) {
            for (long row = step + 1; row < side; row++) {
                for (long one = 0; one < side; one++) a.number[row][one] -= diagonal.number[row][step] * a.number[step][one];
            }
        }
        store(k, column, a);
    }
    /* A block below the diagonal, by the upper half of the diagonal's. */
    void by_upper(long row, long k) {
        const block &diagonal = at(k, k);
        block a = at(row, k);
        for (long step = 0; step < side; step++) {
            for (long one = 0; one < side; one++) {
                const double by = a.number[one][step] /= diagonal.number[step][step];
                for (long column = step + 1; column < side; column++) a.number[one][column] -= by * diagonal.number[step][column];
            }
        }
        store(row, k, a);
    }
    void subtract(long row, long column, long k) {
        const block &left = at(row, k), &above = at(k, column), &now = at(row, column);
        block a;
        for (long one = 0; one < side; one++) {
            for (long other = 0; other < side; other++) {
                double sum = now.number[one][other];
                for (long step = 0; step < side; step++) sum -= left.number[one][step] * above.number[step][other];
                a.number[one][other] = sum;
            }
        }
        store(row, column, a);
    }

public:
    explicit lu(long size)
        : blocks(size / side), matrix(static_cast<block *>(allocate_zeroed(blocks * blocks * sizeof(block)))),
          locks(blocks * blocks), first(blocks * side * blocks * side) {
        std::uint64_t random = 88172645463325252ul;
        const long size_here = blocks * side;
        for (long row = 0; row < size_here; row++) {
            for (long column = 0; column < size_here; column++) {
                first[row * size_here + column] = next_number(random) + (row == column ? double(size_here) : 0);
            }
        }
    }
    void prepare() {
        const long size = blocks * side;
        for (long row = 0; row < size; row++) {
            for (long column = 0; column < size; column++) number(row, column) = first[row * size + column];
        }
    }
    double run(long thread) {
        for (long k = 0; k < blocks; k++) {
            if (is_of(thread, k, k)) factor(k);
            all_threads.wait();
            for (long other = k + 1; other < blocks; other++) {
                if (is_of(thread, k, other)) by_lower(k, other);
                if (is_of(thread, other, k)) by_upper(other, k);
            }
            all_threads.wait();
            for (long row = k + 1; row < blocks; row++) {
                for (long column = k + 1; column < blocks; column++) {
                    if (is_of(thread, row, column)) subtract(row, column, k);
                }
            }
            all_threads.wait();
        }
        return std::pow(double(blocks * side), 3) / 3;
    }
    /* L·(U·x) is the first matrix·x. */
    void check() {
        const long size = blocks * side;
        std::uint64_t random = 1234567;
        std::vector<double> x(size), upper(size);
        for (double &one : x) one = next_number(random);
        for (long row = 0; row < size; row++) {
            for (long column = row; column < size; column++) upper[row] += number(row, column) * x[column];
        }
        for (long row = 0; row < size; row++) {
            double product = upper[row], expected = 0;
            for (long column = 0; column < row; column++) product += number(row, column) * upper[column];
            for (long column = 0; column < size; column++) expected += first[row * size + column] * x[column];
            if (!(std::fabs(product - expected) < 1e-9 * double(size))) wrong("lu", product - expected);
        }
    }
};

class radix {
    static constexpr long digits = 256, passes = 4, digits_of_a_lock = 16;
    const long size;
    std::uint32_t *from, *to;
    /* Of each digit: how often it is there in all threads' parts, and in each thread's. */
    long *histogram, *own;
    long *passes_done;
    std::vector<mutex> digit_locks;
    mutex passes_lock;
    std::vector<std::uint32_t> first;

    static long digit_of(std::uint32_t number, long pass) { return number >> (8 * pass) & (digits - 1); }
    long begin_of(long thread) const { return size * thread / thread_count; }

    void count(long thread, const std::uint32_t *numbers, long pass) {
        long here[digits] = {};
        for (long n = begin_of(thread); n < begin_of(thread + 1); n++) here[digit_of(numbers[n], pass)]++;
        for (long group = 0; group < digits; group += digits_of_a_lock) {
            const guard section(digit_locks[group / digits_of_a_lock]);
            for (long digit = group; digit < group + digits_of_a_lock; digit++) {
                histogram[pass * digits + digit] += here[digit];
                own[thread * digits + digit] = here[digit];
            }
        }
    }
    void move(long thread, const std::uint32_t *numbers, std::uint32_t *sorted, long pass) {
        long place[digits], sum = 0;
        for (long digit = 0; digit < digits; digit++) {
            place[digit] = sum;
            for (long before = 0; before < thread; before++) place[digit] += own[before * digits + digit];
            sum += histogram[pass * digits + digit];
        }
        for (long n = begin_of(thread); n < begin_of(thread + 1); n++) sorted[place[digit_of(numbers[n], pass)]++] = numbers[n];
    }
    void end(long pass) {
        const guard section(passes_lock);
        *passes_done = pass + 1;
    }

public:
    explicit radix(long size)
        : size(size), from(static_cast<std::uint32_t *>(allocate_zeroed(size * sizeof(*from)))),
          to(static_cast<std::uint32_t *>(allocate_zeroed(size * sizeof(*to)))),
          histogram(static_cast<long *>(allocate_zeroed(passes * digits * sizeof(long)))),
          own(static_cast<long *>(allocate_zeroed(thread_count * digits * sizeof(long)))),
          passes_done(static_cast<long *>(allocate_zeroed(sizeof(long)))), digit_locks(digits / digits_of_a_lock), first(size) {
        std::uint64_t random = 88172645463325252ul;
        for (std::uint32_t &one : first) one = std::uint32_t(next(random) >> 16);
    }
    void prepare() {
        std::memcpy(from, first.data(), size * sizeof(*from));
        std::memset(histogram, 0, passes * digits * sizeof(long));
    }
    double run(long thread) {
        std::uint32_t *numbers = from, *sorted = to;
        for (long pass = 0; pass < passes; pass++, std::swap(numbers, sorted)) {
            count(thread, numbers, pass);
            all_threads.wait();
            move(thread, numbers, sorted, pass);
            all_threads.wait();
            if (thread == 0) end(pass);
        }
        return double(size * passes);
    }
    /* Sorted, and the same numbers by their sum and the sum of their squares. */
    void check() {
        if (*passes_done != passes) wrong("radix", double(*passes_done));
        std::uint64_t sums[2] = {}, squares[2] = {};
        for (long n = 0; n < size; n++) {
            if (n > 0 && from[n - 1] > from[n]) wrong("radix", double(n));
            const std::uint64_t numbers[2] = {first[n], from[n]};
            for (int which = 0; which < 2; which++) {
                sums[which] += numbers[which], squares[which] += numbers[which] * numbers[which];
            }
        }
        if (sums[0] != sums[1] || squares[0] != squares[1]) wrong("radix", double(sums[0]) - double(sums[1]));
    }
};

/* Molecules that attract and repel each other by the potential of Lennard and Jones, and move in small steps. */
class water {
    static constexpr long steps = 4;
    struct molecule {
        double place[3], speed[3], force[3];
    };
    const long size;
    molecule *all;
    std::vector<mutex> locks;
    std::vector<molecule> first;

    /* The force of another molecule on one. */
    static void attract(const molecule &one, const molecule &other, double *force) {
        double way[3], square = 0.1;
        for (int axis = 0; axis < 3; axis++) {
            way[axis] = one.place[axis] - other.place[axis];
            square += way[axis] * way[axis];
        }
        const double sixth = 1 / (square * square * square), strength = 24 * sixth * (2 * sixth - 1) / square;
        for (int axis = 0; axis < 3; axis++) force[axis] = strength * way[axis];
    }
    void add(long which, const double *force, double sign) {
        const guard section(locks[which]);
        for (int axis = 0; axis < 3; axis++) all[which].force[axis] += sign * force[axis];
    }
    void push(long one) {
        double sum[3] = {};
        for (long distance = 1; distance <= (size - 1) / 2; distance++) {
            const long other = (one + distance) % size;
            double force[3];
            attract(all[one], all[other], force);
            for (int axis = 0; axis < 3; axis++) sum[axis] += force[axis];
            add(other, force, -1);
        }
        add(one, sum, 1);
    }
    void move(molecule &one, mutex &lock) {
        const guard section(lock);
        for (int axis = 0; axis < 3; axis++) {
            one.speed[axis] += 1e-4 * one.force[axis];
            one.place[axis] += 1e-4 * one.speed[axis];
            one.force[axis] = 0;
        }
    }

public:
    /* An odd number, so that each pair is met once. */
    explicit water(long wanted)
        : size(wanted | 1), all(static_cast<molecule *>(allocate_zeroed(size * sizeof(molecule)))), locks(size), first(size) {
        std::uint64_t random = 88172645463325252ul;
        const long edge = long(std::ceil(std::cbrt(double(size))));
        for (long n = 0; n < size; n++) {
            const long grid[3] = {n % edge, n / edge % edge, n / edge / edge};
            for (int axis = 0; axis < 3; axis++) first[n].place[axis] = double(grid[axis]) + 0.2 * next_number(random);
        }
    }
    void prepare() { std::memcpy(all, first.data(), size * sizeof(molecule)); }
    double run(long thread) {
        for (long step = 0; step < steps; step++) {
            for (long one = thread; one < size; one += thread_count) push(one);
            all_threads.wait();
            for (long one = thread; one < size; one += thread_count) move(all[one], locks[one]);
            all_threads.wait();
        }
        return double(steps) * double(size) * double(size - 1) / 2;
    }
    /* All began at rest: the sum of the speeds is zero, and they are not. */
    void check() {
        double sum[3] = {}, most = 0;
        for (long n = 0; n < size; n++) {
            for (int axis = 0; axis < 3; axis++) {
                sum[axis] += all[n].speed[axis];
                most = std::fmax(most, std::fabs(all[n].speed[axis]));
            }
        }
        for (const double one : sum) {
            if (!(std::fabs(one) <= 1e-9 * most * double(size)) || !(most > 1e-6)) wrong("water", one);
        }
    }
};

template <class Kernel> static void measure(long size, long milliseconds) {
    Kernel &kernel = *new Kernel(size);
    double operations = 0;
    std::chrono::duration<double> took(0);
    do {
        kernel.prepare();
        std::atomic<long> ready(0);
        std::vector<std::thread> workers;
        std::vector<double> done(thread_count);
        std::chrono::steady_clock::time_point begun;
        for (long thread = 0; thread < thread_count; thread++) {
            workers.emplace_back([&, thread] {
                ready++;
                while (ready <= thread_count) std::this_thread::yield();
                done[thread] = kernel.run(thread);
            });
        }
        while (ready < thread_count) std::this_thread::yield();
        begun = std::chrono::steady_clock::now();
        ready++;
        for (std::thread &worker : workers) worker.join();
        took += std::chrono::steady_clock::now() - begun;
        operations += done[0];
        kernel.check();
    } while (took.count() * 1000 < double(milliseconds));
    std::printf("%.0f\n", operations / took.count());
}

int main(int argc, char **arguments) {
    if (argc != 6) return 2;
    const char *kernel = arguments[2];
    const long size = std::atol(arguments[3]), milliseconds = std::atol(arguments[5]);
    thread_count = std::atol(arguments[4]);
    open_memory(arguments[1], 0);
    switch (kernel[0]) {
    case 'l': measure<lu>(size, milliseconds); break;
    case 'r': measure<radix>(size, milliseconds); break;
    case 'w': measure<water>(size, milliseconds); break;
    default: return 2;
    }
    std::fflush(stdout);
    /* As if it was killed: the last cut is no part of this. */
    std::_Exit(0);
}
