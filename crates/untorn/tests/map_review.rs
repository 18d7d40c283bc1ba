//! Mappings where a reading of the code found a store that was lost, a change that came back, or memory that nobody
//! had asked for. Each with every tracker that works here.

mod common;

use common::*;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::{Error, File, Map, MapOptions, Store, StoreOptions, Tracker};

const PAGE: usize = 4096;

fn with_trackers(test: impl Fn(Tracker)) {
    for tracker in [Tracker::Scan, Tracker::PageMap] {
        let dir = directory();
        let file = File::create(dir.path().join("probe")).expect("create");
        match file.map_with(&MapOptions::new().tracker(tracker)) {
            Ok(_) => test(tracker),
            Err(Error::Unsupported { detail, .. }) => skipped(&format!("tracker {tracker}: {detail}")),
            Err(e) => panic!("{e}"),
        }
    }
}

/// A store with one file of so many pages, each filled with its number.
fn store_of(dir: &Path, pages: usize) -> (Store, File) {
    let contents: Vec<u8> = (0..pages * PAGE).map(|i| (i / PAGE) as u8).collect();
    fs::write(dir.join("f"), &contents).expect("write");
    let store = StoreOptions::default().background(false).open(dir).expect("open");
    let file = store.file("f").expect("file");
    (store, file)
}

fn poke(map: &Map, range: Range<usize>, byte: u8) {
    assert!(range.end <= map.len().next_multiple_of(PAGE as u64) as usize);
    // SAFETY: inside the map's last page, and no other thread is here.
    unsafe { std::ptr::write_bytes(map.as_mut_ptr().add(range.start), byte, range.len()) }
}

fn peek(map: &Map, range: Range<usize>) -> Vec<u8> {
    let mut buf = vec![0; range.len()];
    map.load(&mut buf, range.start as u64).expect("load");
    buf
}

/// What the commits so far left in the data file.
fn committed(dir: &Path, store: &Store) -> Vec<u8> {
    store.checkpoint().expect("checkpoint");
    plain(dir.join("f"))
}

#[test]
fn a_store_behind_an_end_that_moved_is_compared_with_zeros() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 1);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        poke(&map, 200..201, b'X');
        map.msync().expect("msync");
        // The cut tail is zero in memory already.
        poke(&map, 0..PAGE, 0);
        map.resize(100).expect("shrink");
        map.resize(PAGE as u64).expect("grow");
        poke(&map, 200..201, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[200], b'X');

        // The same behind the end, where stores are no part of the file.
        map.resize(100).expect("shrink");
        poke(&map, 0..1, 1);
        poke(&map, 200..201, b'X');
        map.msync().expect("msync");
        poke(&map, 200..201, 0);
        map.resize(PAGE as u64).expect("grow");
        poke(&map, 200..201, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[200], b'X');
    });
}

#[test]
fn a_commit_that_fails_half_way_compares_anew() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        drop((store, file));
        // Above one page of changes, bytes go beside the journal.
        let store =
            StoreOptions::default().sizes(1 << 20, 16 << 10, 4096).background(false).open(dir.path()).expect("open");
        let file = store.file("f").expect("file");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        poke(&map, 0..1, 1);
        map.msync().expect("msync");
        let (journal, away) = (dir.path().join(".untorn/journal"), dir.path().join("away"));
        fs::rename(&journal, &away).expect("rename");
        poke(&map, 0..8 * PAGE, b'X');
        refused(map.msync(), &["io"]);
        fs::rename(&away, &journal).expect("rename");
        poke(&map, 0..1, 1);
        poke(&map, 1..PAGE, 0);
        map.msync().expect("msync");
        let disk = committed(dir.path(), &store);
        assert_same(&disk[..8 * PAGE], &peek(&map, 0..8 * PAGE), "the file holds what memory shows");
    });
}

#[test]
fn what_comes_after_a_commit_does_not_make_it_a_failure() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        let options = MapOptions::new().tracker(tracker).quiet(true).dirty_max(PAGE as u64);
        let map = file.map_with(&options).expect("map");
        poke(&map, 0..1, b'1');
        map.msync().expect("msync");
        // Replaced: commits go on, checkpoints are refused.
        fs::write(dir.path().join("new"), b"another file").expect("write");
        fs::rename(dir.path().join("new"), dir.path().join("f")).expect("rename");
        poke(&map, 0..64 * PAGE, b'2');
        let before = store.status().commits;
        let done = map.msync();
        assert_eq!(store.status().commits, before + 1);
        done.expect("it is committed");
        refused(store.checkpoint(), &["conflict"]);
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
        file.write_at(b"written", 0).expect("write");
        poke(&map, PAGE..PAGE + 1, b'S');
        drop(file);
        map.unmap().expect("unmap");
        txn.commit().expect("commit");
        let disk = committed(dir.path(), &store);
        assert_eq!(&disk[..7], b"written");
        assert_eq!(disk[PAGE], b'S');
    });
}

#[test]
fn a_map_that_cannot_be_read_when_it_ends_leaves_no_part_of_its_stores() {
    with_trackers(|tracker| {
        let dir = directory();
        let pages = 600;
        let (store, file) = store_of(dir.path(), pages);
        let before = plain(dir.path().join("f"));
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        poke(&map, 0..pages * PAGE, b'N');
        let after = peek(&map, 0..pages * PAGE);
        // SAFETY: the map's last page.
        unsafe {
            let last = map.as_mut_ptr().add((pages - 1) * PAGE).cast();
            assert_eq!(libc::mprotect(last, PAGE, libc::PROT_NONE), 0);
        }
        refused(map.unmap(), &["conflict"]);
        // All of it, or nothing.
        let all = file.commit().is_ok();
        let disk = committed(dir.path(), &store);
        assert!(disk == before || (all && disk == after), "a part of the stores was committed");
        file.rollback().expect("rollback");
        assert!(store.status().maps.is_empty(), "the memory is given back");
        file.write_at(b"after", 0).expect("write");
        file.commit().expect("commit");
        assert_eq!(&committed(dir.path(), &store)[..6], b"after\0");
    });
}

#[test]
fn a_write_is_whole_in_whatever_commit_takes_it() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 0);
        let _map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        // Another file of the same commits takes its time.
        let other = store.create("other").expect("create");
        other.truncate(256 * PAGE as u64).expect("truncate");
        let other_map = other.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) && file.size().expect("size") < 8 << 20 {
                    file.append(&[7; 100]).expect("append");
                    std::thread::yield_now();
                }
            });
            for round in 1..=50 {
                poke(&other_map, 0..256 * PAGE, round);
                store.syncv(&[&file, &other]).expect("commit");
                let disk = committed(dir.path(), &store);
                if !disk.len().is_multiple_of(100) || disk.iter().any(|b| *b != 7) {
                    done.store(true, SeqCst);
                    panic!("round {round}: of an append its size was committed, and not its bytes");
                }
            }
            done.store(true, SeqCst);
        });
    });
}

#[test]
fn a_refused_read_ahead_leaves_no_mapping() {
    let dir = directory();
    let (store, file) = store_of(dir.path(), 8);
    fs::OpenOptions::new().write(true).open(dir.path().join("f")).expect("open").set_len(0).expect("truncate");
    assert!(file.map_with(&MapOptions::new().populate(true)).is_err());
    assert!(store.status().maps.is_empty());
}

#[test]
fn what_a_rollback_brings_back_has_room() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        file.truncate(10).expect("truncate");
        let small = MapOptions::new().tracker(tracker).address_space(PAGE as u64);
        let map = file.map_with(&small).expect("map");
        map.rollback().expect("rollback");
        assert_eq!(map.len(), 64 * PAGE as u64);
        assert_eq!(peek(&map, 63 * PAGE..63 * PAGE + 1), [63]);
        poke(&map, 63 * PAGE..63 * PAGE + 1, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[63 * PAGE], b'X');
    });
}

#[test]
fn memory_stays_when_the_store_is_closed_before_its_transaction() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 4);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        let mut txn = store.begin();
        txn.add(&file).expect("add");
        poke(&map, 3 * PAGE..3 * PAGE + 1, b'X');
        store.close().expect("close");
        drop(txn);
        // SAFETY: inside the map.
        let found = unsafe { map.as_ptr().add(3 * PAGE + 1).read() };
        assert_eq!(found, 3, "bytes that nobody changed");
    });
}

#[test]
fn the_map_of_an_unlinked_file_ends_where_its_memory_ends() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 8);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        map.resize(PAGE as u64).expect("shrink");
        map.msync().expect("msync");
        let mut txn = store.begin();
        txn.unlink("f").expect("unlink");
        txn.commit().expect("commit");
        assert!(map.len() <= PAGE as u64, "{} bytes", map.len());
        // What was stored stays as long as the map.
        poke(&map, 0..1, b'X');
        let _ = map.quiesce();
        // SAFETY: inside the map.
        assert_eq!(unsafe { map.as_ptr().read() }, b'X');
    });
}

#[test]
fn a_rollback_of_zeros_takes_no_memory() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 2);
        let size = 256u64 << 20;
        file.truncate(size).expect("grow");
        file.write_at(b"far", size - 3).expect("write");
        file.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        file.write_at(b"committed", 100 << 20).expect("write");
        file.commit().expect("commit");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        for how in ["zero", "truncate"] {
            match how {
                "zero" => file.zero(0, size).expect("zero"),
                _ => {
                    map.resize(0).expect("shrink");
                    map.resize(size).expect("grow");
                }
            }
            map.rollback().expect("rollback");
            assert_eq!(peek(&map, PAGE..PAGE + 1), [1]);
            assert_eq!(peek(&map, 100 << 20..(100 << 20) + 10), b"committed\0");
            assert_eq!(peek(&map, size as usize - 3..size as usize), b"far");
            let private = store.status().maps[0].private_bytes;
            assert!(private < 8 << 20, "{how}: {private} bytes of memory");
        }
        poke(&map, PAGE..PAGE + 1, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[PAGE], b'X');
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
        poke(&map, 0..4, b'T');
        let first = first.commit_async().expect("submit");
        let second = second.commit_async().expect("submit");
        // Another store, into the same line.
        poke(&map, 8..12, b'S');
        first.wait().expect("the first has the name");
        assert!(second.wait().is_err(), "the second cannot have it");
        assert_eq!(peek(&map, 0..16), b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
        map.msync().expect("msync");
        assert_eq!(&committed(dir.path(), &store)[..16], b"\0\0\0\0\0\0\0\0SSSS\0\0\0\0");
    });
}

#[test]
fn a_read_may_be_as_large_as_the_file() {
    let dir = directory();
    let (store, file) = store_of(dir.path(), 0);
    let map = file.map().expect("map");
    // More than one call of the system copies.
    let size = (2usize << 30) + PAGE + 1;
    map.resize(size as u64).expect("grow");
    poke(&map, size - 1..size, b'!');
    let mut buf = Repeated::new(size);
    assert_eq!(file.read_at(buf.bytes(), 0).expect("read"), size);
    assert_eq!(buf.bytes()[size - 1], b'!');
    drop((map, file));
    store.close().expect("close");
}

/// Much address space over little memory.
struct Repeated {
    base: *mut libc::c_void,
    len: usize,
}

impl Repeated {
    const PART: usize = 16 << 20;

    fn new(len: usize) -> Repeated {
        let memory = rustix::fs::memfd_create("repeated", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&memory, Self::PART as u64).expect("truncate");
        let len = len.next_multiple_of(Self::PART);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&memory);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, and parts of it mapped anew.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            for at in (0..len).step_by(Self::PART) {
                let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
                assert_ne!(libc::mmap(base.add(at), Self::PART, both, flags, fd, 0), libc::MAP_FAILED);
            }
            Repeated { base, len }
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped in `new`, until dropped. That its parts are the same memory is known to the test alone,
        // which looks at the end only.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

#[test]
fn a_map_for_reading_is_not_given_to_who_stores() {
    const ORDER: &str = "UNTORN_TEST_MAP_READER";
    let name = "a_map_for_reading_is_not_given_to_who_stores";
    let Some(dir) = std::env::var_os(ORDER) else {
        let dir = directory();
        fs::write(dir.path().join("f"), [1; PAGE]).expect("write");
        set_mode(dir.path().join("f"), 0o444);
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", name, "--nocapture"]).env(ORDER, dir.path());
        if is_root() {
            // Whom modes mean something to.
            use std::os::unix::process::CommandExt;
            let nobody = 65534;
            for path in [dir.path().to_owned(), dir.path().join("f")] {
                std::os::unix::fs::chown(path, Some(nobody), Some(nobody)).expect("chown");
            }
            command.uid(nobody).gid(nobody);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(e) => return skipped(&format!("another user cannot run this program: {e}")),
        };
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        return;
    };
    let store = StoreOptions::default().background(false).open(Path::new(&dir)).expect("open");
    let reading = untorn::FileOptions { read_only: true, ..Default::default() };
    let reader = store.file_with("f", &reading).expect("file");
    let map = reader.map().expect("map");
    let mut txn = store.begin();
    txn.chmod("f", 0o644).expect("chmod");
    txn.commit().expect("commit");
    let file = store.file("f").expect("file, for writing now");
    refused(file.map(), &["invalid"]);
    file.write_at(b"written", 0).expect("write");
    assert_eq!(peek(&map, 0..8), b"written\x01");
    drop(map);
    let map = file.map().expect("map");
    poke(&map, 0..1, b'W');
    map.msync().expect("msync");
    assert_eq!(&committed(Path::new(&dir), &store)[..8], b"Written\x01");
}
