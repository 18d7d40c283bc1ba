//! Unmodified programs work in a session as they do outside.

mod common;

use common::{Place, Run, Session};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Whether a program is installed. Prints a message if it is not.
fn is_here(program: &str) -> bool {
    let here = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !here {
        println!("skipped: needs the program {program}");
    }
    here
}

/// Runs a script outside of a session, in the session's directory.
fn outside(place: &Place, script: &str) -> String {
    let mut shell = Command::new("sh");
    let run: Run = shell.args(["-ec", script]).current_dir(place.work()).output().unwrap().into();
    run.ok()
}

#[test]
fn git_commits_clones_and_collects() {
    let Some(place) = Place::new() else { return };
    if !is_here("git") {
        return;
    }
    let script = "export HOME=/tmp GIT_CONFIG_NOSYSTEM=1; git init -q repo; cd repo; git config user.name n; \
        git config user.email e@x; git config core.fsync all; \
        for i in 1 2 3 4 5 6 7 8 9; do echo $i > f$i; git add .; git commit -qm c$i; done; git gc -q; cd ..; \
        git clone -q repo copy; git -C copy log --oneline | wc -l";
    assert_eq!(place.script(script).ok().trim(), "9");
    let check = "export HOME=/tmp; for d in repo copy; do git -c safe.directory='*' -C $d fsck --strict; \
        git -c safe.directory='*' -C $d status --porcelain; done";
    assert_eq!(outside(&place, check).trim(), "");
}

#[test]
fn sqlite_commits_and_its_database_is_whole() {
    let Some(place) = Place::new() else { return };
    if !is_here("sqlite3") {
        return;
    }
    let mut script = String::from("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(n INTEGER);\n");
    for n in 0..500 {
        script += &format!("INSERT INTO t VALUES ({n});\n");
    }
    script += "SELECT sum(n) FROM t;\n";
    fs::write(place.work().join("script"), script).unwrap();
    let said = place.script("sqlite3 db < script").ok();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["wal", "124750"]);
    let whole = "sqlite3 db 'PRAGMA integrity_check; SELECT count(*) FROM t;'";
    assert_eq!(outside(&place, whole).split_whitespace().collect::<Vec<_>>(), ["ok", "500"]);
}

/// The preloaded library in a session, in a program that is killed when it has written half of a transaction.
#[test]
fn a_preloaded_program_is_killed() {
    let Some(place) = Place::new() else { return };
    if !is_here("sqlite3") {
        return;
    }
    let sql = "PRAGMA journal_mode=MEMORY; PRAGMA cache_size=2; CREATE TABLE t(n); INSERT INTO t VALUES (1);\n\
        BEGIN; INSERT INTO t VALUES (zeroblob(300000));\n\
        .shell kill -9 $PPID\n";
    fs::write(place.work().join("script"), sql).unwrap();
    let library = untorn_testkit::preload_library().display();
    let preloaded = format!("LD_PRELOAD='{library}' UNTORN_MANAGE=app.db sqlite3 app.db");
    let again = format!("{preloaded} 'PRAGMA integrity_check; SELECT n FROM t; INSERT INTO t VALUES (2)'");
    let said = place.script(&format!("{preloaded} < script; echo $?; {again}")).ok();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["memory", "137", "ok", "1"]);
    let whole = outside(&place, "sqlite3 app.db 'PRAGMA integrity_check; SELECT n FROM t;'");
    assert_eq!(whole.split_whitespace().collect::<Vec<_>>(), ["ok", "1", "2"]);
}

#[test]
fn a_package_is_made_and_installed() {
    let Some(place) = Place::new() else { return };
    if !is_here("dpkg") || !is_here("dpkg-deb") {
        return;
    }
    let script = "mkdir -p p/DEBIAN p/usr/bin root/var/lib/dpkg/info root/var/lib/dpkg/updates; \
        printf 'Package: untorn-test\\nVersion: 1\\nArchitecture: all\\nMaintainer: n <e@x>\\nDescription: d\\n' \
        > p/DEBIAN/control; for i in 1 2 3 4 5 6 7 8 9; do echo $i > p/usr/bin/f$i; done; touch root/var/lib/dpkg/status; \
        dpkg-deb -b p p.deb > /dev/null; dpkg --root=root --force-not-root --log=/dev/null -i p.deb > /dev/null 2> /tmp/errors || cat /tmp/errors; \
        dpkg --root=root -s untorn-test | grep Status";
    assert_eq!(place.script(script).ok().trim(), "Status: install ok installed");
    assert_eq!(fs::read_to_string(place.work().join("root/usr/bin/f9")).unwrap(), "9\n");
}

#[test]
fn a_program_is_built_from_its_source() {
    let Some(place) = Place::new() else { return };
    if !is_here("make") || !is_here("cc") {
        return;
    }
    for n in 0..12 {
        fs::write(place.work().join(format!("f{n}.c")), format!("int f{n}(void) {{ return {n}; }}\n")).unwrap();
    }
    let calls: String = (0..12).map(|n| format!(" + f{n}()")).collect();
    let declared: String = (0..12).map(|n| format!("int f{n}(void);")).collect();
    let main = format!("#include <stdio.h>\n{declared}\nint main(void) {{ printf(\"%d\\n\", 0{calls}); }}\n");
    fs::write(place.work().join("main.c"), main).unwrap();
    let makefile = "OBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nall: sum\nsum: $(OBJ)\n\tcc -o $@ $^\n";
    fs::write(place.work().join("Makefile"), makefile).unwrap();
    place.run(&["--", "make", "-j2"]).ok();
    assert_eq!(outside(&place, "./sum"), "66\n");
    // The session keeps modification times, so make has nothing to do.
    assert!(outside(&place, "make").contains("Nothing to be done"));
    place.run(&["--", "su", "nobody", "-s", "/bin/sh", "-c", "id -un"]).ok();
}

#[test]
fn redis_answers_and_has_what_it_answered() {
    let Some(place) = Place::new() else { return };
    if !is_here("redis-server") {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let volume = format!("{}:96M", place.dir.path().join("redis.img").display());
    let start = || {
        let listen = format!("127.0.0.1:{port}");
        let server =
            ["redis-server", "--port", &port, "--dir", "/data", "--appendonly", "yes", "--appendfsync", "always"];
        let session = ["--listen", &listen, "--volume", &volume, "--"];
        Session::start(place.xsync(&[&session[..], &server[..]].concat()).stdout(Stdio::null()))
    };
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port.parse().unwrap())) {
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
            Ok(stream) => return BufReader::new(stream),
        }
    };
    let mut child = start();
    let mut client = connect();
    let mut answer = String::new();
    for n in 1..=200 {
        client.get_mut().write_all(b"INCR counter\r\n").unwrap();
        answer.clear();
        client.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!(":{n}\r\n"));
    }
    // Kills the supervisor, and with it the session.
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = start();
    let mut client = connect();
    // Redis first loads its log, and answers with an error meanwhile.
    answer = "-LOADING".into();
    while answer.starts_with("-LOADING") {
        client.get_mut().write_all(b"GET counter\r\n").unwrap();
        answer.clear();
        client.read_line(&mut answer).unwrap();
    }
    client.read_line(&mut answer).unwrap();
    assert_eq!(answer, "$3\r\n200\r\n");
    client.get_mut().write_all(b"SHUTDOWN\r\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
