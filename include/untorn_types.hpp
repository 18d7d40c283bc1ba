/*
 * The types that may be stored in a heap, and a type's description in a root. untorn_heap.hpp includes this header.
 *
 * The compiler refuses types that point out of the heap: classes with virtual functions, containers and strings with
 * the program's own allocator, owners and views of ordinary memory, pointers to functions and to string literals.
 * It looks into pairs, tuples, arrays, optionals, variants, and into the members of a class as far as
 * untorn_members.hpp knows the members.
 *
 * A root records the type's name, and a checksum of the type's layout: size and alignment of the type, of its
 * elements (value_type, key_type, mapped_type), of the type that it points to, of its template's arguments and of its
 * members, and the same of each of these.
 */

#ifndef UNTORN_TYPES_HPP
#define UNTORN_TYPES_HPP

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <scoped_allocator>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "untorn_members.hpp"

namespace untorn {

template <class T> class allocator;

namespace detail {

template <class A> struct in_a_heap : std::false_type {};
template <class T> struct in_a_heap<allocator<T>> : std::true_type {};
template <class A, class... Inner>
struct in_a_heap<std::scoped_allocator_adaptor<A, Inner...>> : std::conjunction<in_a_heap<A>, in_a_heap<Inner>...> {};

template <class T, class = void> struct is_complete : std::false_type {};
template <class T> struct is_complete<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};

/* Types of the standard library that point to ordinary memory, to functions or to the process. */
inline constexpr std::string_view outside_types[] = {
    "any", "basic_regex", "regex", "wregex", "condition_variable", "coroutine_handle", "error_code",
    "error_condition", "exception_ptr", "function", "function_ref", "future", "initializer_list", "jthread", "locale",
    "move_only_function", "packaged_task", "promise", "reference_wrapper", "shared_future", "shared_ptr", "span",
    "stop_token", "thread", "type_index", "weak_ptr", "_Bind", "_Mem_fn"};

constexpr bool is_outside_name(std::string_view name) {
    name = standard_name(name);
    if (name.substr(0, 12) == "filesystem::") return true;
    name = name.substr(0, name.find('<'));
    // basic_string_view; a compiler may also say wstring_view.
    if (name.size() >= 11 && name.substr(name.size() - 11) == "string_view") return true;
    for (const std::string_view outside : outside_types) {
        if (name == outside) return true;
    }
    return false;
}

template <class T, class = void> struct has_allocator : std::false_type {};
template <class T> struct has_allocator<T, std::void_t<typename T::allocator_type>> : std::true_type {};

/* Types that are plain without a look at their members; also for a pointer's target, which may be the same type. */
template <class T> constexpr bool is_outside() {
    if constexpr (!is_complete<T>::value) {
        return false;
    } else if constexpr (std::is_polymorphic_v<T> || is_outside_name(spelled<T>())) {
        return true;
    } else if constexpr (has_allocator<T>::value) {
        return !in_a_heap<typename T::allocator_type>::value;
    } else {
        return spelled<T>() == "_IO_FILE";
    }
}

template <class T>
inline constexpr bool is_character = std::is_same_v<T, char> || std::is_same_v<T, wchar_t> || std::is_same_v<T, char16_t> ||
#ifdef __cpp_char8_t
                                     std::is_same_v<T, char8_t> ||
#endif
                                     std::is_same_v<T, char32_t>;

/* Text that is const is most often a literal of the program. */
template <class T>
inline constexpr bool points_outside =
    std::is_function_v<T> || (std::is_const_v<T> && is_character<std::remove_const_t<T>>) || is_outside<std::remove_cv_t<T>>();

template <class T> constexpr bool members_storable();

} // namespace detail

/**
 * Whether a type may be stored in a heap, as far as the compiler can tell. Specialise the template for a type
 * of yours where the answer is wrong.
 */
template <class T, class = void> struct storable : std::bool_constant<detail::members_storable<T>()> {};
template <class T> struct storable<const T> : storable<T> {};
template <class T> struct storable<volatile T> : storable<T> {};
template <class T> struct storable<T &> : std::false_type {};
template <class T> struct storable<T &&> : std::false_type {};
template <class T> struct storable<T *> : std::bool_constant<!detail::points_outside<T>> {};
template <class T, std::size_t N> struct storable<T[N]> : storable<T> {};
template <class T, std::size_t N> struct storable<std::array<T, N>> : storable<T> {};
template <class T> struct storable<std::optional<T>> : storable<T> {};
template <class A, class B> struct storable<std::pair<A, B>> : std::conjunction<storable<A>, storable<B>> {};
template <class... T> struct storable<std::tuple<T...>> : std::conjunction<storable<T>...> {};
template <class... T> struct storable<std::variant<T...>> : std::conjunction<storable<T>...> {};
template <class T> struct storable<std::unique_ptr<T>> : std::false_type {};

namespace detail {

template <class... M> constexpr bool all_storable(types<M...>) { return (storable<M>::value && ...); }

template <class T> constexpr bool members_storable() {
    if constexpr (std::is_member_function_pointer_v<T> || std::is_function_v<T> || is_outside<T>()) {
        return false;
    } else {
        return all_storable(members_of<T>());
    }
}

/* The parts of a type: its members, or the template's arguments. */
template <class T> struct parts { using all = members_of<T>; };
template <class T> struct parts<const T> : parts<T> {};
template <class T, std::size_t N> struct parts<T[N]> { using all = types<T>; };
template <class T, std::size_t N> struct parts<std::array<T, N>> { using all = types<T>; };
template <class T> struct parts<std::optional<T>> { using all = types<T>; };
template <class A, class B> struct parts<std::pair<A, B>> { using all = types<A, B>; };
template <class... T> struct parts<std::tuple<T...>> { using all = types<T...>; };
template <class... T> struct parts<std::variant<T...>> { using all = types<T...>; };

template <class T> constexpr bool check_parts();

/* In the compiler's message, this template's arguments are the class, the member's number and the member's type. */
template <class Class, std::size_t Number, class Member> struct checked_member {
    static_assert(storable<Member>::value,
                  "this member points out of the heap: use untorn::string, the containers of untorn::in_heap, or "
                  "untorn::unique_ptr");
    static constexpr bool value = check_parts<Member>();
};
template <class T, class... M, std::size_t... N> constexpr bool check_all(types<M...>, std::index_sequence<N...>) {
    return (checked_member<T, N + 1, M>::value && ...);
}
template <class... M> constexpr auto numbers_of(types<M...>) { return std::index_sequence_for<M...>(); }

/* Looks for the parts to blame. */
template <class T> constexpr bool check_parts() {
    if constexpr (storable<T>::value) {
        return true;
    } else {
        return check_all<T>(typename parts<T>::all(), numbers_of(typename parts<T>::all()));
    }
}

template <class T> constexpr void check_storable() {
    static_assert(storable<T>::value,
                  "this type points out of the heap: it has virtual functions, or an allocator, owner, view or function "
                  "that is not the heap's (see untorn::in_heap, untorn::string, untorn::unique_ptr)");
    static_assert(check_parts<T>());
}

/* The standard library in use: libraries lay out the same containers differently. */
#if defined(_LIBCPP_VERSION)
inline constexpr char library[] = "libc++";
#elif defined(__GLIBCXX__) && defined(_GLIBCXX_DEBUG)
inline constexpr char library[] = "libstdc++, debug mode";
#elif defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
inline constexpr char library[] = "libstdc++";
#else
inline constexpr char library[] = "another standard library";
#endif

/** A type's layout in words: names, sizes and alignments of the type and of all its parts. */
struct description {
    std::string text;
    /** Types that were described before. */
    std::vector<const char *> seen;
};

template <class T> inline constexpr char identity = 0;

/* Compilers spell these differently. */
inline std::string same_spelling(std::string_view name) {
    std::string text(name);
    for (const char *part : {"__cxx11::", "__1::", "__cxx1998::", "__debug::"}) {
        for (std::size_t at; (at = text.find(part)) != text.npos;) text.erase(at, std::string_view(part).size());
    }
    for (std::size_t at; (at = text.find("{anonymous}")) != text.npos;) text.replace(at, 11, "(anonymous namespace)");
    return text;
}

template <class T> std::string title();

template <class T> struct arguments {
    static std::string title() { return same_spelling(spelled<T>()); }
    using all = types<>;
};
template <template <class...> class Template, class... A> struct arguments<Template<A...>> {
    static std::string title() {
        const std::string_view whole = spelled<Template<A...>>();
        std::string text = same_spelling(whole.substr(0, whole.find('<'))) + '<';
        const std::size_t empty = text.size();
        const auto add = [&](std::string name) {
            if (!name.empty()) text += (text.size() > empty ? ", " : "") + name;
        };
        (add(in_a_heap<A>::value ? std::string() : detail::title<A>()), ...);
        return text + '>';
    }
    using all = types<A...>;
};

/** A type's name for people, the same with all compilers. */
template <class T> std::string title() {
    if constexpr (std::is_const_v<T>) {
        return "const " + title<std::remove_const_t<T>>();
    } else if constexpr (std::is_pointer_v<T>) {
        return title<std::remove_pointer_t<T>>() + '*';
    } else if constexpr (std::is_array_v<T>) {
        return title<std::remove_extent_t<T>>() + '[' + std::to_string(std::extent_v<T>) + ']';
    } else if constexpr (std::is_same_v<T, bool> || is_character<T> || std::is_void_v<T>) {
        return std::string(spelled<T>());
    } else if constexpr (std::is_integral_v<T>) {
        return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
    } else if constexpr (std::is_floating_point_v<T>) {
        return "float" + std::to_string(8 * sizeof(T));
    } else if constexpr (std::is_same_v<T, std::basic_string<char, std::char_traits<char>, allocator<char>>>) {
        return "untorn::string";
    } else {
        return arguments<T>::title();
    }
}

template <class T> void describe(description &to);

template <class... M> void describe_all(description &to, types<M...>) { (describe<M>(to), ...); }

template <class T, class = void> struct element_types { using all = types<>; };
template <class T> struct element_types<T, std::void_t<typename T::value_type>> { using all = types<typename T::value_type>; };

template <class T> void describe(description &to) {
    using plain = std::remove_cv_t<std::remove_reference_t<T>>;
    if constexpr (!in_a_heap<plain>::value) {
        to.text += title<plain>();
        if constexpr (is_complete<plain>::value) {
            to.text += ' ' + std::to_string(sizeof(plain)) + '/' + std::to_string(alignof(plain));
            if constexpr (std::is_class_v<plain> || std::is_union_v<plain>) {
                if (std::find(to.seen.begin(), to.seen.end(), &identity<plain>) == to.seen.end()) {
                    to.seen.push_back(&identity<plain>);
                    if constexpr (is_standard<plain>) to.text += std::string(" of ") + library;
                    to.text += '{';
                    describe_all(to, typename arguments<plain>::all());
                    describe_all(to, typename element_types<plain>::all());
                    describe_all(to, members_of<plain>());
                    to.text += '}';
                }
            } else if constexpr (std::is_pointer_v<plain>) {
                describe<std::remove_pointer_t<plain>>(to);
            } else if constexpr (std::is_array_v<plain>) {
                describe<std::remove_extent_t<plain>>(to);
            }
        }
        to.text += ';';
    }
}

/** The type's name in a root: a name for people, and a checksum of the description. */
template <class T> const char *recorded() {
    // Never destroyed: destructors at the end of the program may use heaps still.
    static const std::string &text = *new std::string([] {
        description all;
        describe<T>(all);
        // FNV-1a: the sum only has to differ where descriptions differ.
        std::uint64_t sum = 0xcbf29ce484222325;
        for (const char c : all.text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
        char layout[32];
        std::snprintf(layout, sizeof layout, " [layout %016llx]", static_cast<unsigned long long>(sum));
        // A root has room for 104 bytes of it. No character is cut in two.
        const std::string name = title<T>();
        std::size_t end = std::min(name.size(), std::size_t(70));
        while (end < name.size() && (name[end] & 0xc0) == 0x80) end--;
        return name.substr(0, end) + layout;
    }());
    return text.c_str();
}

} // namespace detail
} // namespace untorn

#endif
