#!/bin/bash
# The mutation gate: every sync point and every invariant is taken away, one at a time, and something must
# fail. With WRITE=1, crashes that show it are looked for anew and docs/generated/MUTANTS.md is written.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
cargo=${CARGO:-cargo}
export UNTORN_MUTANTS=check
if [ -n "${WRITE:-}" ]; then UNTORN_MUTANTS=write; fi

# Of the whole workspace, so that dependencies have the features that `make test` built them with; and so that only
# what contains the switches is built again for the second.
$cargo test --workspace --locked --test mutants -- --show-output
features=untorn-crashlab/mutants,untorn-ship/mutants,untorn-xsync/mutants
$cargo build --workspace --locked --profile test --features $features --example probe --example exact
UNTORN_PREBUILT=1 $cargo test --workspace --locked --features $features --test invariants -- --show-output
