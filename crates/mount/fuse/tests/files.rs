//! Operations of programs on files go through a mount, and their results come back.

mod common;

use common::Mount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use untorn_mount::End;

#[test]
fn files_are_written_read_and_unmounted() {
    let Some(mount) = Mount::new() else { return };
    let content: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    fs::write(mount.at("file"), &content).unwrap();
    assert_eq!(fs::read(mount.at("file")).unwrap(), content);
    rustix::fs::fadvise(File::open(mount.at("file")).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(fs::read(mount.at("file")).unwrap(), content);
    let names = |mount: &Mount| {
        let mut names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mount), ["file"]);
    fs::create_dir(mount.at("dir")).unwrap();
    for n in 0..1000 {
        File::create(mount.at(&format!("dir/{n}"))).unwrap();
    }
    assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), 1000);
    assert_eq!(fs::remove_dir(mount.at("dir")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(mount.at("dir")).unwrap();
    assert_eq!(names(&mount), ["file"]);
    assert_eq!(mount.unmount(), End::Unmounted);
}

#[test]
fn kinds_links_and_attributes() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.at("a"), "one").unwrap();
    fs::write(mount.at("b"), "two").unwrap();
    fs::hard_link(mount.at("a"), mount.at("a2")).unwrap();
    assert_eq!(fs::metadata(mount.at("a")).unwrap().nlink(), 2);
    rustix::fs::renameat_with(CWD, mount.at("a"), CWD, mount.at("b"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(mount.at("a")).unwrap(), "two");
    assert_eq!(fs::read_to_string(mount.at("a2")).unwrap(), "one");
    let kept = rustix::fs::renameat_with(CWD, mount.at("a"), CWD, mount.at("b"), RenameFlags::NOREPLACE);
    assert_eq!(kept, Err(rustix::io::Errno::EXIST));
    fs::rename(mount.at("a"), mount.at("b")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("b")).unwrap(), "two");
    symlink("b", mount.at("s")).unwrap();
    assert_eq!(fs::read_link(mount.at("s")).unwrap().to_str(), Some("b"));
    assert_eq!(fs::read_to_string(mount.at("s")).unwrap(), "two");
    rustix::fs::mknodat(CWD, mount.at("p"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(fs::metadata(mount.at("p")).unwrap().file_type().is_fifo());

    rustix::fs::setxattr(mount.at("b"), "user.x", b"value", XattrFlags::CREATE).unwrap();
    let mut value = [0; 64];
    assert_eq!(rustix::fs::getxattr(mount.at("b"), "user.x", &mut value), Ok(5));
    assert_eq!(rustix::fs::getxattr(mount.at("b"), "user.y", &mut value), Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::getxattr(mount.at("b"), "user.x", &mut value[..2]), Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::listxattr(mount.at("b"), &mut value), Ok(7));
    rustix::fs::removexattr(mount.at("b"), "user.x").unwrap();
    assert_eq!(rustix::fs::listxattr(mount.at("b"), &mut [0u8; 0]), Ok(0));

    // Privileges end with a new owner, and with a write of another user.
    fs::set_permissions(mount.at("b"), fs::Permissions::from_mode(0o6777)).unwrap();
    std::os::unix::fs::chown(mount.at("b"), Some(7), Some(7)).unwrap();
    assert_eq!(fs::metadata(mount.at("b")).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(mount.at("b"), fs::Permissions::from_mode(0o6777)).unwrap();
    let write = format!("echo more >> {}", mount.at("b").display());
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c"];
    assert!(Command::new("setpriv").args(script).arg(write).status().unwrap().success());
    let after = fs::metadata(mount.at("b")).unwrap();
    assert_eq!((after.mode() & 0o7777, after.len()), (0o777, 8));

    // The kernel checks rights.
    fs::set_permissions(mount.at("b"), fs::Permissions::from_mode(0o600)).unwrap();
    let read = Command::new("setpriv").args(script).arg(format!("cat {}", mount.at("b").display())).output().unwrap();
    assert!(!read.status.success() && String::from_utf8_lossy(&read.stderr).contains("Permission denied"), "{read:?}");
}

#[test]
fn openings_of_every_sort() {
    let Some(mount) = Mount::new() else { return };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let inodes = mount.tree.inodes();

    // A file without a name, which then gets one.
    let dir = rustix::fs::open(mount.path(), OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR).unwrap();
    let mut unnamed = File::from(dir);
    unnamed.write_all(b"unnamed").unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    rustix::fs::linkat(CWD, own, CWD, mount.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(mount.at("named")).unwrap(), b"unnamed");
    drop(unnamed);

    // An unlinked file that is still open, and is written back meanwhile.
    let mut open = options.open(mount.at("named")).unwrap();
    open.write_all(b"UN").unwrap();
    open.sync_all().unwrap();
    fs::remove_file(mount.at("named")).unwrap();
    open.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "UNnamed");
    drop(open);
    for _ in 0..500 {
        if mount.tree.inodes() == inodes {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(mount.tree.inodes(), inodes, "the kernel forgets a file that is gone");

    // A file that is truncated, sparse, allocated and punched.
    fs::write(mount.at("f"), [7; 10_000]).unwrap();
    let file = options.clone().truncate(true).open(mount.at("f")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    file.write_all_at(b"x", 100_000).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 200_000).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 99_000, 4_000).unwrap();
    let content = fs::read(mount.at("f")).unwrap();
    assert!(content.len() == 200_000 && content.iter().all(|byte| *byte == 0));
    file.set_len(3).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), [0; 3]);

    // A write past the cache.
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(mount.at("f")).unwrap();
    direct.write_all_at(&[5; 4096], 0).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), [5; 4096]);
    drop((file, direct));
    assert_eq!(mount.unmount(), End::Unmounted);
}

#[test]
fn dot_dot_is_the_directory_above() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir_all(mount.at("a/b")).unwrap();
    let number = |path: &str| fs::metadata(mount.at(path)).unwrap().ino();
    for (dir, above) in [("", ""), ("a", ""), ("a/b", "a")] {
        let opened = File::open(mount.at(dir)).unwrap();
        for entry in rustix::fs::Dir::read_from(&opened).unwrap() {
            let entry = entry.unwrap();
            match entry.file_name().to_bytes() {
                b"." => assert_eq!(entry.ino(), number(dir), "{dir}/."),
                b".." => assert_eq!(entry.ino(), number(above), "{dir}/.."),
                _ => {}
            }
        }
    }
}
