#!/bin/bash
# Installs, uses, upgrades and removes the Debian packages in a bare Debian that boots in a container: an ordinary user's
# programs, the units of systemd, a mount in fstab, two starts of the system. Needs root, debootstrap, systemd-container
# and the network.
#
#     scripts/deb-tests.sh [DIR]          packages that `make deb` has built (by default target/debian)
set -euo pipefail
cd "$(dirname "$0")/.."
debs=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debian}")
[ "$(id -u)" = 0 ] || { echo "deb-tests: skipped: needs root"; exit 0; }
for program in debootstrap systemd-nspawn; do
    command -v $program >/dev/null || { echo "deb-tests: skipped: $program is missing (apt install debootstrap systemd-container)"; exit 0; }
done

work=$(mktemp -d)
root=$work/root
# The container manager wants a memory file system there.
propagate=/run/systemd/nspawn
mkdir -p $propagate
mount -t tmpfs tmpfs $propagate
trap 'umount -l $propagate; umount -l "$root/proc" 2>/dev/null || true; rm -rf "$work"' EXIT

echo "deb-tests: a bare Debian"
debootstrap --variant=minbase --include=systemd,systemd-sysv,fuse3,gcc,libc6-dev,pkg-config,sqlite3 bookworm "$root" >"$work/log" 2>&1 ||
    { tail -n 3 "$work/log"; exit 1; }
cp "$debs"/*.deb "$root/root/"
chroot "$root" sh -c 'apt-get install -y -q /root/*.deb' >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 1; }
chroot "$root" useradd -m -s /bin/sh ann

mkdir -p "$root/srv/ann/store" "$root/srv/data" "$root/srv/mounted"
cp examples/c/hello.c "$root/srv/ann/"
cat >"$root/srv/ann/live.c" <<'EOF'
// Counts in a live heap without a commit, until it is killed; without an argument, prints the number.
#include <stdio.h>
#include <unistd.h>
#include <untorn.h>
int main(int argc, char **argv) {
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_CREATE | (argc > 1 ? UNTORN_HEAP_LIVE : 0)};
    untorn_heap *heap = untorn_heap_open("counter.heap", &options, NULL);
    long *number;
    if (untorn_heap_root(heap, "n", "long", sizeof *number, 8, 1, (void **)&number) < 0) goto failed;
    if (!number && (!(number = untorn_heap_calloc(heap, 1, sizeof *number)) ||
                    untorn_heap_set_root(heap, "n", number, "long", sizeof *number, 8, 1) || untorn_heap_commit(heap))) goto failed;
    if (argc > 1) {
        *number = 42;
        puts("ready"), fflush(stdout), pause();
    }
    return printf("%ld\n", *number), untorn_heap_close(heap) != 0;
failed:
    return fprintf(stderr, "%s\n", untorn_error_message()), 1;
}
EOF
cat >"$root/srv/ann/killed.c" <<'EOF'
// Commits a file, and is killed: the commit is in the journal only.
#include <signal.h>
#include <untorn.h>
int main(void) {
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_store *store = untorn_store_open("killed", &create);
    untorn_file *file = untorn_open_at(store, "a", UNTORN_CREATE, 0644);
    return untorn_pwrite(file, "one\n", 4, 0) < 0 || untorn_commit(file) || raise(SIGKILL);
}
EOF
chroot "$root" chown -R ann: /srv/ann
echo 'untorn:/srv/data  /srv/mounted  fuse.untorn-mount  nofail,allow_other  0  0' >>"$root/etc/fstab"
echo user_allow_other >>"$root/etc/fuse.conf"

# One start of the system: runs the script of its number, and powers off.
cat >"$root/etc/systemd/system/test.service" <<'EOF'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=sh -c 'sh -eux /root/start.sh >/root/said 2>&1 && touch /root/passed; systemctl --no-block poweroff'
[Install]
WantedBy=graphical.target multi-user.target
EOF
chroot "$root" systemctl enable -q test.service

start() {
    rm -f "$root/root/passed"
    cat >"$root/root/start.sh"
    timeout --kill-after=10 180 systemd-nspawn --quiet --register=no --keep-unit --bind=/dev/fuse \
        --property=DeviceAllow="/dev/fuse rw" --capability=CAP_SYS_ADMIN -D "$root" --boot </dev/null >"$work/console" 2>&1 || true
    if [ ! -e "$root/root/passed" ]; then
        echo "deb-tests: FAILED in: $1"
        tail -n 25 "$root/root/said" "$work/console"
        exit 1
    fi
    echo "deb-tests: ok: $1"
}

start "a user's programs; a killed one recovered by the unit; a live heap left for the shutdown" <<'EOF'
ann() { su ann -c "cd /srv/ann && { $1; }"; }
systemctl enable --now untorn-rescue.service untorn-find-unclean.timer
systemctl enable untorn-rescue-power.service
ann 'cc hello.c $(pkg-config --cflags --libs untorn) -o hello && ./hello store'
ann 'cc live.c $(pkg-config --cflags --libs untorn) -o live'
ann 'test "$(untorn cat store/account-a store/account-b)" = "70 coins
30 coins"'
ann 'echo new | untorn put plain && test "$(cat plain)" = new'
ann 'sqlite3 :memory: ".load /usr/lib/$(uname -m)-linux-gnu/untorn/libuntorn_sqlite" "select 1"'
ann 'cc killed.c $(pkg-config --cflags --libs untorn) -o killed.out && ./killed.out' || true
test "$(cat /srv/ann/killed/a)" != one
systemctl start untorn-find-unclean.service
test "$(cat /srv/ann/killed/a)" = one
test -e /usr/share/man/man1/untorn.1.gz
mountpoint /srv/mounted
chmod 1777 /srv/mounted
ann 'echo kept > /srv/mounted/file; sync /srv/mounted/file'
ann './live keep > ready & sleep 1; while ! grep -q ready ready; do sleep 0.1; done; kill -9 $!'
EOF

start "a store is shipped by the unit, and restored" <<'EOF'
ann() { su ann -c "cd /srv/ann && { $1; }"; }
mkdir -p /etc/untorn /etc/systemd/system/untorn-ship@.service.d
install -d -o ann /srv/bucket
echo UNTORN_SHIP_URL=file:///srv/bucket >/etc/untorn/ship-srv-ann-store.env
printf '[Service]\nUser=ann\nReadWritePaths=/srv/bucket\n' >/etc/systemd/system/untorn-ship@.service.d/test.conf
systemctl daemon-reload
systemctl start untorn-ship@srv-ann-store
ann './hello store'
ann 'untorn top --once store > top.out && cat top.out'
grep -q '^store: no process has it open' /srv/ann/top.out
ann 'untorn metrics store > metrics.out'
grep -q '^untorn_open{store="store"} 0' /srv/ann/metrics.out
ann 'for n in $(seq 100); do untorn ship --status store | grep -q " 0 commits behind" && break; sleep 0.2; done'
systemctl stop untorn-ship@srv-ann-store
ann 'untorn restore file:///srv/bucket again && diff store/account-a again/account-a'
rm -r /srv/bucket /srv/ann/again /etc/untorn
EOF

start "the live heap and the mount are there after the next start" <<'EOF'
ann() { su ann -c "cd /srv/ann && { $1; }"; }
ann 'test "$(./live)" = 42'
mountpoint /srv/mounted
test "$(cat /srv/mounted/file)" = kept
EOF

echo "deb-tests: an upgrade to a version that differs in its number, while a store is open"
for deb in "$debs"/*.deb; do
    dpkg-deb -R "$deb" "$work/unpacked"
    sed -i 's/^Version: .*/&+1/; s/(= \(0[^)]*\))/(= \1+1)/' "$work/unpacked/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$work/unpacked" "$root/root/$(basename "$deb" .deb)+1.deb" >/dev/null
    rm -r "$work/unpacked"
done

start "upgrade and removal leave plain files" <<'EOF'
ann() { su ann -c "cd /srv/ann && { $1; }"; }
export DEBIAN_FRONTEND=noninteractive
dpkg -i /root/*+1.deb
dpkg-query -W -f '${Version}\n' untorn | grep -q '+1$'
ann './hello store'
test "$(cat /srv/mounted/file)" = kept
umount /srv/mounted
sed -i /untorn/d /etc/fstab
dpkg --purge untorn untorn-mount untorn-ship untorn-xsync untorn-sqlite untorn-crashtest libuntorn-dev libuntorn0
test "$(cat /srv/ann/store/account-a)" = '70 coins'
test ! -e /usr/lib/systemd/system/untorn-rescue.service
test -z "$(find /usr /etc -name '*untorn*' -not -path '/etc/systemd/*')"
EOF
echo "deb-tests: passed"
