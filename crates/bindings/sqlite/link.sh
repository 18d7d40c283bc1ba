#!/bin/bash
# Links libuntorn_sqlite.so from a built libuntorn.a: link.sh LIBUNTORN.A OUTPUT.SO [OPTIONS OF CC]
set -euo pipefail
archive=$(realpath "$1")
output=$(realpath -m "$2")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The file's name decides the name of the entry point, which alone is exported.
echo '{ global: sqlite3_untornsqlite_init; local: *; };' >"$work/exported.map"
# `nodelete`: threads of the library and its exit handler run code in it.
${CC:-cc} -O2 -fPIC -shared -Wall -Wextra -Werror "${@:3}" -I"$here/../../../include" "$here"/*.c -o "$work/sqlite.so" \
    "$archive" -Wl,--version-script="$work/exported.map" -Wl,-soname,libuntorn_sqlite.so \
    -Wl,-z,nodelete -Wl,-z,defs -Wl,--gc-sections -Wl,-Bsymbolic -Wl,--strip-debug -lpthread -ldl -lm -lgcc_s
# Another process may have the old one loaded.
mv -f "$work/sqlite.so" "$output"
