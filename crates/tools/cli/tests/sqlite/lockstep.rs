//! Random SQL on a database of Untorn and on a plain one, in lockstep: all answers are the same.

use crate::driver::{Driver, plain, uri};
use untorn_testkit::{extent, seed};

/// A connection of the VFS, and a plain one, each with an attached database.
struct Pair {
    driver: Driver,
    dir: tempfile::TempDir,
}

/// Everything in a database, as text.
const CONTENTS: &str =
    "SELECT count(*), sum(length(b)), group_concat(a || quote(b), ';') FROM (SELECT * FROM t ORDER BY a)";

impl Pair {
    fn new() -> Pair {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("untorn")).unwrap();
        let mut pair = Pair { driver: Driver::start(), dir };
        pair.open();
        pair
    }

    fn untorn(&self) -> std::path::PathBuf {
        self.dir.path().join("untorn")
    }

    fn open(&mut self) {
        let dir = self.untorn();
        let of = |name: &str| uri(&dir, &format!("{name}?store={}", dir.display()));
        let plain = |name: &str| self.dir.path().join(name).display().to_string();
        self.driver.tell(&format!("open 0 {}", of("a.db"))).ok();
        self.driver.tell(&format!("open 1 file:{}", plain("a.db"))).ok();
        self.driver.tell(&format!("0 ATTACH '{}' AS x", of("b.db"))).ok();
        self.driver.tell(&format!("1 ATTACH '{}' AS x", plain("b.db"))).ok();
    }

    /// Runs a statement on both.
    #[track_caller]
    fn both(&mut self, sql: &str) {
        let (ours, theirs) = (self.driver.tell(&format!("0 {sql}")), self.driver.tell(&format!("1 {sql}")));
        assert_eq!(ours, theirs, "{sql}");
    }

    #[track_caller]
    fn compare(&mut self) {
        for schema in ["main", "x"] {
            self.both(&CONTENTS.replace(" t ", &format!(" {schema}.t ")));
            self.both(&format!("PRAGMA {schema}.integrity_check"));
        }
    }

    /// Closes both. SQLite's own VFS reads the files.
    #[track_caller]
    fn reopen(&mut self) {
        if self.driver.tell("0 COMMIT").code == 0 {
            self.driver.tell("1 COMMIT").ok();
        }
        self.both("PRAGMA locking_mode=NORMAL");
        self.both("SELECT count(*) FROM main.t, x.t");
        assert_eq!(self.driver.sql("PRAGMA untorn_release"), "released");
        for name in ["a.db", "b.db"] {
            let (ours, theirs) = (plain(&self.untorn(), name, CONTENTS), plain(self.dir.path(), name, CONTENTS));
            assert_eq!(ours.ok(), theirs.ok(), "{name}");
            assert_eq!(plain(&self.untorn(), name, "PRAGMA integrity_check").ok(), "ok");
            let pages =
                plain(&self.untorn(), name, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size");
            let len = std::fs::metadata(self.untorn().join(name)).unwrap().len();
            assert_eq!(pages.ok(), len.to_string(), "{name} has its pages and nothing else");
        }
        for at in [0, 1] {
            self.driver.tell(&format!("close {at}")).ok();
        }
        self.open();
    }
}

fn change(random: &mut fastrand::Rng) -> String {
    let table = if random.bool() { "main.t" } else { "x.t" };
    let (a, len) = (random.u32(..200), random.u32(..3000));
    let blob = format!("CAST(replace(hex(zeroblob({len})), '0', char(65 + {a} % 26)) AS BLOB)");
    match random.u8(..8) {
        0 | 1 => format!("INSERT OR REPLACE INTO {table} VALUES ({a}, {blob})"),
        2 => format!("INSERT INTO {table} VALUES ({a}, {blob})"),
        3 => format!("UPDATE {table} SET b = {blob} WHERE a BETWEEN {a} AND {}", a + 20),
        4 => format!("DELETE FROM {table} WHERE a BETWEEN {a} AND {}", a + random.u32(..40)),
        // Fails in the middle: the statement is taken back, or the transaction, or neither.
        5 => {
            let how = random.choice(["ABORT", "FAIL", "ROLLBACK", "IGNORE"]).unwrap();
            format!("UPDATE OR {how} {table} SET a = a / 2, b = {blob} WHERE a > {a}")
        }
        6 => format!("INSERT OR IGNORE INTO {table} SELECT a + 1, b FROM {table}"),
        _ => format!("INSERT OR REPLACE INTO x.t SELECT * FROM main.t WHERE a < {a}"),
    }
}

fn setting(random: &mut fastrand::Rng) -> String {
    let schema = random.choice(["main.", "x.", ""]).unwrap();
    match random.u8(..7) {
        0..=2 => {
            let mode = random.choice(["DELETE", "TRUNCATE", "PERSIST", "MEMORY"]).unwrap();
            format!("PRAGMA {schema}journal_mode={mode}")
        }
        3 => format!("PRAGMA {schema}synchronous={}", random.choice(["OFF", "NORMAL", "FULL", "EXTRA"]).unwrap()),
        4 => format!("PRAGMA {schema}locking_mode={}", random.choice(["NORMAL", "EXCLUSIVE"]).unwrap()),
        5 => format!("PRAGMA {schema}cache_size={}", random.choice([5, 10, 200]).unwrap()),
        _ => "PRAGMA incremental_vacuum".into(),
    }
}

fn statement(random: &mut fastrand::Rng) -> String {
    match random.u8(..20) {
        0..=9 => change(random),
        10 | 11 => random.choice(["BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"]).unwrap().to_string(),
        12 => "COMMIT".into(),
        13 => "ROLLBACK".into(),
        14 => random.choice(["SAVEPOINT a", "SAVEPOINT b"]).unwrap().to_string(),
        15 => random.choice(["ROLLBACK TO a", "ROLLBACK TO b", "RELEASE a", "RELEASE b"]).unwrap().to_string(),
        16 | 17 => setting(random),
        18 => random.choice(["VACUUM", "VACUUM x", "PRAGMA optimize"]).unwrap().to_string(),
        _ => "CREATE TABLE IF NOT EXISTS x.more(a); DROP TABLE x.more".into(),
    }
}

fn lockstep(seed: u64, statements: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pair = Pair::new();
    let page_size = 512 << random.u32(..8);
    pair.both(&format!("PRAGMA main.page_size={page_size}; PRAGMA main.auto_vacuum={}", random.u8(..3)));
    pair.both(&format!("PRAGMA x.page_size={page_size}; PRAGMA x.auto_vacuum={}", random.u8(..3)));
    pair.both("CREATE TABLE main.t(a INTEGER PRIMARY KEY, b); CREATE TABLE x.t(a INTEGER PRIMARY KEY, b); CREATE INDEX main.i ON t(b)");
    for at in 1..=statements {
        pair.both(&statement(&mut random));
        if at % 8 == 0 {
            pair.compare();
        }
        if at % 60 == 0 {
            pair.reopen();
        }
    }
    pair.reopen();
    pair.compare();
    pair.driver.end();
}

#[test]
fn random_sql_has_the_answers_of_plain_sqlite() {
    let first = seed();
    for seed in first..first + extent(6, 300) {
        println!("seed {seed}");
        lockstep(seed, 360);
    }
}

/// After a large transaction, whose journal does not stay in memory as a whole, SQLite rolls back from the journal.
#[test]
fn a_large_journal_rolls_back() {
    let mut pair = Pair::new();
    pair.both(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b); CREATE TABLE x.t(a INTEGER PRIMARY KEY, b); PRAGMA cache_size=10",
    );
    pair.both("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO t SELECT i, zeroblob(3000) FROM n");
    for mode in ["DELETE", "PERSIST"] {
        pair.both(&format!("PRAGMA journal_mode={mode}; PRAGMA locking_mode=EXCLUSIVE"));
        pair.both("BEGIN; UPDATE t SET b = CAST(replace(hex(b), '0', 'x') AS BLOB); SAVEPOINT s; DELETE FROM t WHERE a > 9; ROLLBACK TO s; SELECT count(*), sum(length(b)) FROM t; ROLLBACK");
        pair.both("SELECT count(*), sum(length(b)), sum(b = zeroblob(3000)) FROM t; PRAGMA integrity_check");
    }
    pair.reopen();
}
