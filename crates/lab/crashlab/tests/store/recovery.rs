//! Recovery: which state after a killed owner or a power cut it believes.

use crate::fixture::{small, survives};
use untorn_crashlab::{Cut, Fault, On, What};

/// A killed owner's header was only in the cache. The next owner believed it and reused the journal space that the
/// header had freed, or removed its spill files; a power cut brought the older header back.
#[test]
fn a_header_that_a_killed_owner_left_in_the_cache_is_flushed_before_it_is_believed() {
    survives("closed,btrfs,garbage,tight,buffered/0/across,close/");
    survives("closed,btrfs,garbage,tight,direct/0/one,swap/");
}

/// The flush of the header before the first commit failed, and the store was closed. The next opening believed that
/// header, which was only in the cache, and wrote another one over the one on the disk.
#[test]
fn a_header_whose_flush_failed_is_written_again() {
    survives("closed,ext4,garbage,growing,direct/0/zero,close/");
}

/// The first half of a record was on the disk, the second was not, and the record was dropped. The next epoch's commit
/// wrote the same bytes in the place of the second half, and the dropped record was complete.
#[test]
fn a_dropped_record_does_not_come_back_to_life() {
    survives("plain,ext4,garbage,tight,direct/0/async,across/");
    survives("closed,posix,garbage,tight,buffered/0/one/");
}

#[test]
fn a_directory_that_recovery_cannot_make_is_not_forgotten() {
    let disk = small::disk();
    let store = small::open(&disk);
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.commit().unwrap();
    let crashed = disk.snapshot().power_cut(Cut::Nothing).disk;
    assert!(crashed.entry("d").is_err(), "its name was not flushed");
    let mut waited = 0;
    for after in 0..4 {
        let disk = crashed.fork();
        disk.fail(Fault { on: On::Name, after, times: 1, what: What::Errno(libc::ENOSPC) });
        if let Ok(store) = small::open_with(&disk, small::options()) {
            // All other files can be used meanwhile.
            waited += store.status().quarantined.len();
            store.close().unwrap();
        }
        disk.clear_faults();
        disk.kill();
        let store = small::open(&disk);
        assert!(disk.entry("d").is_ok(), "name change {after} failed once, and the directory is lost");
        store.close().unwrap();
    }
    assert!(waited > 0, "no fault met the directory");
}
