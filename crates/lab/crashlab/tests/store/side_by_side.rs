//! Checkpoints in several threads: files side by side.

use crate::fixture::roomy;
use crate::hooked::{Hook, Hooked, InThreads};
use parking_lot::{Condvar, Mutex};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use untorn::__private::{OpenStoreOn, sync_point};
use untorn::Store;
use untorn_crashlab::{Failed, Fault, On, PROFILES, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;

const RANGE_BYTES: usize = 1 << 10;
const RANGES: usize = 16;

/// A store whose checkpoints have three threads.
fn open(disk: &SimDisk, hook: Hook) -> Store {
    let in_threads: InThreads = |most, work| {
        std::thread::scope(|scope| {
            (1..most.min(3)).for_each(|_| _ = scope.spawn(work));
            work();
        });
    };
    let storage = Arc::new(Hooked { in_threads, ..Hooked::over(disk.process(), hook) });
    roomy::options().open_on(storage, StoreDir::of_directory(), PathBuf::new()).expect("a healthy disk")
}

/// The call at which two threads meet, once it is armed: the first one waits for another.
struct Meeting {
    armed: AtomicBool,
    met: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn at(call: &'static str) -> (Arc<Meeting>, Hook) {
        let meeting = Arc::new(Meeting { armed: AtomicBool::new(false), met: Mutex::new(0), changed: Condvar::new() });
        let own = meeting.clone();
        let hook = move |name: &str| {
            if name == call && own.armed.load(SeqCst) {
                let mut met = own.met.lock();
                *met += 1;
                own.changed.notify_all();
                own.changed.wait_while_for(&mut met, |met| *met < 2, Duration::from_secs(10));
                assert!(*met >= 2, "one thread is in {call} alone");
            }
        };
        (meeting, Arc::new(hook))
    }
}

/// Commits every second range of a file.
fn commit_ranges(store: &Store, name: &str, value: u8) {
    let file = store.open_or_create_file(name).unwrap();
    for range in 0..RANGES {
        file.write_all_at(&[value; RANGE_BYTES], (2 * range * RANGE_BYTES) as u64).unwrap();
    }
    file.commit().unwrap();
}

fn ranges(value: u8) -> Vec<u8> {
    let range = |n| if n % 2 == 0 { [value; RANGE_BYTES] } else { [0; RANGE_BYTES] };
    (0..2 * RANGES - 1).flat_map(range).collect()
}

#[test]
fn files_are_flushed_at_the_same_time() {
    let disk = roomy::disk(PROFILES[0]);
    let (meeting, hook) = Meeting::at("sync_all");
    let store = open(&disk, hook);
    let files = ["a", "b"].map(|name| store.open_or_create_file(name).unwrap());
    for text in [b"old", b"new"] {
        // The first time, the files' attributes are flushed before.
        meeting.armed.store(text == b"new", SeqCst);
        for file in &files {
            file.write_all_at(text, 0).unwrap();
            file.commit().unwrap();
        }
        store.checkpoint().unwrap();
    }
    assert_eq!(*meeting.met.lock(), 2);
    assert_eq!(["a", "b"].map(|name| disk.get(name).unwrap()), [b"new", b"new"]);
}

/// A write or flush fails in one of the threads. The checkpoint fails, the commits stay in the log, the other file is
/// written all the same, and the next checkpoint writes everything again.
#[test]
fn an_error_in_one_thread_keeps_the_log() {
    let flush = On::SyncPoint(sync_point::CHECKPOINT_DATA);
    let faults = [(On::Write, What::Errno(libc::EIO)), (flush, What::Writeback(Failed::Lost))];
    for (on, what) in faults {
        for (profile, after) in PROFILES.iter().flat_map(|profile| (0..2 * RANGES as u64).map(move |n| (*profile, n))) {
            let disk = roomy::disk(profile);
            let store = open(&disk, Arc::new(|_: &str| {}));
            ["a", "b"].iter().for_each(|name| commit_ranges(&store, name, 1));
            store.checkpoint().unwrap();
            ["a", "b"].iter().for_each(|name| commit_ranges(&store, name, 2));
            disk.fail(Fault { on, after, times: 1, what });
            let done = store.checkpoint();
            let snapshot = disk.snapshot();
            for cut in snapshot.cuts(8, after) {
                let recovered = roomy::recovered(&snapshot.power_cut(cut).disk);
                for name in ["a", "b"] {
                    assert!(recovered.get(name).unwrap() == ranges(2), "{profile:?}, {on:?} {after}, {cut}: {name}");
                }
            }
            if done.is_err() {
                let written = ["a", "b"].iter().filter(|name| disk.get(name).unwrap() == ranges(2)).count();
                assert!(written >= 1, "{profile:?}, {on:?} {after}: no file was written");
                store.checkpoint().unwrap();
            }
            assert!(["a", "b"].iter().all(|name| disk.get(name).unwrap() == ranges(2)), "{profile:?}, {on:?} {after}");
        }
    }
}
