# Compiles stl.cpp: build_stl.sh LIBUNTORN [hooks], in a directory with the sources. With hooks, all stores are reported, as
# by untorn-c++, which itself makes programs only.
set -eu
compiler=${CXX:-c++}
if [ "${2-}" != hooks ]; then
    $compiler -std=c++17 -O2 -shared -fPIC stl.cpp -o stl.so "$1"
    exit
fi
. ./live_flags.sh
case $($compiler -dM -E -x c++ /dev/null) in *__clang__*) flags=$LIVE_CLANG_FLAGS ;; *) flags=$LIVE_GCC_FLAGS ;; esac
link=
for name in $LIVE_WRAPS; do link="$link -Wl,--wrap=$name"; done
cc -O2 -fPIC -fno-plt -I. -c hooks.c -o hooks.o
for source in libstdcxx stl; do
    $compiler -std=c++17 -O2 -fPIC $flags $LIVE_COMMON_FLAGS -DTRACKER=UNTORN_TRACKER_EXPLICIT -I. -c $source.cpp -o $source.o
done
$compiler -shared stl.o libstdcxx.o hooks.o $link -Wl,-Bsymbolic -o stl.so "$1"
