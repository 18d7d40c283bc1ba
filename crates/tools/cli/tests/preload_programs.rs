//! Real programs under `untorn preload`, killed at random moments: none of their acknowledged changes is lost, and none
//! is half there. The programs are those of `examples/crashtest`.
//!
//! `UNTORN_TEST_SEED` repeats the moments of the kills; `UNTORN_FULL=1` kills each program 1,000 times,
//! `UNTORN_PRELOAD_KILLS` as often as it says.

mod common;

use common::Run;
use common::preload::{done, is_here, preload};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use untorn_testkit::{extent, seed, skipped, variable_or};

/// The longest time until a program acknowledges its first change, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program with the commands `setup`, `run` and `check`, which a directory and the other arguments follow.
struct Program<'a> {
    command: &'a [&'a str],
    arguments: &'a [&'a str],
    /// The managed files.
    pattern: &'a str,
    options: &'a [&'a str],
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/crashtest").canonicalize().expect("examples")
}

impl Program<'_> {
    fn part(&self, part: &str, dir: &Path, by: Option<Command>) -> Command {
        let mut command = match by {
            Some(mut preload) => {
                preload.args(self.options).arg("--").arg(self.command[0]);
                preload
            }
            None => Command::new(self.command[0]),
        };
        command.args(&self.command[1..]).arg(part).arg(dir.join("data")).args(self.arguments);
        command.env("PYTHONPATH", examples()).env("PYTHONDONTWRITEBYTECODE", "1").env("UNTORN_ROUNDS", "1000000");
        command.env("UNTORN_ACKED", dir.join("acked")).stdin(Stdio::null()).current_dir(dir);
        command
    }

    fn preloaded(&self, part: &str, dir: &Path) -> Command {
        self.part(part, dir, Some(preload(dir, self.pattern)))
    }

    /// Lets the program make changes, the first of which has this number, and kills it, with all processes that it
    /// started: after its first change, or perhaps in its beginning. Returns the last change that it acknowledged.
    fn killed(&self, dir: &Path, from: u64, changes: bool, rng: &mut fastrand::Rng) -> Option<u64> {
        let mut command = self.preloaded("run", dir);
        command.env("UNTORN_FIRST", from.to_string()).process_group(0).stdout(Stdio::piped());
        command.stderr(fs::File::create(dir.join("errors")).unwrap());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (first, acknowledged) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let numbers = output.lines().map_while(Result::ok).filter_map(|line| line.parse().ok());
            numbers.inspect(|_: &u64| first.send(()).unwrap_or(())).last()
        });
        if changes {
            let _ = acknowledged.recv_timeout(PATIENCE);
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..if changes { 60_000 } else { 400_000 })));
        let ended = child.try_wait().unwrap();
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        child.wait().unwrap();
        let errors = || fs::read_to_string(dir.join("errors")).unwrap_or_default();
        assert!(ended.is_none(), "{command:?} ended by itself after {:?}: {}", started.elapsed(), errors());
        let last = reader.join().expect("a reader");
        assert!(
            !changes || last.is_some(),
            "{command:?} acknowledged nothing in {:?}: {}",
            started.elapsed(),
            errors()
        );
        last
    }

    /// Sets the program up, and kills and checks it again and again.
    fn survives_kills(&self, usual: u32) {
        assert!(self.leaves_store(usual), "no file was managed: {:?}", self.pattern);
    }

    /// Survives kills like `survives_kills`, and returns whether a file had a store after any of the kills.
    fn leaves_store(&self, usual: u32) -> bool {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        done(&mut self.part("setup", dir.path(), None));
        let mut rng = fastrand::Rng::with_seed(seed());
        let (mut last, mut acknowledged, mut managed) = (0, 0, false);
        // Every fourth kill also hits the program's beginning, and recovery.
        for kill in 0..variable_or("UNTORN_PRELOAD_KILLS", extent(usual, 1000)) {
            // Beyond a change that was made and not acknowledged.
            if let Some(now) = self.killed(dir.path(), last + 2, kill % 4 != 3, &mut rng) {
                (last, acknowledged) = (now, acknowledged + 1);
            }
            managed |= has_store(&dir.path().join("data"));
            fs::write(dir.path().join("acked"), format!("{last}\n")).unwrap();
            let check = Run::from(self.preloaded("check", dir.path()).output().unwrap());
            if check.code != Some(0) {
                let kept = dir.keep();
                panic!("kill {kill}, {last} acknowledged: {}{}; kept in {}", check.out, check.err, kept.display());
            }
        }
        println!("{} {:?}: {last} changes, {acknowledged} kills after some", self.command[0], self.arguments);
        managed
    }
}

/// Whether a file in a directory, or below it, has a store.
fn has_store(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_dir())
        .any(|dir| dir.extension().is_some_and(|end| end == "untorn") || has_store(&dir))
}

/// A Python that has this module: the distribution's, or the first in the path.
fn python(module: &str) -> Option<&'static str> {
    let has = |python: &&str| {
        let found = Command::new(python).args(["-c", &format!("import {module}")]).output();
        found.is_ok_and(|found| found.status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(has);
    if found.is_none() {
        skipped(&format!("no Python here has the module {module}"));
    }
    found
}

fn python_survives(module: &str, script: &str, arguments: &[&str], pattern: &str, options: &[&str], usual: u32) {
    let Some(python) = python(module) else { return };
    let script = examples().join(script);
    let command = [python, script.to_str().expect("UTF-8")];
    Program { command: &command, arguments, pattern, options }.survives_kills(usual);
}

fn script_survives(tool: &str, script: &str, arguments: &[&str], pattern: &str, options: &[&str], usual: u32) {
    if !is_here(tool) {
        return;
    }
    let script = examples().join(script);
    Program { command: &[script.to_str().expect("UTF-8")], arguments, pattern, options }.survives_kills(usual);
}

const ON_CLOSE: &[&str] = &["--commit-on-close"];

#[test]
fn sqlite_with_its_journal_in_memory() {
    python_survives("sqlite3", "sqlite.py", &["memory", "full"], "db", &[], 10);
}

#[test]
fn sqlite_without_a_journal() {
    python_survives("sqlite3", "sqlite.py", &["off", "full"], "db", &[], 5);
}

#[test]
fn sqlite_with_a_rollback_journal() {
    python_survives("sqlite3", "sqlite.py", &["delete", "full"], "db", &[], 5);
}

#[test]
fn shelves_of_gnu_dbm() {
    python_survives("dbm.gnu", "dbm_shelve.py", &["gnu"], "db", &[], 8);
}

#[test]
fn shelves_of_ndbm() {
    python_survives("dbm.ndbm", "dbm_shelve.py", &["ndbm"], "*.db", ON_CLOSE, 8);
}

#[test]
fn shelves_of_dumb_dbm() {
    python_survives("dbm.dumb", "dbm_shelve.py", &["dumb"], "db.*", ON_CLOSE, 5);
}

#[test]
fn gdbm() {
    python_survives("dbm.gnu", "gdbm.py", &["sync"], "db", &[], 8);
}

#[test]
fn gdbmtool() {
    script_survives("gdbmtool", "tools.sh", &["gdbmtool"], "db", ON_CLOSE, 5);
}

#[test]
fn lmdb_with_a_writable_map() {
    python_survives("lmdb", "lmdb_example.py", &["writemap"], "data.mdb", &[], 8);
}

#[test]
fn kyoto_cabinet() {
    python_survives("ctypes; ctypes.CDLL('libkyotocabinet.so.16')", "kyoto.py", &["each"], "*.kch", &[], 8);
}

#[test]
fn kchashmgr() {
    script_survives("kchashmgr", "tools.sh", &["kchashmgr"], "*.kch", ON_CLOSE, 5);
}

#[test]
fn leveldb() {
    python_survives("plyvel", "leveldb.py", &[], "./data/db/*", &[], 5);
}

#[test]
fn rocksdb_by_its_tool() {
    script_survives("ldb", "tools.sh", &["ldb"], "./data/db/*", ON_CLOSE, 4);
}

/// Redis with jemalloc, which calls the library before it has begun.
#[test]
fn redis_with_an_append_only_file() {
    if is_here("redis-server") {
        python_survives("socket", "redis_server.py", &["aof"], "*.aof*", &[], 5);
    }
}

#[test]
fn redis_that_saves_all() {
    if is_here("redis-server") {
        python_survives("socket", "redis_server.py", &["rdb"], "*.rdb", &[], 5);
    }
}

#[test]
fn git() {
    const REFS: &[&str] =
        &["--commit-on-close", "--manage", "./data/repository/.git/*/*/*", "--manage", "./data/repository/.git/*"];
    script_survives("git", "git.sh", &["ack"], "index*", REFS, 5);
}

/// A new file takes the name of the old one: it is flushed, and needs no store, as it is closed before.
#[test]
fn sed() {
    let script = examples().join("sed.sh");
    let command = [script.to_str().expect("UTF-8")];
    Program { command: &command, arguments: &[], pattern: "settings", options: ON_CLOSE }.leaves_store(6);
}

#[test]
fn vim() {
    script_survives("vim", "sed.sh", &["vim"], "settings", ON_CLOSE, 5);
}

#[test]
fn python_with_a_map() {
    python_survives("mmap", "mapped.py", &[], "mapped", &[], 8);
}

#[test]
fn node() {
    if !is_here("node") {
        return;
    }
    let script = examples().join("files.js");
    let command = ["node", script.to_str().expect("UTF-8")];
    for how in ["sync", "async"] {
        Program { command: &command, arguments: &[how], pattern: "pages", options: &[] }.survives_kills(4);
    }
}

#[test]
fn java() {
    if !is_here("java") || !is_here("javac") {
        return;
    }
    let classes = tempfile::tempdir().unwrap();
    done(Command::new("javac").arg("-d").arg(classes.path()).arg(examples().join("Pages.java")));
    let command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes.path().to_str().expect("UTF-8"), "Pages"];
    for how in ["file", "map"] {
        Program { command: &command, arguments: &[how], pattern: "pages", options: &[] }.survives_kills(3);
    }
}
