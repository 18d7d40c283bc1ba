//! Writers on several connections give the lock back before their flush, and share flushes.

use crate::driver::{Driver, extension, program};
use std::path::Path;
use std::process::Command;
use untorn_testkit::{extent, seed, skipped};

const FSYNC_FAILED: i32 = 1034;
const SUMS: &str =
    "SELECT sum(has) FROM account WHERE id < 3; PRAGMA integrity_check; SELECT has FROM account WHERE id = 3";

/// Connections 0 to `n` - 1 of one database with three accounts.
fn open(driver: &mut Driver, dir: &Path, n: usize) {
    for at in 0..n {
        driver.open(at, dir, "a.db");
    }
    driver.sql(
        "CREATE TABLE IF NOT EXISTS account(id INTEGER PRIMARY KEY, has INT); \
         INSERT OR IGNORE INTO account VALUES (1, 0), (2, 0), (3, 0)",
    );
}

/// The number of moves that the database has; all of them are whole.
fn moves(driver: &mut Driver) -> usize {
    let found = driver.sql(SUMS);
    found.strip_prefix("0,ok,").unwrap_or_else(|| panic!("{found}")).parse().unwrap()
}

/// The program, in which something is done to each of its flushes.
fn under_strace(dir: &Path, injected: &str) -> Option<(Driver, std::path::PathBuf)> {
    Command::new("strace").arg("-V").output().ok()?;
    let trace = dir.join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=fdatasync", "-e", &format!("inject=fdatasync:{injected}"), "-o"]).arg(&trace);
    Some((Driver::from(command.arg(program()).arg(extension(&[]))), trace))
}

#[test]
fn writers_share_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let Some((mut driver, trace)) = under_strace(dir.path(), "delay_exit=60000") else {
        return skipped("there is no strace here");
    };
    let flushes = || std::fs::read_to_string(&trace).unwrap().matches("fdatasync(").count();
    open(&mut driver, dir.path(), 8);
    let before = flushes();
    driver.tell("threads 8 12").ok();
    let shared = flushes() - before;
    assert_eq!(moves(&mut driver), 96);
    println!("96 commits of 8 connections made {shared} flushes");
    assert!(shared > 0 && shared * 4 < 96 * 3);
    driver.end();
}

/// A flush fails while other connections work on: each transaction is whole, and those that were acknowledged are there.
#[test]
fn a_flush_that_fails_after_the_release_fails_its_transactions() {
    let mut all = 0;
    for n in [4, 7, 11, 15] {
        let dir = tempfile::tempdir().unwrap();
        let mut maker = Driver::start();
        open(&mut maker, dir.path(), 1);
        maker.end();
        let Some((mut driver, _)) = under_strace(dir.path(), &format!("error=EIO:delay_enter=3000:when={n}")) else {
            return skipped("there is no strace here");
        };
        (0..4).for_each(|at| driver.open(at, dir.path(), "a.db"));
        let failed: usize = driver.tell("threads 4 25").ok().parse().unwrap();
        let mut driver = {
            driver.end();
            Driver::start()
        };
        driver.open(0, dir.path(), "a.db");
        let found = moves(&mut driver);
        assert!((100..=100 + failed).contains(&found), "{found} moves, {failed} failed");
        driver.end();
        all += failed;
    }
    assert!(all > 0, "no transaction has met a failure");
}

/// SQLite returns the error of its last step, xUnlock, from COMMIT. The database goes on.
#[test]
fn an_error_after_the_release_fails_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::with(Some(&extension(&["-DUNTORN_SQLITE_FAULTS"])));
    open(&mut driver, dir.path(), 2);
    driver.tell("fault landed 2 1").ok();
    driver.sql("UPDATE account SET has = 1 WHERE id = 3");
    for (statement, then) in [("UPDATE account SET has = 2 WHERE id = 3", 3), ("BEGIN; DROP TABLE account; COMMIT", 4)]
    {
        let answer = driver.tell(&format!("0 {statement}"));
        let expected = if then == 3 { FSYNC_FAILED } else { 0 };
        assert_eq!(answer.code, expected, "{statement}: {answer:?}");
        let _ = driver.tell("0 ROLLBACK");
        // Recovery has decided, and both connections see it.
        let rows = driver.tell("1 SELECT count(*) FROM sqlite_master").ok();
        assert_eq!(rows, driver.sql("SELECT count(*) FROM sqlite_master"));
    }
    assert_eq!(driver.tell("1 CREATE TABLE t(a); INSERT INTO t VALUES (1); SELECT * FROM t").ok(), "1");
    assert_eq!(driver.sql("SELECT a FROM t; PRAGMA integrity_check"), "1,ok");
    driver.end();
}

/// A statement that reads while its connection commits keeps its view, beside writers on other connections.
#[test]
fn a_connection_reads_on_after_its_commit() {
    let (_dir, mut driver) = {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = Driver::start();
        open(&mut driver, dir.path(), 3);
        (dir, driver)
    };
    for round in 1..20 {
        driver.sql(&format!("UPDATE account SET has = {round} WHERE id = 3"));
        driver.tell(&format!("1 BEGIN; SELECT has FROM account WHERE id = 3; SELECT {round}; COMMIT")).ok();
        assert_eq!(driver.tell("1 SELECT has FROM account WHERE id = 3").ok(), round.to_string());
        assert_eq!(driver.tell("2 UPDATE account SET has = has + 1 WHERE id = 1; SELECT changes()").ok(), "1");
    }
    driver.end();
}

/// Kills with several connections: the acknowledged commits of each are there.
#[test]
fn killed_writers_keep_what_they_acknowledged() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut all = 0;
    let dir = tempfile::tempdir().unwrap();
    for kill in 0..extent(10, 300) {
        let mut driver = Driver::start();
        open(&mut driver, dir.path(), 6);
        let before = moves(&mut driver);
        driver.say("threads 6 1000000");
        let least = random.usize(1..60);
        let mut acknowledged = 0;
        while acknowledged < least {
            acknowledged += usize::from(driver.line().expect("the writers go on") == "moved");
        }
        driver.child.kill().unwrap();
        while let Some(line) = driver.line() {
            acknowledged += usize::from(line == "moved");
        }
        drop(driver);
        let mut driver = Driver::start();
        driver.open(0, dir.path(), "a.db");
        let found = moves(&mut driver) - before;
        assert!((acknowledged..=acknowledged + 6).contains(&found), "kill {kill}: {acknowledged} of {found}");
        driver.end();
        all += acknowledged;
    }
    assert!(all > 0);
}
