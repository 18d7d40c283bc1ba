//! Failure classes, as far as a running machine can show them: the commits that survive a kill, the flushes that a
//! commit costs, and reopening a store in the other class. Reboots and power cuts are in the crash laboratory.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use untorn::{FailureClass, Store, StoreOptions};

fn open(path: &std::path::Path, class: FailureClass) -> Store {
    StoreOptions::new().create(true).class(class).open(path).expect("open")
}

#[test]
fn class_process_survives_a_killed_process() {
    let dir = directory();
    for version in ["one", "two"] {
        let mut process = ChildProcess::start();
        process.ok(&["open", path_text(dir.path()), "class=process"]);
        process.ok(&["create", "a"]);
        process.ok(&["create", "b"]);
        process.commit("a", version);
        process.commit("b", version);
        process.ok(&["fill", "a", "uncommitted"]);
        process.kill();
        let store = open(dir.path(), FailureClass::Process);
        assert_same(&stored(&store, "a"), &text(version, "a"), "the last commit");
        assert_same(&stored(&store, "b"), &text(version, "b"), "the last commit");
    }
}

#[test]
fn a_crashed_store_recovers_in_the_other_class() {
    for (before, after) in [("process", FailureClass::Power), ("power", FailureClass::Process)] {
        let dir = directory();
        let mut process = ChildProcess::start();
        let options: &[&str] = if before == "process" { &["class=process"] } else { &[] };
        process.ok(&[&["open", path_text(dir.path())], options].concat());
        process.ok(&["create", "a"]);
        process.commit("a", "new");
        process.kill();
        let store = open(dir.path(), after);
        assert_eq!(store.status().class, after);
        assert_same(&stored(&store, "a"), &text("new", "a"), "the last commit");
        let file = store.open_file("a").unwrap();
        file.write_all_at(&text("newer", "a"), 0).unwrap();
        file.commit().unwrap();
        drop(file);
        store.close().unwrap();
        assert_same(&plain(dir.path().join("a")), &text("newer", "a"), "after closing");
    }
}

#[test]
fn a_store_changes_class_as_often_as_one_likes() {
    let dir = directory();
    for round in 0..6 {
        let class = if round % 2 == 0 { FailureClass::Process } else { FailureClass::Power };
        let store = open(dir.path(), class);
        assert_eq!(store.status().class, class);
        let file = store.open_or_create_file("a").unwrap();
        assert_eq!(file.append(&[round; 1000]).unwrap(), u64::from(round) * 1000);
        file.commit().unwrap();
        drop(file);
        store.close().unwrap();
    }
    let wanted: Vec<u8> = (0..6).flat_map(|round| [round; 1000]).collect();
    assert_same(&plain(dir.path().join("a")), &wanted, "all six commits");
}

/// The syncs that this many commits of one page cost, without the first commit of the opening.
fn syncs_of(commits: u64, class: FailureClass) -> u64 {
    let dir = directory();
    let store = open(dir.path(), class);
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.commit().unwrap();
    let before = store.status().syncs;
    for i in 0..commits {
        file.write_all_at(&[i as u8; 4096], 0).unwrap();
        file.commit().unwrap();
    }
    assert_eq!(store.status().checkpoints, 0, "so little needs no checkpoint");
    store.status().syncs - before
}

#[test]
fn a_commit_of_class_process_needs_no_flush() {
    assert_eq!(syncs_of(100, FailureClass::Process), 0);
}

#[test]
fn a_commit_of_class_power_is_one_flush() {
    let syncs = syncs_of(100, FailureClass::Power);
    assert!(syncs >= 100, "{syncs} syncs cannot have made 100 commits durable one by one");
    // An idle moment may have added a durable mark: on a slow machine, one per commit.
    assert!(syncs <= 200, "{syncs} syncs for 100 commits");
}
