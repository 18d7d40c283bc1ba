#!/bin/sh
# Test programs for file systems on a mounted store: fsx with some seeds, and pjdfstest. Needs root, and a network the first
# time, to install both from crates.io beneath the directory of the build.
set -eu

if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    echo "mount-programs: needs root and /dev/fuse" >&2
    exit 1
fi
cd "$(dirname "$0")/.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
for tool in fsx pjdfstest; do
    [ -x "$target/tools/bin/$tool" ] || ${CARGO:-cargo} install --quiet --root "$target/tools" "$tool"
done
${CARGO:-cargo} build --quiet --package untorn-mount
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
