#!/bin/bash
# Ends whole machines while they update files: QEMU is killed CUTS times, the kernel panics PANICS times, in turns on ext4 and
# XFS. After each the machine starts anew, recovers, and verifies: with Untorn each update that was acknowledged, whole; with
# plain writes torn files are expected, and show that the test can fail. Needs no root; the network, to fetch Debian's kernel
# once. Prints why, and succeeds, where it cannot run.
#
# A killed emulator loses the caches of the machine's kernel and its requests on their way, not those that the disk has
# answered. untorn-crashtest (docs/CRASHTEST.md) cuts between those.
set -euo pipefail
: "${CUTS:=200}" "${PANICS:=50}" "${SEED:=$RANDOM}"
cd "$(dirname "$0")/.."
name=machine-cuts
. scripts/machine.sh
need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
RANDOM=$SEED
echo "machine-cuts: seed $SEED"
trap 'kill -9 "${qemu:-}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

fetch bookworm "$place/linux" || skip "Debian's kernel cannot be fetched"
${CARGO:-cargo} build --quiet --release --package untorn-demo --example in_machine
program=$target/release/examples/in_machine
root=$place/root
rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,tmp,disk,modules}
cp "$(command -v busybox)" "$root/bin/"
add "$root" "$program"
head -c 400000 /usr/share/common-licenses/GPL-3 >"$root/texts"
for module in libcrc32c crc32c_generic virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk \
    crc16 mbcache jbd2 ext4 xfs; do
    find "$place/linux/lib/modules" -name "$module.ko" -exec cp {} "$root/modules/" \;
    echo "$module" >>"$root/modules/order"
done
cat >"$root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in \$(cat /modules/order); do [ -e /modules/\$module.ko ] && insmod /modules/\$module.ko; done
for word in \$(cat /proc/cmdline); do case \$word in u_*=*) eval "\$word" ;; esac; done
mount -t \$u_type /dev/vda /disk || { echo "NO DISK."; poweroff -f; }
[ -z "\$u_panic" ] || (while [ ! -e /tmp/ready ]; do sleep 0.1; done; sleep \$u_panic; echo c >/proc/sysrq-trigger) &
$program /disk /texts \$u_seed | while read -r line; do
    echo "\$line"
    [ "\$line" != READY. ] || touch /tmp/ready
done
echo "ENDED."
poweroff -f
END
chmod +x "$root/init"
pack "$root" "$place/initrd"

declare -A least torn lost acks
for type in ext4 xfs; do
    rm -f "$place/$type"
    truncate -s 512M "$place/$type"
    mkfs.$type -q "$place/$type"
done

# Starts the machine, and ends it at a random moment: by itself if it panics after PANIC seconds, otherwise by a kill.
run() {
    local type=$1 panic=$2 log=$place/log
    : >"$log"
    qemu-system-x86_64 -accel tcg -smp 1 -m 512 -nodefaults -display none -no-reboot -serial "file:$log" \
        -drive "file=$place/$type,format=raw,if=virtio,cache=writeback" -kernel "$place/linux/vmlinuz" -initrd "$place/initrd" \
        -append "console=ttyS0 panic=-1 quiet u_type=$type u_seed=$RANDOM u_panic=$panic" </dev/null &
    qemu=$!
    for ((tenths = 0; tenths < 1800; tenths++)); do
        grep -aq '^READY\.' "$log" && break
        kill -0 "$qemu" 2>/dev/null || break
        sleep 0.1
    done
    if [ -n "$panic" ]; then
        timeout 60 tail --pid="$qemu" -f /dev/null || kill -9 "$qemu"
    else
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        kill -9 "$qemu" 2>/dev/null || true
    fi
    wait "$qemu" 2>/dev/null || true
    tr -d '\r' <"$log" >"$log.lines"
    grep -aq '^READY\.$' "$log.lines" || {
        echo "machine-cuts: the machine did not start; the end of its log:" >&2
        tail -n 30 "$log.lines" >&2
        exit 1
    }
}

# Compares the files that the machine found with the acknowledgements of the machine before it.
judge() {
    local type=$1 word keeper rest
    while read -r word keeper rest; do
        local key=$type-$keeper
        case $word in
        BUILT) least[$key]=1 ;;
        FOUND)
            [ "${rest%.}" -ge "${least[$key]:-0}" ] || {
                lost[$keeper]=$((${lost[$keeper]:-0} + 1))
                echo "$type, $keeper: update ${rest%.} is there, ${least[$key]} was acknowledged"
            }
            least[$key]=${rest%.}
            ;;
        TORN)
            # The first build of files may have been cut short.
            [ -z "${least[$key]:-}" ] || torn[$keeper]=$((${torn[$keeper]:-0} + 1))
            case $keeper in untorn*) [ -z "${least[$key]:-}" ] || echo "$type, $keeper is torn: $rest" ;; esac
            unset "least[$key]"
            least[$key]=1
            ;;
        ACK)
            least[$key]=${rest%.}
            acks[$keeper]=$((${acks[$keeper]:-0} + 1))
            ;;
        esac
    done < <(grep -aE '^(BUILT|FOUND|TORN|ACK) .*\.$' "$place/log.lines")
}

for ((n = 1; n <= CUTS + PANICS; n++)); do
    type=ext4
    [ $((n % 2)) -eq 0 ] || type=xfs
    panic=
    [ $n -le "$CUTS" ] || panic=$((RANDOM % 3)).$((RANDOM % 10))
    run "$type" "$panic"
    judge "$type"
    [ $((n % 10)) -ne 0 ] || echo "machine-cuts: $n of $((CUTS + PANICS)); plain files torn: $((${torn[plain]:-0} + ${torn[plain-mapped]:-0}))"
done
echo "after $CUTS killed machines and $PANICS panics:"
for keeper in plain plain-mapped untorn untorn-mapped; do
    echo "  $keeper: ${acks[$keeper]:-0} acknowledged updates, ${torn[$keeper]:-0} torn states, ${lost[$keeper]:-0} lost"
done
[ $((${torn[untorn]:-0} + ${torn[untorn-mapped]:-0} + ${lost[untorn]:-0} + ${lost[untorn-mapped]:-0})) -eq 0 ] || exit 1
[ "$((CUTS + PANICS))" -lt 20 ] || [ $((${torn[plain]:-0} + ${torn[plain-mapped]:-0})) -gt 0 ] || {
    echo "machine-cuts: no plain file was torn, so the test shows nothing" >&2
    exit 1
}
