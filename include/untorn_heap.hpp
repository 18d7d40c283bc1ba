/*
 * The heap part of untorn.hpp, which includes it: the standard containers in a file.
 *
 *     untorn::heap heap("words");
 *     using words = untorn::in_heap::unordered_map<untorn::string, long>;
 *     words &all = *heap.root_or<words>("words");      // found again after a restart
 *     all.emplace("one", 1);
 *     heap.commit();                                   // all of it, or nothing, also after a crash
 *
 * A heap is always mapped at the same address, so that pointers in it stay good. What cannot work, as it
 * points out of the heap: classes with virtual functions, std::string and other containers with an
 * allocator that is not untorn's, std::pmr, std::function, std::shared_ptr, pointers to functions. They are
 * refused at compile time where they can be seen, as elements, roots and in make(): what the members of
 * your own classes are, the compiler does not tell.
 *
 * Containers in containers get the heap's allocator handed down; those of untorn::in_heap do that by
 * themselves, a class of yours by an allocator_type and constructors that take one. A container keeps the
 * heap that it was made in, also when it is assigned to; swap containers of one heap only.
 */

#ifndef UNTORN_HEAP_HPP
#define UNTORN_HEAP_HPP

#include <array>
#include <deque>
#include <forward_list>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <scoped_allocator>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "untorn.hpp"

namespace untorn {

class heap;
template <class T> class allocator;

/** Your own number of a type's layout: specialise it, and raise it whenever members change their meaning. */
template <class T> inline constexpr std::uint32_t layout_version = 0;

namespace detail {

template <class A> struct in_a_heap : std::false_type {};
template <class T> struct in_a_heap<allocator<T>> : std::true_type {};
template <class A, class... Inner>
struct in_a_heap<std::scoped_allocator_adaptor<A, Inner...>> : std::conjunction<in_a_heap<A>, in_a_heap<Inner>...> {};

} // namespace detail

/**
 * Whether a type may lie in a heap, as far as can be seen. Specialise it for a type of yours that is judged
 * wrongly, or that shall never lie there.
 */
template <class T, class = void>
struct storable
    : std::bool_constant<!std::is_polymorphic_v<T> && !std::is_reference_v<T> && !std::is_member_function_pointer_v<T> &&
                         !std::is_function_v<std::remove_pointer_t<T>>> {};
template <class T> struct storable<T, std::void_t<typename T::allocator_type>> : detail::in_a_heap<typename T::allocator_type> {};
template <class T> struct storable<const T> : storable<T> {};
template <class T, std::size_t N> struct storable<T[N]> : storable<T> {};
template <class T, std::size_t N> struct storable<std::array<T, N>> : storable<T> {};
template <class T> struct storable<std::optional<T>> : storable<T> {};
template <class A, class B> struct storable<std::pair<A, B>> : std::conjunction<storable<A>, storable<B>> {};
template <class... T> struct storable<std::tuple<T...>> : std::conjunction<storable<T>...> {};
template <class T> struct storable<std::unique_ptr<T>> : std::false_type {};
template <class T> struct storable<std::shared_ptr<T>> : std::false_type {};
template <class T> struct storable<std::weak_ptr<T>> : std::false_type {};
template <class T> struct storable<std::function<T>> : std::false_type {};

namespace detail {

template <class T> constexpr void check_storable() {
    static_assert(storable<T>::value,
                  "this type points out of the heap: it has virtual functions, or an allocator, owner or function "
                  "that is not the heap's (see untorn::in_heap, untorn::string, untorn::unique_ptr)");
}

} // namespace detail

/** The heap has no memory to give, or is closed. What it says is what untorn::error would. */
class bad_alloc : public std::bad_alloc {
public:
    const char *what() const noexcept override { return why_.what(); }
    const error &why() const noexcept { return why_; }

private:
    error why_;
};

/**
 * Allocates in the heap that begins at an address: the same after a restart, so it may lie in the heap
 * itself. There is none without a heap: a static container that would allocate before its heap is open does
 * not compile, and a static heap that is used before it was opened throws.
 */
template <class T> class allocator {
public:
    using value_type = T;
    // A container in a heap stays with it, whatever is assigned to it.
    using propagate_on_container_copy_assignment = std::false_type;
    using propagate_on_container_move_assignment = std::false_type;
    using propagate_on_container_swap = std::false_type;
    using is_always_equal = std::false_type;

    allocator() = delete;
    explicit allocator(const heap &of);
    template <class U> allocator(const allocator<U> &other) noexcept : base_(other.base()) {
        detail::check_storable<T>();
    }

    [[nodiscard]] T *allocate(std::size_t n) {
        static_assert(alignof(T) <= 4096, "a heap aligns to at most 4096 bytes");
        detail::check_storable<T>();
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        void *memory = untorn_heap_allocate_at(base_, alignof(T), n * sizeof(T));
        if (!memory) throw bad_alloc();
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, std::size_t) noexcept { untorn_heap_free_at(base_, memory); }

    const void *base() const noexcept { return base_; }

private:
    const void *base_;
};

template <class T, class U> bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept {
    return a.base() == b.base();
}
template <class T, class U> bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept {
    return a.base() != b.base();
}

/** The same, handed down to what is in containers. */
template <class T> using scoped_allocator = std::scoped_allocator_adaptor<allocator<T>>;

/** Destroys what heap::make_unique() made. It lies in the heap with its pointer. */
template <class T> class deleter {
public:
    explicit deleter(const heap &of) : memory_(of) {}
    void operator()(T *object) noexcept {
        object->~T();
        memory_.deallocate(object, 1);
    }

private:
    allocator<T> memory_;
};

/** Owns one object in a heap, and may lie there itself. */
template <class T> using unique_ptr = std::unique_ptr<T, deleter<T>>;
/** A string in a heap. */
using string = std::basic_string<char, std::char_traits<char>, allocator<char>>;

/** Hashes strings in heaps as std::hash does others. */
struct string_hash {
    std::size_t operator()(const string &text) const noexcept { return std::hash<std::string_view>()(text); }
};

} // namespace untorn

template <> struct std::hash<untorn::string> : untorn::string_hash {};

namespace untorn {

/** The standard containers with the heap's allocator; trees find what compares with their keys. */
namespace in_heap {

using string = untorn::string;
template <class T> using vector = std::vector<T, scoped_allocator<T>>;
template <class T> using deque = std::deque<T, scoped_allocator<T>>;
template <class T> using list = std::list<T, scoped_allocator<T>>;
template <class T> using forward_list = std::forward_list<T, scoped_allocator<T>>;
template <class K, class Less = std::less<>> using set = std::set<K, Less, scoped_allocator<K>>;
template <class K, class Less = std::less<>> using multiset = std::multiset<K, Less, scoped_allocator<K>>;
template <class K, class V, class Less = std::less<>>
using map = std::map<K, V, Less, scoped_allocator<std::pair<const K, V>>>;
template <class K, class V, class Less = std::less<>>
using multimap = std::multimap<K, V, Less, scoped_allocator<std::pair<const K, V>>>;
template <class K, class Hash = std::hash<K>, class Equal = std::equal_to<>>
using unordered_set = std::unordered_set<K, Hash, Equal, scoped_allocator<K>>;
template <class K, class V, class Hash = std::hash<K>, class Equal = std::equal_to<>>
using unordered_map = std::unordered_map<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>>;
template <class K, class V, class Hash = std::hash<K>, class Equal = std::equal_to<>>
using unordered_multimap = std::unordered_multimap<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>>;

} // namespace in_heap

/** How to open a heap, with defaults: untorn_heap_options. */
struct heap_options : untorn_heap_options {
    heap_options() : untorn_heap_options() { size = sizeof(untorn_heap_options); }
};

/** What a root points to, as it was when it was set: untorn_heap_root_info. */
struct root_info : untorn_heap_root_info {
    root_info() : untorn_heap_root_info() { size = sizeof(untorn_heap_root_info); }

    /** The same as the class that it was. Throws if that has another size or alignment. */
    template <class T> T &as() const {
        if (bytes != sizeof(T) || align != alignof(T)) {
            throw std::logic_error(std::string("the root ") + name + " is not of the type that it is read as");
        }
        return *static_cast<T *>(address);
    }
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

    template <class T> untorn::allocator<T> allocator() const { return untorn::allocator<T>(*this); }

    /** Makes an object in the heap. A container, and what else takes an allocator, gets the heap's. */
    template <class T, class... Arguments> T *make(Arguments &&...arguments) {
        untorn::allocator<T> memory(*this);
        T *place = memory.allocate(1);
        try {
            construct(place, scoped_allocator<T>(memory), std::forward<Arguments>(arguments)...);
        } catch (...) {
            memory.deallocate(place, 1);
            throw;
        }
        return place;
    }
    /** Ends one that make() made. */
    template <class T> void destroy(T *object) {
        if (object) deleter<T>{*this}(object);
    }
    /** The same as make(), with an owner that may lie in the heap. */
    template <class T, class... Arguments> untorn::unique_ptr<T> make_unique(Arguments &&...arguments) {
        deleter<T> end(*this);
        return untorn::unique_ptr<T>(make<T>(std::forward<Arguments>(arguments)...), end);
    }

    /**
     * Finds a root; nullptr: there is none. Throws with UNTORN_E_LAYOUT_CHANGED if it was set as another type or
     * version.
     */
    template <class T> T *root(const char *name, std::uint32_t version = layout_version<T>) const {
        void *found;
        detail::check(untorn_heap_root(handle(), name, typeid(T).name(), sizeof(T), alignof(T), version, &found));
        return static_cast<T *>(found);
    }
    /**
     * The same for a root that older programs may have set: `migrate` gets a root_info and returns the new
     * object, made in this heap; what it was is its to destroy. All that it does is one commit. If it throws,
     * the heap is rolled back. What is not committed yet goes with it, either way.
     */
    template <class T, class Migrate> T *root(const char *name, std::uint32_t version, Migrate &&migrate) {
        try {
            return root<T>(name, version);
        } catch (const error &e) {
            if (e.kind() != UNTORN_E_LAYOUT_CHANGED) throw;
        }
        T *made = nullptr;
        try {
            const mutation guard(*this);
            made = std::forward<Migrate>(migrate)(info(name).value());
            set_root(name, made, version);
        } catch (...) {
            rollback();
            throw;
        }
        commit();
        return made;
    }
    /** Hangs an object on a name; nullptr removes the root. */
    template <class T> void set_root(const char *name, T *object, std::uint32_t version = layout_version<T>) {
        detail::check_storable<T>();
        detail::check(
            untorn_heap_set_root(handle(), name, object, typeid(T).name(), sizeof(T), alignof(T), version));
    }
    /** Finds a root, or makes it. */
    template <class T, class... Arguments> T *root_or(const char *name, Arguments &&...arguments) {
        if (T *found = root<T>(name)) return found;
        const mutation guard(*this);
        untorn::unique_ptr<T> made = make_unique<T>(std::forward<Arguments>(arguments)...);
        set_root(name, made.get());
        return made.release();
    }
    /** What a root points to, whatever its type. */
    std::optional<root_info> info(const char *name) const {
        root_info info;
        if (detail::check(untorn_heap_get_root_info(handle(), name, &info)) == 0) return std::nullopt;
        return info;
    }
    /** All roots. */
    std::vector<root_info> roots() const {
        std::vector<root_info> all;
        for (root_info info; detail::check(untorn_heap_nth_root_info(handle(), all.size(), &info)) == 1;) {
            all.push_back(info);
        }
        return all;
    }
    untorn_heap_stats stats() const {
        untorn_heap_stats stats = {};
        stats.size = sizeof stats;
        detail::check(untorn_heap_get_stats(handle(), &stats));
        return stats;
    }

    /** Commits all changes, durable on return. */
    void commit() { detail::check(untorn_heap_commit(handle())); }
    /** Commits the heap and files of its store as one. */
    void commit_with(std::initializer_list<std::reference_wrapper<file>> files) {
        const auto handles = detail::handles(files);
        detail::check(untorn_heap_commit_with(handle(), handles.data(), handles.size()));
    }
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
    [[nodiscard]] mutation mutate() { return mutation(*this); }

    /** Closes the heap, and throws if that fails. What is not committed is DISCARDED. */
    void close() { close_by(untorn_heap_close); }

private:
    template <class A, class B, class... Arguments>
    static void construct(std::pair<A, B> *place, scoped_allocator<std::pair<A, B>> memory, Arguments &&...arguments) {
        memory.construct(place, std::forward<Arguments>(arguments)...);
    }
    template <class T, class... Arguments>
    static void construct(T *place, const scoped_allocator<T> &memory, Arguments &&...arguments) {
        using memory_type = const scoped_allocator<T> &;
        if constexpr (std::uses_allocator_v<T, scoped_allocator<T>> &&
                      std::is_constructible_v<T, Arguments..., memory_type>) {
            new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)..., memory);
        } else {
            new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...);
        }
    }
};

template <class T> allocator<T>::allocator(const heap &of) : base_(detail::check(untorn_heap_base(of.handle()))) {
    detail::check_storable<T>();
}

} // namespace untorn

#endif
