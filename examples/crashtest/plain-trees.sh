#!/bin/sh
# Power cuts while `untorn-mount` makes a store of a plain tree, runs a program on the tree, makes a tree of the store, and
# makes the store a plain tree in its place:
# what it makes is whole or not there, what it said is done is there, and a session that was cut off can be recovered.
#
#   at=$PWD/plain-trees.sh
#   untorn-crashtest --setup "$at setup {}" --check "$at check {}" -- $at run {}
#
# `untorn-mount` is in PATH. See docs/MOUNT.md.

set -e
cd "$2"
exec 2>&1

new() {
    seq 1 5000
}

tree() {
    mkdir -p "$1/sub"
    seq 1 3000 > "$1/f"
    for n in 1 2 3 4 5 6 7 8; do seq $n 2000 > "$1/sub/$n"; done
    ln "$1/f" "$1/sub/h"
    ln -s f "$1/l"
}

acknowledged() {
    grep -qx "$1" "$UNTORN_ACKED"
}

fail() {
    echo "$*"
    exit 1
}

case $1 in
setup)
    tree d
    ;;
run)
    untorn-mount import d s > /dev/null
    echo imported
    untorn-mount run --on d -- sh -ec 'cd d; seq 1 5000 > f.new; sync f.new; mv f.new f; rm sub/3; mkdir n
        seq 77 99 > n/x; sync n/x; sync .'
    echo ran
    untorn-mount export s e > /dev/null
    echo exported
    untorn-mount eject --yes s > /dev/null
    echo ejected
    ;;
check)
    tree model
    ! acknowledged imported || [ -d s ] || fail "the store is missing"
    ! acknowledged exported || [ -d e ] || fail "the exported tree is missing"
    if [ -e s/.untorn ]; then
        ! acknowledged ejected || fail "the store is there again"
        untorn-mount check s
        untorn-mount export s again > /dev/null
        diff -r model again
        untorn-mount eject --yes s
    elif [ -e .s.untorn-unfinished ] && [ -d s ]; then
        untorn-mount eject --yes s
    fi
    if [ -d s ]; then
        diff -r model s
        [ ! -e .s.untorn-unfinished ] || fail "something is left of the store"
    fi
    [ ! -d e ] || diff -r model e
    if [ -d .d.untorn-run ]; then
        # 1: it had not begun, or was over.
        untorn-mount recover d || [ $? = 1 ] || fail "it cannot be recovered"
    fi
    if acknowledged ran || [ -e d/n/x ]; then
        new | cmp - d/f
    fi
    if acknowledged ran; then
        [ ! -e d/sub/3 ] && [ ! -e d/f.new ] || fail "what was removed is there"
        seq 77 99 | cmp - d/n/x
    fi
    cmp -s model/f d/f || new | cmp - d/f
    cmp model/f d/sub/h
    for n in 1 2 4 5 6 7 8; do cmp model/sub/$n d/sub/$n; done
    untorn-mount run --on d -- true
    ;;
esac
