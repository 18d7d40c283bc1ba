#!/bin/bash
# xfstests (kdave/xfstests), built in the directory that is given, on mounted stores: one for its test directory and one for
# its scratch directory, each on an ext4 of its own in a file. In MODES, all modes of commits; its groups GROUPS_OF_TESTS, or
# only TESTS. Fails if a test fails that scripts/mount-xfstests.txt does not name for the mode, or a store is damaged.
# Needs root, mount.fuse3 and mkfs.ext4. Tests that need the users of xfstests' README are not run where these are missing.
set -euo pipefail
: "${MODES:=fsync close write store}" "${GROUPS_OF_TESTS:=auto,rw}" "${TESTS:=}" "${IMAGE_SIZE:=6G}"

if [ $# != 1 ] || [ ! -x "$1/check" ] || [ ! -x "$1/ltp/fsx" ]; then
    echo "mount-xfstests: give the directory of a built xfstests (XFSTESTS=DIR): git clone \
https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git, and make there" >&2
    exit 2
fi
for program in mount.fuse3 mkfs.ext4; do
    [ "$(id -u)" = 0 ] && [ -e /dev/fuse ] && command -v "$program" >/dev/null || {
        echo "mount-xfstests: needs root, /dev/fuse and $program" >&2
        exit 2
    }
done
# Nothing of it is mounted for others.
[ -n "${UNTORN_OWN_MOUNTS:-}" ] || UNTORN_OWN_MOUNTS=1 exec unshare --mount --propagation private "$0" "$@"
xfstests=$(realpath "$1")
cd "$(dirname "$0")/.."
exceptions=$PWD/scripts/mount-xfstests.txt
if [ -z "${UNTORN_MOUNT:-}" ]; then
    ${CARGO:-cargo} build --quiet --release --package untorn-mount
    UNTORN_MOUNT=$(realpath "${CARGO_TARGET_DIR:-target}")/release/untorn-mount
fi
work=$(mktemp -d)
chmod 755 "$work"
clean_up() {
    for at in "$work"/mnt/* "$work"/disk/*; do
        while mountpoint -q "$at"; do umount "$at" 2>/dev/null || umount -l "$at"; done
    done
    rm -rf "$work"
}
trap clean_up EXIT
mkdir -p "$work/mnt/test" "$work/mnt/scratch" "$work/disk/test" "$work/disk/scratch"

# In the place of the helper that `mount` starts, in this namespace of mounts alone: mount.fuse3 would look for an installed
# program.
cat >"$work/helper" <<HELPER
#!/bin/sh
source=\$1 at=\$2 options=rw
shift 2
while [ \$# -gt 0 ]; do
    case \$1 in
    -o) options=\$2 && shift ;;
    -t) shift ;;
    esac
    shift
done
exec "$UNTORN_MOUNT" --commit="\$UNTORN_COMMIT" -o "\$options" -- "\$source" "\$at"
HELPER
chmod 755 "$work/helper"
mount --bind "$work/helper" "$(realpath "$(command -v mount.fuse3)")"
# xfstests knows the type `fuse` alone.
printf '#!/bin/sh\n%s "$@" | sed -e s/fuse.untorn-mount/fuse/\n' "$(command -v df)" >"$work/df"
chmod 755 "$work/df"
cat >"$work/config" <<CONFIG
export DF_PROG="$work/df -T -P"
export FSTYP=fuse FUSE_SUBTYP=.untorn-mount
export TEST_DEV=untorn:$work/disk/test/store TEST_DIR=$work/mnt/test
export SCRATCH_DEV=untorn:$work/disk/scratch/store SCRATCH_MNT=$work/mnt/scratch
CONFIG

# Tests that the list names for a mode, of a sort: `fails`, or `hangs` and is not run.
listed() {
    awk -v mode="$1" -v sort="$2" '$1 ~ /^generic\// && $3 == sort && ($2 == "all" || index("," $2 ",", "," mode ",")) \
        { print $1 }' "$exceptions" | sort -u
}

failed=0
for mode in $MODES; do
    for disk in test scratch; do
        rm -f "$work/$disk.img"
        truncate -s "$IMAGE_SIZE" "$work/$disk.img"
        mkfs.ext4 -q "$work/$disk.img"
        mount -o loop "$work/$disk.img" "$work/disk/$disk"
    done
    listed "$mode" hangs >"$work/not-run"
    results=${RESULTS:-$work/results}/$mode
    mkdir -p "$results"
    if [ -n "$TESTS" ]; then read -ra which <<<"$TESTS"; else which=(-g "$GROUPS_OF_TESTS"); fi
    echo "mount-xfstests: --commit=$mode"
    (cd "$xfstests" && UNTORN_COMMIT=$mode HOST_OPTIONS=$work/config RESULT_BASE=$results \
        ./check -fuse -E "$work/not-run" "${which[@]}") >"$results/check.out" 2>&1 || true
    grep -E '^(Passed all|Failed|Ran:)' "$results/check.out" | sed -e 's/^Ran:.*/ran/' || true
    grep -q '^Ran:' "$results/check.out" || {
        tail -n 20 "$results/check.out" >&2
        exit 1
    }
    ran=$(grep '^Ran:' "$results/check.out" | wc -w)
    not_run=$(grep '^Not run:' "$results/check.out" | wc -w || true)
    { grep '^Failures:' "$results/check.out" || true; } | tr ' ' '\n' | grep '^generic/' | sort -u >"$work/failed" || true
    listed "$mode" fails >"$work/known"
    echo "  $((ran - 1)) tests, $((not_run > 0 ? not_run - 1 : 0)) of them need what is not here," \
        "$(wc -l <"$work/failed") failed, $(comm -12 "$work/failed" "$work/known" | wc -l) of them as listed"
    while read -r test; do
        failed=1
        echo "  $test failed"
        [ ! -e "$results/$test.out.bad" ] ||
            { diff "$xfstests/tests/$test.out" "$results/$test.out.bad" || true; } | head -n 10 | sed -e 's/^/    /'
    done < <(comm -23 "$work/failed" "$work/known")
    for disk in test scratch; do
        mountpoint -q "$work/mnt/$disk" && "$UNTORN_MOUNT" umount "$work/mnt/$disk"
        [ ! -e "$work/disk/$disk/store" ] || "$UNTORN_MOUNT" check "$work/disk/$disk/store" >"$results/$disk.store" || {
            failed=1
            echo "  the store of the $disk directory is damaged:"
            head -n 20 "$results/$disk.store"
        }
        umount "$work/disk/$disk"
    done
done
exit "$failed"
