//! Checkpoints: the changes that they apply, and changes during them.

use crate::fixture::{contents, roomy, survives};
use crate::hooked::Hooked;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::{Store, StoreOptions};
use untorn_crashlab::{Fault, On, PROFILES, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;

/// A store that does something else, once, when it makes this call of the storage; arming it sets the number of these
/// calls that pass first.
pub fn open_with_surprise(
    disk: &SimDisk,
    options: StoreOptions,
    call: &'static str,
    surprise: impl Fn(&Store) + Send + Sync + 'static,
) -> (Store, impl Fn(u64)) {
    let armed: Arc<Mutex<Option<(Store, u64)>>> = Arc::default();
    let counted = armed.clone();
    let due = move || {
        let mut armed = counted.lock();
        let (_, left) = armed.as_mut()?;
        match left.checked_sub(1) {
            Some(fewer) => {
                *left = fewer;
                None
            }
            None => armed.take(),
        }
    };
    let hook = move |name: &str| {
        if name == call
            && let Some((store, _)) = due()
        {
            surprise(&store);
        }
    };
    let storage = Arc::new(Hooked::over(disk.process(), Arc::new(hook)));
    let store = options.open_on(storage, StoreDir::of_directory(), PathBuf::new()).expect("a healthy disk");
    let arm = {
        let store = store.clone();
        move |calls| *armed.lock() = Some((store.clone(), calls))
    };
    (store, arm)
}

/// The gap before a write behind the end was left as a hole, in which a crash had put old sectors.
#[test]
fn the_gap_before_a_write_behind_the_end_is_zero() {
    survives("closed,posix,sector,tight,buffered/0/empty,group,retire/");
    survives("closed,posix,sector,tight,buffered/0/replace,group,retire/");
}

/// A checkpoint finds that a later commit has removed a file. That removal must be durable before the records are
/// dropped that the file would need if it came back.
#[test]
fn a_file_removed_under_a_checkpoint_does_not_come_back_as_an_older_one() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
        store.checkpoint().unwrap();
        file.write_at(b"doomed", 0).unwrap();
        file.commit().unwrap();
        let checkpoint = store.begin_checkpoint().unwrap().unwrap();
        let mut removal = store.begin();
        removal.unlink("a").unwrap();
        removal.commit().unwrap();
        checkpoint.apply().unwrap().truncate_log().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            assert!(roomy::recovered(&snapshot.power_cut(cut).disk).get("a").is_err(), "{profile:?} {cut}");
        }
    }
}

#[test]
fn a_mode_that_changes_under_a_checkpoint_is_flushed_by_close() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        // When the checkpoint has flushed the file, before it flushes its directory.
        let (store, arm) = open_with_surprise(&disk, roomy::options(), "sync_dir", |store| {
            let mut txn = store.begin();
            txn.chmod("a", 0o640).unwrap();
            txn.commit().unwrap();
        });
        let file = store.open_or_create_file("a").unwrap();
        file.write_at(b"contents", 0).unwrap();
        file.commit().unwrap();
        arm(0);
        store.checkpoint().unwrap();
        store.close().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            assert_eq!(
                roomy::recovered(&snapshot.power_cut(cut).disk).entry("a").unwrap().mode,
                0o640,
                "{profile:?} {cut}"
            );
        }
    }
}

/// A checkpoint had flushed a directory when a commit of other names made a removal in that directory that had failed
/// until then. The checkpoint took the removal for flushed, and dropped its record.
#[test]
fn names_that_are_applied_behind_the_flush_of_their_directory_keep_their_records() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        // The root's directory is flushed by then, and the other one is next.
        let (store, arm) = open_with_surprise(&disk, roomy::options(), "sync_dir", |store| {
            let mut txn = store.begin();
            txn.mkdir("later", 0o700).unwrap();
            txn.commit().unwrap();
        });
        let mut txn = store.begin();
        txn.mkdir("doomed", 0o700).unwrap();
        txn.mkdir("z", 0o700).unwrap();
        txn.commit().unwrap();
        store.checkpoint().unwrap();
        let mut txn = store.begin();
        drop(txn.create("z/file", 0o600).unwrap());
        txn.commit().unwrap();
        // Neither the commit nor the checkpoint can remove the directory yet.
        disk.fail(Fault { on: On::Name, after: 0, times: 2, what: What::Errno(libc::ENOSPC) });
        let mut txn = store.begin();
        txn.rmdir("doomed").unwrap();
        txn.commit().unwrap();
        arm(1);
        let done = store.checkpoint();
        assert!(disk.entry("doomed").is_err() && disk.entry("later").is_ok(), "the other commit came in between");
        assert!(done.is_err(), "{profile:?}: not all of it was flushed");
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            let after = roomy::recovered(&snapshot.power_cut(cut).disk);
            assert!(after.entry("doomed").is_err(), "{profile:?} {cut}: an acknowledged removal is lost");
            assert!(after.entry("later").is_ok() && after.entry("z/file").is_ok(), "{profile:?} {cut}");
        }
    }
}

/// A checkpoint failed for lack of space, and each later commit of the file was refused for that reason, even with
/// space again, until somebody asked for a checkpoint.
#[test]
fn a_checkpoint_that_found_no_space_is_tried_again_by_the_next_commit() {
    let faults = [On::SyncPoint(sync_point::CHECKPOINT_DATA), On::Write];
    for (profile, on) in PROFILES.into_iter().flat_map(|profile| faults.map(|on| (profile, on))) {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
        file.write_at(b"before", 0).unwrap();
        file.commit().unwrap();
        disk.fail(Fault { on, after: 0, times: 2, what: What::Errno(libc::ENOSPC) });
        store.checkpoint().unwrap_err();
        file.write_at(b"during", 6).unwrap();
        let refused = file.commit().unwrap_err();
        assert_eq!(refused.kind(), "no-space", "{profile:?} {on:?}: {refused}");
        assert_eq!(store.status().quarantined.len(), 1);
        disk.clear_faults();
        file.commit().unwrap_or_else(|e| panic!("{profile:?} {on:?}: refused with space again: {e}"));
        assert_eq!(store.status().quarantined, [], "{profile:?} {on:?}");
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(64, 1) {
            let after = roomy::recovered(&snapshot.power_cut(cut).disk);
            assert_eq!(after.get("a").unwrap(), b"beforeduring", "{profile:?} {on:?} {cut}");
        }
        assert_eq!(contents(&file), b"beforeduring");
        store.close().unwrap();
    }
}

/// The checkpoint flushed directories by name: if a file had a directory's name by then, the checkpoint failed with
/// ENOTDIR, for good.
#[test]
fn a_directory_that_became_a_file_is_flushed_as_what_it_is() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let mut txn = store.begin();
        txn.mkdir("d", 0o700).unwrap();
        drop(txn.create("d/inside", 0o600).unwrap());
        txn.commit().unwrap();
        let mut txn = store.begin();
        txn.unlink("d/inside").unwrap();
        txn.rmdir("d").unwrap();
        let file = txn.create("d", 0o600).unwrap();
        file.write_at(b"a file", 0).unwrap();
        txn.commit().unwrap();
        let recovered = roomy::recovered(&disk);
        assert_eq!(recovered.get("d").unwrap(), b"a file", "{profile:?}");
        store.checkpoint().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(64, 1) {
            let after = roomy::recovered(&snapshot.power_cut(cut).disk);
            assert_eq!(after.get("d").unwrap(), b"a file", "{profile:?} {cut}");
        }
    }
}

/// A file had moved into a directory, and a later commit removed both. The checkpoint of the move found no directory to
/// flush and dropped the move's record: after a power cut the file was back in its first place.
#[test]
fn a_directory_that_is_removed_under_a_checkpoint_has_its_removal_flushed() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let mut txn = store.begin();
        for dir in ["from", "to", "to/deep"] {
            txn.mkdir(dir, 0o700).unwrap();
        }
        drop(txn.create("from/file", 0o600).unwrap());
        txn.commit().unwrap();
        store.checkpoint().unwrap();
        store.rename("from/file", "to/deep/file").unwrap();
        let checkpoint = store.begin_checkpoint().unwrap().unwrap();
        let mut txn = store.begin();
        txn.unlink("to/deep/file").unwrap();
        txn.rmdir("to/deep").unwrap();
        txn.commit().unwrap();
        checkpoint.apply().unwrap().truncate_log().unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            let after = roomy::recovered(&snapshot.power_cut(cut).disk);
            assert!(after.entry("from/file").is_err(), "{profile:?} {cut}: a removed file is back");
        }
    }
}
