# Compiles live_map.cpp and live_list.cpp: build_live.sh LIBUNTORN, in a directory with the sources. Prints the compilers that are here.
set -eu
. ./live_flags.sh
link=
for name in $LIVE_WRAPS; do link="$link -Wl,--wrap=$name"; done
cc -O2 -fPIC -fno-plt -I. -c hooks.c -o hooks.o
flush='-DFLUSH(a)=__asm__ volatile("clflush (%0); sfence"::"r"(a):"memory")'
if grep -qw clwb /proc/cpuinfo; then flush='-DFLUSH(a)=__asm__ volatile("clwb (%0); sfence"::"r"(a):"memory")'; fi
case $(uname -m) in x86_64)
    cc -O2 -fPIC -fno-plt -I. "$flush" -c hooks.c -o hooks-flush.o
    # As if records told by themselves that they are whole: the end of the log is not flushed.
    cc -O2 -fPIC -fno-plt -I. "$flush" '-DFLUSH_END(a)=' -c hooks.c -o hooks-once.o
    ;;
esac
for compiler in g++ clang++; do
    $compiler --version >/dev/null 2>&1 || continue
    case $compiler in clang*) flags=$LIVE_CLANG_FLAGS ;; *) flags=$LIVE_GCC_FLAGS ;; esac
    flags="$flags $LIVE_COMMON_FLAGS"
    $compiler -std=c++17 -O2 -I. -DPLAIN live_list.cpp -pthread -o "plain-list-$compiler"
    # A lock-free program has no hooks.
    $compiler -std=c++17 -O2 -I. live_list.cpp "$1" -pthread -o "list-$compiler"
    $compiler -std=c++17 -O2 -I. $flags -c libstdcxx.cpp -o libstdcxx.o
    $compiler -std=c++17 -O2 -I. -DPLAIN live_map.cpp -pthread -o "plain-$compiler"
    $compiler -std=c++17 -O2 -I. $flags live_map.cpp hooks.o libstdcxx.o $link "$1" -pthread -o "log-$compiler"
    if [ -e hooks-flush.o ]; then
        $compiler -std=c++17 -O2 -I. $flags live_map.cpp hooks-flush.o libstdcxx.o $link "$1" -pthread -o "flush-$compiler"
        $compiler -std=c++17 -O2 -I. $flags live_map.cpp hooks-once.o libstdcxx.o $link "$1" -pthread -o "once-$compiler"
    fi
    echo "$compiler"
done
