#!/bin/bash
# Builds the Python package as a wheel that runs on every Linux with glibc 2.17 or newer (manylinux2014), whatever this
# machine has: zig is the linker. Checks that the wheel says so truly (auditwheel), and that it uses nothing but the
# stable interface of CPython 3.11 (abi3audit); installs it and commits a file. Needs Python 3.11, pip and the network.
#
#     scripts/wheel.sh [DIR]          the wheel goes into DIR, by default target/wheels
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
target=${CARGO_TARGET_DIR:-target}
dist=${1:-$target/wheels}
packages=(maturin==1.16.0 ziglang==0.17.1 auditwheel==6.8.2 abi3audit==0.0.26)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
PATH=$bin:$PATH "$bin/maturin" build --release --locked --zig --compatibility manylinux2014 \
    --manifest-path crates/bindings/python/Cargo.toml --out "$work/dist"
wheel=$(echo "$work"/dist/*.whl)

"$bin/auditwheel" show "$wheel" | tee "$work/shown"
# The widest tag that the wheel's symbols allow is that of its name.
grep -Eq 'constrains the platform tag to "manylinux_2_(5|12|17)_|consistent with .*"manylinux_2_(5|12|17)_' \
    <(tr '\n' ' ' <"$work/shown")
"$bin/abi3audit" --strict "$wheel"

"$bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
(cd "$work" && "$bin/python" -c '
import untorn
with untorn.open("counter", "w+b") as file:
    file.write(b"1")
with untorn.open("counter") as file:
    assert file.read() == "1"')
mkdir -p "$dist"
cp "$wheel" "$dist"
echo "$dist/$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
