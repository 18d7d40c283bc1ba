/*
 * Persistent heaps for C++17: the standard containers in a file. untorn.hpp includes this header.
 *
 *     untorn::heap heap("words");
 *     using words = untorn::in_heap::unordered_map<untorn::string, long>;
 *     words &all = *heap.root_or<words>("words");      // found again after a restart
 *     all.emplace("one", 1);
 *     heap.commit();                                   // all changes or none, also after a crash
 *
 * A heap is always mapped at the same address, so that pointers in the heap stay valid. Types that point out
 * of the heap cannot be stored in it: classes with virtual functions, std::string and other containers with
 * an allocator that is not Untorn's, std::pmr, std::function, std::shared_ptr, pointers to functions. The
 * compiler refuses these types as elements, as roots and in make(). It cannot check the members of your own
 * classes.
 *
 * A container passes the heap's allocator on to the containers in it. Those of untorn::in_heap do so by
 * themselves; a class of yours receives the allocator by an allocator_type and constructors that take one.
 * A container always stays in the heap that it was made in, also when it is assigned to. Swap containers of
 * one heap only.
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

/** The program's own number for a type's layout: specialise it, and raise it whenever members change. */
template <class T> inline constexpr std::uint32_t layout_version = 0;

namespace detail {

template <class A> struct in_a_heap : std::false_type {};
template <class T> struct in_a_heap<allocator<T>> : std::true_type {};
template <class A, class... Inner>
struct in_a_heap<std::scoped_allocator_adaptor<A, Inner...>> : std::conjunction<in_a_heap<A>, in_a_heap<Inner>...> {};

} // namespace detail

/**
 * Whether a type may be stored in a heap, as far as the compiler can tell. Specialise the template for a type
 * of yours where the answer is wrong.
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

/** Thrown by allocators if the heap is full or closed; why() is the untorn::error. */
class bad_alloc : public std::bad_alloc {
public:
    const char *what() const noexcept override { return why_.what(); }
    const error &why() const noexcept { return why_; }

private:
    error why_;
};

/**
 * Allocates in one heap. The allocator is only the heap's address, which is the same after a restart, so the
 * allocator may be stored in the heap itself. There is no default constructor: a static container without a
 * heap does not compile. A static heap that is used before it was opened throws.
 */
template <class T> class allocator {
public:
    using value_type = T;
    // A container stays in its heap, whatever is assigned to it.
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

/** An allocator that a container passes on to the containers in it. */
template <class T> using scoped_allocator = std::scoped_allocator_adaptor<allocator<T>>;

/** Destroys objects made by heap::make_unique(). Stored in the heap, with the pointer. */
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

/** Owns one object in a heap, and may be stored there itself. */
template <class T> using unique_ptr = std::unique_ptr<T, deleter<T>>;
/** A string in a heap. */
using string = std::basic_string<char, std::char_traits<char>, allocator<char>>;

/** Hashes strings in heaps as std::hash hashes std::string. */
struct string_hash {
    std::size_t operator()(const string &text) const noexcept { return std::hash<std::string_view>()(text); }
};

} // namespace untorn

template <> struct std::hash<untorn::string> : untorn::string_hash {};

namespace untorn {

/** The standard containers with the heap's allocator. Trees can be searched by any type that compares with the key. */
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

/** A root's address, and the type recorded when the root was set: untorn_heap_root_info. */
struct root_info : untorn_heap_root_info {
    root_info() : untorn_heap_root_info() { size = sizeof(untorn_heap_root_info); }

    /** The object that the root points to. Throws if `T` has another size or alignment. */
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
    /** Opens a heap in a standalone file, with a private store beside it; a missing heap is created. */
    explicit heap(const std::string &path, const heap_options &how = {}, const options &store_options = {})
        : owner(untorn_heap_open(path.c_str(), &how, &store_options)) {}
    /** Opens a heap in a store, by its name; a missing heap is created. */
    heap(const store &in, const std::string &name, const heap_options &how = {})
        : owner(untorn_heap_open_at(in.handle(), name.c_str(), &how)) {}

    template <class T> untorn::allocator<T> allocator() const { return untorn::allocator<T>(*this); }

    /** Makes an object in the heap. Containers, and other types that take an allocator, get the heap's. */
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
    /** Destroys an object that make() made. */
    template <class T> void destroy(T *object) {
        if (object) deleter<T>{*this}(object);
    }
    /** Makes an object in the heap, with an owner that may be stored in the heap. */
    template <class T, class... Arguments> untorn::unique_ptr<T> make_unique(Arguments &&...arguments) {
        deleter<T> end(*this);
        return untorn::unique_ptr<T>(make<T>(std::forward<Arguments>(arguments)...), end);
    }

    /**
     * Finds a root by its name; nullptr: there is none. Throws with UNTORN_E_LAYOUT_CHANGED if the root was set
     * with another type or version.
     */
    template <class T> T *root(const char *name, std::uint32_t version = layout_version<T>) const {
        void *found;
        detail::check(untorn_heap_root(handle(), name, typeid(T).name(), sizeof(T), alignof(T), version, &found));
        return static_cast<T *>(found);
    }
    /**
     * Finds a root that an older program may have set with another layout. In that case `migrate` gets the
     * root_info, makes the new object in this heap, destroys the old one, and returns the new one. All of this
     * is one commit, together with changes that were not committed before the call. If `migrate` throws, the
     * heap is rolled back, and these changes are lost, too.
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
    /** Sets the root of a name to an object; nullptr removes the root. */
    template <class T> void set_root(const char *name, T *object, std::uint32_t version = layout_version<T>) {
        detail::check_storable<T>();
        detail::check(
            untorn_heap_set_root(handle(), name, object, typeid(T).name(), sizeof(T), alignof(T), version));
    }
    /** Finds a root; if there is none, makes the object and sets the root. */
    template <class T, class... Arguments> T *root_or(const char *name, Arguments &&...arguments) {
        if (T *found = root<T>(name)) return found;
        const mutation guard(*this);
        untorn::unique_ptr<T> made = make_unique<T>(std::forward<Arguments>(arguments)...);
        set_root(name, made.get());
        return made.release();
    }
    /** Describes a root of any type; nullopt: there is none. */
    std::optional<root_info> info(const char *name) const {
        root_info info;
        if (detail::check(untorn_heap_get_root_info(handle(), name, &info)) == 0) return std::nullopt;
        return info;
    }
    /** Describes all roots. */
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
    /** Starts a commit of all changes made so far. */
    ticket commit_async() { return ticket(untorn_heap_commit_async(handle())); }
    /** Discards all changes since the last commit. Pointers to objects made since then become invalid. */
    void rollback() { detail::check(untorn_heap_rollback(handle())); }

    /** A guard: while it exists, no commit takes place. For heaps that several threads change. */
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

    /** Closes the heap and reports errors. Uncommitted changes are DISCARDED. */
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
