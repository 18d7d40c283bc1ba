#!/bin/sh
# Any of the examples on a mounted store: `setup|run|check DIR MODE SCRIPT [ARGUMENT…]`, where MODE is that of
# `untorn-mount --commit`. The power is cut below the store.
#
#   at=$PWD
#   untorn-crashtest --all --setup "$at/on-mount.sh setup {} fsync $at/sqlite.py wal full" \
#       --check "$at/on-mount.sh check {} fsync $at/sqlite.py wal full" \
#       -- "$at/on-mount.sh" run {} fsync "$at/sqlite.py" wal full
#
# `untorn-mount` is in PATH. With UNTORN_PLAIN=1 nothing is mounted: what the program leaves without it.
set -eu
what=$1 dir=$2 mode=$3 script=$4
shift 4
if [ -n "${UNTORN_PLAIN:-}" ]; then
    case $script in *.py) exec "${PYTHON:-/usr/bin/python3}" "$script" "$what" "$dir" "$@" ;; esac
    exec "$script" "$what" "$dir" "$@"
fi
# Nobody waits for the commit.
if [ "$mode" = close ]; then export UNTORN_ACKED=/dev/null; fi
at=$(mktemp -d)
trap 'untorn-mount umount "$at" >/dev/null || umount -l "$at"; rmdir "$at"' EXIT
# Lines on standard output are acknowledgements.
untorn-mount --commit="$mode" "$dir/store" "$at" >&2
case $script in
*.py) "${PYTHON:-/usr/bin/python3}" "$script" "$what" "$at" "$@" ;;
*) "$script" "$what" "$at" "$@" ;;
esac
