#!/bin/bash
# Kills SQLite under `untorn preload` at random moments, and checks after each kill that the database is whole and has
# every row that SQLite acknowledged: kills.sh [KILLS]
set -euo pipefail
kills=${1:-60}
untorn=$(command -v "${UNTORN:-untorn}") || { echo "untorn is not in PATH: make install, or UNTORN=target/release/untorn" >&2; exit 1; }
untorn=$(realpath "$untorn")
dir=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
preload=("$untorn" preload --manage '*.db' --)

"${preload[@]}" sqlite3 app.db 'pragma journal_mode=memory; create table t(n integer primary key, v blob)' >/dev/null
rows=0
for ((kill = 1; kill <= kills; kill++)); do
    # Each row is a transaction. SQLite prints its number when it is committed.
    mkfifo input
    "${preload[@]}" stdbuf -oL sqlite3 app.db <input >acknowledged 2>/dev/null &
    sqlite=$!
    { echo 'pragma journal_mode=memory;'
      seq $((rows + 1)) $((rows + 100000)) | sed 's/.*/insert into t values(&, randomblob(1000)); select &;/'; } >input 2>/dev/null &
    until grep -qx '[0-9][0-9]*' acknowledged 2>/dev/null; do
        kill -0 $sqlite
        sleep 0.01
    done
    sleep "0.$(printf %03d $((RANDOM % 500)))"
    kill -KILL $sqlite
    wait $sqlite 2>/dev/null || true
    rm input
    acknowledged=$(grep -x '[0-9]*' acknowledged | tail -n 1) || true
    IFS='|' read -r state rows last < <("${preload[@]}" sqlite3 app.db \
        "select (select integrity_check from pragma_integrity_check), count(*), coalesce(max(n), 0) from t")
    if [ "$state" != ok ] || [ "$rows" != "$last" ] || [ "$rows" -lt "${acknowledged:-0}" ]; then
        echo "kill $kill: $state, $rows rows up to $last, and ${acknowledged:-0} were acknowledged" >&2
        exit 1
    fi
done
echo "$kills kills, $rows rows: no acknowledged row lost, no half transaction"
