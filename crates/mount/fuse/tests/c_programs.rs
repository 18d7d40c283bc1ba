//! C programs with files on a mount: with the porting header the mount commits them, and the library gives them
//! transactions.

mod common;

use common::{can_mount, serving_processes};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use untorn_mount::fuse::kernel;
use untorn_testkit::{NOBODY, extent, is_root, kill_after_acks, library_dir, preload_library, seed, skipped};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compiles a C program with the library.
fn compile(source: &Path, to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_GNU_SOURCE", "-I"]);
    cc.arg(here("../../../include")).arg(source).arg("-o").arg(to).arg(library_dir().join("libuntorn.a"));
    run(cc.args(["-lpthread", "-ldl", "-lm"]));
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned() + &err
}

const MODES: [&str; 4] = ["fsync", "close", "write", "store"];

/// A directory to mount at, and a store.
struct Place(TempDir, PathBuf);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let store = dir.path().join("store");
        Place(dir, store)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join("mnt").join(name)
    }

    fn mount(&self, options: &[&str]) {
        let mut mount = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        run(mount.args(options).arg(&self.1).arg(self.at("")));
    }

    fn umount(&self) {
        run(Command::new(env!("CARGO_BIN_EXE_untorn-mount")).arg("umount").arg(self.at("")));
    }
}

/// A file system below a store.
struct Below(PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The processes that are killed besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Victims {
    None,
    /// The supervisor starts another one.
    Daemon,
    DaemonAndSupervisor,
}

impl Place {
    /// Kills them, and returns their number.
    fn kill(&self, victims: Victims) -> usize {
        let is_victim = |serves: bool| match victims {
            Victims::None => false,
            Victims::Daemon => serves,
            Victims::DaemonAndSupervisor => true,
        };
        let mut count = 0;
        loop {
            // The supervisor first, which starts another daemon.
            let mut killed = serving_processes(&self.1);
            killed.retain(|(_, serves)| is_victim(*serves));
            killed.sort_by_key(|(_, serves)| *serves);
            for (pid, _) in &killed {
                count += usize::from(kill_process(*pid, Signal::KILL).is_ok());
            }
            if killed.is_empty() || victims == Victims::Daemon && count > 0 {
                return count;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let at = self.at("");
        while untorn_mount::mounts::mount_point::mounted_at(&at).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&at);
        }
    }
}

#[test]
fn a_sync_commits_and_the_end_gives_up() {
    if !can_mount() {
        return;
    }
    for mode in MODES {
        let place = Place::new();
        place.mount(&["--commit", mode, "-o", "allow_other"]);
        let program = place.0.path().join("named_files");
        compile(&here("tests/c/named_files.c"), &program);
        for user in [0, 65534] {
            let files = place.at(&format!("of-{user}"));
            fs::create_dir(&files).unwrap();
            std::os::unix::fs::chown(&files, Some(user), Some(user)).unwrap();
            let said = run(Command::new(&program).arg(&files).env("MODE", mode).uid(user).gid(user));
            assert!(said.contains("a.db: changes that were not synced are discarded"), "{mode}: {said}");
        }
        place.umount();
    }
}

/// The preloaded library on a mount, in a program that is killed when it has written half of a transaction.
#[test]
fn a_preloaded_program_is_killed() {
    if !can_mount() {
        return;
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return skipped("there is no sqlite3 here");
    }
    let place = Place::new();
    place.mount(&["-o", "allow_other"]);
    let files = place.at("files");
    fs::create_dir(&files).unwrap();
    std::os::unix::fs::chown(&files, Some(NOBODY), Some(NOBODY)).unwrap();
    let preloaded = |sql: &str| {
        fs::write(place.0.path().join("sql"), sql).unwrap();
        let mut sqlite = Command::new("sqlite3");
        sqlite.arg("app.db").stdin(fs::File::open(place.0.path().join("sql")).unwrap()).current_dir(&files);
        sqlite.env("LD_PRELOAD", preload_library()).env("UNTORN_MANAGE", "*.db").uid(NOBODY).gid(NOBODY);
        sqlite.output().unwrap()
    };
    let killed = preloaded(
        "PRAGMA journal_mode=MEMORY; PRAGMA cache_size=2; CREATE TABLE t(n); INSERT INTO t VALUES (1);\n\
        BEGIN; INSERT INTO t VALUES (zeroblob(300000));\n\
        .shell kill -9 $PPID\n",
    );
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    let again = preloaded("PRAGMA integrity_check; SELECT n FROM t; INSERT INTO t VALUES (2);");
    assert_eq!((again.status.code(), &*again.stdout), (Some(0), &b"ok\n1\n"[..]), "{again:?}");
    let mut plain = Command::new("sqlite3");
    let whole = run(plain.arg(files.join("app.db")).arg("PRAGMA integrity_check; SELECT n FROM t;"));
    assert_eq!(whole, "ok\n1\n2\n");
    assert!(!files.join("app.db.untorn").exists(), "the mount keeps the commits");
    place.umount();
}

#[test]
fn the_environment_says_when_named_files_are_committed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount(&[]);
    let program = place.0.path().join("commit_modes");
    compile(&here("tests/c/commit_modes.c"), &program);
    for mode in ["write", "close"] {
        run(Command::new(&program).arg(place.at("")).env("UNTORN_COMMIT", mode));
    }
    place.umount();
}

#[test]
fn transactions_by_the_c_interface() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount(&[]);
    let program = place.0.path().join("transactions");
    compile(&here("tests/c/transactions.c"), &program);
    run(Command::new(&program).arg(place.at("")));
    place.umount();
    place.mount(&[]);
    assert_eq!(
        (fs::read(place.at("a")).unwrap(), fs::read(place.at("b")).unwrap()),
        (b"one".to_vec(), b"ten".to_vec())
    );
    place.umount();
}

#[test]
fn named_files_are_committed_together_by_their_descriptors() {
    if !can_mount() {
        return;
    }
    for mode in MODES {
        let place = Place::new();
        place.mount(&["--commit", mode, "-o", "allow_other"]);
        let program = place.0.path().join("descriptor_transactions");
        compile(&here("tests/c/descriptor_transactions.c"), &program);
        for user in [0, 65534] {
            let files = place.at(&format!("of-{user}"));
            fs::create_dir(&files).unwrap();
            std::os::unix::fs::chown(&files, Some(user), Some(user)).unwrap();
            let said = run(Command::new(&program).arg(&files).uid(user).gid(user));
            assert!(said.contains("was neither committed nor aborted"), "{mode}: {said}");
            assert!(!said.contains("exit: the file is in a transaction"), "{mode}: it is not ended first: {said}");
        }
        place.umount();
        place.mount(&["--commit", mode]);
        for (name, text) in [("a.db", "old"), ("sub/b.db", "old")] {
            assert_eq!(fs::read_to_string(place.at("of-0").join(name)).unwrap(), text, "{mode}");
        }
        place.umount();
    }
}

#[test]
fn as_many_files_as_a_message_to_the_mount_has_room_for_are_committed_together() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount(&[]);
    let program = place.0.path().join("descriptor_transactions");
    compile(&here("tests/c/descriptor_transactions.c"), &program);
    run(Command::new(&program).arg(place.at("")).arg("many"));
    place.umount();
}

/// Killed are the program, the daemon, which another one replaces, or both with the supervisor: after each kill three
/// files have the same commit, and no acknowledged one is lost.
#[test]
fn kills_leave_all_files_of_a_transaction_with_the_same_commit() {
    if !can_mount() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(seed());
    let (mut commits, mut kills) = (0, BTreeMap::new());
    for mode in MODES {
        let place = Place::new();
        let program = place.0.path().join("descriptor_transactions");
        compile(&here("tests/c/descriptor_transactions.c"), &program);
        let count = |how: &str| {
            let mut command = Command::new(&program);
            command.arg(place.at("")).arg(how).env("UNTORN_WAIT", "100");
            command
        };
        let mut acknowledged = 0;
        place.mount(&["--commit", mode]);
        for round in 0..extent(6, 60) {
            let victims = [Victims::None, Victims::Daemon, Victims::DaemonAndSupervisor][rng.usize(..3)];
            let times = [(); 2].map(|()| Duration::from_millis(rng.u64(..200)));
            let meanwhile = || {
                std::thread::sleep(times[0]);
                assert_eq!(place.kill(victims) > 0, victims != Victims::None, "{mode}: {victims:?}");
                std::thread::sleep(times[1]);
            };
            let how = if victims == Victims::DaemonAndSupervisor { "dying" } else { "count" };
            // The program first repeats the last number.
            let last = kill_after_acks(&mut count(how), 2, meanwhile);
            assert!(last > acknowledged, "{mode}: {last} after {acknowledged}");
            if victims == Victims::DaemonAndSupervisor {
                place.mount(&["--commit", mode]);
            }
            acknowledged = last;
            let shown = run(&mut count("shown"));
            let shown: u64 = shown.trim().strip_prefix("ack ").and_then(|n| n.parse().ok()).expect(&shown);
            assert!(
                shown == acknowledged || shown == acknowledged + 1,
                "{mode}: {acknowledged} was acknowledged, {shown} is there"
            );
            acknowledged = shown;
            *kills.entry(format!("{victims:?}")).or_insert(0) += 1;
            // A supervisor gives up after eight daemons that lived less than a second.
            if round % 5 == 4 {
                place.umount();
                place.mount(&["--commit", mode]);
            }
        }
        commits += acknowledged;
        place.umount();
    }
    println!("{commits} commits; killed besides the program: {kills:?}");
}

/// A commit that finds no room ends no transaction: it is made when there is room.
#[test]
fn a_commit_of_several_files_that_finds_no_room_goes_on() {
    // Before Linux 6.6 tmpfs has no extended attributes.
    if !is_root() || !can_mount() || kernel::version() < (6, 6) {
        return skipped("a file system that is full needs root and Linux 6.6");
    }
    let refused = (0..20).any(|_| {
        let mut place = Place::new();
        let below = place.0.path().join("store");
        fs::create_dir(&below).unwrap();
        rustix::mount::mount("none", &below, "tmpfs", rustix::mount::MountFlags::empty(), c"size=100m").unwrap();
        let _below = Below(below.clone());
        place.1 = below.join("store");
        place.mount(&[]);
        let program = place.0.path().join("descriptor_transactions");
        compile(&here("tests/c/descriptor_transactions.c"), &program);
        let said = run(Command::new(&program).arg(place.at("")).arg("full").arg(below.join("filler")));
        place.umount();
        said.starts_with("refused")
    });
    assert!(refused, "no commit found the disk full");
}

/// The tutorial's second program never loses a coin, however often it is killed, with the daemon and without.
#[test]
fn the_program_of_the_tutorial_loses_nothing() {
    if !can_mount() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(seed());
    let place = Place::new();
    let program = place.0.path().join("after");
    compile(&here("../../../examples/mmap/after.c"), &program);
    for n in 0..12 {
        let options = ["--foreground", "--no-supervisor"];
        let mut mount = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        mount.args(options).arg(&place.1).arg(place.at(""));
        let mut daemon = mount.stderr(Stdio::null()).spawn().unwrap();
        while untorn_mount::mounts::mount_point::mounted_at(&place.at("")).unwrap().is_none() {
            assert!(daemon.try_wait().unwrap().is_none(), "it cannot be mounted");
            std::thread::sleep(Duration::from_millis(2));
        }
        let out = run(Command::new(&program).arg(place.at("coins")).arg("30"));

        assert!(out == "0 coins\n" || out == "100000 coins\n" && n > 0, "{out}");
        // It prints a line, and moves coins then.
        let mut child = Command::new("stdbuf");
        child.arg("-oL").arg(&program).arg(place.at("coins")).arg("1000000").stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "100000 coins\n");
        std::thread::sleep(Duration::from_micros(rng.u64(..60_000)));
        if n % 2 == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
            let out = run(Command::new(&program).arg(place.at("coins")).arg("1"));
            assert_eq!(out, "100000 coins\n");
        }
        daemon.kill().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        daemon.wait().unwrap();
        place.umount();
    }
    place.mount(&[]);
    let plain = fs::read(place.at("coins")).unwrap();
    let coins: i64 = plain.chunks_exact(8).map(|coins| i64::from_ne_bytes(coins.try_into().unwrap())).sum();
    assert_eq!((plain.len(), coins), (8000, 100_000));
    place.umount();
}
