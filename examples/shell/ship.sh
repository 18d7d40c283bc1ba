#!/bin/bash
# Commits that survive the loss of a machine: ship.sh DIR. A store is shipped to a place (here a directory; s3://BUCKET/NAME
# works alike), lost, and restored, as of the last commit and as of an earlier one.
set -euo pipefail
untorn=${UNTORN:-untorn}
mkdir -p "$1"
cd "$1"
mkdir store place
for day in monday tuesday; do
    echo "$day" >new
    $untorn put --store store --set today new
    $untorn ship --once store "file://$PWD/place"
done
rm -r store

$untorn restore "file://$PWD/place" --list
$untorn restore "file://$PWD/place" again
echo "restored: $(cat again/today)"
$untorn restore "file://$PWD/place" before --at 1
echo "as of commit 1: $(cat before/today)"
