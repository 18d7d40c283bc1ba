//! Journals of files that are gone: they are quarantined, redone later, and removed.

use crate::fixture::{contents, small, survives};
use std::path::{Path, PathBuf};
use untorn::{Error, FailureClass, Store};

fn quarantined(store: &Store) -> Vec<PathBuf> {
    store.status().quarantined.into_iter().map(|q| q.path).collect()
}

/// Removing a quarantined journal was interrupted: the store could not be opened any more.
#[test]
fn a_crash_while_a_journal_set_aside_is_removed_does_no_harm() {
    survives("closed,ext4,garbage,tight,buffered/0/one,kill/");
    survives("closed,ext4,sector,tight,direct/0/away/");
}

#[test]
fn setting_a_journal_aside_flushes_what_class_process_had_not() {
    let process = || small::options().class(FailureClass::Process);
    let disk = small::disk();
    let store = small::open_with(&disk, process()).unwrap();
    let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
    store.checkpoint().unwrap();
    a.write_at(b"aaaa", 0).unwrap();
    a.commit().unwrap();
    b.write_at(&[b'b'; 9000], 0).unwrap();
    b.commit().unwrap();
    disk.kill();
    drop((a, b, store));
    disk.rename("a", "elsewhere").unwrap();

    // The missing file's journal is quarantined, and the new journal does not know about unflushed commits.
    let store = small::open_with(&disk, process()).unwrap();
    assert_eq!(quarantined(&store), [Path::new("a")]);
    let moment = disk.snapshot();
    for cut in moment.cuts(256, 1) {
        match small::open_with(&moment.power_cut(cut).disk, process()) {
            Err(Error::UnknownState { .. }) => {}
            Err(e) => panic!("{cut}: {e}"),
            Ok(store) => assert_eq!(contents(&store.open_file("b").unwrap()), [b'b'; 9000], "{cut}"),
        }
    }
}

#[test]
fn a_journal_set_aside_that_lost_its_end_is_damaged() {
    let disk = small::disk();
    let store = small::open(&disk);
    let a = store.open_or_create_file("a").unwrap();
    store.checkpoint().unwrap();
    for version in [b"one", b"two"] {
        a.write_at(version, 0).unwrap();
        a.commit().unwrap();
    }
    disk.kill();
    drop((a, store));
    disk.rename("a", "elsewhere").unwrap();
    let store = small::open(&disk);
    assert_eq!(quarantined(&store), [Path::new("a")]);
    store.close().unwrap();

    // The disk damages the last group, which nothing in the journal itself proves to be durable.
    let is_quarantined = |path: &Path| path.to_string_lossy().starts_with(".untorn/quarantine.");
    let quarantined = || disk.tree().into_iter().map(|(path, _)| path).filter(|path| is_quarantined(path));
    let segment = quarantined().find(|path| path.ends_with("segment.0")).expect("a segment of the quarantined journal");
    let bytes = disk.get(&segment).unwrap();
    let last = bytes.windows(4).rposition(|magic| magic == b"UTRC").expect("records");
    disk.overwrite(&segment, last as u64, &[0; 80]).unwrap();
    disk.rename("elsewhere", "a").unwrap();
    let kept = quarantined().count();

    match small::open_with(&disk, small::options()) {
        Err(Error::Corrupt { path, .. }) => assert!(is_quarantined(&path), "{}", path.display()),
        Err(e) => panic!("{e}"),
        Ok(store) => panic!("the file fell back to {:?}", contents(&store.open_file("a").unwrap())),
    }
    assert_eq!(quarantined().count(), kept, "nothing of it was removed");
}
