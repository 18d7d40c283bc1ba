#!/bin/bash
# Builds the Python package as a wheel, installs it into a fresh virtual environment and runs its tests; arguments go to
# pytest. Says "skipped: ..." and why where Python 3.11, pip or the packages of the tests are missing.
#
#     PYTHON=python3.13 scripts/python-tests.sh -k kills
set -uo pipefail
cd "$(dirname "$0")/.."
# The installed package is tested.
unset PYTHONPATH PYTHONHOME
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
here=crates/bindings/python
target=${CARGO_TARGET_DIR:-target}
# Packages that were fetched once, so that later runs need no network.
wheels=${UNTORN_WHEELS:-$target/python-packages}
packages=(maturin==1.16.0 pytest==9.2.0 pytest-asyncio==1.5.0 pytest-run-parallel==0.10.0 hypothesis==6.170.17 mypy==2.4.1
    numpy pandas)

skip() {
    echo "python: skipped: $*"
    exit 0
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null || skip "there is no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "$python is older than 3.11 (set PYTHON)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv" 2>"$work/log" || skip "no virtual environment: $(tail -n 1 "$work/log")"
bin=$work/venv/bin
pip() {
    "$bin/python" -m pip --quiet --disable-pip-version-check "$@" 2>"$work/log"
}
if ! pip install --no-index --find-links "$wheels" "${packages[@]}"; then
    timeout 300 "$bin/python" -m pip --quiet --disable-pip-version-check download --dest "$wheels" "${packages[@]}" \
        2>"$work/log" && pip install --no-index --find-links "$wheels" "${packages[@]}" ||
        skip "packages of the tests could not be fetched: $(tail -n 1 "$work/log")"
fi

echo "     Running $here/tests (pytest)"
# Not with the profile of the other tests: with that name, cargo builds a test program in place of the library.
if ! PATH=$bin:$PATH "$bin/maturin" build --quiet --profile dev --locked --manifest-path "$here/Cargo.toml" \
    --interpreter "$bin/python" --out "$work/dist" >"$work/log" 2>&1 || ! pip install --no-index "$work"/dist/*.whl; then
    cat "$work/log"
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored; finished in 0s"
    exit 1
fi

# For untorn.sqlite, where the tests before these have built the C library.
archive=$target/debug/libuntorn.a
if [ -f "$archive" ] && crates/bindings/sqlite/link.sh "$archive" "$work/libuntorn_sqlite.so" 2>"$work/log"; then
    export UNTORN_SQLITE=$work/libuntorn_sqlite.so
fi

# Programs and documents that tests run.
export UNTORN_SOURCE=$PWD

# For power cuts, where it was built.
crashtest=$(realpath -m "$target/debug/untorn-crashtest")
[ ! -x "$crashtest" ] || export UNTORN_CRASHTEST=$crashtest

# Away from the source, which would come before the installed package.
cp -r "$here/tests" "$here/pyproject.toml" "$work"
run_tests() {
    local result=$1
    shift
    (cd "$work" && timeout --kill-after=10 "${UNTORN_TEST_SECONDS_MAX:-600}" \
        "$bin/python" -X faulthandler -m pytest -p no:cacheprovider -q -rs --basetemp "$work/tmp" \
        --junit-xml "$work/$result.xml" -o junit_family=xunit1 "$@")
}
started=$SECONDS
status=0
run_tests result "$@" || status=$?
# Each test in four threads at once, each of which has a working directory of its own (Python 3.12).
if [ $# = 0 ] && "$bin/python" -c 'import os; os.unshare' 2>"$work/log"; then
    run_tests threads --parallel-threads=4 tests/test_{arrays,files,stores,tables}.py || status=$?
fi
# In the words of cargo's tests, whose totals scripts/test.sh adds up.
"$bin/python" - "$status" "$((SECONDS - started))" "$work"/*.xml <<'EOF'
import sys
import xml.etree.ElementTree as tree

status, seconds, *paths = sys.argv[1:]
passed = failed = skipped = 0
for path in paths:
    try:
        suite = next(tree.parse(path).iter("testsuite")).attrib
        left_out, wrong = int(suite["skipped"]), int(suite["failures"]) + int(suite["errors"])
        passed += int(suite["tests"]) - left_out - wrong
        failed, skipped = failed + wrong, skipped + left_out
    except (OSError, StopIteration, tree.ParseError):
        failed += 1
if status != "0" and not failed:
    failed = 1
word = "FAILED" if failed else "ok"
print(f"test result: {word}. {passed} passed; {failed} failed; {skipped} ignored; finished in {seconds}s")
EOF
exit "$status"
