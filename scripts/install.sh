#!/bin/sh
# Builds and installs Untorn: the C library (headers, libuntorn.so, libuntorn.a, the compilers untorn-cc and untorn-c++ with
# their libuntorn-live.a and libuntorn-pthread.a, pkg-config files, CMake package, man pages of its functions) and the
# programs untorn, untorn-crashtest, untorn-xsync, untorn-mount, untorn-ship, untorn-top and untorn-bench with their man
# pages and shell completions. The program `untorn` needs none of the others.
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
    packages="$packages -p untorn-cli -p untorn-crashtest -p untorn-xsync -p untorn-mount -p untorn-ship -p untorn-top -p untorn-bench"
    programs="untorn untorn-crashtest untorn-xsync untorn-mount untorn-ship untorn-top untorn-bench"
fi

# shellcheck disable=SC2086  # $packages is a list of words.
build() {
    cargo build --quiet --locked --profile "$profile" $packages "$@"
}

case $profile in
dev | test) profile_dir=debug ;;
bench) profile_dir=release ;;
*) profile_dir=$profile ;;
esac
out=${CARGO_TARGET_DIR:-target}/$profile_dir

# Offline first: it is what a cached or vendored build needs, and it fails at once where it cannot work.
# UNTORN_PREBUILT: the caller has built everything (the tests do, once). Without cargo, as under sudo: what `make build` made.
if [ -n "${UNTORN_PREBUILT:-}" ]; then
    :
elif ! command -v cargo >/dev/null; then
    [ -e "$out/install/whole" ] || die "there is no cargo, and nothing is built: run 'make build' first"
elif ! build --offline; then
    echo "install.sh: the offline build failed; trying with the network" >&2
    build
fi
# shellcheck disable=SC2046  # An option or none.
if [ ! -e "$out/install/whole" ] || command -v "${CC:-cc}" >/dev/null; then
    scripts/assemble.sh "$out" $([ $library_only = no ] || echo --library-only)
fi
made=$out/install

# shellcheck source=scripts/version.sh
. scripts/version.sh

to=$DESTDIR$PREFIX
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put MODE FROM TO: TO is relative to the prefix. The new file replaces the old one by a rename, so that
# a running program keeps the library that it has mapped.
put() {
    echo "$3" >>"$work/files"
    mkdir -p "$to/$(dirname "$3")"
    cp "$2" "$to/$3.new"
    chmod "$1" "$to/$3.new"
    mv -f "$to/$3.new" "$to/$3"
}

# link TARGET NAME: a symbolic link; NAME is relative to the prefix.
link() {
    echo "$2" >>"$work/files"
    ln -sfn "$1" "$to/$2"
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
put 755 "$made/libuntorn.so" "$LIBDIR/libuntorn.so.$version"
put 644 "$made/libuntorn.a" "$LIBDIR/libuntorn.a"
link "libuntorn.so.$version" "$LIBDIR/libuntorn.so.$abi_version"
link "libuntorn.so.$abi_version" "$LIBDIR/libuntorn.so"
fill untorn.pc.in "$LIBDIR/pkgconfig/untorn.pc"
fill UntornConfig.cmake.in "$LIBDIR/cmake/Untorn/UntornConfig.cmake"
fill untorn-live.pc.in "$LIBDIR/pkgconfig/untorn-live.pc"
fill untorn-cc.in bin/untorn-cc 755
fill untorn-cc.1.in share/man/man1/untorn-cc.1
link untorn-cc.1 "share/man/man1/untorn-c++.1"
link untorn-cc "bin/untorn-c++"
fill UntornConfigVersion.cmake.in "$LIBDIR/cmake/Untorn/UntornConfigVersion.cmake"

put 644 "$made/libuntorn-live.a" "$LIBDIR/libuntorn-live.a"
put 644 "$made/libuntorn-pthread.a" "$LIBDIR/libuntorn-pthread.a"

if [ $library_only = no ]; then
    put 755 "$made/libuntorn-preload.so" "$LIBDIR/untorn/libuntorn-preload.so"
    if [ -e "$made/libuntorn_sqlite.so" ]; then
        put 755 "$made/libuntorn_sqlite.so" "$LIBDIR/untorn/libuntorn_sqlite.so"
        put 644 "$made/libuntorn_sqlite.a" "$LIBDIR/untorn/libuntorn_sqlite.a"
    fi
fi

for page in "$made/man3"/*.3; do
    put 644 "$page" "share/man/man3/$(basename "$page")"
done

# The pages of untorn-crashtest, untorn-xsync, untorn-mount, untorn-ship, untorn-top and untorn-bench replace the short ones that untorn has of them.
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

# For uninstall.sh. Files of an earlier installation that this one does not have go; those of programs stay where only the
# library is installed.
list=share/untorn/files
echo "$list" >>"$work/files"
sort -u "$work/files" >"$work/list"
if [ -e "$to/$list" ]; then
    if [ $library_only = no ]; then
        { grep -Fxv -f "$work/list" "$to/$list" || true; } | while read -r file; do rm -f "$to/$file"; done
    else
        sort -u "$work/list" "$to/$list" -o "$work/list"
    fi
fi
put 644 "$work/list" $list
echo "Untorn $version is installed in $to"
case $DESTDIR$PREFIX in
# Where the dynamic linker looks by itself, it looks in its cache.
/usr | /usr/local) ldconfig || echo "install.sh: run ldconfig as root before using the shared library" >&2 ;;
esac
