#!/bin/bash
# Measures how much Untorn adds to a C program (scripts/small.c: two files, one commit), and tries the smallest build as an
# ordinary user: against the size limits below, and on stores of the whole library. Prints the table of docs/PLATFORMS.md.
#
#     scripts/small.sh [--whole]     --whole: also the sizes of the whole library, built twice (minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
target=${CARGO_TARGET_DIR:-target}
# Bytes of the stripped program with a shared and with a static C library. A build that grows beyond them fails.
shared_max=1650000
static_max=2400000
[ "$(uname -m)" = x86_64 ] || shared_max=2000000 static_max=2800000

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
as_user=()
[ "$(id -u)" != 0 ] || as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)

run() {
    "${as_user[@]}" "$@"
}

fail() {
    echo "small: $*" >&2
    exit 1
}

# library NAME PROFILE OPTION...: builds libuntorn.a, and keeps it as NAME.
library() {
    local name=$1 profile=$2
    shift 2
    ${CARGO:-cargo} build --quiet --locked --profile "$profile" --package untorn-capi "$@"
    objcopy --wildcard --localize-symbol='_ZNSt*' "$target/$profile/libuntorn.a" "$work/$name.a"
}

# program NAME SOURCE LIBRARY OPTION...: builds a stripped program.
program() {
    local name=$1 source=$2 library=$3
    shift 3
    # A static program of GNU's C library gets a warning for `dlopen`, which only unchanged programs need.
    "${CC:-cc}" -Os -Iinclude "scripts/$source" -o "$work/$name" "$@" "$work/$library.a" -no-pie -Wl,--gc-sections -s -lpthread -ldl -lm \
        2>"$work/cc.log" || { cat "$work/cc.log" >&2; exit 1; }
}

sizes() {
    program "$1.shared" small.c "$1" -lgcc_s
    program "$1.static" small.c "$1" -static
    printf '| %s | %s | %s |\n' "$2" "$(stat -c %s "$work/$1.shared")" "$(stat -c %s "$work/$1.static")"
}

echo 'int main(void) { return 0; }' >"$work/nothing.c"
"${CC:-cc}" -Os "$work/nothing.c" -o "$work/nothing" -no-pie -s
"${CC:-cc}" -Os "$work/nothing.c" -o "$work/nothing.static" -static -s
library small small --no-default-features
library whole "$([ "${1:-}" = --whole ] && echo release || echo small)"
echo '| build | bytes, shared C library | bytes, static C library |'
echo '|---|---|---|'
printf '| a program that does nothing | %s | %s |\n' "$(stat -c %s "$work/nothing")" "$(stat -c %s "$work/nothing.static")"
if [ "${1:-}" = --whole ]; then
    sizes whole '`--release`, all features'
    library whole small
fi
sizes whole '`--profile small`, all features'
sizes small '`--profile small --no-default-features`'
program read small-read.c whole

for kind in shared static; do
    max=${kind}_max
    size=$(stat -c %s "$work/small.$kind")
    [ "$size" -le "${!max}" ] || fail "the $kind program has $size bytes, more than ${!max}"
done

# Stores that one build leaves, the other opens: closed ones, and those of a program that was killed.
for first in small.shared whole.shared; do
    for second in small.static small.shared whole.shared; do
        store=$work/store.$first.$second
        mkdir "$store"
        [ ${#as_user[@]} = 0 ] || chown 65534:65534 "$store"
        run "$work/$first" "$store" one
        ! run "$work/$first" "$store" two crash 2>/dev/null || fail "it was not killed"
        found=$(run "$work/$second" "$store" six show) || fail "$second does not open a store that $first left"
        [ "$found" = twotwo ] || fail "$second finds '$found' after $first was killed, not 'twotwo'"
        [ "$(cat "$store/a" "$store/b")" = sixsix ] || fail "$second has closed the store with other contents"
    done
done

# Readers in other processes: none while the small program has the store open, in one sentence; again afterwards.
store=$work/store.small.shared.whole.shared
[ "$(run "$work/read" "$store")" = six ] || fail "a closed store cannot be read"
coproc small { run "$work/small.shared" "$store" ten hold; }
pid=$small_PID
read -r -u "${small[0]}" line
[ "$line" = held ] || fail "the small program says '$line'"
! run "$work/read" "$store" >/dev/null 2>"$work/refused" || fail "a store is read that keeps nothing for readers"
grep -q 'built without readers' "$work/refused" || fail "readers are told: $(cat "$work/refused")"
eval "exec ${small[1]}>&-"
wait "$pid"
[ "$(run "$work/read" "$store")" = ten ] || fail "a store that the small program has closed cannot be read"
echo "small: all is in order"
