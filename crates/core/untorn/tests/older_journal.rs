//! An older `.untorn` put back over a newer one: files that wait for commits of the newer one are refused, and every
//! way to open or inspect the store reports it.

mod common;

use common::child_process::{ChildProcess, close_clean_with, crash_in, path_text};
use common::*;
use std::fs;
use std::path::Path;
use untorn::offline::{RecoverOptions, accept_lost, inspect, recover};
use untorn::{File, Reader, Store};

/// Copies a tree with attributes.
fn copy(from: &Path, to: &Path) {
    run("cp", ["-a", path_text(from), path_text(to)]);
}

/// Replaces a store directory by a copy.
fn put_back(older: &Path, store: &Path) {
    fs::remove_dir_all(store).unwrap();
    copy(older, store);
}

#[track_caller]
fn check_tells(path: &Path, file: &str) {
    let found = inspect(path).unwrap();
    let told = found.problems.iter().any(|problem| problem.contains(file) && problem.contains("an older `.untorn`"));
    assert!(told && found.lost_files[0].older_journal, "{:?}", found.problems);
}

fn older_journal_is_noticed(is_open: bool) {
    let place = directory();
    let (dir, older) = (place.path().join("store"), place.path().join("older"));
    fs::create_dir(&dir).unwrap();
    close_clean_with(&dir, &["a", "b"], "old");
    if is_open {
        let mut process = ChildProcess::owning(&dir);
        process.ok(&["create", "b"]);
        process.commit("b", "newer");
        copy(&dir.join(".untorn"), &older);
        process.kill();
        recover(&dir, &RecoverOptions::default(), &|_, _| ()).unwrap();
    } else {
        copy(&dir.join(".untorn"), &older);
    }
    // The only commit of that owner, which is the first of its journal.
    let mut process = ChildProcess::owning(&dir);
    process.ok(&["create", "a"]);
    process.commit("a", "new");
    process.kill();
    put_back(&older, &dir.join(".untorn"));
    check_tells(&dir, "a");
    let store = Reader::open(&dir).unwrap();
    refused(store.snapshot().and_then(|snapshot| snapshot.open("a").map(drop)), &["conflict"]);
    for _ in 0..3 {
        let store = Store::open_or_create(&dir).unwrap();
        let told = refused(store.open_file("a"), &["conflict"]).to_string();
        assert!(told.contains("an older `.untorn`") && told.contains("--accept-lost"), "{told}");
        // Other files can be used, and that does not release the refused file.
        let other = store.open_or_create_file("c").unwrap();
        other.append(b"more").unwrap();
        other.commit().unwrap();
        drop(other);
        store.close().unwrap();
        recover(&dir, &RecoverOptions::default(), &|_, _| ()).unwrap();
        check_tells(&dir, "a");
    }
    assert_eq!(accept_lost(&dir).unwrap().len(), 1);
    assert_eq!(inspect(&dir).unwrap().problems, Vec::<String>::new());
    let store = Store::open_or_create(&dir).unwrap();
    assert_same(&stored(&store, "a"), &text("old", "a"), "taken as it is");
    store.close().unwrap();
}

#[test]
fn an_older_journal_of_a_closed_store_is_noticed() {
    older_journal_is_noticed(false);
}

#[test]
fn an_older_journal_of_an_open_store_is_noticed() {
    older_journal_is_noticed(true);
}

#[test]
fn the_newer_journal_put_back_recovers_the_file() {
    let place = directory();
    let (dir, older, newer) = (place.path().join("store"), place.path().join("older"), place.path().join("newer"));
    fs::create_dir(&dir).unwrap();
    close_clean_with(&dir, &["a"], "old");
    copy(&dir.join(".untorn"), &older);
    crash_in_again(&dir);
    copy(&dir.join(".untorn"), &newer);
    put_back(&older, &dir.join(".untorn"));
    let store = Store::open_or_create(&dir).unwrap();
    refused(store.open_file("a"), &["conflict"]);
    store.close().unwrap();
    put_back(&newer, &dir.join(".untorn"));
    let store = Store::open_or_create(&dir).unwrap();
    assert_same(&stored(&store, "a"), &text("new", "a"), "recovered");
    store.close().unwrap();
}

fn crash_in_again(dir: &Path) {
    let mut process = ChildProcess::owning(dir);
    process.ok(&["create", "a"]);
    process.commit("a", "new");
    process.kill();
}

#[test]
fn an_older_journal_of_a_standalone_file_is_noticed() {
    let place = directory();
    let (file, older) = (place.path().join("f"), place.path().join("older"));
    let lone = File::open_or_create(&file).unwrap();
    lone.write_all_at(b"old", 0).unwrap();
    lone.commit().unwrap();
    lone.store().close().unwrap();
    copy(&place.path().join("f.untorn"), &older);
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&file)]);
    process.commit("lone", "new");
    process.kill();
    put_back(&older, &place.path().join("f.untorn"));
    check_tells(&file, "f");
    refused(File::open(&file), &["conflict"]);
    assert_eq!(accept_lost(&file).unwrap().len(), 1);
    let lone = File::open(&file).unwrap();
    assert_eq!(contents(&lone), b"old");
}

/// A file that was in use when its owner was killed, and that has no pending commits: it was absent when the next owner
/// closed the store, and is back.
#[test]
fn a_file_that_comes_back_is_known() {
    let dir = directory();
    crash_in(dir.path(), &["a", "b"]);
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["file", "a"]);
    process.commit("a", "newest");
    process.ok(&["checkpoint"]);
    process.kill();
    let (here, away) = (dir.path().join("a"), directory());
    run("mv", [path_text(&here), path_text(away.path())]);
    recover(dir.path(), &RecoverOptions::default(), &|_, _| ()).unwrap();
    run("mv", [path_text(&away.path().join("a")), path_text(dir.path())]);
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("newest", "a"), "it lacks nothing");
    store.close().unwrap();
}
