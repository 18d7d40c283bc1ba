#!/bin/bash
# Builds the library crates, the C library and the command for aarch64, and runs tests and a C program that is killed in
# qemu's emulation of a user program. For Debian 12; the first time as root (or with sudo) and with the network: a cross
# compiler for C and qemu are installed. Rust for aarch64 comes from Debian's packages, in its own version; these are only
# unpacked in cargo's target directory.
#
#     scripts/aarch64.sh [CARGO_OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/aarch64
rust=$target/rust
triple=aarch64-unknown-linux-gnu
sysroot=/usr/aarch64-linux-gnu

fail() {
    echo "aarch64: $*" >&2
    exit 1
}

[ "$(uname -m)" = x86_64 ] || { echo 'aarch64: skipped: this machine is no x86-64; on aarch64, `make test` does it'; exit 0; }
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    command -v apt-get >/dev/null || fail "please install a C compiler for aarch64-linux-gnu and qemu-aarch64 by hand"
    echo "aarch64: installing a cross compiler and an emulator"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --no-remove \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null || fail "apt-get could not install them"
fi

# Packages of another architecture, without making it known to this system: apt gets lists of its own.
if [ ! -e "$rust/ready" ]; then
    echo "aarch64: fetching Debian's Rust"
    rm -rf "$rust"
    mkdir -p "$rust/apt/lists/partial" "$rust/apt/cache/archives/partial" "$rust/debs"
    apt=(apt-get -qq -o "Dir::State::lists=$rust/apt/lists" -o "Dir::Cache=$rust/apt/cache" -o "APT::Architectures::=amd64"
        -o "APT::Architectures::=arm64" -o APT::Sandbox::User=root)
    "${apt[@]}" update || fail "Debian's lists of packages could not be fetched"
    # The first package that one depends on, by the beginning of its name.
    needed() {
        apt-cache "${apt[@]:2}" depends "$1" | sed -n "s/.*Depends: \\($2[0-9][0-9.]*\\).*/\\1/p" | head -n 1
    }
    std=$(needed libstd-rust-web-dev libstd-rust-web-)
    llvm=$(needed "$std" libllvm)
    (cd "$rust/debs" && "${apt[@]}" download rustc-web "$std" libstd-rust-web-dev libstd-rust-web-dev:arm64 "$llvm") ||
        fail "Debian's package rustc-web could not be fetched"
    for deb in "$rust/debs"/*.deb; do dpkg-deb -x "$deb" "$rust"; done
    rm -rf "$rust/apt" "$rust/debs"
    cat >"$rust/rustc" <<EOF
#!/bin/sh
LD_LIBRARY_PATH=$rust/usr/lib/x86_64-linux-gnu exec $rust/usr/bin/rustc "\$@"
EOF
    chmod +x "$rust/rustc"
    "$rust/rustc" --version >/dev/null || fail "Debian's rustc does not run here"
    touch "$rust/ready"
fi

run=(qemu-aarch64 -L "$sysroot")
export RUSTC=$rust/rustc CARGO_TARGET_DIR=$target CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="timeout --kill-after=10 1800 ${run[*]}"
cargo=${CARGO:-cargo}

echo "aarch64: building with $("$RUSTC" --version)"
$cargo build --locked --profile test --target $triple --package untorn-capi --package untorn-cli "$@"

# Left out: the emulator has threads of its own, which no signal stops; does not pass on the ids of mounts; forks where a
# kernel would start a program at once; and the programs of this machine are for another processor.
$cargo test --locked --no-fail-fast --profile test --target $triple --lib --package untorn-os --package untorn-journal --package untorn "$@" -- \
    --skip threads::stop_threads:: --skip file_handle::tests::a_file_is_known_again_until_it_is_removed \
    --skip other_process::tests::who_has_a_file_open_is_seen --skip program::tests::damaged_files_are_examined

# Tests that start their own program again need a kernel that runs it.
$cargo test --locked --no-fail-fast --profile test --target $triple --package untorn --test basics --test txn --test model \
    --test forged_records "$@" -- --skip child_process

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$work"' EXIT
aarch64-linux-gnu-gcc -O2 -Wall -Wextra -Iinclude scripts/small.c -o "$work/program" "$target/$triple/debug/libuntorn.a" -lgcc_s -lpthread -ldl -lm
mkdir "$work/store"
"${run[@]}" "$work/program" "$work/store" one
! ("${run[@]}" "$work/program" "$work/store" two crash) 2>/dev/null || fail "the program was not killed"
[ "$("${run[@]}" "$work/program" "$work/store" six show)" = twotwo ] || fail "a commit is lost"
[ "$("${run[@]}" "$target/$triple/debug/untorn" cat "$work/store/a" "$work/store/b")" = sixsix ] || fail "the command shows other contents"
"${run[@]}" "$target/$triple/debug/untorn" check "$work/store" >/dev/null
echo "aarch64: all is in order"
