#!/bin/bash
# Ends whole machines while they update files: QEMU is killed CUTS times, the kernel panics PANICS times, in turns on ext4 and
# XFS. After each the machine starts anew, recovers, and verifies: with Untorn each update that was acknowledged, whole; with
# plain writers torn files are expected, and show that the test can fail. Needs no root; the network, to fetch Debian's kernel
# once. Prints why, and succeeds, where it cannot run.
#
# A killed emulator loses the caches of the machine's kernel and its requests on their way, not those that the disk has
# answered. untorn-crashtest (docs/CRASHTEST.md) cuts between those.
set -euo pipefail
: "${CUTS:=200}" "${PANICS:=50}" "${SEED:=$RANDOM}"
cd "$(dirname "$0")/.."
name=machine-cuts
. scripts/machine.sh
need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils zstd:zstd mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
RANDOM=$SEED
echo "machine-cuts: seed $SEED"

fetch trixie "$place/linux" && uncompress "$place/linux" || skip "Debian's kernel cannot be fetched"
furnish libcrc32c crc32c_generic virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk \
    crc16 mbcache jbd2 ext4 xfs
finish "mount -t \$u_type /dev/vda /disk" "$program /disk /texts \$u_seed"

for type in ext4 xfs; do
    rm -f "$place/$type"
    truncate -s 512M "$place/$type"
    mkfs.$type -q "$place/$type"
done

promised='untorn untorn-mapped'
for ((n = 1; n <= CUTS + PANICS; n++)); do
    type=ext4
    [ $((n % 2)) -eq 0 ] || type=xfs
    panic=
    [ $n -le "$CUTS" ] || panic=yes
    start "u_type=$type u_panic=$panic" -m 512 -no-reboot -drive "file=$place/$type,format=raw,if=virtio,cache=writeback"
    await 1
    if [ -n "$panic" ]; then timeout 60 tail --pid="$qemu" -f /dev/null || true; else wait_a_while; fi
    cut
    judge "$type" "$promised"
    [ $((n % 10)) -ne 0 ] || echo "machine-cuts: $n of $((CUTS + PANICS)); plain files torn: $(total torn plain plain-mapped)"
done
echo "after $CUTS killed machines and $PANICS panics:"
# shellcheck disable=SC2086 # names
report plain plain-mapped $promised
# shellcheck disable=SC2086 # names
[ "$(total torn $promised)$(total lost $promised)" = 00 ] || exit 1
[ "$((CUTS + PANICS))" -lt 20 ] || [ "$(total torn plain plain-mapped)" -gt 0 ] || {
    echo "machine-cuts: no plain file was torn, so the test shows nothing" >&2
    exit 1
}
