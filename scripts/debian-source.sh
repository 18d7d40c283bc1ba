# Sourced by scripts that test Untorn with programs of others: fetches and builds Debian's source packages in `$work`
# (the network is needed; nothing of the system's configuration changes).

step() {
    echo "$(basename "$0" .sh): $*"
}

fail() {
    step "$*" >&2
    exit 1
}

# from_debian PACKAGE: Debian's lists of packages, and a directory to fetch it into; sets `options` of apt-get.
from_debian() {
    step "fetching $1"
    mkdir -p "$work/apt/lists/partial" "$work/apt/$1"
    options=(-qq -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$work/apt/lists" -o APT::Sandbox::User="$(id -un)")
    local suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || fail "this needs Debian's source packages"
    printf "%s [signed-by=$keyring] http://deb.debian.org/debian $suite main\n" deb-src deb >"$work/apt/sources.list"
    apt-get "${options[@]}" update || fail "cannot reach Debian's package lists"
}

# fetch PACKAGE: its source, unpacked into a directory of that name.
fetch() {
    [ ! -d "$work/$1" ] || return 0
    local options
    from_debian "$1"
    if (cd "$work/apt/$1" && apt-get "${options[@]}" source "$1" >/dev/null); then
        mv "$work/apt/$1/$1"-*/ "$work/$1"
    else
        # As its authors published it, where a mirror lacks Debian's patches.
        (cd "$work/apt/$1" && apt-get "${options[@]}" source --tar-only "$1" >/dev/null) || fail "cannot fetch $1"
        mkdir "$work/$1" && tar -xf "$work/apt/$1/$1"_*.tar.gz -C "$work/$1" --strip-components=1
    fi
}

# kept LOG COMMAND...: its output goes to a file, which is shown if it fails.
kept() {
    local log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        fail "failed: $* (all of it in $log)"
    }
}
