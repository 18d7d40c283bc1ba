//! Full disks and failed flushes: a transaction fails, the database goes on.

use crate::driver::{Answer, Driver, extension, plain, program, uri};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use untorn_testkit::{extent, is_root, seed, skipped};

const FULL: i32 = 13;

/// A file system of some megabytes, in an image.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    fn new() -> Option<Small> {
        let small = Small { dir: tempfile::tempdir().unwrap() };
        let image = small.dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(40 << 20).unwrap();
        fs::create_dir(small.path()).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image).status();
        let is_mounted = made.is_ok_and(|made| made.success())
            && Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(small.path())
                .status()
                .is_ok_and(|s| s.success());
        is_mounted.then_some(small)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_fails_a_transaction_and_no_more() {
    if !is_root() {
        return skipped("only root can mount a small file system");
    }
    let Some(small) = Small::new() else { return skipped("a small file system cannot be mounted here") };
    let mut driver = Driver::start();
    driver.open(0, &small.path(), "a.db");
    driver.sql("CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    let mut last = 0;
    let refused = (0..200).map(|_| driver.tell("0 INSERT INTO t(b) VALUES (randomblob(500000))")).find(|answer| {
        last += i32::from(answer.code == 0);
        answer.code != 0
    });
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.code & 255, FULL, "{refused:?}");
    assert_eq!(driver.sql("SELECT count(*) FROM t; PRAGMA integrity_check"), format!("{last},ok"));
    driver.end();
    let mut driver = Driver::start();
    driver.open(0, &small.path(), "a.db");
    assert_eq!(driver.sql("SELECT count(*) FROM t; PRAGMA integrity_check"), format!("{last},ok"));
    driver.end();
}

/// The rows. After a failure the store is opened again for them, and strace counts the flushes of each new thread anew:
/// it can fail again.
fn read(driver: &mut Driver) -> String {
    let select = "0 SELECT a FROM t WHERE a > 0 ORDER BY rowid";
    for _ in 0..5 {
        let answer = driver.tell(select);
        if answer.code == 0 {
            return answer.ok();
        }
        let why = driver.sql("PRAGMA untorn_error");
        assert!(why.contains("Input/output error") || why.contains("has failed"), "{answer:?}: {why}");
    }
    driver.tell(select).ok()
}

/// The program, in which flush number `n` fails.
fn with_failing_flush(n: usize, synchronous: &str, dir: &Path) -> Vec<i32> {
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null", "-e", &format!("inject=fdatasync:error=EIO:when={n}")]);
    let mut driver = Driver::from(command.arg(program()).arg(extension(&[])));
    let mut failed = Vec::new();
    let mut kept = Vec::new();
    driver.open(0, dir, "a.db");
    let made = driver.tell(&format!("0 PRAGMA synchronous={synchronous}; CREATE TABLE t(a)"));
    if made.code != 0 {
        // The store could not be opened, or its first commit failed: a second try finds it in order.
        let _ = driver.tell("0 CREATE TABLE IF NOT EXISTS t(a)").ok();
    }
    for value in 1..=30 {
        let answer = driver.tell(&format!("0 INSERT INTO t VALUES ({value})"));
        if answer.code == 0 {
            kept.push(value.to_string());
        } else {
            assert!([10, 14].contains(&(answer.code & 255)), "{answer:?}");
            failed.push(value);
        }
        // Only commits that were acknowledged; a failed one may be there, whole.
        let rows = read(&mut driver);
        let mut rows: Vec<_> = rows.split(',').filter(|row| !row.is_empty()).map(str::to_owned).collect();
        rows.retain(|row| !failed.contains(&row.parse().expect("a number")));
        if synchronous == "OFF" {
            // Not waited for: the last ones before the failure may be gone.
            kept.retain(|value| rows.contains(value));
        }
        assert_eq!(rows, kept, "flush {n} fails");
    }
    assert!(failed.len() <= if synchronous == "OFF" { 5 } else { 1 }, "the store does not heal: {failed:?}");
    driver.end();
    // The flush that failed may have been the last one, of closing.
    let mut driver = Driver::start();
    driver.open(0, dir, "a.db");
    let rows = driver.sql("SELECT a FROM t ORDER BY rowid; PRAGMA integrity_check");
    let rows: Vec<_> = rows.split(',').collect();
    assert_eq!(rows.last(), Some(&"ok"));
    assert!(synchronous == "OFF" || kept.iter().all(|value| rows.contains(&value.as_str())), "{kept:?}, {rows:?}");
    failed
}

#[test]
fn a_failed_flush_fails_one_transaction() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("there is no strace here");
    }
    let failed = (3..16).step_by(2).flat_map(|n| with_failing_flush(n, "FULL", tempfile::tempdir().unwrap().path()));
    assert!(failed.count() > 0, "no transaction has met the failure");
}

#[test]
fn without_synchronous_a_failed_flush_loses_the_end_only() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("there is no strace here");
    }
    for n in (8..16).step_by(2) {
        with_failing_flush(n, "OFF", tempfile::tempdir().unwrap().path());
    }
}

/// After a power cut, a commit must not be there without the marker, which keeps other programs from older pages.
#[test]
fn the_marker_is_durable_before_the_first_commit() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("there is no strace here");
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", "trace=mkdir,mkdirat,fsync,fdatasync", "-o"]).arg(&trace);
    let mut driver = Driver::from(command.arg(program()).arg(extension(&[])));
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    driver.end();
    let trace = std::fs::read_to_string(trace).unwrap();
    let lines: Vec<&str> = trace.lines().collect();
    let marked = lines.iter().position(|line| line.contains("mkdir") && line.contains("a.db-journal"));
    let after = &lines[marked.unwrap_or_else(|| panic!("no marker: {trace}"))..];
    let dir = format!("<{}>)", dir.path().canonicalize().unwrap().display());
    let flushed = after.iter().position(|line| line.contains("fsync(") && line.replace(' ', "").contains(&dir));
    let committed = after.iter().position(|line| line.contains("fdatasync("));
    assert!(flushed.is_some() && flushed < committed, "{trace}");
}

/// The way back to a plain database that docs/SQLITE.md names.
#[test]
fn a_database_of_a_killed_process_becomes_plain_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    driver.sql("INSERT INTO t VALUES (2)");
    driver.kill();
    let load = format!(".load {}", extension(&[]).with_extension("").display());
    let open = format!(".open {}", uri(dir.path(), "a.db"));
    let commands = [load.as_str(), &open, "PRAGMA schema_version", "PRAGMA untorn_release"];
    let output = Command::new("sqlite3").arg(":memory:").args(commands).output();
    let Ok(output) = output else { return skipped("there is no sqlite3 here") };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\nreleased\n", "{output:?}");
    assert_eq!(plain(dir.path(), "a.db", "SELECT group_concat(a) FROM t").ok(), "1,2");
}

/// Two databases, of which a connection changes both, in a build in which calls of a kind fail from number `n` on, so
/// many times.
fn with_failing_calls(call: &str, n: usize, times: usize, settings: &str, is_killed: bool) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| uri(dir.path(), &format!("{name}?store={}", dir.path().display()));
    let open = |driver: &mut Driver| {
        driver.tell(&format!("open 0 {}", of("a.db"))).ok();
        driver.sql(&format!("ATTACH '{}' AS b", of("b.db")));
    };
    let mut driver = Driver::start();
    open(&mut driver);
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)";
    for table in ["main.t", "b.t"] {
        driver.sql(&format!("CREATE TABLE {table}(a INTEGER PRIMARY KEY, n INT, b)"));
        driver.sql(&format!("{fill} INSERT INTO {table} SELECT i, 0, zeroblob(900) FROM n"));
    }
    driver.end();
    let mut driver = Driver::with(Some(&extension(&["-DUNTORN_SQLITE_FAULTS"])));
    open(&mut driver);
    driver.sql(settings);
    driver.tell(&format!("fault {call} {n} {times}")).ok();
    let (mut wrong, mut most) = (Vec::new(), 0);
    for _ in 0..4 {
        let change = "UPDATE main.t SET n = n + 1, b = randomblob(900); UPDATE b.t SET n = n + 1, b = randomblob(900)";
        let answer = driver.tell(&format!("0 BEGIN; {change}; COMMIT"));
        if answer.code == 0 {
            most += 1;
        } else {
            let _ = driver.tell("0 ROLLBACK");
            wrong.push(answer);
        }
        let back = driver.tell(&format!("0 BEGIN; {change}; ROLLBACK"));
        if back.code != 0 {
            let _ = driver.tell("0 ROLLBACK");
            wrong.push(back);
        }
    }
    driver.tell("fault none 0 0").ok();
    let failed = wrong.len();
    assert!(failed <= times, "{call} {n}, {settings}: {times} calls have failed, and more statements: {wrong:?}");
    let counters = "SELECT min(n), max(n), count(*) FROM (SELECT n FROM main.t UNION ALL SELECT n FROM b.t)";
    let check = |answer: Answer, least: i64, when: &str| {
        assert_eq!(answer.code, 0, "{call} {n} {times}, {settings}, {when}: {answer:?}; {wrong:?}");
        let all: Vec<i64> = answer.ok().split('|').map(|number| number.parse().unwrap()).collect();
        // A failure that was reported is no commit.
        let is_right = all[0] == all[1] && (least..=most).contains(&all[0]) && all[2] == 60;
        assert!(is_right, "{call} {n} {times}, {settings}, {when}: {all:?}, {least} to {most} committed; {wrong:?}");
    };
    check(driver.tell(&format!("0 {counters}")), most, "at once");
    if is_killed {
        driver.kill()
    } else {
        driver.end()
    }
    // Without waiting, the last commits may not have been written yet.
    let least = if is_killed && settings.contains("OFF") { 0 } else { most };
    let mut driver = Driver::start();
    open(&mut driver);
    check(driver.tell(&format!("0 {counters}")), least, "afterwards");
    for schema in ["main", "b"] {
        assert_eq!(driver.sql(&format!("PRAGMA {schema}.integrity_check")), "ok");
    }
    failed > 0
}

/// Calls of SQLite fail, one at a time, or some in a row.
#[test]
fn a_call_that_fails_is_a_transaction_that_fails() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut failed = std::collections::BTreeMap::new();
    for call in ["xWrite", "SYNC", "commit", "journal", "super", "xRead", "xLock"] {
        for n in 1..=extent(6, 60) {
            // SQLite makes a super-journal if it is durable itself.
            let modes = if call == "super" { 3 } else { 4 };
            let mode = random.choice(&["DELETE", "TRUNCATE", "PERSIST", "MEMORY"][..modes]).unwrap();
            let lock = random.choice(["NORMAL", "EXCLUSIVE"]).unwrap();
            let mut settings = format!("PRAGMA journal_mode={mode}; PRAGMA locking_mode={lock}; PRAGMA cache_size=10");
            if call != "super" && random.bool() {
                settings += "; PRAGMA main.synchronous=OFF; PRAGMA b.synchronous=OFF";
            }
            let is_killed = random.bool();
            // With more than one failure, SQLite's own rollback fails, too.
            let times = random.choice([1, 3]).unwrap();
            *failed.entry(call).or_insert(0) += usize::from(with_failing_calls(call, n, times, &settings, is_killed));
        }
    }
    println!("{failed:?}");
    assert!(failed.values().all(|&failed| failed > 0), "some calls were never made: {failed:?}");
}
