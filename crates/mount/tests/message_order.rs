//! What the kernel sends before what, on which the rules of commits are built; and that pulling makes up for the rest.
//!
//! A kernel that behaves otherwise is noticed here.

mod common;

use common::Mount;
use common::memory_tree::Asked;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::thread;
use untorn_mount::End;
use untorn_tree::CommitMode;

const PAGE: usize = 4096;

fn new_file(mount: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(mount.at(name)).unwrap()
}

/// Where the first request of a sort is, and where the last write.
fn places(asked: &[Asked], is: impl Fn(&Asked) -> bool) -> (usize, Option<usize>) {
    let place = asked.iter().position(is).unwrap_or_else(|| panic!("not asked: {asked:?}"));
    (place, asked.iter().rposition(|asked| matches!(asked, Asked::Write(..))))
}

/// A shared mapping of a whole file.
struct Map {
    address: *mut u8,
    len: usize,
}

impl Map {
    fn of(file: &File, len: usize) -> Map {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Map { address: address.cast(), len }
    }

    fn store(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: it is in the mapping, which nobody else has.
        unsafe { self.address.add(at).write_volatile(byte) };
    }

    /// Whether the kernel has a page in its cache.
    fn is_cached(&self, page: usize) -> bool {
        let mut found = 0;
        // SAFETY: the page is in the mapping, and one byte is written for it.
        assert_eq!(unsafe { libc::mincore(self.address.add(page * PAGE).cast(), PAGE, &raw mut found) }, 0);
        found & 1 != 0
    }

    fn sync(&self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        // SAFETY: it is in the mapping.
        assert_eq!(unsafe { libc::msync(self.address.add(at).cast(), len, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}

#[test]
fn fsync_is_sent_after_the_writes() {
    let Some(mount) = Mount::new() else { return };
    mount.tree.be_lazy();
    let mut file = new_file(&mount, "f");
    file.write_all(&[1; 3 * PAGE]).unwrap();
    assert!(mount.tree.asked().is_empty(), "write() itself sends nothing");
    file.sync_all().unwrap();
    let asked = mount.tree.asked();
    let (sync, last_write) = places(&asked, |asked| matches!(asked, Asked::Sync(_)));
    assert!(last_write.unwrap() < sync, "{asked:?}");
}

#[test]
fn msync_sends_its_range_alone_and_a_pull_the_rest() {
    for lazy in [true, false] {
        let Some(mount) = Mount::new() else { return };
        if lazy {
            mount.tree.be_lazy();
        }
        let file = new_file(&mount, "f");
        file.set_len(8 * PAGE as u64).unwrap();
        let map = Map::of(&file, 8 * PAGE);
        mount.tree.asked();
        map.store(0, 1);
        map.store(5 * PAGE, 1);
        map.sync(0, PAGE);
        let asked = mount.tree.asked();
        let writes = asked.iter().filter(|asked| matches!(asked, Asked::Write(..))).count();
        let (sync, last_write) = places(&asked, |asked| matches!(asked, Asked::Sync(_)));
        assert_eq!((writes, last_write.unwrap() < sync), (if lazy { 1 } else { 2 }, true), "lazy {lazy}: {asked:?}");
    }
}

/// Writes that are to be durable are synced like files, by the same question, and send their range alone.
#[test]
fn durable_writes_send_their_range_alone_and_a_pull_the_rest() {
    for flags in [ReadWriteFlags::SYNC, ReadWriteFlags::DSYNC] {
        let Some(mount) = Mount::new() else { return };
        let file = new_file(&mount, "f");
        file.write_all_at(&[1; PAGE], 0).unwrap();
        rustix::io::pwritev2(&file, &[IoSlice::new(&[2; PAGE])], 5 * PAGE as u64, flags).unwrap();
        let asked = mount.tree.asked();
        let before_sync = asked.iter().take_while(|asked| !matches!(asked, Asked::Sync(_)));
        let writes = before_sync.filter(|asked| matches!(asked, Asked::Write(..))).count();
        assert_eq!(writes, 2, "{flags:?}: {asked:?}");
    }
}

/// What has sent the whole file is seen by the call that the program waits in. Without the process that pulls, a pull drops
/// what is cached.
#[test]
fn what_has_sent_the_whole_file_is_not_pulled() {
    type Sync = fn(&File) -> io::Result<()>;
    let by_write: Sync = |file| {
        rustix::io::pwritev2(file, &[IoSlice::new(&[2; PAGE])], 0, ReadWriteFlags::SYNC)?;
        Ok(())
    };
    let Some(mount) = Mount::new() else { return };
    let file = new_file(&mount, "f");
    mount.pull().close_all();
    for (name, sync, stays) in
        [("fsync", File::sync_all as Sync, true), ("fdatasync", File::sync_data, true), ("write", by_write, false)]
    {
        file.write_all_at(&[1; PAGE], 0).unwrap();
        sync(&file).unwrap();
        assert_eq!(Map::of(&file, PAGE).is_cached(0), stays, "{name}");
    }
}

/// Each of them is done while a file is open and dirty.
#[test]
fn renames_links_and_seeks_come_before_the_data_unless_it_is_pulled() {
    type Step = (&'static str, fn(&Mount, &mut File), fn(&Asked) -> bool);
    let steps: [Step; 3] = [
        ("rename", |mount, _| fs::rename(mount.at("f"), mount.at("g")).unwrap(), |asked| *asked == Asked::Rename),
        ("link", |mount, _| fs::hard_link(mount.at("f"), mount.at("g")).unwrap(), |asked| *asked == Asked::Link),
        (
            "lseek",
            |_, file| {
                // SAFETY: a system call on an open descriptor.
                unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
            },
            |asked| matches!(asked, Asked::Seek(_)),
        ),
    ];
    for (name, step, is) in steps {
        for lazy in [true, false] {
            let Some(mount) = Mount::new() else { return };
            if lazy {
                mount.tree.be_lazy();
            }
            let mut file = new_file(&mount, "f");
            file.write_all(&[1; PAGE]).unwrap();
            step(&mount, &mut file);
            let asked = mount.tree.asked();
            let (place, last_write) = places(&asked, is);
            assert_eq!(last_write.is_some_and(|write| write < place), !lazy, "{name}, lazy {lazy}: {asked:?}");
        }
    }
}

#[test]
fn truncation_comes_before_the_data() {
    let Some(mount) = Mount::new() else { return };
    let file = new_file(&mount, "f");
    file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let asked = mount.tree.asked();
    let (truncate, last_write) = places(&asked, |asked| matches!(asked, Asked::Truncate(..)));
    assert!(last_write.is_none_or(|write| write > truncate), "{asked:?}");
}

/// Punching sends the range that it is about; allocating sends nothing.
#[test]
fn holes_and_the_end_of_an_opening_come_after_the_data() {
    let Some(mount) = Mount::new() else { return };
    mount.tree.be_lazy();
    let file = new_file(&mount, "f");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (mode, first) in [(FallocateFlags::empty(), false), (punch, true)] {
        file.write_all_at(&[1; PAGE], 0).unwrap();
        rustix::fs::fallocate(&file, mode, 0, 2 * PAGE as u64).unwrap();
        let asked = mount.tree.asked();
        let (place, last_write) = places(&asked, |asked| matches!(asked, Asked::Allocate(_)));
        assert_eq!(last_write.is_some_and(|write| write < place), first, "{mode:?}: {asked:?}");
    }
    file.write_all_at(&[1; PAGE], 0).unwrap();
    drop(file);
    assert!(mount.tree.asked().iter().any(|asked| matches!(asked, Asked::Write(..))), "close() waits for the write");
}

/// A mapping outlives the descriptor, and what is stored to it is sent before it ends.
#[test]
fn the_release_is_after_the_last_mapping() {
    let Some(mount) = Mount::new() else { return };
    mount.tree.be_lazy();
    let file = new_file(&mount, "f");
    file.set_len(PAGE as u64).unwrap();
    let map = Map::of(&file, PAGE);
    drop(file);
    mount.tree.asked();
    map.store(0, 1);
    assert!(mount.tree.asked().is_empty());
    drop(map);
    let mut asked = Vec::new();
    while !asked.iter().any(|asked| matches!(asked, Asked::Release(_))) {
        asked.extend(mount.tree.asked());
        thread::yield_now();
    }
    assert!(matches!(asked[0], Asked::Write(..)), "{asked:?}");
}

#[test]
fn a_failed_write_is_told_once_and_then_forgotten() {
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    mount.tree.fail_writes(true);
    file.write_all(&[1; PAGE]).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(!mount.tree.asked().iter().any(|asked| matches!(asked, Asked::Sync(_))));
    mount.tree.fail_writes(false);
    file.sync_all().unwrap();
    let asked = mount.tree.asked();
    assert!(asked.iter().any(|asked| matches!(asked, Asked::Sync(_))), "{asked:?}");
    assert!(!asked.iter().any(|asked| matches!(asked, Asked::Write(..))), "the data is gone: {asked:?}");
}

/// A write that fails while it is pulled fails the rename.
#[test]
fn a_pull_tells_of_a_failed_write() {
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    file.write_all(&[1; PAGE]).unwrap();
    mount.tree.fail_writes(true);
    assert_eq!(fs::rename(mount.at("f"), mount.at("g")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(mount.at("f").exists() && !mount.at("g").exists());
}

#[test]
fn sync_and_syncfs_are_not_passed_on_and_the_command_is() {
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    file.write_all(&[1; PAGE]).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    sync();
    assert!(!mount.tree.asked().contains(&Asked::SyncAll));
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&[2; PAGE]).unwrap();
    assert!(untorn_mount::mount_control::sync_all(mount.path()).unwrap());
    let asked = mount.tree.asked();
    let (place, last_write) = places(&asked, |asked| *asked == Asked::SyncAll);
    assert!(last_write.unwrap() < place, "{asked:?}");
    assert!(!untorn_mount::mount_control::sync_all("/tmp".as_ref()).unwrap(), "elsewhere nobody is asked");
}

#[test]
fn several_files_are_synced_as_one() {
    let Some(mount) = Mount::new() else { return };
    let files = ["a", "b"].map(|name| new_file(&mount, name));
    files.iter().for_each(|file| file.write_all_at(&[1; PAGE], 0).unwrap());
    let inos = files.each_ref().map(|file| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
    untorn_mount::mount_control::sync_files(mount.path(), &inos).unwrap();
    let asked = mount.tree.asked();
    assert_eq!(asked.iter().filter(|asked| matches!(asked, Asked::Write(..))).count(), 2, "{asked:?}");
    assert_eq!(asked.last(), Some(&Asked::SyncFiles(inos.to_vec())));
}

/// Where the hidden directory is closed, the kernel is made to send by dropping what it has.
#[test]
fn a_pull_works_without_the_hidden_directory() {
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    mount.pull().close_all();
    file.write_all(&[1; PAGE]).unwrap();
    fs::rename(mount.at("f"), mount.at("g")).unwrap();
    let asked = mount.tree.asked();
    let (place, last_write) = places(&asked, |asked| *asked == Asked::Rename);
    assert!(last_write.unwrap() < place, "{asked:?}");
    assert_eq!(fs::read(mount.at("g")).unwrap(), [1; PAGE]);
}

/// Nothing of the server's own is seen in the root.
#[test]
fn the_hidden_directory_is_not_found() {
    let Some(mount) = Mount::new() else { return };
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    let mut inside = std::process::Command::new("find");
    let found = inside.arg(mount.path()).output().unwrap();
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
}

/// Handlers that pull, from more threads than receive, on files that others write, sync, rename and close.
#[test]
fn handlers_never_wait_for_each_other() {
    let Some(mount) = Mount::new() else { return };
    let mount = Arc::new(mount);
    let worker = |n: usize| {
        let mount = Arc::clone(&mount);
        move || {
            for round in 0..60 {
                let name = format!("t{}", n % 3);
                let options = OpenOptions::new().read(true).write(true).create(true).truncate(round % 7 == 0).clone();
                // Renamed by another thread.
                let Ok(file) = options.open(mount.at(&name)) else { continue };
                file.set_len(16 * PAGE as u64).unwrap();
                let map = Map::of(&file, 16 * PAGE);
                file.write_all_at(&[round as u8; 3 * PAGE], 5 * PAGE as u64).unwrap();
                map.sync(0, PAGE);
                let _ = fs::rename(mount.at(&name), mount.at(&format!("u{}", n % 2)));
                let _ = fs::hard_link(mount.at(&format!("u{}", n % 2)), mount.at(&name));
                file.sync_data().unwrap();
                drop(map);
                if round % 5 == 0 {
                    let _ = untorn_mount::mount_control::sync_all(mount.path());
                }
            }
        }
    };
    let workers: Vec<_> = (0..8).map(|n| thread::spawn(worker(n))).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// Wherever it is in the file and in memory: with the cache, even without writeback, a write that begins within a page
/// would come as two.
#[test]
fn without_cache_each_write_is_one_message() {
    const MOST: usize = 1020 << 10;
    let Some(mount) = Mount::with(CommitMode::Write) else { return };
    let mut file = new_file(&mount, "f");
    file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
    let bytes: Vec<u8> = (0..MOST + PAGE).map(|n| (n / 5) as u8).collect();
    mount.tree.asked();
    let mut expected = Vec::new();
    let ino = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    for (offset, start, len) in
        [(0, 0, 1), (4095, 1, 2), (333, 7, 5000), (8192, 0, 8192), (77, 1, MOST), (1 << 20, 4095, MOST), (9, 0, 0)]
    {
        file.write_all_at(&bytes[start..start + len], offset).unwrap();
        if len > 0 {
            expected.push(Asked::Write(ino, offset, len));
        }
    }
    file.seek(SeekFrom::Start(100)).unwrap();
    assert_eq!(file.write_vectored(&[IoSlice::new(&bytes[3..9000]), IoSlice::new(&bytes[10..500])]).unwrap(), 9487);
    expected.push(Asked::Write(ino, 100, 9487));
    assert_eq!(mount.tree.asked(), expected);
    // Up to the end of the file.
    let mut found = vec![0; MOST + 5 * PAGE];
    assert_eq!(file.read_at(&mut found, (1 << 20) + 1).unwrap(), MOST - 1);
    assert_eq!(found[..MOST - 1], bytes[4096..MOST + 4095]);
    let mut appended = OpenOptions::new().append(true).open(mount.at("f")).unwrap();
    appended.write_all(&bytes[..5000]).unwrap();
    assert_eq!(mount.tree.asked(), [Asked::Write(ino, (1 << 20) + MOST as u64, 5000)]);
}

#[test]
fn without_cache_mappings_and_writes_see_each_other() {
    let Some(mount) = Mount::with(CommitMode::Write) else { return };
    let file = new_file(&mount, "f");
    file.write_all_at(&[1; 2 * PAGE], 0).unwrap();
    let map = Map::of(&file, 2 * PAGE);
    map.store(10, 2);
    let mut found = [0; 3];
    file.read_exact_at(&mut found, 9).unwrap();
    assert_eq!(found, [1, 2, 1]);
    file.write_all_at(&[3], 11).unwrap();
    mount.tree.asked();
    map.store(12, 4);
    map.sync(0, 2 * PAGE);
    assert!(matches!(mount.tree.asked()[..], [Asked::Write(..), .., Asked::Sync(_)]));
    file.read_exact_at(&mut found, 10).unwrap();
    assert_eq!(found, [2, 3, 4]);
}

/// `sync` of everything, in another process: it waits for this one.
fn sync() {
    assert!(Command::new("sync").status().unwrap().success());
}

#[test]
fn a_mount_of_a_device_is_sent_sync_and_syncfs_after_the_writes() {
    let Some(mount) = Mount::of_device() else { return };
    mount.tree.be_lazy();
    let mut file = new_file(&mount, "f");
    for syncfs in [true, false] {
        file.write_all(&[1; 3 * PAGE]).unwrap();
        assert!(mount.tree.asked().is_empty(), "write() itself sends nothing");
        match syncfs {
            true => rustix::fs::syncfs(&file).unwrap(),
            false => sync(),
        }
        let asked = mount.tree.asked();
        let (sync, last_write) = places(&asked, |asked| *asked == Asked::SyncAll);
        assert!(last_write.unwrap() < sync, "{asked:?}");
    }
    // The kernel tells of a sync that failed, but not whoever syncs everything.
    mount.tree.fail_writes(true);
    assert_eq!(rustix::fs::syncfs(&file), Err(rustix::io::Errno::IO));
    sync();
    mount.tree.fail_writes(false);
    rustix::fs::syncfs(&file).unwrap();
    drop(file);
    assert_eq!(mount.unmount(), End::Unmounted);
}
