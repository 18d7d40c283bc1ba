#!/bin/bash
# A short run of every fuzz target: fuzz.sh [SECONDS for each].
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}

rustup toolchain list 2>/dev/null | grep -q '^nightly' || {
    echo "fuzz: libFuzzer needs a nightly toolchain: rustup toolchain install nightly" >&2
    exit 1
}
cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked
for target in $(cargo +nightly fuzz list); do
    echo "fuzz: $target for $seconds s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1
done
