# Compiles live_map.cpp, live_list.cpp and live_kernels.cpp: build_live.sh LIBUNTORN COMPILERS, in a directory with the sources,
# by as many compilers at most. Prints the compilers.
set -eu
. ./live_flags.sh
. ./flushing_hooks.sh
link=
for name in $LIVE_WRAPS; do link="$link -Wl,--wrap=$name"; done
cc -O2 -fPIC -fno-plt -I. -c hooks.c -o hooks.o
if flushing_hooks hooks.c . hooks-flush.o; then
    flushing_hooks hooks.c . hooks-once.o '-DFLUSH_END(a)='
fi
made=0
for compiler in g++ clang++; do
    [ $made -lt "$2" ] && $compiler --version >/dev/null 2>&1 || continue
    made=$((made + 1))
    case $compiler in clang*) flags=$LIVE_CLANG_FLAGS ;; *) flags=$LIVE_GCC_FLAGS ;; esac
    flags="$flags $LIVE_COMMON_FLAGS"
    build="$compiler -std=c++17 -O2 -I."
    $build -DPLAIN live_list.cpp -pthread -o "plain-list-$compiler"
    # A lock-free program has no hooks.
    $build live_list.cpp "$1" -pthread -o "list-$compiler"
    # libpmemobj is a peer where it is installed.
    $build -DPOOL live_map.cpp -l:libpmemobj.so.1 -pthread -o "pool-$compiler" 2>/dev/null || true
    $build $flags -c libstdcxx.cpp -o libstdcxx.o
    for program in live_map live_kernels; do
        of=
        [ $program = live_map ] || of=kernels-
        $build -DPLAIN $program.cpp -pthread -o "plain-$of$compiler"
        $build $flags -c $program.cpp -o $program.o
        for hooks in hooks hooks-flush hooks-once; do
            [ -e $hooks.o ] || continue
            case $hooks in hooks) name=log ;; *) name=${hooks#hooks-} ;; esac
            $build $program.o $hooks.o libstdcxx.o $link "$1" -pthread -o "$name-$of$compiler"
        done
    done
    echo "$compiler"
done
