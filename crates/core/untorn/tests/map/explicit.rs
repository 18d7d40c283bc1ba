//! The tracker `explicit`: a commit has exactly the dirty ranges that the program declared.

use crate::common::mapping::*;
use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::{Error, Map, MapOptions, TrackerKind};

fn explicit() -> MapOptions {
    MapOptions::new().tracker(TrackerKind::Explicit)
}

/// Stores without declaring it.
fn store_unmarked(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len() as usize);
    // SAFETY: inside the map, and no other thread is here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) }
}

#[test]
fn a_commit_has_exactly_what_was_told() {
    let dir = directory();
    let (store, file, map) = mapped(dir.path(), 4, &explicit());
    assert_eq!(map.tracker().expect("a map"), TrackerKind::Explicit);
    for round in 1..4u8 {
        store_unmarked(&map, 100, &[b'a' + round; 30]);
        tell(&map, 110, 10);
        map.msync().expect("msync");
        let mut wanted = vec![0; 30];
        wanted[10..20].fill(b'a' + round);
        assert_eq!(committed(dir.path(), &store)[100..130], wanted);
        assert_eq!(peek(&map, 100, 30), [b'a' + round; 30], "memory has all of it");
    }
    // A declaration holds for one commit.
    store_unmarked(&map, 110, b"later");
    map.msync().expect("msync");
    assert_eq!(committed(dir.path(), &store)[110..115], *b"ddddd");
    tell(&map, 110, 5);
    map.msync().expect("msync");
    assert_eq!(committed(dir.path(), &store)[110..115], *b"later");
    // The library's own stores declare exactly their bytes.
    store_unmarked(&map, 3 * PAGE, b"untold");
    map.store(b"store", 3 * PAGE as u64 + 10).expect("store");
    file.write_all_at(b"write", 3 * PAGE as u64 + 20).expect("write");
    map.mark_dirty(map.as_ptr().wrapping_add(3 * PAGE + 4), 2).expect("mark");
    map.msync().expect("msync");
    assert_eq!(
        committed(dir.path(), &store)[3 * PAGE..][..26],
        *b"\x03\x03\x03\x03ld\x03\x03\x03\x03store\x03\x03\x03\x03\x03write\x03"
    );
    // A rollback leaves bytes alone that were not declared.
    store_unmarked(&map, PAGE, b"untold");
    poke(&map, PAGE + 6, b"told");
    map.rollback().expect("rollback");
    assert_eq!(peek(&map, PAGE, 12), b"untold\x01\x01\x01\x01\x01\x01");
    drop((map, file));
    store.close().expect("close");
    let (_store, _file, map) = {
        let store = untorn::Store::open_or_create(dir.path()).expect("open");
        let file = store.open_file("f").expect("file");
        let map = file.map_with(&explicit()).expect("map");
        (store, file, map)
    };
    assert_eq!(peek(&map, PAGE, 6), [1; 6], "opened again, it is gone");
    assert_eq!(peek(&map, 100, 30), *b"\0\0\0\0\0\0\0\0\0\0laterddddd\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn ranges_may_be_many_and_large() {
    let dir = directory();
    let (store, _file, map) = mapped(dir.path(), 1500, &explicit());
    let mut wanted: Vec<u8> = (0..1500 * PAGE).map(|at| (at / PAGE) as u8).collect();
    // More ranges than are staged at once, and then one range of more bytes than are staged at once.
    for at in (0..400 * PAGE).step_by(48) {
        wanted[at..at + 8].fill(1);
        poke(&map, at, &[1; 8]);
    }
    let large = 401 * PAGE + 7..1499 * PAGE + 9;
    wanted[large.clone()].fill(2);
    fill(&map, large, 2);
    for round in 3..6 {
        map.msync().expect("msync");
        assert!(committed(dir.path(), &store) == wanted, "round {round}");
        // Over those ranges, and between them.
        for at in (round..400 * PAGE).step_by(1001) {
            wanted[at..at + 30].fill(round as u8);
            poke(&map, at, &[round as u8; 30]);
        }
    }
}

#[test]
fn what_is_told_behind_the_end_is_no_part_of_the_file() {
    let dir = directory();
    let (store, _file, map) = mapped(dir.path(), 2, &explicit());
    map.resize(PAGE as u64 + 100).expect("shrink");
    map.msync().expect("msync");
    // Behind the end there is nothing to commit.
    poke_last_page(&map, PAGE + 200, &[b'y'; 20]);
    let before = store.status();
    map.msync().expect("msync");
    let after = store.status();
    assert_eq!((after.lsn, after.journal_bytes_written), (before.lsn, before.journal_bytes_written));
    // Across the end, and behind it.
    poke_last_page(&map, PAGE + 90, &[b'x'; 20]);
    poke_last_page(&map, PAGE + 200, &[b'y'; 20]);
    map.msync().expect("msync");
    let disk = committed(dir.path(), &store);
    assert_eq!((disk.len(), &disk[PAGE + 90..]), (PAGE + 100, &[b'x'; 10][..]));
    map.resize(2 * PAGE as u64).expect("grow");
    map.msync().expect("msync");
    let disk = committed(dir.path(), &store);
    assert_eq!((disk.len(), &disk[PAGE + 90..PAGE + 100]), (2 * PAGE, &[b'x'; 10][..]));
    assert!(disk[PAGE + 100..].iter().all(|byte| *byte == 0));
}

#[test]
fn it_may_be_told_before_and_after_and_without_a_store() {
    let dir = directory();
    let (store, file, map) = mapped(dir.path(), 600, &explicit());
    // Declared before the store.
    tell(&map, PAGE - 3, 6);
    store_unmarked(&map, PAGE - 3, b"before");
    // Declarations of values, of nothing, and of far more bytes than were stored.
    // SAFETY: aligned bytes of the map, which nobody else uses.
    let value = unsafe { &mut *map.as_mut_ptr().add(2 * PAGE).cast::<[u64; 2]>() };
    value[1] = u64::from_le_bytes(*b"a value.");
    map.mark_dirty_value(value).expect("a value in the map");
    tell(&map, 5, 0);
    tell(&map, 3 * PAGE, 590 * PAGE);
    store_unmarked(&map, 500 * PAGE, b"far");
    map.msync().expect("msync");
    let mut wanted: Vec<u8> = (0..600 * PAGE).map(|i| (i / PAGE) as u8).collect();
    wanted[PAGE - 3..PAGE + 3].copy_from_slice(b"before");
    wanted[2 * PAGE + 8..2 * PAGE + 16].copy_from_slice(b"a value.");
    wanted[500 * PAGE..500 * PAGE + 3].copy_from_slice(b"far");
    assert_same(&committed(dir.path(), &store), &wanted, "the file");
    // Behind the end there is nothing to commit.
    file.set_len(10 * PAGE as u64 + 5).expect("shrink");
    fill_unmarked(&map, 10 * PAGE, 100);
    tell(&map, 10 * PAGE, 100);
    map.msync().expect("msync");
    assert_eq!(committed(dir.path(), &store).len(), 10 * PAGE + 5);
    tell(&map, 10 * PAGE, 100);
    map.msync().expect("msync");
    assert_eq!((file.len().expect("size"), committed(dir.path(), &store).len()), (10 * PAGE as u64 + 5, 10 * PAGE + 5));
    map.resize(11 * PAGE as u64).expect("grow");
    map.msync().expect("msync");
    let found = committed(dir.path(), &store);
    assert_eq!((found.len(), &found[10 * PAGE..10 * PAGE + 7]), (11 * PAGE, &b"XXXXX\0\0"[..]));
}

fn fill_unmarked(map: &Map, offset: usize, len: usize) {
    // SAFETY: inside the map's last page, and no other thread is here.
    unsafe { std::ptr::write_bytes(map.as_mut_ptr().add(offset), b'X', len) }
}

#[test]
fn what_is_not_in_the_map_is_refused() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(4);
        let map = file.map_with(&options(tracker)).expect("map");
        let window = MapOptions::new().tracker(tracker).offset(PAGE as u64 + 100).len(50);
        let window = file.map_with(&window).expect("map");
        poke(&map, 0, b"stays");
        let all = 4 * PAGE;
        let start = map.as_ptr();
        for (address, len) in [
            (std::ptr::null(), 1),
            (std::ptr::null(), 0),
            (start.wrapping_sub(1), 1),
            (start.wrapping_sub(1), 2),
            (start, all + 1),
            (start, usize::MAX),
            (start.wrapping_add(all), 1),
            (start.wrapping_add(all - 1), usize::MAX - all),
            (start.wrapping_add(5), usize::MAX - 4),
            (std::ptr::without_provenance(usize::MAX), 1),
        ] {
            refused(map.mark_dirty(address, len), &["invalid"]);
        }
        for (at, len) in [(-1isize, 1), (0, 51), (50, 1), (49, 2), (51, 0)] {
            refused(window.mark_dirty(window.as_ptr().wrapping_offset(at), len), &["invalid"]);
        }
        window.mark_dirty(window.as_ptr(), 50).expect("all of it");
        window.mark_dirty(window.as_ptr().wrapping_add(50), 0).expect("nothing");
        map.resize(PAGE as u64).expect("shrink");
        refused(map.mark_dirty(start.wrapping_add(PAGE), 1), &["invalid"]);
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[..5], *b"stays");
        drop((window, file));
        store.close().expect("close");
        refused(map.mark_dirty(start, 1), &["closed"]);
    });
}

#[test]
fn other_trackers_need_not_be_told() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 2, &options(tracker));
        store_unmarked(&map, 0, b"store");
        tell(&map, PAGE, 8);
        map.msync().expect("msync");
        let wanted: &[u8] = if tracker == TrackerKind::Explicit { &[0; 5] } else { b"store" };
        assert_eq!(&committed(dir.path(), &store)[..5], wanted);
    });
}

/// Each thread stores to words of its own, declares each store after it, and never waits for the thread that commits.
#[test]
fn every_thread_is_heard() {
    const THREADS: usize = 6;
    let dir = directory();
    let (store, _file, map) = mapped(dir.path(), 64, &explicit());
    let (stop, map) = (AtomicBool::new(false), &map);
    let (address, words) = (map.as_mut_ptr() as usize, 64 * PAGE / 8 / THREADS);
    let last: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut round = 0u64;
                    while !stop.load(SeqCst) || round < 3 {
                        round += 1;
                        for word in 0..words {
                            let at = (word * THREADS + thread) * 8;
                            // SAFETY: inside the map, aligned, and this thread's own.
                            unsafe { ((address + at) as *mut u64).write_volatile(round << 8 | thread as u64) };
                            tell(map, at, 8);
                        }
                    }
                    round
                })
            })
            .collect();
        for _ in 0..20 {
            map.msync().expect("msync");
        }
        stop.store(true, SeqCst);
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    map.msync().expect("msync");
    let found = committed(dir.path(), &store);
    for (n, word) in found.chunks_exact(8).take(words * THREADS).enumerate() {
        let wanted = last[n % THREADS] << 8 | (n % THREADS) as u64;
        assert_eq!(u64::from_le_bytes(word.try_into().expect("8 bytes")), wanted, "word {n}");
    }
}

/// The changes of a transaction that fails are in no other commit, even if the program declares them once more.
#[test]
fn what_is_told_beside_bytes_of_a_transaction_that_fails() {
    let dir = directory();
    let (store, file, map) = mapped(dir.path(), 2, &explicit());
    map.msync().expect("msync");
    let (mut first, mut second) = (store.begin(), store.begin());
    first.create("name", 0o600).expect("create");
    second.create("name", 0o600).expect("create");
    second.add(&file).expect("add");
    poke(&map, 0, b"TTTT");
    let first = first.commit_async().expect("submit");
    let second = second.commit_async().expect("submit");
    store_unmarked(&map, 8, b"SSSS");
    tell(&map, 0, 64);
    let behind = map.msync_async().expect("submit");
    first.wait().expect("the first has the name");
    assert!(second.wait().is_err(), "the second cannot have it");
    behind.wait().expect("an ordinary commit");
    assert_eq!(loaded(&map, 0..16), b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
    assert_eq!(&committed(dir.path(), &store)[..16], b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
}

#[test]
fn told_pages_are_given_back() {
    let dir = directory();
    let (store, _file, map) = mapped(dir.path(), 2000, &explicit());
    (0..2000).for_each(|page| poke(&map, page * PAGE + 7, b"told"));
    map.msync().expect("msync");
    assert!(store.status().maps[0].private_bytes >= 2000 * PAGE as u64);
    map.reclaim().expect("reclaim");
    assert!(store.status().maps[0].private_bytes < 100 * PAGE as u64);
    assert_eq!(peek(&map, 1999 * PAGE + 7, 4), b"told");
}

#[test]
fn a_map_of_another_tracker_is_refused() {
    let (_dir, _store, file) = new_store_of(1);
    let map = file.map_with(&explicit()).expect("map");
    match file.map_with(&MapOptions::new().tracker(TrackerKind::PageMap)) {
        Err(Error::Invalid { detail, .. }) => assert!(detail.contains("tracker explicit"), "{detail}"),
        other => panic!("{other:?}"),
    }
    drop(map);
}

#[test]
fn stores_that_nobody_told_of_are_found() {
    let dir = directory();
    let (store, file, map) = mapped(dir.path(), 64, &explicit().debug_unmarked(true));
    assert_eq!(map.tracker().expect("a map"), TrackerKind::Explicit);
    poke(&map, 10, b"told");
    file.write_all_at(b"written", 2 * PAGE as u64).expect("write");
    map.msync().expect("all of it was told of");
    store_unmarked(&map, PAGE + 100, &[0xAA; 8]);
    store_unmarked(&map, 60 * PAGE - 1, &[0xAA; 2]);
    poke(&map, PAGE + 200, b"beside");
    for commit in 2..4 {
        let message = refused(map.msync(), &["invalid"]).to_string();
        let first = format!("8 bytes at address {:#x} (offset {}, page 1)", at(&map, PAGE + 100) as usize, PAGE + 100);
        let second = format!("(offset {}, page 59)", 60 * PAGE - 1);
        assert!(message.contains(&first) && message.contains(&second), "{message}");
        assert!(message.contains(&format!("commit {commit} ")) && !message.contains("other places"), "{message}");
    }
    let before = committed(dir.path(), &store);
    assert_eq!(&before[10..14], b"told");
    assert!(!before.contains(&0xAA) && before[PAGE + 200] == 1, "a refused commit leaves the file alone");
    tell(&map, PAGE + 100, 8);
    refused(store.syncv(&[&file]), &["invalid"]);
    tell(&map, 60 * PAGE - 1, 2);
    map.msync_async().expect("told by now").wait().expect("durable");
    let after = committed(dir.path(), &store);
    assert_eq!(after.iter().filter(|byte| **byte == 0xAA).count(), 10);
    assert_eq!(&after[PAGE + 200..PAGE + 206], b"beside");
    // The declared store is undone, and then the check finds nothing.
    poke(&map, 3 * PAGE, b"undone");
    map.rollback().expect("rollback");
    map.reclaim().expect("reclaim");
    map.msync().expect("nothing has changed");
    // Storing the old value is no change.
    store_unmarked(&map, 10, b"told");
    map.msync().expect("nothing has changed");
    (0..20).for_each(|page| store_unmarked(&map, page * PAGE + 50, &[0xBB]));
    let message = refused(map.msync(), &["invalid"]).to_string();
    assert!(message.contains("and 12 other places"), "{message}");
    // With another tracker there is nothing to check.
    drop(map);
    let map = file.map_with(&MapOptions::new().debug_unmarked(true)).expect("map");
    store_unmarked(&map, 10, b"found");
    map.msync().expect("found");
}

#[test]
fn the_environment_asks_for_the_check() {
    const TEST: &str = "the_environment_asks_for_the_check";
    const DIRECTORY: &str = "UNTORN_TEST_TOLD";
    let stores = |dir: &std::path::Path| {
        let (store, _file, map) = mapped(dir, 8, &explicit());
        let commits = (0..3).map(|_| {
            store_unmarked(&map, 7, b"X");
            store_unmarked(&map, 5 * PAGE, b"Y");
            map.msync()
        });
        let kinds: Vec<&str> = commits.map(|done| done.map_or_else(|e| e.kind(), |()| "done")).collect();
        drop(store);
        kinds
    };
    if let Some(dir) = std::env::var_os(DIRECTORY) {
        return println!("commits: {}", stores(dir.as_ref()).join(" "));
    }
    for (wanted, commits, printed) in [
        ("1", "invalid invalid invalid", 0),
        ("warn", "done done done", 2),
        ("0", "done done done", 0),
        ("", "done done done", 0),
    ] {
        let dir = directory();
        let mut child = untorn_testkit::again!(TEST);
        let out = child.env(DIRECTORY, dir.path()).env("UNTORN_DEBUG_UNMARKED", wanted).output().expect("a child");
        let (out, err) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.contains(&format!("commits: {commits}")), "{wanted}: {out}{err}");
        let places = err.lines().filter(|line| line.contains("not marked dirty before commit 1: 1 bytes at address"));
        assert_eq!((places.count(), err.matches("not marked dirty").count()), (printed, printed), "{wanted}: {err}");
    }
}
