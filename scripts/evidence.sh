#!/bin/bash
# The page of evidence, made from the list of runs in scripts/evidence.tsv. Fails if the page differs from the
# list; with WRITE=1, writes the page. A new run is a new line of the list.
set -euo pipefail
cd "$(dirname "$0")/.."
list=scripts/evidence.tsv
page=docs/generated/EVIDENCE.md

make_page() {
    cat <<'HEAD'
# Evidence

Crash states that were tried, and violations that were found. `make crash-totals WRITE=1` writes this page from `scripts/evidence.tsv`, one line for each run. [TESTING](../TESTING.md) says how crash states are made, [MUTANTS](MUTANTS.md) what each flush and each invariant is for, and [CRASHTEST](../CRASHTEST.md) what the same tool finds in other programs.

A crash state counts only if something that was not flushed was lost, torn or reordered in it. Distinct images are counted apart.

## Sums

| on | tried | violations |
|---|---|---|
HEAD
    awk -F '\t' '
        function commas(n) { while (match(n, /[0-9][0-9][0-9][0-9]($|,)/)) n = substr(n, 1, RSTART) "," substr(n, RSTART + 1); return n }
        /^#/ { next }
        { key = $1 "\t" $6; if (!(key in sum)) order[++n] = key; sum[key] += $5; bad[key] += $8 }
        END { for (i = 1; i <= n; i++) { split(order[i], of, "\t"); printf "| %s | %s %s | %d |\n", of[1], commas(sum[order[i]] ""), of[2], bad[order[i]] } }
    ' "$list"
    printf '\n## Runs\n\n| on | subject | command | taken at | tried | distinct images | violations |\n|---|---|---|---|---|---|---|\n'
    awk -F '\t' '
        function commas(n) { while (match(n, /[0-9][0-9][0-9][0-9]($|,)/)) n = substr(n, 1, RSTART) "," substr(n, RSTART + 1); return n }
        /^#/ { next }
        { printf "| %s | %s | %s | %s | %s %s | %s | %s |\n", $1, $2, $3, $4, commas($5), $6, $7 == "-" ? "" : commas($7), $8 }
    ' "$list"
    cat <<'TAIL'

"Before" a commit: that commit brought the work of some days in at once, and the states were tried while it was made. Every test run tries a slice again.

## What is missing

The aim is a hundred million simulated and a million real crash states, from days of `make crash-soak` and of the enumeration with `UNTORN_ENUM_FULL=1`; this is a beginning. Of live heaps the aim is 10,000 kills of each program. Ring, counters, pairs, queue, ledger and the Rust collections have them; locks of pthread have 9,000, the skip list 1,500, the allocator and transfers 2,000 each. `make crash-soak` goes on with the next seed when it is called again; `make crash-totals` sums its rounds.

## XFS's own

Two states of 13,200 could not be mounted: of a 4 KiB block of XFS's own (the extents of a sparse file, as heaps are) some 512-byte sectors were old, and XFS's log recovery left it so, as the first sector was new. In the state that was looked into, all was well as soon as that write was whole. Disks that write 4 KiB at once do not do this; where one does, `xfs_repair` is needed before Untorn comes in. The replay counts such states, and goes on.

## Controls

Each run of the replay must find, and finds, programs that acknowledge before they flush, that leave out the barrier between data and header, that rename without syncing, that use plain `mmap` and `msync` for several pages, and ext4 mounted with `barrier=0`.
TAIL
}

if [ -n "${WRITE:-}" ]; then
    made=$(mktemp)
    make_page >"$made"
    cat "$made" >"$page"
    rm "$made"
elif ! make_page | cmp -s - "$page"; then
    echo "$page is out of step with $list; \`make crash-totals WRITE=1\` writes it" >&2
    exit 1
fi
