#!/bin/sh
# Removes what install.sh has installed under PREFIX, by the list that it left there. Stores stay as they are: their files
# are plain files once their programs have closed them.
#
#   PREFIX=/usr/local DESTDIR= scripts/uninstall.sh
set -eu
to=${DESTDIR:-}${PREFIX:-/usr/local}
list=$to/share/untorn/files
[ -e "$list" ] || {
    echo "uninstall.sh: $list is missing: nothing of Untorn was installed there by install.sh" >&2
    exit 1
}
# The list itself is one of the files.
files=$(cat "$list")
echo "$files" | while read -r file; do
    case $file in
    /* | *..*) echo "uninstall.sh: $list names $file, which is not beneath $to" >&2 && exit 1 ;;
    esac
    rm -f "$to/$file"
    # Untorn's own directories go when they are empty; the others may have been there before.
    case $(dirname "$file") in
    *ntorn) rmdir "$to/$(dirname "$file")" 2>/dev/null || true ;;
    esac
done
echo "Untorn is removed from $to"
