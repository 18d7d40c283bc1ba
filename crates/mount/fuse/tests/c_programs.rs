//! C programs with files on a mount: with the porting header the mount commits them, and the library gives them
//! transactions.

mod common;

use common::can_mount;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use untorn_testkit::{NOBODY, library_dir, preload_library, seed, skipped};

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

/// A store, and a directory at which it is mounted.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Place(dir)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join("mnt").join(name)
    }

    fn mount(&self, options: &[&str]) {
        let mut mount = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        run(mount.args(options).arg(self.0.path().join("store")).arg(self.at("")));
    }

    fn umount(&self) {
        run(Command::new(env!("CARGO_BIN_EXE_untorn-mount")).arg("umount").arg(self.at("")));
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
    for mode in ["fsync", "close", "write", "store"] {
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
        mount.args(options).arg(place.0.path().join("store")).arg(place.at(""));
        let mut daemon = mount.stderr(Stdio::null()).spawn().unwrap();
        while untorn_mount::mounts::mount_point::mounted_at(&place.at("")).unwrap().is_none() {
            assert!(daemon.try_wait().unwrap().is_none(), "it cannot be mounted");
            std::thread::sleep(Duration::from_millis(2));
        }
        let out = run(Command::new(&program).arg(place.at("coins")).arg("30"));

        assert!(out == "0 coins\n" || out == "100000 coins\n" && n > 0, "{out}");
        let mut child =
            Command::new(&program).arg(place.at("coins")).arg("1000000").stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(rng.u64(2000..60_000)));
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
