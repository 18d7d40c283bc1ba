#!/bin/bash
# Crash states with new seeds, for as long as wanted: SECONDS=3600 (default: an hour), or STATES=20000 of real file
# systems. WHAT=real (root), WHAT=simulated, or both at once (the default); SEED=… for the first seed. Each round appends
# a line of JSON for each kind to TOTALS (default $CARGO_TARGET_DIR/crash-soak.jsonl), so that it can be interrupted and
# goes on with the next seed; a violation ends it and is kept. `make crash-totals` sums the lines.
# What the caller asked for, before the shell counts on from it.
seconds_wanted=$SECONDS
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh

cargo=${CARGO:-cargo}
totals=${TOTALS:-${CARGO_TARGET_DIR:-target}/crash-soak.jsonl}
what=${WHAT:-both}
states_wanted=${STATES:-}
[ "$seconds_wanted" -gt 1 ] || seconds_wanted=
[ -n "$states_wanted$seconds_wanted" ] || seconds_wanted=3600
# A round, at most: real crash states and seconds, programs over names, kills at each place, rounds
# of versions, seconds of each enumeration.
real_states=${ROUND_STATES:-4800} real_seconds=${ROUND_SECONDS:-300}
names_programs=${ROUND_PROGRAMS:-2000} names_kills=12 version_rounds=400 enum_seconds=${ROUND_ENUM_SECONDS:-60}

say() {
    echo "crash-soak: $*"
}

# Sums the lines of a kind, or of all: states, images, violations.
sum() {
    awk -v kind="${1:-}" '
        function number(name) { return match($0, "\"" name "\":[0-9]+") ? substr($0, RSTART + length(name) + 3) + 0 : 0 }
        kind == "" || index($0, "\"kind\":\"" kind "\"") { states += number("states"); images += number("images")
            checked += number("checked"); violations += number("violations"); seconds += number("seconds"); lines++ }
        END { printf "%d %d %d %d %d %d\n", states, images, checked, violations, seconds, lines }' "$totals" 2>/dev/null
}

print_totals() {
    [ -s "$totals" ] || { say "nothing was tried yet ($totals)"; return; }
    echo "| what | crash states | distinct images | recoveries checked | violations | seconds | commits of the source |"
    echo "|---|---|---|---|---|---|---|"
    for kind in $(grep -o '"kind":"[^"]*"' "$totals" | cut -d'"' -f4 | sort -u); do
        read -r states images checked violations seconds _ < <(sum "$kind")
        from=$(grep "\"kind\":\"$kind\"" "$totals" | grep -o '"commit":"[^"]*"' | cut -d'"' -f4 | sort -u | tr '\n' ' ')
        echo "| $kind | $states | $images | $checked | $violations | $seconds | $from|"
    done
}

if [ "${1:-}" = totals ]; then
    print_totals
    exit
fi

mkdir -p "$(dirname "$totals")"
touch "$totals"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null | head -1)" ] || commit=$commit+
last=$(grep -o '"seed":[0-9]*' "$totals" | cut -d: -f2 | sort -n | tail -1)
seed=$((${last:-$((${SEED:-1} - 1))} + 1))
# What a violation leaves is kept beside the totals.
export TMPDIR=$(realpath -m "$totals.kept")
mkdir -p "$TMPDIR"
work=$(mktemp -d)
interrupted=
trap 'rm -rf "$work" "$TMPDIR"/untorn-crashlab-*; rmdir --ignore-fail-on-non-empty "$TMPDIR"' EXIT
trap 'interrupted=1' INT TERM
tests="--test replay --test names --test names_killed --test enumerate --test mapping_programs --test heaps --test versions"
say "building"
$cargo test --workspace --locked -q $tests --no-run || exit 1
read -r states_before _ < <(sum)
say "from seed $seed; so far $states_before crash states ($totals)"

run() {
    local log=$1
    shift
    $cargo test --workspace --locked -q "$@" >>"$log" 2>&1
}

real_round() {
    UNTORN_REPLAY_STATES=$real_states UNTORN_REPLAY_SECONDS=$real_seconds run "$work/real" --test replay -- --nocapture survives &&
        UNTORN_NAMES_KILLS=$names_kills run "$work/killed" --test names_killed -- --nocapture survive &&
        UNTORN_VERSION_ROUNDS=$version_rounds run "$work/killed" --test versions -- --nocapture
}

simulated_round() {
    export UNTORN_ENUM_SECONDS=$enum_seconds UNTORN_NAMES_PROGRAMS=$names_programs
    run "$work/simulated" --test names -- --nocapture survive &&
        run "$work/simulated" --test enumerate --test mapping_programs --test heaps -- --nocapture
}

# Appends what a round of a kind has tried. Lines that say "in all" count on from the one before.
note() {
    local kind=$1 log=$2 status=$3 seconds=$4
    awk -v kind="$kind" -v status="$status" -v seconds="$seconds" -v seed="$seed" -v commit="$commit" '
        function before(words) { return match($0, "[0-9]+ " words) ? substr($0, RSTART) + 0 : 0 }
        function add(s, i, c) { states += s; images += i; checked += c }
        /running [0-9]+ test/ { add(all_states, all_images, all_checked); all_states = all_images = all_checked = 0 }
        / crash states/ {
            s = before("crash states"); i = before("(distinct disk images|different disks)"); c = before("recoveries checked")
            if (/in all/) { all_states = s; all_images = i; all_checked = c } else add(s, i, c)
        }
        END {
            add(all_states, all_images, all_checked)
            printf "{\"kind\":\"%s\",\"seed\":%d,\"commit\":\"%s\",\"states\":%d,\"images\":%d,\"checked\":%d,\"violations\":%d,\"seconds\":%d}\n", \
                kind, seed, commit, states, images, checked, status != 0, seconds
        }' "$log" >>"$totals"
}

begin=$SECONDS
read -r real_before _ < <(sum real)
while [ -z "$interrupted" ]; do
    left=$((${seconds_wanted:-999999999} - (SECONDS - begin)))
    [ "$left" -gt 0 ] || break
    read -r real_states_all _ < <(sum real)
    [ -z "$states_wanted" ] || [ $((real_states_all - real_before)) -lt "$states_wanted" ] || break
    [ "$real_seconds" -le "$left" ] || real_seconds=$left
    export UNTORN_TEST_SEED=$seed
    rm -f "$work"/*
    touch "$work/real" "$work/killed" "$work/simulated"
    round=$SECONDS simulated= real_status=0 simulated_status=0
    if [ "$what" != real ]; then
        simulated_round &
        simulated=$!
    fi
    if [ "$what" != simulated ]; then
        real_round
        real_status=$?
        real_took=$((SECONDS - round))
    fi
    if [ -n "$simulated" ]; then
        wait "$simulated"
        simulated_status=$?
    fi
    [ -z "$interrupted" ] || break
    if why=$(grep -aom1 'skipped: .*' "$work/real"); then
        say "nothing can be done here: ${why#skipped: }"
        exit 1
    fi
    # Of a round that a violation ended the states count, too.
    [ "$what" = simulated ] || note real "$work/real" "$real_status" "$real_took"
    [ -z "$simulated" ] || note simulated "$work/simulated" "$simulated_status" $((SECONDS - round))
    read -r all _ _ violations _ < <(sum)
    say "seed $seed: $all crash states in all; $((SECONDS - begin)) s, $violations violations"
    if [ "$real_status$simulated_status" != 00 ]; then
        kept=$TMPDIR/seed-$seed.log
        cat "$work/real" "$work/killed" "$work/simulated" >"$kept"
        grep -a -A 20 'VIOLATION\|panicked' "$kept" | head -60
        say "STOPPED: the whole output is in $kept"
        exit 1
    fi
    seed=$((seed + 1))
done
print_totals
[ -z "$interrupted" ] || say "interrupted; the next call goes on"
