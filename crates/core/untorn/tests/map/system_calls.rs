//! System calls of a program on mapped memory: protection, advice, forks, reads into it.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use untorn::{Error, MapOptions};

fn last_os_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

#[test]
fn protection_locks_and_advice_of_the_program() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 16, &MapOptions::new().tracker(tracker).populate(true));
        // SAFETY: calls on whole pages of the map, which stays mapped.
        unsafe {
            poke(&map, PAGE, b"before it was made read-only");
            assert_eq!(libc::mprotect(at(&map, PAGE), PAGE, libc::PROT_READ), 0, "{}", last_os_error());
            assert_committed(dir.path(), &store, &map, PAGE, b"before it was made read-only");
            assert_eq!(libc::mprotect(at(&map, PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            poke(&map, PAGE, b"after");
            assert_committed(dir.path(), &store, &map, PAGE, b"after");

            if libc::mlock(at(&map, 2 * PAGE), 2 * PAGE) == 0 {
                poke(&map, 2 * PAGE, b"locked");
                assert_committed(dir.path(), &store, &map, 2 * PAGE, b"locked");
                map.reclaim().expect("quiesce");
                assert_eq!(peek(&map, 2 * PAGE, 6), b"locked");
                poke(&map, 2 * PAGE, b"again!");
                assert_committed(dir.path(), &store, &map, 2 * PAGE, b"again!");
                // `mlock` made a page private, which the tracker `explicit` does not see and which was not dropped.
                libc::munlock(at(&map, 2 * PAGE), 2 * PAGE);
            } else {
                skipped(&format!("mlock: {}", last_os_error()));
            }

            // Reclaim by the kernel: private pages leave memory and come back if there is swap; file pages always come
            // back.
            poke(&map, 5 * PAGE, b"cold");
            libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_COLD);
            libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_PAGEOUT);
            assert_committed(dir.path(), &store, &map, 5 * PAGE, b"cold");

            // Once the data file has everything, dropped pages show the file's bytes. Before that, dropping them is
            // forbidden: see GUARANTEES.
            map.reclaim().expect("quiesce");
            assert_eq!(libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!(peek(&map, 5 * PAGE, 4), b"cold");
            poke(&map, 5 * PAGE + 4, b"er");
            assert_committed(dir.path(), &store, &map, 5 * PAGE, b"colder");

            // A page that cannot be read leads to an error, and nothing is lost.
            poke(&map, 6 * PAGE, b"hidden");
            assert_eq!(libc::mprotect(at(&map, 6 * PAGE), PAGE, libc::PROT_NONE), 0);
            refused(map.msync(), &["conflict"]);
            assert_eq!(libc::mprotect(at(&map, 6 * PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            assert_committed(dir.path(), &store, &map, 6 * PAGE, b"hidden");
        }
    });
}

#[test]
fn a_fork_leaves_the_parent_whole_and_the_child_out() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
        poke(&map, 0, b"before");
        // SAFETY: the child only reads memory, makes calls that allocate little, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = peek(&map, 0, 6) == b"before";
            poke(&map, 0, b"child!");
            let refused = matches!(map.msync(), Err(Error::Forked));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if same && refused { 0 } else { 1 }) };
        }
        poke(&map, 2 * PAGE, b"after the fork");
        let mut status = 0;
        // SAFETY: the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw what it should");
        assert_committed(dir.path(), &store, &map, 0, b"before");
        assert_committed(dir.path(), &store, &map, 2 * PAGE, b"after the fork");
    });
}

#[test]
fn system_calls_that_write_into_a_map_are_stores() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 8, &MapOptions::new().tracker(tracker));
        map.msync().expect("msync");
        let source = dir.path().join("source");
        fs::write(&source, [0x5a; 2 * PAGE]).expect("write");
        let source = fs::File::open(source).expect("open");
        // SAFETY: inside the map, and nobody else is here.
        let into =
            |offset: usize, len: usize| unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().add(offset), len) };
        source.read_exact_at(into(PAGE + 100, PAGE), 0).expect("read");
        tell(&map, PAGE + 100, PAGE);
        assert_committed(dir.path(), &store, &map, PAGE + 100, &[0x5a; PAGE]);
        let (mut from, mut to) = std::os::unix::net::UnixStream::pair().expect("sockets");
        from.write_all(&[0x77; 5000]).expect("write");
        to.read_exact(into(4 * PAGE - 10, 5000)).expect("read");
        tell(&map, 4 * PAGE - 10, 5000);
        assert_committed(dir.path(), &store, &map, 4 * PAGE - 10, &[0x77; 5000]);
        // Declares all stores that a tracker does not see.
        map.mark_dirty(map.as_ptr(), map.len() as usize).expect("mark");
        map.msync().expect("msync");
        refused(map.mark_dirty(map.as_ptr().wrapping_add(1), map.len() as usize), &["invalid"]);
    });
}
