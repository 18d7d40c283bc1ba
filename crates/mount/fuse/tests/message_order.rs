//! The order of the kernel's requests on which the rules of commits rely, and write-backs, which make up for the rest.
//!
//! A kernel with another order fails these tests.

mod common;
#[path = "common/mapping.rs"]
mod mapping;

use common::memory_tree::Asked;
use common::{Mount, new_file, one_at_a_time, places};
use mapping::{Mapping, PAGE};
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use untorn_tree::{CommitMode, FileTree};

#[test]
fn fsync_is_sent_after_the_writes() {
    let _turn = one_at_a_time();
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
    let _turn = one_at_a_time();
    for lazy in [true, false] {
        let Some(mount) = Mount::new() else { return };
        if lazy {
            mount.tree.be_lazy();
        }
        let file = new_file(&mount, "f");
        file.set_len(8 * PAGE as u64).unwrap();
        let mut map = Mapping::of(&file, 8 * PAGE);
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

/// Durable writes send only their range, followed by the same sync request as for a file.
#[test]
fn durable_writes_send_their_range_alone_and_a_pull_the_rest() {
    let _turn = one_at_a_time();
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

/// If the program's call has sent the whole file, that is recognised by its system call, and nothing is written back.
/// Without the helper process, a write-back drops the cache.
#[test]
fn what_has_sent_the_whole_file_is_not_pulled() {
    let _turn = one_at_a_time();
    type Sync = fn(&File) -> io::Result<()>;
    let by_write: Sync = |file| {
        rustix::io::pwritev2(file, &[IoSlice::new(&[2; PAGE])], 0, ReadWriteFlags::SYNC)?;
        Ok(())
    };
    let Some(mount) = Mount::new().filter(|_| !common::is_older_kernel("the helper is needed")) else { return };
    let file = new_file(&mount, "f");
    mount.cache().close_all();
    for (name, sync, stays) in
        [("fsync", File::sync_all as Sync, true), ("fdatasync", File::sync_data, true), ("write", by_write, false)]
    {
        file.write_all_at(&[1; PAGE], 0).unwrap();
        sync(&file).unwrap();
        assert_eq!(Mapping::of(&file, PAGE).is_cached(0), stays, "{name}");
    }
}

/// Each operation is done while a file is open and dirty.
#[test]
fn renames_links_and_seeks_come_before_the_data_unless_it_is_pulled() {
    let _turn = one_at_a_time();
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
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let file = new_file(&mount, "f");
    file.write_all_at(&[1; 3 * PAGE], 0).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let asked = mount.tree.asked();
    let (truncate, last_write) = places(&asked, |asked| matches!(asked, Asked::Truncate(..)));
    assert!(last_write.is_none_or(|write| write > truncate), "{asked:?}");
}

/// Punching a hole sends the affected range; allocating sends nothing.
#[test]
fn holes_and_the_end_of_an_opening_come_after_the_data() {
    let _turn = one_at_a_time();
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

/// A mapping outlives the descriptor, and stores to it are sent before the release.
#[test]
fn the_release_is_after_the_last_mapping() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    mount.tree.be_lazy();
    let file = new_file(&mount, "f");
    file.set_len(PAGE as u64).unwrap();
    let mut map = Mapping::of(&file, PAGE);
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
    let _turn = one_at_a_time();
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

/// A write that fails while it is written back makes the rename fail.
#[test]
fn a_pull_tells_of_a_failed_write() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    file.write_all(&[1; PAGE]).unwrap();
    mount.tree.fail_writes(true);
    assert_eq!(fs::rename(mount.at("f"), mount.at("g")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(mount.at("f").exists() && !mount.at("g").exists());
}

#[test]
fn several_files_are_synced_as_one() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let files = ["a", "b"].map(|name| new_file(&mount, name));
    files.iter().for_each(|file| file.write_all_at(&[1; PAGE], 0).unwrap());
    let inos = files.each_ref().map(|file| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
    untorn_mount::mounts::mount_control::sync_files(mount.path(), &inos).unwrap();
    let asked = mount.tree.asked();
    assert_eq!(asked.iter().filter(|asked| matches!(asked, Asked::Write(..))).count(), 2, "{asked:?}");
    assert_eq!(asked.last(), Some(&Asked::SyncFiles(inos.to_vec())));
}

/// If the hidden directory is closed, the kernel is made to send by dropping its cache.
#[test]
fn a_pull_works_without_the_hidden_directory() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new().filter(|_| !common::is_older_kernel("the helper is needed")) else { return };
    let mut file = new_file(&mount, "f");
    mount.cache().close_all();
    file.write_all(&[1; PAGE]).unwrap();
    fs::rename(mount.at("f"), mount.at("g")).unwrap();
    let asked = mount.tree.asked();
    let (place, last_write) = places(&asked, |asked| *asked == Asked::Rename);
    assert!(last_write.unwrap() < place, "{asked:?}");
    assert_eq!(fs::read(mount.at("g")).unwrap(), [1; PAGE]);
}

/// The root shows nothing of the server's own.
#[test]
fn the_hidden_directory_is_not_found() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    let mut inside = std::process::Command::new("find");
    let found = inside.arg(mount.path()).output().unwrap();
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
}

/// Handlers that cache, from more threads than receive, on files that others write, sync, rename and close.
#[test]
fn handlers_never_wait_for_each_other() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let workers: Vec<_> = (0..4)
        .map(|n| {
            let mut command = untorn_testkit::again!("workers");
            command.env(WORKS_ON, mount.path()).env(WORKER, n.to_string());
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    let asked = mount.tree.asked();
    assert!(asked.contains(&Asked::Rename));
    let syncs = asked.iter().filter(|asked| matches!(asked, Asked::Sync(_))).count();
    assert!(syncs > 400, "{syncs}");
}

const WORKS_ON: &str = "UNTORN_WORKS_ON";
const WORKER: &str = "UNTORN_WORKER";

/// Two threads that work in a process of their own, if the variables are set: see [`mapping`].
#[test]
fn workers() {
    let (Ok(at), Ok(process)) = (std::env::var(WORKS_ON), std::env::var(WORKER)) else { return };
    let at = Path::new(&at);
    let work = |n: usize| {
        for round in 0..60 {
            let name = format!("t{}", n % 3);
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(round % 7 == 0).clone();
            // Another worker has renamed it.
            let Ok(file) = options.open(at.join(&name)) else { continue };
            file.set_len(16 * PAGE as u64).unwrap();
            // SAFETY: nobody reads it.
            let map = unsafe { memmap2::MmapOptions::new().len(16 * PAGE).map_mut(&file) }.unwrap();
            file.write_all_at(&[round as u8; 3 * PAGE], 5 * PAGE as u64).unwrap();
            map.flush_range(0, PAGE).unwrap();
            let _ = fs::rename(at.join(&name), at.join(format!("u{}", n % 2)));
            let _ = fs::hard_link(at.join(format!("u{}", n % 2)), at.join(&name));
            file.sync_data().unwrap();
            drop(map);
            if round % 5 == 0 {
                let _ = untorn_mount::mounts::mount_control::sync_all(at);
            }
        }
    };
    let process: usize = process.parse().unwrap();
    thread::scope(|scope| (0..2).for_each(|n| _ = scope.spawn(move || work(2 * process + n))));
}

/// At any position in the file and in memory. With a cache, even one without writeback, a write that begins within a
/// page would arrive as two.
#[test]
fn without_cache_each_write_is_one_message() {
    let _turn = one_at_a_time();
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
    // A read up to the end of the file.
    let mut found = vec![0; MOST + 5 * PAGE];
    assert_eq!(file.read_at(&mut found, (1 << 20) + 1).unwrap(), MOST - 1);
    assert_eq!(found[..MOST - 1], bytes[4096..MOST + 4095]);
    let mut appended = OpenOptions::new().append(true).open(mount.at("f")).unwrap();
    appended.write_all(&bytes[..5000]).unwrap();
    assert_eq!(mount.tree.asked(), [Asked::Write(ino, (1 << 20) + MOST as u64, 5000)]);
}

#[test]
fn without_cache_mappings_and_writes_see_each_other() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::with(CommitMode::Write) else { return };
    let file = new_file(&mount, "f");
    file.write_all_at(&[1; 2 * PAGE], 0).unwrap();
    let mut map = Mapping::of(&file, 2 * PAGE);
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

/// A program may get a lease of a file that it alone has open, even after the file was written back.
#[test]
fn a_write_lease_is_had_after_a_rename_and_an_msync() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let file = new_file(&mount, "f");
    file.set_len(PAGE as u64).unwrap();
    drop(new_file(&mount, "g"));
    let mut map = Mapping::of(&file, PAGE);
    map.store(0, 1);
    map.sync(0, PAGE);
    drop(map);
    fs::rename(mount.at("f"), mount.at("g")).unwrap();
    // SAFETY: a system call on a descriptor that is open.
    let lease = |kind: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    assert_eq!(lease(libc::F_WRLCK), 0, "{}", io::Error::last_os_error());
    assert_eq!(lease(libc::F_UNLCK), 0);
}

/// A time that is set after a store stays, whenever the kernel sends the store.
#[test]
fn a_time_set_after_a_store_to_a_mapping_stays() {
    let _turn = one_at_a_time();
    for mode in [CommitMode::Sync, CommitMode::Write] {
        let Some(mount) = Mount::with(mode) else { return };
        let file = new_file(&mount, "f");
        file.write_all_at(&[0; PAGE], 0).unwrap();
        let mut map = Mapping::of(&file, PAGE);
        map.store(0, 1);
        let set = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        file.set_modified(set).unwrap();
        map.sync(0, PAGE);
        let ino = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        assert_eq!(mount.tree.attributes(ino).unwrap().mtime.seconds, 1000, "{mode:?}");
        drop(map);
        drop(file);
        assert_eq!(fs::metadata(mount.at("f")).unwrap().modified().unwrap(), set, "{mode:?}");
    }
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}
