#!/bin/bash
# Runs every test of the workspace and adds up the totals of all test programs; arguments go to `cargo
# test`. Tests that could not run here (they say "skipped: ...") are named again at the end, so that nobody
# takes them for passed.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh

# Whatever tests leave behind, because they or their children are killed, is removed at the end: in the temporary
# directory, and the memory of live heaps.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/untorn.XXXX")
UNTORN_LIVE_DIR=$(mktemp -d "${UNTORN_LIVE_DIR:-/dev/shm}/untorn.XXXX" || mktemp -d)
chmod 1777 "$TMPDIR" "$UNTORN_LIVE_DIR"
export TMPDIR UNTORN_LIVE_DIR

log=$(mktemp)
started=$SECONDS
export lock programs mounting seconds_max libraries
# The unit tests of a procedural macro load the compiler's libraries.
libraries=$(rustc --print target-libdir)
lock=$(mktemp)
programs=$(mktemp)
mounting=$(mktemp)
seconds_max=${UNTORN_TEST_SECONDS_MAX:-600}
# A test program that hangs is killed and counts as failed, whatever it waits for.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=timeout --kill-after=10 $seconds_max"

# Shows the output of a command when it has ended, in one piece.
in_one_piece() {
    local out status=0
    out=$(mktemp)
    "$@" >"$out" 2>&1 </dev/null || status=$?
    {
        flock 9
        cat "$out"
    } 9>>"$lock"
    rm -f "$out"
    return "$status"
}
export -f in_one_piece

# Runs one test program where cargo would run it. If this user may mount, the program has mounts of its own: each process
# of another program that makes a mount namespace would have copies of them, and an unmount of them would wait for its end.
run_program() (
    echo "     Running ${1#"$PWD"/} ($2)"
    cd "$1" || exit
    export LD_LIBRARY_PATH=$libraries CARGO_MANIFEST_DIR=$1
    apart=""
    unshare --mount true 2>/dev/null && apart="unshare --mount"
    # shellcheck disable=SC2086 # Two words, or none.
    exec timeout --kill-after=10 "$seconds_max" $apart "$2" --show-output
)
export -f run_program

# The directory of the package and the path of each test program.
list_programs() {
    ${CARGO:-cargo} test --workspace --locked --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1\t\2/p'
}
export -f list_programs

# Runs the programs of a list, each of which is taken off it by one lane only.
run_lane() {
    local status=0 list=$1 dir program
    while IFS=$'\t' read -r dir program < <(flock "$lock" sed -i -e '1w /dev/stdout' -e 1d "$list"); do
        in_one_piece run_program "$dir" "$program" || status=$?
    done
    return "$status"
}
export -f run_lane

# Runs the tests that need a build of their own.
run_builds() {
    local status=0 cargo=${CARGO:-cargo}
    in_one_piece "$cargo" test --workspace --locked --no-fail-fast --doc -- --show-output || status=$?
    # Concurrent commits under a scheduler that replaces the library's locks and threads. Of the whole workspace, so
    # that only the library and the crash laboratory are built again.
    in_one_piece "$cargo" test --workspace --locked --features untorn-crashlab/shuttle --test group_commit \
        --test heap_schedules -- --show-output || status=$?
    # The Python package, as a wheel.
    in_one_piece scripts/python-tests.sh || status=$?
    return "$status"
}
export -f run_builds

# What passing tests print is shown too: counts of crash states, and why something was left out.
run_all() {
    local status=0 cargo=${CARGO:-cargo}
    if [ $# != 0 ]; then
        $cargo test --workspace --locked --no-fail-fast "$@" -- --show-output
        return
    fi
    # All at once, the programs and libraries for C included, so that no test builds anything.
    $cargo build --workspace --locked --all-targets --profile test || return
    echo "Everything was built in $SECONDS s."
    export UNTORN_PREBUILT=1
    list_programs >"$programs"
    [ -s "$programs" ] || { echo "error: no test program was found"; return 1; }
    # Two programs at a time, and builds beside them, as tests spend much of their time waiting, for a kill or a disk.
    # Those of mounts and sessions run one after the other, because a `sync` waits for all mounts of the machine.
    local mounts='/crates/(mount|xsync|tools)/' lanes=()
    grep -E "$mounts" "$programs" >"$mounting"
    sed -i -E "\\:$mounts:d" "$programs"
    run_lane "$programs" &
    lanes+=($!)
    run_builds &
    lanes+=($!)
    run_lane "$mounting" || status=$?
    run_lane "$programs" || status=$?
    for lane in "${lanes[@]}"; do
        wait "$lane" || status=$?
    done
    return "$status"
}
export -f run_all

# In a session of its own, and into a file: whatever a test leaves behind is found and ended, and keeps
# nobody waiting for the end of our output.
setsid bash -c 'run_all "$@"' run_all "$@" >"$log" 2>&1 </dev/null &
session=$!
clean_up() {
    pkill -KILL --session "$session"
    rm -rf --one-file-system "$TMPDIR" "$UNTORN_LIVE_DIR"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
tail -n +1 -f --pid="$session" "$log" &
# In the background, as a shell obeys a signal only between commands.
wait $!
wait "$session"
status=$?

# Each program that did not pass, at the end again, where a log that was cut short still has it: what it said of its
# failures, or which of its tests had not ended when it did.
say_failed_programs() {
    local program part
    part=$(mktemp)
    sed -n 's/^ *Running .* (\(.*\))$/\1/p' "$log" | while read -r program; do
        awk -v program="$program" '
            /^ *(Running|Doc-tests) / { within = index($0, "(" program ")") }
            within' "$log" >"$part"
        grep -q '^test result: ok' "$part" && continue
        echo "==== $program"
        if grep -q '^failures:$' "$part"; then
            sed -n '/^failures:$/,$p' "$part" | grep -A 12 "panicked at\|^failures:$" | cut -c 1-300 | tail -n 60
        else
            tail -n 30 "$part"
            echo "Its tests that had not ended:"
            { "$program" --list 2>/dev/null | sed -n 's/: test$//p'; sed -n 's/^test \([^ ]*\) .*\.\.\. .*/\1/p' "$part"; } | sort | uniq -u
        fi
    done
    rm -f "$part"
}

echo
times=$(mktemp)
awk -v seconds=$((SECONDS - started)) -v times="$times" '
    /^---- .* stdout ----$/ { test = $2 " " }
    /^(test |running )/ { test = "" }
    match($0, /[^ ]* ?skipped: .*/) {
        what = "  " test substr($0, RSTART, RLENGTH)
        if (!said[what]++) left_out[++parts] = what
    }
    /^ *(Running|Doc-tests) / { program = $0; sub(/^ *(Running )?/, "", program) }
    /^test result:/ {
        passed += $4; failed += $6; ignored += $8
        lasted = $NF; sub(/s$/, "", lasted)
        print lasted, program > times
    }
    END {
        if (parts) print "Not tested here:"
        for (i = 1; i <= parts; i++) print left_out[i]
        printf "All test programs together, in %d s:\n", seconds
        printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored
        exit failed > 0 || passed == 0
    }' "$log" || status=1
echo "The ten slowest, in seconds:"
sort -rn "$times" | sed -n '1,10s/^/  /p'
rm -f "$times"
if [ "$status" != 0 ]; then
    # At the very end, and short, because a log that is cut loses its middle.
    grep '^error\(:\|\[E[0-9]*\]\)' "$log" | grep -v 'E0277\|E0505' | sort -u | tail -n 10
    say_failed_programs
    echo "FAILED: a test program failed, was ended or could not be built (cargo exited with $status; see above)"
fi
exit "$status"
