//! A process is killed while it commits: its databases have the last transaction whole, or not at all.

use crate::driver::{Driver, extension, plain, program, uri};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use untorn_testkit::{extent, kill_after_acks, seed};

const MODES: [&str; 4] = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY"];
const COMMITS: u64 = 20_000;

/// The connection's databases: main, and others attached, all of one store.
fn open(dir: &Path, n: usize) -> String {
    let name = |at: usize| uri(dir, &format!("db{at}?store={}", dir.display()));
    let mut script = format!("open 0 {}\n", name(0));
    for at in 1..n {
        writeln!(script, "0 ATTACH '{}' AS db{at}", name(at)).unwrap();
    }
    script
}

fn schema(at: usize) -> String {
    if at == 0 { "main".into() } else { format!("db{at}") }
}

/// Transactions that count in every database, and move an amount from one to the next. Some spill, some go back to a
/// savepoint, some are rolled back.
fn script(dir: &Path, n: usize, settings: &[(String, &str)], from: u64, random: &mut fastrand::Rng) -> String {
    let mut script = open(dir, n);
    for (at, (mode, synchronous)) in settings.iter().enumerate() {
        let of = schema(at);
        writeln!(
            script,
            "0 PRAGMA {of}.journal_mode={mode}; PRAGMA {of}.synchronous={synchronous}; PRAGMA {of}.cache_size=10"
        )
        .unwrap();
    }
    if random.u8(..).is_multiple_of(4) {
        script.push_str("0 PRAGMA locking_mode=EXCLUSIVE\n");
    }
    for commit in from + 1..=from + COMMITS {
        let spills = random.u8(..).is_multiple_of(16);
        let mut change = String::new();
        for at in 0..n {
            let of = schema(at);
            write!(
                change,
                "UPDATE {of}.t SET counter = counter + 1, amount = amount + {} WHERE id = 1; ",
                at as i64 * 2 - n as i64 + 1
            )
            .unwrap();
            if spills {
                write!(change, "UPDATE {of}.t SET filler = randomblob(900) WHERE id > 1; ").unwrap();
            }
        }
        if random.u8(..).is_multiple_of(8) {
            writeln!(script, "0 BEGIN; {change} ROLLBACK").unwrap();
        }
        let aside =
            if random.u8(..).is_multiple_of(8) { "SAVEPOINT s; UPDATE t SET counter = -1; ROLLBACK TO s;" } else { "" };
        writeln!(script, "0 BEGIN; {aside}{change} COMMIT\nack {commit}").unwrap();
        if random.u8(..).is_multiple_of(64) {
            script.push_str("0 VACUUM\n");
        }
    }
    script
}

/// Whether the databases are as of one commit, and in order.
fn check(dir: &Path, n: usize, acknowledged: u64, exact: bool) -> Result<u64, String> {
    let mut driver = Driver::start();
    let mut answers = open(dir, n).lines().map(|line| driver.tell(line)).collect::<Vec<_>>();
    assert!(answers.iter().all(|answer| answer.code == 0), "{answers:?}");
    answers.clear();
    let (mut counters, mut sum) = (Vec::new(), 0);
    for at in 0..n {
        let of = schema(at);
        let row = driver.sql(&format!("SELECT counter, amount FROM {of}.t WHERE id = 1"));
        let (counter, amount) = row.split_once('|').ok_or(format!("database {at}: {row:?}"))?;
        counters.push(counter.parse::<u64>().unwrap());
        sum += amount.parse::<i64>().unwrap();
        let whole = driver.sql(&format!("PRAGMA {of}.integrity_check"));
        if whole != "ok" {
            return Err(whole);
        }
    }
    driver.end();
    let counter = counters[0];
    let is_one = counters.iter().all(|&other| other == counter) && sum == 0;
    let is_last =
        if exact { (acknowledged..=acknowledged + 1).contains(&counter) } else { counter <= acknowledged + 1 };
    if is_one && is_last { Ok(counter) } else { Err(format!("{acknowledged} acknowledged; {counters:?}, sum {sum}")) }
}

/// Kills a process again and again. Returns the violations that it found.
fn kills(build: &Path, n: usize, kills: usize, modes: &[&str], synchronous: &[&str]) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed() ^ n as u64);
    let mut found = Vec::new();
    let mut dir = tempfile::tempdir().unwrap();
    let (mut last, mut commits) = (None, 0);
    for kill in 0..kills {
        if last.is_none() {
            dir = tempfile::tempdir().unwrap();
            let mut driver = Driver::start();
            open(dir.path(), n).lines().for_each(|line| drop(driver.tell(line).ok()));
            for at in 0..n {
                let of = schema(at);
                driver.sql(&format!("CREATE TABLE {of}.t(id INTEGER PRIMARY KEY, counter INT, amount INT, filler)"));
                driver.sql(
                    &format!(
                        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
                     INSERT INTO {of}.t SELECT i, 0, 0, randomblob(900) FROM n"
                    )
                    .replace('\n', " "),
                );
            }
            driver.end();
        }
        let mode = random.choice(modes).unwrap();
        let settings: Vec<(String, &str)> = (0..n)
            .map(|_| {
                // One mode for all, or each its own.
                let mode = if kill % 2 == 0 { mode } else { random.choice(modes).unwrap() };
                ((*mode).to_owned(), *random.choice(synchronous).unwrap())
            })
            .collect();
        let from = last.unwrap_or(0);
        let path = dir.path().join("script");
        fs::write(&path, script(dir.path(), n, &settings, from, &mut random)).unwrap();
        let mut command = Command::new(program());
        command.arg(build).stdin(File::open(&path).unwrap());
        // Every fourth kill may also hit the opening, and recovery.
        let commits_first = usize::from(kill % 4 != 3);
        let pause = Duration::from_millis(random.u64(..200));
        let acknowledged = kill_after_acks(&mut command, commits_first, || std::thread::sleep(pause)).max(from);
        assert!(commits_first == 0 || acknowledged > from, "kill {kill}: {acknowledged}, {from} before");
        commits += acknowledged - from;
        let exact = !synchronous.contains(&"OFF");
        last = match check(dir.path(), n, acknowledged, exact) {
            Ok(counter) => Some(counter),
            Err(wrong) => {
                found.push(format!("kill {kill}, {settings:?}: {wrong}"));
                None
            }
        };
    }
    println!("{kills} kills in {commits} commits of {n} databases");
    found
}

#[test]
fn one_database_has_its_last_commit() {
    let found = kills(&extension(&[]), 1, extent(12, 600), &MODES, &["FULL", "EXTRA", "NORMAL"]);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn several_databases_have_the_same_commit() {
    for n in 2..=5 {
        let found = kills(&extension(&[]), n, extent(5, 250), &MODES, &["FULL", "NORMAL"]);
        assert!(found.is_empty(), "{n} databases: {found:#?}");
    }
}

#[test]
fn without_synchronous_the_databases_are_still_of_one_commit() {
    let found = kills(&extension(&[]), 3, extent(6, 200), &MODES, &["OFF"]);
    assert!(found.is_empty(), "{found:#?}");
}

/// The kills must be able to find torn databases: they find those of two wrong rules.
#[test]
fn kills_find_databases_that_commit_one_by_one() {
    for wrong in ["-DUNTORN_SQLITE_COMMIT_AT_SYNC", "-DUNTORN_SQLITE_NO_GROUP"] {
        let build = extension(&[wrong]);
        let found = (0..20).map(|_| kills(&build, 3, 4, &["MEMORY"], &["FULL"])).find(|found| !found.is_empty());
        println!("{wrong}: {found:?}");
        assert!(found.is_some(), "{wrong}: the kills have found nothing");
    }
}

/// Whether a plain sqlite3 read or wrote anything after a kill, and whether the VFS then finds the database in order.
fn plain_after_a_kill(build: &Path) -> (bool, bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::with(Some(build));
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    driver.sql("PRAGMA untorn_release");
    driver.sql("INSERT INTO t VALUES (2)");
    driver.sql("INSERT INTO t SELECT randomblob(3000) FROM t, t, t");
    driver.kill();
    let read = plain(dir.path(), "a.db", "SELECT count(*) FROM t");
    let wrote = plain(dir.path(), "a.db", "INSERT INTO t VALUES (3)");
    println!("{read:?} {wrote:?}");
    let mut driver = Driver::with(Some(build));
    driver.open(0, dir.path(), "a.db");
    let rows = driver.tell("0 SELECT count(*) FROM t");
    let whole = driver.tell("0 PRAGMA integrity_check");
    (read.code == 0 || wrote.code == 0, rows.rows == ["10"] && whole.rows == ["ok"])
}

/// Of a database that is new, the file is empty until Untorn has applied a commit.
#[test]
fn a_new_database_is_not_empty_for_others_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a)");
    driver.kill();
    let answer = plain(dir.path(), "a.db", "SELECT * FROM sqlite_master");
    assert_eq!(answer.code & 255, 10, "{answer:?}");
}

#[test]
fn a_plain_sqlite3_reads_and_writes_nothing_after_a_kill() {
    assert_eq!(plain_after_a_kill(&extension(&[])), (false, true));
    let (touched, _) = plain_after_a_kill(&extension(&["-DUNTORN_SQLITE_NO_MARKER"]));
    assert!(touched, "without the marker a plain sqlite3 must get through, or this test shows nothing");
}
