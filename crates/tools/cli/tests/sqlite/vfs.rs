//! Other processes, journals that others left, files that were replaced, pragmas, threads, and the order of calls.

use crate::driver::{Answer, Driver, extension, plain, program, static_program, uri};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use untorn_testkit::{extent, is_root, skipped};

const BUSY: i32 = 5;
const IO_ERROR: i32 = 10;
const CANNOT_OPEN: i32 = 14;

/// A directory with a database `a.db` that has the rows 1 and 2, and the program that has it open.
fn database() -> (tempfile::TempDir, Driver) {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)");
    (dir, driver)
}

fn rows(dir: &Path) -> String {
    plain(dir, "a.db", "SELECT group_concat(a) FROM t").ok()
}

#[track_caller]
fn is(answer: &Answer, code: i32) {
    assert_eq!(answer.code & 255, code, "{answer:?}");
}

#[test]
fn others_wait_while_a_process_has_the_database() {
    let (dir, mut driver) = database();
    is(&plain(dir.path(), "a.db", "SELECT * FROM t"), BUSY);
    let mut other = Driver::start();
    other.open(0, dir.path(), "a.db");
    is(&other.tell("0 SELECT * FROM t"), BUSY);
    // The process keeps it when its last connection closes.
    driver.tell("close 0").ok();
    is(&plain(dir.path(), "a.db", "SELECT * FROM t"), BUSY);
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("SELECT group_concat(a) FROM t"), "1,2");
    assert_eq!(driver.sql("BEGIN; SELECT 1 FROM t LIMIT 1; PRAGMA untorn_release; COMMIT"), "1,busy");
    assert_eq!(driver.sql("PRAGMA untorn_release"), "released");
    assert_eq!(rows(dir.path()), "1,2");
    assert_eq!(other.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    is(&driver.tell("0 SELECT * FROM t"), BUSY);
    other.end();
    assert_eq!(rows(dir.path()), "1,2,3");
    assert!(!dir.path().join("a.db-journal").exists());
    assert_eq!(driver.sql("SELECT group_concat(a) FROM t"), "1,2,3");
}

#[test]
fn journal_modes_that_need_the_disk_are_answered() {
    let (_dir, mut driver) = database();
    assert_eq!(
        driver.sql("PRAGMA journal_mode=WAL; PRAGMA journal_mode=OFF; PRAGMA journal_mode"),
        "delete,delete,delete"
    );
    assert_eq!(
        driver.sql("PRAGMA journal_mode=PERSIST; PRAGMA journal_mode=wal; PRAGMA main.journal_mode=off"),
        "persist,persist,persist"
    );
    assert_eq!(driver.sql("BEGIN; DELETE FROM t; ROLLBACK; SELECT count(*) FROM t"), "2");
    assert_eq!(
        driver.sql("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; INSERT INTO t VALUES (3)"),
        "exclusive,persist"
    );
}

#[test]
fn a_database_in_wal_mode_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    plain(dir.path(), "a.db", "PRAGMA journal_mode=WAL; CREATE TABLE t(a)").ok();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    is(&driver.tell("0 SELECT * FROM t"), CANNOT_OPEN);
    let why = driver.sql("PRAGMA untorn_error");
    assert!(why.contains("WAL mode") && why.contains("PRAGMA journal_mode=DELETE"), "{why}");
    plain(dir.path(), "a.db", "PRAGMA journal_mode=DELETE").ok();
    assert_eq!(driver.sql("INSERT INTO t VALUES (1); SELECT * FROM t"), "1");
}

/// A plain SQLite is killed in a transaction whose pages have reached the database.
#[test]
fn a_hot_journal_of_plain_sqlite_is_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    plain(dir.path(), "a.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    let mut killed = Driver::plain();
    killed.tell(&format!("open 0 {}", dir.path().join("a.db").display())).ok();
    killed.sql("PRAGMA cache_size=2; BEGIN; UPDATE t SET a = 7");
    killed.sql("CREATE TABLE more(b); INSERT INTO more SELECT zeroblob(50000) FROM t");
    killed.kill();
    assert!(fs::metadata(dir.path().join("a.db-journal")).unwrap().len() > 512, "the test needs a hot journal");
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(
        driver.sql("SELECT group_concat(a) FROM t; SELECT name FROM sqlite_master; PRAGMA integrity_check"),
        "1,2,t,ok"
    );
    driver.sql("INSERT INTO t VALUES (3)");
    driver.end();
    assert_eq!(rows(dir.path()), "1,2,3");
}

#[test]
fn a_journal_that_was_kept_makes_way_for_the_marker() {
    for mode in ["PERSIST", "TRUNCATE"] {
        let dir = tempfile::tempdir().unwrap();
        plain(dir.path(), "a.db", &format!("PRAGMA journal_mode={mode}; CREATE TABLE t(a); INSERT INTO t VALUES (1)"))
            .ok();
        assert!(dir.path().join("a.db-journal").is_file());
        let mut driver = Driver::start();
        driver.open(0, dir.path(), "a.db");
        assert_eq!(driver.sql("INSERT INTO t VALUES (2); SELECT count(*) FROM t"), "2");
        assert!(dir.path().join("a.db-journal").is_dir());
        driver.end();
        assert_eq!(rows(dir.path()), "1,2");
    }
}

/// Databases of two stores, or one of another VFS, cannot be in one commit: they are refused, and nothing is half done.
#[test]
fn mixed_stores_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql(&format!("ATTACH '{}' AS b", uri(dir.path(), "b.db")));
    driver.sql(&format!("ATTACH 'file:{}?vfs=unix' AS c", dir.path().join("c.db").display()));
    driver.sql("CREATE TABLE main.t(a); CREATE TABLE b.t(a); CREATE TABLE c.t(a)");
    driver.sql("BEGIN; INSERT INTO main.t VALUES (1)");
    is(&driver.tell("0 INSERT INTO b.t VALUES (1)"), IO_ERROR);
    assert!(driver.sql("PRAGMA untorn_error").contains("store=DIR"));
    let _ = driver.tell("0 ROLLBACK");
    // With a database of another VFS, SQLite writes the name of that one's journal to the super-journal.
    is(&driver.tell("0 BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO c.t VALUES (1); COMMIT"), IO_ERROR);
    assert!(driver.sql("PRAGMA untorn_error").contains("store=DIR"));
    let _ = driver.tell("0 ROLLBACK");
    let count = "SELECT (SELECT count(*) FROM main.t) || (SELECT count(*) FROM b.t) || (SELECT count(*) FROM c.t)";
    assert_eq!(driver.sql(count), "000");
    // The other way round: the main database is plain.
    driver.tell(&format!("open 1 file:{}", dir.path().join("d.db").display())).ok();
    driver.tell(&format!("1 ATTACH '{}' AS b; CREATE TABLE t(a)", uri(dir.path(), "b.db"))).ok();
    is(&driver.tell("1 BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO b.t VALUES (1); COMMIT"), IO_ERROR);
    let _ = driver.tell("1 ROLLBACK");
    assert_eq!(driver.tell("1 SELECT (SELECT count(*) FROM main.t) || (SELECT count(*) FROM b.t)").ok(), "00");
    // Each alone can be written, also from the contents of another: ATTACH must not refuse it.
    driver.sql("INSERT INTO main.t VALUES (1); INSERT INTO b.t VALUES (1); INSERT INTO c.t VALUES (1)");
    driver.sql("INSERT INTO main.t SELECT a FROM b.t; INSERT INTO b.t SELECT a FROM c.t; BEGIN; SELECT * FROM main.t");
    driver.sql("INSERT INTO c.t SELECT a FROM b.t; COMMIT");
    assert_eq!(driver.sql(count), "223");
}

#[test]
fn the_store_is_the_one_that_is_named_or_that_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    fs::create_dir(place("inner")).unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), &format!("inner/a.db?store={}", dir.path().display()));
    driver.sql("CREATE TABLE t(a)");
    driver.open(1, dir.path(), "b.db");
    driver.tell("1 CREATE TABLE t(a)").ok();
    driver.open(2, dir.path(), "inner/c.db");
    driver.tell("2 CREATE TABLE t(a)").ok();
    assert!(place(".untorn").is_dir() && !place("b.db.untorn").exists() && place("inner/c.db.untorn").is_dir());
    let wrong =
        driver.tell(&format!("open 3 {}", uri(dir.path(), &format!("d.db?store={}", place("inner").display()))));
    is(&wrong, CANNOT_OPEN);
    let other =
        driver.tell(&format!("open 3 {}", uri(dir.path(), &format!("inner/a.db?store={}", place("inner").display()))));
    is(&other, CANNOT_OPEN);
}

#[test]
fn a_database_that_was_replaced_or_removed_is_noticed() {
    let (dir, mut driver) = database();
    let path = dir.path().join("a.db");
    // In use: the connection must not write to a file that nobody can find.
    fs::rename(&path, dir.path().join("old.db")).unwrap();
    let answer = driver.tell("0 INSERT INTO t VALUES (3)");
    assert_ne!(answer.code, 0);
    fs::rename(dir.path().join("old.db"), &path).unwrap();
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    // Closed: the name is free.
    driver.sql("PRAGMA untorn_release");
    driver.tell("close 0").ok();
    fs::remove_file(&path).unwrap();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (9); SELECT a FROM t"), "9");
    driver.end();
    assert_eq!(rows(dir.path()), "9");
}

/// In a store with other databases, the old file must be forgotten.
#[test]
fn a_database_of_a_store_that_was_removed_can_be_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("b.db");
    let name = |name: &str| format!("{name}?store={}", dir.path().display());
    let mut driver = Driver::start();
    driver.open(0, dir.path(), &name("a.db"));
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    for rows in 1..4 {
        driver.sql(&format!("VACUUM INTO '{}'", uri(dir.path(), &name("b.db"))));
        driver.open(1, dir.path(), &name("b.db"));
        assert_eq!(driver.tell("1 SELECT count(*) FROM t").ok(), rows.to_string());
        driver.tell("close 1").ok();
        fs::remove_file(&copy).unwrap();
        driver.sql("INSERT INTO t VALUES (1)");
    }
    driver.end();
}

/// The store's directory is removed and made again by this program, which keeps stores open.
#[test]
fn a_store_that_was_removed_can_be_made_again() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("store");
    let name = format!("a.db?store={}", dir.display());
    let mut driver = Driver::start();
    for n in 0..3 {
        fs::create_dir(&dir).unwrap();
        driver.open(0, &dir, &name);
        assert_eq!(
            driver.sql(&format!("CREATE TABLE t(a); INSERT INTO t VALUES ({n}); SELECT a FROM t")),
            n.to_string()
        );
        driver.tell("close 0").ok();
        if n < 2 {
            fs::remove_dir_all(&dir).unwrap();
        }
    }
    driver.end();
    assert_eq!(rows(&dir), "2");
}

/// SQLite's shell has a log, and its parts are gone when the extension closes stores at the exit.
#[test]
fn nothing_is_logged_at_the_exit() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    let script = format!(
        ".load {}\n.open {}\nCREATE TABLE t(a);\n.shell rm -r {}\n",
        extension(&[]).display(),
        uri(&store, &format!("a.db?store={}", store.display())),
        store.display()
    );
    let mut shell = Command::new("sqlite3").stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let status = shell.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn the_page_size_is_known_before_the_first_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    driver.sql("PRAGMA page_size=512; CREATE TABLE t(a)");
    driver.open(1, dir.path(), "a.db");
    assert_eq!(driver.tell("1 PRAGMA page_size").ok(), "512");
    driver.end();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("PRAGMA page_size"), "512");
    driver.end();
}

#[test]
fn a_connection_without_locks_is_refused() {
    let (dir, mut driver) = database();
    for without in ["a.db?nolock=1", "a.db?immutable=1"] {
        is(&driver.tell(&format!("open 1 {}", uri(dir.path(), without))), CANNOT_OPEN);
        let why = driver.sql("PRAGMA untorn_error");
        assert!(why.contains("without nolock=1"), "{why}");
        driver.tell("close 1").ok();
    }
    // For reading, beside the owner.
    for without in ["a.db?mode=ro&nolock=1", "a.db?mode=ro&immutable=1"] {
        let mut reader = Driver::start();
        is(&reader.tell(&format!("open 0 {}", uri(dir.path(), without))), CANNOT_OPEN);
    }
}

#[test]
fn a_directory_that_was_made_again_has_a_new_database() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    let mut driver = Driver::start();
    for value in ["1", "2"] {
        fs::create_dir(&inner).unwrap();
        driver.open(0, &inner, "a.db");
        driver.sql(&format!("CREATE TABLE t(a); INSERT INTO t VALUES ({value})"));
        assert_eq!(driver.sql("SELECT a FROM t"), value);
        driver.tell("close 0").ok();
        fs::remove_dir_all(&inner).unwrap();
    }
}

#[test]
fn a_read_only_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    plain(dir.path(), "a.db", "CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").ok();
    fs::set_permissions(dir.path().join("a.db"), fs::Permissions::from_mode(0o444)).unwrap();
    if is_root() {
        return skipped("root may write every file");
    }
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "2");
    is(&driver.tell("0 INSERT INTO t VALUES (3)"), 8);
    assert_eq!(rows(dir.path()), "1,2");
}

#[test]
fn a_connection_for_reading_shares_the_database() {
    let (dir, mut driver) = database();
    driver.open(1, dir.path(), "a.db?mode=ro");
    driver.sql("INSERT INTO t VALUES (3)");
    assert_eq!(driver.tell("1 SELECT count(*) FROM t").ok(), "3");
    is(&driver.tell("1 INSERT INTO t VALUES (4)"), 8);
}

#[test]
fn a_forked_child_has_no_part_in_it() {
    let (dir, mut driver) = database();
    is(&driver.tell("fork 0 SELECT * FROM t"), IO_ERROR);
    // One that the child opens itself waits for the parent, as that of another process.
    let own = format!("ATTACH '{}' AS own; SELECT * FROM own.t", uri(dir.path(), "a.db"));
    driver.tell("open 1 :memory:").ok();
    is(&driver.tell(&format!("fork 1 {own}")), BUSY);
    assert_eq!(driver.sql("PRAGMA untorn_release"), "released");
    assert_eq!(driver.tell(&format!("fork 1 {own}")).ok(), "1,2");
    // The program has waited for the child when it answers again.
    driver.tell("1 SELECT 1").ok();
    is(&plain(dir.path(), "a.db", "SELECT * FROM t"), 0);
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    driver.end();
    assert_eq!(rows(dir.path()), "1,2,3");
}

#[test]
fn the_vfs_comes_back_after_a_shutdown() {
    let (dir, mut driver) = database();
    driver.tell("close 0").ok();
    driver.tell("shutdown").ok();
    driver.tell("load").ok();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
}

#[test]
fn threads_write_the_same_database() {
    // With PERSIST, all look at the journal that one of them writes.
    for (of, parameter, mode) in [("a.db", "", "DELETE"), ("b.db", "", "PERSIST"), ("c.db", "&cache=shared", "DELETE")]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = Driver::start();
        for at in 0..4 {
            driver.tell(&format!("open {at} {}{parameter}", uri(dir.path(), of))).ok();
            driver.tell(&format!("{at} PRAGMA journal_mode={mode}")).ok();
        }
        driver.sql(
            "CREATE TABLE account(id INTEGER PRIMARY KEY, has INT); INSERT INTO account VALUES (1, 0), (2, 0), (3, 0)",
        );
        let rounds = extent(40, 1000);
        // With a shared cache, a table is locked at once, without the busy handler: one thread.
        let threads = if parameter.is_empty() { 4 } else { 1 };
        driver.tell(&format!("threads {threads} {rounds}")).ok();
        let sums =
            "SELECT sum(has) FROM account WHERE id < 3; SELECT has FROM account WHERE id = 3; PRAGMA integrity_check";
        assert_eq!(driver.sql(sums), format!("0,{},ok", threads * rounds));
    }
}

#[test]
fn the_backup_interface_copies_both_ways() {
    let (dir, mut driver) = database();
    driver.tell("open 1 :memory:").ok();
    driver.tell("backup 1 0").ok();
    assert_eq!(driver.tell("1 SELECT count(*) FROM t; INSERT INTO t VALUES (3)").ok(), "2");
    driver.open(2, dir.path(), "b.db");
    driver.tell("backup 2 1").ok();
    assert_eq!(driver.tell("2 SELECT count(*) FROM t; PRAGMA integrity_check").ok(), "3,ok");
    driver.sql(&format!("VACUUM INTO '{}'", dir.path().join("c.db").display()));
    assert_eq!(
        driver.tell(&format!("2 ATTACH '{}' AS c; SELECT count(*) FROM c.t", uri(dir.path(), "c.db"))).ok(),
        "2"
    );
}

/// An application that has SQLite and the VFS in it needs no extension.
#[test]
fn the_vfs_is_linked_into_a_program() {
    let program = static_program();
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::from(&mut Command::new(&program));
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)");
    assert!(driver.sql("PRAGMA untorn_status").contains("\"owned\": true"));
    is(&plain(dir.path(), "a.db", "SELECT * FROM t"), BUSY);
    driver.tell("close 0").ok();
    if std::env::var_os("UNTORN_TEST_SQLITE").is_some() {
        // SQLite starts it again.
        driver.tell("shutdown").ok();
    }
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t"), "3");
    driver.kill();
    let mut driver = Driver::from(&mut Command::new(&program));
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("SELECT count(*) FROM t"), "3");
    driver.end();
    assert_eq!(rows(dir.path()), "1,2,3");
}

/// The sqlite3 shell loads the extension by its name.
#[test]
fn the_shell_loads_it() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(
        &script,
        format!(
            ".load {}\n.open {}\nCREATE TABLE t(a); INSERT INTO t VALUES (1);\n.quit\n",
            extension(&[]).with_extension("").display(),
            uri(dir.path(), "a.db")
        ),
    )
    .unwrap();
    let output = Command::new("sqlite3").arg(":memory:").stdin(File::open(&script).unwrap()).output();
    let Ok(output) = output else { return skipped("there is no sqlite3 here") };
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(rows(dir.path()), "1");
    assert!(dir.path().join("a.db.untorn").is_dir());
}

#[test]
fn python_loads_it() {
    let dir = tempfile::tempdir().unwrap();
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let asked = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
        Command::new(python).args(["-c", asked]).output().is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else { return skipped("no Python here can load extensions of SQLite") };
    let script = "
import sqlite3, sys
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension(sys.argv[1])
db = sqlite3.connect(sys.argv[2], uri=True)
db.execute('PRAGMA journal_mode=WAL')
with db:
    db.execute('CREATE TABLE t(a)')
    db.execute('INSERT INTO t VALUES (1)')
assert db.execute('PRAGMA untorn_error').fetchone() == ('no error',)
";
    let output =
        Command::new(python).args(["-c", script]).arg(extension(&[])).arg(uri(dir.path(), "a.db")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(rows(dir.path()), "1");
}

/// SQLite's calls in a script on `a.db` and `b.db`, by the build that prints them.
fn trace(dir: &Path, statements: &[&str]) -> Vec<String> {
    let open = format!("open 0 {}", uri(dir, &format!("a.db?store={}", dir.display())));
    trace_of(dir, &open, statements)
}

fn trace_of(dir: &Path, open: &str, statements: &[&str]) -> Vec<String> {
    let b = uri(dir, &format!("b.db?store={}", dir.display()));
    let mut script = format!("{open}\n0 ATTACH '{b}' AS b; CREATE TABLE main.t(a); CREATE TABLE b.t(a)\n");
    for statement in statements {
        script += &format!("0 {statement}\n");
    }
    fs::write(dir.join("script"), script).unwrap();
    let mut command = Command::new(program());
    command.arg(extension(&["-DUNTORN_SQLITE_TRACE"])).stdin(File::open(dir.join("script")).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("trace ")).map(str::to_owned).collect()
}

/// The calls of the last statement: from its first RESERVED lock.
fn last(calls: &[String]) -> Vec<&str> {
    let start = calls.iter().rposition(|call| call == "xUnlock 0").expect("an end");
    let before = calls[..start].iter().rposition(|call| call.starts_with("xLock 2")).expect("a transaction");
    calls[before..=start].iter().map(String::as_str).collect()
}

/// The rules of the commit rest on the order of SQLite's calls, which is code and not documentation.
#[test]
fn sqlite_commits_in_the_order_that_the_commit_rests_on() {
    for mode in ["DELETE", "TRUNCATE", "PERSIST", "MEMORY"] {
        for synchronous in ["OFF", "NORMAL", "FULL", "EXTRA"] {
            let dir = tempfile::tempdir().unwrap();
            let set = format!(
                "PRAGMA journal_mode={mode}; PRAGMA synchronous={synchronous}; PRAGMA b.synchronous={synchronous}"
            );
            let calls = trace(dir.path(), &[&set, "INSERT INTO t VALUES (1)"]);
            let one = last(&calls);
            let end = ["PHASETWO", "commit of 1", "xUnlock 1", "xUnlock 0"];
            assert!(one.ends_with(&end), "{mode} {synchronous}: {one:?}");
            let at = |call: &str| one.iter().position(|&other| other == call).expect("a call");
            assert!(at("xLock 4: 0") < at("xWrite") && at("xWrite") < at("SYNC -"), "{one:?}");
            assert_eq!(one.contains(&"xSync"), synchronous != "OFF", "{one:?}");
            let dir = tempfile::tempdir().unwrap();
            let many =
                trace(dir.path(), &[&set, "BEGIN; INSERT INTO t VALUES (1); INSERT INTO b.t VALUES (1); COMMIT"]);
            let start = many.iter().rposition(|call| call.starts_with("xLock 2")).unwrap();
            let many = &many[start..];
            let (first, at) = (
                many.iter().position(|call| call == "PHASETWO").unwrap(),
                many.iter().rposition(|call| call.starts_with("SYNC")).unwrap(),
            );
            assert!(at < first, "all are synced before one commits: {many:?}");
            let commits: Vec<_> = many.iter().filter(|call| call.starts_with("commit")).collect();
            assert_eq!(commits, ["commit of 2"], "{mode} {synchronous}: {many:?}");
            let commit = many.iter().position(|call| call == "xDelete super 1");
            assert_eq!(commit.is_some(), mode != "MEMORY" && synchronous != "OFF", "{mode} {synchronous}: {many:?}");
            assert!(commit.is_none_or(|commit| at < commit && commit < first), "{many:?}");
        }
        // A main database in memory: SQLite makes no super-journal.
        let dir = tempfile::tempdir().unwrap();
        let c = uri(dir.path(), &format!("c.db?store={}", dir.path().display()));
        let set = format!(
            "ATTACH '{c}' AS c; CREATE TABLE c.t(a); PRAGMA b.journal_mode={mode}; PRAGMA c.journal_mode={mode}"
        );
        let many = "BEGIN; INSERT INTO b.t VALUES (1); INSERT INTO c.t VALUES (1); COMMIT";
        let calls = trace_of(dir.path(), "open 0 file::memory:", &[&set, many]);
        let is_commit = |call: &&String| call.starts_with("commit");
        assert_eq!(calls.iter().rfind(is_commit).map(String::as_str), Some("commit of 2"), "{mode}: {calls:?}");
        // A rollback of pages that were written never commits.
        let dir = tempfile::tempdir().unwrap();
        let set = format!("PRAGMA journal_mode={mode}; PRAGMA cache_size=2");
        let calls = trace(dir.path(), &[&set, "BEGIN; INSERT INTO t SELECT zeroblob(90000); ROLLBACK"]);
        let back = last(&calls);
        assert!(
            back.contains(&"xWrite") && back.contains(&"SYNC -") && !back.contains(&"PHASETWO"),
            "{mode}: {back:?}"
        );
    }
}

/// The extension in a program under the preloaded library: two copies of Untorn.
#[test]
fn a_preloaded_library_leaves_the_databases_of_the_extension_alone() {
    let dir = tempfile::tempdir().unwrap();
    let start = |pattern: &str| {
        let mut command = Command::new(program());
        command.arg(extension(&[])).env("LD_PRELOAD", untorn_testkit::preload_library());
        Driver::from(command.env("UNTORN_MANAGE", pattern))
    };
    let mut driver = start("*.txt");
    driver.open(0, dir.path(), "a.db");
    driver.sql("CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    driver.kill();
    // A pattern that names the database: one copy has it, and the message says which program that is.
    let mut driver = start("*.db");
    driver.open(0, dir.path(), "a.db");
    let refused = driver.tell("0 INSERT INTO t VALUES (2)");
    assert_ne!(refused.code, 0, "{refused:?}");
    let why = driver.sql("PRAGMA untorn_error");
    assert!(why.contains("this process itself") && why.contains("another copy of the library"), "{why}");
    driver.end();
    let mut driver = Driver::start();
    driver.open(0, dir.path(), "a.db");
    assert_eq!(driver.sql("SELECT a FROM t"), "1");
}
