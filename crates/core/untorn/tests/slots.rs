//! Slots: names under which consumers have the log of a store kept, and commits named by epoch and LSN.

mod common;

use common::*;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use untorn::reader::{Acknowledged, ChangeKind, Commit, Followed};
use untorn::{FailureClass, JOURNAL_BYTES_MIN, Point, Reader, Slot, Store, StoreOptions, begin_at};

/// Commits follow at once.
const LIMIT: Duration = Duration::from_secs(60);

fn commit(store: &Store, version: &str) {
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&text(version, "a"), 0).unwrap();
    file.commit().unwrap();
}

#[test]
fn a_commit_is_named_by_its_epoch() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let empty = reader.last_commit().unwrap();
    assert!(reader.contains(empty).unwrap());
    commit(&store, "one");
    let one = reader.last_commit().unwrap();
    let mut follow = reader.follow().unwrap();
    commit(&store, "two");
    let Some(Followed::Commit(two)) = follow.next_within(LIMIT).unwrap() else { panic!("the second commit") };
    assert_eq!((two.epoch, two.lsn), (one.epoch, one.lsn + 1));
    assert_eq!(reader.last_commit().unwrap(), two.point());
    assert!(reader.contains(one).unwrap() && reader.contains(two.point()).unwrap());
    assert!(!reader.contains(Point { epoch: one.epoch, lsn: one.lsn + 2 }).unwrap(), "it is not made yet");
    assert!(!reader.contains(Point { epoch: one.epoch ^ 1, lsn: one.lsn }).unwrap(), "another opening");
    refused(reader.follow_from_point(Point { epoch: one.epoch ^ 1, lsn: one.lsn }).map(drop), &["conflict"]);
    let mut follow = reader.follow_from_point(one).unwrap();
    let Some(Followed::Commit(again)) = follow.next_within(LIMIT).unwrap() else { panic!("the second commit") };
    assert_eq!(again.point(), two.point());
    store.close().unwrap();
    assert_eq!(reader.last_commit().unwrap(), two.point(), "after the close");
}

#[test]
fn a_slot_is_listed_until_it_is_dropped() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    commit(&store, "one");
    let slot = Slot::open_or_create(dir.path(), "backup", Some(1 << 20)).unwrap();
    let last = Reader::open(dir.path()).unwrap().last_commit().unwrap();
    assert_eq!(slot.acknowledged().unwrap().unwrap().point, last);
    let acknowledged = Acknowledged { point: last, hash: [7; 32], time_ns: 8, generation: 9 };
    slot.acknowledge(&acknowledged).unwrap();
    // Another process sees it.
    let again = Slot::open_or_create(dir.path(), "backup", None).unwrap();
    assert_eq!(again.acknowledged().unwrap(), Some(acknowledged));
    let listed = Slot::list(dir.path()).unwrap();
    assert_eq!((listed.len(), &*listed[0].name, listed[0].cap, listed[0].lost), (1, "backup", 1 << 20, None));
    let lock = slot.lock().unwrap();
    refused(again.lock().map(drop), &["busy"]);
    drop(lock);
    again.lock().map(drop).unwrap();
    for bad in ["", "../x", ".x", "a/b"] {
        refused(Slot::open_or_create(dir.path(), bad, None).map(drop), &["invalid"]);
    }
    again.drop_slot().unwrap();
    assert_eq!(Slot::list(dir.path()).unwrap(), Vec::new());
    refused(Slot::open(Path::new(dir.path()), "backup").map(drop), &["io"]);
    refused(slot.status().map(drop), &["io"]);
    store.close().unwrap();
}

/// Opens a store with a small journal, so that checkpoints come soon.
fn open_small(dir: &Path) -> Store {
    StoreOptions::new().create(true).journal_bytes(JOURNAL_BYTES_MIN).open(dir).unwrap()
}

/// The commits of a store behind a point, each with the bytes that it wrote.
fn commits(dir: &Path, from: Point) -> Vec<(Point, Vec<u8>)> {
    let reader = Reader::open(dir).unwrap();
    let last = reader.last_commit().unwrap().lsn;
    let mut follow = reader.follow_from_point(from).unwrap();
    let mut found = Vec::new();
    while follow.lsn() < last {
        match follow.next_within(Duration::ZERO).unwrap() {
            Some(Followed::Commit(commit)) => found.push((commit.point(), written(&commit))),
            Some(missed) => panic!("{missed:?}"),
            None => assert!(follow.lsn() >= last, "at {} of {last}", follow.lsn()),
        }
    }
    found
}

fn written(commit: &Commit) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in &commit.changes {
        if let ChangeKind::Written(range) = &change.kind {
            let mut part = vec![0; (range.end - range.start) as usize];
            assert_eq!(change.read_at(&mut part, range.start).unwrap(), part.len());
            bytes.extend(part);
        }
    }
    bytes
}

/// A store with a slot, and the commits that were made since.
struct WithSlot {
    dir: TempDir,
    slot: Slot,
    made: Vec<Vec<u8>>,
}

impl WithSlot {
    fn new(cap: u64) -> WithSlot {
        let dir = directory();
        let store = open_small(dir.path());
        commit(&store, "before");
        store.close().unwrap();
        let slot = Slot::open_or_create(dir.path(), "backup", Some(cap)).unwrap();
        WithSlot { dir, slot, made: Vec::new() }
    }

    /// Commits `n` times, with other bytes each time, of which every seventh is large.
    fn commit(&mut self, store: &Store, n: usize) {
        let file = store.open_or_create_file("a").unwrap();
        for _ in 0..n {
            let len = if self.made.len() % 7 == 3 { 300_000 } else { 50_000 };
            let bytes: Vec<u8> = (0..len).map(|at| (at / 8 + self.made.len() * 31) as u8).collect();
            file.write_all_at(&bytes, 0).unwrap();
            file.commit().unwrap();
            self.made.push(bytes);
        }
    }

    fn acknowledged(&self) -> Point {
        self.slot.acknowledged().unwrap().unwrap().point
    }

    /// Asserts that all commits but the first `n` are behind this point.
    #[track_caller]
    fn has_all(&self, from: Point, n: usize) {
        let found = commits(self.dir.path(), from);
        let bytes: Vec<&Vec<u8>> = found.iter().map(|(_, bytes)| bytes).filter(|bytes| !bytes.is_empty()).collect();
        assert_eq!(bytes.len(), self.made.len() - n, "commits behind {from}");
        for (at, (found, made)) in bytes.iter().zip(&self.made[n..]).enumerate() {
            assert_same(found, made, &format!("commit {at} behind {from}"));
        }
    }

    fn kept(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.dir.path().join(".untorn/kept")).unwrap();
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn the_log_is_kept_across_checkpoints_closes_and_openings() {
    let mut with = WithSlot::new(1 << 30);
    let from = with.acknowledged();
    let mut points = Vec::new();
    for round in 0..4 {
        let store = open_small(with.dir.path());
        with.has_all(from, 0);
        for _ in 0..3 {
            with.commit(&store, 10);
            store.checkpoint().unwrap();
            with.has_all(from, 0);
        }
        points.push((Reader::open(with.dir.path()).unwrap().last_commit().unwrap(), with.made.len()));
        if round % 2 == 0 {
            store.close().unwrap();
            with.has_all(from, 0);
        }
    }
    for (point, n) in &points {
        assert!(Reader::open(with.dir.path()).unwrap().contains(*point).unwrap(), "{point}");
        with.has_all(*point, *n);
    }
    let kept = with.kept().len();
    assert!(kept > 4, "{:?}", with.kept());
    // The next checkpoint removes the acknowledged log.
    let (point, n) = points[2];
    with.slot.acknowledge(&Acknowledged { point, ..Acknowledged::default() }).unwrap();
    let store = open_small(with.dir.path());
    with.commit(&store, 1);
    store.checkpoint().unwrap();
    with.has_all(point, n);
    assert!(with.kept().len() < kept / 2 + 2, "{:?}", with.kept());
    let last = Reader::open(with.dir.path()).unwrap().last_commit().unwrap();
    with.slot.acknowledge(&Acknowledged { point: last, ..Acknowledged::default() }).unwrap();
    with.commit(&store, 1);
    store.checkpoint().unwrap();
    assert!(with.kept().len() <= 2, "{:?}", with.kept());
    with.slot.drop_slot().unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_at(b"the end", 0).unwrap();
    file.commit().unwrap();
    store.close().unwrap();
    assert_eq!(std::fs::read_dir(with.dir.path().join(".untorn/kept")).unwrap().count(), 0);
}

#[test]
fn a_store_begins_behind_a_commit_of_another_one() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    commit(&store, "one");
    commit(&store, "two");
    let reader = Reader::open(dir.path()).unwrap();
    let (last, id, epochs) = (reader.last_commit().unwrap(), reader.store_id().unwrap(), reader.epochs(0).unwrap());
    store.close().unwrap();

    let copy = directory();
    std::fs::copy(dir.path().join("a"), copy.path().join("a")).unwrap();
    let other = Point { epoch: last.epoch ^ 1, lsn: last.lsn };
    refused(begin_at(copy.path(), id, &epochs, other), &["invalid"]);
    begin_at(copy.path(), id, &epochs, last).unwrap();
    refused(begin_at(copy.path(), id, &epochs, last), &["io"]);
    let restored = Reader::open(copy.path()).unwrap();
    assert_eq!((restored.last_commit().unwrap(), restored.store_id().unwrap()), (last, id));

    // Both go on: their commits of the same LSN are not the same.
    for (dir, version) in [(&dir, "three"), (&copy, "another")] {
        let store = Store::open_or_create(dir.path()).unwrap();
        assert_same(&stored(&store, "a"), &text("two", "a"), "the last common commit");
        commit(&store, version);
        store.close().unwrap();
    }
    let (here, there) = (reader.last_commit().unwrap(), restored.last_commit().unwrap());
    assert_eq!(here.lsn, there.lsn);
    assert!(restored.contains(last).unwrap());
    assert!(!restored.contains(here).unwrap() && !reader.contains(there).unwrap());
}

/// The first report to a follower behind this commit.
fn first_behind(dir: &Path, point: Point) -> Followed {
    let mut follow = Reader::open(dir).unwrap().follow_from_point(point).unwrap();
    follow.next_within(LIMIT).unwrap().expect("something behind the slot")
}

/// Asserts that the slot lost the log to a commit, from its last one on, and that the rest can be followed.
#[track_caller]
fn lost_the_oldest(with: &WithSlot, dir: &Path, last: u64) -> u64 {
    let (acknowledged, lost) = (with.acknowledged(), with.slot.lost().unwrap().expect("the slot is lost"));
    assert!(lost > acknowledged.lsn && lost <= last, "lost to {lost}, of {acknowledged} to {last}");
    match first_behind(dir, acknowledged) {
        // The segment of the last commits may still be there.
        Followed::Missed { first_lsn, last_lsn } => {
            assert_eq!(first_lsn, acknowledged.lsn + 1);
            assert!(last_lsn <= lost, "{first_lsn} to {last_lsn} are missing, and {lost} was noted");
        }
        other => panic!("{other:?}"),
    }
    lost
}

#[test]
fn a_slot_at_its_cap_loses_the_oldest_log_and_commits_go_on() {
    let mut with = WithSlot::new(4 << 20);
    let from = with.acknowledged();
    let store = open_small(with.dir.path());
    with.commit(&store, 10);
    store.checkpoint().unwrap();
    assert_eq!(with.slot.lost().unwrap(), None);
    with.has_all(from, 0);
    for _ in 0..10 {
        with.commit(&store, 20);
        store.checkpoint().unwrap();
    }
    let last = Reader::open(with.dir.path()).unwrap().last_commit().unwrap();
    let lost = lost_the_oldest(&with, with.dir.path(), last.lsn);
    let kept = with.kept();
    let bytes: u64 = kept
        .iter()
        .filter_map(|name| with.dir.path().join(".untorn/kept").join(name).metadata().ok())
        .map(|meta| meta.len())
        .sum();
    assert!(bytes <= 4 << 20, "{bytes} bytes in {kept:?}");
    assert!(!kept.is_empty() && lost < last.lsn, "the newest log stays");

    // A consumer that has a whole copy goes on behind it.
    with.slot.acknowledge(&Acknowledged { point: last, ..Acknowledged::default() }).unwrap();
    assert_eq!(with.slot.lost().unwrap(), None);
    let n = with.made.len();
    with.commit(&store, 5);
    store.checkpoint().unwrap();
    with.has_all(last, n);
    store.close().unwrap();
}

#[test]
fn a_full_disk_takes_the_log_of_slots_before_a_commit_is_refused() {
    let place = directory();
    let Some(disk) = Mount::ext4(48 << 20, place.path()) else { return };
    let dir = disk.path();
    let store = open_small(dir);
    commit(&store, "before");
    let slot = Slot::open_or_create(dir, "backup", Some(1 << 40)).unwrap();
    let mut with = WithSlot { dir: directory(), slot, made: Vec::new() };
    // Four times as much as the disk has.
    with.commit(&store, 2500);
    let last = Reader::open(dir).unwrap().last_commit().unwrap().lsn;
    lost_the_oldest(&with, dir, last);
    assert_same(&stored(&store, "a")[..50_000], with.made.last().unwrap(), "the last commit");
    store.close().unwrap();
}

#[test]
fn a_store_of_class_process_has_no_slots() {
    let dir = directory();
    let store = StoreOptions::new().create(true).class(FailureClass::Process).open(dir.path()).unwrap();
    commit(&store, "one");
    let why = refused(Slot::open_or_create(dir.path(), "backup", None).map(drop), &["unsupported"]);
    assert!(why.to_string().contains("class `process`"), "{why}");
    assert_eq!(Slot::list(dir.path()).unwrap(), Vec::new());
    store.close().unwrap();
}
