/*
 * The members of a class, for the fingerprints and checks of untorn_heap.hpp. untorn_heap.hpp includes this header.
 *
 * Of an aggregate (a struct without constructors, base classes and private members) the compiler finds the members
 * by itself. For another class, name them all, in their order, in a public part of the class behind the members, or
 * in the class's namespace if they are public:
 *
 *     class player {
 *         untorn::string name;
 *         long score;
 *     public:
 *         UNTORN_LAYOUT(player, name, score);
 *     };
 *
 * UNTORN_LAYOUT takes up to 40 members, and refuses to compile if members are left out.
 */

#ifndef UNTORN_MEMBERS_HPP
#define UNTORN_MEMBERS_HPP

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#define UNTORN_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, \
                    _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, _33, _34, _35, _36, _37, _38, _39, _40, n, ...) n
#define UNTORN_NUMBERS 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, \
    14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0
#define UNTORN_EACH_1(f, with, a) f(with, a)
#define UNTORN_EACH_2(f, with, a, ...) f(with, a), UNTORN_EACH_1(f, with, __VA_ARGS__)
#define UNTORN_EACH_3(f, with, a, ...) f(with, a), UNTORN_EACH_2(f, with, __VA_ARGS__)
#define UNTORN_EACH_4(f, with, a, ...) f(with, a), UNTORN_EACH_3(f, with, __VA_ARGS__)
#define UNTORN_EACH_5(f, with, a, ...) f(with, a), UNTORN_EACH_4(f, with, __VA_ARGS__)
#define UNTORN_EACH_6(f, with, a, ...) f(with, a), UNTORN_EACH_5(f, with, __VA_ARGS__)
#define UNTORN_EACH_7(f, with, a, ...) f(with, a), UNTORN_EACH_6(f, with, __VA_ARGS__)
#define UNTORN_EACH_8(f, with, a, ...) f(with, a), UNTORN_EACH_7(f, with, __VA_ARGS__)
#define UNTORN_EACH_9(f, with, a, ...) f(with, a), UNTORN_EACH_8(f, with, __VA_ARGS__)
#define UNTORN_EACH_10(f, with, a, ...) f(with, a), UNTORN_EACH_9(f, with, __VA_ARGS__)
#define UNTORN_EACH_11(f, with, a, ...) f(with, a), UNTORN_EACH_10(f, with, __VA_ARGS__)
#define UNTORN_EACH_12(f, with, a, ...) f(with, a), UNTORN_EACH_11(f, with, __VA_ARGS__)
#define UNTORN_EACH_13(f, with, a, ...) f(with, a), UNTORN_EACH_12(f, with, __VA_ARGS__)
#define UNTORN_EACH_14(f, with, a, ...) f(with, a), UNTORN_EACH_13(f, with, __VA_ARGS__)
#define UNTORN_EACH_15(f, with, a, ...) f(with, a), UNTORN_EACH_14(f, with, __VA_ARGS__)
#define UNTORN_EACH_16(f, with, a, ...) f(with, a), UNTORN_EACH_15(f, with, __VA_ARGS__)
#define UNTORN_EACH_17(f, with, a, ...) f(with, a), UNTORN_EACH_16(f, with, __VA_ARGS__)
#define UNTORN_EACH_18(f, with, a, ...) f(with, a), UNTORN_EACH_17(f, with, __VA_ARGS__)
#define UNTORN_EACH_19(f, with, a, ...) f(with, a), UNTORN_EACH_18(f, with, __VA_ARGS__)
#define UNTORN_EACH_20(f, with, a, ...) f(with, a), UNTORN_EACH_19(f, with, __VA_ARGS__)
#define UNTORN_EACH_21(f, with, a, ...) f(with, a), UNTORN_EACH_20(f, with, __VA_ARGS__)
#define UNTORN_EACH_22(f, with, a, ...) f(with, a), UNTORN_EACH_21(f, with, __VA_ARGS__)
#define UNTORN_EACH_23(f, with, a, ...) f(with, a), UNTORN_EACH_22(f, with, __VA_ARGS__)
#define UNTORN_EACH_24(f, with, a, ...) f(with, a), UNTORN_EACH_23(f, with, __VA_ARGS__)
#define UNTORN_EACH_25(f, with, a, ...) f(with, a), UNTORN_EACH_24(f, with, __VA_ARGS__)
#define UNTORN_EACH_26(f, with, a, ...) f(with, a), UNTORN_EACH_25(f, with, __VA_ARGS__)
#define UNTORN_EACH_27(f, with, a, ...) f(with, a), UNTORN_EACH_26(f, with, __VA_ARGS__)
#define UNTORN_EACH_28(f, with, a, ...) f(with, a), UNTORN_EACH_27(f, with, __VA_ARGS__)
#define UNTORN_EACH_29(f, with, a, ...) f(with, a), UNTORN_EACH_28(f, with, __VA_ARGS__)
#define UNTORN_EACH_30(f, with, a, ...) f(with, a), UNTORN_EACH_29(f, with, __VA_ARGS__)
#define UNTORN_EACH_31(f, with, a, ...) f(with, a), UNTORN_EACH_30(f, with, __VA_ARGS__)
#define UNTORN_EACH_32(f, with, a, ...) f(with, a), UNTORN_EACH_31(f, with, __VA_ARGS__)
#define UNTORN_EACH_33(f, with, a, ...) f(with, a), UNTORN_EACH_32(f, with, __VA_ARGS__)
#define UNTORN_EACH_34(f, with, a, ...) f(with, a), UNTORN_EACH_33(f, with, __VA_ARGS__)
#define UNTORN_EACH_35(f, with, a, ...) f(with, a), UNTORN_EACH_34(f, with, __VA_ARGS__)
#define UNTORN_EACH_36(f, with, a, ...) f(with, a), UNTORN_EACH_35(f, with, __VA_ARGS__)
#define UNTORN_EACH_37(f, with, a, ...) f(with, a), UNTORN_EACH_36(f, with, __VA_ARGS__)
#define UNTORN_EACH_38(f, with, a, ...) f(with, a), UNTORN_EACH_37(f, with, __VA_ARGS__)
#define UNTORN_EACH_39(f, with, a, ...) f(with, a), UNTORN_EACH_38(f, with, __VA_ARGS__)
#define UNTORN_EACH_40(f, with, a, ...) f(with, a), UNTORN_EACH_39(f, with, __VA_ARGS__)

#define UNTORN_EXPAND(...) __VA_ARGS__
#define UNTORN_EACH_N(n) UNTORN_EACH_##n
#define UNTORN_EACH_OF(n) UNTORN_EACH_N(n)
#define UNTORN_PICK_OF(...) UNTORN_EXPAND(UNTORN_PICK(__VA_ARGS__))
#define UNTORN_COUNT(...) UNTORN_PICK_OF(__VA_ARGS__, UNTORN_NUMBERS)
/* f(with, a), f(with, b) ... */
#define UNTORN_EACH(f, with, ...) UNTORN_EXPAND(UNTORN_EACH_OF(UNTORN_COUNT(__VA_ARGS__))(f, with, __VA_ARGS__))
#define UNTORN_MEMBER(type, member) decltype(type::member)
#define UNTORN_BOUND(unused, member) decltype(member)

/** Names the members of a class, so that roots notice changes of them, and the compiler checks each of them. */
#define UNTORN_LAYOUT(type, ...)                                                                                       \
    [[maybe_unused]] inline ::untorn::detail::types<UNTORN_EACH(UNTORN_MEMBER, type, __VA_ARGS__)> untorn_layout(      \
        const type *) {                                                                                                \
        return {};                                                                                                     \
    }                                                                                                                  \
    static_assert(true, "the end of UNTORN_LAYOUT")

namespace untorn::detail {

template <class... T> struct types {};
template <std::size_t N> using count = std::integral_constant<std::size_t, N>;

/** A type's name as the compiler spells it. */
template <class T> constexpr std::string_view spelled() {
    std::string_view text(__PRETTY_FUNCTION__, sizeof __PRETTY_FUNCTION__ - 1);
    text.remove_prefix(text.find("T = ") + 4);
    const std::size_t more = text.find("; ");
    return text.substr(0, more == text.npos ? text.size() - 1 : more);
}

/** The part after `std::` of a standard library type's name; empty for other types. */
constexpr std::string_view standard_name(std::string_view name) {
    if (name.substr(0, 5) != "std::") return {};
    name.remove_prefix(5);
    // Namespaces that are the library's own: __1, __cxx11, __exception_ptr.
    while (name.substr(0, 2) == "__" && name.find("::") < name.find('<')) name.remove_prefix(name.find("::") + 2);
    return name;
}

template <class T> inline constexpr bool is_standard =
    spelled<T>().substr(0, 5) == "std::" || spelled<T>().substr(0, 5) == "__gnu" || spelled<T>().substr(0, 8) == "untorn::";

/* Converts to any member, for members without a default constructor. */
struct anything {
    template <class T> operator T() const &&;
    template <class T> operator T &() const &;
};
template <class T> struct any_base_of {
    template <class B, class = std::enable_if_t<std::is_base_of_v<B, T> && !std::is_same_v<B, T>>> operator B() const;
};
template <std::size_t> using anything_at = anything;

template <class T, class = void> struct has_base : std::false_type {};
template <class T> struct has_base<T, std::void_t<decltype(T{any_base_of<T>()})>> : std::true_type {};

template <class T, class Numbers, class = void> struct fits_anything : std::false_type {};
template <class T, std::size_t... N>
struct fits_anything<T, std::index_sequence<N...>, std::void_t<decltype(T{anything_at<N>()...})>> : std::true_type {};

/* Whether an aggregate can be made of this many `{}`, each of which is one member, also an array. */
template <class T> std::false_type fits_nothing(...);
#define UNTORN_FITS(n, ...)                                                                                            \
    template <class T> auto fits_nothing(count<n>)->decltype(void(T{__VA_ARGS__}), std::true_type());
UNTORN_FITS(1, {})
UNTORN_FITS(2, {}, {})
UNTORN_FITS(3, {}, {}, {})
UNTORN_FITS(4, {}, {}, {}, {})
UNTORN_FITS(5, {}, {}, {}, {}, {})
UNTORN_FITS(6, {}, {}, {}, {}, {}, {})
UNTORN_FITS(7, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(8, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(9, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(10, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(11, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(12, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(13, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(14, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(15, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(16, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(17, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(18, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(19, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(20, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(21, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(22, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(23, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {})
UNTORN_FITS(24, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {})
UNTORN_FITS(25, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {})
UNTORN_FITS(26, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {})
UNTORN_FITS(27, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {})
UNTORN_FITS(28, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {})
UNTORN_FITS(29, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(30, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(31, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(32, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(33, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(34, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(35, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(36, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(37, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(38, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(39, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(40, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
UNTORN_FITS(41, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
            {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
#undef UNTORN_FITS

inline constexpr std::size_t members_max = 40;

template <class T, std::size_t N> constexpr std::size_t members_of_nothing() {
    if constexpr (N == 0) {
        return 0;
    } else if constexpr (decltype(fits_nothing<T>(count<N>()))::value) {
        return N;
    } else {
        return members_of_nothing<T, N - 1>();
    }
}
template <class T, std::size_t N> constexpr std::size_t members_of_anything() {
    if constexpr (N == 0) {
        return 0;
    } else if constexpr (fits_anything<T, std::make_index_sequence<N>>::value) {
        return N;
    } else {
        return members_of_anything<T, N - 1>();
    }
}
/** The number of an aggregate's members; more than members_max: too many. */
template <class T> constexpr std::size_t count_members() {
    constexpr std::size_t found = members_of_nothing<T, members_max + 1>();
    if constexpr (found > 0) {
        return found;
    } else {
        return members_of_anything<T, members_max + 1>();
    }
}

template <class T> types<> split(T &, count<0>);
#define UNTORN_SPLIT(n, ...)                                                                                           \
    template <class T> auto split(T &object, count<n>) {                                                               \
        auto &[__VA_ARGS__] = object;                                                                                  \
        return types<UNTORN_EACH(UNTORN_BOUND, , __VA_ARGS__)>();                                                      \
    }
UNTORN_SPLIT(1, m1)
UNTORN_SPLIT(2, m1, m2)
UNTORN_SPLIT(3, m1, m2, m3)
UNTORN_SPLIT(4, m1, m2, m3, m4)
UNTORN_SPLIT(5, m1, m2, m3, m4, m5)
UNTORN_SPLIT(6, m1, m2, m3, m4, m5, m6)
UNTORN_SPLIT(7, m1, m2, m3, m4, m5, m6, m7)
UNTORN_SPLIT(8, m1, m2, m3, m4, m5, m6, m7, m8)
UNTORN_SPLIT(9, m1, m2, m3, m4, m5, m6, m7, m8, m9)
UNTORN_SPLIT(10, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10)
UNTORN_SPLIT(11, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11)
UNTORN_SPLIT(12, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12)
UNTORN_SPLIT(13, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13)
UNTORN_SPLIT(14, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14)
UNTORN_SPLIT(15, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15)
UNTORN_SPLIT(16, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16)
UNTORN_SPLIT(17, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17)
UNTORN_SPLIT(18, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18)
UNTORN_SPLIT(19, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19)
UNTORN_SPLIT(20, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20)
UNTORN_SPLIT(21, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21)
UNTORN_SPLIT(22, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22)
UNTORN_SPLIT(23, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23)
UNTORN_SPLIT(24, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24)
UNTORN_SPLIT(25, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25)
UNTORN_SPLIT(26, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26)
UNTORN_SPLIT(27, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27)
UNTORN_SPLIT(28, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28)
UNTORN_SPLIT(29, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29)
UNTORN_SPLIT(30, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30)
UNTORN_SPLIT(31, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31)
UNTORN_SPLIT(32, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32)
UNTORN_SPLIT(33, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33)
UNTORN_SPLIT(34, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34)
UNTORN_SPLIT(35, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35)
UNTORN_SPLIT(36, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36)
UNTORN_SPLIT(37, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36, m37)
UNTORN_SPLIT(38, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36, m37, m38)
UNTORN_SPLIT(39, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36, m37, m38, m39)
UNTORN_SPLIT(40, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19,
             m20, m21, m22, m23, m24, m25, m26, m27, m28, m29, m30, m31, m32, m33, m34, m35, m36, m37, m38, m39, m40)
#undef UNTORN_SPLIT

/* The members named by UNTORN_LAYOUT in the class, or in its namespace. */
template <class T, class = void> struct listed_inside : std::false_type {};
template <class T>
struct listed_inside<T, std::void_t<decltype(std::declval<T &>().untorn_layout(static_cast<const T *>(nullptr)))>>
    : std::true_type {};
template <class T, class = void> struct listed_beside : std::false_type {};
template <class T>
struct listed_beside<T, std::void_t<decltype(untorn_layout(static_cast<const T *>(nullptr)))>> : std::true_type {};

/* Whether a class has a member of that name, even a private one: the name is then ambiguous here. */
struct with_the_name {
    int untorn_layout;
};
template <class T> struct with_both : T, with_the_name {};
template <class T, class = void> struct is_ambiguous : std::true_type {};
template <class T> struct is_ambiguous<T, std::void_t<decltype(&with_both<T>::untorn_layout)>> : std::false_type {};
template <class T> constexpr bool listed_in_private() {
    if constexpr (std::is_class_v<T> && !std::is_final_v<T> && !is_standard<T>) {
        return is_ambiguous<T>::value;
    } else {
        return false;
    }
}

/* Whether the compiler finds the members by itself. */
template <class T> constexpr bool can_split() {
    if constexpr (std::is_class_v<T> && !std::is_empty_v<T> && std::is_aggregate_v<T> && !is_standard<T>) {
        return !has_base<T>::value && count_members<T>() > 0 && count_members<T>() <= members_max;
    } else {
        return false;
    }
}

template <class T> constexpr std::size_t end_of_members(types<>, std::size_t at) {
    return (at + alignof(T) - 1) / alignof(T) * alignof(T);
}
template <class T, class First, class... Rest> constexpr std::size_t end_of_members(types<First, Rest...>, std::size_t at) {
    if constexpr (std::is_reference_v<First>) {
        return end_of_members<T>(types<std::remove_reference_t<First> *, Rest...>(), at);
    } else {
        return end_of_members<T>(types<Rest...>(), (at + alignof(First) - 1) / alignof(First) * alignof(First) + sizeof(First));
    }
}

template <class T, class... M> constexpr types<M...> checked(types<M...> listed) {
    static_assert(end_of_members<T>(listed, 0) == sizeof(T),
                  "UNTORN_LAYOUT names all members of the class, in their order; here members are left out, or there are "
                  "bases or bit-fields, which it cannot describe");
    return listed;
}

/** The types of a class's members, as types<...>; types<> if they are not known. */
template <class T> constexpr auto members() {
    if constexpr (std::is_class_v<T> || std::is_union_v<T>) {
        if constexpr (listed_inside<T>::value) {
            return checked<T>(decltype(std::declval<T &>().untorn_layout(static_cast<const T *>(nullptr)))());
        } else if constexpr (listed_beside<T>::value) {
            return checked<T>(decltype(untorn_layout(static_cast<const T *>(nullptr)))());
        } else if constexpr (listed_in_private<T>()) {
            static_assert(!listed_in_private<T>(), "UNTORN_LAYOUT stands in a public part of the class");
        } else if constexpr (can_split<T>()) {
            return decltype(split(std::declval<T &>(), count<count_members<T>()>()))();
        } else {
            return types<>();
        }
    } else {
        return types<>();
    }
}
template <class T> using members_of = decltype(members<T>());

} // namespace untorn::detail

#endif
