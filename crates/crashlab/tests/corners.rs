//! Corners where a commit, a checkpoint or a refusal meets another: each was once lost, doubled or
//! taken for damage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::{Error, Store, StoreOptions};
use untorn_crashlab::{Cut, Failed, Fault, On, Options, PROFILES, Profile, SimDisk, What};
use untorn_journal::home::Home;
use untorn_os::Step;

fn disk(profile: Profile) -> SimDisk {
    SimDisk::new(Options { profile, ..Options::default() })
}

fn options() -> StoreOptions {
    StoreOptions::default().background(false).sizes(256 << 10, 16 << 10, 32 << 10)
}

fn open_with(disk: &SimDisk, options: StoreOptions) -> untorn::Result<Store> {
    options.open_on(disk.process(), Home::of_directory(), PathBuf::new())
}

fn open(disk: &SimDisk) -> Store {
    open_with(disk, options()).expect("a healthy disk")
}

/// What recovery makes of the machine after its processes were killed.
fn recovered(disk: &SimDisk) -> SimDisk {
    let after = disk.fork();
    let store = open_with(&after, options()).expect("recovery");
    assert_eq!(store.status().quarantined.iter().map(|q| q.reason.clone()).collect::<Vec<_>>(), Vec::<String>::new());
    store.close().expect("a clean close");
    after
}

fn extents(disk: &SimDisk) -> usize {
    let is_extent = |path: &Path| path.to_string_lossy().starts_with(".untorn/journal/extent.");
    disk.tree().iter().filter(|(path, _)| is_extent(path)).count()
}

#[test]
fn a_transaction_without_changes_does_not_stand_before_the_next_commit() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let file = store.create("a").unwrap();
    let mut txn = store.begin();
    txn.add(&file).unwrap();
    txn.commit().unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    file.commit().unwrap();
    assert_eq!(recovered(&disk).get("a").unwrap(), b"acknowledged");
}

#[test]
fn a_commit_behind_the_removal_of_its_file_is_refused() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let (a, b) = (store.create("a").unwrap(), store.create("b").unwrap());
    let mut removal = store.begin();
    removal.unlink("a").unwrap();
    let removed = removal.commit_async().unwrap();
    a.write_at(b"too late", 0).unwrap();
    let late = a.commit_async().unwrap();
    b.write_at(b"kept", 0).unwrap();
    b.commit().unwrap();
    removed.wait().unwrap();
    assert!(matches!(late.wait(), Err(Error::Io { .. })), "the file is gone");
    let after = recovered(&disk);
    assert!(after.get("a").is_err());
    assert_eq!(after.get("b").unwrap(), b"kept");
}

#[test]
fn a_commit_behind_a_failed_creation_of_its_file_is_refused() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let mut first = store.begin();
    let mut second = store.begin();
    let _x = first.create("x", 0o600).unwrap();
    let y = second.create("x", 0o600).unwrap();
    let first = first.commit_async().unwrap();
    let second = second.commit_async().unwrap();
    y.write_at(b"nowhere", 0).unwrap();
    let third = y.commit_async().unwrap();
    first.wait().unwrap();
    assert!(second.wait().is_err(), "the name is taken");
    assert!(third.wait().is_err(), "the file never came to be");
    assert_eq!(recovered(&disk).get("x").unwrap(), b"");
}

#[test]
fn a_mark_that_was_not_flushed_makes_no_file_newer_than_the_journal() {
    for profile in PROFILES {
        let disk = disk(profile);
        let store = open(&disk);
        let file = store.create("a").unwrap();
        file.write_at(b"acknowledged", 0).unwrap();
        file.commit().unwrap();
        assert!(store.mark().unwrap());
        disk.record();
        let checkpoint = store.cut().unwrap().unwrap().apply().unwrap();
        checkpoint.retire().unwrap();
        for snapshot in disk.recorded() {
            for cut in snapshot.cuts(256, 1) {
                let after = recovered(&snapshot.power_cut(cut).disk);
                assert_eq!(after.get("a").unwrap(), b"acknowledged", "{profile:?} {} {cut}", snapshot.call());
            }
        }
    }
}

#[test]
fn a_segment_whose_name_was_not_flushed_can_be_made_again() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let file = store.create("a").unwrap();
    let once = Fault { on: On::Step(Step::SegmentName), after: 0, times: 1, what: What::Writeback(Failed::Lost) };
    disk.fail(once);
    let mut refused = 0;
    for i in 0..40u64 {
        file.write_at(&[i as u8; 1000], i * 1000).unwrap();
        refused += usize::from(file.commit().is_err());
    }
    assert!(refused <= 1, "{refused} commits were refused after one failed flush");
    assert_eq!(recovered(&disk).get("a").unwrap().len(), 40_000);
}

#[test]
fn a_rolled_back_large_change_leaves_nothing_after_a_refused_commit() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let file = store.create("a").unwrap();
    file.commit().unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    // The record finds no segment, and no room for one.
    let full = Fault { on: On::Write, after: 0, times: 10, what: What::Errno(libc::ENOSPC) };
    disk.fail(Fault { on: On::Step(Step::ExtentContents), ..full });
    assert!(file.commit().is_err());
    disk.clear_faults();
    file.rollback().unwrap();
    assert_eq!(extents(&disk), 0);
}

#[test]
fn names_are_judged_by_what_is_committed_not_by_what_is_there_yet() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let mut txn = store.begin();
    drop(txn.create("x", 0o600).unwrap());
    // The journal takes the commit, and then the disk does not take the name.
    disk.fail(Fault { on: On::Name, after: 0, times: 1, what: What::Errno(libc::ENOSPC) });
    txn.commit().unwrap();
    let mut again = store.begin();
    if again.create("x", 0o640).is_ok() {
        assert!(again.commit().is_err(), "one name, two files");
    }
    let after = recovered(&disk);
    assert_eq!(after.entry("x").unwrap().mode, 0o600);
    let _ = Arc::new(Cut::Nothing);
}
