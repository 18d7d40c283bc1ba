#!/bin/bash
# A settings file that a script replaces, whole or not at all: put.sh DIR. The script that makes the new contents fails
# in the middle, and is killed in the middle; the file stays as it was. Then two files are replaced together.
set -euo pipefail
untorn=${UNTORN:-untorn}
mkdir -p "$1"
cd "$1"

printf 'colour = blue\nsize = 3\n' | $untorn put settings

# A program that fails after half of its output: with `>settings` the old contents would be gone.
$untorn put settings -- sh -c 'echo colour = red; exit 1' || echo "the program failed with $?"
cat settings

# The same with a kill.
(echo colour = red; sleep 10) | $untorn put settings &
sleep 0.3
kill -KILL $!
wait $! 2>/dev/null || echo "put was killed"
cat settings

echo '{"users": 2}' >new-users
echo '{"groups": 1}' >new-groups
$untorn put --store . --set users.json new-users --set groups.json new-groups
cat users.json groups.json
