//! Holes of files on a mount: their positions, and the room that the files take.

mod common;

use common::can_mount;
use common::store_mount::Mounted;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Ranges of data, with holes between them.
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
        // The kernel learns the number after the file was closed.
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

#[test]
fn a_sparse_file_takes_what_was_written_before_anybody_syncs_it() {
    let Some(mounted) = Mounted::new() else { return };
    let file = File::create(mounted.at("file")).unwrap();
    file.set_len(1_600_000).unwrap();
    file.write_all_at(&[1; 50 << 10], 1_500_000).unwrap();
    drop(file);
    let about = fs::metadata(mounted.at("file")).unwrap();
    assert_eq!(about.len(), 1_600_000);
    assert!((100..300).contains(&about.blocks()), "{} blocks", about.blocks());
}

#[test]
fn a_hole_is_found_where_it_was_punched_in_a_small_file() {
    let Some(mounted) = Mounted::new() else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mounted.at("file")).unwrap();
    file.write_all_at(&[1; 12_288], 0).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
    for synced in [false, true] {
        assert_eq!(shown(&file), [(0, 1), (2, 3)], "synced: {synced}");
        file.sync_all().unwrap();
    }
}

#[test]
fn what_is_allocated_has_its_room_before_it_is_written() {
    let Some(mounted) = Mounted::new() else { return };
    let file = |name: &str| File::options().read(true).write(true).create(true).truncate(false).open(mounted.at(name));
    let blocks = |name: &str| fs::metadata(mounted.at(name)).unwrap().blocks();
    let kept = FallocateFlags::empty();
    const LEN: u64 = 30 * MIB;
    // A new file, a file that was small, one whose contents were just cut off, and one with a hole.
    let new = file("new").unwrap();
    let small = file("small").unwrap();
    small.write_all_at(b"small", 0).unwrap();
    let (cut, holed) = (file("cut").unwrap(), file("holed").unwrap());
    for file in [&cut, &holed] {
        file.write_all_at(&[7; 2 << 20], 0).unwrap();
        file.sync_all().unwrap();
    }
    cut.set_len(0).unwrap();
    fallocate(&holed, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    let all = [("new", new), ("small", small), ("cut", cut), ("holed", holed)];
    for (name, file) in all {
        fallocate(&file, kept, 0, LEN).unwrap();
        assert_eq!(file.metadata().unwrap().len(), LEN, "{name}");
        file.sync_all().unwrap();
    }
    let names = ["new", "small", "cut", "holed"];
    for when in ["at once", "mounted again"] {
        for name in names {
            assert!(blocks(name) * 512 >= LEN, "{name}, {when}: {} blocks", blocks(name));
        }
        mounted.unmount();
        mounted.mount();
    }
    let mut expected = vec![0; LEN as usize];
    for name in ["new", "cut"] {
        assert!(fs::read(mounted.at(name)).unwrap() == expected, "{name}");
    }
    expected[..5].copy_from_slice(b"small");
    assert!(fs::read(mounted.at("small")).unwrap() == expected);
    expected[..5].fill(0);
    expected[MIB as usize..2 * MIB as usize].fill(7);
    assert!(fs::read(mounted.at("holed")).unwrap() == expected);
    // Reserved room belongs to the file alone, and a request for more than there is fails.
    let free = || rustix::fs::statvfs(mounted.at("")).unwrap();
    let too_much = free().f_bavail * free().f_frsize + MIB;
    let refused = fallocate(file("more").unwrap(), kept, 0, too_much);
    assert_eq!(refused, Err(rustix::io::Errno::NOSPC));
    assert_eq!(fs::metadata(mounted.at("more")).unwrap().len(), 0);
    let beyond = FallocateFlags::KEEP_SIZE;
    fallocate(file("beyond").unwrap(), beyond, 0, LEN).unwrap();
    assert_eq!(fs::metadata(mounted.at("beyond")).unwrap().len(), 0);
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}
