//! A store on byte-addressable memory, for which ordinary memory stands in: commits without calls, and their readers.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::reader::Followed;
use untorn::{File, Reader, Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::{Linux, Storage};

const LIMIT: Duration = Duration::from_secs(10);
/// Longer than the owner relies on its last look whether somebody follows.
const LOOKED_LONG_AGO: Duration = Duration::from_millis(3);

struct Owner {
    storage: Arc<Linux>,
    store: Store,
    file: File,
}

impl Owner {
    /// With a log whose first segment has room for all commits, and with its first commit, which takes calls.
    fn open(dir: &Path) -> Owner {
        let storage = Linux::open_as_memory(dir).unwrap();
        let options = StoreOptions::new().create(true).background(false).sizes(32 << 20, 8 << 20, 64 << 10).page(true);
        let store = options.open_on(storage.clone(), StoreDir::of_directory(), PathBuf::new()).unwrap();
        let file = store.open_or_create_file("a").unwrap();
        let owner = Owner { storage, store, file };
        (0..3).for_each(|n| owner.commit(n));
        owner
    }

    fn commit(&self, n: u64) {
        self.file.write_all_at(&n.to_le_bytes(), n % 8 * 8).unwrap();
        self.file.commit().unwrap();
    }

    /// The calls that write and flush while this many commits are made.
    fn calls_for(&self, commits: std::ops::Range<u64>) -> (u64, u64) {
        let before = self.storage.counters();
        commits.for_each(|n| self.commit(n));
        let after = self.storage.counters();
        (after.writes - before.writes, after.syncs - before.syncs)
    }
}

/// Whether the lines of this processor can be stored.
fn stores_lines(dir: &Path) -> bool {
    let storage = Linux::open_as_memory(dir).unwrap();
    std::fs::write(dir.join("probe"), [0; 64]).unwrap();
    let can = storage.open(Path::new("probe"), untorn_os::Open::WRITE).unwrap().lines(64).is_ok();
    std::fs::remove_file(dir.join("probe")).unwrap();
    can
}

#[test]
fn a_commit_makes_no_call() {
    let dir = directory();
    if !stores_lines(dir.path()) {
        return println!("skipped: this processor cannot store lines");
    }
    let owner = Owner::open(dir.path());
    assert_eq!(owner.calls_for(3..203), (0, 0));
    // Readers find the last commit in the index of the log.
    let reader = Reader::open(dir.path()).unwrap();
    let last: Vec<u8> = (200..203).chain(195..200).flat_map(u64::to_le_bytes).collect();
    assert_eq!(reader.read("a").unwrap(), last);
}

/// The index grows while it is stored to. Followers read it.
#[test]
fn followers_get_each_commit_by_the_index() {
    let dir = directory();
    let owner = Owner::open(dir.path());
    let reader = Reader::open(dir.path()).unwrap();
    let mut follow = reader.follow().unwrap();
    let index = dir.path().join(".untorn/journal/index.0");
    let before = std::fs::metadata(&index).unwrap().len();
    for n in 3..1500 {
        owner.commit(n);
        if n % 100 == 0 {
            for expected in n.saturating_sub(99).max(3)..=n {
                let Some(Followed::Commit(commit)) = follow.next_within(LIMIT).unwrap() else { panic!("commit {n}") };
                let mut bytes = [0; 8];
                commit.changes[0].read_at(&mut bytes, expected % 8 * 8).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), expected);
            }
        }
    }
    assert!(std::fs::metadata(&index).unwrap().len() > before, "the index did not grow: {before} bytes");
    owner.store.close().unwrap();
}

/// A store to the page is no event for those who wait for the next commit, so the page is written for them.
#[test]
fn followers_are_woken_and_nobody_else_costs_a_call() {
    let dir = directory();
    if !stores_lines(dir.path()) {
        return println!("skipped: this processor cannot store lines");
    }
    let owner = Owner::open(dir.path());
    let follow = Reader::open(dir.path()).unwrap().follow().unwrap();
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(3..10), (7, 0));
    drop(follow);
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(10..20), (0, 0));
    // A snapshot waits for nothing.
    let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    std::thread::sleep(LOOKED_LONG_AGO);
    assert_eq!(owner.calls_for(20..30), (0, 0));
    drop(snapshot);
}
