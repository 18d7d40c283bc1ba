#!/bin/bash
# Runs every test of the workspace and adds up the totals of all test programs. Tests that could not
# run here (they say "skipped: ...") are named again at the end, so that nobody takes them for passed.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS
${CARGO:-cargo} test --workspace --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

echo
if grep -q 'skipped: ' "$log"; then
    echo "Not tested here:"
    grep -oE '[^ ]* ?skipped: .*' "$log" | sort -u | sed 's/^/  /'
fi
awk -v seconds=$((SECONDS - started)) '
    /^test result:/ { passed += $4; failed += $6; ignored += $8 }
    END {
        printf "All test programs together, in %d s:\n", seconds
        printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored
        exit failed > 0 || passed == 0
    }' "$log" || status=1
exit "$status"
