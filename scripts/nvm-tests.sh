#!/bin/bash
# Ends machines with byte-addressable memory while they update files on it, by stores (MAP_SYNC): QEMU is killed CUTS times,
# the kernel panics PANICS times, on ext4 and XFS with dax=always. After each the machine starts anew and verifies each update
# that was acknowledged, whole; plain writers beside it are torn, and show that the test can fail.
#
#   a kill      ends the emulator; the next one begins with the file of the machine's NVDIMM, as after a power cut
#   a panic     starts the same machine anew, warm: its memory stays, in an NVDIMM or set apart by `memmap=`
#
# A live heap with its memory there goes on after each, with each section that had ended; one with its memory in tmpfs goes back
# to its last cut, and shows that the test can fail.
#
# Needs no root; the network, to fetch Debian's kernel once. Prints why, and succeeds, where it cannot run. The emulator has no
# processor's caches, so no line that was stored is lost, fenced or not; the simulated memory loses them (docs/MEDIA.md).
set -euo pipefail
: "${CUTS:=200}" "${PANICS:=50}" "${SEED:=$RANDOM}"
cd "$(dirname "$0")/.."
name=nvm-tests
. scripts/machine.sh
need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils zstd:zstd mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
RANDOM=$SEED
echo "nvm-tests: seed $SEED"

fetch trixie "$place/linux" && uncompress "$place/linux" || skip "Debian's kernel cannot be fetched"
furnish libcrc32c crc32c_generic crc16 mbcache jbd2 ext4 xfs libnvdimm nfit nd_btt nd_pmem nd_e820
add "$root" "$(command -v mkfs.ext4)" "$(command -v mkfs.xfs)"
cat >"$root/bin/mount-memory" <<'END'
#!/bin/busybox sh
# Mounts the machine's byte-addressable memory on /disk. New memory gets a file system, and an NVDIMM a namespace before: as
# `ndctl create-namespace --mode=fsdax --map=mem` makes it.
nd=/sys/bus/nd
appear() {
    n=0
    while [ ! -e /dev/pmem0 ] && n=$((n + 1)) && [ $n -lt 100 ]; do sleep 0.1; done
}
appear
if [ "$u_memory" = nvdimm ] && ! grep -q ram $nd/devices/pfn*/mode; then
    pfn=$(cat $nd/devices/region0/pfn_seed)
    echo namespace0.0 >$nd/drivers/nd_pmem/unbind
    echo ram >"$nd/devices/$pfn/mode"
    cat /proc/sys/kernel/random/uuid >"$nd/devices/$pfn/uuid"
    echo namespace0.0 >"$nd/devices/$pfn/namespace"
    echo "$pfn" >$nd/drivers/nd_pmem/bind
    appear
fi
if [ "$(head -c 131072 /dev/pmem0 | tr -d '\000' | wc -c)" = 0 ]; then
    case $u_type in
    ext4) mkfs.ext4 -q -b 4096 /dev/pmem0 ;;
    xfs) mkfs.xfs -q -m reflink=0 /dev/pmem0 ;;
    esac
fi
mkdir /dev/shm && mount -t tmpfs shm /dev/shm
mount -t "$u_type" -o dax=always /dev/pmem0 /disk || exit
[ -e /disk/live ] || { mkdir /disk/live && sync; }
END
chmod +x "$root/bin/mount-memory"
finish 'export u_type u_memory; mount-memory' "$program /disk /texts \$u_seed" \
    "UNTORN_LIVE_DIR=/disk/live $program live /disk/heap live" "$program live /disk/heap-in-tmpfs live-in-tmpfs"

# Starts a machine with a file system in a memory, and more options of QEMU.
boot() {
    local type=$1 memory=$2 words=$3 options=() caches=cpu
    shift 3
    case $memory in
    nvdimm)
        # Of one machine the hardware writes the caches back when power fails; on the other one, live heaps flush lines.
        [ "$type" = ext4 ] || caches=mem-ctrl
        options=(-machine "pc,nvdimm=on,nvdimm-persistence=$caches" -m "768M,slots=2,maxmem=4G" -device "nvdimm,id=nvdimm,memdev=memory"
            -object "memory-backend-file,id=memory,share=on,mem-path=$place/$type.memory,size=512M")
        ;;
    memmap)
        options=(-m 1G)
        words="$words memmap=384M!512M"
        ;;
    esac
    start "u_type=$type u_memory=$memory $words" -cpu qemu64,+pni,+ssse3,+sse4.1,+sse4.2,+popcnt,+clwb,+clflushopt \
        "${options[@]}" "$@"
}

promised='untorn untorn-mapped live'
controls='plain plain-mapped live-bare'

# Each journal and the live heap must have been on memory, each panic have been one, and the live heap have gone on: after all
# starts but the first one of a memory.
check_log() {
    local panics=$1 starts=$2 went_on lines
    lines=$(tr -d '\r' <"$log" | grep -aE '^(MEDIUM|STARTED) ' || true)
    went_on=$(grep -c '^STARTED live went-on\.$' <<<"$lines" || true)
    if grep -E '^MEDIUM .* disk\.$|^STARTED live-in-tmpfs went-on' <<<"$lines" || [ "$went_on" -lt "$starts" ] ||
        [ "$(grep -ac 'Kernel panic' "$log")" != "$panics" ]; then
        echo "nvm-tests: the live heap went on $went_on times instead of $starts, another medium, or not $panics panics: $log" >&2
        exit 1
    fi
}

rm -f "$place"/*.memory
for ((n = 1; n <= CUTS; n++)); do
    type=ext4
    [ $((n % 2)) -eq 0 ] || type=xfs
    boot $type nvdimm "" -no-reboot
    await 1
    wait_a_while
    cut
    check_log 0 $((n > 2))
    judge "$type-killed" "$promised"
    [ $((n % 10)) -ne 0 ] || echo "nvm-tests: killed $n of $CUTS; torn without Untorn: $(total torn $controls)"
done

rm -f "$place"/*.memory
machines=(ext4-nvdimm xfs-nvdimm ext4-memmap xfs-memmap)
for n in "${!machines[@]}"; do
    panics=$(((PANICS + n) / ${#machines[@]}))
    [ $panics -gt 0 ] || continue
    machine=${machines[n]}
    boot "${machine%-*}" "${machine#*-}" u_panic=yes
    for ((boots = 1; boots <= panics + 1; boots++)); do
        await $boots
    done
    cut
    check_log $panics $panics
    judge "$machine" "$promised"
    echo "nvm-tests: $machine: $panics panics; torn without Untorn: $(total torn $controls)"
done

echo "after $CUTS killed machines and $PANICS panics:"
# shellcheck disable=SC2086 # names
report $controls live-in-tmpfs $promised
# shellcheck disable=SC2086 # names
[ "$(total torn $promised)$(total lost $promised)" = 00 ] || exit 1
for control in "torn plain plain-mapped" "torn live-bare" "lost live-in-tmpfs"; do
    # shellcheck disable=SC2086 # names
    [ $((CUTS + PANICS)) -lt 20 ] || [ "$(total $control)" -gt 0 ] || {
        echo "nvm-tests: nothing $control, so the test shows nothing" >&2
        exit 1
    }
done
