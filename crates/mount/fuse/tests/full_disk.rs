//! A disk that fills under a mount, so that writes that the kernel sends late find no room.
//!
//! Syncs, unmounts and status requests report such a file, and it is committed when there is room, as long as all of it
//! is there; a part of it is never committed.

mod common;
#[path = "common/mapping.rs"]
#[allow(dead_code, reason = "not every test program needs all of it")]
mod mapping;

use common::can_mount;
use mapping::{Mapping, PAGE};
use memmap2::{Mmap, MmapOptions};
use rustix::fs::Advice;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// Size of the disk, room that another file leaves, and size of a program's file: without the other file it fits twice.
const DISK: &str = "size=160m";
const LEFT: usize = 24 * MIB;
const LARGE: usize = 40 * MIB;
const OLD: [u8; 3000] = [1; 3000];
/// How often a part of a file is written until its pages are locked.
const TRIES: usize = 20;

/// A store on a file system of its own, which another file fills.
struct Full(TempDir);

impl Full {
    fn new() -> Option<Full> {
        if !can_mount() {
            return None;
        }
        let full = Full(tempfile::tempdir().unwrap());
        ["disk", "mnt"].iter().for_each(|name| fs::create_dir(full.path(name)).unwrap());
        let mut mount = Command::new("mount");
        if !mount.args(["-t", "tmpfs", "-o", DISK, "untorn-test"]).arg(full.path("disk")).status().unwrap().success() {
            eprintln!("skipped: cannot mount a tmpfs");
            return None;
        }
        Some(full)
    }

    /// A mount with a file that has a commit, and a nearly full disk.
    fn mounted() -> Option<Full> {
        let full = Full::new()?;
        full.mount();
        let file = full.open("large");
        file.write_all_at(&OLD, 0).unwrap();
        file.sync_all().unwrap();
        full.fill();
        Some(full)
    }

    fn fill(&self) {
        let there = rustix::fs::statvfs(self.path("disk")).unwrap();
        let free = (there.f_bavail * there.f_frsize) as usize;
        fs::write(self.path("disk/other"), vec![7; free - LEFT]).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.path("disk/other")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path("mnt").join(name)
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.at(name)).unwrap()
    }

    fn untorn(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        command.args(arguments).current_dir(self.path("")).stdin(Stdio::null()).output().unwrap()
    }

    fn mount(&self) {
        let output = self.untorn(&["disk/store", "mnt"]);
        assert!(output.status.success(), "{}", said(&output));
    }

    fn done(&self, arguments: &[&str]) {
        let output = self.untorn(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    }

    /// Checks that the command fails, and names a file.
    fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = self.untorn(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
        for word in words {
            assert!(said(&output).contains(word), "{arguments:?}: {}", said(&output));
        }
    }

    /// Locks a part of a file in memory: the kernel drops pages whose write failed whenever it wants memory, and some
    /// kernels do so after a few seconds. An error if a page is not there any more.
    fn lock(&self, name: &str, at: usize, len: usize) -> io::Result<Mmap> {
        let file = File::open(self.at(name))?;
        // SAFETY: nobody shortens the file, and its bytes are not read here.
        let pages = unsafe { MmapOptions::new().offset(at as u64).len(len).map(&file)? };
        pages.lock()?;
        Ok(pages)
    }

    /// Unmounts, and checks that the large file has this byte throughout at the next mount.
    fn has_committed(&self, byte: u8) {
        self.done(&["umount", "mnt"]);
        self.mount();
        assert!(fs::read(self.at("large")).unwrap() == vec![byte; LARGE]);
        self.done(&["umount", "mnt"]);
    }

    fn is_mounted(&self) -> bool {
        untorn_mount::mounts::mount_point::mounted_at(&self.path("mnt")).unwrap().is_some()
    }

    /// Writes more than fits; the sync reports that.
    fn write_too_much(&self) -> File {
        let file = self.open("large");
        file.write_all_at(&vec![2; LARGE], 0).unwrap();
        file.sync_all().unwrap_err();
        file
    }

    /// Writes more than fits, and locks the pages before the sync reports that.
    fn write_too_much_and_lock(&self) -> (File, Vec<Mmap>) {
        let file = self.open("large");
        let write_and_lock = |at| {
            file.write_all_at(&[2; MIB], at as u64).unwrap();
            self.lock("large", at, MIB).ok()
        };
        let piece = |at| (0..TRIES).find_map(|_| write_and_lock(at)).expect("pages that were just written are there");
        let locked = (0..LARGE).step_by(MIB).map(piece).collect();
        file.sync_all().unwrap_err();
        (file, locked)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = untorn_mount::mounts::mount_point::detach(&self.path("mnt"));
        let _ = Command::new("umount").arg("-l").arg(self.path("disk")).status();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Makes the kernel drop the pages of a file that it need not send.
fn forget(file: &File) {
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn what_did_not_fit_is_told_and_committed_when_there_is_room() {
    let Some(full) = Full::mounted() else { return };
    let (file, locked) = full.write_too_much_and_lock();
    full.refused(&["status", "mnt"], &["POISONED", "mnt/large"]);
    full.refused(&["sync", "mnt"], &["mnt/large", "No space left on device"]);
    full.refused(&["sync", "mnt/large"], &["mnt/large"]);
    drop(file);
    full.refused(&["umount", "mnt"], &["mnt/large", "so it stays mounted"]);
    assert!(full.is_mounted());
    full.make_room();
    full.done(&["sync", "mnt"]);
    full.done(&["status", "mnt"]);
    drop(locked);
    full.has_committed(2);
}

/// Each of them reads the lost bytes from the kernel.
#[test]
fn syncs_at_the_same_time_lose_nothing() {
    let Some(full) = Full::mounted() else { return };
    let (file, locked) = full.write_too_much_and_lock();
    thread::scope(|threads| {
        for arguments in [["sync", "mnt"], ["sync", "mnt/large"], ["sync", "mnt/large"], ["umount", "mnt"]] {
            let full = &full;
            threads.spawn(move || (0..10).for_each(|_| full.refused(&arguments, &["No space left on device"])));
        }
        for _ in 0..50 {
            assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        }
    });
    full.make_room();
    full.done(&["sync", "mnt"]);
    drop((file, locked));
    full.has_committed(2);
}

#[test]
fn what_the_kernel_has_not_all_of_any_more_is_told_and_no_part_of_it_committed() {
    let Some(full) = Full::mounted() else { return };
    let file = full.write_too_much();
    forget(&file);
    full.make_room();
    assert_eq!(
        fs::read(full.at("large")).map(drop).unwrap_err().raw_os_error(),
        Some(libc::EIO),
        "not what was written last"
    );
    full.refused(&["sync", "mnt"], &["mnt/large"]);
    file.sync_all().unwrap_err();
    file.sync_all().unwrap_err();
    drop(file);
    full.refused(&["umount", "mnt"], &["mnt/large", "is unmounted"]);
    assert!(!full.is_mounted());
    full.mount();
    assert_eq!(fs::read(full.at("large")).unwrap(), OLD);
    full.done(&["umount", "mnt"]);
}

#[test]
fn one_that_is_opened_anew_has_its_last_commit_and_goes_on() {
    let Some(full) = Full::mounted() else { return };
    let file = full.write_too_much();
    forget(&file);
    drop(file);
    full.make_room();
    let file = full.open("large");
    assert_eq!(file.metadata().unwrap().len(), OLD.len() as u64);
    file.write_all_at(&[3; 10], 0).unwrap();
    file.sync_all().unwrap();
    full.done(&["sync", "mnt"]);
    assert_eq!(fs::read(full.at("large")).unwrap(), [&[3; 10][..], &OLD[10..]].concat());
    drop(file);
    full.done(&["umount", "mnt"]);
}

/// Works as for the log of a database: the next transaction writes the same place anew.
#[test]
fn one_that_is_written_anew_goes_on_without_being_opened_anew() {
    for forgets in [false, true] {
        let Some(full) = Full::mounted() else { return };
        let file = full.write_too_much();
        if forgets {
            forget(&file);
        }
        full.make_room();
        file.write_all_at(&vec![4; LARGE], 0).unwrap();
        file.sync_all().unwrap();
        full.done(&["sync", "mnt"]);
        drop(file);
        full.has_committed(4);
    }
}

#[test]
fn stores_to_a_mapped_file_that_do_not_fit_are_told() {
    let Some(full) = Full::mounted() else { return };
    let file = full.open("mapped");
    file.set_len(LARGE as u64).unwrap();
    let locked = full.lock("mapped", 0, LARGE).unwrap();
    let mut mapping = Mapping::of(&file, LARGE);
    drop(file);
    (0..LARGE / PAGE).for_each(|page| mapping.store(page * PAGE, 5));
    drop(mapping);
    full.refused(&["sync", "mnt"], &["mnt/mapped"]);
    full.refused(&["umount", "mnt"], &["mnt/mapped", "so it stays mounted"]);
    full.make_room();
    // It commits, although a program has the file open.
    full.refused(&["umount", "mnt"], &["a program may"]);
    full.done(&["status", "mnt"]);
    drop(locked);
    full.done(&["umount", "mnt"]);
    full.mount();
    let found = fs::read(full.at("mapped")).unwrap();
    assert!(found.len() == LARGE && found.iter().step_by(PAGE).all(|byte| *byte == 5));
    full.done(&["umount", "mnt"]);
}

/// With `--commit=write` the call itself fails, and the file is unchanged.
#[test]
fn a_write_that_is_refused_at_once_changes_nothing() {
    let Some(full) = Full::new() else { return };
    full.done(&["--commit=write", "disk/store", "mnt"]);
    let file = full.open("large");
    file.write_all_at(&OLD, 0).unwrap();
    full.fill();
    let mut at = OLD.len();
    let refused = (0..LARGE / MIB).find_map(|_| {
        let done = file.write_all_at(&vec![2; MIB], at as u64);
        at += MIB;
        done.err()
    });
    assert_eq!(refused.unwrap().raw_os_error(), Some(libc::ENOSPC));
    full.make_room();
    file.write_all_at(&[3; 10], 0).unwrap();
    full.done(&["status", "mnt"]);
    drop(file);
    full.done(&["umount", "mnt"]);
}

#[test]
fn a_session_tells_what_did_not_fit() {
    let Some(full) = Full::new() else { return };
    fs::create_dir(full.path("disk/tree")).unwrap();
    fs::write(full.path("disk/tree/large"), OLD).unwrap();
    full.fill();
    let script = format!("cd disk/tree; echo done > other; yes | head -c {LARGE} 1<>large 2>/dev/null; true");
    let output = full.untorn(&["run", "--on", "disk/tree", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("disk/tree/large"), "{}", said(&output));
    assert_eq!(fs::read(full.path("disk/tree/large")).unwrap(), OLD);
    assert_eq!(fs::read(full.path("disk/tree/other")).unwrap(), b"done\n");
}
