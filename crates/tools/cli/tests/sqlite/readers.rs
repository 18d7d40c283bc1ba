//! Reading in other processes, and a second process that wants to write.

use crate::driver::{Driver, plain, uri};
use std::fs;
use std::path::Path;
use untorn_testkit::is_root;

const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;
const READ_FAILED: i32 = 266;

/// A process that has the database `a.db` open, with the rows 1 and 2.
fn owner(dir: &Path, name: &str) -> Driver {
    let mut owner = Driver::start();
    owner.open(0, dir, name);
    owner.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)");
    owner
}

fn reader(dir: &Path, name: &str) -> Driver {
    let mut reader = Driver::start();
    reader.tell(&format!("open 0 {}&mode=ro", uri(dir, name))).ok();
    reader
}

const ROWS: &str = "SELECT group_concat(a) FROM t";

#[test]
fn a_reader_sees_each_commit_and_blocks_nobody() {
    for in_store in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        if in_store {
            fs::create_dir(dir.path().join(".untorn")).unwrap();
        }
        let mut owner = owner(dir.path(), "a.db");
        let mut reader = reader(dir.path(), "a.db");
        assert_eq!(reader.sql(ROWS), "1,2");
        assert_eq!(reader.tell("0 INSERT INTO t VALUES (9)").code & 255, READ_ONLY);
        // A transaction is one commit, whatever the owner does.
        assert_eq!(reader.sql(&format!("BEGIN; {ROWS}")), "1,2");
        for value in 3..40 {
            owner.sql(&format!("INSERT INTO t VALUES ({value}); UPDATE t SET a = a WHERE a < 3"));
        }
        owner.sql("DELETE FROM t WHERE a > 3; VACUUM");
        assert_eq!(reader.sql(&format!("{ROWS}; SELECT count(*) FROM t; PRAGMA integrity_check")), "1,2,2,ok");
        assert_eq!(reader.sql(&format!("COMMIT; {ROWS}; PRAGMA integrity_check")), "1,2,3,ok");
        // The owner's transaction is not visible, and does not keep readers out.
        owner.sql("BEGIN EXCLUSIVE; INSERT INTO t VALUES (4); PRAGMA cache_spill=1");
        assert_eq!(reader.sql(ROWS), "1,2,3");
        owner.sql("COMMIT");
        assert_eq!(reader.sql(ROWS), "1,2,3,4");
        // Released, killed, and without an owner.
        assert_eq!(owner.sql("PRAGMA untorn_release"), "released");
        assert_eq!(reader.sql(ROWS), "1,2,3,4");
        owner.sql("INSERT INTO t VALUES (5)");
        owner.kill();
        assert_eq!(reader.sql(&format!("{ROWS}; PRAGMA integrity_check")), "1,2,3,4,5,ok");
        assert_eq!(plain(dir.path(), "a.db", ROWS).code & 255, 10);
        let mut next = Driver::start();
        next.open(0, dir.path(), "a.db");
        next.sql("INSERT INTO t VALUES (6)");
        assert_eq!(reader.sql(ROWS), "1,2,3,4,5,6");
        next.end();
        // An ordinary file again: plain programs and the reader use SQLite's locks.
        assert_eq!(reader.sql(&format!("BEGIN; {ROWS}")), "1,2,3,4,5,6");
        assert_eq!(plain(dir.path(), "a.db", "INSERT INTO t VALUES (7)").code & 255, BUSY);
        reader.sql("COMMIT");
        plain(dir.path(), "a.db", "INSERT INTO t VALUES (7)").ok();
        assert_eq!(reader.sql(ROWS), "1,2,3,4,5,6,7");
        reader.end();
    }
}

/// A read transaction over two databases of a store sees one commit of both.
#[test]
fn a_transaction_over_two_databases_is_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| format!("{name}?store={}", dir.path().display());
    let mut owner = owner(dir.path(), &of("a.db"));
    owner.sql(&format!(
        "ATTACH '{}' AS b; CREATE TABLE b.t(a); INSERT INTO b.t VALUES (1), (2)",
        uri(dir.path(), &of("b.db"))
    ));
    let mut reader = reader(dir.path(), &of("a.db"));
    reader.sql(&format!("ATTACH '{}&mode=ro' AS b", uri(dir.path(), &of("b.db"))));
    for round in 0..20 {
        reader.sql("BEGIN; SELECT count(*) FROM main.t");
        owner.sql(&format!("BEGIN; UPDATE main.t SET a = {round}; UPDATE b.t SET a = {round}; COMMIT"));
        assert_eq!(reader.sql("SELECT (SELECT max(a) FROM main.t) = (SELECT max(a) FROM b.t); COMMIT"), "1");
    }
    owner.end();
    reader.end();
}

/// The owner releases the database during a read transaction, and a plain SQLite changes it.
#[test]
fn a_transaction_ends_when_a_plain_program_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = owner(dir.path(), "a.db");
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)";
    owner.sql(&format!("CREATE TABLE big(b); {fill} INSERT INTO big SELECT zeroblob(900) FROM n"));
    let mut reader = reader(dir.path(), "a.db");
    assert_eq!(reader.sql("PRAGMA cache_size=5; BEGIN; SELECT count(*) FROM t"), "2");
    owner.sql("PRAGMA untorn_release");
    plain(dir.path(), "a.db", "INSERT INTO t VALUES (3); UPDATE big SET b = zeroblob(901)").ok();
    let answer = reader.tell("0 SELECT sum(length(b)) FROM big");
    assert_eq!(answer.code, READ_FAILED, "{answer:?}");
    let why = reader.sql("PRAGMA untorn_error");
    assert!(why.contains("released"), "{why}");
    let _ = reader.tell("0 ROLLBACK");
    assert_eq!(reader.sql("SELECT sum(length(b)) FROM big; SELECT count(*) FROM t"), "450500,3");
}

/// A second process that writes waits with its busy handler, and learns who has the database.
#[test]
fn a_second_writer_learns_who_has_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = owner(dir.path(), "a.db");
    let mut second = Driver::start();
    second.open(0, dir.path(), "a.db");
    assert_eq!(second.tell("0 PRAGMA busy_timeout=20; INSERT INTO t VALUES (3)").code & 255, BUSY);
    let why = second.sql("PRAGMA untorn_error");
    assert!(why.contains(&format!("process {}", owner.child.id())), "{why}");
    owner.sql("PRAGMA untorn_release");
    assert_eq!(second.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    // A plain SQLite in a transaction is named, too.
    second.sql("PRAGMA untorn_release");
    let mut other = Driver::plain();
    other.tell(&format!("open 0 {}", dir.path().join("a.db").display())).ok();
    other.sql("BEGIN EXCLUSIVE");
    assert_eq!(second.tell("0 INSERT INTO t VALUES (4)").code & 255, BUSY);
    let why = second.sql("PRAGMA untorn_error");
    assert!(why.contains(&format!("process {} without", other.child.id())), "{why}");
}

/// A reader needs no right to write, and gets the newest commits of an owner that it may read.
#[test]
fn a_file_that_may_not_be_written_is_read_beside_its_owner() {
    if is_root() {
        return untorn_testkit::skipped("root may write every file");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut owner = owner(dir.path(), "a.db");
    let path = dir.path().join("a.db");
    let mut mode = fs::metadata(&path).unwrap().permissions();
    mode.set_readonly(true);
    fs::set_permissions(&path, mode).unwrap();
    owner.sql("INSERT INTO t VALUES (3)");
    let mut reader = Driver::start();
    reader.open(0, dir.path(), "a.db");
    assert_eq!(reader.sql(ROWS), "1,2,3");
    assert_eq!(reader.tell("0 INSERT INTO t VALUES (9)").code & 255, READ_ONLY);
}
