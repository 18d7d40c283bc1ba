//! `untorn log` and `untorn diff`.

mod common;

use common::*;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, SystemTime};
use untorn::{Store, StoreOptions};

fn store(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

fn write(store: &Store, name: &str, bytes: &[u8], at: u64) -> u64 {
    let file = store.open_or_create_file(name).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.commit().unwrap();
    store.status().lsn
}

fn ok(arguments: &[&str], at: &Path) -> String {
    let run = run(arguments, at);
    assert_eq!(run.code, Some(0), "{arguments:?}: {}{}", run.out, run.err);
    run.out
}

fn diff(dir: &Path, arguments: &[&str]) -> Run {
    untorn().arg("diff").arg(dir).args(arguments).output().unwrap().into()
}

fn ok_diff(dir: &Path, arguments: &[&str]) -> String {
    let run = diff(dir, arguments);
    assert_eq!(run.code, Some(0), "{arguments:?}: {}{}", run.out, run.err);
    run.out
}

fn lines_of_json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_log_lists_commits_with_time_files_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let before = SystemTime::now() - Duration::from_secs(2);
    let first = write(&store, "a", b"hello", 0);
    let mut txn = store.begin();
    txn.create("b", 0o644).unwrap().write_all_at(&[1; 100], 0).unwrap();
    let a = store.open_file("a").unwrap();
    txn.add(&a).unwrap();
    a.write_all_at(b"HE", 0).unwrap();
    txn.commit().unwrap();
    let second = store.status().lsn;
    // Beside its owner, and after it.
    for n in 0..2 {
        let all = lines_of_json(&ok(&["log", "--json"], dir.path()));
        assert_eq!(
            all.iter().map(|commit| commit["lsn"].as_u64().unwrap()).collect::<Vec<_>>(),
            [first - 1, first, second]
        );
        assert_eq!(all.iter().map(|commit| commit["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 5, 102]);
        let names: Vec<_> =
            all[2]["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        let time = humantime::parse_rfc3339(all[0]["time"].as_str().unwrap()).unwrap();
        assert!(before <= time && time <= SystemTime::now(), "{:?}", all[0]);
        let text = ok(&["log"], dir.path());
        assert!(
            text.lines().count() == 3 && text.contains(&format!("#{second}  20")) && text.contains("102 bytes  a  b"),
            "{text}"
        );
        assert_eq!(ok(&["log", "-n", "1"], dir.path()), text.split_inclusive('\n').next_back().unwrap());
        assert_eq!(
            ok(&["log", "--from", &first.to_string()], dir.path()),
            text.split_inclusive('\n').next_back().unwrap()
        );
        assert_eq!(ok(&["log", "--from", &second.to_string()], dir.path()), "");
        if n == 0 {
            let later = run(&["log", "--from", "1000"], dir.path());
            assert!(later.code == Some(1) && later.err.contains("has no commit 1000 yet"), "{}", later.err);
        }
    }
    store.close().unwrap();
    assert_eq!(ok(&["log"], dir.path()).lines().count(), 3, "a closed journal keeps its last commits");
}

#[test]
fn a_diff_shows_the_net_effect() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for name in ["changed", "renamed", "replaced", "gone", "cut"] {
        write(&store, name, &[7; 1000], 0);
    }
    store.checkpoint().unwrap();
    let start = store.status().lsn;
    write(&store, "changed", &[1; 10], 0);
    write(&store, "changed", &[1; 10], 10);
    let middle = write(&store, "changed", &[1; 10], 500);
    let mut txn = store.begin();
    txn.rename("renamed", "replaced").unwrap();
    txn.unlink("gone").unwrap();
    txn.mkdir("dir", 0o755).unwrap();
    txn.create("dir/new", 0o600).unwrap().write_all_at(b"new", 0).unwrap();
    txn.commit().unwrap();
    let cut = store.open_file("cut").unwrap();
    cut.set_len(5).unwrap();
    cut.commit().unwrap();
    let mut txn = store.begin();
    txn.create("brief", 0o600).unwrap().write_all_at(b"x", 0).unwrap();
    txn.commit().unwrap();
    let mut txn = store.begin();
    txn.unlink("brief").unwrap();
    txn.chmod("changed", 0o600).unwrap();
    txn.commit().unwrap();
    let last = store.status().lsn;
    let text = ok_diff(dir.path(), &[&format!("{start}..")]);
    assert_eq!(
        text,
        "gone     gone\n\
         gone     replaced  (another one has its name)\n\
         changed  changed  wrote 30 bytes: 0-20 500-510, mode 0600\n\
         changed  cut  has 5 bytes\n\
         new      dir/  mode 0755\n\
         new      dir/new  wrote 3 bytes: 0-3, has 3 bytes, mode 0600\n\
         renamed  renamed to replaced\n"
    );
    assert_eq!(ok_diff(dir.path(), &[&format!("{start}..{last}")]), text);
    let part = ok_diff(dir.path(), &[&format!("{start}..{middle}")]);
    assert_eq!(part, "changed  changed  wrote 30 bytes: 0-20 500-510\n");
    assert_eq!(ok_diff(dir.path(), &[&format!("{last}..")]), "");
    let value: Value = serde_json::from_str(&ok_diff(dir.path(), &["--json", &format!("{start}..")])).unwrap();
    assert_eq!(value["gone"].as_array().unwrap().len(), 2);
    assert_eq!(value["changed"][0]["ranges"], serde_json::json!([[0, 20], [500, 510]]));
    assert_eq!((&value["changed"][4]["kind"], &value["changed"][4]["before"]), (&"renamed".into(), &"renamed".into()));
}

#[test]
fn a_diff_of_commits_that_are_not_there_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let first = write(&store, "a", b"one", 0);
    // Until the journal takes the place of the first commit again.
    for n in 0..20 {
        write(&store, "a", &vec![n; 1 << 20], 0);
        store.checkpoint().unwrap();
    }
    let last = write(&store, "a", b"three", 0);
    for (commits, why) in [
        (format!("0..{last}"), "were applied"),
        (format!("{last}..{}", last + 5), "has no commit"),
        (format!("{}..", last + 5), "has no commit"),
        (format!("{last}..{first}"), "comes before"),
        ("x..y".into(), "expected A..B"),
        (last.to_string(), "expected A..B"),
    ] {
        let run = diff(dir.path(), &[&commits]);
        assert!(run.code != Some(0) && run.err.contains(why), "{commits}: {}{}", run.out, run.err);
    }
}

#[test]
fn files_that_take_over_a_name_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    write(&store, "a", &[7; 1000], 0);
    write(&store, "y", &[7; 10], 0);
    let start = store.status().lsn;
    let old = store.open_file("a").unwrap();
    let mut txn = store.begin();
    txn.add(&old).unwrap();
    old.write_all_at(&[1; 2], 50).unwrap();
    txn.rename("a", "q").unwrap();
    txn.create("a", 0o600).unwrap().write_all_at(&[2; 100], 0).unwrap();
    txn.commit().unwrap();
    for (from, to) in [("y", "z"), ("z", "y")] {
        let mut txn = store.begin();
        txn.rename(from, to).unwrap();
        txn.commit().unwrap();
    }
    assert_eq!(
        ok_diff(dir.path(), &[&format!("{start}..")]),
        "new      a  wrote 100 bytes: 0-100, has 100 bytes, mode 0600\n\
         renamed  a to q  wrote 2 bytes: 50-52\n"
    );
    let last = store.status().lsn;
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.create("a", 0o644).unwrap().write_all_at(b"again", 0).unwrap();
    txn.commit().unwrap();
    assert_eq!(
        ok_diff(dir.path(), &[&format!("{last}..")]),
        "gone     a  (another one has its name)\n\
         new      a  wrote 5 bytes: 0-5, has 5 bytes, mode 0644\n"
    );
}

#[test]
fn many_ranges_are_listed_soon() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    write(&store, "a", &[7; 320_000], 0);
    let (file, start) = (store.open_file("a").unwrap(), store.status().lsn);
    for n in 0..20_000 {
        file.write_all_at(&[1; 8], n * 16).unwrap();
    }
    file.commit().unwrap();
    let text = ok_diff(dir.path(), &[&format!("{start}..")]);
    assert!(
        text.starts_with("changed  a  wrote 160000 bytes: 0-8 16-24") && text.contains(" and 19992 more"),
        "{text}"
    );
}
