#!/bin/bash
# The mutation gate: every durability step and every care is taken away, one at a time, and something must
# fail. With WRITE=1, crashes that show it are looked for anew and docs/MUTANTS.md is written.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
export UNTORN_MUTANTS=check
if [ -n "${WRITE:-}" ]; then UNTORN_MUTANTS=write; fi

$cargo test --locked -p untorn-crashlab --test mutants -- --show-output
$cargo test --locked -p untorn-crashlab --features mutants --test cares -- --show-output
