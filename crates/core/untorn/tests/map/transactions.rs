//! Mapped files in commits of several files, and in transactions.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use untorn::MapOptions;

#[test]
fn many_files_and_transactions_take_mapped_files() {
    with_trackers(|tracker| {
        let (_dir, store, file) = new_store_of(1);
        let other = store.open_or_create_file("other").unwrap();
        other.write_all_at(&[7; 100], 0).unwrap();
        other.commit().unwrap();
        let (map, other_map) = (file.map_with(&options(tracker)).unwrap(), other.map_with(&options(tracker)).unwrap());
        poke(&map, 0, b"one");
        poke(&other_map, 0, b"two");
        store.syncv(&[&file, &other]).unwrap();
        let mut txn = store.begin();
        txn.add(&file).unwrap();
        poke(&map, 0, b"aborted");
        txn.abort().unwrap();
        assert_eq!(bytes(&map, 0, 7), b"one\0\0\0\0");
        let mut txn = store.begin();
        txn.add(&file).unwrap();
        txn.rename("other", "renamed").unwrap();
        poke(&map, 0, b"txn");
        refused(map.msync(), &["in-transaction"]);
        txn.commit().unwrap();
        assert_eq!(bytes(&other_map, 0, 3), b"two");
        poke(&other_map, 3, b"!");
        other_map.msync().unwrap();
        drop((map, other_map, file, other));
        let path = store.path();
        store.close().unwrap();
        assert_eq!(&fs::read(path.join("f")).unwrap()[..4], b"txn\0");
        assert_eq!(&fs::read(path.join("renamed")).unwrap()[..4], b"two!");
    });
}

#[test]
fn a_transaction_keeps_what_was_stored_to_a_map_that_ended() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 2);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        let mut txn = store.begin();
        txn.add(&file).expect("add");
        file.write_all_at(b"written", 0).expect("write");
        fill(&map, PAGE..PAGE + 1, b'S');
        drop(file);
        map.unmap().expect("unmap");
        txn.commit().expect("commit");
        let disk = committed(dir.path(), &store);
        assert_eq!(&disk[..7], b"written");
        assert_eq!(disk[PAGE], b'S');
    });
}

#[test]
fn a_transaction_that_fails_late_takes_back_its_own_bytes_alone() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 2);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        map.msync().expect("msync");
        let (mut first, mut second) = (store.begin(), store.begin());
        first.create("name", 0o600).expect("create");
        second.create("name", 0o600).expect("create");
        second.add(&file).expect("add");
        fill(&map, 0..4, b'T');
        let first = first.commit_async().expect("submit");
        let second = second.commit_async().expect("submit");
        // Another store to the same cache line.
        fill(&map, 8..12, b'S');
        first.wait().expect("the first has the name");
        assert!(second.wait().is_err(), "the second cannot have it");
        assert_eq!(loaded(&map, 0..16), b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
        map.msync().expect("msync");
        assert_eq!(&committed(dir.path(), &store)[..16], b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
    });
}

/// A commit is queued behind the transaction when the transaction fails.
#[test]
fn a_commit_behind_a_transaction_that_fails_has_none_of_its_bytes() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 2);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        map.msync().expect("msync");
        let (mut first, mut second) = (store.begin(), store.begin());
        first.create("name", 0o600).expect("create");
        second.create("name", 0o600).expect("create");
        second.add(&file).expect("add");
        fill(&map, 0..4, b'T');
        let first = first.commit_async().expect("submit");
        let second = second.commit_async().expect("submit");
        fill(&map, 8..12, b'S');
        let behind = map.msync_async().expect("submit");
        first.wait().expect("the first has the name");
        assert!(second.wait().is_err(), "the second cannot have it");
        behind.wait().expect("an ordinary commit");
        assert_eq!(loaded(&map, 0..16), b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
        assert_eq!(&committed(dir.path(), &store)[..16], b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
    });
}
