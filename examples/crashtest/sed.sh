#!/bin/sh
# A settings file that a script edits with `sed -i`: `setup|run|check DIR [sync|vim]`. With `sync`, the script
# flushes the file and its directory after each edit. With `vim`, it edits with that.
set -u
file=$2/settings
how=${3:-}
edit() {
    case $how in
    vim) vim -es -n -u NONE -i NONE -c "set backupcopy=yes" -c "%s/= .*/= $1/" -c x "$file" ;;
    *) sed -i "s/= .*/= $1/" "$file" ;;
    esac
}
case $1 in
setup)
    for n in $(seq 300); do echo "option-$n = 0"; done >"$file"
    ;;
run)
    first=${UNTORN_FIRST:-1}
    for n in $(seq "$first" $((first + ${UNTORN_ROUNDS:-60} - 1))); do
        edit "$n" || exit 1
        if [ "$how" = sync ]; then sync "$file" "$2" || exit 1; fi
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
