//! The command `untorn` on databases: `sqlite status`, `adopt` and `plain`; recovery, and the marker.

use crate::driver::{Driver, plain, uri};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn_testkit::seed;

const BUSY: i32 = 5;
const IO_ERROR: i32 = 10;

/// The result of a run of `untorn`.
struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    #[track_caller]
    fn fails(self) -> String {
        assert_eq!(self.code, 1, "{}{}", self.out, self.err);
        assert!(self.err.starts_with("untorn: "), "{}", self.err);
        self.err
    }
}

fn untorn(arguments: &[&str], path: &Path) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn"));
    let output = command.args(arguments).arg(path).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// The condition of one database.
#[track_caller]
fn status(path: &Path) -> serde_json::Value {
    let run = untorn(&["sqlite", "status", "--json"], path);
    let value: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}", run.err));
    let one = value[0].clone();
    assert_eq!(run.code != 0, needs_work(&one), "{one}");
    one
}

fn needs_work(of: &serde_json::Value) -> bool {
    of["owner"].is_null() && (of["marked"] == true || of["clean"] == false)
        || of["hot_journal"] == true && of["locked"] == false
        || of["wal_mode"] == true && !of["store"].is_null()
        || of["problems"] != serde_json::json!([])
}

fn journal(path: &Path) -> PathBuf {
    path.with_extension("db-journal")
}

/// A database whose last commit is only in the journal of a process that was killed.
fn killed(dir: &Path, name: &str) -> PathBuf {
    let mut driver = Driver::start();
    driver.open(0, dir, name);
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    driver.sql("PRAGMA untorn_release");
    driver.sql("INSERT INTO t VALUES (2)");
    driver.kill();
    dir.join(name.split('?').next().unwrap())
}

#[track_caller]
fn is_plain(dir: &Path, name: &str) {
    assert!(!journal(&dir.join(name)).exists(), "the marker is left");
    let mut rows = plain(dir, name, "INSERT INTO t VALUES (3); SELECT group_concat(a) FROM t; PRAGMA integrity_check");
    assert_eq!(rows.code, 0, "{rows:?}");
    assert_eq!(rows.rows.split_off(0), ["1,2,3", "ok"]);
}

#[test]
fn recover_makes_a_database_of_its_own_store_plain() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path(), "a.db");
    assert_eq!(plain(dir.path(), "a.db", "SELECT 1 FROM t").code & 255, IO_ERROR);
    let found = status(&path);
    assert_eq!((&found["marked"], &found["clean"], &found["own_store"]), (&true.into(), &false.into(), &true.into()));
    assert_eq!(untorn(&["status"], &path).code, 1);
    let out = untorn(&["recover"], &path).ok();
    assert!(out.contains("recovered 1 commit to 1 file") && out.contains("the marker is removed"), "{out}");
    is_plain(dir.path(), "a.db");
    assert_eq!(status(&path)["clean"], true);
    untorn(&["status"], &path).ok();
}

#[test]
fn recover_makes_all_databases_of_a_directory_plain() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("inner")).unwrap();
    let store = dir.path().display().to_string();
    killed(dir.path(), &format!("a.db?store={store}"));
    let mut driver = Driver::start();
    for (at, name) in ["a.db", "inner/b.db"].into_iter().enumerate() {
        driver.open(at, dir.path(), &format!("{name}?store={store}"));
    }
    driver.tell("1 CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    driver.sql("INSERT INTO t VALUES (9); DELETE FROM t WHERE a = 9");
    // A directory of somebody else, although its name looks like a marker's.
    let others = dir.path().join("a.db-journal-journal");
    fs::create_dir_all(&others).unwrap();
    fs::create_dir(dir.path().join("nothing-journal")).unwrap();
    driver.kill();
    untorn(&["status"], dir.path());
    let found = untorn(&["find-unclean", "--recover"], dir.path());
    assert!(found.ok().contains("1 recovered"));
    is_plain(dir.path(), "a.db");
    is_plain(&dir.path().join("inner"), "b.db");
    assert!(others.is_dir() && dir.path().join("nothing-journal").is_dir());
}

/// The data file was durable, and the process was killed before it had removed the marker.
#[test]
fn a_marker_of_a_clean_store_is_found_and_removed() {
    for command in [&["recover"][..], &["eject", "--yes"], &["sqlite", "adopt"], &["sqlite", "plain"]] {
        let dir = tempfile::tempdir().unwrap();
        let path = killed(dir.path(), "a.db");
        untorn(&["recover"], &path).ok();
        fs::create_dir(journal(&path)).unwrap();
        for look in ["status", "check", "find-unclean"] {
            let at = if look == "find-unclean" { dir.path() } else { &path };
            let run = untorn(&[look], at);
            assert!(run.code == 1 && run.out.contains("a.db-journal"), "{look}: {}", run.out);
        }
        let doctor = untorn(&["doctor"], &path).ok();
        assert!(doctor.contains("is marked"), "{doctor}");
        untorn(command, &path).ok();
        is_plain(dir.path(), "a.db");
        untorn(&["find-unclean"], dir.path()).ok();
    }
}

#[test]
fn a_directory_with_files_is_not_taken_for_a_marker() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path(), "a.db");
    fs::write(journal(&path).join("mine"), "x").unwrap();
    let out = untorn(&["recover"], &path).ok();
    assert!(out.contains("recovered 1 commit") && !out.contains("marker"), "{out}");
    assert_eq!(fs::read(journal(&path).join("mine")).unwrap(), b"x");
    assert!(untorn(&["sqlite", "adopt"], &path).fails().contains("is a directory with files in it"));
}

#[test]
fn an_owner_and_a_plain_program_keep_the_commands_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)");
    let pid = driver.child.id();
    let found = status(&path);
    assert_eq!((&found["owner"], &found["marked"], &found["locked"]), (&pid.into(), &true.into(), &true.into()));
    for command in [&["recover"][..], &["eject", "--yes"], &["sqlite", "adopt"], &["sqlite", "plain"]] {
        let why = untorn(command, &path).fails();
        assert!(why.contains("process"), "{command:?}: {why}");
        assert!(journal(&path).is_dir(), "{command:?}");
    }
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    driver.kill();
    untorn(&["recover"], &path).ok();
    // A plain program in a transaction.
    let mut other = Driver::plain();
    other.tell(&format!("open 0 {}", path.display())).ok();
    assert_eq!(other.sql("BEGIN; SELECT count(*) FROM t"), "3");
    assert_eq!(status(&path)["locked_by"], other.child.id());
    for command in [&["recover"][..], &["eject", "--yes"], &["sqlite", "adopt"], &["sqlite", "plain"]] {
        let why = untorn(command, &path).fails();
        assert!(why.contains(&format!("process {} has it open", other.child.id())), "{command:?}: {why}");
    }
    other.sql("COMMIT");
    untorn(&["sqlite", "plain"], &path).ok();
    other.sql("DELETE FROM t WHERE a = 3");
    is_plain(dir.path(), "a.db");
}

/// Another SQLite cannot come in while the command works: the command is stopped by a progress of its own.
#[test]
fn a_plain_program_cannot_come_between() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path(), "a.db");
    // The store's lock is held, so that the command waits with SQLite's locks in its hand.
    let store = untorn::offline::open(&path, &untorn::offline::RecoverOptions::default(), &|_, _| {}).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn"));
    let mut child = command.args(["recover", "--wait"]).arg(&path).stdout(Stdio::null()).spawn().unwrap();
    while status(&path)["locked"] == false {
        assert_eq!(child.try_wait().unwrap(), None);
    }
    fs::remove_dir(journal(&path)).unwrap();
    assert_eq!(plain(dir.path(), "a.db", "SELECT 1 FROM t").code, BUSY);
    store.close().unwrap();
    assert!(child.wait().unwrap().success());
    is_plain(dir.path(), "a.db");
}

#[test]
fn adopt_and_plain_are_opposites() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    plain(dir.path(), "a.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    assert!(status(&path)["store"].is_null());
    let before = names(dir.path());
    let out = untorn(&["sqlite", "adopt"], &path).ok();
    assert!(out.contains("a.db?vfs=untorn"), "{out}");
    assert_eq!((&status(&path)["own_store"], &status(&path)["clean"]), (&true.into(), &true.into()));
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("INSERT INTO t VALUES (9); DELETE FROM t WHERE a = 9; SELECT count(*) FROM t"), "2");
    driver.kill();
    let out = untorn(&["sqlite", "plain"], &path).ok();
    assert!(out.contains("recovered 2 commits"), "{out}");
    assert_eq!(names(dir.path()), before);
    is_plain(dir.path(), "a.db");
    // Twice is no error.
    untorn(&["sqlite", "plain"], &path).ok();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_store_of_a_directory_goes_with_its_last_database() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (a, b) = (dir.path().join("a.db"), inner.join("b.db"));
    plain(dir.path(), "a.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    plain(&inner, "b.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    let store = dir.path().display().to_string();
    let out = untorn(&["sqlite", "adopt", "--store", &store], &b).ok();
    assert!(out.contains(&format!("inner/b.db?vfs=untorn&store={store}")), "{out}");
    assert_eq!(status(&b)["store"], store.as_str());
    untorn(&["sqlite", "adopt"], &a).ok();
    assert!(!dir.path().join("a.db.untorn").exists());
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    let attached = uri(dir.path(), &format!("inner/b.db?store={store}"));
    driver.sql(&format!("ATTACH '{attached}' AS b"));
    driver.sql("BEGIN; INSERT INTO main.t VALUES (9); INSERT INTO b.t VALUES (9); COMMIT");
    driver.sql("BEGIN; DELETE FROM main.t WHERE a = 9; DELETE FROM b.t WHERE a = 9; COMMIT");
    driver.kill();
    assert_eq!(status(&b)["store"], store.as_str());
    let out = untorn(&["sqlite", "plain"], &b).ok();
    assert!(out.contains("stays: other files belong to it"), "{out}");
    assert!(dir.path().join(".untorn").is_dir() && journal(&a).is_dir());
    is_plain(&inner, "b.db");
    assert!(status(&b)["store"].is_null());
    untorn(&["sqlite", "plain"], &a).ok();
    is_plain(dir.path(), "a.db");
    assert_eq!(names(dir.path()), ["a.db", "inner"]);
    assert_eq!(names(&inner), ["b.db"]);
}

#[test]
fn adopt_refuses_with_true_sentences() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let adopt = |name: &str, store: &str| {
        let store = dir.path().join(store).display().to_string();
        untorn(&["sqlite", "adopt", "--store", &store], &place(name)).fails()
    };
    fs::write(place("text"), "no database, but more than twenty bytes").unwrap();
    assert!(untorn(&["sqlite", "adopt"], &place("text")).fails().contains("is no SQLite database"));
    assert!(untorn(&["sqlite", "adopt"], &place("none")).fails().contains("there is no such file"));
    for inner in ["inner", "inner/most"] {
        fs::create_dir(place(inner)).unwrap();
    }
    plain(dir.path(), "inner/most/a.db", "CREATE TABLE t(a)").ok();
    plain(dir.path(), "b.db", "CREATE TABLE t(a)").ok();
    assert!(adopt("b.db", "inner").contains("does not lie in the directory"));
    drop(untorn::StoreOptions::new().create(true).open(place("inner")).unwrap());
    assert!(adopt("inner/most/a.db", "").contains("a file belongs to the nearest store above it"));
    untorn(&["sqlite", "adopt"], &place("b.db")).ok();
    let why = adopt("b.db", "");
    assert!(why.contains("run `untorn sqlite plain` on it first"), "{why}");
    untorn(&["sqlite", "plain"], &place("b.db")).ok();
    // A transaction that was interrupted.
    let mut hot = Driver::plain();
    hot.tell(&format!("open 0 {}", place("b.db").display())).ok();
    hot.sql("PRAGMA cache_size=2; BEGIN; INSERT INTO t SELECT randomblob(90000)");
    hot.kill();
    let why = untorn(&["sqlite", "adopt"], &place("b.db")).fails();
    assert!(why.contains("was interrupted") && why.contains("sqlite_schema"), "{why}");
    assert_eq!(status(&place("b.db"))["hot_journal"], true);
    plain(dir.path(), "b.db", "SELECT count(*) FROM sqlite_schema").ok();
    untorn(&["sqlite", "adopt"], &place("b.db")).ok();
}

#[test]
fn adopt_ends_wal_mode_when_the_log_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let mut open = Driver::plain();
    open.tell(&format!("open 0 {}", path.display())).ok();
    open.sql("PRAGMA journal_mode=WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    assert!(untorn(&["sqlite", "adopt"], &path).fails().contains("has it open"));
    // Killed, the log stays.
    open.kill();
    let why = untorn(&["sqlite", "adopt"], &path).fails();
    assert!(why.contains("PRAGMA journal_mode=DELETE"), "{why}");
    let found = status(&path);
    assert_eq!((&found["wal_mode"], &found["write_ahead_log"]), (&true.into(), &true.into()));
    // Closed in order, it goes.
    let mut closed = Driver::plain();
    closed.tell(&format!("open 0 {}", path.display())).ok();
    closed.sql("INSERT INTO t VALUES (2)");
    closed.tell("close 0").ok();
    let doctor = untorn(&["doctor"], &path).ok();
    assert!(doctor.contains("untorn sqlite adopt"), "{doctor}");
    assert!(untorn(&["sqlite", "adopt"], &path).ok().contains("WAL mode is ended"));
    assert_eq!(plain(dir.path(), "a.db", "PRAGMA journal_mode").ok(), "delete");
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("PRAGMA integrity_check; SELECT group_concat(a) FROM t"), "ok,1,2");
    driver.end();
    is_plain(dir.path(), "a.db");
}

#[test]
fn a_file_that_waits_for_a_lost_journal_is_not_called_plain() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path(), "a.db");
    fs::remove_dir_all(dir.path().join("a.db.untorn")).unwrap();
    assert_eq!(status(&path)["clean"], false);
    for command in [&["recover"][..], &["sqlite", "plain"]] {
        let why = untorn(command, &path).fails();
        assert!(why.contains("waits for commits"), "{command:?}: {why}");
    }
    assert!(journal(&path).is_dir());
}

/// A copy without extended attributes: recovery cannot tell that the file is the journal's.
#[test]
fn the_marker_stays_on_a_copy_that_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    killed(dir.path(), "a.db");
    let copy = tempfile::tempdir().unwrap();
    let cp = Command::new("cp").args(["-r", "--no-preserve=xattr"]).arg(dir.path().join(".")).arg(copy.path()).status();
    assert!(cp.unwrap().success());
    let path = copy.path().join("a.db");
    for command in [&["recover"][..], &["eject", "--yes"], &["sqlite", "plain"], &["sqlite", "adopt"]] {
        let why = untorn(command, &path).fails();
        assert!(why.contains("another file is in the place"), "{command:?}: {why}");
        assert!(journal(&path).is_dir(), "{command:?}");
    }
    assert_eq!(plain(copy.path(), "a.db", "SELECT 1 FROM t").code & 255, IO_ERROR);
    untorn(&["recover", "--adopt"], &path).ok();
    is_plain(copy.path(), "a.db");
}

/// Kills of the command itself leave a database that it then makes plain. Each kill comes later than the one before, until
/// the command has done its work.
#[test]
fn a_killed_recovery_is_repeated() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut kills = 0;
    for n in 0..untorn_testkit::extent(8, 150) {
        let dir = tempfile::tempdir().unwrap();
        let path = killed(dir.path(), "a.db");
        let arguments: &[&str] = if n % 2 == 0 { &["recover"] } else { &["sqlite", "plain"] };
        for most_us in std::iter::successors(Some(500), |us| Some(us * 3 / 2)) {
            let mut untorn_command = Command::new(env!("CARGO_BIN_EXE_untorn"));
            let mut child = untorn_command.args(arguments).arg(&path).stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_micros(random.u64(most_us / 2..most_us)));
            child.kill().unwrap();
            let is_done = child.wait().unwrap().success();
            kills += usize::from(!is_done);
            let seen = plain(dir.path(), "a.db", "SELECT group_concat(a) FROM t");
            assert!(seen.code & 255 == IO_ERROR || seen.rows == ["1,2"], "{seen:?}");
            if is_done || seen.code == 0 {
                break;
            }
        }
        // Either way it can be made plain: without a store, `recover` has nothing to do.
        untorn(&["sqlite", "plain"], &path).ok();
        is_plain(dir.path(), "a.db");
    }
    println!("{kills} kills");
    assert!(kills > 0, "it was never killed");
}
