#!/bin/bash
# Builds the Debian packages into DIR, by default target/debian, and checks them with lintian where it is installed.
# Rust is that of PATH.
#
#     scripts/deb.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
to=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/debian}")
command -v dh >/dev/null || {
    echo "deb: debhelper is missing (apt install debhelper libsqlite3-dev)" >&2
    exit 2
}
trap 'debian/rules clean >/dev/null 2>&1' EXIT
debian/rules clean >/dev/null
rm -rf "$to"
mkdir -p "$to"
export DEB_BUILD_PROFILES=pkg.untorn.own-rust DEB_TO=$to
debian/rules build
debian/rules binary
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning --display-info "$to"/*.deb
fi
ls -l "$to"/*.deb
