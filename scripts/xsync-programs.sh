#!/bin/bash
# Real programs in sessions of `untorn xsync`: those of the test suite, and more of everything. Needs root and Debian's
# packages, which it fetches. Running it again fetches nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "xsync-programs: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "sessions need root: run this by sudo"
scripts/setup.sh programs
work=$(realpath "${CARGO_TARGET_DIR:-target}")/xsync-programs
mkdir -p "$work/lists/partial"
suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || fail "this needs Debian's source packages"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=http://deb.debian.org/debian
printf '%s\n' "deb [signed-by=$keyring] $mirror $suite main" "deb-src [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root)
update() {
    [ -n "${updated:-}" ] || apt-get "${options[@]}" update || fail "cannot reach Debian's package lists"
    updated=1
}

if [ ! -d "$work/lua" ]; then
    update
    (cd "$work" && apt-get "${options[@]}" source --tar-only lua5.4 >/dev/null) || fail "cannot fetch the source of lua5.4"
    mkdir -p "$work/lua.new"
    tar -xf "$work"/lua5.4_*.orig.tar.* -C "$work/lua.new" --strip-components=1
    mv "$work/lua.new" "$work/lua"
fi
if ! ls "$work"/hello_*.deb >/dev/null 2>&1; then
    update
    (cd "$work" && apt-get "${options[@]}" download hello >/dev/null) || fail "cannot fetch the package hello"
fi
export UNTORN_XSYNC_SOURCE=$work/lua UNTORN_XSYNC_KILLS=${UNTORN_XSYNC_KILLS:-48}
UNTORN_XSYNC_PACKAGE=$(ls "$work"/hello_*.deb)
export UNTORN_XSYNC_PACKAGE
${CARGO:-cargo} test --package untorn-xsync --test programs --test terminal -- --show-output
${CARGO:-cargo} test --package untorn-xsync --test real_programs -- --show-output --include-ignored
${CARGO:-cargo} test --package untorn-xsync --test directories -- --show-output killed
