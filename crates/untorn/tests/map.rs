//! Mapped files: stores, commits, rollback, growth, and how they mix with the file interface.

mod common;

use common::refused;
use std::fs;
use untorn::{Error, File, Map, MapOptions, Store, StoreOptions, Tracker};

const PAGE: usize = 4096;
const TRACKERS: [Tracker; 2] = [Tracker::Scan, Tracker::PageMap];

/// Runs a test with each tracker that works here.
fn with_trackers(test: impl Fn(Tracker)) {
    for tracker in TRACKERS {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("probe")).unwrap();
        match file.map_with(&MapOptions::new().tracker(tracker)) {
            Ok(_) => test(tracker),
            Err(Error::Unsupported { detail, .. }) => println!("skipped: tracker {tracker}: {detail}"),
            Err(e) => panic!("{e}"),
        }
    }
}

fn options(tracker: Tracker) -> MapOptions {
    MapOptions::new().tracker(tracker)
}

/// A store with one file of so many pages, each filled with its number.
fn store_of(pages: usize) -> (tempfile::TempDir, Store, File) {
    let dir = tempfile::tempdir().unwrap();
    let contents: Vec<u8> = (0..pages * PAGE).map(|i| (i / PAGE) as u8).collect();
    fs::write(dir.path().join("f"), &contents).unwrap();
    let store = StoreOptions::default().background(false).open(dir.path()).unwrap();
    let file = store.file("f").unwrap();
    (dir, store, file)
}

fn bytes(map: &Map, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    map.load(&mut buf, offset).unwrap();
    buf
}

/// Stores as a program does, without Untorn's knowledge.
fn poke(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len().next_multiple_of(PAGE as u64) as usize);
    // SAFETY: inside the map's last page, and no other thread is here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) }
}

fn on_disk(dir: &tempfile::TempDir) -> Vec<u8> {
    fs::read(dir.path().join("f")).unwrap()
}

#[test]
fn a_store_reaches_the_file_at_msync_and_not_before() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(4);
        let map = file.map_with(&options(tracker)).unwrap();
        assert_eq!(map.tracker().unwrap(), tracker);
        poke(&map, 5000, b"hello");
        poke(&map, 3 * PAGE, b"x");
        assert_eq!(bytes(&map, 5000, 5), b"hello");
        let mut buf = [0; 5];
        file.read_at(&mut buf, 5000).unwrap();
        assert_eq!(&buf, b"hello", "the file interface sees stores");
        store.checkpoint().unwrap();
        assert_eq!(on_disk(&dir)[5000..5005], [1; 5], "nothing before the commit");
        map.msync().unwrap();
        store.checkpoint().unwrap();
        let disk = on_disk(&dir);
        assert_eq!(&disk[5000..5005], b"hello");
        assert_eq!(disk[3 * PAGE], b'x');
        assert_eq!(disk[5005], 1);
        map.unmap().unwrap();
        drop(file);
        store.close().unwrap();
        assert_eq!(&on_disk(&dir)[5000..5005], b"hello");
    });
}

#[test]
fn a_commit_journals_lines_not_pages() {
    with_trackers(|tracker| {
        let (_dir, store, file) = store_of(64);
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
        let (dir, store, file) = store_of(2);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 100, b"v1");
        map.msync().unwrap();
        // The data file still holds the old bytes; they are stored again.
        poke(&map, 100, &[0, 0]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(on_disk(&dir)[100..102], [0, 0]);

        // The same for a page that was never compared before.
        drop(map);
        file.write_at(b"v1", 200).unwrap();
        file.commit().unwrap();
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 200, &[0, 0]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(on_disk(&dir)[200..202], [0, 0]);
    });
}

#[test]
fn rollback_copies_committed_bytes_back() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(4);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 10, b"committed");
        map.msync().unwrap();
        poke(&map, 10, b"forgotten");
        poke(&map, 2 * PAGE, b"forgotten");
        file.write_at(b"forgotten", 3 * PAGE as u64).unwrap();
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 10, 9), b"committed", "committed and not applied");
        assert_eq!(bytes(&map, 2 * PAGE as u64, 9), [2; 9]);
        assert_eq!(bytes(&map, 3 * PAGE as u64, 9), [3; 9]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(&on_disk(&dir)[10..19], b"committed");
        assert_eq!(on_disk(&dir)[2 * PAGE], 2);
    });
}

#[test]
fn the_file_interface_and_maps_are_one_view() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(4);
        file.write_at(b"before", 50).unwrap();
        let map = file.map_with(&options(tracker)).unwrap();
        let part = file.map_with(&MapOptions::new().offset(PAGE as u64).len(PAGE as u64)).unwrap();
        assert_eq!(bytes(&map, 50, 6), b"before", "staged before it was mapped");
        poke(&part, 7, b"part");
        assert_eq!(bytes(&map, PAGE as u64 + 7, 4), b"part");
        assert_eq!(part.len(), PAGE as u64);
        file.write_at(b"after", 2 * PAGE as u64 - 2).unwrap();
        assert_eq!(bytes(&map, 2 * PAGE as u64 - 2, 5), b"after");
        file.zero(50, 2).unwrap();
        assert_eq!(bytes(&map, 50, 6), b"\0\0fore");
        file.commit().unwrap();
        store.checkpoint().unwrap();
        let disk = on_disk(&dir);
        assert_eq!((&disk[50..56], &disk[PAGE + 7..PAGE + 11]), (&b"\0\0fore"[..], &b"part"[..]));
        assert_eq!(&disk[2 * PAGE - 2..2 * PAGE + 3], b"after");
        drop(map);
        assert_eq!(bytes(&part, 7, 4), b"part", "the mapping stays with its last map");
    });
}

#[test]
fn growing_and_shrinking() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(2);
        let map = file.map_with(&options(tracker)).unwrap();
        map.resize(6000).unwrap();
        assert_eq!(map.len(), 6000);
        // Behind the end, in the last page: never a part of the file.
        poke(&map, 6100, b"stray");
        map.resize(3 * PAGE as u64 + 10).unwrap();
        assert_eq!(bytes(&map, 6000, 3 * PAGE + 10 - 6000), vec![0; 3 * PAGE + 10 - 6000], "new bytes are zeros");
        poke(&map, 3 * PAGE + 5, b"end");
        map.msync().unwrap();
        store.checkpoint().unwrap();
        let disk = on_disk(&dir);
        assert_eq!(disk.len(), 3 * PAGE + 10);
        assert_eq!(&disk[3 * PAGE + 5..3 * PAGE + 8], b"end");
        assert!(disk[6000..3 * PAGE + 5].iter().all(|b| *b == 0));

        // Shrunk and extended again before the first is applied: the data file is cut while memory is not.
        map.resize(0).unwrap();
        map.msync().unwrap();
        map.resize(4 * PAGE as u64).unwrap();
        poke(&map, 2 * PAGE, b"again");
        let cut = store.cut().unwrap().unwrap();
        poke(&map, 3 * PAGE, b"more");
        map.msync().unwrap();
        cut.apply().unwrap().retire().unwrap();
        assert_eq!(bytes(&map, 2 * PAGE as u64, 5), b"again");
        assert_eq!(bytes(&map, 0, 100), [0; 100]);
        store.checkpoint().unwrap();
        assert_eq!(&on_disk(&dir)[2 * PAGE..2 * PAGE + 5], b"again");
        assert_eq!(on_disk(&dir).len(), 4 * PAGE);

        // And back again.
        map.resize(10).unwrap();
        map.rollback().unwrap();
        assert_eq!(map.len(), 4 * PAGE as u64);
        assert_eq!(bytes(&map, 2 * PAGE as u64, 5), b"again");
        map.quiesce().unwrap();
        assert_eq!(bytes(&map, 3 * PAGE as u64, 4), b"more");
    });
}

#[test]
fn a_window_is_mapped_first_and_the_file_grows_into_it() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(1);
        let window = 1 << 30;
        refused(file.map_with(&options(tracker).len(window)), &["invalid"]);
        let map = file.map_with(&options(tracker).len(window).beyond_end(true).address_space(window)).unwrap();
        assert_eq!(map.len(), PAGE as u64);
        refused(map.store(b"x", PAGE as u64), &["invalid"]);
        file.truncate(3 * PAGE as u64).unwrap();
        assert_eq!(map.len(), 3 * PAGE as u64);
        poke(&map, 2 * PAGE, b"grown");
        map.msync().unwrap();
        // A second map may begin behind the end, and none reaches beyond the reserved addresses.
        let later = file.map_with(&options(tracker).offset(5 * PAGE as u64).len(10).beyond_end(true)).unwrap();
        assert_eq!(later.len(), 0);
        refused(file.map_with(&options(tracker).offset(8).len(window).beyond_end(true)), &["invalid"]);
        refused(file.map_with(&options(tracker).offset(8).len(u64::MAX).beyond_end(true)), &["invalid"]);
        file.truncate(6 * PAGE as u64).unwrap();
        poke(&later, 0, b"later");
        assert_eq!(bytes(&map, 5 * PAGE as u64, 5), b"later");
        map.msync().unwrap();
        drop((map, later));
        refused(file.map_with(&options(tracker).len(u64::MAX).beyond_end(true)), &["no-memory"]);
        store.checkpoint().unwrap();
        let disk = on_disk(&dir);
        assert_eq!((disk.len(), &disk[2 * PAGE..2 * PAGE + 5]), (6 * PAGE, &b"grown"[..]));
        assert_eq!(&disk[5 * PAGE..5 * PAGE + 5], b"later");
    });
}

#[test]
fn quiesce_gives_memory_back() {
    with_trackers(|tracker| {
        let (_dir, store, file) = store_of(64);
        let map = file.map_with(&options(tracker)).unwrap();
        for page in 0..64 {
            poke(&map, page * PAGE + 9, b"dirty");
        }
        map.msync().unwrap();
        let of = |store: &Store| store.status().maps[0].clone();
        assert_eq!(of(&store).private_bytes, 64 * PAGE as u64);
        poke(&map, 0, b"uncommitted");
        map.quiesce().unwrap();
        assert_eq!(of(&store).private_bytes, PAGE as u64, "only the page with an uncommitted change");
        assert_eq!(bytes(&map, 63 * PAGE as u64 + 9, 5), b"dirty");
        assert_eq!(bytes(&map, 0, 11), b"uncommitted");
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 0, 14), [&[0; 9][..], b"dirty"].concat());
    });
}

#[test]
fn many_files_and_transactions_take_mapped_files() {
    with_trackers(|tracker| {
        let (_dir, store, file) = store_of(1);
        let other = store.create("other").unwrap();
        other.write_at(&[7; 100], 0).unwrap();
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
fn an_asynchronous_commit_is_what_was_stored_by_then() {
    with_trackers(|tracker| {
        let (dir, store, file) = store_of(1);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 0, b"batch");
        let ticket = map.msync_async().unwrap();
        poke(&map, 0, b"later");
        ticket.wait().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(&on_disk(&dir)[..5], b"batch");
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 0, 5), b"batch");
    });
}

#[test]
fn a_racing_store_is_reported_and_not_torn() {
    with_trackers(|tracker| {
        let (_dir, _store, file) = store_of(2);
        let map = file.map_with(&options(tracker).debug_races(true)).unwrap();
        poke(&map, 0, b"x");
        map.msync().unwrap();
        let address = map.as_mut_ptr() as usize + PAGE + 77;
        let stop = std::sync::atomic::AtomicBool::new(false);
        let reported = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u8;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n = n.wrapping_add(1);
                    // SAFETY: inside the map, which outlives the thread.
                    unsafe { (address as *mut u8).write_volatile(n) };
                }
            });
            let reported = (0..10_000).find_map(|_| map.msync().err());
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reported
        });
        match reported {
            Some(Error::RacingStore { address: at, offset, .. }) => {
                assert_eq!((at, offset), (address, PAGE as u64 + 77));
            }
            other => panic!("{other:?}"),
        }
        map.msync().unwrap();
    });
}
