//! The pragmas `untorn_*`.

use crate::driver::{Driver, extension, plain, program, uri};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use untorn_testkit::skipped;

fn start(dir: &Path, name: &str) -> Driver {
    let mut driver = Driver::start();
    driver.open(0, dir, name);
    driver.sql("CREATE TABLE t(a)");
    driver
}

#[track_caller]
fn status(driver: &mut Driver) -> Value {
    let text = driver.sql("PRAGMA untorn_status");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Python raises an error for a pragma that is answered without a text.
#[test]
fn each_pragma_answers_one_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = start(dir.path(), "a.db");
    for name in ["status", "checkpoint", "class", "class=power", "ticket", "wait", "wait=0", "error", "release"] {
        let answer = driver.tell(&format!("0 PRAGMA untorn_{name}"));
        assert!(answer.code == 0 && answer.rows.len() == 1 && answer.rows[0] != "NULL", "{name}: {answer:?}");
    }
    // SQLite answers nothing to a pragma that nobody knows.
    assert_eq!(driver.sql("PRAGMA untorn_other"), "");
}

#[test]
fn the_status_is_json() {
    let dir = tempfile::tempdir().unwrap();
    let name = "a\"\\\u{1}ü.db";
    let mut driver = Driver::start();
    let path = dir.path().join(name);
    let escaped = path.to_str().unwrap().replace('\u{1}', "%01");
    driver.tell(&format!("open 0 file:{escaped}?vfs=untorn")).ok();
    let before = status(&mut driver);
    assert_eq!((&before["owned"], &before["status"], &before["ticket"]), (&false.into(), &Value::Null, &0.into()));
    driver.sql("CREATE TABLE t(a)");
    let now = status(&mut driver);
    assert_eq!(now["database"], path.to_str().unwrap());
    assert_eq!((&now["own_store"], &now["owned"], &now["marked"]), (&true.into(), &true.into(), &true.into()));
    assert_eq!((&now["ticket"], &now["durable_ticket"], &now["uncommitted"]), (&1.into(), &1.into(), &false.into()));
    assert!(now["status"]["lsn"].as_u64().unwrap() >= 1, "{now}");
    assert_eq!((&now["class"], &now["status"]["class"]), (&"power".into(), &"power".into()));
    driver.sql("PRAGMA cache_size=2; BEGIN; INSERT INTO t SELECT zeroblob(90000)");
    assert_eq!(status(&mut driver)["uncommitted"], true);
    driver.sql("ROLLBACK");
    assert_eq!(status(&mut driver)["uncommitted"], false);
}

#[test]
fn a_checkpoint_brings_commits_into_the_data_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = start(dir.path(), "a.db");
    driver.sql("PRAGMA synchronous=OFF; INSERT INTO t VALUES (1)");
    let rows = |name: &str| {
        fs::copy(dir.path().join("a.db"), dir.path().join(name)).unwrap();
        plain(dir.path(), name, "SELECT count(*) FROM t").ok()
    };
    assert_eq!(rows("before.db"), "0");
    assert_eq!(driver.sql("PRAGMA untorn_checkpoint"), "done");
    assert_eq!(rows("after.db"), "1");
    // Also in a transaction, which stays uncommitted.
    assert_eq!(driver.sql("BEGIN; INSERT INTO t VALUES (2); PRAGMA untorn_checkpoint; ROLLBACK"), "done");
    assert_eq!(rows("last.db"), "1");
}

#[test]
fn the_class_is_set_between_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = start(dir.path(), "a.db");
    assert_eq!(
        driver.sql("PRAGMA untorn_class; PRAGMA untorn_class=Process; PRAGMA untorn_class"),
        "power,process,process"
    );
    driver.sql("INSERT INTO t VALUES (1)");
    assert_eq!(status(&mut driver)["status"]["class"], "process");
    let wrong = driver.tell("0 PRAGMA untorn_class=other");
    assert!(wrong.code == 1 && wrong.message.contains("power or process"), "{wrong:?}");
    let busy = driver.tell("0 BEGIN; SELECT * FROM t; PRAGMA untorn_class=power");
    assert!(busy.code == 1 && busy.message.contains("has a transaction"), "{busy:?}");
    driver.sql("COMMIT");
    // The end of the process does not take such a commit away.
    driver.kill();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("SELECT count(*) FROM t; PRAGMA untorn_class"), "1,power");
}

#[test]
fn tickets_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = start(dir.path(), "a.db");
    driver.open(1, dir.path(), "a.db");
    assert_eq!(driver.tell("1 PRAGMA untorn_ticket").ok(), "0");
    driver.tell("1 PRAGMA synchronous=OFF; INSERT INTO t VALUES (1)").ok();
    driver.tell("1 SELECT * FROM t; BEGIN; INSERT INTO t VALUES (2); ROLLBACK").ok();
    assert_eq!(driver.tell("1 PRAGMA untorn_ticket").ok(), "2");
    assert_eq!(driver.sql("PRAGMA untorn_ticket"), "1");
    let lsn: u64 = driver.sql("PRAGMA untorn_wait=2").parse().unwrap();
    let found = status(&mut driver);
    assert_eq!((&found["durable_ticket"], &found["last_ticket"]), (&2.into(), &2.into()));
    assert!(found["status"]["lsn"].as_u64().unwrap() >= lsn && lsn > 0, "{lsn}: {found}");
    for wrong in ["3", "-1", "'no'", "'2x'"] {
        let answer = driver.tell(&format!("0 PRAGMA untorn_wait={wrong}"));
        assert!(
            answer.code == 1 && answer.message.contains("commit") || answer.message.contains("untorn_ticket"),
            "{answer:?}"
        );
    }
    // Several databases are one commit, with one number.
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().display();
    driver.open(2, dir.path(), &format!("a.db?store={store}"));
    driver.tell(&format!("2 ATTACH '{}' AS b", uri(dir.path(), &format!("b.db?store={store}")))).ok();
    driver.tell("2 BEGIN; CREATE TABLE main.t(a); CREATE TABLE b.t(a); COMMIT").ok();
    assert_eq!(driver.tell("2 PRAGMA main.untorn_ticket; PRAGMA b.untorn_ticket").ok(), "1,1");
}

/// Rows whose ticket was waited for are there, whichever flush failed.
#[test]
fn a_ticket_of_a_failed_commit_is_an_error() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("there is no strace here");
    }
    let mut refused = 0;
    for n in (6..14).step_by(2) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null", "-e", &format!("inject=fdatasync:error=EIO:when={n}")]);
        let mut driver = Driver::from(command.arg(program()).arg(extension(&[])));
        driver.open(0, dir.path(), "a.db");
        let _ = driver.tell("0 PRAGMA synchronous=OFF; CREATE TABLE t(a)");
        let _ = driver.tell("0 CREATE TABLE IF NOT EXISTS t(a)");
        let mut kept = Vec::new();
        for value in 1..=12 {
            if driver.tell(&format!("0 INSERT INTO t VALUES ({value})")).code != 0 {
                continue;
            }
            let ticket = driver.sql("PRAGMA untorn_ticket");
            let waited = driver.tell(&format!("0 PRAGMA untorn_wait={ticket}"));
            match waited.code {
                0 => kept.push(value.to_string()),
                _ => {
                    assert!(waited.message.contains("failed"), "{waited:?}");
                    refused += 1;
                    // The store opens again, and the ticket stays refused.
                    let _ = driver.tell("0 SELECT * FROM t");
                    assert_eq!(driver.tell(&format!("0 PRAGMA untorn_wait={ticket}")).code, 1);
                }
            }
        }
        driver.end();
        // The flush that failed may have been one of closing.
        let mut driver = Driver::start();
        driver.open(0, dir.path(), "a.db");
        let rows = driver.tell("0 SELECT a FROM t").rows;
        assert!(kept.iter().all(|value| rows.contains(value)), "flush {n}: {kept:?} {rows:?}");
    }
    assert!(refused > 0, "no commit has met the failure");
}
