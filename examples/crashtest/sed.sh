#!/bin/sh
# A settings file that a script edits with `sed -i`: `setup|run|check DIR [sync]`. With `sync`, the script
# flushes the file and its directory after each edit.
set -u
file=$2/settings
case $1 in
setup)
    for n in $(seq 300); do echo "option-$n = 0"; done >"$file"
    ;;
run)
    for n in $(seq 60); do
        sed -i "s/= .*/= $n/" "$file" || exit 1
        if [ "${3:-}" = sync ]; then sync "$file" "$2" || exit 1; fi
        echo "$n"
    done
    ;;
check)
    lines=$(wc -l <"$file") || exit 1
    [ "$lines" = 300 ] || { echo "$lines lines instead of 300"; exit 1; }
    values=$(sed 's/.*= //' "$file" | sort -u)
    [ "$(echo "$values" | wc -l)" = 1 ] || { echo "a mixture of" $values; exit 1; }
    last=$(tail -n 1 "$UNTORN_ACKED")
    [ "$values" -ge "${last:-0}" ] || { echo "$last was acknowledged, $values is there"; exit 1; }
    ;;
esac
