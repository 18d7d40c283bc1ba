//! Flushes of the journal's own files that fail or are missing.

use crate::fixture::roomy;
use untorn::__private::{StoreSteps, sync_point};
use untorn_crashlab::{Cut, Failed, Fault, On, PROFILES, Profile, SimDisk, What};
use untorn_os::SyncPoint;

#[test]
fn a_mark_that_was_not_flushed_makes_no_file_newer_than_the_journal() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        let file = store.open_or_create_file("a").unwrap();
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
    let file = store.open_or_create_file("a").unwrap();
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

/// Closes a store, cuts the power in every way, and moves the files; returns the error of the first file that cannot be
/// read.
fn moved_after_a_power_cut(disk: &SimDisk) -> untorn::Result<()> {
    let store = roomy::open(disk);
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name)?;
        file.write_at(b"acknowledged", 0)?;
        file.commit()?;
        // One file has its last checkpoint before the closing one.
        store.checkpoint()?;
    }
    let b = store.open_file("b")?;
    b.write_at(b"ACK", 0)?;
    b.commit()?;
    drop(b);
    store.close()?;
    let moment = disk.snapshot();
    for cut in moment.cuts(256, 1) {
        let after = moment.power_cut(cut).disk;
        after.rename("a", "elsewhere").unwrap();
        after.rename("b", "b2").unwrap();
        let store = roomy::open(&after);
        for (name, contents) in [("elsewhere", b"acknowledged"), ("b2", b"ACKnowledged")] {
            let mut found = [0; 12];
            store.open_file(name)?.read_exact_at(&mut found, 0)?;
            assert_eq!(&found, contents, "{cut}");
        }
    }
    Ok(())
}

/// After a clean close and any power cut, the file is complete and waits for no journal, wherever it is moved.
#[test]
fn a_closed_file_can_be_moved_after_a_power_cut() {
    for profile in PROFILES {
        moved_after_a_power_cut(&roomy::disk(profile)).unwrap_or_else(|e| panic!("{profile:?}: {e}"));
    }
    let disk = roomy::disk(Profile::AnyPosix);
    disk.skip(sync_point::CLEARED);
    let missed = moved_after_a_power_cut(&disk).expect_err("the flush is needed");
    assert_eq!(missed.kind(), "needs-its-journal");
}

/// A store with one commit that is not applied.
fn committed(profile: Profile) -> (SimDisk, untorn::Store) {
    let disk = roomy::disk(profile);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    file.write_at(b"ACK", 0).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    file.commit().unwrap();
    (disk, store)
}

#[test]
fn a_close_is_one_flush_where_order_is_kept() {
    for profile in PROFILES {
        let (disk, store) = committed(profile);
        let before = disk.counters().syncs;
        store.close().unwrap();
        let one = matches!(profile, Profile::Ext4 | Profile::Xfs);
        assert_eq!(disk.syncs(sync_point::HEADER_CLOSED), u64::from(one), "{profile:?}");
        if one {
            // The other call writes the file out, and flushes nothing.
            assert_eq!(disk.syncs(sync_point::CONTENTS_OUT), 1, "{profile:?}");
            assert_eq!(disk.counters().syncs - before, 2, "{profile:?}");
        }
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(after.get("a").unwrap(), b"acknowledged", "{profile:?}");
        // Clean: nothing is recovered.
        assert_eq!(roomy::open(&after).status().recovered.commits, 0, "{profile:?}");
    }
}

#[test]
fn a_header_that_takes_no_attribute_is_closed_all_the_same() {
    let mut refused = 0;
    for nth in 0..3 {
        let (disk, store) = committed(Profile::Xfs);
        disk.fail(Fault { on: On::Attribute, after: nth, times: 1, what: What::Errno(libc::ENOSPC) });
        store.close().unwrap_or_else(|e| panic!("attribute {nth}: {e}"));
        refused += u64::from(disk.syncs(sync_point::HEADER_CLOSED) == 0);
        for cut in disk.snapshot().cuts(64, 1) {
            let after = disk.snapshot().power_cut(cut).disk;
            assert_eq!(after.get("a").unwrap(), b"acknowledged", "attribute {nth}, {cut}");
            assert_eq!(roomy::open(&after).status().recovered.commits, 0, "attribute {nth}, {cut}");
        }
    }
    assert_eq!(refused, 1, "one of them is the header's");
}

/// Opens a store that was closed, changes a file for the first time and again, and closes.
#[test]
fn a_first_commit_is_one_flush_where_order_is_kept() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        disk.put("a", b"former").unwrap();
        let store = roomy::open(&disk);
        store.close().unwrap();
        disk.settle();
        let segment = disk.get(".untorn/journal/segment.0").unwrap().len();
        let store = roomy::open(&disk);
        let file = store.open_file("a").unwrap();
        file.write_at(b"first", 0).unwrap();
        let before = disk.counters().syncs;
        file.commit().unwrap();
        let ordered = matches!(profile, Profile::Ext4 | Profile::Xfs);
        assert_eq!(disk.counters().syncs - before, if ordered { 1 } else { 2 }, "{profile:?}");
        let appended = disk.get(".untorn/journal/segment.0").unwrap().len() - segment;
        assert_eq!(appended > 0, ordered, "{profile:?}");
        for cut in disk.snapshot().cuts(256, 1) {
            let after = roomy::recovered(&disk.snapshot().power_cut(cut).disk);
            assert_eq!(after.get("a").unwrap(), b"firstr", "{profile:?} {cut}");
        }
        file.write_at(b"second", 0).unwrap();
        file.commit().unwrap();
        drop(file);
        store.close().unwrap();
        assert_eq!(
            disk.get(".untorn/journal/segment.0").unwrap().len(),
            segment,
            "{profile:?}: it has its length back"
        );
        for cut in disk.snapshot().cuts(256, 1) {
            let after = disk.snapshot().power_cut(cut).disk;
            assert_eq!(after.get("a").unwrap(), b"second", "{profile:?} {cut}");
            assert_eq!(roomy::recovered(&after).get("a").unwrap(), b"second", "{profile:?} {cut}");
        }
    }
}

/// On a full disk, the journal cannot become longer: the first commit goes to a place with room, after its attribute.
#[test]
fn a_first_commit_on_a_full_disk_goes_into_the_journal() {
    let disk = roomy::disk(Profile::Xfs);
    disk.put("a", b"former").unwrap();
    roomy::open(&disk).close().unwrap();
    let store = roomy::open(&disk);
    let file = store.open_file("a").unwrap();
    file.write_at(b"first", 0).unwrap();
    disk.settle();
    disk.fill_up(true, false);
    let segment = disk.get(".untorn/journal/segment.0").unwrap().len();
    file.commit().unwrap();
    assert_eq!(disk.get(".untorn/journal/segment.0").unwrap().len(), segment);
    let after = roomy::recovered(&disk.snapshot().power_cut(Cut::Nothing).disk);
    assert_eq!(after.get("a").unwrap(), b"firstr");
}

/// A close makes the present length of its segment durable. Otherwise the first commit of the next owner would lie
/// within an earlier length of the segment, and could be on the disk without the attribute of its file.
#[test]
fn a_close_makes_the_length_of_its_segments_durable() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        for name in ["a", "b"] {
            disk.put(name, b"former").unwrap();
        }
        roomy::open(&disk).close().unwrap();
        disk.settle();
        for name in ["a", "b"] {
            let store = roomy::open(&disk);
            let file = store.open_file(name).unwrap();
            file.write_at(b"first", 0).unwrap();
            disk.record();
            file.commit().unwrap();
            for moment in disk.recorded() {
                for cut in moment.cuts(256, 1) {
                    let after = roomy::recovered(&moment.power_cut(cut).disk).get(name).unwrap();
                    assert!(
                        after == b"former" || after == b"firstr",
                        "{profile:?} {name}, call {} {cut}",
                        moment.call()
                    );
                }
            }
            drop(file);
            store.close().unwrap();
        }
    }
}

/// Kills an owner anywhere in its close, and lets the next one commit. Returns the number of power cuts that then leave
/// neither the new state nor the one before.
fn lost_after_a_killed_close(profile: Profile, skip: Option<SyncPoint>) -> u32 {
    let disk = roomy::disk(profile);
    disk.put("a", b"former").unwrap();
    roomy::open(&disk).close().unwrap();
    disk.settle();
    let store = roomy::open(&disk);
    let file = store.open_file("a").unwrap();
    file.write_at(b"first", 0).unwrap();
    file.commit().unwrap();
    drop(file);
    disk.record();
    store.close().unwrap();
    let mut lost = 0;
    for closing in disk.recorded() {
        let disk = closing.killed();
        skip.into_iter().for_each(|point| disk.skip(point));
        let store = roomy::open(&disk);
        let file = store.open_file("a").unwrap();
        file.write_at(b"second", 0).unwrap();
        disk.record();
        file.commit().unwrap();
        for moment in disk.recorded() {
            for cut in moment.cuts(256, 1) {
                let after = moment.power_cut(cut).disk;
                let shown = roomy::open(&after).open_file("a").and_then(|file| {
                    let mut shown = [0; 6];
                    file.read_exact_at(&mut shown, 0).map(|()| shown)
                });
                lost += u32::from(!shown.is_ok_and(|shown| &shown == b"firstr" || &shown == b"second"));
            }
        }
    }
    lost
}

/// The first commit does not lie within an earlier length of the segment that is lost only in the page cache.
#[test]
fn a_close_that_was_killed_leaves_no_length_behind() {
    let mut found = 0;
    for profile in PROFILES {
        assert_eq!(lost_after_a_killed_close(profile, None), 0, "{profile:?}");
        found += lost_after_a_killed_close(profile, Some(sync_point::RECOVER_LENGTHS));
    }
    assert!(found > 0, "without the flush of the lengths nothing is lost");
}

/// Two commits share a group that is appended, and the disk takes only the first of them. That part must be removed for
/// good before the group goes to another segment or is refused. Otherwise recovery would find a commit twice, or one
/// that never happened.
#[test]
fn a_group_of_which_the_disk_took_a_part_is_cut_off_for_good() {
    const BYTES: usize = 9000;
    let (mut elsewhere, mut nowhere) = (0, 0);
    for profile in [Profile::Ext4, Profile::Xfs] {
        for fill in 0..40 {
            let disk = roomy::disk(profile);
            let names = ["a", "b", "full"];
            for name in names {
                disk.put(name, &[b'-'; BYTES]).unwrap();
            }
            let store = roomy::open(&disk);
            let full = store.open_file("full").unwrap();
            // One segment has less and less room, or none, and then a checkpoint has none either.
            for n in 0..fill {
                full.write_at(&[n as u8; 3000], (3 + n) * 4096).unwrap();
                full.commit().unwrap();
            }
            let files = ["a", "b"].map(|name| store.open_file(name).unwrap());
            for (file, byte) in files.iter().zip([b'a', b'b']) {
                file.write_at(&[byte; BYTES], 0).unwrap();
            }
            disk.settle();
            disk.fill_up(true, false);
            let room = disk.options().capacity_bytes.unwrap() + 3 * 4096;
            disk.set_capacity(Some(room));
            disk.trace();
            let tickets = files.each_ref().map(|file| file.commit_async().unwrap());
            let done = tickets.map(|ticket| ticket.wait().is_ok());
            let cut_off = disk.traced().iter().any(|line| line.contains("/segment.") && line.contains("set_len"));
            *(if done[0] { &mut elsewhere } else { &mut nowhere }) += u32::from(cut_off);
            for cut in disk.snapshot().cuts(256, 1) {
                let after = disk.snapshot().power_cut(cut).disk;
                after.set_capacity(None);
                let after = roomy::recovered(&after);
                for ((name, byte), done) in [("a", b'a'), ("b", b'b')].into_iter().zip(done) {
                    let expected = [if done { byte } else { b'-' }; BYTES];
                    assert_eq!(after.get(name).unwrap(), expected, "{profile:?}, {fill} commits before, {cut}: {name}");
                }
            }
        }
    }
    assert!(elsewhere > 0 && nowhere > 0, "went elsewhere {elsewhere} times, was refused {nowhere} times");
}
