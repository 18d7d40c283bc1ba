#!/bin/bash
# Crash states of real file systems with new seeds, for as long as wanted: STATES=20000 or SECONDS=3600
# (default: an hour), SEED=… for the first seed. The totals are added up in TOTALS (default
# $CARGO_TARGET_DIR/crash-soak.totals), so that it can be interrupted and goes on where it was; a violation
# ends it and is kept.
# What the caller asked for, before the shell counts on from it.
seconds_wanted=$SECONDS
set -uo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
totals=${TOTALS:-${CARGO_TARGET_DIR:-target}/crash-soak.totals}
states_wanted=${STATES:-}
[ "$seconds_wanted" -gt 1 ] || seconds_wanted=
[ -n "$states_wanted$seconds_wanted" ] || seconds_wanted=3600
per_round=1200
# Programs over names in each round, and kills at each place.
names_programs=1000
names_kills=12

say() {
    echo "crash-soak: $*"
}

mkdir -p "$(dirname "$totals")"
read -r seed rounds states violations 2>/dev/null <"$totals" || { seed=${SEED:-1}; rounds=0; states=0; violations=0; }
# What a violation leaves is kept beside the totals.
export TMPDIR=$(realpath -m "$totals.kept")
mkdir -p "$TMPDIR"
log=$(mktemp)
interrupted=
trap 'rm -rf "$log" "$TMPDIR"/untorn-crashlab-*; rmdir --ignore-fail-on-non-empty "$TMPDIR"' EXIT
trap 'interrupted=1' INT TERM
say "building"
$cargo test --workspace --locked -q --test replay --test names --test names_killed --no-run || exit 1
say "from seed $seed; so far $states states in $rounds rounds, $violations violations ($totals)"

begin=$SECONDS
first=$states
while [ -z "$interrupted" ]; do
    [ -z "$seconds_wanted" ] || [ $((SECONDS - begin)) -lt "$seconds_wanted" ] || break
    [ -z "$states_wanted" ] || [ $((states - first)) -lt "$states_wanted" ] || break
    UNTORN_TEST_SEED=$seed UNTORN_REPLAY_STATES=$per_round UNTORN_REPLAY_SECONDS=600 \
        $cargo test --workspace --locked -q --test replay -- --nocapture survives >"$log" 2>&1
    status=$?
    [ -z "$interrupted" ] || break
    if [ $status = 0 ]; then
        UNTORN_TEST_SEED=$seed UNTORN_NAMES_PROGRAMS=$names_programs UNTORN_NAMES_KILLS=$names_kills \
            $cargo test --workspace --locked -q --test names --test names_killed -- --nocapture survive >"$log.names" 2>&1
        status=$?
        # Nothing of this is counted among the states of real file systems.
        [ $status = 0 ] || grep -av "skipped: \|crash states" "$log.names" >>"$log"
        rm -f "$log.names"
    fi
    [ -z "$interrupted" ] || break
    if why=$(grep -aom1 'skipped: .*' "$log"); then
        say "nothing can be done here: ${why#skipped: }"
        exit 1
    fi
    found=$(grep -aoE '[0-9]+ crash states' "$log" | awk '{ n += $1 } END { print n + 0 }')
    states=$((states + found)) rounds=$((rounds + 1))
    if [ $status != 0 ]; then
        violations=$((violations + 1))
        kept=$TMPDIR/seed-$seed.log
        cp "$log" "$kept"
    fi
    echo "$((seed + 1)) $rounds $states $violations" >"$totals.new" && mv "$totals.new" "$totals"
    say "seed $seed: $found states; $states in all; $((SECONDS - begin)) s, $violations violations"
    seed=$((seed + 1))
    if [ $status != 0 ]; then
        grep -a -A 20 'VIOLATION' "$log" | head -60
        say "STOPPED: the whole output is in $kept"
        exit 1
    fi
done
say "$states states in $rounds rounds, $violations violations${interrupted:+ (interrupted; the next call goes on)}"
