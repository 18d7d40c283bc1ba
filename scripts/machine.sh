# Emulated machines, for scripts that source this: kernels of Debian, the contents of an initial file system, and machines
# that end while they update files. The caller sets `name`, the script's, and is in the project's root. Afterwards `target`
# is cargo's directory, and `place` the one of this script in it, for downloads.

target=$(realpath "${CARGO_TARGET_DIR:-target}")
place=$target/$name
mkdir -p "$place"

skip() {
    echo "skipped: $name: $*"
    exit 0
}

# Ends the script unless these programs are there, each named with its package.
need() {
    local tool
    [ "$(uname -m)" = x86_64 ] || skip "the kernels are those of x86_64"
    PATH=$PATH:/sbin:/usr/sbin
    for tool in "$@"; do
        command -v "${tool%%:*}" >/dev/null || skip "needs ${tool%%:*} (package ${tool##*:})"
    done
}

# Fetches the kernel of a release of Debian to DIR.
fetch() {
    local suite=$1 dir=$2 apt package
    [ -e "$dir/vmlinuz" ] && return
    apt=$place/apt-$suite
    mkdir -p "$apt"/{parts,lists/partial,cache/archives/partial} "$dir"
    printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$suite" \
        /usr/share/keyrings/debian-archive-keyring.gpg >"$apt/parts/debian.sources"
    local options=(-qq -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o "Debug::NoLocking=1" -o "APT::Sandbox::User=$(id -un)")
    apt-get "${options[@]}" update || return
    package=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
    (cd "$apt" && apt-get "${options[@]}" download "$package" && dpkg-deb -x "$package"_*.deb "$dir") || return
    cp "$dir"/boot/vmlinuz-* "$dir/vmlinuz"
}

# Copies programs to DIR, at their paths, with their libraries.
add() {
    local root=$1 file
    shift
    for file in "$@"; do
        mkdir -p "$root/$(dirname "$file")"
        cp -L "$file" "$root/$file"
        { ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
            [ -e "$root/$library" ] || { mkdir -p "$root/$(dirname "$library")" && cp -L "$library" "$root/$library"; }
        done
    done
}

# Packs DIR as an initial file system.
pack() {
    (cd "$1" && find . | cpio -o -H newc --quiet | gzip -1) >"$2"
}

# Makes DIR/vmlinux: the kernel of Debian 13 without its compression (zstd), which an emulated machine needs seconds to undo.
# The head of vmlinuz tells where the compressed kernel is; four bytes behind it are its length.
uncompress() {
    local dir=$1 offset length
    [ ! -e "$dir/vmlinux" ] || return 0
    word() { od -An -t "u$2" -j "$1" -N "$2" "$dir/vmlinuz" | tr -d ' '; }
    offset=$((($(word 497 1) + 1) * 512 + $(word 584 4)))
    length=$(($(word 588 4) - 4))
    dd if="$dir/vmlinuz" iflag=skip_bytes,count_bytes bs=1M skip="$offset" count="$length" status=none |
        zstd -dcq >"$dir/vmlinux.part" && mv "$dir/vmlinux.part" "$dir/vmlinux"
}

# Machines that end while they update files. `root` is their initial file system, `log` the console of the last one, and
# `qemu` its process.
root=$place/root
log=$place/log
trap 'kill -9 "${qemu:-}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

# Begins the initial file system: busybox, the program `in_machine` with its texts, and modules of the kernel in
# $place/linux, in the order in which they are loaded.
furnish() {
    local module
    ${CARGO:-cargo} build --quiet --release --package untorn-demo --example in_machine
    program=$target/release/examples/in_machine
    rm -rf "$root"
    mkdir -p "$root"/{bin,proc,sys,dev,tmp,disk,modules}
    cp "$(command -v busybox)" "$root/bin/"
    add "$root" "$program"
    head -c 400000 /usr/share/common-licenses/GPL-3 >"$root/texts"
    for module in "$@"; do
        find "$place/linux" -name "$module.ko*" -path '*/lib/modules/*' -exec cp {} "$root/modules/" \;
        echo "$module" >>"$root/modules/order"
    done
    find "$root/modules" -name '*.xz' -exec xz -d {} \;
}

# Ends the initial file system, as $place/initrd. MOUNT are the commands that mount /disk. Each PROGRAM runs until the machine
# ends, and says READY when it has verified its files. With u_panic on the kernel's command line the machine panics up to
# three seconds after the last READY.
finish() {
    local mount=$1 programs number
    shift
    number=$#
    programs=$(printf '{ %s; echo ENDED.; } &\n' "$@")
    cat >"$root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in \$(cat /modules/order); do [ -e /modules/\$module.ko ] && insmod /modules/\$module.ko; done
for word in \$(cat /proc/cmdline); do case \$word in u_*=*) eval "\$word" ;; esac; done
$mount || { echo "NO DISK."; poweroff -f; }
[ -z "\$u_panic" ] || {
    while [ ! -e /tmp/ready ]; do sleep 0.1; done
    tenths=\$((\$(od -An -N2 -tu2 /dev/urandom) % 30))
    sleep \$((tenths / 10)).\$((tenths % 10))
    echo c >/proc/sysrq-trigger
} &
{
$programs
wait
} | {
    ready=0
    while read -r line; do
        if [ "\$line" != READY. ]; then
            echo "\$line"
        elif ready=\$((ready + 1)) && [ \$ready = $number ]; then
            echo READY.
            touch /tmp/ready
        fi
    done
}
poweroff -f
END
    chmod +x "$root/init"
    pack "$root" "$place/initrd"
}

# Starts a machine with words for its kernel, and options of QEMU.
start() {
    local words=$1
    shift
    : >"$log"
    qemu-system-x86_64 -accel tcg -smp 1 -nodefaults -display none -serial "file:$log" -kernel "$place/linux/vmlinux" \
        -initrd "$place/initrd" -append "console=ttyS0 panic=-1 quiet u_seed=$RANDOM $words" "$@" </dev/null &
    qemu=$!
}

# Waits until the machine has been ready so many times: after its start, and each time that it has started anew.
await() {
    local times=$1 tenths
    for ((tenths = 0; tenths < 1800; tenths++)); do
        [ "$(grep -ac '^READY\.' "$log")" -lt "$times" ] || return 0
        kill -0 "$qemu" 2>/dev/null || break
        sleep 0.1
    done
    echo "$name: the machine did not start; the end of its log:" >&2
    tail -n 30 "$log" >&2
    exit 1
}

# Kills the machine.
cut() {
    kill -9 "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
}

# Waits up to three seconds.
wait_a_while() {
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
}

# What is known of the files of each machine and keeper: the last update that must be there; and of each keeper: its
# acknowledged updates, its torn states and its lost updates.
declare -A least acks torn lost

# Compares the files that a machine found, each time that it started, with its acknowledgements before. KEEPERS are those
# whose files must hold each acknowledged update, whole.
judge() {
    local machine=$1 keepers=$2 word keeper rest key expected
    ! grep -aq '^ENDED\.' "$log" || {
        echo "$name: a program ended; the end of its log:" >&2
        tail -n 30 "$log" >&2
        exit 1
    }
    while read -r word keeper rest; do
        key=$machine-$keeper rest=${rest%.} expected=
        [[ " $keepers " != *" $keeper "* ]] || expected=yes
        case $word in
        BUILT | FOUND)
            if { [ $word = BUILT ] && [ -n "${least[$key]:-}" ]; } || [ "$rest" -lt "${least[$key]:-0}" ]; then
                lost[$keeper]=$((${lost[$keeper]:-0} + 1))
                [ -z "$expected" ] || echo "$machine, $keeper: update ${least[$key]} was acknowledged; $word $rest"
            fi
            least[$key]=$rest
            ;;
        TORN)
            # The first build of files may have been cut short.
            if [ -n "${least[$key]:-}" ]; then
                torn[$keeper]=$((${torn[$keeper]:-0} + 1))
                [ -z "$expected" ] || echo "$machine, $keeper is torn: $rest"
            fi
            least[$key]=1
            ;;
        ACK)
            least[$key]=$rest
            acks[$keeper]=$((${acks[$keeper]:-0} + 1))
            ;;
        esac
    done < <(tr -d '\r' <"$log" | grep -aE '^(BUILT|FOUND|TORN|ACK) .*\.$')
}

# Prints the sums of these keepers.
report() {
    local keeper
    for keeper in "$@"; do
        echo "  $keeper: ${acks[$keeper]:-0} acknowledged updates, ${torn[$keeper]:-0} torn states, ${lost[$keeper]:-0} lost"
    done
}

# The torn states (`torn`) or lost updates (`lost`) of these keepers.
total() {
    local -n of=$1
    local keeper sum=0
    shift
    for keeper in "$@"; do
        sum=$((sum + ${of[$keeper]:-0}))
    done
    echo "$sum"
}
