//! Tests that every fault of the simulated disk can happen, and nothing worse.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use untorn::__private::sync_point;
use untorn_crashlab::{Cut, Failed, Fault, Model, On, Options, PROFILES, Profile, SimDisk, What};
use untorn_os::{AlignedBuf, File, Open, Storage, SyncPoint};

const STEP: SyncPoint = sync_point::COMMIT;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn disk(profile: Profile) -> SimDisk {
    SimDisk::new(Options { profile, ..Options::default() })
}

/// A disk with one durable file `f` with these contents.
fn disk_with(profile: Profile, contents: &[u8]) -> SimDisk {
    let disk = disk(profile);
    disk.put("f", contents).unwrap();
    disk.settle();
    disk
}

#[test]
fn a_file_without_a_name_is_gone_after_a_crash() {
    for profile in PROFILES {
        let disk = disk(profile);
        let process = disk.process();
        let file = process.create_unnamed(path("")).unwrap();
        file.write_at(b"contents", 0).unwrap();
        file.sync_all(STEP).unwrap();
        assert!(disk.snapshot().killed().tree().is_empty());
        assert!(disk.snapshot().power_cut(Cut::Everything).disk.tree().is_empty());
        file.give_name("f".as_ref()).unwrap();
        assert_eq!(disk.get("f").unwrap(), b"contents");
        assert!(disk.snapshot().power_cut(Cut::Nothing).disk.tree().is_empty(), "{profile:?}: the name is not flushed");
        process.sync_dir(path(""), STEP).unwrap();
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(after.get("f").unwrap(), b"contents", "{profile:?}");
        assert_eq!(after.meta("f").unwrap().links, 1);
    }
}

fn open(disk: &SimDisk, name: &str) -> (Arc<dyn Storage>, Arc<dyn File>) {
    let process = disk.process();
    let file = process.open(path(name), Open::WRITE).unwrap();
    (process, file)
}

/// Every outcome of a power cut now, as seen by `look`.
fn outcomes<T: Ord>(disk: &SimDisk, look: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
    let snapshot = disk.snapshot();
    snapshot.cuts(4096, 1).into_iter().map(|cut| look(&snapshot.power_cut(cut).disk)).collect()
}

fn contents(disk: &SimDisk) -> Option<Vec<u8>> {
    disk.get("f").ok()
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn aligned(byte: u8, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(byte);
    buf
}

#[test]
fn an_unflushed_write_may_be_lost_kept_or_torn_by_sector_and_a_flushed_one_stays() {
    for profile in PROFILES {
        let disk = disk_with(profile, &[b'a'; 2048]);
        let (_process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 1024], 256).unwrap();
        // Sectors 0, 1 and 2 are touched; a sector never mixes old and new, except for the bytes around the write that
        // are equal in both.
        let sectors = |disk: &SimDisk| {
            let now = disk.get("f").unwrap();
            assert_eq!(now.len(), 2048);
            let (old, new) = ([b'a'; 2048], [&[b'a'; 256][..], &[b'b'; 1024], &[b'a'; 768]].concat());
            (0..4usize)
                .map(|i| {
                    let range = i * 512..(i + 1) * 512;
                    assert!(now[range.clone()] == old[range.clone()] || now[range.clone()] == new[range.clone()]);
                    now[range.clone()] == new[range.clone()] && new[range.clone()] != old[range]
                })
                .collect::<Vec<bool>>()
        };
        let seen = outcomes(&disk, sectors);
        assert!(seen.contains(&vec![false, false, false, false]), "{profile:?}: lost");
        assert!(seen.contains(&vec![true, true, true, false]), "{profile:?}: kept");
        assert!(seen.contains(&vec![true, false, false, false]), "{profile:?}: first half");
        assert!(seen.contains(&vec![false, true, true, false]), "{profile:?}: last half");

        file.sync_data(STEP).unwrap();
        assert_eq!(outcomes(&disk, sectors), BTreeSet::from([vec![true, true, true, false]]), "{profile:?}");
    }
}

#[test]
fn two_writes_to_one_sector_leave_old_first_or_second() {
    let disk = disk_with(Profile::AnyPosix, &[b'a'; 512]);
    let (_process, file) = open(&disk, "f");
    file.write_at(&[b'b'; 512], 0).unwrap();
    file.write_at(&[b'c'; 512], 0).unwrap();
    let seen = outcomes(&disk, |disk| disk.get("f").unwrap()[0]);
    assert_eq!(seen, BTreeSet::from([b'a', b'b', b'c']));
}

#[test]
fn only_the_page_garbage_model_damages_bytes_that_nobody_wrote() {
    for (model, damaged) in [(Model::SectorAtomic, false), (Model::PageGarbage, true)] {
        let disk = SimDisk::new(Options { profile: Profile::Ext4, model, ..Options::default() });
        disk.put("f", &[b'a'; 8192]).unwrap();
        disk.settle();
        let (_process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 512], 0).unwrap();
        let seen = outcomes(&disk, |disk| {
            let now = disk.get("f").unwrap();
            assert!(now[4096..].iter().all(|&b| b == b'a'), "a page that nobody touched");
            now[512..4096].iter().any(|&b| b != b'a')
        });
        assert_eq!(seen.contains(&true), damaged);
        file.sync_data(STEP).unwrap();
        assert_eq!(outcomes(&disk, |disk| disk.get("f").unwrap()[..1024].to_vec()).len(), 1);
    }
}

#[test]
fn a_new_name_needs_a_sync_of_its_directory_or_on_some_of_its_file() {
    for profile in PROFILES {
        let disk = disk(profile);
        let process = disk.process();
        let file = process.open(path("f"), Open::create(0o600)).unwrap();
        file.write_at(b"x", 0).unwrap();
        file.sync_all(STEP).unwrap();
        let lost_after_file_sync = outcomes(&disk, contents).contains(&None);
        assert_eq!(lost_after_file_sync, profile == Profile::AnyPosix, "{profile:?}");
        process.sync_dir(path(""), STEP).unwrap();
        assert_eq!(outcomes(&disk, contents), BTreeSet::from([Some(b"x".to_vec())]), "{profile:?}");
    }
}

#[test]
fn a_synced_name_does_not_bring_the_contents() {
    for profile in PROFILES {
        let disk = disk(profile);
        let process = disk.process();
        let file = process.open(path("f"), Open::create(0o600)).unwrap();
        file.write_at(b"x", 0).unwrap();
        process.sync_dir(path(""), STEP).unwrap();
        assert!(outcomes(&disk, contents).contains(&Some(Vec::new())), "{profile:?}");
    }
}

#[test]
fn a_rename_is_old_or_new_and_never_half() {
    for profile in PROFILES {
        let disk = disk(profile);
        disk.put("f", b"old").unwrap();
        disk.put("g", b"new").unwrap();
        disk.settle();
        let process = disk.process();
        process.rename(path("g"), path("f"), true).unwrap();
        let names = |disk: &SimDisk| (disk.get("f").unwrap(), disk.get("g").ok());
        let (before, after) = ((b"old".to_vec(), Some(b"new".to_vec())), (b"new".to_vec(), None));
        assert_eq!(outcomes(&disk, names), BTreeSet::from([before, after.clone()]), "{profile:?}");
        process.sync_dir(path(""), STEP).unwrap();
        assert_eq!(outcomes(&disk, names), BTreeSet::from([after]), "{profile:?}");
    }
}

#[test]
fn no_order_of_renames_loses_a_file() {
    // a -> b, then a new a: without the first, the second would replace the old file for good.
    for profile in PROFILES {
        let disk = disk(profile);
        disk.make_directory("d", 0o700, 0).unwrap();
        disk.put("a", b"one").unwrap();
        disk.settle();
        let process = disk.process();
        process.rename(path("a"), path("d/b"), true).unwrap();
        process.open(path("a"), Open::create(0o600)).unwrap();
        let one = |disk: &SimDisk| {
            let found = [disk.get("a"), disk.get("d/b")].into_iter().filter(|c| matches!(c, Ok(c) if c == b"one"));
            found.count()
        };
        assert_eq!(outcomes(&disk, one), BTreeSet::from([1]), "{profile:?}");
        process.sync_dir(path(""), STEP).unwrap();
        assert_eq!(outcomes(&disk, one), BTreeSet::from([1]), "{profile:?}");
    }
}

#[test]
fn an_ordered_log_keeps_order_and_posix_does_not() {
    for profile in PROFILES {
        let disk = disk(profile);
        let process = disk.process();
        process.mkdir(path("a"), 0o700).unwrap();
        process.mkdir(path("b"), 0o700).unwrap();
        let seen = outcomes(&disk, |disk| (disk.meta("a").is_ok(), disk.meta("b").is_ok()));
        assert!(seen.contains(&(true, false)), "{profile:?}");
        assert_eq!(seen.contains(&(false, true)), profile == Profile::AnyPosix, "{profile:?}");
    }
}

#[test]
fn fdatasync_loses_an_attribute_and_fsync_does_not() {
    for (profile, may_be_lost) in
        [(Profile::Ext4, true), (Profile::Xfs, false), (Profile::Btrfs, false), (Profile::AnyPosix, true)]
    {
        let disk = disk_with(profile, b"x");
        let (_process, file) = open(&disk, "f");
        file.set_attribute(b"id").unwrap();
        let attribute = |disk: &SimDisk| disk.entry("f").unwrap().attribute;
        file.write_at(b"y", 0).unwrap();
        file.sync_data(STEP).unwrap();
        assert_eq!(outcomes(&disk, attribute).contains(&None), may_be_lost, "{profile:?}");
        assert_eq!(outcomes(&disk, contents), BTreeSet::from([Some(b"y".to_vec())]), "{profile:?}");
        file.sync_all(STEP).unwrap();
        assert_eq!(outcomes(&disk, attribute), BTreeSet::from([Some(b"id".to_vec())]), "{profile:?}");
        // A mode behaves the same.
        file.set_mode(0o640).unwrap();
        file.sync_all(STEP).unwrap();
        assert_eq!(outcomes(&disk, |disk| disk.entry("f").unwrap().mode), BTreeSet::from([0o640]), "{profile:?}");
    }
}

#[test]
fn what_is_written_out_comes_before_later_entries_of_an_ordered_log() {
    for profile in PROFILES {
        for bytes in [1, 1024] {
            let disk = disk_with(profile, &[b'a'; 512]);
            let process = disk.process();
            let [file, other] = ["f", "g"].map(|name| {
                process
                    .open(path(name), Open::WRITE)
                    .unwrap_or_else(|_| process.open(path(name), Open::create(0o600)).unwrap())
            });
            process.sync_file_system(STEP).unwrap();
            let (old, new) = (disk.get("f").unwrap(), vec![b'b'; bytes]);
            file.write_at(&new, 0).unwrap();
            let whole = [&new, &old[bytes.min(512)..]].concat();
            file.write_out(STEP).unwrap();
            other.set_attribute(b"id").unwrap();
            let state =
                |disk: &SimDisk| (disk.get("f").unwrap() == whole, disk.entry("g").unwrap().attribute.is_some());
            let seen = outcomes(&disk, state);
            let ordered = matches!(profile, Profile::Ext4 | Profile::Xfs);
            assert!(seen.contains(&(false, false)) && seen.contains(&(true, true)), "{profile:?}, {bytes} bytes");
            assert_eq!(!seen.contains(&(false, true)), ordered, "{profile:?}, {bytes} bytes");
            other.sync_all(STEP).unwrap();
            assert_eq!(outcomes(&disk, state) == BTreeSet::from([(true, true)]), ordered, "{profile:?}, {bytes} bytes");
        }
    }
}

#[test]
fn a_size_without_its_data_shows_zeros_or_garbage_on_posix_only() {
    for profile in PROFILES {
        let disk = disk_with(profile, &[b'a'; 512]);
        let (_process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 1024], 512).unwrap();
        let tail = |disk: &SimDisk| disk.get("f").unwrap()[512..].to_vec();
        let seen = outcomes(&disk, tail);
        assert!(seen.contains(&Vec::new()) && seen.contains(&vec![b'b'; 1024]), "{profile:?}");
        let zeros = seen.contains(&vec![0; 1024]);
        let garbage = seen.iter().any(|tail| tail.iter().any(|&b| b != 0 && b != b'b'));
        let any = profile == Profile::AnyPosix;
        assert_eq!((zeros, garbage), (any, any), "{profile:?}");
        // An ordered file system may have written the first half, with half the size.
        assert_eq!(seen.contains(&vec![b'b'; 512]), !any, "{profile:?}");
        file.sync_data(STEP).unwrap();
        assert_eq!(outcomes(&disk, tail), BTreeSet::from([vec![b'b'; 1024]]), "{profile:?}");
    }
}

#[test]
fn an_ordered_size_covers_only_data_that_is_out_and_comes_after_earlier_names() {
    for profile in PROFILES {
        let disk = disk_with(profile, &[b'a'; 512]);
        let (process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 512], 512).unwrap();
        process.mkdir(path("d"), 0o700).unwrap();
        file.write_at(&[b'c'; 512], 1024).unwrap();
        let broken = outcomes(&disk, |disk| {
            let now = disk.get("f").unwrap();
            let gap = now.len() == 1536 && now[512] != b'b';
            let overtaken = now.len() == 1536 && disk.meta("d").is_err();
            (gap, overtaken)
        });
        let any = profile == Profile::AnyPosix;
        assert_eq!(broken.iter().any(|b| b.0), any, "{profile:?}");
        assert_eq!(broken.iter().any(|b| b.1), any, "{profile:?}");
    }
}

#[test]
fn garbage_may_be_what_a_removed_file_held() {
    let disk = disk_with(Profile::AnyPosix, b"");
    disk.put("old", &[b'S'; 4096]).unwrap();
    disk.settle();
    disk.remove("old").unwrap();
    disk.settle();
    let (_process, file) = open(&disk, "f");
    file.write_at(&[b'b'; 4096], 0).unwrap();
    let snapshot = disk.snapshot();
    let stale = (0..200).any(|seed| {
        let after = snapshot.power_cut(Cut::Seed(seed)).disk.get("f").unwrap();
        after.len() == 4096 && after.windows(512).any(|sector| sector == [b'S'; 512])
    });
    assert!(stale);
}

#[test]
fn what_a_durable_truncation_cut_off_never_comes_back() {
    for profile in PROFILES {
        let disk = disk_with(profile, &[b'a'; 1024]);
        disk.put("g", b"").unwrap();
        disk.settle();
        let (process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 4096], 8192).unwrap();
        file.set_len(0).unwrap();
        file.set_len(16384).unwrap();
        // On an ordered file system the other file's sync commits the sizes, but not the older write.
        let other = process.open(path("g"), Open::WRITE).unwrap();
        other.set_len(1).unwrap();
        other.sync_all(STEP).unwrap();
        let b_in_new_size = |disk: &SimDisk| {
            let now = disk.get("f").unwrap();
            now.len() == 16384 && now.contains(&b'b')
        };
        assert_eq!(outcomes(&disk, b_in_new_size), BTreeSet::from([false]), "{profile:?}");
    }
}

#[test]
fn a_file_shrinks_and_grows_to_zeros() {
    let disk = disk_with(Profile::Ext4, &[b'a'; 5000]);
    let (_process, file) = open(&disk, "f");
    file.set_len(100).unwrap();
    file.set_len(5000).unwrap();
    let now = disk.get("f").unwrap();
    assert!(now[..100].iter().all(|&b| b == b'a') && now[100..].iter().all(|&b| b == 0));
    file.zero(50, 4000).unwrap();
    file.sync_data(STEP).unwrap();
    let after = disk.power_cut(Cut::Nothing).disk.get("f").unwrap();
    assert_eq!(after.len(), 5000);
    assert!(after[..50].iter().all(|&b| b == b'a') && after[50..].iter().all(|&b| b == 0));
}

#[test]
fn a_failed_sync_says_so_once_and_the_old_data_comes_back() {
    for evict_by_power in [false, true] {
        let disk = disk_with(Profile::Xfs, &[b'a'; 4096]);
        let (process, file) = open(&disk, "f");
        let bystander = process.open(path("f"), Open::WRITE).unwrap();
        file.write_at(&[b'b'; 4096], 0).unwrap();
        disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Writeback(Failed::Lost) });
        assert_eq!(code(file.sync_data(STEP)), Some(libc::EIO));
        assert!(file.sync_data(STEP).is_ok(), "the second sync says OK");
        assert_eq!(disk.get("f").unwrap()[0], b'b', "the cache keeps the data");
        let late = process.open(path("f"), Open::WRITE).unwrap();
        assert!(late.sync_data(STEP).is_ok(), "opened after the failure");
        assert_eq!(code(bystander.sync_data(STEP)), Some(libc::EIO), "open since before the write");
        assert!(bystander.sync_data(STEP).is_ok());
        assert_eq!(code(process.sync_file_system(STEP)), Some(libc::EIO), "open since before the failure");
        assert!(process.sync_file_system(STEP).is_ok());
        assert!(disk.process().sync_file_system(STEP).is_ok());
        if evict_by_power {
            disk.power_cut(Cut::Everything);
        } else {
            let mut buf = aligned(0, 4096);
            file.read_past_cache_at(&mut buf, 0).unwrap();
            assert_eq!(buf[0], b'a');
        }
        assert_eq!(disk.get("f").unwrap(), [b'a'; 4096]);
    }
}

#[test]
fn a_failed_sync_may_have_written_half_or_all() {
    for (how, expected) in [(Failed::Lost, "aa"), (Failed::Half, "ba"), (Failed::Landed, "bb")] {
        let disk = disk_with(Profile::AnyPosix, &[b'a'; 1024]);
        let (_process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 512], 0).unwrap();
        file.write_at(&[b'b'; 512], 512).unwrap();
        disk.fail(Fault { on: On::SyncPoint(STEP), after: 0, times: 1, what: What::Writeback(how) });
        assert!(file.sync_data(STEP).is_err());
        let after = disk.power_cut(Cut::Nothing).disk.get("f").unwrap();
        assert_eq!([after[0], after[512]], expected.as_bytes(), "{how:?}");
    }
}

#[test]
fn a_failed_background_writeback_is_told_to_those_who_had_the_file_open() {
    let disk = disk_with(Profile::Ext4, b"a");
    let (process, file) = open(&disk, "f");
    file.write_at(b"b", 0).unwrap();
    disk.fail_writeback(path("f"), Failed::Lost).unwrap();
    assert!(process.open(path("f"), Open::WRITE).unwrap().sync_data(STEP).is_ok(), "reopening hides it");
    assert_eq!(code(file.sync_data(STEP)), Some(libc::EIO));
    disk.drop_caches();
    assert_eq!(disk.get("f").unwrap(), b"a");
}

#[test]
fn a_direct_write_is_past_the_cache_and_a_buffered_one_is_not_before_its_sync() {
    let disk = disk_with(Profile::AnyPosix, &[b'a'; 8192]);
    let process = disk.process();
    let direct = process.open(path("f"), Open::WRITE.direct()).unwrap();
    let buffered = process.open(path("f"), Open::WRITE).unwrap();
    assert!(direct.is_direct() && !buffered.is_direct());
    direct.write_at(&aligned(b'd', 4096), 0).unwrap();
    buffered.write_at(&aligned(b'b', 4096), 4096).unwrap();
    let device = || {
        let mut buf = aligned(0, 8192);
        assert_eq!(buffered.read_past_cache_at(&mut buf, 0).unwrap(), 8192);
        [buf[0], buf[4096]]
    };
    assert_eq!(device(), [b'd', b'a']);
    assert_eq!(disk.get("f").unwrap()[4096], b'b', "every reader sees the cache");
    let kept = outcomes(&disk, |disk| disk.get("f").unwrap()[0]);
    assert_eq!(kept, BTreeSet::from([b'a', b'd']), "the device's own cache is lost in a power cut");
    buffered.sync_data(STEP).unwrap();
    assert_eq!(device(), [b'd', b'b']);
    assert_eq!(code(direct.write_at(&[0; 100], 0)), Some(libc::EINVAL));

    disk.set_options(|options| options.direct = false);
    assert!(!process.open(path("f"), Open::WRITE.direct()).unwrap().is_direct());
}

#[test]
fn a_killed_process_leaves_the_cache_and_no_locks() {
    let disk = disk_with(Profile::AnyPosix, b"a");
    let (first, second) = (disk.spawn(), disk.spawn());
    let a = first.open(path("f"), Open::WRITE).unwrap();
    let b = second.open(path("f"), Open::WRITE).unwrap();
    a.write_at(b"b", 0).unwrap();
    assert!(a.lock(false).unwrap() && a.try_claim().unwrap());
    assert!(!b.lock(false).unwrap() && !b.try_claim().unwrap());
    assert!(a.lock(false).unwrap(), "its own lock does not stand in its way");
    first.kill();
    assert_eq!(code(a.write_at(b"c", 0)), Some(libc::EBADF));
    assert_eq!(code(first.stat(path("f"))), Some(libc::EBADF));
    assert!(b.lock(false).unwrap() && b.try_claim().unwrap());
    assert_eq!(disk.get("f").unwrap(), b"b");
    // Closing the dead handle must not release the lock of the living process.
    drop(a);
    let c = disk.process().open(path("f"), Open::WRITE).unwrap();
    assert!(!c.lock(false).unwrap());
    drop(b);
    assert!(c.lock(false).unwrap());
    disk.kill();
    assert!(disk.process().open(path("f"), Open::WRITE).unwrap().lock(false).unwrap());
}

#[test]
fn a_killed_process_holds_no_bytes_and_sees_no_more_changes() {
    let disk = disk_with(Profile::AnyPosix, &[1; 16]);
    let (first, second) = (disk.spawn(), disk.spawn());
    let a = first.open(path("f"), Open::READ).unwrap();
    let b = second.open(path("f"), Open::WRITE).unwrap();
    let view = a.view(16).unwrap();
    assert!(a.hold(3..10).unwrap());
    assert_eq!((b.held(0..100).unwrap(), view.load(8)), (Some(3..10), u64::from_ne_bytes([1; 8])));
    // A view also shows what is in the cache only, and a load counts as a call.
    b.write_at(&[2; 8], 8).unwrap();
    let calls = disk.calls();
    assert_eq!((view.load(8), disk.calls()), (u64::from_ne_bytes([2; 8]), calls + 1));
    first.kill();
    assert_eq!(b.held(0..100).unwrap(), None);
    assert_eq!(code(a.hold(3..4)), Some(libc::EBADF));
    b.write_at(&[3; 8], 8).unwrap();
    assert_eq!((view.load(8), disk.calls()), (0, calls + 3));
}

#[test]
fn a_waiting_lock_is_given_when_its_holder_closes() {
    let disk = disk_with(Profile::AnyPosix, b"");
    let (process, holder) = open(&disk, "f");
    assert!(holder.lock(false).unwrap());
    let waiter = process.open(path("f"), Open::WRITE).unwrap();
    let waiting = std::thread::spawn(move || waiter.lock(true).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waiting.is_finished());
    drop(holder);
    assert!(waiting.join().unwrap());
}

#[test]
fn a_full_disk_refuses_and_copy_on_write_refuses_overwriting_too() {
    let disk = disk_with(Profile::AnyPosix, &[b'a'; 8192]);
    disk.set_capacity(Some(3 * 4096));
    let (process, file) = open(&disk, "f");
    assert_eq!(process.space().unwrap().available_bytes, 4096);
    assert_eq!(code(file.allocate(8192, 8192)), Some(libc::ENOSPC));
    assert_eq!(file.write_at(&[b'b'; 8192], 8192).unwrap(), 4096, "what fits is written");
    assert_eq!(code(file.write_at(&[b'b'; 1], 12288)), Some(libc::ENOSPC));
    assert_eq!(file.write_at(&[b'c'; 4096], 0).unwrap(), 4096);
    disk.set_options(|options| options.copy_on_write = true);
    assert_eq!(code(file.write_at(&[b'd'; 4096], 0)), Some(libc::ENOSPC));
    file.zero(4096, 4096).unwrap();
    assert_eq!(file.write_at(&[b'd'; 4096], 0).unwrap(), 4096, "punching a hole frees room");
    file.set_len(0).unwrap();
    assert_eq!(process.space().unwrap().available_bytes, 3 * 4096);
    file.allocate(0, 3 * 4096).unwrap();
    assert_eq!(process.space().unwrap().available_bytes, 0);
    process.unlink(path("f")).unwrap();
    assert_eq!(process.space().unwrap().available_bytes, 0, "open files keep their room");
    drop(file);
    assert_eq!(process.space().unwrap().available_bytes, 3 * 4096);
}

#[test]
fn a_skipped_step_does_nothing_and_the_others_do() {
    for skipped in [sync_point::COMMIT, sync_point::PUT_CONTENTS] {
        let disk = disk_with(Profile::AnyPosix, b"a");
        disk.skip(skipped);
        let (_process, file) = open(&disk, "f");
        file.write_at(b"b", 0).unwrap();
        file.sync_data(sync_point::COMMIT).unwrap();
        let kept = disk.power_cut(Cut::Nothing).disk.get("f").unwrap() == b"b";
        assert_eq!(kept, skipped != sync_point::COMMIT);
        assert_eq!(disk.syncs(sync_point::COMMIT), 1);
    }
}

#[test]
fn planned_faults_hit_the_calls_they_name() {
    let disk = disk_with(Profile::AnyPosix, b"abcdef");
    let (process, file) = open(&disk, "f");
    disk.fail(Fault { on: On::Write, after: 1, times: 1, what: What::Errno(libc::EINTR) });
    disk.fail(Fault { on: On::Read, after: 0, times: 1, what: What::Short(2) });
    disk.fail(Fault { on: On::Name, after: 0, times: 2, what: What::Errno(libc::ENOSPC) });
    assert!(file.write_at(b"x", 0).is_ok());
    assert_eq!(code(file.write_at(b"y", 0)), Some(libc::EINTR));
    let mut buf = [0; 6];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 2);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 6);
    assert_eq!(&buf, b"xbcdef");
    assert_eq!(code(process.mkdir(path("d"), 0o700)), Some(libc::ENOSPC));
    assert_eq!(code(process.unlink(path("f"))), Some(libc::ENOSPC));
    assert!(process.unlink(path("f")).is_ok());
}

#[test]
fn the_machine_stops_at_the_named_call_until_the_power_is_back() {
    let disk = disk_with(Profile::AnyPosix, b"a");
    let (_process, file) = open(&disk, "f");
    disk.crash_after(disk.calls());
    assert!(file.write_at(b"b", 0).is_ok());
    assert!(file.write_at(b"c", 0).is_err() && file.sync_data(STEP).is_err());
    assert_eq!(outcomes(&disk, contents), BTreeSet::from([Some(b"a".to_vec()), Some(b"b".to_vec())]));
    let boot_id = |disk: &SimDisk| disk.process().boot_id().unwrap();
    let before = boot_id(&disk.fork());
    assert!(disk.power_cut(Cut::Nothing).something_lost);
    assert_ne!(boot_id(&disk), before);
    assert_eq!(code(file.read_at(&mut [0], 0)), Some(libc::EBADF));
    assert_eq!(disk.get("f").unwrap(), b"a");
}

#[test]
fn a_recording_holds_the_state_before_every_change() {
    let disk = disk(Profile::AnyPosix);
    let process = disk.process();
    disk.record();
    let file = process.open(path("f"), Open::create(0o600)).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.meta().unwrap();
    disk.set_mark(7);
    file.sync_all(STEP).unwrap();
    process.sync_dir(path(""), STEP).unwrap();
    let recorded = disk.recorded();
    let seen: Vec<_> = recorded.iter().map(|s| (s.call(), s.mark(), s.killed().get("f").ok())).collect();
    let one = || Some(b"one".to_vec());
    assert_eq!(seen, [(0, 0, None), (1, 0, Some(Vec::new())), (3, 7, one()), (4, 7, one()), (5, 7, one())]);
    let survivors: Vec<_> = recorded.iter().map(|s| s.power_cut(Cut::Nothing).disk.get("f").ok()).collect();
    assert_eq!(survivors, [None, None, None, None, one()]);
    let all: Vec<_> = recorded.iter().map(|s| s.power_cut(Cut::Everything).something_lost).collect();
    assert_eq!(all, [false; 5]);
    assert_eq!(recorded[4].pending_count(), 0);
    assert!(recorded[2].describe().iter().any(|line| line.contains("write")));
}

#[test]
fn outcomes_are_repeatable_distinct_and_bounded() {
    let disk = disk_with(Profile::AnyPosix, &[b'a'; 4096]);
    let (process, file) = open(&disk, "f");
    for i in 0..20u64 {
        file.write_at(&[b'b' + i as u8; 1024], i * 1024).unwrap();
        process.open(path(&format!("n{i}")), Open::create(0o600)).unwrap();
    }
    let snapshot = disk.snapshot();
    assert!(snapshot.outcomes() > 1 << 40);
    let cuts = snapshot.cuts(500, 3);
    assert_eq!(cuts.len(), 500);
    assert!(cuts.contains(&Cut::Nothing) && cuts.contains(&Cut::Everything));
    let hashes: Vec<u64> = cuts.iter().map(|&cut| snapshot.power_cut(cut).image_hash).collect();
    let again: Vec<u64> =
        cuts.iter().map(|cut| snapshot.power_cut(cut.to_string().parse().unwrap()).disk.image_hash()).collect();
    assert_eq!(hashes, again);
    let distinct = hashes.iter().collect::<BTreeSet<_>>().len();
    assert!(distinct > 350, "most samples differ: {distinct}");
    assert!(snapshot.power_cut(Cut::Nothing).something_lost);
    assert!(!snapshot.power_cut(Cut::Everything).something_lost);
}

#[test]
fn equal_hashes_mean_equal_trees() {
    let mut trees = BTreeMap::new();
    for profile in PROFILES {
        let disk = disk_with(profile, &[b'a'; 1500]);
        let (process, file) = open(&disk, "f");
        file.write_at(&[b'b'; 1500], 700).unwrap();
        file.set_attribute(b"id").unwrap();
        process.rename(path("f"), path("g"), true).unwrap();
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(1000, 0) {
            let outcome = snapshot.power_cut(cut);
            let tree = format!("{:?}", outcome.disk.tree());
            assert_eq!(trees.entry(outcome.image_hash).or_insert(tree.clone()), &tree);
        }
    }
    let different = trees.values().collect::<BTreeSet<_>>().len();
    assert_eq!(different, trees.len(), "and equal trees mean equal hashes");
    assert!(different > 20);
}

#[test]
fn written_zeros_and_a_hole_hash_alike() {
    let hash = |write: bool| {
        let disk = disk_with(Profile::Ext4, b"");
        let (_process, file) = open(&disk, "f");
        file.set_len(8192).unwrap();
        if write {
            file.write_at(&[0; 8192], 0).unwrap();
        }
        disk.image_hash()
    };
    assert_eq!(hash(true), hash(false));
}

#[test]
fn names_behave_as_in_linux() {
    let disk = disk_with(Profile::Ext4, b"x");
    let process = disk.process();
    process.mkdir(path("d"), 0o750).unwrap();
    process.mkdir(path("d/e"), 0o700).unwrap();
    disk.symlink("l").unwrap();
    let errors = [
        (code(process.open(path("../f"), Open::READ).map(drop)), libc::EXDEV),
        (code(process.open(path("/f"), Open::READ).map(drop)), libc::EXDEV),
        (code(process.open(path("l"), Open::READ).map(drop)), libc::ELOOP),
        (code(process.open(path("f/x"), Open::READ).map(drop)), libc::ENOTDIR),
        (code(process.open(path("n"), Open::READ).map(drop)), libc::ENOENT),
        (code(process.open(path("f"), Open::create(0o600)).map(drop)), libc::EEXIST),
        (code(process.open(path("d"), Open::WRITE).map(drop)), libc::EISDIR),
        (code(process.unlink(path("d"))), libc::EISDIR),
        (code(process.rmdir(path("d"))), libc::ENOTEMPTY),
        (code(process.rmdir(path("f"))), libc::ENOTDIR),
        (code(process.rename(path("f"), path("d"), true)), libc::EISDIR),
        (code(process.rename(path("d"), path("f"), true)), libc::ENOTDIR),
        (code(process.rename(path("d/e"), path("f"), false)), libc::EEXIST),
        (code(process.rename(path("d"), path("d/e/d"), true)), libc::EINVAL),
    ];
    for (i, (got, expected)) in errors.into_iter().enumerate() {
        assert_eq!(got, Some(expected), "{i}");
    }
    assert_eq!(process.stat(path("d")).unwrap().mode, 0o750);
    disk.hard_link("f", "d/f").unwrap();
    assert_eq!(process.stat(path("f")).unwrap().links, 2);
    let old = process.stat(path("d/e")).unwrap().inode;
    process.rmdir(path("d/e")).unwrap();
    process.mkdir(path("new"), 0o700).unwrap();
    assert_eq!(process.stat(path("new")).unwrap().inode, old, "numbers are reused at once");
    disk.set_options(|options| options.read_only = true);
    assert_eq!(code(process.open(path("f"), Open::WRITE).map(drop)), Some(libc::EROFS));
    assert_eq!(code(process.unlink(path("f"))), Some(libc::EROFS));
}

#[test]
fn a_copy_has_the_attribute_only_if_asked() {
    let disk = disk(Profile::AnyPosix);
    disk.make_directory("d", 0o700, 5).unwrap();
    disk.put("d/f", b"x").unwrap();
    disk.set_attribute("d/f", Some(b"id")).unwrap();
    disk.copy("d", "with", true).unwrap();
    disk.copy("d", "without", false).unwrap();
    assert_eq!(disk.entry("with/f").unwrap().attribute.as_deref(), Some(&b"id"[..]));
    assert_eq!(disk.entry("without/f").unwrap().attribute, None);
    assert_eq!(disk.get("without/f").unwrap(), b"x");
    assert_eq!(disk.meta("with").unwrap().uid, 5);
    disk.remove("d").unwrap();
    assert_eq!(disk.tree().len(), 4);
}

#[test]
fn times_prove_nothing_after_a_crash() {
    let disk = disk_with(Profile::Ext4, &[b'a'; 512]);
    let (_process, file) = open(&disk, "f");
    let old = file.meta().unwrap().mtime_ns;
    file.write_at(&[b'b'; 512], 0).unwrap();
    let seen = (0..100).map(|seed| {
        let after = disk.snapshot().power_cut(Cut::Seed(seed)).disk;
        (after.get("f").unwrap()[0], after.meta("f").unwrap().mtime_ns == old)
    });
    let seen: BTreeSet<_> = seen.collect();
    assert!(seen.contains(&(b'a', false)), "a new time on old contents");
    assert!(seen.contains(&(b'b', true)), "an old time on new contents");
}
