//! Corners where a commit, a checkpoint or a refusal meets another: each was once lost, doubled or
//! taken for damage.

mod hooked;

use hooked::Hooked;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use untorn::{Error, Outcome, Store, StoreOptions};
use untorn_crashlab::{Failed, Fault, Model, On, Options, PROFILES, Profile, SimDisk, What};
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
fn a_transaction_that_names_a_file_without_changes_breaks_no_chain() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let (a, b) = (store.create("a").unwrap(), store.create("b").unwrap());
    a.write_at(b"one", 0).unwrap();
    a.commit().unwrap();
    let mut txn = store.begin();
    txn.add(&a).unwrap();
    txn.add(&b).unwrap();
    b.write_at(b"other", 0).unwrap();
    txn.commit().unwrap();
    a.write_at(b"two", 0).unwrap();
    a.commit().unwrap();
    assert_eq!(recovered(&disk).get("a").unwrap(), b"two");
}

/// Two commits of one file, the second with nothing of its own: what the first took and could not
/// write is the second's to write, or to refuse.
#[test]
fn a_commit_does_not_rely_on_one_that_failed() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let file = store.create("a").unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    let first = file.commit_async().unwrap();
    // A change of names keeps the two out of one group.
    let mut between = store.begin();
    between.chmod("a", 0o640).unwrap();
    drop(between.commit_async().unwrap());
    let second = file.commit_async().unwrap();
    disk.fail(Fault { on: On::Write, after: 0, times: 1, what: What::Errno(libc::EIO) });
    assert!(matches!(second.wait(), Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. })));
    assert!(first.wait().is_err());
    let third = file.commit();
    assert!(matches!(third, Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. })), "{third:?}");
}

#[test]
fn a_commit_takes_over_what_one_before_it_could_not_do() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let file = store.create("a").unwrap();
    // Many pieces: their list goes into an extent, for which there is no room once.
    for i in 0..4000u64 {
        file.write_at(b"x", i * 2).unwrap();
    }
    let first = file.commit_async().unwrap();
    let second = file.commit_async().unwrap();
    let create = Fault { on: On::Name, after: 0, times: 2, what: What::Errno(libc::ENOSPC) };
    disk.fail(create);
    let (first, second) = (first.wait(), second.wait());
    assert!(first.is_err());
    if second.is_ok() {
        assert_eq!(recovered(&disk).get("a").unwrap().len(), 7999);
    }
}

#[test]
fn large_changes_of_a_refused_commit_can_be_committed_one_file_after_the_other() {
    let disk = disk(Profile::Ext4);
    let store = open(&disk);
    let (a, b, c) = (store.create("a").unwrap(), store.create("b").unwrap(), store.create("c").unwrap());
    store.syncv(&[&a, &b, &c]).unwrap();
    disk.settle();
    a.write_at(&[1; 30_000], 0).unwrap();
    b.write_at(&[2; 30_000], 0).unwrap();
    // The file's attribute cannot be set, so that the commit of both is refused.
    disk.put("d", b"").unwrap();
    let d = store.file("d").unwrap();
    d.write_at(b"d", 0).unwrap();
    disk.fail(Fault { on: On::Attribute, after: 0, times: 10, what: What::Errno(libc::ENOSPC) });
    assert!(store.syncv(&[&a, &b, &d]).is_err());
    disk.clear_faults();
    assert_eq!(extents(&disk), 1, "one extent has the large changes of both");
    a.commit().unwrap();
    store.checkpoint().unwrap();
    b.commit().unwrap();
    assert_eq!(recovered(&disk).get("b").unwrap(), [2; 30_000]);
}

/// Of a group, a part is written and the rest fails before the flush: nobody may say that the part
/// will not come back.
#[test]
fn what_was_written_and_not_flushed_is_not_called_refused() {
    for blocks in 0..4 {
        let disk = disk(Profile::Ext4);
        let store = open(&disk);
        let (a, b) = (store.create("a").unwrap(), store.create("b").unwrap());
        for size in 0..blocks {
            a.truncate(size).unwrap();
            a.commit().unwrap();
        }
        store.checkpoint().unwrap();
        // The record fills its blocks but for some bytes, too few for any other record.
        a.truncate(8000).unwrap();
        a.commit().unwrap();
        a.write_at(&[1; 3950], 0).unwrap();
        let small = a.commit_async().unwrap();
        (0..4000u64).for_each(|i| b.write_at(b"x", i * 2).unwrap());
        let large = b.commit_async().unwrap();
        let sync = Fault { on: On::Step(Step::ExtentContents), after: 0, times: 1, what: What::Errno(libc::EIO) };
        disk.fail(sync);
        let small = small.wait();
        assert!(large.wait().is_err());
        let kept = recovered(&disk).get("a").unwrap_or_default().first() == Some(&1);
        match small {
            Err(Error::SyncFailed { outcome: Outcome::NotCommitted, .. }) => assert!(!kept, "{blocks}: it came back"),
            Err(Error::SyncFailed { .. }) => {}
            done => panic!("{done:?}"),
        }
    }
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
}

/// A checkpoint finds a file gone that a later commit removed. That removal must be durable before the
/// records are given up that the file would need if it came back.
#[test]
fn a_file_removed_under_a_checkpoint_does_not_come_back_as_an_older_one() {
    for profile in PROFILES {
        let disk = disk(profile);
        let store = open(&disk);
        let file = store.create("a").unwrap();
        store.checkpoint().unwrap();
        file.write_at(b"doomed", 0).unwrap();
        file.commit().unwrap();
        let checkpoint = store.cut().unwrap().unwrap();
        let mut removal = store.begin();
        removal.unlink("a").unwrap();
        removal.commit().unwrap();
        checkpoint.apply().unwrap().retire().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            assert!(recovered(&snapshot.power_cut(cut).disk).get("a").is_err(), "{profile:?} {cut}");
        }
    }
}

/// A store that does something else, once, when it makes this call of the storage.
fn open_with_surprise(
    disk: &SimDisk,
    options: StoreOptions,
    call: &'static str,
    surprise: impl Fn(&Store) + Send + Sync + 'static,
) -> (Store, impl Fn()) {
    let armed: Arc<Mutex<Option<Store>>> = Arc::default();
    let taken = armed.clone();
    let hook = move |name: &str| {
        if name == call
            && let Some(store) = taken.lock().unwrap().take()
        {
            surprise(&store);
        }
    };
    let storage = Hooked::over(disk.process(), Arc::new(hook));
    let store = options.open_on(storage, Home::of_directory(), PathBuf::new()).expect("a healthy disk");
    let arm = {
        let store = store.clone();
        move || *armed.lock().unwrap() = Some(store.clone())
    };
    (store, arm)
}

#[test]
fn a_mode_that_changes_under_a_checkpoint_is_flushed_by_close() {
    for profile in PROFILES {
        let disk = disk(profile);
        // When the checkpoint has flushed the file and goes on to its directory.
        let (store, arm) = open_with_surprise(&disk, options(), "sync_dir", |store| {
            let mut txn = store.begin();
            txn.chmod("a", 0o640).unwrap();
            txn.commit().unwrap();
        });
        let file = store.create("a").unwrap();
        file.write_at(b"contents", 0).unwrap();
        file.commit().unwrap();
        arm();
        store.checkpoint().unwrap();
        store.close().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            assert_eq!(recovered(&snapshot.power_cut(cut).disk).entry("a").unwrap().mode, 0o640, "{profile:?} {cut}");
        }
    }
}

/// With `full_page`, a record brings what the checkpoint after it needs, also if it was asked for before the
/// last one began.
#[test]
fn a_page_is_logged_whole_for_the_checkpoint_that_follows() {
    let disk = SimDisk::new(Options { profile: Profile::Ext4, model: Model::PageGarbage, ..Options::default() });
    disk.put("a", &[1; 4096]).unwrap();
    disk.settle();
    let store = open_with(&disk, options().full_page(true)).unwrap();
    let a = store.file("a").unwrap();
    a.write_at(&[2; 100], 0).unwrap();
    a.commit().unwrap();
    a.write_at(&[3; 100], 1000).unwrap();
    let asked_for_before = a.commit_async().unwrap();
    store.cut().unwrap().unwrap().apply().unwrap().retire().unwrap();
    asked_for_before.wait().unwrap();
    disk.record();
    store.checkpoint().unwrap();
    for snapshot in disk.recorded() {
        for cut in snapshot.cuts(64, 1) {
            let after = recovered(&snapshot.power_cut(cut).disk).get("a").unwrap();
            let right = [&[2; 100][..], &[1; 900], &[3; 100], &[1; 2996]].concat();
            assert!(after == right, "{} {cut}", snapshot.call());
        }
    }
}
