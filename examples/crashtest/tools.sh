#!/bin/sh
# Databases changed by the tools that come with them, one process for each change: `setup|run|check DIR TOOL`, where TOOL
# is gdbmtool, kchashmgr or ldb (RocksDB).
set -eu
what=$1 db=$2/db tool=$3
filling=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx

# The tool sets a key.
set_key() {
    case $tool in
    gdbmtool) gdbmtool --quiet "$db" store "$1" "$2" ;;
    kchashmgr) kchashmgr set "$db.kch" "$1" "$2" ;;
    ldb) ldb --db="$db" put "$1" "$2" >/dev/null ;;
    esac
}

get_key() {
    case $tool in
    gdbmtool) gdbmtool --quiet --read-only "$db" fetch "$1" ;;
    kchashmgr) kchashmgr get "$db.kch" "$1" ;;
    ldb) ldb --db="$db" get "$1" ;;
    esac
}

case $what in
setup)
    case $tool in
    gdbmtool) gdbmtool --quiet "$db" store counter 0 ;;
    kchashmgr) kchashmgr create "$db.kch" && set_key counter 0 ;;
    ldb) ldb --db="$db" --create_if_missing put counter 0 >/dev/null ;;
    esac
    for key in 1 2 3; do set_key "key-$key" "$filling"; done
    ;;
run)
    first=${UNTORN_FIRST:-1}
    for n in $(seq "$first" $((first + ${UNTORN_ROUNDS:-60} - 1))); do
        # Of another length, so that it moves.
        set_key counter "$n $(printf %.$((n * 37 % 100))s "$filling")"
        echo "$n"
    done
    ;;
check)
    for key in 1 2 3; do
        [ "$(get_key "key-$key")" = "$filling" ] || { echo "key-$key, which was not changed, is damaged"; exit 1; }
    done
    found=$(get_key counter)
    n=${found%% *} least=$(tail -n 1 "$UNTORN_ACKED")
    [ "$n" -ge "${least:-0}" ] || { echo "$least was acknowledged, $found was found"; exit 1; }
    ;;
esac
