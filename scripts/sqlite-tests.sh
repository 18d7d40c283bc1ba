#!/bin/bash
# SQLite's own tests with the VFS `untorn` as the default one: fetches Debian's source package of sqlite3 (the network is
# needed), builds its `testfixture` with the extension, and runs each file of its suites by itself, as an ordinary user. Then
# speedtest1, threadtest3 and mptest. Fails if a test fails that scripts/sqlite-tests.txt does not name, and that passes with
# SQLite's own VFS.
#
#   scripts/sqlite-tests.sh [DIRECTORY]    works there; default: sqlite-tests/ in cargo's target directory
#
# SQLITE_SUITES (veryquick and the permutations of the pager), SQLITE_FILES (all) and SQLITE_PROGRAMS ("speedtest1 threadtest3
# mptest") name a part; empty: none. SQLITE_SECONDS (300): limit of a file. SQLITE_JOBS (2): files at once. SQLITE_ARCHIVE: a
# built libuntorn.a to use. SQLITE_SCRATCH (/dev/shm): where the databases lie.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(realpath -m "${1:-$target/sqlite-tests}")
suites=${SQLITE_SUITES-veryquick exclusive exclusive-truncate persistent_journal truncate_journal inmemory_journal no_journal \
autovacuum_crash autovacuum_ioerr persistent_journal_error safe_append journaltest fullmutex}
programs=${SQLITE_PROGRAMS-speedtest1 threadtest3 mptest}
archive=${SQLITE_ARCHIVE:-$target/release/libuntorn.a}
exceptions=$source/scripts/sqlite-tests.txt
extension=$source/crates/bindings/sqlite
export build=$work/build at=$work/sqlite3 limit=${SQLITE_SECONDS:-300}
. scripts/debian-source.sh
for tool in apt-get dpkg-source cc make tclsh xargs; do
    command -v $tool >/dev/null || fail "there is no $tool here"
done
tcl=$(ls -d /usr/lib/tcl8.? 2>/dev/null | tail -n 1)
[ -e "$tcl/tclConfig.sh" ] || fail "there is no tcl-dev here"

# Without WAL, which the VFS does not have, and without mappings: SQLite's tests leave out their parts that need them. Without
# the marker, as tests put journals in its place.
build_testfixture() {
    local file objects=()
    [ -n "${SQLITE_ARCHIVE:-}" ] || ${CARGO:-cargo} build --quiet --release --package untorn-capi
    # One process has a database: clients are connections of that process, where a test knows both kinds.
    sed -i 's/if {\[info exists ::G(valgrind)\]}/if 1/' "$at/test/lock_common.tcl"
    # The first lines stand outside of tests: without their journal the rest would not run. The others write into the file of
    # an open database, and again before it is closed.
    sed -i -E -e 's/^hexio_write test.db-journal.*/catch {&}/' -e '/^do_test pager1-18.3.3/,/^extra_schema_checks 0/d' \
        "$at/test/pager1.test"
    mkdir -p "$build"
    cd "$build"
    if [ ! -e sqlite3.c ]; then
        kept configure "$at/configure" --with-tcl="$tcl" --disable-shared CFLAGS=-O1
        kept amalgamation make sqlite3.c
    fi
    for file in "$extension"/*.c "$source/scripts/sqlite-tests.c"; do
        objects+=("$build/vfs-$(basename "$file" .c).o")
        kept vfs cc -O1 -g -DSQLITE_CORE -Wall -I. -I"$source/include" -I"$extension" -DUNTORN_SQLITE_NO_MARKER -c "$file" -o "${objects[-1]}"
    done
    # Another VFS was linked to them, perhaps.
    rm -f testfixture
    linked=("${objects[@]}" "$archive" -lgcc_s -lm -ldl -lpthread)
    defined="-DSQLITE_EXTRA_INIT=untorn_suite_init -DSQLITE_OMIT_WAL -DSQLITE_MAX_MMAP_SIZE=0"
    kept testfixture make testfixture OPTS="$defined" LIBS="${linked[*]}"
    cd "$source"
}

# Programs of SQLite's authors, with the same VFS.
build_programs() {
    cd "$build"
    kept sqlite3 cc -O1 $defined -DSQLITE_THREADSAFE=1 -DSQLITE_CORE -c sqlite3.c -o sqlite3-programs.o
    for program in $programs; do
        local from=("$at/test/$program.c")
        case $program in
        mptest) from=("$at/mptest/mptest.c") ;;
        threadtest3) from+=("$at/src/test_multiplex.c") ;;
        esac
        kept "$program" cc -O1 -w -I. -I"$at/src" -I"$at/test" $defined -DSQLITE_CORE "${from[@]}" sqlite3-programs.o \
            "${linked[@]}" -o "$program"
    done
    cd "$source"
}

# program KIND LOG COMMAND...: runs a program in a directory of its own.
program() {
    local kind=$1 log=$results/$2.$1 dir=$scratch/$2.$1 status=0
    shift 2
    mkdir -p "$dir/.untorn"
    [ "$(id -u)" != 0 ] || chown -R 65534:65534 "$dir"
    (cd "$dir" && UNTORN_SUITE=$kind timeout --kill-after=5 1800 $as_user "$@") >"$log" 2>&1 </dev/null || status=$?
    rm -rf "$dir"
    return $status
}

# verdict NAME STATUS: notes how a program has ended.
verdict() {
    step "$1: $([ "$2" = 0 ] && echo passed || echo FAILED)"
    [ "$2" = 0 ] || is_failed=1
}

run_programs() {
    local name status kind
    for name in $programs; do
        status=0
        case $name in
        speedtest1)
            # It reads the same with both VFSs.
            for kind in untorn unix; do
                program $kind speedtest1 "$build/speedtest1" --size "${SQLITE_SPEED:-20}" --verify speed.db || status=1
            done
            diff <(grep 'Verification Hash' "$results/speedtest1.untorn") \
                <(grep 'Verification Hash' "$results/speedtest1.unix") || status=1
            ;;
        threadtest3)
            # Not those of WAL.
            program untorn threadtest3 "$build/threadtest3" cgt_pager_1 dynamic_triggers stress1 stress2 vacuum1 shared1 \
                lookaside1 create_drop_index_1 || status=1
            ;;
        mptest)
            # Processes take turns: each closes the store with its last lock.
            for script in crash01 multiwrite01 config01 config02; do
                program shared "mptest-$script" "$build/mptest" mp.db "$at/mptest/$script.test" || status=1
            done
            ;;
        esac
        verdict "$name" $status
    done
}

# The files of a suite.
files_of() {
    cat >"$work/files.tcl" <<'END'
set suite [lindex $argv 0]
set argv0 [lindex $argv 1]/test/list
set argv {}
source [file dirname $argv0]/permutations.test
array set of $::testspec($suite)
foreach file [lsort $of(-files)] { puts "file [file tail $file]" }
exit 0
END
    (cd "$scratch" && "$build/testfixture" "$work/files.tcl" "$1" "$at") | sed -n 's/^file //p'
}

# run_file KIND SUITE FILE: runs one file in a directory of its own. Its failing tests go to FILE.failed.
run_file() {
    local kind=$1 suite=$2 file=$3 status=0 began=$SECONDS
    local dir=$scratch/$kind.$suite.$file log=$results/$kind.$suite.$file
    mkdir -p "$dir/testdir/.untorn"
    [ "$(id -u)" != 0 ] || chown -R 65534:65534 "$dir"
    (cd "$dir" && UNTORN_SUITE=$kind timeout --kill-after=5 "$limit" $as_user "$build/testfixture" \
        "$at/test/permutations.test" "$suite" "$file") >"$log" 2>&1 </dev/null || status=$?
    rm -rf "$dir"
    sed -n 's/^!Failures on these tests: //p' "$log" | tail -n 1 | tr ' ' '\n' | sed "s/^$suite\.//" >"$log.failed"
    if ! grep -q ' errors out of ' "$log"; then
        [ $status = 124 ] && echo "$file-too-slow" >>"$log.failed" || echo "$file-did-not-end" >>"$log.failed"
    fi
    echo "$suite $file $((SECONDS - began)) $(sed -n 's/^\([0-9]*\) errors out of \([0-9]*\) tests.*/\1 \2/p' "$log" | tail -n 1)"
}
export -f run_file

# unexplained SUITE FILE: failing tests that the list does not name.
unexplained() {
    local test pattern of known
    while read -r test; do
        known=
        while read -r pattern of _; do
            # shellcheck disable=SC2053  # a pattern.
            if [[ $test == $pattern ]] && [[ $of == all || ",$of," == *",$1,"* ]]; then known=1; fi
        done < <(grep -v -e '^#' -e '^$' "$exceptions")
        [ -n "$known" ] || echo "$test"
    done <"$results/untorn.$1.$2.failed"
}

run_suite() {
    local suite=$1 file tests failed found
    files_of "$suite" >"$work/files"
    [ -z "${SQLITE_FILES:-}" ] || { tr ' ' '\n' <<<"$SQLITE_FILES" | grep -Fxf - "$work/files" || true; } >"$work/chosen"
    [ -z "${SQLITE_FILES:-}" ] || mv "$work/chosen" "$work/files"
    awk '$1 ~ /\.test$/ { print $1 }' "$exceptions" | { grep -vFxf - "$work/files" || true; } >"$work/chosen"
    step "$suite: $(wc -l <"$work/chosen") files, $(($(wc -l <"$work/files") - $(wc -l <"$work/chosen"))) left out as listed"
    xargs -r -a "$work/chosen" -P "${SQLITE_JOBS:-2}" -I{} bash -c 'run_file untorn "$0" "$1"' "$suite" {} >"$work/ran" || true
    tests=$(awk '{ n += $5 } END { print n + 0 }' "$work/ran")
    failed=$(cat "$results/untorn.$suite."*.failed | wc -l)
    found=0
    while read -r file; do
        unexplained "$suite" "$file" >"$work/unexplained"
        [ -s "$work/unexplained" ] || continue
        # Also fails with SQLite's own VFS, on this machine.
        run_file unix "$suite" "$file" >/dev/null
        while read -r test; do
            grep -Fxq -- "$test" "$results/unix.$suite.$file.failed" && continue
            found=$((found + 1))
            echo "  $suite: $test ($file)"
        done <"$work/unexplained"
    done <"$work/chosen"
    rows+=("$suite|$(wc -l <"$work/ran")|$tests|$failed|$found")
    [ $found = 0 ] || is_failed=1
}

scratch=$(mktemp -d "${SQLITE_SCRATCH:-/dev/shm}/untorn-sqlite-tests.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
results=$work/results
as_user=
# Some of its tests do not run as root.
[ "$(id -u)" != 0 ] || as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"
export scratch results as_user
is_failed=0
rows=()
mkdir -p "$work"
fetch sqlite3
step "building testfixture"
build_testfixture
rm -rf "$results" && mkdir "$results"
for suite in $suites; do run_suite "$suite"; done
if [ -n "$programs" ]; then
    build_programs
    run_programs
fi
[ ${#rows[@]} = 0 ] || printf '%s\n' "suite|files|tests|failed|not explained" "${rows[@]}" | column -t -s '|'
[ $is_failed = 0 ] || fail "tests fail that should not (their output is in $results)"
