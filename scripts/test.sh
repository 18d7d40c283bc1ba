#!/bin/bash
# Runs every test of the workspace and adds up the totals of all test programs; arguments go to `cargo
# test`. Tests that could not run here (they say "skipped: ...") are named again at the end, so that nobody
# takes them for passed.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
# What passing tests print is shown too: counts of crash states, and why something was left out.
{
    ${CARGO:-cargo} test --workspace --locked --no-fail-fast "$@" -- --show-output
    status=$?
    # Concurrent commits under a scheduler that replaces the library's locks and threads, which takes a
    # build of its own.
    if [ $# = 0 ]; then
        CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/shuttle ${CARGO:-cargo} test --locked -p untorn-crashlab \
            --features shuttle --test group_commit -- --show-output || status=$?
    fi
    exit "$status"
} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

echo
awk -v seconds=$((SECONDS - started)) '
    /^---- .* stdout ----$/ { test = $2 " " }
    /^(test |running )/ { test = "" }
    match($0, /[^ ]* ?skipped: .*/) {
        what = "  " test substr($0, RSTART, RLENGTH)
        if (!said[what]++) left_out[++parts] = what
    }
    /^test result:/ { passed += $4; failed += $6; ignored += $8 }
    END {
        if (parts) print "Not tested here:"
        for (i = 1; i <= parts; i++) print left_out[i]
        printf "All test programs together, in %d s:\n", seconds
        printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored
        exit failed > 0 || passed == 0
    }' "$log" || status=1
exit "$status"
