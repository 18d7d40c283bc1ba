//! A database that a process only reads stays a plain file.

use crate::driver::{Driver, extension, plain, program, uri};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use untorn_testkit::{extent, skipped};

const BUSY: i32 = 5;

fn database() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    plain(dir.path(), "a.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1)").ok();
    dir
}

fn start(dir: &Path) -> Driver {
    let mut driver = Driver::start();
    driver.open(0, dir, "a.db");
    driver
}

fn is_owned(driver: &mut Driver) -> bool {
    driver.sql("PRAGMA untorn_status").contains("\"owned\": true")
}

#[test]
fn readers_share_the_file_with_everybody() {
    let dir = database();
    let (mut one, mut other) = (start(dir.path()), start(dir.path()));
    for n in 1..4 {
        for driver in [&mut one, &mut other] {
            assert_eq!(driver.sql("SELECT count(*) FROM t"), n.to_string());
            assert_eq!(driver.sql("PRAGMA untorn_checkpoint"), "done");
            assert!(!is_owned(driver));
        }
        assert_eq!(
            plain(dir.path(), "a.db", "INSERT INTO t VALUES (2); SELECT count(*) FROM t").ok(),
            (n + 1).to_string()
        );
    }
    assert!(!dir.path().join("a.db.untorn").exists() && !dir.path().join("a.db-journal").exists());
    // The first write owns it, and release gives it back.
    one.sql("INSERT INTO t VALUES (3)");
    assert!(is_owned(&mut one));
    assert_eq!(other.tell("0 SELECT count(*) FROM t").code & 255, BUSY);
    assert_eq!(one.sql("PRAGMA untorn_release"), "released");
    assert_eq!(other.sql("SELECT count(*) FROM t"), "5");
    other.sql("INSERT INTO t VALUES (3)");
    assert_eq!(one.tell("0 SELECT count(*) FROM t").code & 255, BUSY);
}

#[test]
fn a_reading_transaction_keeps_writers_of_other_processes_away() {
    let dir = database();
    let (mut reader, mut writer) = (start(dir.path()), start(dir.path()));
    assert_eq!(reader.sql("BEGIN; SELECT count(*) FROM t"), "1");
    assert_eq!(plain(dir.path(), "a.db", "INSERT INTO t VALUES (2)").code & 255, BUSY);
    assert_eq!(writer.tell("0 INSERT INTO t VALUES (2)").code & 255, BUSY);
    // Both read, and both want to write: neither changes pages that the other has read.
    assert_eq!(writer.sql("BEGIN; SELECT count(*) FROM t"), "1");
    assert_eq!(reader.tell("0 INSERT INTO t VALUES (2)").code & 255, BUSY);
    assert_eq!(writer.tell("0 INSERT INTO t VALUES (2)").code & 255, BUSY);
    assert_eq!(reader.sql("SELECT count(*) FROM t; COMMIT"), "1");
    assert_eq!(writer.sql("INSERT INTO t VALUES (2); COMMIT; SELECT count(*) FROM t"), "2");
    writer.end();
    assert_eq!(reader.sql("SELECT count(*) FROM t"), "2");
}

/// Connections of one process: one reads the file, while another opens the store.
#[test]
fn a_reader_goes_on_while_a_connection_beside_it_writes() {
    let dir = database();
    let mut driver = start(dir.path());
    driver.open(1, dir.path(), "a.db");
    assert_eq!(driver.sql("BEGIN; SELECT count(*) FROM t"), "1");
    driver.tell("1 BEGIN; INSERT INTO t VALUES (2)").ok();
    assert!(is_owned(&mut driver));
    assert_eq!(driver.sql("SELECT count(*) FROM t; PRAGMA integrity_check"), "1,ok");
    assert_eq!(driver.tell("1 COMMIT").code & 255, BUSY);
    assert_eq!(driver.sql("SELECT count(*) FROM t; COMMIT"), "1");
    driver.tell("1 COMMIT").ok();
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "2");
    assert_eq!(plain(dir.path(), "a.db", "SELECT 1 FROM t").code & 255, BUSY);
    driver.end();
    assert_eq!(plain(dir.path(), "a.db", "SELECT count(*) FROM t").ok(), "2");
}

/// A reader whose process could not become the owner keeps its lock.
#[test]
fn a_failed_attempt_to_write_leaves_the_reader_its_lock() {
    let dir = database();
    let mut driver = start(dir.path());
    assert_eq!(driver.sql("BEGIN; SELECT count(*) FROM t"), "1");
    // The store cannot be made.
    fs::write(dir.path().join("a.db.untorn"), "in the way").unwrap();
    assert_ne!(driver.tell("0 INSERT INTO t VALUES (2)").code, 0);
    assert_eq!(plain(dir.path(), "a.db", "INSERT INTO t VALUES (2)").code & 255, BUSY);
    assert_eq!(plain(dir.path(), "a.db", "SELECT count(*) FROM t").ok(), "1");
    assert_eq!(driver.sql("SELECT count(*) FROM t; COMMIT"), "1");
    plain(dir.path(), "a.db", "INSERT INTO t VALUES (2)").ok();
    fs::remove_file(dir.path().join("a.db.untorn")).unwrap();
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
}

/// Commits that only a journal has are read, also if nothing but the file's attribute tells of them.
#[test]
fn commits_in_a_journal_are_never_missed() {
    let dir = database();
    let mut driver = start(dir.path());
    driver.sql("INSERT INTO t VALUES (2)");
    driver.kill();
    fs::remove_dir(dir.path().join("a.db-journal")).unwrap();
    let mut driver = start(dir.path());
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "2");
    driver.end();
    let mut driver = start(dir.path());
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "2");
    assert!(!is_owned(&mut driver), "after a close in order, it is plain");
}

#[test]
fn journals_of_plain_sqlite_are_respected() {
    let dir = database();
    let path = dir.path().join("a.db");
    let mut driver = start(dir.path());
    // At work, in another process: it has not changed the file.
    let mut other = Driver::plain();
    other.tell(&format!("open 0 {}", path.display())).ok();
    other.sql("BEGIN; INSERT INTO t VALUES (2)");
    assert!(dir.path().join("a.db-journal").is_file());
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "1");
    assert_eq!(driver.tell("0 INSERT INTO t VALUES (3)").code & 255, BUSY);
    other.sql("COMMIT; PRAGMA cache_size=2; BEGIN; INSERT INTO t SELECT randomblob(90000) FROM t");
    assert_eq!(driver.tell("0 SELECT count(*) FROM t").code & 255, BUSY);
    other.kill();
    assert_eq!(driver.sql("SELECT count(*) FROM t; PRAGMA integrity_check"), "2,ok");
    driver.end();
    // Kept, but ended.
    let mut other = Driver::plain();
    other.tell(&format!("open 0 {}", path.display())).ok();
    other.sql("PRAGMA journal_mode=PERSIST; INSERT INTO t VALUES (3)");
    let mut driver = start(dir.path());
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "3");
    assert!(!is_owned(&mut driver));
    other.sql("INSERT INTO t VALUES (4)");
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "4");
    other.sql("PRAGMA journal_mode=WAL");
    assert_ne!(driver.tell("0 SELECT count(*) FROM t").code, 0);
    assert!(driver.sql("PRAGMA untorn_error").contains("WAL mode"));
}

/// The counter by which SQLite recognises its pages is the same in both files.
#[test]
fn a_file_that_takes_the_name_is_not_read_by_older_connections() {
    let dir = database();
    plain(dir.path(), "b.db", "CREATE TABLE t(a); INSERT INTO t VALUES (7)").ok();
    for is_owned in [false, true] {
        let mut driver = start(dir.path());
        let mine = driver.sql("SELECT a FROM t");
        if is_owned {
            driver.sql("BEGIN IMMEDIATE; ROLLBACK; PRAGMA untorn_release");
        }
        let (a, b) = (dir.path().join("a.db"), dir.path().join("b.db"));
        fs::rename(&a, dir.path().join("c.db")).unwrap();
        fs::rename(&b, &a).unwrap();
        let answer = driver.tell("0 SELECT a FROM t");
        assert_eq!(answer.code & 255, 14, "{mine}: {answer:?}");
        assert!(driver.sql("PRAGMA untorn_error").contains("another file has this name now"));
        driver.tell("close 0").ok();
        driver.open(0, dir.path(), "a.db");
        assert_ne!(driver.sql("SELECT a FROM t"), mine);
        fs::rename(dir.path().join("c.db"), &b).unwrap();
    }
}

/// To open, read and close takes some system calls, none of which writes or flushes. Prints the median times.
#[test]
fn opening_to_read_is_cheap() {
    const CYCLES: usize = 200;
    let dir = database();
    let (path, uri) = (dir.path().join("a.db"), uri(dir.path(), "a.db"));
    let mut driver = Driver::start();
    let mut time = |uri: &str| driver.tell(&format!("cycles {CYCLES} {uri}")).ok();
    let (own, read) = (time(path.to_str().unwrap()), time(&uri));
    driver.open(0, dir.path(), "a.db");
    driver.sql("INSERT INTO t VALUES (2); DELETE FROM t WHERE a = 2");
    let owned = driver.tell(&format!("cycles {CYCLES} {uri}")).ok();
    driver.end();
    println!("open, select, close: SQLite's own VFS {own} us, read {read} us, owned {owned} us");
    let script = dir.path().join("script");
    fs::write(&script, format!("cycles {CYCLES} {uri}\n")).unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "name,calls"]).arg(program()).arg(extension(&[]));
    let Ok(output) = strace.stdin(File::open(&script).unwrap()).output() else {
        return skipped("there is no strace here");
    };
    let text = String::from_utf8(output.stderr).unwrap();
    let count = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(of, _)| *of == name).map_or(0, |(_, calls)| calls.trim().parse::<usize>().unwrap())
    };
    assert!(count("total") > CYCLES && count("total") < 40 * CYCLES + 400, "{text}");
    for never in ["fsync", "fdatasync", "pwrite64", "mkdir", "ftruncate", "fallocate"] {
        assert_eq!(count(never), 0, "{text}");
    }
}

/// Runs a script in a process of its own.
fn run(extension: Option<&Path>, dir: &Path, name: &str, script: &str) -> Child {
    let (from, to) = (dir.join(format!("{name}.in")), dir.join(format!("{name}.out")));
    fs::write(&from, script).unwrap();
    let mut command = Command::new(program());
    command.args(extension).stdin(File::open(&from).unwrap()).stdout(File::create(&to).unwrap());
    command.stderr(Stdio::inherit()).spawn().unwrap()
}

/// Processes with and without the VFS move amounts from one row to another, and look at the sum, which stays 0.
#[test]
fn processes_with_and_without_the_vfs_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    plain(dir.path(), "a.db", "CREATE TABLE t(id INTEGER PRIMARY KEY, a INT, n INT, filler); INSERT INTO t VALUES (1, 0, 0, randomblob(9000)), (2, 0, 0, randomblob(9000))").ok();
    let (path, uri, build) = (dir.path().join("a.db"), uri(dir.path(), "a.db"), extension(&[]));
    let mut running = Vec::new();
    for (at, has_vfs) in [true, true, false].into_iter().enumerate() {
        let open = if has_vfs { uri.clone() } else { path.display().to_string() };
        let mut script = format!("open 0 {open}\n0 PRAGMA busy_timeout=20\n");
        for n in 0..extent(60, 1500) {
            let amount = n * 7 % 11;
            script += &format!(
                "0 BEGIN IMMEDIATE; UPDATE t SET a = a + {amount}, n = n + 1 WHERE id = 1; UPDATE t SET a = a - {amount}, filler = randomblob(9000) WHERE id = 2; COMMIT\n"
            );
            script += "0 ROLLBACK\n0 SELECT 'sum ' || sum(a) FROM t\n";
            script += if has_vfs { "0 PRAGMA untorn_release\n" } else { "0 SELECT 1\n" };
        }
        let name = format!("writer{at}");
        running.push((run(has_vfs.then_some(&build), dir.path(), &name, &script), name));
    }
    for at in 0..2 {
        let script = format!("open 0 {uri}\n") + &"0 SELECT 'sum ' || sum(a) FROM t\n".repeat(extent(400, 10_000));
        let name = format!("reader{at}");
        running.push((run(Some(&build), dir.path(), &name, &script), name));
    }
    let (mut moved, mut sums) = (0, 0);
    for (mut child, name) in running {
        assert!(child.wait().unwrap().success());
        let text = fs::read_to_string(dir.path().join(format!("{name}.out"))).unwrap();
        let wrong: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("row sum") && *line != "row sum 0" || line.contains("malformed"))
            .collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        let done: Vec<_> = text.lines().filter(|line| line.starts_with("done ")).skip(2).collect();
        if name.starts_with("writer") {
            let took = done.iter().step_by(4).filter(|line| line.starts_with("done 0 ")).count();
            println!("{name} has moved {took} times");
            moved += took;
        }
        sums += text.lines().filter(|line| *line == "row sum 0").count();
    }
    let found = plain(dir.path(), "a.db", "SELECT sum(a), sum(n) FROM t; PRAGMA integrity_check").ok();
    assert_eq!(found, format!("0|{moved},ok"));
    assert!(moved > 0 && sums > 0, "{moved} transactions and {sums} sums");
}
