#!/bin/bash
# Links libuntorn-preload.so from a built libuntorn.a: link.sh LIBUNTORN.A OUTPUT.SO
set -euo pipefail
archive=$(realpath "$1")
output=$(realpath -m "$2")
here=$(cd "$(dirname "$0")" && pwd)
header=$here/../../../include/untorn_posix.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The header's names, without those that a program must not call at all.
sed -nE '/_cannot_check_/d; s/^#pragma redefine_extname ([a-z0-9_]+) ([a-z0-9_]+)$/NAME(\1, \2)/p' "$header" >"$work/names.h"
# Calls that start programs, which the header does not rename.
for call in execv execve execvp execvpe execl execle execlp execveat fexecve posix_spawn posix_spawnp; do
    echo "NAME($call, untorn_preload_$call)"
done >>"$work/names.h"
exported=$(sed -E 's/NAME\((.*), .*/\1;/' "$work/names.h")
aliases=$(sed -nE 's/^(ALIAS|OLD_STAT)\(([a-z0-9_]+),.*/\2;/p' "$here/preload.c")
echo "{ global: $exported $aliases untorn_*; _ZNSt*; local: untorn_preload_look_at; *; };" >"$work/exported.map"
sed -E 's/NAME\((.*), .*/--wrap=\1/' "$work/names.h" >"$work/wrapped"

for source in preload children; do
    ${CC:-cc} -O2 -fPIC -Wall -Wextra -Werror -I"$work" -I"$here" -c "$here/$source.c" -o "$work/$source.o"
done
# `nodelete`: threads of the library and its fork handlers run code in it.
${CC:-cc} -shared -o "$work/preload.so" "$work/preload.o" "$work/children.o" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -Wl,@"$work/wrapped" -Wl,--version-script="$work/exported.map" -Wl,-soname,libuntorn-preload.so \
    -Wl,-z,nodelete -Wl,-z,defs -Wl,--gc-sections -Wl,-Bsymbolic -Wl,--strip-debug -lpthread -ldl -lm -lgcc_s
# Another process may have the old one loaded, or load it now.
cp "$work/preload.so" "$output.$$"
mv -f "$output.$$" "$output"
