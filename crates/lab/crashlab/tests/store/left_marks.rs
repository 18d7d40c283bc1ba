//! Marks of owners that died before the first commit of a file was written: an owner that recovers and closes the store
//! clears them, so that the file can be moved anywhere. Marks stay if their commits may exist.

use crate::fixture::roomy;
use std::path::{Path, PathBuf};
use untorn::__private::StoreSteps;
use untorn::Store;
use untorn_crashlab::{Cut, PROFILES, Profile, SimDisk, Snapshot};
use untorn_journal::format::{Attribute, AttributeFound};

/// The files that wait for a journal.
fn marked(disk: &SimDisk) -> Vec<PathBuf> {
    let is_pending = |value: Option<&[u8]>| matches!(Attribute::decode(value), AttributeFound::Valid(a) if a.pending);
    let tree = disk.tree().into_iter().filter(|(_, entry)| is_pending(entry.attribute.as_deref()));
    tree.map(|(path, _)| path).collect()
}

fn write(store: &Store, name: &str, bytes: &[u8]) -> untorn::Result<()> {
    let file = store.open_or_create_file(name)?;
    file.write_all_at(bytes, 0)?;
    file.commit()
}

/// A closed store, and plain files that were never in it.
fn closed(profile: Profile) -> SimDisk {
    let disk = roomy::disk(profile);
    disk.make_directory("below", 0o700, 0).unwrap();
    for name in ["a", "b", "below/c"] {
        disk.put(name, b"plain").unwrap();
    }
    let store = roomy::open(&disk);
    write(&store, "new", b"commit").unwrap();
    store.close().unwrap();
    disk.settle();
    disk
}

/// First commits and later ones, a file that is open during and after a checkpoint, and one that changes only its name.
fn session(store: &Store) -> untorn::Result<()> {
    write(store, "a", b"A")?;
    let held = store.open_file("b")?;
    held.write_all_at(b"B", 0)?;
    held.commit()?;
    store.checkpoint()?;
    write(store, "below/c", b"C")?;
    store.rename("a", "below/a")?;
    store.checkpoint()?;
    store.clone().close()
}

fn crashes(snapshot: &Snapshot, cuts: usize) -> Vec<(String, SimDisk)> {
    let cuts = snapshot.cuts(cuts, 1).into_iter();
    let ways = cuts.map(|cut| (cut.to_string(), snapshot.power_cut(cut).disk));
    ways.chain([("killed".to_owned(), snapshot.killed())]).collect()
}

#[test]
fn no_mark_outlives_its_commit() {
    for profile in PROFILES {
        let disk = closed(profile);
        disk.record();
        session(&roomy::open(&disk)).unwrap();
        let mut left = 0;
        for snapshot in disk.recorded() {
            for (how, after) in crashes(&snapshot, 24) {
                left += marked(&after).len();
                let place = format!("{profile:?}: {how} at {}", snapshot.call());
                assert_eq!(marked(&roomy::recovered(&after)), Vec::<PathBuf>::new(), "{place}");
            }
        }
        assert!(left > 0, "{profile:?}: no crash left a mark");
    }
}

/// The mark was left by an owner before the last one, which committed nothing to the file.
#[test]
fn no_mark_outlives_the_next_owners() {
    for profile in PROFILES {
        let disk = closed(profile);
        disk.record();
        write(&roomy::open(&disk), "a", b"A").unwrap();
        let recorded = disk.recorded();
        let first = recorded.iter().find(|snapshot| !marked(&snapshot.killed()).is_empty());
        if let Some(snapshot) = first {
            for (how, after) in crashes(snapshot, 2) {
                after.record();
                session(&roomy::open(&after)).unwrap();
                for second in after.recorded() {
                    for (then, last) in crashes(&second, 2) {
                        let place = format!("{profile:?}: {how} at {}, {then} at {}", snapshot.call(), second.call());
                        assert_eq!(marked(&roomy::recovered(&last)), Vec::<PathBuf>::new(), "{place}");
                    }
                }
            }
        }
    }
}

/// A store whose owner died with a commit of "a", and with a mark of "b" but without a commit of it.
fn died() -> SimDisk {
    let disk = closed(Profile::Ext4);
    let store = roomy::open(&disk);
    let held = ["a", "b"].map(|name| store.open_file(name).unwrap());
    write(&store, "a", b"A").unwrap();
    write(&store, "b", b"B").unwrap();
    store.checkpoint().unwrap();
    write(&store, "a", b"AA").unwrap();
    disk.kill();
    drop((held, store));
    assert_eq!(marked(&disk), [Path::new("a"), Path::new("b")]);
    disk
}

#[test]
fn a_mark_that_a_quarantined_journal_waits_for_stays() {
    let disk = died();
    disk.rename("a", "elsewhere").unwrap();
    let store = roomy::open(&disk);
    assert_eq!(store.status().quarantined.len(), 1);
    store.close().unwrap();
    assert_eq!(marked(&disk), [Path::new("elsewhere")]);
    // Also if the file is moved there later, for any owner of the store.
    roomy::open(&disk).close().unwrap();
    assert_eq!(marked(&disk), [Path::new("elsewhere")]);
    disk.rename("elsewhere", "a").unwrap();
    let after = roomy::recovered(&disk);
    assert_eq!((marked(&after), after.get("a").unwrap()), (Vec::new(), b"AAain".to_vec()));
}

/// If two files have one identity, nobody can tell which of them had the commits, or lacks them.
#[test]
fn a_mark_of_a_copy_stays() {
    let disk = died();
    disk.copy("a", "copy", true).unwrap();
    disk.copy("b", "below/b", true).unwrap();
    let after = roomy::recovered(&disk);
    assert_eq!(marked(&after), [Path::new("below/b"), Path::new("copy")]);
    let refused = roomy::open(&after).open_file("copy").map(drop).unwrap_err();
    assert_eq!(refused.kind(), "needs-its-journal");
}

#[test]
fn a_mark_stays_if_the_log_could_not_be_read() {
    let disk = died();
    // The contents of the last commit, which a durable mark proves to be complete.
    let store = roomy::open(&disk);
    write(&store, "a", &[b'x'; 9000]).unwrap();
    assert!(store.write_durable_mark().unwrap());
    let segment = (0..9).map(|n| format!(".untorn/journal/segment.{n}")).find(|name| {
        disk.get(name).is_ok_and(|bytes| bytes.windows(8192).any(|window| window.iter().all(|byte| *byte == b'x')))
    });
    disk.kill();
    drop(store);
    let segment = segment.expect("the commit is in the log");
    let bytes = disk.get(&segment).unwrap();
    let block =
        (0..bytes.len()).step_by(4096).find(|at| bytes[*at..][..4096].iter().all(|byte| *byte == b'x')).unwrap();
    disk.set_unreadable(&segment, block as u64..block as u64 + 4096).unwrap();
    let store = roomy::open(&disk);
    assert_eq!(store.status().quarantined.len(), 1);
    store.close().unwrap();
    assert_eq!(marked(&disk), [Path::new("a"), Path::new("b")]);
}

/// A closed store's tree is not searched: a mark that was brought there is not looked for.
#[test]
fn opening_and_closing_a_closed_store_looks_at_no_file() {
    for profile in PROFILES {
        let disk = closed(profile);
        disk.trace();
        roomy::open(&disk).close().unwrap();
        let looked = disk.traced();
        assert!(looked.iter().all(|call| !call.contains("below")), "{profile:?}: {looked:?}");
        disk.trace();
        let store = roomy::open(&disk);
        write(&store, "b", b"B").unwrap();
        store.close().unwrap();
        let looked = disk.traced();
        assert!(looked.iter().all(|call| !call.contains("below")), "{profile:?}: {looked:?}");
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(marked(&after), Vec::<PathBuf>::new());
    }
}
