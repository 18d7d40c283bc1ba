//! Interplay of two steps of an open store: a checkpoint, and a commit that comes in between and fails, waits or
//! removes files of the checkpoint.

use crate::checkpoint::open_with_surprise;
use crate::fixture::{contents, roomy, small};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use untorn::__private::{StoreSteps, sync_point};
use untorn::{Error, File, Outcome, Store};
use untorn_crashlab::{Cut, Failed, Fault, On, PROFILES, Profile, SimDisk, What};

fn commit(file: &File, contents: &[u8]) {
    file.write_at(contents, 0).unwrap();
    file.commit().unwrap();
}

/// Creates a file with contents, which are written before the file gets its name.
fn create(store: &Store, name: &str, contents: &[u8]) -> File {
    let mut txn = store.begin();
    let file = txn.create(name, 0o600).unwrap();
    file.write_all_at(contents, 0).unwrap();
    txn.commit().unwrap();
    file
}

/// Commits both files; the flush of the record fails, and the outcome is unknown.
fn commit_unknown(disk: &SimDisk, store: &Store, x: &File, y: &File) {
    let lost = What::Writeback(Failed::Lost);
    disk.fail(Fault { on: On::SyncPoint(sync_point::COMMIT), after: 0, times: 1, what: lost });
    for file in [x, y] {
        file.write_all_at(b"new", 0).unwrap();
    }
    match store.syncv(&[x, y]) {
        Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) => {}
        other => panic!("{other:?}"),
    }
    disk.clear_faults();
}

/// Asserts that both files are old, or both are new.
fn is_one_state(disk: &SimDisk, x: &str) {
    let moment = disk.snapshot();
    for cut in moment.cuts(64, 1) {
        let after = roomy::recovered(&moment.power_cut(cut).disk);
        assert_eq!(after.get(x).unwrap(), after.get("y").unwrap(), "{cut}");
    }
}

/// Makes creating and removing names fail from now on.
fn refuse_names(disk: &SimDisk) {
    disk.fail(Fault { on: On::Name, after: 0, times: u64::MAX, what: What::Errno(libc::ENOSPC) });
}

/// A checkpoint wrote all committed changes of a file whose first contents a commit had written, including a commit
/// that may have failed.
#[test]
fn a_commit_that_may_have_failed_is_not_written_by_a_checkpoint() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let x = create(&store, "x", b"odd");
        let y = create(&store, "y", b"old");
        commit(&x, b"old");
        let checkpoint = store.begin_checkpoint().unwrap().unwrap();
        commit_unknown(&disk, &store, &x, &y);
        assert!(checkpoint.apply().and_then(|checkpoint| checkpoint.truncate_log()).is_err(), "{profile:?}");
        assert_ne!(disk.get("x").unwrap(), b"new", "{profile:?}");
        is_one_state(&disk, "x");
    }
}

/// The flush of the whole file system reported to a failed checkpoint that contents of a file were lost. The next
/// checkpoint, which had to write the file, got no report.
#[test]
fn contents_whose_loss_another_checkpoint_was_told_of_are_written_again() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let many: Vec<_> = (0..20).map(|n| store.open_or_create_file(n.to_string()).unwrap()).collect();
        store.checkpoint().unwrap();
        many.iter().for_each(|file| commit(file, b"one"));
        let checkpoint = store.begin_checkpoint().unwrap().unwrap();
        let x = create(&store, "x", b"acknowledged");
        disk.fail_writeback(Path::new("x"), Failed::Lost).unwrap();
        assert!(checkpoint.apply().is_err(), "{profile:?}: the flush was told");
        if store.checkpoint().is_err() {
            store.checkpoint().unwrap();
        }
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(roomy::recovered(&after).get("x").unwrap(), b"acknowledged", "{profile:?}");
        drop(x);
    }
}

/// Makes changes so that the next checkpoint flushes two directories, and the log is filling up.
fn two_directories(store: &Store) {
    let mut txn = store.begin();
    txn.mkdir("z", 0o700).unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    drop(txn.create("z/y", 0o600).unwrap());
    drop(txn.create("w", 0o600).unwrap());
    txn.commit().unwrap();
    let filler = store.open_or_create_file("filler").unwrap();
    while store.status().journal_bytes_pending * 2 <= store.status().journal_bytes_max {
        commit(&filler, &[7; 1900]);
    }
}

/// A file that could not be written was restated, although a commit had removed it by then.
#[test]
fn a_file_that_waits_and_is_removed_under_the_checkpoint_is_not_restated() {
    for replaced in [false, true] {
        let disk = Arc::new(small::disk());
        let other = disk.clone();
        let (store, arm) = open_with_surprise(&disk, small::options(), "sync_dir", move |store| {
            other.remove("second").unwrap();
            let mut txn = store.begin();
            match replaced {
                true => txn.rename("n", "old").unwrap(),
                false => txn.unlink("old").unwrap(),
            }
            txn.commit().unwrap();
        });
        commit(&store.open_or_create_file("n").unwrap(), b"replacement");
        let old = store.open_or_create_file("old").unwrap();
        commit(&old, b"before");
        two_directories(&store);
        commit(&old, b"newest");
        disk.hard_link("old", "second").unwrap();
        disk.settle();
        arm(1);
        let _ = store.checkpoint();
        assert!(disk.get("second").is_err(), "the other commit came in between");
        for _ in 0..2 {
            let moment = disk.snapshot();
            for cut in moment.cuts(64, 1) {
                let after = moment.power_cut(cut).disk;
                let _ = after.remove("second");
                let store = small::open(&after);
                assert_eq!(store.status().quarantined, [], "{cut}");
                store.close().unwrap();
                let expected = replaced.then(|| b"replacement".to_vec());
                assert_eq!(after.get("old").ok(), expected, "{cut}");
            }
            let _ = store.checkpoint();
        }
    }
}

/// A commit removed files during the checkpoint, and the removals wait themselves: the files are still on the disk, and
/// need the records that the checkpoint dropped.
#[test]
fn a_removal_that_waits_under_the_checkpoint_keeps_the_log() {
    // Whichever of them the checkpoint flushes first, it finds the others gone.
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    for profile in PROFILES {
        let disk = Arc::new(roomy::disk(profile));
        let refusing = disk.clone();
        let (store, arm) = open_with_surprise(&disk, roomy::options(), "sync_all", move |store| {
            refuse_names(&refusing);
            let mut txn = store.begin();
            NAMES.into_iter().for_each(|name| txn.unlink(name).unwrap());
            txn.commit().unwrap();
        });
        let files = NAMES.map(|name| store.open_or_create_file(name).unwrap());
        files.iter().for_each(|file| commit(file, b"before, and longer"));
        store.checkpoint().unwrap();
        files.iter().for_each(|file| commit(file, b"newest"));
        arm(0);
        assert!(store.checkpoint().is_err(), "{profile:?}: it tells what waits");
        assert!(NAMES.into_iter().all(|name| disk.get(name).is_ok()), "{profile:?}: the removals wait");
        disk.clear_faults();
        let moment = disk.snapshot();
        let cuts = moment.cuts(64, 1).into_iter().map(|cut| (cut.to_string(), moment.power_cut(cut).disk));
        for (how, after) in cuts.chain([("killed".to_owned(), moment.killed())]) {
            let after = roomy::recovered(&after);
            assert!(NAMES.into_iter().all(|name| after.get(name).is_err()), "{profile:?}, {how}");
        }
    }
}

/// A name that waits keeps a log that is never half full, because the journal cannot grow: commits found no room in it.
#[test]
fn a_commit_that_finds_no_room_restates_what_waits() {
    let disk = small::disk();
    let store = small::open(&disk);
    let a = store.open_or_create_file("a").unwrap();
    while store.status().journal_bytes_allocated < 32 << 10 {
        commit(&a, &[1; 1900]);
    }
    store.checkpoint().unwrap();
    refuse_names(&disk);
    let mut txn = store.begin();
    txn.create("x", 0o600).unwrap().write_all_at(b"newest", 0).unwrap();
    txn.commit().unwrap();
    disk.clear_faults();
    disk.put("x", b"foreign").unwrap();
    let no_segment = On::SyncPoint(sync_point::SEGMENT_CONTENTS);
    disk.fail(Fault { on: no_segment, after: 0, times: u64::MAX, what: What::Errno(libc::ENOSPC) });
    for version in 0..100 {
        a.write_at(&[version; 1900], 0).unwrap();
        a.commit().unwrap_or_else(|e| panic!("version {version}: {e}"));
        let status = store.status();
        assert!(status.journal_bytes_pending * 2 <= status.journal_bytes_max, "not half full");
    }
    disk.clear_faults();
    let after = disk.snapshot().power_cut(Cut::Nothing).disk;
    let _ = after.remove("x");
    let store = small::open(&after);
    assert_eq!(store.status().quarantined, []);
    assert_eq!(contents(&store.open_file("a").unwrap()), [99; 1900]);
    store.close().unwrap();
    assert_eq!(after.get("x").unwrap(), b"newest");
}

/// A file's rename waited, and a commit behind it may have failed. The checkpoint that made the name wrote that commit
/// to the file.
#[test]
fn a_commit_that_may_have_failed_is_not_written_before_a_name() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let [x, y, other] = ["x", "y", "other"].map(|name| {
            let file = store.open_or_create_file(name).unwrap();
            commit(&file, b"old");
            file
        });
        store.checkpoint().unwrap();
        commit(&other, b"new");
        let checkpoint = store.begin_checkpoint().unwrap().unwrap();
        let mut txn = store.begin();
        txn.rename("x", "z").unwrap();
        let renamed = txn.commit_async().unwrap();
        let mut txn = store.begin();
        for file in [&x, &y] {
            txn.add(file).unwrap();
            file.write_all_at(b"new", 0).unwrap();
        }
        let written = txn.commit_async().unwrap();
        refuse_names(&disk);
        let lost = What::Writeback(Failed::Lost);
        disk.fail(Fault { on: On::SyncPoint(sync_point::COMMIT), after: 1, times: 1, what: lost });
        renamed.wait().unwrap();
        match written.wait() {
            Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(disk.get("x").is_ok(), "the rename waits");
        disk.clear_faults();
        let _ = checkpoint.apply();
        is_one_state(&disk, "z");
    }
}

/// While a checkpoint wrote many files, a commit flushed the whole file system, and got the report that contents of one
/// of them were lost. The checkpoint's own flush got no report.
#[test]
fn contents_whose_loss_a_commit_was_told_of_are_written_again() {
    for profile in PROFILES {
        let disk = Arc::new(roomy::disk(profile));
        for n in 0..20 {
            disk.put(format!("plain{n}"), b"old").unwrap();
        }
        disk.settle();
        let failing = disk.clone();
        let (store, arm) = open_with_surprise(&disk, roomy::options(), "set_attribute", move |store| {
            failing.fail_writeback(Path::new("0"), Failed::Lost).unwrap();
            let plain: Vec<_> = (0..20).map(|n| store.open_file(format!("plain{n}")).unwrap()).collect();
            plain.iter().for_each(|file| file.write_all_at(b"new", 0).unwrap());
            let committed = store.syncv(&plain.iter().collect::<Vec<_>>());
            // With an ordered log, a first commit flushes only the journal.
            let flushes_all = !matches!(profile, Profile::Ext4 | Profile::Xfs);
            assert_eq!(committed.is_err(), flushes_all, "{profile:?}: who was told");
        });
        let many: Vec<_> = (0..20).map(|n| store.open_or_create_file(n.to_string()).unwrap()).collect();
        store.checkpoint().unwrap();
        many.iter().for_each(|file| commit(file, b"one"));
        // When the last file gets its attribute, all files are written.
        arm(19);
        assert!(store.checkpoint().is_err(), "{profile:?}: something was lost");
        if store.checkpoint().is_err() {
            store.checkpoint().unwrap();
        }
        let after = roomy::recovered(&disk.snapshot().power_cut(Cut::Nothing).disk);
        for n in 0..20 {
            assert_eq!(after.get(n.to_string()).unwrap(), b"one", "{profile:?}, {n}");
        }
    }
}

/// While a commit renames a file, another thread opens the old name: it waits for the rename, and finds nothing.
#[test]
fn opening_a_name_waits_for_the_rename_that_takes_it_away() {
    let disk = roomy::disk(Profile::Ext4);
    let (tell, told) = mpsc::channel();
    let moment = Arc::new(Mutex::new(Some(tell)));
    let (store, arm) = open_with_surprise(&disk, roomy::options(), "rename", move |store| {
        let (store, tell) = (store.clone(), moment.lock().take().unwrap());
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(store.open_file("x").map(drop)).unwrap();
            let _ = end.send(());
        });
        // A call that does not wait is done by then.
        let _ = ended.recv_timeout(Duration::from_millis(300));
    });
    commit(&store.open_or_create_file("x").unwrap(), b"contents");
    store.checkpoint().unwrap();
    arm(0);
    store.rename("x", "y").unwrap();
    let refused = told.recv().unwrap().expect_err("the name is gone");
    assert_eq!(refused.os_error(), Some(libc::ENOENT), "{refused}");
    assert_eq!(contents(&store.open_file("y").unwrap()), b"contents");
}
