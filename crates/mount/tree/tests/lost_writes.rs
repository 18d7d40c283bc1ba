//! Writes that the kernel sends late, and that find no room.
//!
//! The tree knows their ranges, recovers the data if the kernel still has all of it, and otherwise lacks it until
//! programs write it anew. No commit has a part of it.

mod common;

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use untorn_crashlab::{Fault, On, SimDisk, What};
use untorn_tree::*;

const EIO: std::result::Result<(), Errno> = Err(Errno(libc::EIO));
const ENOSPC: std::result::Result<(), Errno> = Err(Errno(libc::ENOSPC));
const LEN: usize = 100_000;
/// Length and position of the write that finds no room.
const LOST: usize = 4 << 20;
const AT: u64 = 200_000;

fn fill(disk: &SimDisk) {
    disk.fail(Fault { on: On::Change, after: 0, times: 10_000, what: What::Errno(libc::ENOSPC) });
}

/// A file with a commit and uncommitted changes, of which a write has failed.
fn with_lost() -> (SimDisk, Arc<TestClock>, StoreTree, Ino) {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", &[1; LEN]);
    tree.write(a, 0, &[2; 10]).unwrap();
    fill(&disk);
    assert_eq!(tree.write(a, AT, &vec![3; LOST]), ENOSPC);
    disk.clear_faults();
    (disk, clock, tree, a)
}

/// All of the file, with the lost data.
fn whole() -> Vec<u8> {
    let mut bytes = vec![0; AT as usize + LOST];
    bytes[..LEN].fill(1);
    bytes[..10].fill(2);
    bytes[AT as usize..].fill(3);
    bytes
}

fn committed(disk: &SimDisk, clock: &Arc<TestClock>) -> Vec<u8> {
    contents_of(&open(&disk.fork(), clock), "a")
}

/// A kernel that has all of the file up to a position in its cache.
struct Cached<'a> {
    up_to: u64,
    /// A write of a program, before the kernel gives a part.
    written: Option<&'a (dyn Fn() + Sync)>,
    /// Sizes of files that were rolled back, as reported to the kernel.
    rolled_back: Mutex<Vec<u64>>,
}

impl Cached<'_> {
    fn up_to(up_to: u64) -> Cached<'static> {
        Cached { up_to, written: None, rolled_back: Mutex::default() }
    }
}

impl KernelCache for Cached<'_> {
    fn write_back(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn cached(&self, _: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.written.iter().for_each(|write| write());
        if offset + buf.len() as u64 > self.up_to {
            return Err(Errno(libc::EIO));
        }
        buf.copy_from_slice(&whole()[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn rolled_back(&self, _: Ino, size: u64) {
        self.rolled_back.lock().push(size);
    }
}

#[test]
fn it_is_missed_until_all_of_it_is_written_anew() {
    let (disk, clock, tree, a) = with_lost();
    let mut part = [0; 100];
    assert_eq!(tree.read(a, AT - 50, &mut part), Err(Errno(libc::EIO)), "what there is is not what was written last");
    assert_eq!(tree.read(a, 0, &mut part), Ok(100));
    let other = file(&tree, "other");
    tree.write(other, 0, b"other").unwrap();
    let half = LOST / 2;
    tree.write(a, AT + half as u64, &vec![3; LOST - half]).unwrap();
    let everywhere = |clock: &TestClock| {
        assert_eq!(tree.sync(a, &Clean), EIO);
        assert_eq!(tree.sync_all(&Clean), EIO, "all is not committed");
        assert_eq!(tree.prepare_end(&Clean), EIO);
        assert_eq!(tree.sync_files(&[other, a], &Clean), EIO);
        assert_eq!(tree.link(a, ROOT, name("b"), &Clean).map(drop), EIO);
        clock.pass(60);
        tree.tick(&Clean);
        assert_eq!(tree.status().unwrap().poisoned, [std::path::PathBuf::from("a")]);
    };
    everywhere(&clock);
    assert_eq!(committed(&disk, &clock), [1; LEN]);
    assert_eq!(contents_of(&open(&disk.fork(), &clock), "other"), b"other", "all else is");
    tree.write(a, AT, &vec![3; half - 1]).unwrap();
    everywhere(&clock);
    tree.write(a, AT + half as u64 - 1, &[3]).unwrap();
    tree.sync(a, &Clean).unwrap();
    assert_eq!(tree.status().unwrap().poisoned.len(), 0);
    assert!(contents_of(&reopen(&disk, &clock, tree), "a") == whole());
}

#[test]
fn it_is_not_missed_when_it_is_cut_off_or_zeros_by_the_programs_will() {
    let (disk, clock, tree, a) = with_lost();
    tree.set_attributes(a, &Change { size: Some(AT + 1), ..Change::default() }).unwrap();
    assert_eq!(tree.sync(a, &Clean), EIO, "a byte is still lost");
    tree.set_attributes(a, &Change { size: Some(AT), ..Change::default() }).unwrap();
    tree.sync(a, &Clean).unwrap();
    assert!(contents_of(&reopen(&disk, &clock, tree), "a") == whole()[..AT as usize]);

    let (disk, clock, tree, a) = with_lost();
    let punches = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    tree.allocate(a, AT, LOST as u64, punches).unwrap();
    tree.sync(a, &Clean).unwrap();
    assert!(contents_of(&reopen(&disk, &clock, tree), "a") == whole()[..LEN]);
}

#[test]
fn it_is_brought_back_where_the_kernel_has_all_of_it() {
    for way in 0..3 {
        let (disk, clock, tree, a) = with_lost();
        let kernel = Cached::up_to(u64::MAX);
        match way {
            0 => tree.sync(a, &kernel).unwrap(),
            1 => {
                tree.release(a, true);
                tree.sync_all(&kernel).unwrap();
            }
            _ => {
                file(&tree, "b");
                tree.rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Replace, &kernel).unwrap();
                tree.sync_names(&Clean).unwrap();
            }
        }
        let called = if way == 2 { "b" } else { "a" };
        assert!(contents_of(&reopen(&disk, &clock, tree), called) == whole(), "way {way}");
    }
}

#[test]
fn it_stays_lost_where_the_kernel_has_not_all_of_it() {
    let (disk, clock, tree, a) = with_lost();
    assert_eq!(tree.sync(a, &Cached::up_to(AT + LOST as u64 - 1)), EIO);
    assert_eq!(tree.sync_all(&Cached::up_to(AT + LOST as u64 - 1)), EIO);
    assert_eq!(committed(&disk, &clock), [1; LEN], "no mixture of kept and lost pages");
    // The recovered bytes are those that programs wrote: writing the rest is enough.
    tree.write(a, AT, &vec![3; LOST]).unwrap();
    tree.sync(a, &Clean).unwrap();
    assert!(contents_of(&reopen(&disk, &clock, tree), "a") == whole());
}

#[test]
fn without_room_it_is_told_so_and_brought_back_later() {
    let (disk, clock, tree, a) = with_lost();
    let kernel = Cached::up_to(u64::MAX);
    fill(&disk);
    assert_eq!(tree.sync(a, &kernel), ENOSPC);
    assert_eq!(tree.prepare_end(&kernel), ENOSPC);
    disk.clear_faults();
    // Only a sync of the program that has the file open may commit it.
    tree.prepare_end(&kernel).unwrap();
    assert_eq!(committed(&disk, &clock), [1; LEN]);
    tree.release(a, true);
    tree.prepare_end(&kernel).unwrap();
    assert!(contents_of(&reopen(&disk, &clock, tree), "a") == whole());
}

/// A program writes a part anew while the data is being recovered.
#[test]
fn what_is_newer_stays() {
    let (disk, clock, tree, a) = with_lost();
    let write = || tree.write(a, AT + 100, &[9; 1000]).unwrap();
    let kernel = Cached { written: Some(&write), ..Cached::up_to(u64::MAX) };
    tree.sync(a, &kernel).unwrap();
    let found = contents_of(&reopen(&disk, &clock, tree), "a");
    let mut expected = whole();
    expected[AT as usize + 100..][..1000].fill(9);
    assert!(found == expected);
}

/// A file with a failed write that is opened anew for writing goes back to its last commit, and work continues.
#[test]
fn a_file_that_is_opened_anew_is_as_of_its_last_commit() {
    let (disk, clock, tree, a) = with_lost();
    let kernel = Cached::up_to(AT);
    tree.restore(a, &kernel).unwrap();
    assert_eq!(tree.sync(a, &kernel), EIO, "another program has it open");
    tree.release(a, true);
    tree.restore(a, &kernel).unwrap();
    assert_eq!(*kernel.rolled_back.lock(), [LEN as u64]);
    assert_eq!(contents(&tree, a), [1; LEN]);
    tree.open(a, true).unwrap();
    tree.write(a, 0, &[7; 10]).unwrap();
    tree.sync(a, &Clean).unwrap();
    assert_eq!(contents_of(&reopen(&disk, &clock, tree), "a")[..20], [[7; 10], [1; 10]].concat());
    // If the kernel has all of the data, nothing is discarded.
    let (_disk, _clock, tree, a) = with_lost();
    tree.release(a, true);
    let kernel = Cached::up_to(u64::MAX);
    tree.restore(a, &kernel).unwrap();
    assert!(kernel.rolled_back.lock().is_empty() && contents(&tree, a) == whole());
    // Nor is anything discarded if there is no room now.
    let (disk, _clock, tree, a) = with_lost();
    tree.release(a, true);
    fill(&disk);
    tree.restore(a, &kernel).unwrap();
    disk.clear_faults();
    tree.sync(a, &kernel).unwrap();
    assert!(kernel.rolled_back.lock().is_empty() && contents(&tree, a) == whole());
}

/// A program that waits for its write knows that it failed.
#[test]
fn a_write_that_a_program_waits_for_changes_nothing_if_it_fails() {
    let (disk, clock, tree) = new_tree();
    let a = synced(&tree, "a", &[1; LEN]);
    fill(&disk);
    assert_eq!(tree.write_now(a, AT, &vec![3; LOST]), ENOSPC);
    disk.clear_faults();
    tree.write_now(a, 0, &[2; 10]).unwrap();
    tree.sync(a, &Clean).unwrap();
    let found = contents_of(&reopen(&disk, &clock, tree), "a");
    assert!(found == whole()[..LEN], "{}", found.len());
}

/// The kernel reports the failed write at the next write-back. That report must not be taken for another, unknown
/// failed write.
#[test]
fn a_failed_write_is_told_of_once() {
    let (disk, clock, tree, a) = with_lost();
    tree.write(a, AT, &vec![3; LOST]).unwrap();
    tree.sync(a, &Failing).unwrap();
    assert!(contents_of(&open(&disk.fork(), &clock), "a") == whole());
    tree.write(a, 0, &[2; 10]).unwrap();
    assert_eq!(tree.sync(a, &Failing), EIO, "this is another one");
}
