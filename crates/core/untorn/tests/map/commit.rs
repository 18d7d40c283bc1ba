//! The bytes that a commit of a mapped file takes, writes to the journal and leaves in memory, also if it fails.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use untorn::__private::OpenStoreOn;
use untorn::{MapOptions, StoreOptions};

#[test]
fn a_store_reaches_the_file_at_msync_and_not_before() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(4);
        let map = file.map_with(&options(tracker)).unwrap();
        assert_eq!(map.tracker().unwrap(), tracker);
        poke(&map, 5000, b"hello");
        poke(&map, 3 * PAGE, b"x");
        assert_eq!(bytes(&map, 5000, 5), b"hello");
        let mut buf = [0; 5];
        file.read_at(&mut buf, 5000).unwrap();
        assert_eq!(&buf, b"hello", "the file interface sees stores");
        store.checkpoint().unwrap();
        assert_eq!(plain(dir.path().join("f"))[5000..5005], [1; 5], "nothing before the commit");
        map.msync().unwrap();
        store.checkpoint().unwrap();
        let disk = plain(dir.path().join("f"));
        assert_eq!(&disk[5000..5005], b"hello");
        assert_eq!(disk[3 * PAGE], b'x');
        assert_eq!(disk[5005], 1);
        map.unmap().unwrap();
        drop(file);
        store.close().unwrap();
        assert_eq!(&plain(dir.path().join("f"))[5000..5005], b"hello");
    });
}

#[test]
fn a_commit_journals_lines_not_pages() {
    with_trackers(|tracker| {
        let (_dir, store, file) = new_store_of(64);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 0, b"warm");
        map.msync().unwrap();
        let before = store.status().journal_bytes_written;
        for page in 0..32 {
            poke(&map, page * PAGE + 128, &[0xee; 8]);
        }
        map.msync().unwrap();
        let written = store.status().journal_bytes_written - before;
        assert!(written <= 8192, "{written} bytes for 32 lines of 64");
        let syncs = store.status().syncs;
        map.msync().unwrap();
        assert_eq!(store.status().syncs, syncs, "nothing changed, nothing flushed");
        poke(&map, 1, b"A");
        map.msync().unwrap();
        assert_eq!(store.status().syncs, syncs + 1, "one flush");
    });
}

#[test]
fn a_store_that_undoes_what_is_committed_and_not_applied_is_not_lost() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(2);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 100, b"v1");
        map.msync().unwrap();
        // The data file still has the old bytes; the program stores them again.
        poke(&map, 100, &[0, 0]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(plain(dir.path().join("f"))[100..102], [0, 0]);

        // Then a page that was never compared before.
        drop(map);
        file.write_all_at(b"v1", 200).unwrap();
        file.commit().unwrap();
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 200, &[0, 0]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(plain(dir.path().join("f"))[200..202], [0, 0]);
    });
}

#[test]
fn an_asynchronous_commit_is_what_was_stored_by_then() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(1);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 0, b"batch");
        let ticket = map.msync_async().unwrap();
        poke(&map, 0, b"later");
        ticket.wait().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(&plain(dir.path().join("f"))[..5], b"batch");
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 0, 5), b"batch");
    });
}

#[test]
fn a_commit_that_fails_half_way_compares_anew() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        drop((store, file));
        // If more than one page has changed, the bytes go to a spill file.
        let store = StoreOptions::new()
            .create(true)
            .sizes(1 << 20, 16 << 10, 4096)
            .background(false)
            .open(dir.path())
            .expect("open");
        let file = store.open_file("f").expect("file");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        fill(&map, 0..1, 1);
        map.msync().expect("msync");
        let (journal, away) = (dir.path().join(".untorn/journal"), dir.path().join("away"));
        fs::rename(&journal, &away).expect("rename");
        fill(&map, 0..8 * PAGE, b'X');
        refused(map.msync(), &["io"]);
        fs::rename(&away, &journal).expect("rename");
        fill(&map, 0..1, 1);
        fill(&map, 1..PAGE, 0);
        map.msync().expect("msync");
        let disk = committed(dir.path(), &store);
        assert_same(&disk[..8 * PAGE], &loaded(&map, 0..8 * PAGE), "the file holds what memory shows");
    });
}

#[test]
fn what_comes_after_a_commit_does_not_make_it_a_failure() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        let options = MapOptions::new().tracker(tracker).quiet(true).dirty_max(PAGE as u64);
        let map = file.map_with(&options).expect("map");
        fill(&map, 0..1, b'1');
        map.msync().expect("msync");
        // Replaced: commits go on, checkpoints are refused.
        fs::write(dir.path().join("new"), b"another file").expect("write");
        fs::rename(dir.path().join("new"), dir.path().join("f")).expect("rename");
        fill(&map, 0..64 * PAGE, b'2');
        let before = store.status().commits;
        let done = map.msync();
        assert_eq!(store.status().commits, before + 1);
        done.expect("it is committed");
        refused(store.checkpoint(), &["conflict"]);
    });
}
