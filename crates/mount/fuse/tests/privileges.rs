//! Setuid and setgid bits end when another user changes a file's contents, by any call.

mod common;

use common::place::NOBODY;
use common::{Mount, new_file};
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, fallocate, statx};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use untorn_tree::CommitMode;

/// Runs a function in a thread of another user, who is in these groups, too.
fn as_nobody(groups: &[u32], run: impl FnOnce() + Send) {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let work = move || {
        set_thread_groups(&groups).unwrap();
        let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        run();
    };
    thread::scope(|scope| scope.spawn(work).join().unwrap());
}

/// The mode as a program that runs the file finds it, from the kernel's cache if it is there.
fn mode(path: &Path) -> u32 {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(found.stx_mode) & 0o7777
}

fn writing(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

fn allocating(path: &Path, how: FallocateFlags) {
    fallocate(writing(path), how, 4096, 8192).unwrap();
}

type Change = (&'static str, fn(&Path));

const ALLOCATIONS: [Change; 4] = [
    ("fallocate", |path| allocating(path, FallocateFlags::empty())),
    ("fallocate, size kept", |path| allocating(path, FallocateFlags::KEEP_SIZE)),
    ("punch", |path| allocating(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
    ("zero", |path| allocating(path, FallocateFlags::ZERO_RANGE)),
];

const WRITES: [Change; 8] = [
    ("write", |path| writing(path).write_all_at(b"other", 0).unwrap()),
    ("append", |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap()),
    ("direct write", |path| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        file.write_all_at(&[5; 4096], 0).unwrap();
    }),
    ("synchronous write", |path| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path).unwrap();
        file.write_all_at(b"other", 0).unwrap();
    }),
    ("truncation", |path| writing(path).set_len(100).unwrap()),
    ("longer", |path| writing(path).set_len(100_000).unwrap()),
    ("opening", |path| drop(OpenOptions::new().write(true).truncate(true).open(path).unwrap())),
    ("copy", |path| {
        let (from, to) = (File::open(path).unwrap(), writing(path));
        let copied = rustix::fs::copy_file_range(from, Some(&mut 0), to, Some(&mut 20_000), 5000).unwrap();
        assert!(copied > 0);
    }),
];

#[test]
fn another_user_who_changes_a_file_takes_its_setuid_and_setgid_bits() {
    for commit in [CommitMode::Sync, CommitMode::Write] {
        let Some(mount) = Mount::with(commit) else { return };
        for (name, change) in ALLOCATIONS.into_iter().chain(WRITES) {
            for before in [0o6777, 0o6666, 0o4777, 0o2777] {
                let path = mount.at("file");
                new_file(&mount, "file").write_all(&[7; 40_000]).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
                assert_eq!(mode(&path), before);
                as_nobody(&[], || change(&path));
                assert_eq!(mode(&path), before & 0o777, "{commit:?}: {name}");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn root_who_changes_a_file_keeps_them_and_a_member_of_the_group_the_mark_of_locks() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.at("file");
    new_file(&mount, "file").write_all(&[7; 40_000]).unwrap();
    for (name, change) in ALLOCATIONS {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        change(&path);
        assert_eq!(mode(&path), 0o6777, "{name}");
    }
    chown(&path, Some(0), Some(7)).unwrap();
    for (name, change) in ALLOCATIONS.into_iter().chain(WRITES) {
        for (groups, after) in [(&[7][..], 0o2666), (&[8], 0o666)] {
            fs::write(&path, [7; 40_000]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6666)).unwrap();
            as_nobody(groups, || change(&path));
            assert_eq!(mode(&path), after, "{name}: {groups:?}");
        }
    }
}
