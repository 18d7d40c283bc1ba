/*
 * Untorn for C++17: the standard containers in a file. Header-only; link with libuntorn.
 *
 *     untorn::heap heap("words");
 *     using words = std::unordered_map<untorn::string, int, std::hash<untorn::string_view>, ...>; or simply
 *     using words = std::map<int, untorn::string, std::less<>, untorn::allocator<std::pair<const int, untorn::string>>>;
 *     auto &all = *heap.root_or<words>("words", heap.allocator<words::value_type>());
 *     all.emplace(1, untorn::string("one", heap.allocator<char>()));
 *     heap.commit();                               // all of it, or nothing, also after a crash
 *
 * A heap is always mapped at the same address, so that pointers in it stay good. What cannot work, as it
 * points out of the heap: classes with virtual functions (refused at compile time), std::string and other
 * containers with their own allocator, std::pmr, pointers to functions, references to static data.
 *
 * Containers in containers get the heap's allocator handed down by untorn::scoped_allocator.
 */

#ifndef UNTORN_HEAP_HPP
#define UNTORN_HEAP_HPP

#include <functional>
#include <limits>
#include <new>
#include <scoped_allocator>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>

#include "untorn.hpp"

namespace untorn {

class heap;

/**
 * Allocates in the heap that begins at an address: the same after a restart, so it may lie in the heap
 * itself. There is none without a heap: a static container that would allocate before its heap is open does
 * not compile.
 */
template <class T> class allocator {
public:
    using value_type = T;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    allocator() = delete;
    explicit allocator(const heap &of) noexcept;
    template <class U> allocator(const allocator<U> &other) noexcept : base_(other.base()) {}

    [[nodiscard]] T *allocate(std::size_t n) {
        static_assert(!std::is_polymorphic_v<T>, "a class with virtual functions points out of the heap");
        static_assert(alignof(T) <= 4096, "a heap aligns to at most 4096 bytes");
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        void *memory = untorn_heap_allocate_at(base_, alignof(T), n * sizeof(T));
        if (!memory) throw std::bad_alloc();
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, std::size_t) noexcept { untorn_heap_free_at(base_, memory); }

    const void *base() const noexcept { return base_; }
    friend bool operator==(const allocator &a, const allocator &b) noexcept { return a.base_ == b.base_; }
    friend bool operator!=(const allocator &a, const allocator &b) noexcept { return a.base_ != b.base_; }

private:
    const void *base_;
};

/** The same, handed down to what is in containers. */
template <class T> using scoped_allocator = std::scoped_allocator_adaptor<allocator<T>>;
/** A string in a heap. */
using string = std::basic_string<char, std::char_traits<char>, allocator<char>>;

/** Hashes strings in heaps as std::hash does others. */
struct string_hash {
    std::size_t operator()(const string &text) const noexcept { return std::hash<std::string_view>()(text); }
};

/** How to open a heap, with defaults: untorn_heap_options. */
struct heap_options : untorn_heap_options {
    heap_options() : untorn_heap_options() { size = sizeof(untorn_heap_options); }
};

/** A persistent heap: untorn_heap_open(). */
class heap : public detail::owner<untorn_heap, untorn_heap_close> {
public:
    /** A heap file with a store of its own beside it; made if there is none. */
    explicit heap(const std::string &path, const heap_options &how = {}, const options &store_options = {})
        : owner(untorn_heap_open(path.c_str(), &how, &store_options)) {}
    /** A heap in a store, by its name. */
    heap(const store &in, const std::string &name, const heap_options &how = {})
        : owner(untorn_heap_open_at(in.handle(), name.c_str(), &how)) {}

    template <class T> untorn::allocator<T> allocator() const noexcept { return untorn::allocator<T>(*this); }

    /** Makes an object in the heap. */
    template <class T, class... Arguments> T *make(Arguments &&...arguments) {
        untorn::allocator<T> memory(*this);
        T *place = memory.allocate(1);
        try {
            return new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...);
        } catch (...) {
            memory.deallocate(place, 1);
            throw;
        }
    }
    /** Ends one that make() made. */
    template <class T> void destroy(T *object) noexcept {
        if (!object) return;
        object->~T();
        untorn::allocator<T>(*this).deallocate(object, 1);
    }

    /** Finds a root; nullptr: there is none. Throws if it was set as another type or version. */
    template <class T> T *root(const char *name, std::uint32_t version = 0) const {
        void *found;
        detail::check(untorn_heap_root(handle(), name, typeid(T).name(), sizeof(T), alignof(T), version, &found));
        return static_cast<T *>(found);
    }
    /** Hangs an object on a name; nullptr removes the root. */
    template <class T> void set_root(const char *name, T *object, std::uint32_t version = 0) {
        static_assert(!std::is_polymorphic_v<T>, "a class with virtual functions points out of the heap");
        detail::check(
            untorn_heap_set_root(handle(), name, object, typeid(T).name(), sizeof(T), alignof(T), version));
    }
    /** Finds a root, or makes it. */
    template <class T, class... Arguments> T *root_or(const char *name, Arguments &&...arguments) {
        if (T *found = root<T>(name)) return found;
        T *made = make<T>(std::forward<Arguments>(arguments)...);
        set_root(name, made);
        return made;
    }

    /** Commits all changes, durable on return. */
    void commit() { detail::check(untorn_heap_commit(handle())); }
    /** Starts a commit of what was changed by now. */
    ticket commit_async() { return ticket(untorn_heap_commit_async(handle())); }
    /** Back to the last commit; pointers to what was made since are good no more. */
    void rollback() { detail::check(untorn_heap_rollback(handle())); }

    /** As long as it lives, no commit takes place: for heaps that several threads change. */
    class mutation {
    public:
        explicit mutation(heap &of) : heap_(of.handle()) { detail::check(untorn_heap_begin(heap_)); }
        ~mutation() { untorn_heap_end(heap_); }
        mutation(const mutation &) = delete;
        mutation &operator=(const mutation &) = delete;

    private:
        untorn_heap *heap_;
    };
    mutation mutate() { return mutation(*this); }

    /** Closes the heap, and throws if that fails. What is not committed is DISCARDED. */
    void close() { close_by(untorn_heap_close); }
};

template <class T> allocator<T>::allocator(const heap &of) noexcept : base_(untorn_heap_base(of.handle())) {}

} // namespace untorn

#endif
