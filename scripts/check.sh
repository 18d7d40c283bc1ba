#!/bin/bash
# Formatting, lints, documentation, and what is known of dependencies: everything short of running the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

step() {
    echo "check: $*"
}

step "formatting"
$cargo fmt --all --check
# With the profile of the tests: build scripts and macros are compiled once for all.
step "lints"
$cargo clippy --workspace --all-targets --profile test --locked -- -D warnings
# The test programs that only a feature builds.
$cargo clippy --workspace --profile test --locked --features untorn-crashlab/shuttle --test group_commit --test heap_schedules -- -D warnings
$cargo clippy --workspace --profile test --locked --features untorn-crashlab/mutants,untorn-ship/mutants,untorn-xsync/mutants --test invariants -- -D warnings
# The smallest build (docs/PLATFORMS.md); scripts/small.sh measures and tries it.
$cargo clippy --package untorn --package untorn-capi --no-default-features --profile test --locked -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" $cargo doc --workspace --no-deps --profile test --locked --quiet
# Imports, names and wording are held to their rules by the tests of `crates/tools/house`.
step "evidence"
scripts/evidence.sh
step "public API"
$cargo run --quiet --locked --profile test --package untorn-house -- api
step "packages for the registry"
# Without a network: what is packed, and that its manifest is complete. `cargo publish --workspace --dry-run` builds
# the packages, too.
packages=$($cargo run --quiet --locked --profile test --package untorn-house -- published)
# shellcheck disable=SC2086 # several words
packed=$($cargo package $packages --no-verify --offline --locked --allow-dirty --quiet 2>&1) || {
    echo "$packed" >&2
    exit 1
}

if ! $cargo deny --version >/dev/null 2>&1; then
    step "installing cargo-deny (once, takes some minutes)"
    # Outside the project's target directory, which would mix its artefacts with ours; and optimised only
    # as far as pays for one run of a second.
    env -u CARGO_TARGET_DIR -u RUSTFLAGS CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        timeout 900 $cargo install cargo-deny --version 0.20.2 --locked --quiet || {
        step "WARNING: LICENCES AND VULNERABILITIES OF DEPENDENCIES NOT CHECKED: cargo-deny could not be installed"
        exit 0
    }
fi
step "licences, bans and sources of dependencies"
$cargo deny --log-level error check licenses bans sources
step "known vulnerabilities of dependencies"
if output=$(timeout 120 $cargo deny --log-level error check advisories 2>&1); then
    echo "$output"
elif [ $? = 124 ] || grep -qiE 'failed to (fetch|clone|open|load)|could not resolve|network|unable to (connect|access)' <<<"$output"; then
    # The list of advisories lives on a git host. Without it the last copy on this machine counts.
    if $cargo deny --log-level error --offline check advisories 2>/dev/null; then
        step "WARNING: the list of advisories could not be fetched; checked against the last copy"
    else
        step "WARNING: VULNERABILITIES NOT CHECKED: their list could not be fetched and there is no copy here"
    fi
else
    echo "$output" >&2
    exit 1
fi
step "all is in order"
