/*
 * Sections of live heaps for C++17: critical sections that are all or nothing when the process is killed.
 * untorn_heap.hpp includes this header. Compile and link with untorn-c++.
 *
 *     untorn::mutex lock;                              // beside the heap, or in it
 *     {
 *         const std::lock_guard<untorn::mutex> guard(lock);
 *         from.coins -= 30;
 *         to.coins += 30;
 *     }                                                // both have happened, or neither
 *
 * The mutexes go with std::lock_guard, std::unique_lock, std::shared_lock, std::scoped_lock and
 * std::condition_variable_any. A section lasts from the first mutex that a thread locks until it has unlocked all of them.
 * An exception that leaves a section ends it with the changes made by then, as in ordinary memory.
 */

#ifndef UNTORN_SECTION_HPP
#define UNTORN_SECTION_HPP

#include "untorn_heap.hpp"

#if UNTORN_HAS_CPP17

namespace untorn {

/** A mutex of sections: untorn_mutex_lock(). */
class mutex {
public:
    /** A mutex for the heap that it lies in, or for the only live heap. */
    constexpr mutex() noexcept = default;
    /** A mutex for the sections of a heap. */
    explicit mutex(const heap &of) { detail::check(untorn_mutex_init(&mutex_, of.handle())); }
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;

    void lock() { detail::check(untorn_mutex_lock(&mutex_)); }
    bool try_lock() { return detail::check(untorn_mutex_trylock(&mutex_)) == 1; }
    void unlock() { detail::check(untorn_mutex_unlock(&mutex_)); }
    untorn_mutex *native_handle() { return &mutex_; }

private:
    untorn_mutex mutex_ = {};
};

/** A mutex of sections that several readers can hold at the same time: untorn_mutex_lock_shared(). */
class shared_mutex : public mutex {
public:
    using mutex::mutex;

    void lock_shared() { detail::check(untorn_mutex_lock_shared(native_handle())); }
    bool try_lock_shared() { return detail::check(untorn_mutex_trylock_shared(native_handle())) == 1; }
    void unlock_shared() { detail::check(untorn_mutex_unlock_shared(native_handle())); }
};

/** A section without a mutex, as long as the object lives: untorn_section_begin(). */
class section {
public:
    explicit section(heap &of) : heap_(of.handle()) { detail::check(untorn_section_begin(heap_)); }
    ~section() { untorn_section_end(heap_); }
    section(const section &) = delete;
    section &operator=(const section &) = delete;

    /** Takes back the changes of the thread's section so far: untorn_section_abort(). The section continues. */
    void abort() { detail::check(untorn_section_abort(heap_)); }

private:
    untorn_heap *heap_;
};

/** Calls a function once this thread's sections so far cannot be undone any more: untorn_on_stable(). */
template <class Function> void on_stable(heap &of, Function &&function) {
    using stored = std::decay_t<Function>;
    auto copy = std::make_unique<stored>(std::forward<Function>(function));
    const auto call = [](void *argument) { (*std::unique_ptr<stored>(static_cast<stored *>(argument)))(); };
    detail::check(untorn_on_stable(of.handle(), call, copy.get()));
    copy.release();
}

} // namespace untorn

#endif // UNTORN_HAS_CPP17

#endif
