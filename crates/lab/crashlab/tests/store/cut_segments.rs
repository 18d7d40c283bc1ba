//! Segments that are shorter than they were, or gone: missing commits are detected, although no later record proves
//! them.

use crate::fixture::roomy;
use untorn::{Error, Store};
use untorn_crashlab::{PROFILES, Profile, SimDisk};
use untorn_os::Open;

const COMMITS: u64 = 40;
const HEADER: &str = ".untorn/journal/header";

fn segments(disk: &SimDisk) -> Vec<String> {
    let names = (0..).map(|index| format!(".untorn/journal/segment.{index}"));
    names.take_while(|name| disk.get(name).is_ok()).collect()
}

/// Truncates a file, as by an incomplete copy.
fn cut(disk: &SimDisk, name: &str, bytes: u64) {
    disk.process().open(name.as_ref(), Open::WRITE).unwrap().set_len(bytes).unwrap();
}

fn commit(store: &Store, nth: u64) {
    let file = store.open_or_create_file(if nth.is_multiple_of(5) { "other" } else { "a" }).unwrap();
    file.write_all_at(&[nth as u8; 1500], nth * 1500).unwrap();
    file.commit().unwrap();
}

/// The store of a killed owner, whose last commit was to a file without earlier commits; returns also the bytes of all
/// commits.
fn killed(profile: Profile) -> (SimDisk, Vec<u8>) {
    let disk = roomy::disk(profile);
    disk.put("last", b"plain").unwrap();
    roomy::open(&disk).close().unwrap();
    disk.settle();
    let store = roomy::open(&disk);
    for nth in 0..COMMITS {
        commit(&store, nth);
    }
    let last = store.open_file("last").unwrap();
    last.write_all_at(b"acknowledged", 0).unwrap();
    last.commit().unwrap();
    disk.kill();
    drop((last, store));
    let whole = roomy::recovered(&disk);
    assert_eq!(whole.get("last").unwrap(), b"acknowledged");
    (disk, whole.get("a").unwrap())
}

/// Opens the rest: either the loss is detected, or nothing is lost.
fn is_missed(after: &SimDisk, a: &[u8], what: &str) -> bool {
    match roomy::open_with(after, roomy::options()) {
        Err(Error::Corrupt { .. }) => true,
        Err(e) => panic!("{what}: {e}"),
        Ok(store) => {
            store.close().unwrap();
            assert_eq!(after.get("last").unwrap(), b"acknowledged", "{what}: opened without the last commit");
            assert!(after.get("a").unwrap() == a, "{what}: opened without a commit");
            false
        }
    }
}

#[test]
fn a_segment_that_was_cut_short_is_missed() {
    for profile in PROFILES {
        let (disk, a) = killed(profile);
        let names = segments(&disk);
        assert!(names.len() > 1, "{profile:?}: {names:?}");
        for name in &names {
            let all = disk.get(name).unwrap().len() as u64;
            for bytes in (0..all).step_by(2048).chain([1, all - 4097, all - 1]) {
                let after = disk.fork();
                cut(&after, name, bytes);
                let what = format!("{profile:?}: {name} of {all} bytes has {bytes}");
                assert!(is_missed(&after, &a, &what), "{what}: nobody says so");
            }
            let after = disk.fork();
            after.remove(name).unwrap();
            let is_last = name == names.last().unwrap();
            // A segment that is newer than every header, and gone with its attribute, leaves no evidence.
            if !is_last {
                assert!(is_missed(&after, &a, name), "{profile:?}: {name} is gone");
            }
        }
    }
}

/// A copy has only the attributes of the data files: the header knows the segments that are older than it.
#[test]
fn a_segment_that_a_copy_cut_short_is_missed() {
    let (disk, a) = killed(Profile::Btrfs);
    let names = segments(&disk);
    let store = roomy::open(&disk);
    commit(&store, COMMITS);
    disk.kill();
    drop(store);
    let a = [&a[..], &roomy::recovered(&disk).get("a").unwrap()[a.len()..]].concat();
    for name in names {
        let all = disk.get(&name).unwrap().len() as u64;
        for bytes in [0, 5000, all / 2, all - 1] {
            let after = disk.fork();
            for file in segments(&disk).iter().map(String::as_str).chain([HEADER]) {
                after.set_attribute(file, None).unwrap();
            }
            cut(&after, &name, bytes);
            assert!(is_missed(&after, &a, &name), "{name} of {all} bytes has {bytes}: nobody says so");
        }
    }
}

/// Nobody needs the lost bytes of a closed journal, and later openings do not miss them.
#[test]
fn a_closed_store_goes_on_with_shorter_segments() {
    for profile in PROFILES {
        let (disk, a) = killed(profile);
        let disk = roomy::recovered(&disk);
        for name in segments(&disk) {
            let all = disk.get(&name).unwrap().len() as u64;
            let after = disk.fork();
            cut(&after, &name, all / 2);
            let what = format!("{profile:?}: {name}");
            if is_missed(&after, &a, &what) {
                // This is the segment in which the journal would continue, and its former contents are unknown.
                continue;
            }
            let store = roomy::open(&after);
            commit(&store, 0);
            after.kill();
            drop(store);
            for snapshot in after.snapshot().cuts(64, 1).into_iter().map(|cut| after.snapshot().power_cut(cut).disk) {
                roomy::recovered(&snapshot);
            }
        }
    }
}
