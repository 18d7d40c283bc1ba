//! What two steps of an open store do to each other: a checkpoint, and a commit that comes in between and fails, waits or
//! removes what the checkpoint is about.

use crate::checkpoint::open_with_surprise;
use crate::fixture::{contents, roomy, small};
use std::path::Path;
use std::sync::Arc;
use untorn::{Error, File, Outcome, Store, sync_point};
use untorn_crashlab::{Cut, Failed, Fault, On, PROFILES, Profile, SimDisk, What};

fn commit(file: &File, contents: &[u8]) {
    file.write_at(contents, 0).unwrap();
    file.commit().unwrap();
}

/// A file that is made with its contents, which are written before it gets its name.
fn create(store: &Store, name: &str, contents: &[u8]) -> File {
    let mut txn = store.begin();
    let file = txn.create(name, 0o600).unwrap();
    file.write_all_at(contents, 0).unwrap();
    txn.commit().unwrap();
    file
}

/// Commits both files; the flush of the record fails, and nobody knows.
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

/// Both files are old, or both are new.
fn is_one_state(disk: &SimDisk, x: &str) {
    let moment = disk.snapshot();
    for cut in moment.cuts(64, 1) {
        let after = roomy::recovered(&moment.power_cut(cut).disk);
        assert_eq!(after.get(x).unwrap(), after.get("y").unwrap(), "{cut}");
    }
}

/// No name can be made or removed any more.
fn refuse_names(disk: &SimDisk) {
    disk.fail(Fault { on: On::Name, after: 0, times: u64::MAX, what: What::Errno(libc::ENOSPC) });
}

/// A checkpoint wrote all that was committed of a file whose first contents a commit had written, a commit that may have
/// failed included.
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

/// The flush of the whole file system told a checkpoint, which failed, that contents of a file were lost. The next one,
/// to which the file belonged, was told nothing.
#[test]
fn contents_whose_loss_another_checkpoint_was_told_of_are_written_again() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let many: Vec<_> = (0..20).map(|n| store.open_or_create(n.to_string()).unwrap()).collect();
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

/// Two directories are flushed by the checkpoint to come, and the log is filling up.
fn two_directories(store: &Store) {
    let mut txn = store.begin();
    txn.mkdir("z", 0o700).unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    drop(txn.create("z/y", 0o600).unwrap());
    drop(txn.create("w", 0o600).unwrap());
    txn.commit().unwrap();
    let filler = store.open_or_create("filler").unwrap();
    while store.status().journal_bytes_pending * 2 <= store.status().journal_bytes_max {
        commit(&filler, &[7; 1900]);
    }
}

/// A file that could not be written was restated although a commit had removed it by then.
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
        commit(&store.open_or_create("n").unwrap(), b"replacement");
        let old = store.open_or_create("old").unwrap();
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

/// A file was removed by a commit under the checkpoint, and the removal waits itself: the file is still on the disk, and
/// needs the records that the checkpoint gave up.
#[test]
fn a_removal_that_waits_under_the_checkpoint_keeps_the_log() {
    let disk = Arc::new(roomy::disk(Profile::AnyPosix));
    let refusing = disk.clone();
    let (store, arm) = open_with_surprise(&disk, roomy::options(), "sync_all", move |store| {
        refuse_names(&refusing);
        store.rename("n", "x").unwrap();
    });
    let first = store.open_or_create("a").unwrap();
    let x = store.open_or_create("x").unwrap();
    commit(&first, b"one");
    commit(&x, b"before, and longer");
    commit(&store.open_or_create("n").unwrap(), b"replacement");
    store.checkpoint().unwrap();
    commit(&first, b"two");
    commit(&x, b"newest");
    arm(0);
    let _ = store.checkpoint();
    assert_eq!(disk.get("a").unwrap(), b"two");
    assert!(disk.get("n").is_ok(), "the removal waits");
    disk.clear_faults();
    let moment = disk.snapshot();
    let cuts = moment.cuts(64, 1).into_iter().map(|cut| (cut.to_string(), moment.power_cut(cut).disk));
    for (how, after) in cuts.chain([("killed".to_owned(), moment.killed())]) {
        let after = roomy::recovered(&after);
        assert_eq!((after.get("x").unwrap(), after.get("n").is_err()), (b"replacement".to_vec(), true), "{how}");
    }
}

/// A name that waited kept a log that was not filling up, and a commit larger than the room behind it was refused.
#[test]
fn a_large_commit_restates_what_waits() {
    let disk = small::disk();
    let options = || small::options().sizes(64 << 10, 16 << 10, 60 << 10);
    let store = small::open_with(&disk, options()).unwrap();
    let many: Vec<_> = (0..12).map(|n| store.open_or_create(n.to_string()).unwrap()).collect();
    store.syncv(&many.iter().collect::<Vec<_>>()).unwrap();
    let a = store.open_or_create("a").unwrap();
    for _ in 0..60 {
        commit(&a, &[1; 1900]);
    }
    store.checkpoint().unwrap();
    refuse_names(&disk);
    let mut txn = store.begin();
    txn.create("x", 0o600).unwrap().write_all_at(b"newest", 0).unwrap();
    txn.commit().unwrap();
    disk.clear_faults();
    disk.put("x", b"foreign").unwrap();
    while store.status().journal_bytes_pending < 24 << 10 {
        commit(&a, &[2; 1900]);
    }
    assert!(store.status().journal_bytes_pending * 2 < store.status().journal_bytes_max);
    for file in &many {
        file.write_at(&[3; 3700], 0).unwrap();
    }
    store.syncv(&many.iter().collect::<Vec<_>>()).unwrap();
    let after = disk.snapshot().power_cut(Cut::Nothing).disk;
    let _ = after.remove("x");
    let store = small::open_with(&after, options()).unwrap();
    assert_eq!(store.status().quarantined, []);
    assert_eq!(contents(&store.open_file("11").unwrap()), [3; 3700]);
    store.close().unwrap();
    assert_eq!(after.get("x").unwrap(), b"newest");
}
