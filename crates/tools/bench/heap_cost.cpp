/* Measures the calls of a heap in C and C++, in nanoseconds, compared with malloc. In Rust:
 * crates/core/untorn/examples/heap_cost.rs.
 * c++ -std=c++17 -O2 heap_cost.cpp $(pkg-config --cflags --libs untorn) -o heap_cost && ./heap_cost DIRECTORY */
#include <untorn.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

/* Blocks that a thread has at a time: the oldest one is freed when a new one is made. */
constexpr std::size_t LIVE = 1000;

/* Nanoseconds for each operation in the slowest of the threads, the least of several runs. Runs of one thread are so
 * short that most of them are not interrupted. */
template <class Work> static double each(std::size_t threads, std::size_t operations, Work work) {
    double least = 1e9;
    const std::size_t runs = threads == 1 ? 200 : 5, mine = operations / runs / threads;
    for (std::size_t run = 0; run < runs; run++) {
        std::vector<double> took(threads);
        std::vector<std::thread> all;
        for (double &time : took) {
            all.emplace_back([&] {
                const auto start = std::chrono::steady_clock::now();
                work(mine);
                time = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
            });
        }
        for (auto &thread : all) thread.join();
        least = std::min(least, *std::max_element(took.begin(), took.end()) / static_cast<double>(mine));
    }
    return least;
}

/* Blocks of 16 to 271 bytes. */
template <class Make, class End> static void churn(std::size_t operations, Make make, End end) {
    std::vector<void *> live(LIVE);
    for (std::size_t n = 0; n < operations + LIVE; n++) {
        void *&place = live[n % LIVE];
        if (place) end(place);
        place = n < operations ? make(16 + n * 97 % 256) : nullptr;
        if (!place && n < operations) std::abort();
    }
}

int main(int argc, char **argv) {
    const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/heap-cost";
    const std::size_t n = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 5000000;
    {
        auto heap = untorn::heap::open_or_create(path);
        untorn_heap *c = heap.handle();
        const double in_c = each(1, n, [&](std::size_t n) {
            while (n--) {
                if (untorn_heap_begin(c) != 0 || untorn_heap_end(c) != 0) std::abort();
            }
        });
        const double in_cpp = each(1, n, [&](std::size_t n) {
            while (n--) auto guard = heap.mutate();
        });
        std::printf("mutation guard, taken and given back: %.1f ns in C, %.1f ns in C++\n", in_c, in_cpp);
        for (std::size_t threads : {1, 2, 4}) {
            const double c_calls = each(threads, n, [&](std::size_t n) {
                churn(n, [&](std::size_t bytes) { return untorn_heap_malloc(c, bytes); }, [&](void *p) { untorn_heap_free(c, p); });
            });
            const double cpp = each(threads, n, [&](std::size_t n) {
                auto memory = heap.allocator<char>();
                churn(n, [&](std::size_t bytes) { return memory.allocate(bytes); },
                      [&](void *p) { memory.deallocate(static_cast<char *>(p), 0); });
            });
            const double malloc_ = each(threads, n, [](std::size_t n) {
                churn(n, [](std::size_t bytes) { return std::malloc(bytes); }, [](void *p) { std::free(p); });
            });
            std::printf("%zu threads: a block made and one freed: %.1f ns by untorn_heap_malloc, %.1f ns by "
                        "untorn::allocator, %.1f ns by malloc\n", threads, c_calls, cpp, malloc_);
        }
    }
    return std::remove(path.c_str());
}
