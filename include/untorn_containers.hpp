/*
 * Strings and the standard containers with the memory of a heap. untorn_heap.hpp includes this header.
 *
 * untorn::string is std::basic_string with the heap's allocator, and compares with std::string and std::string_view.
 * The containers of untorn::in_heap are those of the standard library. Where the key or the element is an
 * untorn::string, they also take any other text: all["x"], all.find(name), list.push_back("x").
 */

#ifndef UNTORN_CONTAINERS_HPP
#define UNTORN_CONTAINERS_HPP

#include <cstdint>
#include <deque>
#include <forward_list>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <new>
#include <scoped_allocator>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "untorn.hpp"
#include "untorn_types.hpp"

namespace untorn {

class heap;

/** Thrown by allocators if the heap is full or closed; why() is the untorn::error. */
class bad_alloc : public std::bad_alloc {
public:
    const char *what() const noexcept override { return why_.what(); }
    const error &why() const noexcept { return why_; }

private:
    error why_;
};

namespace detail {

/** The heap of strings and containers that this thread makes without an allocator, as long as the object lives. */
class current_heap {
public:
    explicit current_heap(const void *base) noexcept : before_(std::exchange(current_, base)) {}
    ~current_heap() { current_ = before_; }
    current_heap(const current_heap &) = delete;
    current_heap &operator=(const current_heap &) = delete;

    static const void *get() {
        if (!current_) {
            throw std::logic_error(
                "a string or container of a heap is made, and no heap is named: make it by a container (emplace_back, "
                "operator[]) or by heap.make, give it an allocator, or hold a guard (auto guard = heap.mutate())");
        }
        return current_;
    }

private:
    static inline thread_local const void *current_ = nullptr;

    const void *before_;
};

struct ordinary_memory {};

} // namespace detail

/**
 * Allocates in one heap. The allocator is only the heap's address, which is the same after a restart, so the
 * allocator may be stored in the heap itself. The default constructor takes the heap of the guard that the thread
 * holds, or of the container that makes the object; if there is none, it throws std::logic_error. A static heap
 * that is used before it was opened throws.
 */
template <class T> class allocator {
public:
    using value_type = T;
    // A container stays in its heap when another one is assigned to it.
    using propagate_on_container_copy_assignment = std::false_type;
    using propagate_on_container_move_assignment = std::false_type;
    using propagate_on_container_swap = std::false_type;
    using is_always_equal = std::false_type;

    allocator() : base_(detail::current_heap::get()) { detail::check_storable<T>(); }
    explicit allocator(const heap &of);
    /** Ordinary memory, for text that is only compared with keys. */
    explicit allocator(detail::ordinary_memory) noexcept : base_(nullptr) {}
    template <class U> allocator(const allocator<U> &other) noexcept : base_(other.base()) {
        detail::check_storable<T>();
    }

    [[nodiscard]] T *allocate(std::size_t n) {
        static_assert(alignof(T) <= 4096, "a heap aligns to at most 4096 bytes");
        detail::check_storable<T>();
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        if (!base_) return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
        void *memory = untorn_heap_allocate_at(base_, alignof(T), n * sizeof(T));
        if (!memory) throw bad_alloc();
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, std::size_t) noexcept {
        if (base_) {
            untorn_heap_free_at(base_, memory);
        } else {
            ::operator delete(memory, std::align_val_t(alignof(T)));
        }
    }

    /** Makes an object; its own strings and containers are in this heap, too. */
    template <class U, class... Arguments>
    std::enable_if_t<std::is_class_v<U> || std::is_union_v<U>> construct(U *place, Arguments &&...arguments) {
        const detail::current_heap current(base_);
        if constexpr (std::is_constructible_v<U, Arguments...>) {
            ::new (static_cast<void *>(place)) U(std::forward<Arguments>(arguments)...);
        } else {
            ::new (static_cast<void *>(place)) U{std::forward<Arguments>(arguments)...};
        }
    }

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
    deleter() = default;
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

#define UNTORN_COMPARE(op)                                                                                             \
    inline bool operator op(const string &a, std::string_view b) noexcept { return std::string_view(a) op b; }         \
    inline bool operator op(std::string_view a, const string &b) noexcept { return a op std::string_view(b); }         \
    inline bool operator op(const string &a, const std::string &b) noexcept { return std::string_view(a) op b; }       \
    inline bool operator op(const std::string &a, const string &b) noexcept { return a op std::string_view(b); }
UNTORN_COMPARE(==)
UNTORN_COMPARE(!=)
UNTORN_COMPARE(<)
UNTORN_COMPARE(<=)
UNTORN_COMPARE(>)
UNTORN_COMPARE(>=)
#undef UNTORN_COMPARE

/** Hashes strings in heaps, and all other text, as std::hash hashes std::string. */
struct string_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};

} // namespace untorn

template <> struct std::hash<untorn::string> : untorn::string_hash {};

namespace untorn {

namespace detail {

/* Text that is not a string of a heap, where `Key` is one. */
template <class Key, class Text>
using if_text = std::enable_if_t<std::is_same_v<Key, string> && std::is_convertible_v<const Text &, std::string_view> &&
                                 !std::is_same_v<Text, string>>;

/* A key to look for: it is never stored. An object made from it in a heap gets memory of the heap. */
inline string loose(std::string_view text) { return string(text, allocator<char>(ordinary_memory())); }

/* Lookups by any text that tables and trees share. */
#define UNTORN_BY_TEXT(base, Key)                                                                                      \
    using base::base;                                                                                                  \
    using base::operator=;                                                                                             \
    auto erase(typename base::const_iterator at) { return base::erase(at); }                                           \
    auto erase(typename base::const_iterator from, typename base::const_iterator to) { return base::erase(from, to); } \
    auto erase(const Key &key) { return base::erase(key); }                                                            \
    template <class Text, class = detail::if_text<Key, Text>> auto erase(const Text &text) {                           \
        return base::erase(detail::loose(text));                                                                       \
    }                                                                                                                  \
    /** Whether it has such a key, as in C++20. */                                                                     \
    template <class Any> bool contains(const Any &key) const { return this->find(key) != this->end(); }

#define UNTORN_FIND_BY_TEXT(base, Key)                                                                                 \
    auto find(const Key &key) { return base::find(key); }                                                              \
    auto find(const Key &key) const { return base::find(key); }                                                        \
    template <class Text, class = detail::if_text<Key, Text>> auto find(const Text &text) {                            \
        return base::find(detail::loose(text));                                                                        \
    }                                                                                                                  \
    template <class Text, class = detail::if_text<Key, Text>> auto find(const Text &text) const {                      \
        return base::find(detail::loose(text));                                                                        \
    }                                                                                                                  \
    auto count(const Key &key) const { return base::count(key); }                                                      \
    template <class Text, class = detail::if_text<Key, Text>> auto count(const Text &text) const {                     \
        return base::count(detail::loose(text));                                                                       \
    }                                                                                                                  \
    auto equal_range(const Key &key) { return base::equal_range(key); }                                                \
    auto equal_range(const Key &key) const { return base::equal_range(key); }                                          \
    template <class Text, class = detail::if_text<Key, Text>> auto equal_range(const Text &text) {                     \
        return base::equal_range(detail::loose(text));                                                                 \
    }                                                                                                                  \
    template <class Text, class = detail::if_text<Key, Text>> auto equal_range(const Text &text) const {               \
        return base::equal_range(detail::loose(text));                                                                 \
    }

#define UNTORN_AT_BY_TEXT(base, Key, Value)                                                                            \
    Value &operator[](const Key &key) { return base::operator[](key); }                                                \
    Value &operator[](Key &&key) { return base::operator[](std::move(key)); }                                          \
    template <class Text, class = detail::if_text<Key, Text>> Value &operator[](const Text &text) {                    \
        return base::operator[](detail::loose(text));                                                                  \
    }                                                                                                                  \
    Value &at(const Key &key) { return base::at(key); }                                                                \
    const Value &at(const Key &key) const { return base::at(key); }                                                    \
    template <class Text, class = detail::if_text<Key, Text>> Value &at(const Text &text) {                            \
        return base::at(detail::loose(text));                                                                          \
    }                                                                                                                  \
    template <class Text, class = detail::if_text<Key, Text>> const Value &at(const Text &text) const {                \
        return base::at(detail::loose(text));                                                                          \
    }                                                                                                                  \
    using base::insert_or_assign;                                                                                      \
    template <class Text, class To, class = detail::if_text<Key, Text>> auto insert_or_assign(const Text &text, To &&to) { \
        return base::insert_or_assign(detail::loose(text), std::forward<To>(to));                                      \
    }                                                                                                                  \
    using base::try_emplace;                                                                                           \
    template <class Text, class... A, class = detail::if_text<Key, Text>> auto try_emplace(const Text &text, A &&...a) { \
        return base::try_emplace(detail::loose(text), std::forward<A>(a)...);                                          \
    }

#define UNTORN_INSERT_TEXT(base, Key)                                                                                  \
    using base::insert;                                                                                                \
    template <class Text, class = detail::if_text<Key, Text>> auto insert(const Text &text) {                          \
        return base::insert(detail::loose(text));                                                                      \
    }

#define UNTORN_PUSH_TEXT(base, T)                                                                                      \
    using base::base;                                                                                                  \
    using base::operator=;                                                                                             \
    using base::push_back;                                                                                             \
    template <class Text, class = detail::if_text<T, Text>> void push_back(const Text &text) {                         \
        this->emplace_back(std::string_view(text));                                                                    \
    }

} // namespace detail

/** The standard containers with the heap's allocator. Keys and elements that are strings may be given as any text. */
namespace in_heap {

using string = untorn::string;

template <class T> class vector : public std::vector<T, scoped_allocator<T>> {
    using base = std::vector<T, scoped_allocator<T>>;

public:
    UNTORN_PUSH_TEXT(base, T)
};

template <class T> class deque : public std::deque<T, scoped_allocator<T>> {
    using base = std::deque<T, scoped_allocator<T>>;

public:
    UNTORN_PUSH_TEXT(base, T)
};

template <class T> class list : public std::list<T, scoped_allocator<T>> {
    using base = std::list<T, scoped_allocator<T>>;

public:
    UNTORN_PUSH_TEXT(base, T)
};

template <class T> using forward_list = std::forward_list<T, scoped_allocator<T>>;

template <class K, class Less = std::less<>> class set : public std::set<K, Less, scoped_allocator<K>> {
    using base = std::set<K, Less, scoped_allocator<K>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_INSERT_TEXT(base, K)
};

template <class K, class Less = std::less<>> class multiset : public std::multiset<K, Less, scoped_allocator<K>> {
    using base = std::multiset<K, Less, scoped_allocator<K>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_INSERT_TEXT(base, K)
};

template <class K, class V, class Less = std::less<>>
class map : public std::map<K, V, Less, scoped_allocator<std::pair<const K, V>>> {
    using base = std::map<K, V, Less, scoped_allocator<std::pair<const K, V>>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_AT_BY_TEXT(base, K, V)
};

template <class K, class V, class Less = std::less<>>
class multimap : public std::multimap<K, V, Less, scoped_allocator<std::pair<const K, V>>> {
    using base = std::multimap<K, V, Less, scoped_allocator<std::pair<const K, V>>>;

public:
    UNTORN_BY_TEXT(base, K)
};

template <class K, class Hash = std::hash<K>, class Equal = std::equal_to<>>
class unordered_set : public std::unordered_set<K, Hash, Equal, scoped_allocator<K>> {
    using base = std::unordered_set<K, Hash, Equal, scoped_allocator<K>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_FIND_BY_TEXT(base, K)
    UNTORN_INSERT_TEXT(base, K)
};

template <class K, class V, class Hash = std::hash<K>, class Equal = std::equal_to<>>
class unordered_map : public std::unordered_map<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>> {
    using base = std::unordered_map<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_FIND_BY_TEXT(base, K)
    UNTORN_AT_BY_TEXT(base, K, V)
};

template <class K, class V, class Hash = std::hash<K>, class Equal = std::equal_to<>>
class unordered_multimap : public std::unordered_multimap<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>> {
    using base = std::unordered_multimap<K, V, Hash, Equal, scoped_allocator<std::pair<const K, V>>>;

public:
    UNTORN_BY_TEXT(base, K)
    UNTORN_FIND_BY_TEXT(base, K)
};

} // namespace in_heap

#undef UNTORN_BY_TEXT
#undef UNTORN_FIND_BY_TEXT
#undef UNTORN_AT_BY_TEXT
#undef UNTORN_INSERT_TEXT
#undef UNTORN_PUSH_TEXT

} // namespace untorn

#endif
