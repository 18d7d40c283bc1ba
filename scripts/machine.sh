# Emulated machines, for scripts that source this: kernels of Debian, and the contents of an initial file system. The caller
# sets `name`, the script's, and is in the project's root. Afterwards `target` is cargo's directory, and `place` the one of
# this script in it, for downloads.

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
