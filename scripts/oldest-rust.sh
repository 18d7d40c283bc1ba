#!/bin/bash
# Builds the workspace with the oldest Rust that it promises to build with (`rust-version` in Cargo.toml). Where that
# toolchain is not installed nothing is built, and the script says so: fetching a toolchain is not its business.
#
#     oldest-rust.sh              builds
#     oldest-rust.sh --version    prints the version
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^rust-version = "\([0-9.]*\)"$/\1/p' Cargo.toml).0
if [ "${1:-}" = --version ]; then
    echo "$version"
    exit 0
fi
if ! command -v rustup >/dev/null || ! rustup toolchain list | grep -q "^$version-"; then
    echo "oldest-rust: skipped: Rust $version is not installed (rustup toolchain install $version --profile minimal)"
    exit 0
fi
# A directory of its own, so that it does not disturb other builds. `untorn-house` is a tool of this repository alone,
# and follows the newest Rust.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/oldest-rust \
    cargo "+$version" check --workspace --exclude untorn-house --all-targets --locked --quiet
echo "oldest-rust: all is built with Rust $version"
