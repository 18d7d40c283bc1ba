#!/bin/bash
# Everything that keeps the house in order, short of running the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

step() {
    echo "check: $*"
}

step "formatting"
$cargo fmt --all --check
step "lints"
$cargo clippy --workspace --all-targets --locked -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" $cargo doc --workspace --no-deps --locked --quiet

step "licences, bans and sources of dependencies"
if ! $cargo deny --version >/dev/null 2>&1; then
    step "installing cargo-deny (once, takes some minutes)"
    # Outside the project's target directory, which would mix its artefacts with ours.
    env -u CARGO_TARGET_DIR -u RUSTFLAGS $cargo install cargo-deny --locked --quiet
fi
$cargo deny --log-level error check licenses bans sources
step "known vulnerabilities of dependencies"
if answer=$($cargo deny --log-level error check advisories 2>&1); then
    echo "$answer"
elif grep -qiE 'failed to (fetch|clone|open|load)|could not resolve|network|unable to (connect|access)' <<<"$answer"; then
    # The list of advisories lives on a git host. Without it the last copy on this machine counts.
    if $cargo deny --log-level error --offline check advisories 2>/dev/null; then
        echo "check: WARNING: the list of advisories could not be fetched; checked against the last copy"
    else
        echo "check: WARNING: ADVISORIES NOT CHECKED: their list could not be fetched and there is no copy here"
    fi
else
    echo "$answer" >&2
    exit 1
fi
echo "check: all is in order"
