//! Holes of files on a mount: where they are, and what they take.

mod common;

use common::can_mount;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Data and holes, one after the other.
fn shown(file: &File) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        found.push((start / 4096, at.div_ceil(4096)));
    }
    found
}

fn play(path: &Path) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(5 << 40).unwrap();
    for at in [0, 3 * MIB, 64 * MIB, 4 << 40] {
        file.write_all_at(&[1; 8192], at).unwrap();
    }
    file
}

fn change(file: &File) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, punch, 64 * MIB, 4096).unwrap();
    fallocate(file, punch, 3 * MIB, 8192).unwrap();
    file.write_all_at(&[2; 4096], 100 * MIB).unwrap();
}

#[test]
fn holes_are_where_they_are_on_a_plain_file_system() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, at) = (dir.path().join("store"), dir.path().join("mnt"));
    if File::create(dir.path().join("probe")).unwrap().set_len(5 << 40).is_err() {
        eprintln!("skipped: files of 5 TiB cannot be made in {}", dir.path().display());
        return;
    }
    fs::create_dir(&at).unwrap();
    let untorn = |arguments: &[&Path]| {
        assert!(Command::new(env!("CARGO_BIN_EXE_untorn-mount")).args(arguments).status().unwrap().success());
    };
    untorn(&[&store, &at]);
    let (plain, file) = (play(&dir.path().join("plain")), play(&at.join("file")));
    let same = |when: &str, file: &File| {
        assert_eq!(shown(file), shown(&plain), "{when}");
        let blocks = at.join("file").metadata().unwrap().blocks();
        // The kernel learns it after the file was closed.
        assert!(blocks < 8192 && (blocks > 0 || when != "mounted again"), "{when}: {blocks} blocks");
    };
    same("uncommitted", &file);
    file.sync_all().unwrap();
    same("committed", &file);
    change(&plain);
    change(&file);
    same("changed", &file);
    file.sync_all().unwrap();
    drop(file);
    untorn(&["umount".as_ref(), &at]);
    untorn(&[&store, &at]);
    let file = File::open(at.join("file")).unwrap();
    same("mounted again", &file);
    drop(file);
    untorn(&["umount".as_ref(), &at]);
}
