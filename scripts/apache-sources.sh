#!/bin/bash
# Fetches Apache's sources from the Debian or Ubuntu mirror that this machine uses, once, and prints the archive's path:
#
#     export UNTORN_BENCH_APACHE=$(scripts/apache-sources.sh target/papers)
#
# `untorn-bench paper 002 fig5` builds them in stages. Not below /tmp: a session has a /tmp of its own. The package lists of
# this machine are not changed.
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
found() { compgen -G "$PWD/apache2_*.orig.tar.gz" | head -1; }
if [ -z "$(found)" ]; then
    own=$(mktemp -d)
    trap 'rm -rf "$own"' EXIT
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
    # Those of the release itself: the same everywhere.
    apt-get indextargets --format 'deb-src $(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk '$3 !~ /-/ && $4 == "main"' | sort -u >"$own/sources.list"
    options=(-q -o "Dir::Etc::sourcelist=$own/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$own/lists" -o "Dir::Cache=$own/cache")
    { apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only apache2; } >&2
    [ -n "$(found)" ] || { echo "$0: the package apache2 has no archive *.orig.tar.gz" >&2; exit 1; }
fi
found
