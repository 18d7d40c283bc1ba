#!/bin/bash
# Builds the documentation as a site in DIR, by default target/site: the pages of docs and the README as a book (mdBook),
# the C functions (mandoc), the Rust library (rustdoc), the Python package (pdoc). Every link between its pages is checked.
# mdBook is a tool only, as the pages themselves are plain Markdown.
#
#     scripts/site.sh [DIR]          MDBOOK names another mdbook, PDOC another pdoc
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
mdbook=${MDBOOK:-mdbook}
pdoc=${PDOC:-pdoc}
to=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/site}")
command -v "$mdbook" >/dev/null || {
    echo "site: mdbook is missing (cargo install mdbook --version 0.5.4 --locked --no-default-features --features search)" >&2
    exit 2
}
# shellcheck source=scripts/version.sh
. scripts/version.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
book=$work/book
mkdir -p "$book/src/api" "$work/c"
here=$book/src

# The book has the layout of the repository, so that links work unchanged.
git ls-files -co --exclude-standard '*.md' | while read -r page; do
    mkdir -p "$here/$(dirname "$page")"
    cp "$page" "$here/$page"
done
# Files that pages link to.
cp --parents LICENSE-MIT LICENSE-APACHE "$here"
git ls-files -co --exclude-standard docs/pictures docs/api examples include crates/core/untorn/examples | while read -r file; do cp --parents "$file" "$here"; done

# A list for each directory, as links may lead to one.
find "$here/examples" -type d | while read -r dir; do
    (cd "$dir" && ls | sed 's/\.md$/.html/; s:.*:<li><a href="&">&</a></li>:') >"$work/list"
    mv "$work/list" "$dir/index.html"
done

title() {
    sed -n 's/^# *//p' "$1" | head -n 1
}

# chapters DEPTH PAGE...: lines of the table of contents.
chapters() {
    local indent=$1 page
    shift
    for page in "$@"; do
        [ ! -e "$here/$page" ] || grep -qF "($page)" "$here/SUMMARY.md" || echo "$indent- [$(title "$page")]($page)" >>"$here/SUMMARY.md"
    done
}

# The pages of docs/README.md, in its order and under its headings.
{
    echo "# Summary"
    echo
    echo "[Untorn](README.md)"
    echo "[Which page to read](docs/README.md)"
} >"$here/SUMMARY.md"
while read -r line; do
    case $line in
    '## '*) printf '\n# %s\n\n' "${line#\#\# }" >>"$here/SUMMARY.md" ;;
    '| ['*)
        for page in $(grep -o ']([^)#]*\.md' <<<"${line%% | *}" | cut -c3-); do
            chapters "" "$(realpath -m --relative-to . "docs/$page")"
        done
        ;;
    esac
done <docs/README.md
printf '\n# More\n\n' >>"$here/SUMMARY.md"
mapfile -t rest < <(git ls-files -co --exclude-standard '*.md')
chapters "" "${rest[@]}"
echo "- [Interfaces of the languages](api/README.md)" >>"$here/SUMMARY.md"

cat >"$book/book.toml" <<TOML
[book]
title = "Untorn $version"
language = "en"
# A README keeps its name, so that links to it work.
[build]
use-default-preprocessors = false
[output.html]
no-section-label = true
TOML

echo "site: C functions"
awk -v version="$version" -v to="$work/c" -f scripts/man3.awk include/untorn.h
languages="# Interfaces of the languages

"
mkdir -p "$here/api/c"
if command -v mandoc >/dev/null; then
    cat >"$here/api/c/man.css" <<CSS
body { max-width: 48em; margin: 2em auto; padding: 0 1em; font-family: sans-serif; line-height: 1.4 }
table.head, table.foot { width: 100%; color: #666 }
.head-rtitle, .foot-os { text-align: right }
.head-vol { text-align: center }
pre, .Bd { background: #f3f5f8; padding: 0.5em; overflow-x: auto }
CSS
    list=
    for page in "$work/c"/*.3; do
        name=$(basename "$page" .3)
        # A page that only leads to another one.
        ! head -n 1 "$page" | grep -q '^\.so' || continue
        mandoc -T html -O "man=%N.html,style=man.css" "$page" >"$here/api/c/$name.html"
        list+="- [$name]($name.html)"$'\n'
    done
    printf '# C\n\n%s' "$list" >"$here/api/c/README.md"
    echo "- [C](api/c/README.md)" >>"$here/SUMMARY.md"
    languages+="- [C](c/README.md), also the header [untorn.h](../include/untorn.h)
"
else
    echo "site: WARNING: no pages of C functions: mandoc is missing (apt install mandoc)"
fi

echo "site: Rust"
${CARGO:-cargo} doc --workspace --no-deps --profile test --locked --quiet
cp -r "${CARGO_TARGET_DIR:-target}/doc" "$here/api/rust"
languages+="- [Rust](rust/untorn/index.html)
"

if command -v "$pdoc" >/dev/null; then
    echo "site: Python"
    # Beside its extension, as it is installed. (The profile of the tests would build a test program.)
    ${CARGO:-cargo} build --profile dev --locked --quiet --package untorn-python
    cp -r crates/bindings/python/python/untorn "$work/untorn"
    cp "${CARGO_TARGET_DIR:-target}/debug/lib_untorn.so" "$work/untorn/_untorn.abi3.so"
    PYTHONPATH=$work "$pdoc" --output-directory "$here/api/python" untorn
    languages+="- [Python](python/untorn.html)
"
else
    echo "site: WARNING: no pages of the Python package: pdoc is missing (pip install pdoc==16.0.0 numpy)"
fi
printf '%s' "$languages" >"$here/api/README.md"

echo "site: book"
"$mdbook" build "$book" --dest-dir "$work/site"
python3 scripts/site-links.py "$work/site"
rm -rf "$to"
mkdir -p "$(dirname "$to")"
cp -r "$work/site" "$to"
echo "site: $to/index.html"
