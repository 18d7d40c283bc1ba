#!/bin/sh
# Builds and installs Untorn: the C library (headers, libuntorn.so, libuntorn.a, the compilers untorn-cc and untorn-c++ with
# their libuntorn-live.a and libuntorn-pthread.a, pkg-config files, CMake package, man pages of its functions) and the programs untorn, untorn-crashtest, untorn-xsync, untorn-mount and
# untorn-bench with their man pages and shell
# completions. The program `untorn` needs neither of the others.
#
#   PREFIX=/usr/local DESTDIR= LIBDIR=lib INCLUDEDIR=include scripts/install.sh [--library-only] [--profile NAME]
#
# LIBDIR and INCLUDEDIR are relative to PREFIX (a multiarch system may want LIBDIR=lib/x86_64-linux-gnu).
# No network is needed once the dependencies are vendored or in cargo's cache.
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
LIBDIR=${LIBDIR:-lib}
INCLUDEDIR=${INCLUDEDIR:-include}
profile=release
library_only=no

die() {
    echo "install.sh: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --library-only) library_only=yes ;;
    --profile)
        [ $# -ge 2 ] || die "--profile needs a name"
        profile=$2
        shift
        ;;
    *) die "unknown argument '$1'; settings are environment variables: PREFIX, DESTDIR, LIBDIR, INCLUDEDIR" ;;
    esac
    shift
done

case $PREFIX in /*) ;; *) die "PREFIX must be an absolute path, not '$PREFIX'" ;; esac
case $LIBDIR$INCLUDEDIR in /* | *..*) die "LIBDIR and INCLUDEDIR are relative to PREFIX" ;; esac

# Installed files are for everybody, whatever the caller's umask.
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

packages="-p untorn-capi"
programs=
if [ $library_only = no ]; then
    packages="$packages -p untorn-cli -p untorn-crashtest -p untorn-xsync -p untorn-mount -p untorn-bench"
    programs="untorn untorn-crashtest untorn-xsync untorn-mount untorn-bench"
fi

# shellcheck disable=SC2086  # $packages is a list of words.
build() {
    cargo build --quiet --locked --profile "$profile" $packages "$@"
}

# Offline first: it is what a cached or vendored build needs, and it fails at once where it cannot work.
# UNTORN_PREBUILT: the caller has built everything (the tests do, once).
if [ -z "${UNTORN_PREBUILT:-}" ] && ! build --offline; then
    echo "install.sh: the offline build failed; trying with the network" >&2
    build
fi

case $profile in
dev | test) profile_dir=debug ;;
bench) profile_dir=release ;;
*) profile_dir=$profile ;;
esac
out=${CARGO_TARGET_DIR:-target}/$profile_dir
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
abi_version=$(sed -n 's/^const ABI_VERSION: u32 = \([0-9]*\);/\1/p' crates/bindings/c/build.rs)
[ -n "$version" ] && [ -n "$abi_version" ] || die "cannot tell the version"

to=$DESTDIR$PREFIX
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put MODE FROM TO: TO is relative to the prefix. The new file replaces the old one by a rename, so that
# a running program keeps the library that it has mapped.
put() {
    mkdir -p "$to/$(dirname "$3")"
    cp "$2" "$to/$3.new"
    chmod "$1" "$to/$3.new"
    mv -f "$to/$3.new" "$to/$3"
}

# up PATH: the way back from a relative directory.
up() {
    echo "$1" | sed 's:[^/][^/]*:..:g'
}

# shellcheck source=crates/bindings/c/package/live_flags.sh
. crates/bindings/c/package/live_flags.sh
link_flags=
for name in $LIVE_WRAPS; do
    link_flags="$link_flags -Wl,--wrap=$name"
done
pthread_flags=
for name in $PTHREAD_WRAPS; do
    pthread_flags="$pthread_flags -Wl,--wrap=$name"
done

# fill TEMPLATE TO [MODE]
fill() {
    sed -e "s:@VERSION@:$version:g" -e "s:@ABI_VERSION@:$abi_version:g" -e "s:@MAJOR_MINOR@:${version%.*}:g" \
        -e "s:@LIBDIR@:$LIBDIR:g" -e "s:@INCLUDEDIR@:$INCLUDEDIR:g" \
        -e "s:@PREFIX_FROM_PC@:$(up "$LIBDIR/pkgconfig"):g" \
        -e "s:@PREFIX_FROM_CMAKE@:$(up "$LIBDIR/cmake/Untorn"):g" -e "s:@PREFIX_FROM_BIN@:..:g" \
        -e "s#@GCC_FLAGS@#$LIVE_GCC_FLAGS $LIVE_COMMON_FLAGS#g" -e "s#@LINK_FLAGS@#${link_flags# }#g" \
        -e "s#@PTHREAD_FLAGS@#${pthread_flags# }#g" \
        -e "s#@CLANG_FLAGS@#$LIVE_CLANG_FLAGS $LIVE_COMMON_FLAGS#g" "crates/bindings/c/package/$1" >"$work/$1"
    put "${3:-644}" "$work/$1" "$2"
}

for header in untorn.h untorn.hpp untorn_heap.hpp untorn_section.hpp untorn_containers.hpp untorn_types.hpp untorn_members.hpp untorn_posix.h
do
    put 644 "include/$header" "$INCLUDEDIR/$header"
done
# Cargo's own library has no symbol versions: the compiler gives the linker a version script without names, and a linker
# takes no second one.
"${CC:-cc}" -shared -o "$work/libuntorn.so" -Wl,--whole-archive "$out/libuntorn.a" -Wl,--no-whole-archive \
    -Wl,--version-script=crates/bindings/c/package/untorn.map -Wl,-soname,"libuntorn.so.$abi_version" -Wl,-z,nodelete \
    -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--gc-sections -Wl,--strip-debug -Wl,--as-needed -lgcc_s -lpthread -ldl -lm
put 755 "$work/libuntorn.so" "$LIBDIR/libuntorn.so.$version"
# A dependency brings C functions under names that a program may well want for itself; those of the C++ library are for
# the dynamic linker only, and others for the library that is preloaded.
objcopy --wildcard --localize-symbol='digest_*' --localize-symbol='_ZNSt*' --localize-symbol='untorn_preload_*' \
    "$out/libuntorn.a" "$work/libuntorn.a"
put 644 "$work/libuntorn.a" "$LIBDIR/libuntorn.a"
ln -sfn "libuntorn.so.$version" "$to/$LIBDIR/libuntorn.so.$abi_version"
ln -sfn "libuntorn.so.$abi_version" "$to/$LIBDIR/libuntorn.so"
fill untorn.pc.in "$LIBDIR/pkgconfig/untorn.pc"
fill UntornConfig.cmake.in "$LIBDIR/cmake/Untorn/UntornConfig.cmake"
fill untorn-live.pc.in "$LIBDIR/pkgconfig/untorn-live.pc"
fill untorn-cc.in bin/untorn-cc 755
ln -sfn untorn-cc "$to/bin/untorn-c++"
fill UntornConfigVersion.cmake.in "$LIBDIR/cmake/Untorn/UntornConfigVersion.cmake"

# What untorn-cc links into programs: compiled once, for any program. What stands for functions of libstdc++ has hooks itself.
"${CC:-cc}" -O2 -fPIC -fno-plt -Wall -Wextra -Iinclude -c crates/bindings/c/live/hooks.c -o "$work/hooks.o"
# shellcheck disable=SC2086  # Lists of words.
if "${CXX:-c++}" -dM -E -x c++ /dev/null | grep -q __clang__; then live_flags=$LIVE_CLANG_FLAGS; else live_flags=$LIVE_GCC_FLAGS; fi
# shellcheck disable=SC2086
"${CXX:-c++}" -std=c++17 -O2 -fPIC -Wall -Wextra $live_flags -Iinclude -c crates/bindings/c/live/libstdcxx.cpp -o "$work/libstdcxx.o"
ar rcs "$work/libuntorn-live.a" "$work/hooks.o" "$work/libstdcxx.o"
put 644 "$work/libuntorn-live.a" "$LIBDIR/libuntorn-live.a"
# For programs that ask for it.
for part in pthread pthread_cxx; do
    "${CC:-cc}" -O2 -fPIC -fno-plt -Wall -Wextra -Iinclude -c "crates/bindings/c/live/$part.c" -o "$work/$part.o"
done
ar rcs "$work/libuntorn-pthread.a" "$work/pthread.o" "$work/pthread_cxx.o"
put 644 "$work/libuntorn-pthread.a" "$LIBDIR/libuntorn-pthread.a"

if [ $library_only = no ]; then
    crates/bindings/preload/link.sh "$out/libuntorn.a" "$work/libuntorn-preload.so"
    put 755 "$work/libuntorn-preload.so" "$LIBDIR/untorn/libuntorn-preload.so"
    # SQLite is not needed for anything else.
    if echo '#include <sqlite3ext.h>' | "${CC:-cc}" -E -x c - >"$work/header" 2>&1; then
        crates/bindings/sqlite/link.sh "$out/libuntorn.a" "$work/libuntorn_sqlite.so"
        put 755 "$work/libuntorn_sqlite.so" "$LIBDIR/untorn/libuntorn_sqlite.so"
        crates/bindings/sqlite/archive.sh "$work/libuntorn_sqlite.a"
        put 644 "$work/libuntorn_sqlite.a" "$LIBDIR/untorn/libuntorn_sqlite.a"
    else
        echo "install.sh: the SQLite extension is left out, as sqlite3ext.h is not here (Debian: libsqlite3-dev)" >&2
    fi
fi

# A page for each function, from the comments of the header.
mkdir "$work/man3"
awk -v version="$version" -v to="$work/man3" -f scripts/man3.awk include/untorn.h
for page in "$work/man3"/*.3; do
    put 644 "$page" "share/man/man3/$(basename "$page")"
done

# The pages of untorn-crashtest, untorn-xsync, untorn-mount and untorn-bench replace the short ones that untorn has of them.
for program in $programs; do
    put 755 "$out/$program" "bin/$program"
    mkdir "$work/man"
    "$out/$program" man "$work/man"
    for page in "$work/man"/*.1; do
        put 644 "$page" "share/man/man1/$(basename "$page")"
    done
    rm -r "$work/man"
    for shell in bash zsh fish; do
        "$out/$program" completions $shell >"$work/$shell"
    done
    put 644 "$work/bash" "share/bash-completion/completions/$program"
    put 644 "$work/zsh" "share/zsh/site-functions/_$program"
    put 644 "$work/fish" "share/fish/vendor_completions.d/$program.fish"
done

echo "Untorn $version is installed in $to"
case $DESTDIR$PREFIX in
# Where the dynamic linker looks by itself, it looks in its cache.
/usr | /usr/local) ldconfig || echo "install.sh: run ldconfig as root before using the shared library" >&2 ;;
esac
