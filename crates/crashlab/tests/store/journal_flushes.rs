//! Flushes of the journal's own files that fail or are missing.

use crate::fixture::roomy;
use untorn::sync_point;
use untorn_crashlab::{Failed, Fault, On, PROFILES, Profile, What};

#[test]
fn a_mark_that_was_not_flushed_makes_no_file_newer_than_the_journal() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let file = store.open_or_create("a").unwrap();
        file.write_at(b"acknowledged", 0).unwrap();
        file.commit().unwrap();
        assert!(store.write_durable_mark().unwrap());
        disk.record();
        let checkpoint = store.begin_checkpoint().unwrap().unwrap().apply().unwrap();
        checkpoint.truncate_log().unwrap();
        for snapshot in disk.recorded() {
            for cut in snapshot.cuts(256, 1) {
                let after = roomy::recovered(&snapshot.power_cut(cut).disk);
                assert_eq!(after.get("a").unwrap(), b"acknowledged", "{profile:?} {} {cut}", snapshot.call());
            }
        }
    }
}

#[test]
fn a_segment_whose_name_was_not_flushed_can_be_made_again() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let file = store.open_or_create("a").unwrap();
    let once =
        Fault { on: On::SyncPoint(sync_point::SEGMENT_NAME), after: 0, times: 1, what: What::Writeback(Failed::Lost) };
    disk.fail(once);
    let mut refused = 0;
    for i in 0..40u64 {
        file.write_at(&[i as u8; 1000], i * 1000).unwrap();
        refused += usize::from(file.commit().is_err());
    }
    assert!(refused <= 1, "{refused} commits were refused after one failed flush");
    assert_eq!(roomy::recovered(&disk).get("a").unwrap().len(), 40_000);
}
