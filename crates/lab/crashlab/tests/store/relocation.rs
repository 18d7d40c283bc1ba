//! A standalone file that is renamed over another one while its program goes on with it.

use crate::fixture::roomy;
use std::path::Path;
use untorn::__private::relocate::{flush_names_on, put_back, uncommitted};
use untorn::__private::remove_unneeded_on;
use untorn::__private::sync_point;
use untorn::{File, FileOptions, Result};
use untorn_crashlab::{PROFILES, Profile, SimDisk};
use untorn_journal::directories::store_dir::StoreDir;

fn open(disk: &SimDisk, name: &str) -> Result<File> {
    let options = FileOptions::new().create(true).store(roomy::options());
    untorn::__private::open_file_on(&options, disk.process(), Path::new(name), name.into())
}

fn commit(file: &File, contents: &[u8; 6]) -> Result<()> {
    file.write_at(contents, 0)?;
    file.commit()
}

fn contents(disk: &SimDisk) -> Result<[u8; 6]> {
    let mut found = [0; 6];
    open(disk, "db")?.read_exact_at(&mut found, 0)?;
    Ok(found)
}

/// The steps of `rename`: both stores are closed, the name changes, and the file goes on. Each crash leaves one of the
/// contents completely, and none older than the acknowledged one. The error is that of the first file that could not be
/// read.
fn renamed_while_open(disk: &SimDisk, from: &str) -> Result<()> {
    let old = open(disk, "db")?;
    commit(&old, b"before")?;
    let new = open(disk, from)?;
    commit(&new, b"middle")?;
    disk.record();
    new.store().close()?;
    old.store().close()?;
    disk.rename(from, "db").expect("a healthy disk");
    flush_names_on(&*disk.process(), Path::new("db"))?;
    if let Some((dir, _)) = from.split_once('/') {
        disk.process().sync_dir(Path::new(dir), sync_point::RELOCATED).expect("a healthy disk");
    }
    let file = open(disk, "db")?;
    commit(&file, b"latest")?;
    let last = disk.snapshot();
    for (snapshot, ended) in disk.recorded().iter().map(|s| (s, false)).chain([(&last, true)]) {
        for cut in snapshot.cuts(64, 1) {
            let found = contents(&snapshot.power_cut(cut).disk)?;
            let expected: &[&[u8; 6]] = if ended { &[b"latest"] } else { &[b"before", b"middle", b"latest"] };
            assert!(expected.contains(&&found), "{} {cut}: {found:?}", snapshot.call());
        }
    }
    Ok(())
}

#[test]
fn a_file_renamed_while_open_keeps_its_new_name() {
    for profile in PROFILES {
        renamed_while_open(&roomy::disk(profile), "db.new").unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        // From another directory.
        let disk = roomy::disk(profile);
        disk.process().mkdir(Path::new("other"), 0o755).expect("a healthy disk");
        disk.settle();
        renamed_while_open(&disk, "other/db").unwrap_or_else(|e| panic!("{profile:?}, from a directory: {e}"));
    }
    for from in ["db.new", "other/db"] {
        let disk = roomy::disk(Profile::AnyPosix);
        disk.process().mkdir(Path::new("other"), 0o755).expect("a healthy disk");
        disk.settle();
        disk.skip(sync_point::RELOCATED);
        let missed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| renamed_while_open(&disk, from)));
        assert!(!matches!(missed, Ok(Ok(()))), "{from}: the flush is needed");
    }
}

#[test]
fn uncommitted_changes_go_along() {
    let disk = roomy::disk(Profile::Ext4);
    let file = open(&disk, "db").unwrap();
    commit(&file, b"before").unwrap();
    assert!(uncommitted(&file).unwrap().is_none());
    file.write_at(b"AFTER", 3).unwrap();
    file.set_len(20).unwrap();
    file.zero(0, 2).unwrap();
    let changes = uncommitted(&file).unwrap().expect("there are some");
    file.store().close().unwrap();
    let again = open(&disk, "db").unwrap();
    put_back(&again, &changes).unwrap();
    let mut found = [1; 20];
    again.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found[..9], b"\0\0fAFTER\0");
    again.rollback().unwrap();
    assert_eq!(again.len().unwrap(), 6);
}

/// A file is unlinked, and its store removed: wherever that ends, the name can be used again. The error is that of the
/// first file that could not be created.
fn removed_with_its_store(disk: &SimDisk) -> Result<()> {
    let file = open(disk, "db")?;
    commit(&file, b"before")?;
    file.store().close()?;
    disk.remove("db").expect("a healthy disk");
    disk.record();
    let store_dir = StoreDir::of_file(Path::new("db"));
    assert!(remove_unneeded_on(Path::new("db"), &disk.process(), &store_dir)?);
    for snapshot in disk.recorded() {
        for cut in snapshot.cuts(64, 1) {
            let after = snapshot.power_cut(cut).disk;
            let again = open(&after, "db")?;
            commit(&again, b"afresh")?;
            drop(again);
            assert_eq!(&contents(&after)?, b"afresh", "{} {cut}", snapshot.call());
        }
    }
    Ok(())
}

#[test]
fn the_name_of_a_removed_file_is_free_whenever_its_removal_ends() {
    for profile in PROFILES {
        removed_with_its_store(&roomy::disk(profile)).unwrap_or_else(|e| panic!("{profile:?}: {e}"));
    }
    let disk = roomy::disk(Profile::AnyPosix);
    disk.skip(sync_point::EJECT_JOURNAL);
    assert!(removed_with_its_store(&disk).is_err(), "the flush is needed");
}
