#!/bin/sh
# Makes the files that are installed beside the programs, from a build of cargo: libuntorn.so with its symbol versions, the
# archives, the libraries for unchanged programs and for SQLite, and a page for each function. They go into BUILD/install.
# Files that are newer than their sources stay.
#
#     assemble.sh BUILD [--library-only]          BUILD is cargo's directory, such as target/release
set -eu
cd "$(dirname "$0")/.."
out=$1
library_only=${2:-}
installed=$out/install
# shellcheck source=scripts/version.sh
. scripts/version.sh

kind=whole
[ -z "$library_only" ] || kind=library

is_new() {
    [ -e "$installed/$kind" ] && [ -z "$(find "$out/libuntorn.a" scripts/assemble.sh scripts/man3.awk include crates/bindings/c/build.rs \
        crates/bindings/c/live crates/bindings/c/package crates/bindings/preload crates/bindings/sqlite Cargo.toml -newer "$installed/$kind" -type f)" ]
}

# Nothing is written then: the build may be another user's.
is_new && exit 0
# One at a time; files that somebody is copying are replaced, not changed.
mkdir -p "$installed/man3"
exec 9>"$out/install.lock"
flock 9
is_new && exit 0
to=$(mktemp -d "$out/install.new.XXXXXX")
trap 'rm -rf "$to"' EXIT
mkdir "$to/man3"

# Cargo's own library has no symbol versions: the compiler gives the linker a version script without names, and a linker
# takes no second one.
"${CC:-cc}" -shared -o "$to/libuntorn.so" -Wl,--whole-archive "$out/libuntorn.a" -Wl,--no-whole-archive \
    -Wl,--version-script=crates/bindings/c/package/untorn.map -Wl,-soname,"libuntorn.so.$abi_version" -Wl,-z,nodelete \
    -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--gc-sections -Wl,--strip-debug -Wl,--as-needed -lgcc_s -lpthread -ldl -lm
# A dependency brings C functions under names that a program may well want for itself; those of the C++ library are for
# the dynamic linker only, and others for the library that is preloaded.
objcopy --wildcard --localize-symbol='digest_*' --localize-symbol='_ZNSt*' --localize-symbol='untorn_preload_*' \
    "$out/libuntorn.a" "$to/libuntorn.a"

# For programs that untorn-cc links: compiled once, for any program. The part for functions of libstdc++ has hooks itself.
# shellcheck source=crates/bindings/c/package/live_flags.sh
. crates/bindings/c/package/live_flags.sh
"${CC:-cc}" -O2 -fPIC -fno-plt -Wall -Wextra -Iinclude -c crates/bindings/c/live/hooks.c -o "$to/hooks.o"
if "${CXX:-c++}" -dM -E -x c++ /dev/null | grep -q __clang__; then live_flags=$LIVE_CLANG_FLAGS; else live_flags=$LIVE_GCC_FLAGS; fi
# shellcheck disable=SC2086  # A list of words.
"${CXX:-c++}" -std=c++17 -O2 -fPIC -Wall -Wextra $live_flags -Iinclude -c crates/bindings/c/live/libstdcxx.cpp -o "$to/libstdcxx.o"
ar rcs "$to/libuntorn-live.a" "$to/hooks.o" "$to/libstdcxx.o"
# For programs that ask for it.
for part in pthread pthread_cxx; do
    "${CC:-cc}" -O2 -fPIC -fno-plt -Wall -Wextra -Iinclude -c "crates/bindings/c/live/$part.c" -o "$to/$part.o"
done
ar rcs "$to/libuntorn-pthread.a" "$to/pthread.o" "$to/pthread_cxx.o"
rm "$to"/*.o

if [ $kind = whole ]; then
    crates/bindings/preload/link.sh "$out/libuntorn.a" "$to/libuntorn-preload.so"
    # SQLite is not needed for anything else.
    if echo '#include <sqlite3ext.h>' | "${CC:-cc}" -E -x c - >/dev/null 2>&1; then
        crates/bindings/sqlite/link.sh "$out/libuntorn.a" "$to/libuntorn_sqlite.so"
        crates/bindings/sqlite/archive.sh "$to/libuntorn_sqlite.a"
    else
        echo "assemble.sh: the SQLite extension is left out, as sqlite3ext.h is not here (Debian: libsqlite3-dev)" >&2
        rm -f "$installed"/libuntorn_sqlite.*
    fi
fi

# A page for each function, from the comments of the header.
awk -v version="$version" -v to="$to/man3" -f scripts/man3.awk include/untorn.h
mv -f "$to"/lib* "$installed"
mv -f "$to/man3"/* "$installed/man3"
touch "$installed/library" "$installed/$kind"
