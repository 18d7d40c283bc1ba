#!/bin/bash
# Makes libuntorn_sqlite.a, the VFS for an application that compiles SQLite itself: archive.sh OUTPUT.A [OPTIONS OF CC]
set -euo pipefail
output=$(realpath -m "$1")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One object whose other names cannot meet those of the application.
for source in "$here"/*.c; do
    ${CC:-cc} -O2 -fPIC -Wall -Wextra -Werror -DSQLITE_CORE "${@:2}" -I"$here/../../../include" -c "$source" \
        -o "$work/$(basename "$source" .c).o"
done
${CC:-cc} -r -nostdlib -o "$work/all" "$work"/*.o
objcopy --keep-global-symbol=untorn_sqlite_init "$work/all" "$work/untorn_sqlite.o"
ar rcs "$work/made.a" "$work/untorn_sqlite.o"
mv -f "$work/made.a" "$output"
