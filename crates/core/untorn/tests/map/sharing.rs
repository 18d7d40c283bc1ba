//! One view of a file: several maps, the file interface, and threads that store at the same time.

use crate::common::mapping::*;
use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::{Error, MapOptions};

#[test]
fn the_file_interface_and_maps_are_one_view() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(4);
        file.write_all_at(b"before", 50).unwrap();
        let map = file.map_with(&options(tracker)).unwrap();
        let part = file.map_with(&MapOptions::new().offset(PAGE as u64).len(PAGE as u64)).unwrap();
        assert_eq!(bytes(&map, 50, 6), b"before", "staged before it was mapped");
        poke(&part, 7, b"part");
        assert_eq!(bytes(&map, PAGE as u64 + 7, 4), b"part");
        assert_eq!(part.len(), PAGE as u64);
        file.write_all_at(b"after", 2 * PAGE as u64 - 2).unwrap();
        assert_eq!(bytes(&map, 2 * PAGE as u64 - 2, 5), b"after");
        file.zero(50, 2).unwrap();
        assert_eq!(bytes(&map, 50, 6), b"\0\0fore");
        file.commit().unwrap();
        store.checkpoint().unwrap();
        let disk = plain(dir.path().join("f"));
        assert_eq!((&disk[50..56], &disk[PAGE + 7..PAGE + 11]), (&b"\0\0fore"[..], &b"part"[..]));
        assert_eq!(&disk[2 * PAGE - 2..2 * PAGE + 3], b"after");
        drop(map);
        assert_eq!(bytes(&part, 7, 4), b"part", "the mapping stays with its last map");
    });
}

#[test]
fn a_write_is_whole_in_whatever_commit_takes_it() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 0);
        let _map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        // Another file in the same commits takes a long time.
        let other = store.open_or_create_file("other").expect("create");
        other.set_len(256 * PAGE as u64).expect("truncate");
        let other_map = other.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) && file.len().expect("size") < 8 << 20 {
                    file.append(&[7; 100]).expect("append");
                    std::thread::yield_now();
                }
            });
            for round in 1..=50 {
                fill(&other_map, 0..256 * PAGE, round);
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
fn a_racing_store_is_reported_and_not_torn() {
    with_trackers(|tracker| {
        let (_dir, _store, file) = new_store_of(2);
        let map = file.map_with(&options(tracker).debug_races(true)).unwrap();
        poke(&map, 0, b"x");
        map.msync().unwrap();
        let address = map.as_mut_ptr() as usize + PAGE + 77;
        let (started, stop) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
        let reported = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u8;
                started.wait();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n = n.wrapping_add(1);
                    // SAFETY: inside the map, which outlives the thread.
                    unsafe { (address as *mut u8).write_volatile(n) };
                    tell(&map, PAGE + 77, 1);
                }
            });
            started.wait();
            // On a busy machine the other thread may not run for long.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
            let mut reported = None;
            while reported.is_none() && std::time::Instant::now() < end {
                reported = map.msync().err();
            }
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

/// Another thread stores all the time: a commit has the bytes that were copied once, both in the journal and in the
/// file.
#[test]
fn a_racing_store_is_never_torn() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 2, &MapOptions::new().tracker(tracker));
        let (address, started, stop) =
            (map.as_mut_ptr() as usize, std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    // SAFETY: aligned, inside the map, which outlives the thread.
                    unsafe { (address as *mut u64).add(8).write_volatile(n) };
                    tell(&map, 64, 8);
                    if n == 1 {
                        started.wait();
                    }
                }
            });
            started.wait();
            let mut last = 0;
            for _ in 0..200 {
                map.msync().expect("msync");
                store.checkpoint().expect("checkpoint");
                let disk = plain(dir.path().join("f"));
                let n = u64::from_le_bytes(disk[64..72].try_into().expect("8 bytes"));
                assert!(n >= last, "{n} after {last}");
                last = n;
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let n = u64::from_le_bytes(peek(&map, 64, 8).try_into().expect("8 bytes"));
        assert_committed(dir.path(), &store, &map, 64, &n.to_le_bytes());
    });
}

#[test]
fn a_read_may_be_as_large_as_the_file() {
    let dir = directory();
    let (store, file) = store_of(dir.path(), 0);
    let map = file.map().expect("map");
    // More than one system call can copy.
    let size = (2usize << 30) + PAGE + 1;
    map.resize(size as u64).expect("grow");
    fill(&map, size - 1..size, b'!');
    let mut buf = Repeated::new(size);
    assert_eq!(file.read_at(buf.bytes(), 0).expect("read"), size);
    assert_eq!(buf.bytes()[size - 1], b'!');
    drop((map, file));
    store.close().expect("close");
}

/// Much address space backed by little memory.
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
        // SAFETY: mapped in `new`, until dropped. Its parts are the same memory, but only this test knows that, and it
        // looks at the end only.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}
