#!/bin/bash
# A store as a file system: mount.sh DIR. Daemon and supervisor are killed; after the next mount each file is as of its
# last sync.
set -euo pipefail
untorn=${UNTORN:-untorn}
mkdir -p "$1"
cd "$1"
mkdir store mounted
$untorn mount store mounted

echo "kept" >mounted/synced
sync mounted/synced
$untorn status mounted >status
grep '^served' status
echo "not kept" >mounted/synced
echo "not kept" >mounted/new

# The supervisor first, so that it starts no other daemon.
for pid in $(grep -o 'process [0-9]*' status | cut -d' ' -f2 | tac); do kill -KILL "$pid" 2>/dev/null || true; done
fusermount3 -u -z mounted

$untorn mount store mounted
head mounted/*
$untorn umount mounted
