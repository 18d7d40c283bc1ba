#!/bin/sh
# Test programs for file systems on a mounted store: fsx with some seeds, pjdfstest, fio, dbench, and what stress-ng has for
# file systems; then databases and
# tools that are killed together with the daemon, KILLS times each, and whose power is cut, STATES crash states for each file
# system. Needs root, and a network the first time, to install what it needs: from crates.io beneath the directory of the
# build, and packages of Debian.
set -eu
: "${KILLS:=10}" "${STATES:=20}" "${SEED:=1}"

if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    echo "mount-programs: needs root and /dev/fuse" >&2
    exit 1
fi
cd "$(dirname "$0")/.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
for tool in fsx pjdfstest; do
    [ -x "$target/tools/bin/$tool" ] || ${CARGO:-cargo} install --quiet --root "$target/tools" "$tool"
done
for package in fio dbench stress-ng python3-lmdb python3-gdbm libkyotocabinet16v5; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="${missing:-} $package"
done
# shellcheck disable=SC2086 # A list of packages.
[ -z "${missing:-}" ] || apt-get install -y -q $missing >/dev/null
${CARGO:-cargo} build --quiet --package untorn-mount --package untorn-crashtest
mount=$target/debug/untorn-mount
work=$(mktemp -d)
trap '"$mount" umount "$work/mnt" || true; rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/mnt"
"$mount" "$work/store" "$work/mnt"

for seed in 1 2 3 4; do
    echo "fsx, seed $seed"
    (cd "$work/mnt" && "$target/tools/bin/fsx" -N 5000 -S "$seed" "file$seed" >"$work/fsx.log") || {
        tail -n 40 "$work/fsx.log" >&2
        exit 1
    }
done
# Users that every Debian has.
printf '[features]\n[settings]\nnaptime = 0.01\n[dummy_auth]\nentries = [["nobody","nogroup"],["daemon","daemon"],["bin","bin"]]\n' \
    >"$work/pjdfstest.toml"
mkdir "$work/mnt/pjdfstest"
"$target/tools/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$work/mnt/pjdfstest" >"$work/pjdfstest.log" || {
    grep -i failed "$work/pjdfstest.log" >&2
    exit 1
}
tail -n 1 "$work/pjdfstest.log"

for engine in psync mmap libaio; do
    echo "fio, $engine"
    (cd "$work/mnt" && fio --name=verify --ioengine="$engine" --rw=randwrite --bs=4k-64k --size=32m --verify=crc32c \
        --do_verify=1 --verify_fatal=1 --fsync=50 --numjobs=2 --minimal >"$work/fio.log" 2>&1) || {
        tail -n 20 "$work/fio.log" >&2
        exit 1
    }
done
echo dbench
(cd "$work/mnt" && dbench -D . -t 10 2 >"$work/dbench.log") || {
    tail -n 20 "$work/dbench.log" >&2
    exit 1
}

echo stress-ng
for stressor in access chmod chown copy-file dentry dir dirdeep fallocate fcntl fpunch fstat getdent hdd io link locka lockf \
    lockofd mknod mmap open rename seek sync-file touch utime xattr; do
    (cd "$work/mnt" && timeout 60 stress-ng "--$stressor" 2 --timeout 2 --temp-path . >"$work/stress-ng.log" 2>&1) || {
        echo "stress-ng --$stressor" >&2
        tail -n 20 "$work/stress-ng.log" >&2
        exit 1
    }
done
"$mount" check "$work/mnt"

echo "programs killed together with the daemon"
/usr/bin/python3 examples/crashtest/mount-kills.py --kills "$KILLS" --seed "$SEED" --mount "$mount" --on "$work"
echo "programs whose power is cut: violations of crash states"
PATH="$target/debug:$PATH" STATES="$STATES" SEED="$SEED" examples/crashtest/run-mounted
echo "import, run, export and eject, whose power is cut"
trees=$PWD/examples/crashtest/plain-trees.sh
PATH="$target/debug:$PATH" "$target/debug/untorn-crashtest" --states "$STATES" --seed "$SEED" \
    --setup "$trees setup {}" --check "$trees check {}" -- "$trees" run {}
