#!/bin/bash
# Checks that the source is ready to be released, and says everything that is missing: the version in all places, the
# version of the on-disk format, dates, metadata of published packages.
#
#     scripts/release-check.sh [TAG]          with a tag (v1.2.3), also that it is that of the version
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/version.sh
. scripts/version.sh

missing=0
missing() {
    echo "release-check: $*" >&2
    missing=1
}

[ -z "${1:-}" ] || [ "$1" = "v$version" ] || missing "the tag is $1, and the version is $version"
[ -z "$(git status --porcelain --untracked-files=no)" ] || missing "there are uncommitted changes"

# Cargo: one version for all packages, also where they name each other.
for other in $(grep -o 'path = "crates/[^}]*version = "[^"]*"' Cargo.toml | sed 's/.*version = "\(.*\)"/\1/' | sort -u); do
    [ "$other" = "$version" ] || missing "Cargo.toml: a dependency on a package of the workspace names $other, not $version"
done
fields=(repository homepage)
for manifest in $(grep -L '^publish = false' crates/*/Cargo.toml crates/*/*/Cargo.toml); do
    for field in "${fields[@]}"; do
        grep -q "^$field" "$manifest" || missing "$manifest has no $field"
    done
    for field in description keywords categories license; do
        grep -q "^$field" "$manifest" || missing "$manifest has no $field"
    done
done

# The changelog: a date, and the format.
grep -Eq "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || missing "CHANGELOG.md has no date for $version"
format=$(sed -n 's/^pub const VERSION: u32 = \([0-9]*\);/\1/p' crates/core/journal/src/format.rs)
awk -v version="$version" '/^## \[/ { here = index($0, "[" version "]") } here' CHANGELOG.md |
    grep -q "On-disk format: version $format" || missing "CHANGELOG.md does not say that $version has version $format of the format"
for page in README.md docs/UPGRADING.md; do
    grep -q "format $format\|version $format" "$page" || missing "$page does not name version $format of the format"
done
! grep -n 'not yet released' README.md CHANGELOG.md >&2 || missing "these lines say that it is not released"

[ "$(sed -n '1s/^untorn (\(.*\)) .*/\1/p' debian/changelog)" = "$version" ] || missing "debian/changelog begins with another version"

[ $missing = 0 ] || exit 1
echo "release-check: $version, format $format: ready"
