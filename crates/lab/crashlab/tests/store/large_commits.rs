//! Large commits with their bytes in spill files.

use crate::fixture::{contents, roomy, small, survives};
use std::path::Path;
use untorn::__private::sync_point;
use untorn::{Error, Outcome};
use untorn_crashlab::{Cut, Failed, Fault, On, PROFILES, Profile, SimDisk, What};

fn spill_files(disk: &SimDisk) -> usize {
    let is_spill_file = |path: &Path| path.to_string_lossy().starts_with(".untorn/journal/spill.");
    disk.tree().iter().filter(|(path, _)| is_spill_file(path)).count()
}

/// Makes the next flushes of spill files fail, as on a disk or quota that turns out to be full only at delayed
/// allocation.
fn no_room_for_extents(disk: &SimDisk, times: u64, errno: i32) {
    disk.fail(Fault { on: On::SyncPoint(sync_point::SPILL_CONTENTS), after: 0, times, what: What::Errno(errno) });
}

#[track_caller]
fn not_committed(result: untorn::Result<()>) {
    match result {
        Err(Error::SyncFailed { outcome: Outcome::NotCommitted, .. }) => {}
        other => panic!("the flush failed, and the answer was {other:?}"),
    }
}

#[track_caller]
fn outcome_unknown(result: untorn::Result<()>) {
    match result {
        Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) => {}
        other => panic!("the flush failed, and the answer was {other:?}"),
    }
}

/// A process that was killed before its first commit left the spill file of a large change behind, and no recovery
/// looked for it, because nothing had been committed.
#[test]
fn an_extent_of_a_change_that_was_never_committed_does_not_stay() {
    survives("closed,posix,sector,tight,direct/0/dirty,kill/");
}

#[test]
fn large_changes_of_a_refused_commit_can_be_committed_one_file_after_the_other() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let (a, b, c) = (
        store.open_or_create_file("a").unwrap(),
        store.open_or_create_file("b").unwrap(),
        store.open_or_create_file("c").unwrap(),
    );
    store.syncv(&[&a, &b, &c]).unwrap();
    disk.settle();
    a.write_at(&[1; 30_000], 0).unwrap();
    b.write_at(&[2; 30_000], 0).unwrap();
    // The file's attribute cannot be set, so the commit of all three is refused.
    disk.put("d", b"").unwrap();
    let d = store.open_file("d").unwrap();
    d.write_at(b"d", 0).unwrap();
    disk.fail(Fault { on: On::Attribute, after: 0, times: 10, what: What::Errno(libc::ENOSPC) });
    assert!(store.syncv(&[&a, &b, &d]).is_err());
    disk.clear_faults();
    assert_eq!(spill_files(&disk), 1, "one spill file has the large changes of both");
    a.commit().unwrap();
    store.checkpoint().unwrap();
    b.commit().unwrap();
    assert_eq!(roomy::recovered(&disk).get("b").unwrap(), [2; 30_000]);
}

#[test]
fn a_rolled_back_large_change_leaves_nothing_after_a_refused_commit() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    file.commit().unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    // The record finds no segment, and no room for a new one.
    let full = Fault { on: On::Write, after: 0, times: 10, what: What::Errno(libc::ENOSPC) };
    disk.fail(Fault { on: On::SyncPoint(sync_point::SPILL_NAME), ..full });
    assert!(file.commit().is_err());
    disk.clear_faults();
    file.rollback().unwrap();
    assert_eq!(spill_files(&disk), 0);
}

#[test]
fn an_operation_list_whose_flush_found_no_room_is_not_committed() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = small::disk();
        let store = small::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
        file.write_at(b"old", 0).unwrap();
        file.commit().unwrap();
        // So many ranges that their list fits into no segment.
        for i in 0..4000 {
            file.write_at(&[7], i * 10).unwrap();
        }
        no_room_for_extents(&disk, 1, errno);
        not_committed(file.commit());
        for cut in disk.snapshot().cuts(64, 1) {
            let after = disk.snapshot().power_cut(cut).disk;
            assert_eq!(contents(&small::open(&after).open_file("a").unwrap()), b"old", "{cut}");
        }
    }
}

/// The contents are flushed together with the record, so only the next opening shows whether both are on the disk.
#[test]
fn a_failed_flush_of_an_extent_is_not_believed_to_have_mended() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = small::disk();
        let store = small::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
        file.write_at(b"old", 0).unwrap();
        file.commit().unwrap();
        file.write_at(&[7; 20_000], 0).unwrap();
        no_room_for_extents(&disk, 1, errno);
        outcome_unknown(file.commit());
        // The disk would return OK now, which proves nothing about the data that it dropped before.
        outcome_unknown(file.commit());
        let other = store.open_file("a").unwrap();
        other.write_at(b"new", 0).unwrap();
        not_committed(other.commit());
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(contents(&small::open(&after).open_file("a").unwrap()), b"old");
    }
}

/// The flush of the contents fails while the record finds no segment. A flush that succeeds later proves nothing.
#[test]
fn a_failed_flush_of_an_extent_counts_although_its_record_was_not_written() {
    let disk = small::disk();
    let store = small::open(&disk);
    let [file, other] = ["a", "b"].map(|name| store.open_or_create_file(name).unwrap());
    file.write_at(b"old", 0).unwrap();
    file.commit().unwrap();
    let no_segment =
        Fault { on: On::SyncPoint(sync_point::SEGMENT_NAME), after: 0, times: 100, what: What::Errno(libc::EIO) };
    disk.fail(no_segment);
    let fill = |n: u64| other.write_at(&[1], n).and_then(|_| other.commit());
    assert!((0..100).any(|n| fill(n).is_err()), "the first segment is never full");
    other.rollback().unwrap();
    file.write_at(&[7; 20_000], 0).unwrap();
    let on = On::SyncPoint(sync_point::SPILL_CONTENTS);
    disk.fail(Fault { on, after: 0, times: 1, what: What::Writeback(Failed::Lost) });
    assert!(file.commit().is_err());
    disk.clear_faults();
    not_committed(file.commit());
    let after = disk.snapshot().power_cut(Cut::Nothing).disk;
    assert_eq!(contents(&small::open(&after).open_file("a").unwrap()), b"old");
}

/// The numbers of successful and failed block sharings in the next checkpoint of the store.
fn shared_blocks(disk: &SimDisk, store: &untorn::Store) -> (usize, usize) {
    disk.trace();
    store.checkpoint().unwrap();
    let clones = disk.traced().into_iter().filter(|call| call.contains(" clone "));
    let (done, failed): (Vec<_>, Vec<_>) = clones.partition(|call| call.ends_with("-> ok"));
    (done.len(), failed.len())
}

#[test]
fn whole_blocks_of_a_large_commit_are_shared_and_the_rest_is_copied() {
    for profile in PROFILES {
        for seed in 0..40 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let disk = roomy::disk(profile);
            let store = roomy::open(&disk);
            let file = store.open_or_create_file("a").unwrap();
            let mut model = vec![1; rng.usize(1..20_000)];
            file.write_at(&model, 0).unwrap();
            file.commit().unwrap();
            store.checkpoint().unwrap();
            let mut shares = false;
            for fill in 2..5 {
                let (at, len) = (rng.usize(..model.len()), rng.usize(32_769..60_000));
                file.write_at(&vec![fill; len], at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].fill(fill);
                // A hole in the committed contents, and a piece that begins within a block.
                let hole = rng.usize(..model.len() - 10);
                file.zero(hole as u64, 10).unwrap();
                model[hole..hole + 10].fill(0);
                file.commit().unwrap();
                let after = disk.snapshot();
                shares |= shared_blocks(&disk, &store).0 > 0;
                assert!(disk.get("a").unwrap() == model, "{profile:?}, seed {seed}: the file after a checkpoint");
                for cut in after.cuts(4, seed).into_iter().chain(disk.snapshot().cuts(4, seed)) {
                    let cut = disk.snapshot().power_cut(cut).disk;
                    assert!(
                        roomy::recovered(&cut).get("a").unwrap() == model,
                        "{profile:?}, seed {seed}: after a crash"
                    );
                }
            }
            assert_eq!(shares, matches!(profile, Profile::Xfs | Profile::Btrfs), "{profile:?}, seed {seed}");
        }
    }
}

#[test]
fn blocks_that_memory_shows_are_shared_too() {
    let disk = SimDisk::new(untorn_crashlab::Options { profile: Profile::Xfs, memory: true, ..Default::default() });
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    file.write_at(&[1; 100_000], 0).unwrap();
    file.commit().unwrap();
    assert_eq!(shared_blocks(&disk, &store), (1, 0), "nothing is mapped");
    let map = file.map().unwrap();
    map.store(&[2; 90_000], 5_000).unwrap();
    map.msync().unwrap();
    let mut model = vec![1; 100_000];
    model[5_000..95_000].fill(2);
    for cut in disk.snapshot().cuts(8, 1) {
        let cut = disk.snapshot().power_cut(cut).disk;
        assert!(roomy::recovered(&cut).get("a").unwrap() == model, "a power cut after an acknowledged msync");
    }
    assert_eq!(shared_blocks(&disk, &store), (1, 0), "stored to the mapping");
    file.write_at(&[3; 100_000], 0).unwrap();
    file.commit().unwrap();
    assert_eq!(shared_blocks(&disk, &store), (1, 0), "written to a mapped file");
    let mut shown = [0; 100_000];
    map.load(&mut shown, 0).unwrap();
    assert!(shown == [3; 100_000], "memory shows the last commit");
    map.store(&[4; 100], 50_000).unwrap();
    map.msync().unwrap();
    drop((map, file));
    store.close().unwrap();
    let mut bytes = vec![3; 100_000];
    bytes[50_000..50_100].fill(4);
    assert!(disk.get("a").unwrap() == bytes, "the file after the close");
}

#[test]
fn sharing_that_fails_is_copying() {
    let disk = roomy::disk(Profile::Xfs);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    file.write_at(&[1; 100_000], 0).unwrap();
    file.commit().unwrap();
    disk.fail(Fault { on: On::Write, after: 0, times: 1, what: What::Errno(libc::ENOSPC) });
    assert_eq!(shared_blocks(&disk, &store), (0, 1));
    assert!(!disk.faults_left());
    assert_eq!(disk.get("a").unwrap(), [1; 100_000]);
    assert_eq!(roomy::recovered(&disk).get("a").unwrap(), [1; 100_000]);
}
