//! The kernel's requests for `sync` and `syncfs`.
//!
//! `sync` concerns all mounts of the machine, so these tests are a program of their own, and run one at a time.

mod common;

use common::memory_tree::Asked;
use common::{Mount, new_file, one_at_a_time, places};
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;
use untorn_mount::End;

const PAGE: usize = 4096;

#[test]
fn sync_and_syncfs_are_not_passed_on_and_the_command_is() {
    let _turn = one_at_a_time();
    let Some(mount) = Mount::new() else { return };
    let mut file = new_file(&mount, "f");
    file.write_all(&[1; PAGE]).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    sync();
    assert!(!mount.tree.asked().contains(&Asked::SyncAll));
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&[2; PAGE]).unwrap();
    assert!(untorn_mount::mounts::mount_control::sync_all(mount.path()).unwrap());
    let asked = mount.tree.asked();
    let (place, last_write) = places(&asked, |asked| *asked == Asked::SyncAll);
    assert!(last_write.unwrap() < place, "{asked:?}");
    assert!(!untorn_mount::mounts::mount_control::sync_all("/tmp".as_ref()).unwrap(), "elsewhere nobody is asked");
}

/// `sync` of everything, in another process: this one has to answer it.
fn sync() {
    assert!(Command::new("sync").status().unwrap().success());
}

#[test]
fn a_mount_of_a_device_is_sent_sync_and_syncfs_after_the_writes() {
    let _turn = one_at_a_time();
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
        let mut asked = mount.tree.asked();
        // Another program of this machine may have called `sync` before.
        let first_write = asked.iter().position(|asked| *asked != Asked::SyncAll);
        asked.drain(..first_write.unwrap());
        let (sync, last_write) = places(&asked, |asked| *asked == Asked::SyncAll);
        assert!(last_write.unwrap() < sync, "{asked:?}");
    }
    // The kernel reports a failed sync to `syncfs`, but not to `sync`.
    mount.tree.fail_writes(true);
    assert_eq!(rustix::fs::syncfs(&file), Err(rustix::io::Errno::IO));
    sync();
    mount.tree.fail_writes(false);
    rustix::fs::syncfs(&file).unwrap();
    drop(file);
    assert_eq!(mount.unmount(), End::Unmounted);
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.8");
}
