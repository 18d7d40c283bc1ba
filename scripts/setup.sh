#!/bin/bash
# Installs what building and testing Untorn needs beyond Rust: system packages, only those that are
# missing. Running it again does nothing.
#
#     setup.sh          for building and testing
#     setup.sh bench    also the key-value stores, libpmemobj, fio and PostMark, which `untorn-bench` measures Untorn by
#     setup.sh papers   these, and the servers of the papers' figures, which are not started
#     setup.sh ship     also the servers that `make ship-tests` ships to
#     setup.sh programs also what `make xsync-programs` runs in sessions
#     setup.sh machines also QEMU, for tests in emulated machines
set -euo pipefail

fail() {
    echo "setup: $*" >&2
    exit 1
}

command -v cargo >/dev/null && command -v rustc >/dev/null ||
    fail "no Rust toolchain found. Install Rust 1.89 or newer (https://rustup.rs, or your distribution's package) and try again"
version=$(rustc --version | cut -d' ' -f2)
printf '1.89.0\n%s\n' "${version%%-*}" | sort -VC || fail "Rust $version is too old: 1.89 or newer is needed (rustup update)"

# What the tests run by name, and the packages that bring it.
packages=(build-essential pkg-config cmake clang valgrind acl attr xfsprogs btrfs-progs e2fsprogs rsync git sqlite3 redis-server fuse3 gdbmtool kyotocabinet-utils)
programs=(cc pkg-config cmake clang valgrind setfacl setfattr mkfs.xfs mkfs.btrfs mkfs.ext4 rsync git sqlite3 redis-server fusermount3 gdbmtool kchashmgr)
export PATH="$PATH:/usr/sbin:/sbin"

missing() {
    for i in "${!programs[@]}"; do
        command -v "${programs[i]}" >/dev/null || echo "${packages[i]}"
    done
}

have_sanitizers() {
    command -v clang >/dev/null || return 1
    ls "$(clang -print-resource-dir)"/lib/*/libclang_rt.asan*.a >/dev/null 2>&1
}

have_libcxx() {
    clang++ -stdlib=libc++ -fsyntax-only -x c++ -include map /dev/null >/dev/null 2>&1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install() {
    if ! command -v apt-get >/dev/null || ! { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }; then
        fail "please install by hand (here are Debian's names): $*"
    fi
    echo "setup: installing $*"
    [ -n "${updated:-}" ] || as_root apt-get update -qq
    updated=1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null ||
        fail "apt-get could not install: $*"
}

mapfile -t wanted < <(missing)
[ ${#wanted[@]} = 0 ] || install "${wanted[@]}"
# The sanitizers' libraries come in a package that is named after clang's major version.
if ! have_sanitizers; then
    major=$(clang -dumpversion | cut -d. -f1)
    install "libclang-rt-$major-dev"
    have_sanitizers || fail "clang $major has no AddressSanitizer library even with libclang-rt-$major-dev"
fi
# Modules of the distribution's Python, whose databases `untorn preload` is tested with.
if [ -x /usr/bin/python3 ]; then
    /usr/bin/python3 -c 'import dbm.gnu' 2>/dev/null || install python3-gdbm
    /usr/bin/python3 -c 'import lmdb' 2>/dev/null || install python3-lmdb
fi
# LLVM's C++ library, of the same version as clang.
have_libcxx || install libc++-dev libc++abi-dev
# SQLite's headers, for the extension.
echo '#include <sqlite3ext.h>' | cc -E -x c - >/dev/null 2>&1 || install libsqlite3-dev
# The newest compiler that the distribution has besides, to try its stores, too. The tests go without it.
newest=$(apt-cache --names-only search '^clang-[0-9]+$' 2>/dev/null | cut -d' ' -f1 | sort -V | tail -1)
if [ -n "$newest" ] && [ "${newest#clang-}" != "$(clang -dumpversion | cut -d. -f1)" ]; then
    command -v "$newest" >/dev/null || install "$newest"
fi
if [ "${1:-}" = bench ] || [ "${1:-}" = papers ]; then
    # RocksDB's package is named after its version.
    rocksdb=$(apt-cache --names-only search '^librocksdb[0-9.]+$' | cut -d' ' -f1 | sort -V | tail -1)
    stores=(liblmdb0 libsqlite3-0 libleveldb1d libgdbm6 libkyotocabinet16v5 libpmemobj1 fio postmark ${rocksdb:+"$rocksdb"})
    mapfile -t wanted < <(for package in "${stores[@]}"; do
        dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' || echo "$package"
    done)
    [ ${#wanted[@]} = 0 ] || install "${wanted[@]}"
fi
if [ "${1:-}" = papers ]; then
    packages=(postgresql mariadb-server sysbench apache2-bin wrk libaprutil1-dev libpcre2-dev)
    programs=(pgbench mariadbd sysbench apache2 wrk apu-1-config pcre2-config)
    PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
    mapfile -t wanted < <(missing)
    [ ${#wanted[@]} = 0 ] || RUNLEVEL=1 install "${wanted[@]}"
fi
if [ "${1:-}" = programs ]; then
    packages=(vim bsdutils postgresql postgresql-contrib rocksdb-tools)
    programs=(vim script pgbench pg_amcheck ldb)
    PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
    mapfile -t wanted < <(missing)
    [ ${#wanted[@]} = 0 ] || install "${wanted[@]}"
fi
if [ "${1:-}" = machines ]; then
    packages=(qemu-system-x86 busybox-static cpio xz-utils zstd)
    programs=(qemu-system-x86_64 busybox cpio xz zstd)
    mapfile -t wanted < <(missing)
    [ ${#wanted[@]} = 0 ] || install "${wanted[@]}"
fi
if [ "${1:-}" = ship ]; then
    servers=${UNTORN_SHIP_SERVERS:-$(dirname "$0")/../target/ship-servers}
    mkdir -p "$servers"
    servers=$(cd "$servers" && pwd)
    if [ ! -x "$servers/versitygw" ]; then
        command -v go >/dev/null || install golang-go
        echo "setup: building versitygw (a few minutes)"
        GOBIN=$servers GOFLAGS=-mod=mod go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 ||
            fail "Go could not install versitygw v1.8.0: it needs Go 1.25 or newer, and the network"
    fi
    if [ ! -x "$servers/toxiproxy" ]; then
        GOBIN=$servers GOFLAGS=-mod=mod go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0 ||
            fail "Go could not install toxiproxy v2.5.0: it needs the network"
        mv "$servers/server" "$servers/toxiproxy"
    fi
    if [ ! -x "$servers/litestream" ]; then
        GOBIN=$servers GOFLAGS=-mod=mod go install github.com/benbjohnson/litestream/cmd/litestream@v0.5.18 ||
            fail "Go could not install litestream v0.5.18, the peer of scripts/ship-peer.py: it needs the network"
    fi
    if [ ! -x "$servers/python/bin/moto_server" ]; then
        python3 -m venv "$servers/python" || install python3-venv && python3 -m venv "$servers/python"
        "$servers/python/bin/pip" install --quiet 'moto[server]==5.2.5' || fail "pip could not install moto 5.2.5"
    fi
fi
