//! Inspecting, recovering and ejecting a store by path. `put` is tested beside its code.

mod common;

use common::child_process::{ChildProcess, close_clean_with, crashed_store, path_text};
use common::*;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use untorn::offline::{RecoverOptions, eject, inspect, recover};
use untorn::{File, Store};

#[test]
fn inspecting_a_clean_store_finds_it_clean() {
    let dir = directory();
    close_clean_with(dir.path(), &["a", "b"], "old");
    let before = picture(dir.path());
    let found = inspect(dir.path()).unwrap();
    assert!(found.clean && !found.unknown_state && !found.torn_tail, "{found:?}");
    assert_eq!((found.owner, found.format_version), (None, untorn_journal::format::VERSION));
    assert!(found.problems.is_empty() && found.files_pending.is_empty(), "{found:?}");
    assert_eq!(picture(dir.path()), before, "looking changes nothing");
}

#[test]
fn inspecting_a_crashed_store_tells_what_is_pending() {
    let dir = crashed_store(&["a", "b"]);
    let before = picture(dir.path());
    let contents_before = [plain(dir.path().join("a")), plain(dir.path().join("b"))];
    let found = inspect(dir.path()).unwrap();
    assert!(!found.clean, "{found:?}");
    assert!(found.problems.is_empty(), "a crash is no damage: {:?}", found.problems);
    assert_eq!(found.owner, None, "the owner is dead");
    assert!(found.records.len() >= 2, "{:?}", found.records);
    assert!(found.records.is_sorted_by(|a, b| a.lsn < b.lsn));
    assert_eq!(found.records.last().unwrap().lsn, found.last_lsn);
    let mut pending: Vec<_> = found.files_pending.iter().map(|file| file.path.clone()).collect();
    pending.sort();
    assert_eq!(pending, [Path::new("a"), Path::new("b")]);
    assert_eq!(picture(dir.path()), before, "looking changes nothing");
    assert_eq!([plain(dir.path().join("a")), plain(dir.path().join("b"))], contents_before);
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "recovered after it");
}

#[test]
fn inspecting_works_beside_an_owner() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    assert_eq!(inspect(dir.path()).unwrap().owner, Some(process.pid()));
    process.commit("a", "two");
    process.ok(&["close"]);
    assert_same(&plain(dir.path().join("a")), &text("two", "a"), "the owner was not disturbed");
}

#[test]
fn inspecting_what_is_no_store_says_so() {
    let dir = directory();
    std::fs::write(dir.path().join("a"), "plain").unwrap();
    refused_with_errno(inspect(dir.path()), libc::ENOENT);
    refused_with_errno(inspect(&dir.path().join("a")), libc::ENOENT);
    refused_with_errno(inspect(&dir.path().join("missing")), libc::ENOENT);
    assert_eq!(picture(dir.path()).len(), 1, "nothing was made");
}

#[test]
fn recovering_by_path_leaves_plain_files() {
    let dir = crashed_store(&["a", "b"]);
    let (calls, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let recovered = recover(dir.path(), &RecoverOptions::default(), &|done, all| {
        assert!(done <= all, "{done} of {all}");
        calls.fetch_add(1, Relaxed);
        last.store(done, Relaxed);
    })
    .unwrap();
    assert!(recovered.recovered.commits >= 2 && recovered.recovered.files == 2, "{recovered:?}");
    assert!(calls.load(Relaxed) > 0 && last.load(Relaxed) > 0, "progress was told");
    for name in ["a", "b"] {
        assert_same(&plain(dir.path().join(name)), &text("new", name), "recovered");
    }
    assert!(inspect(dir.path()).unwrap().clean);
    let again = recover(dir.path(), &RecoverOptions::default(), &|_, _| {}).unwrap();
    assert_eq!((again.recovered.commits, again.recovered.files), (0, 0), "nothing is left to do");
}

#[test]
fn recovering_an_owned_store_is_busy() {
    let dir = directory();
    let process = ChildProcess::owning(dir.path());
    refused(recover(dir.path(), &RecoverOptions::default(), &|_, _| {}), &["busy"]);
    refused(eject(dir.path(), &|_, _| {}), &["busy"]);
    process.kill();
    recover(dir.path(), &RecoverOptions::default(), &|_, _| {}).unwrap();
}

#[test]
fn ejecting_leaves_plain_files_and_nothing_else() {
    let dir = crashed_store(&["a", "b"]);
    eject(dir.path(), &|_, _| {}).unwrap();
    for name in ["a", "b"] {
        assert_same(&plain(dir.path().join(name)), &text("new", name), "recovered first");
        assert_eq!(attribute(dir.path().join(name)), None, "{name} carries nothing of Untorn's");
    }
    assert_eq!(picture(dir.path()).len(), 2, "{:?}", picture(dir.path()));
    // The directory may become a store again.
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("new", "a"), "as it was");
}

#[test]
fn ejecting_a_lone_file() {
    let dir = directory();
    let path = dir.path().join("foo.db");
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    process.commit("lone", "new");
    process.kill();
    eject(&path, &|_, _| {}).unwrap();
    assert_same(&plain(&path), &text("new", "lone"), "recovered first");
    assert_eq!(attribute(&path), None);
    assert_eq!(picture(dir.path()).len(), 1);
    File::open(&path).unwrap();
}

#[test]
fn ejecting_with_a_file_missing_loses_nothing() {
    let dir = crashed_store(&["a", "b"]);
    let aside = directory();
    std::fs::rename(dir.path().join("a"), aside.path().join("a")).unwrap();
    assert!(eject(dir.path(), &|_, _| {}).is_err(), "its commits are in the journal, which must stay");
    std::fs::rename(aside.path().join("a"), dir.path().join("a")).unwrap();
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "moved back");
}

#[test]
fn looking_at_a_store_never_keeps_it_from_an_opener() {
    const OPENINGS: usize = 100;
    let dir = directory();
    let mut process = ChildProcess::start();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // The result of an inspection in the middle of an opening does not matter here, only that it runs.
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    drop(inspect(dir.path()));
                }
            });
        }
        let mut refusals = Vec::new();
        for _ in 0..OPENINGS {
            if let Err(e) = process.ask(&["open", path_text(dir.path())]) {
                refusals.push(e);
                continue;
            }
            process.ok(&["close"]);
            // The lock file as a killed owner leaves it: an opening that finds the lock taken does not wait for it.
            fs::write(dir.path().join(".untorn/lock"), "4194304\n").unwrap();
        }
        done.store(true, SeqCst);
        assert!(refusals.is_empty(), "{} of {OPENINGS} openings were refused: {:?}", refusals.len(), refusals[0]);
    });
}

#[test]
fn two_who_look_do_not_take_each_other_for_the_owner() {
    let dir = directory();
    Store::open_or_create(dir.path()).unwrap().close().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert_eq!(inspect(dir.path()).unwrap().owner, None)));
        }
    });
}
