#!/bin/bash
# Ports programs of others to Untorn and shows that they keep what they synchronized: fetches Debian's source
# packages (the network is needed; nothing of the system's configuration changes), builds each as it is and
# ported, runs its own tests ported, kills it at random moments, and measures memcached. Prints tables; fails if a
# test fails or a database was found torn. `untorn-bench preload` measures Kyoto Cabinet.
#
#   scripts/ports.sh [DIRECTORY]    works there; default: ports/ in cargo's target directory
#
# PORTS_KILLS (1000) kills each, if started by root also as an ordinary user, PORTS_SEED (1), PORTS_TIMES (3) measurements;
# 0 kills, 0 times: not at all. PORTS_ONLY ("gdbm qdbm tinycdb kyotocabinet memcached"): which. PORTS_PREFIX: an installed
# Untorn to use, instead of building one. PORTS_KEYS ("20000 1000000"): keys of the measurements of memcached.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(realpath -m "${1:-$target/ports}")
kills=${PORTS_KILLS:-1000} seed=${PORTS_SEED:-1} times=${PORTS_TIMES:-3}
prefix=${PORTS_PREFIX:-$work/prefix}
programs=${PORTS_ONLY:-kyotocabinet gdbm qdbm tinycdb memcached}
# Which files the ported programs have managed: everything in the directory of the test.
export UNTORN_MANAGE="$work/files/*:$work/files/*/*"
linked=(-L"$prefix/lib" -Wl,-rpath,"$prefix/lib" -Wl,--no-as-needed -luntorn)
ported="-include $prefix/include/untorn_posix.h"
as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
failed=0
rows=()

. scripts/debian-source.sh
. crates/tools/bench/src/live/flushing_hooks.sh

# Each program as it is in *.plain and ported in *.port.
build_kyotocabinet() {
    local kind flags
    for kind in plain port; do
        [ ! -e "$work/kyotocabinet.$kind/built" ] || continue
        step "building kyotocabinet ($kind)"
        rm -rf "$work/kyotocabinet.$kind"
        cp -a "$work/kyotocabinet" "$work/kyotocabinet.$kind"
        cd "$work/kyotocabinet.$kind"
        flags=()
        if [ $kind = port ]; then
            patch -p1 -s <"$source/examples/ports/kyotocabinet.patch"
            flags=(CPPFLAGS="-I$prefix/include" LDFLAGS="${linked[*]}")
        fi
        kept "kyotocabinet.$kind" ./configure --disable-zlib --disable-shared CXXFLAGS=-O2 CFLAGS=-O2 "${flags[@]}"
        kept "kyotocabinet.$kind" make -j"$(nproc)" libkyotocabinet.a \
            kc{hash,tree,dir,forest,poly}{test,mgr}
        touch built
    done
    cd "$source"
}

# begin_build NAME KIND: makes the directory NAME.KIND and goes there; fails if that is built already.
begin_build() {
    [ ! -e "$work/$1.$2/built" ] || return 1
    step "building $1 ($2)"
    rm -rf "$work/$1.$2"
    cp -a "$work/$1" "$work/$1.$2"
    cd "$work/$1.$2"
}

# GDBM, QDBM and tinycdb are ported by a compiler flag: not a line of them changes.
build_gdbm() {
    local kind flags
    for kind in plain port; do
        begin_build gdbm $kind || continue
        flags=-O2
        [ $kind = plain ] || flags="-O2 $ported"
        # Nobody has to have autoconf.
        touch aclocal.m4 configure Makefile.in ./*/Makefile.in ./*autoconf.h.in
        kept "gdbm.$kind" ./configure --disable-nls --disable-shared --enable-libgdbm-compat
        kept "gdbm.$kind" make -j"$(nproc)" CFLAGS="$flags" LIBS="${linked[*]}"
        touch built
    done
    cd "$source"
}

build_qdbm() {
    local kind flags
    for kind in plain port; do
        begin_build qdbm $kind || continue
        # With more optimization, its loops in makedoc() never end.
        flags="-O1 -fPIC -w"
        [ $kind = plain ] || flags+=" $ported"
        kept "qdbm.$kind" ./configure --enable-pthread
        sed -i "s|^CFLAGS = .*|CFLAGS = $flags|; s|^LIBS = \(.*\)|LIBS = ${linked[*]} \1|" Makefile
        kept "qdbm.$kind" make MYLIBS=libqdbm.a dptest crtest rltest hvtest cbtest vltest odtest dpmgr crmgr rlmgr hvmgr \
            cbcodec vlmgr odmgr odidx qmttest
        touch built
    done
    cd "$source"
}

build_tinycdb() {
    local kind flags
    for kind in plain port; do
        begin_build tinycdb $kind || continue
        flags=-O2
        [ $kind = plain ] || flags="-O2 $ported"
        kept "tinycdb.$kind" make CFLAGS="$flags" LDFLAGS="${linked[*]}" cdb libcdb.a
        touch built
    done
    cd "$source"
}

# An installation whose hooks flush each record of the log once, to measure the cost of that.
flush_the_log() {
    local at=$work/flush
    [ ! -e "$at/built" ] || return 0
    rm -rf "$at" && cp -a "$prefix" "$at"
    if ! flushing_hooks crates/bindings/c/live/hooks.c include "$at/hooks.o" '-DFLUSH_END(a)='; then
        rm -rf "$at"
        return 0
    fi
    ar r "$at/lib/libuntorn-live.a" "$at/hooks.o"
    touch "$at/built"
}

# memcached is compiled with hooks, and needs libevent: Debian's, linked statically. Its page mover and its storage on disks
# are not ported.
build_memcached() {
    local kind options at=$work/libevent/usr compiler=()
    flush_the_log
    if [ ! -d "$work/libevent" ]; then
        from_debian libevent-dev
        (cd "$work/apt/libevent-dev" && apt-get "${options[@]}" download libevent-dev) || fail "cannot fetch libevent-dev"
        dpkg-deb -x "$work/apt/libevent-dev"/*.deb "$work/libevent"
    fi
    options=(--disable-extstore --disable-docs --disable-coverage CFLAGS=-O2 CPPFLAGS="-I$at/include" LIBS=-lpthread)
    for kind in plain port flush; do
        [ $kind != flush ] || [ -e "$work/flush" ] || continue
        begin_build memcached $kind || continue
        case $kind in
        port) compiler=(CC="$prefix/bin/untorn-cc") ;;
        flush) compiler=(CC="$work/flush/bin/untorn-cc") ;;
        esac
        [ $kind = plain ] || patch -p1 -s <"$source/examples/ports/memcached.patch"
        # Nobody has to have autoconf.
        touch aclocal.m4 configure Makefile.in config.h.in
        kept "memcached.$kind" ./configure "${options[@]}" "${compiler[@]}" \
            LDFLAGS="$(printf -- '-L%s ' "$at"/lib/*/) -Wl,-rpath,$prefix/lib"
        kept "memcached.$kind" make -j"$(nproc)" memcached memcached-debug sizes testapp timedrun
        touch built
    done
    cd "$source"
}

# The programs that are killed.
build_kills() {
    local kind at name
    for kind in plain port flush; do
        for name in $programs; do
            [ $kind != flush ] || [ -e "$work/$name.flush/built" ] || continue
            at=$work/$name.$kind
            case $name in
            kyotocabinet)
                kept kyoto_kill c++ -std=c++17 -O2 -Wall -isystem "$at" examples/ports/kyoto_kill.cc -o "$at/kill" \
                    "$at/libkyotocabinet.a" "${linked[@]}" -lpthread
                ;;
            gdbm)
                kept gdbm_kill cc -O2 -Wall -I "$at/src" examples/ports/gdbm_kill.c -o "$at/kill" \
                    "$at/src/.libs/libgdbm.a" "${linked[@]}"
                ;;
            qdbm)
                kept qdbm_kill cc -O2 -Wall -I "$at" examples/ports/qdbm_kill.c -o "$at/kill" "$at/libqdbm.a" \
                    "${linked[@]}" -lpthread -lm
                ;;
            tinycdb)
                local flags=()
                # shellcheck disable=SC2206  # two words.
                [ $kind = plain ] || flags=($ported)
                kept tinycdb_kill cc -O2 -Wall "${flags[@]}" -I "$at" examples/ports/tinycdb_kill.c -o "$at/kill" \
                    "$at/libcdb.a" "${linked[@]}"
                ;;
            memcached) kept memcached_kill cc -O2 -Wall examples/ports/memcached_kill.c -o "$at/kill" -lpthread ;;
            esac
        done
    done
}

# own_test NAME PROGRAM ARGUMENTS...: one of the program's own tests; `FILE` stands for its database.
own_test() {
    local name=$1 files=$work/files
    shift
    rm -rf "$files" && mkdir "$files"
    if timeout 600 "${@//FILE/$files/db}" >"$work/own.log" 2>&1; then
        rows+=("$name|passed")
    else
        tail -n 20 "$work/own.log" >&2
        rows+=("$name|FAILED")
        failed=1
    fi
}

# own_suite NAME DIRECTORY COMMAND...: a test suite that comes with its own driver.
own_suite() {
    local name=$1 at=$2
    shift 2
    step "running the tests of $name, ported"
    if (cd "$at" && timeout 1800 "$@") >"$work/own.log" 2>&1; then
        rows+=("$name|passed")
    else
        tail -n 20 "$work/own.log" >&2
        rows+=("$name|FAILED")
        failed=1
    fi
}

suites() {
    local name
    for name in $programs; do
        case $name in
        gdbm)
            # Not the files of dbm, which have two names.
            UNTORN_MANAGE='*.db*:*.gdbm*' UNTORN_LOG=off own_suite gdbm "$work/gdbm.port" \
                make check CFLAGS="-O2 $ported" LIBS="${linked[*]}"
            ;;
        qdbm)
            # It never syncs: closing commits.
            UNTORN_MANAGE="casket*:$work/qdbm.port/casket*/*:$work/qdbm.port/casket*/*/*" UNTORN_COMMIT_ON_CLOSE=1 \
                own_suite qdbm "$work/qdbm.port" make MYLIBS=libqdbm.a check
            ;;
        tinycdb)
            # Its tests print what they do; the authors' output is beside them. In one of them no file may have more
            # than a few blocks: no journal can be made there, and the program fails as it should, in other words.
            rm -rf "$work/files" && mkdir "$work/files"
            UNTORN_COMMIT_ON_CLOSE=1 UNTORN_LOG=off own_suite tinycdb "$work/files" bash -c \
                'limit="^cdb: (cdb_make_put|unable to create)"
                diff <(grep -Ev "$limit" ../tinycdb.port/tests.ok) \
                    <(sh ../tinycdb.port/tests.sh ../tinycdb.port/cdb 2>&1 | grep -Ev "$limit")'
            ;;
        kyotocabinet) own_tests ;;
        memcached) memcached_tests ;;
        esac
    done
}

# Its tests start it many times: each time with a heap of its own, in memory of theirs.
memcached_tests() {
    if ! command -v prove >/dev/null; then
        rows+=("memcached|not run: there is no prove here")
        return
    fi
    local at=$work/memcached.tests memory tests
    rm -rf "$at" "$work/files" && mkdir "$work/files"
    cp -a "$work/memcached.port" "$at"
    own_suite "memcached, all, without a heap" "$at" prove -j4 t
    mv "$at/memcached-debug" "$at/memcached-plain"
    cat >"$at/memcached-debug" <<END
#!/bin/sh
case " \$* " in *" -e "* | *" -L "* | *" -h "* | *" -V "*) exec $at/memcached-plain "\$@" ;; esac
exec $at/memcached-plain "\$@" -o live_heap=$work/files/heap.\$\$
END
    chmod +x "$at/memcached-debug"
    memory=$(mktemp -d /dev/shm/untorn-ports.XXXXXX)
    # Not those of what a live heap has not: pages that go to another class, or back, and their lines in `stats`.
    mapfile -t tests < <(cd "$at" && printf '%s\n' t/*.t | grep -Ev 'slabs.reassign|dyn-maxbytes|t/stats.t')
    UNTORN_LIVE_DIR=$memory own_suite "memcached, each start with a live heap" "$at" prove -j4 "${tests[@]}"
    rm -rf "$memory"
}

own_tests() {
    local suite
    for suite in hash tree dir forest poly; do
        # Its databases begin with this word. In directories are plain files.
        UNTORN_MANAGE='casket*' own_suite "kyotocabinet, all of check-$suite" "$work/kyotocabinet.port" make check-$suite
    done
    step "running the tests of kyotocabinet, ported, with automatic synchronization"
    local kind
    for kind in hash tree; do
        local test=$work/kyotocabinet.port/kc${kind}test
        own_test "kc${kind}test order" "$test" order -oas -rnd FILE 300
        own_test "kc${kind}test order, 2 threads" "$test" order -oas -th 2 FILE 150
        own_test "kc${kind}test queue" "$test" queue -oas -it 2 FILE 200
        own_test "kc${kind}test wicked" "$test" wicked -oas -it 2 -th 2 FILE 200
        own_test "kc${kind}test tran" "$test" tran -oas -hard -it 2 FILE 200
        own_test "kc${kind}test order, not synchronized" "$test" order -rnd FILE 20000
    done
}

# kill_test NAME PROGRAM ARGUMENTS...: prints what it found, without its name; 1 if something was torn.
kill_test() {
    rm -rf "$work/files" && mkdir -m 1777 "$work/files"
    timeout 3600 "${@//FILE/$work/files/db}" "$kills" "$seed"
}

# may_be_killed_as_user: root can start programs as an ordinary user, who can reach them.
may_be_killed_as_user() {
    [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && "${as_user[@]}" test -x "$work" || return 1
}

kill_tests() {
    local name program found who kind title
    local kinds=(port plain)
    if may_be_killed_as_user; then
        kinds=(port user plain)
    fi
    step "killing each $kills times"
    for name in hash tree gdbm qdbm tinycdb memcached evicting; do
        case $name in
        evicting) [[ " $programs " == *" memcached "* ]] || continue ;;
        hash | tree) [[ " $programs " == *" kyotocabinet "* ]] || continue ;;
        *) [[ " $programs " == *" $name "* ]] || continue ;;
        esac
        for who in "${kinds[@]}"; do
            kind=${who/user/port}
            case $name in
            memcached) program=("$work/memcached.$kind/kill" live "$work/memcached.$kind/memcached" FILE) ;;
            evicting) program=("$work/memcached.$kind/kill" evict "$work/memcached.$kind/memcached" FILE) ;;
            hash | tree) program=("$work/kyotocabinet.$kind/kill" "$name" FILE) ;;
            tinycdb) program=(env UNTORN_COMMIT_ON_CLOSE=1 "$work/tinycdb.$kind/kill" FILE) ;;
            *) program=("$work/$name.$kind/kill" FILE) ;;
            esac
            # Without a heap it has nothing after a kill.
            [ "$kind:${program[1]}" != plain:live ] || program[1]=plain
            [ "$kind:${program[1]}" != plain:evict ] || continue
            case $who in
            port) title=ported ;;
            user) title="ported, ordinary user" program=("${as_user[@]}" "${program[@]}") ;;
            plain) title="as it is" ;;
            esac
            local status=0
            found=$(kill_test "${program[@]}") || status=$?
            # As it is, a program may be torn; that says what the test can see.
            [ $kind = plain ] && [ $status = 1 ] || [ $status = 0 ] || failed=1
            [ -n "$found" ] || found="$name: DID NOT RUN, status $status"
            rows+=("$name, $title|${found#*: }")
        done
    done
}

# Memcached with a live heap, the same with flushes, and the same without a heap, each right after the other, as machines have
# moods; the median of the ratios counts.
measure_memcached() {
    local keys n all what kind
    for keys in ${PORTS_KEYS:-20000 1000000}; do
        step "measuring memcached, $keys keys, $times times"
        all=()
        for ((n = 0; n < times; n++)); do
            local line=
            for kind in port plain flush; do
                [ -e "$work/memcached.$kind/kill" ] || continue
                rm -rf "$work/files" && mkdir "$work/files"
                local heap=$work/files/db
                [ $kind != plain ] || heap=-
                line+=" $("$work/memcached.$kind/kill" load "$work/memcached.$kind/memcached" $heap "$keys" 3)"
            done
            all+=("$line")
        done
        for what in sets gets start; do
            rows+=("$(printf '%s\n' "${all[@]}" | awk -v what=$what '
                what == "sets" { print $1 / $4, $1, $4, $7 }
                what == "gets" { print $2 / $5, $2, $5, $8 }
                what == "start" { print $3, $3 " ms", "" }' | sort -n | awk -v name="$keys keys, $what" '
                { line[NR] = $0 }
                END {
                    split(line[int((NR + 1) / 2)], f, " ")
                    if (f[3] == "ms") printf "%s|%s ms", name, f[2]
                    else printf "%s|%d|%d|%.2f|%s|%s", name, f[2], f[3], f[1], f[4] ? f[4] : "-", f[4] ? sprintf("%.2f", f[4] / f[3]) : "-"
                }')")
        done
    done
}

# table HEADING: prints the rows, and forgets them.
table() {
    printf '%s\n' "$1" "${rows[@]}" | column -t -s '|' | sed 's/^/  /'
    echo
    rows=()
}

mkdir -p "$work"
for tool in apt-get dpkg-source cc c++ make patch column; do
    command -v $tool >/dev/null || fail "there is no $tool here"
done
step "building untorn"
[ -n "${PORTS_PREFIX:-}" ] || PREFIX=$prefix CARGO_TARGET_DIR=$target scripts/install.sh --library-only >/dev/null
for program in $programs; do
    fetch "$program"
    "build_$program"
done
build_kills
suites
table "Their own tests, ported|result"
if [ "$kills" != 0 ]; then
    kill_tests
    table "SIGKILL at random moments|result"
fi
if [ "$times" != 0 ] && [[ " $programs " == *" memcached "* ]]; then
    measure_memcached
    table "memcached, commands per second; start behind a kill|in a live heap|as it is|ratio|records flushed|ratio"
fi
[ $failed = 0 ] || fail "something failed"
step "all passed"
