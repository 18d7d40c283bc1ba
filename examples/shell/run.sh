#!/bin/bash
# A program on a plain directory as on a mount: run.sh DIR. The program commits one file, and is killed before it has
# committed the other: then the directory has the first change only.
set -euo pipefail
untorn=${UNTORN:-untorn}
mkdir -p "$1"
cd "$1"
mkdir data
printf 'one\n' >data/first
printf 'one\n' >data/second

# Each file is committed by its sync. Outside, the directory is as it was until the program has ended.
$untorn run --on data --commit=fsync -- sh -c '
    echo two >data/first; sync data/first
    kill -KILL $$' || echo "the program was killed"
head data/*

# A session that is killed as a whole leaves the directory alone. `untorn recover` puts its commits back.
$untorn run --on data -- sh -c 'echo three >data/second; sync data/second; touch ready; sleep 5' &
until [ -e ready ]; do sleep 0.1; done
kill -KILL $!
wait $! 2>/dev/null || echo "the session was killed"
head data/second
$untorn recover data
head data/second
