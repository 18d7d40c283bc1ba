/*
 * The memory and the locks of the benchmark's programs. With -DPLAIN ordinary memory under std::mutex, with -DPOOL a pool of
 * libpmemobj whose locks are transactions, else a live heap under untorn::mutex.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#if defined(PLAIN)

using mutex = std::mutex;
inline void open_memory(const char *, std::size_t, unsigned = 0) {}
inline void *allocate(std::size_t bytes) { return std::malloc(bytes); }
inline void *allocate_zeroed(std::size_t bytes) { return std::calloc(1, bytes); }
inline void release(void *block) { std::free(block); }
inline void log_old(void *, std::size_t) {}
inline void begin_logging() {}
inline bool commit() { return true; }
template <class T> T *found(const char *) { return nullptr; }
inline void keep(const char *, void *) {}

#elif defined(POOL)

/* As libpmemobj's headers have them. */
extern "C" {
struct pool_place {
    std::uint64_t pool, offset;
};
void *pmemobj_create(const char *path, const char *layout, std::size_t bytes, unsigned mode);
pool_place pmemobj_root(void *pool, std::size_t bytes);
void *pmemobj_direct(pool_place);
int pmemobj_tx_begin(void *pool, void *jump, ...);
int pmemobj_tx_add_range_direct(const void *at, std::size_t bytes);
void pmemobj_tx_commit(void);
int pmemobj_tx_end(void);
const char *pmemobj_errormsg(void);
}

static void *pool;
static unsigned char *pool_at, *pool_end;
static bool in_transactions = false;

/* Each section is a transaction. The map is built without any: its blocks are of one large object. */
struct mutex {
    std::mutex own;
    void lock() {
        own.lock();
        if (in_transactions && pmemobj_tx_begin(pool, nullptr, 0)) std::abort();
    }
    void unlock() {
        if (in_transactions) {
            pmemobj_tx_commit();
            if (pmemobj_tx_end()) std::abort();
        }
        own.unlock();
    }
};
inline void open_memory(const char *path, std::size_t bytes, unsigned = 0) {
    pool = pmemobj_create(path, "map", bytes + (64 << 20), 0600);
    if (!pool) {
        std::fprintf(stderr, "pmemobj_create: %s\n", pmemobj_errormsg());
        std::exit(1);
    }
    pool_at = static_cast<unsigned char *>(pmemobj_direct(pmemobj_root(pool, bytes)));
    if (!pool_at) std::abort();
    pool_end = pool_at + bytes;
}
inline void *allocate(std::size_t bytes) {
    unsigned char *const block = pool_at;
    pool_at += (bytes + 15) & ~std::size_t(15);
    if (pool_at > pool_end) std::abort();
    return block;
}
/* A new pool has zeros. */
inline void *allocate_zeroed(std::size_t bytes) { return allocate(bytes); }
inline void release(void *) {}
inline void log_old(void *at, std::size_t bytes) {
    if (in_transactions && pmemobj_tx_add_range_direct(at, bytes)) std::abort();
}
inline void begin_logging() { in_transactions = true; }
inline bool commit() { return true; }
template <class T> T *found(const char *) { return nullptr; }
inline void keep(const char *, void *) {}

#else

#include "untorn.hpp"

using mutex = untorn::mutex;
static untorn_heap *heap;
inline void open_memory(const char *path, std::size_t, unsigned cut_every_ms = 0) {
    untorn::heap_options how;
    how.flags = UNTORN_HEAP_LIVE;
#ifdef NO_LOG
    /* A control of the tests of kills: no hooks, and nobody logs. */
    how.flags |= UNTORN_HEAP_LOG_BY_HAND;
#endif
    how.cut_every_ms = cut_every_ms;
    static untorn::heap opened = untorn::heap::open_or_create(path, how);
    heap = opened.handle();
}
inline void *allocate(std::size_t bytes) {
    void *block = untorn_heap_malloc(heap, bytes);
    if (!block) std::abort();
    return block;
}
inline void *allocate_zeroed(std::size_t bytes) {
    void *block = untorn_heap_calloc(heap, 1, bytes);
    if (!block) std::abort();
    return block;
}
inline void release(void *block) { untorn_heap_free(heap, block); }
/* The hooks of the compiler log. */
inline void log_old(void *, std::size_t) {}
inline void begin_logging() {}
inline bool commit() { return untorn_heap_commit(heap) == 0; }

/* What a killed process has left under a name. */
template <class T> T *found(const char *name) {
    void *at = nullptr;
    if (untorn_heap_root(heap, name, "benchmark", 1, 1, 0, &at) < 0) std::abort();
    if (at && untorn_heap_live_start(heap) != UNTORN_LIVE_WENT_ON) {
        std::fprintf(stderr, "the heap went back to its last cut\n");
        std::exit(1);
    }
    return static_cast<T *>(at);
}
inline void keep(const char *name, void *at) {
    if (untorn_heap_set_root(heap, name, at, "benchmark", 1, 1, 0)) std::abort();
}

#endif
