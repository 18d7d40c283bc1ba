//! Mounts on kernels before 6.16, where the end of the kernel's writeback does not mean that the daemon has
//! the data, and before 6.9, which do not repeat requests.

mod common;

use common::memory_tree::Asked;
use common::place::{Place, said};
use common::{Mount, can_mount, new_file, one_at_a_time};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use untorn_mount::fuse::kernel;
use untorn_mount::mounts::mount_control;
use untorn_tree::KernelCache;

const PAGE: usize = 4096;
/// So long a step that does not wait for a write under way has the opportunity to show it.
const MOMENT: Duration = Duration::from_millis(300);

/// Makes the kernel send the dirty pages, as memory pressure does.
fn send(file: &File) -> io::Result<()> {
    // SAFETY: a system call on an open descriptor.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

type Step = (&'static str, fn(&Path, &File), fn(&Asked) -> bool);

/// Each commits the first page, which the kernel sends before the step, and whose write the daemon answers late.
const STEPS: [Step; 5] = [
    ("rename", |at, _| fs::rename(at.join("f"), at.join("g")).unwrap(), |asked| *asked == Asked::Rename),
    ("link", |at, _| fs::hard_link(at.join("f"), at.join("g")).unwrap(), |asked| *asked == Asked::Link),
    (
        "lseek",
        |_, file| {
            // SAFETY: a system call on an open descriptor.
            unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
        },
        |asked| matches!(asked, Asked::Seek(_)),
    ),
    ("fsync", |_, file| file.sync_all().unwrap(), |asked| matches!(asked, Asked::Sync(_))),
    (
        "sync_files",
        |at, file| mount_control::sync_files(at, &[file.metadata().unwrap().ino()]).unwrap(),
        |asked| matches!(asked, Asked::SyncFiles(_)),
    ),
];

#[test]
fn nothing_is_committed_before_writes_on_their_way_have_come() {
    let _turn = one_at_a_time();
    for (name, step, is) in STEPS {
        let Some(mount) = Mount::new() else { return };
        let file = new_file(&mount, "f");
        file.write_all_at(&[1; PAGE], 0).unwrap();
        let (cache, (begun, has_begun), (go, goes)) = (Arc::clone(mount.cache()), channel(), channel::<()>());
        mount.tree.before_next_write(move |_| {
            // Another thread answers requests from now on.
            cache.begin_waiting();
            begun.send(()).unwrap();
            let _ = goes.recv();
        });
        let (done, is_done) = channel();
        thread::scope(|scope| {
            scope.spawn(|| send(&file).unwrap());
            has_begun.recv().unwrap();
            // Another page is dirty when the step begins.
            file.write_all_at(&[2; PAGE], 3 * PAGE as u64).unwrap();
            let (at, of) = (mount.path(), &file);
            scope.spawn(move || {
                step(at, of);
                done.send(()).unwrap();
            });
            let early = is_done.recv_timeout(MOMENT);
            drop(go);
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "{name} does not wait");
            is_done.recv().unwrap();
        });
        let asked = mount.tree.asked();
        let (place, last_write) = common::places(&asked, is);
        let writes = asked.iter().filter(|asked| matches!(asked, Asked::Write(..))).count();
        assert!(writes == 2 && last_write.unwrap() < place, "{name}: {asked:?}");
    }
}

/// The helper's own `fsync` is no sync of a program's.
#[test]
fn a_sync_of_several_files_syncs_none_of_them_alone() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let file = new_file(&mount, "f");
    file.write_all_at(&[1; PAGE], 0).unwrap();
    mount_control::sync_files(mount.path(), &[file.metadata().unwrap().ino()]).unwrap();
    let asked = mount.tree.asked();
    assert!(!asked.iter().any(|asked| matches!(asked, Asked::Sync(_))), "{asked:?}");
}

/// Programs that hold locks of inodes in all requests that pull, while everything is synced from outside.
#[test]
fn pulls_from_outside_never_wait_for_programs_that_wait_for_them() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let at = mount.path();
    let works = |n: u8| {
        for round in 0..150 {
            let (own, next) = (at.join(format!("f{n}")), at.join(format!("g{}", (n + round) % 3)));
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&own).unwrap();
            let map = {
                file.set_len(4 * PAGE as u64).unwrap();
                // SAFETY: nobody reads it.
                unsafe { memmap2::MmapOptions::new().len(4 * PAGE).map_mut(&file) }.unwrap()
            };
            file.write_all_at(&[round; 2 * PAGE], PAGE as u64).unwrap();
            map.flush_range(0, PAGE).unwrap();
            fs::rename(&own, &next).unwrap();
            // Another program has replaced it.
            let _ = fs::hard_link(&next, &own);
            file.write_all_at(&[round; 100], 0).unwrap();
            file.sync_data().unwrap();
        }
    };
    thread::scope(|scope| {
        let programs: Vec<_> = (0..3).map(|n| scope.spawn(move || works(n))).collect();
        while programs.iter().any(|program| !program.is_finished()) {
            mount_control::sync_all(at).unwrap();
            let files = fs::read_dir(at).unwrap().filter_map(|entry| Some(entry.ok()?.metadata().ok()?.ino()));
            // A file may be gone by now.
            let _ = mount_control::sync_files(at, &files.collect::<Vec<_>>());
        }
    });
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}

#[test]
fn what_an_older_kernel_lacks_is_refused_by_name_or_said() {
    if !can_mount() || std::env::var_os(kernel::AS_KERNEL).is_some() {
        return;
    }
    let refused = [
        ("6.12", "--commit=store", "--commit=store needs Linux 6.16"),
        ("6.1", "--commit=write", "--commit=write needs Linux 6.6"),
        ("6.12", "-osync_commits", "`sync_commits` needs Linux 6.18"),
    ];
    for (version, option, reason) in refused {
        // Here the kernel's features count, and not its version.
        if option == "--commit=write" && kernel::maps_uncached_files() {
            continue;
        }
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        let output = place.command(&[option, "store", "mnt"]).env(kernel::AS_KERNEL, version).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(reason), "{option}: {}", said(&output));
        assert!(!place.at("store").exists(), "{option}: the new store is left");
    }
    for (version, has_supervisor) in [("6.1", false), ("6.12", kernel::repeats_requests())] {
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        let output = place.command(&["store", "mnt"]).env(kernel::AS_KERNEL, version).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(told.contains("no supervisor: Linux before 6.9"), !has_supervisor, "{version}: {told}");
        place.done(&["umount", "mnt"]);
    }
}
