#!/bin/bash
# Builds the program `untorn` as one static file into DIR, by default target/static, and tries it. It runs on any Linux of
# this processor, without libraries.
#
#     scripts/static.sh [DIR]          TRIPLE names another target than musl of this processor (rustup target add TRIPLE)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
triple=${TRIPLE:-$(uname -m)-unknown-linux-musl}
profile=${PROFILE:-release}
to=${1:-${CARGO_TARGET_DIR:-target}/static}
[ -e "$(rustc --print sysroot)/lib/rustlib/$triple" ] || {
    echo "static: Rust has no library for $triple (rustup target add $triple; for its C code musl-gcc, apt install musl-tools)" >&2
    exit 2
}
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    ${CARGO:-cargo} build --locked --profile "$profile" --target "$triple" --package untorn-cli
case $profile in dev | test) profile=debug ;; esac
program=${CARGO_TARGET_DIR:-target}/$triple/$profile/untorn

! readelf --program-headers "$program" | grep -q INTERP || {
    echo "static: $program needs a dynamic linker" >&2
    exit 1
}
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$work"' EXIT
echo new >"$work/source"
mkdir "$work/store"
"$program" put --store "$work/store" --set file "$work/source"
[ "$("$program" cat "$work/store/file")" = new ]
"$program" check "$work/store"
mkdir -p "$to"
cp "$program" "$to/untorn-$triple"
echo "static: $to/untorn-$triple"
