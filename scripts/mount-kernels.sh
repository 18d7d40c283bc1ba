#!/bin/bash
# Tests a mount on the kernels that Debian 12 and 13 have (6.1, 6.12), each in a machine that QEMU emulates: the order of the
# kernel's messages, transactions, supervisors, fsx, and programs that are killed together with the daemon, each with a time
# limit. Needs no root; the network, to fetch the kernels once, or KERNEL=vmlinuz with MODULES=DIR (a directory with its modules).
# Prints why, and succeeds, where it cannot run.
set -euo pipefail
: "${KILLS:=3}" "${SEED:=1}" "${SECONDS_MAX:=1500}"
cd "$(dirname "$0")/.."

name=mount-kernels
. scripts/machine.sh
need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio mkfs.ext4:e2fsprogs sqlite3:sqlite3 xz:xz-utils
[ -x /usr/bin/python3 ] || skip "needs Debian's python3"

export CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc.sh
[ -x "$target/tools/bin/fsx" ] || ${CARGO:-cargo} install --quiet --root "$target/tools" fsx || skip "fsx cannot be installed"
built=$(${CARGO:-cargo} test --quiet --package untorn-mount --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
mount=$target/debug/untorn-mount
orders='message_order stale_reads sync_order'
stores='older_kernels transactions supervised'
programs='sqlite-without-journal sqlite-rollback sqlite-wal mapped sed-i-and-sync sed-i-commit-close'

root=$place/root
rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,tmp,etc,modules,tests}
cp "$(command -v busybox)" "$root/bin/"
python=$(readlink -f /usr/bin/python3)
add "$root" "$mount" "$target/tools/bin/fsx" "$(command -v mkfs.ext4)" /usr/bin/sqlite3 /usr/bin/install /usr/bin/setpriv "$python" \
    /usr/lib/"$(basename "$python")"/lib-dynload/*.so
cp -a /usr/bin/python3 "$root/usr/bin/"
(cd /usr/lib && tar -c --exclude=__pycache__ --exclude=test --exclude=config-* --exclude=lib2to3 "$(basename "$python")") |
    tar -x -C "$root/usr/lib"
mkdir -p "$root$PWD/examples"
cp -a examples/crashtest "$root$PWD/examples/"
for test in $orders $stores; do
    cp "$(grep -m 1 "/$test-[0-9a-f]*$" <<<"$built")" "$root/tests/$test"
done
strip "$root"/tests/* "$root/$mount"
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
cat >"$root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin:/usr/sbin:/sbin RUST_BACKTRACE=0
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in /modules/*.ko; do insmod \$module; done
echo "KERNEL \$(uname -r)"
step() {
    name=\$1 limit=\$2; shift 2
    timeout -s KILL \$limit "\$@" >/log 2>&1
    code=\$?
    sed "s/^/  /" /log
    echo "STEP \$name \$code"
}
run() {
    for test in "\$@"; do step \$test 300 /tests/\$test --test-threads=1 --show-output; done
}
# Where nothing else is written: the kernel sends dirty pages at once while it writes much to a disk.
run $orders
truncate -s 768M /tmp/image
mkfs.ext4 -q /tmp/image
mkdir /disk; mount -t ext4 -o loop /tmp/image /disk && mount --bind /disk /tmp
chmod 1777 /tmp
run $stores
mkdir /tmp/mnt; $mount /tmp/store /tmp/mnt; cd /tmp/mnt
step fsx 200 $target/tools/bin/fsx -N 1000 -S $SEED file
cd /; $mount umount /tmp/mnt
step kills 400 /usr/bin/python3 $PWD/examples/crashtest/mount-kills.py --kills $KILLS --seed $SEED --mount $mount $programs
echo END
poweroff -f
END
chmod +x "$root/init"

failed=0
# Boots a kernel; MODULES is its directory of modules.
boot() {
    local name=$1 kernel=$2 modules=$3 log=$place/$1.log image=$place/$1.initrd ko
    rm -f "$root"/modules/*
    for ko in fuse loop; do
        find "$modules" -name "$ko.ko*" -exec cp {} "$root/modules/" \;
    done
    find "$root/modules" -name '*.xz' -exec xz -d {} \;
    find "$root/modules" -name '*.zst' -exec zstd -q -d --rm {} \;
    pack "$root" "$image"
    timeout "$SECONDS_MAX" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -cpu max -m 3072 -nographic -no-reboot -nic none \
        -kernel "$kernel" -initrd "$image" -append 'console=ttyS0 panic=-1 loglevel=4' </dev/null 2>&1 | tr -d '\r' >"$log" || true
    rm -f "$image"
    echo "Linux $name: $(sed -n 's/^.*KERNEL //p' "$log" | grep . || echo 'does not start')"
    grep -aE '^STEP |^  (test result|skipped)' "$log" | sort -u | sed 's/^STEP /  step /' || true
    if ! grep -aq '^END$' "$log" || grep -aE '^STEP ' "$log" | grep -qv ' 0$'; then
        echo "Linux $name: failed; the end of its log ($log):" >&2
        tail -n 60 "$log" >&2
        failed=1
    fi
}

if [ -n "${KERNEL:-}" ]; then
    boot given "$KERNEL" "${MODULES:?the modules of KERNEL}"
else
    for of in 6.1:bookworm 6.12:trixie; do
        dir=$place/linux-${of%%:*}
        fetch "${of##*:}" "$dir" || skip "the kernel of Debian's $of cannot be fetched (KERNEL=vmlinuz MODULES=DIR takes another)"
        boot "${of%%:*}" "$dir/vmlinuz" "$dir"
    done
fi
exit "$failed"
