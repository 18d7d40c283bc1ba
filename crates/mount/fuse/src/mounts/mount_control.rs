//! Requests of `untorn` commands to the daemon of a mount: `ioctl` on any directory of the mount.

use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Setter, ioctl, opcode};
use std::path::Path;
use untorn_tree::Ino;

/// The most files that one request commits together.
pub const MOST_FILES: usize = 511;

/// Commits everything; the answer is the number of the process that ends last.
pub const PREPARE_UNMOUNT: u32 = opcode::read::<u32>(b'U', 1);
/// Commits several files in one commit.
pub const SYNC_FILES: u32 = opcode::write::<FileList>(b'U', 2);

/// Commits everything. A request of its own, because the kernel passes `syncfs` on to few mounts.
pub const SYNC_ALL: u32 = opcode::none(b'U', 3);

/// Inodes, and how many entries of the array are used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FileList {
    count: u64,
    inos: [Ino; MOST_FILES],
}

fn directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).with_context(|| path.display().to_string())
}

/// Makes the daemon commit everything before an unmount. Returns the number of the process that ends last.
pub fn prepare_unmount(mount_point: &Path) -> Result<u32> {
    let directory = directory(mount_point)?;
    // SAFETY: the number says that 32 bits are read, and the kernel copies as many from the daemon.
    let result = unsafe { ioctl(&directory, Getter::<{ PREPARE_UNMOUNT }, u32>::new()) };
    let shown = mount_point.display();
    match result {
        Err(Errno::PERM) => bail!("{shown} is a mount of another user; only that user and root can unmount it"),
        result => result.with_context(|| {
            format!("cannot commit everything on {shown}, so it stays mounted; find the cause, and try again")
        }),
    }
}

/// Makes the daemon commit files of a mount in one commit; at most [`MOST_FILES`].
pub fn sync_files(mount_point: &Path, files: &[Ino]) -> Result<()> {
    let directory = directory(mount_point)?;
    let mut list = FileList { count: files.len() as u64, inos: [0; MOST_FILES] };
    list.inos.get_mut(..files.len()).context("too many files at once")?.copy_from_slice(files);
    // SAFETY: the number says that a list is written, and the kernel copies it whole for the daemon.
    let result = unsafe { ioctl(&directory, Setter::<{ SYNC_FILES }, FileList>::new(list)) };
    result.with_context(|| format!("cannot commit the files on {}; their last commits stand", mount_point.display()))
}

/// Makes the daemon commit everything on a mount. False if the directory is on no mount of Untorn.
pub fn sync_all(directory_on_it: &Path) -> Result<bool> {
    let directory = directory(directory_on_it)?;
    // SAFETY: the number says that no memory is read or written.
    match unsafe { ioctl(&directory, NoArg::<{ SYNC_ALL }>::new()) } {
        Ok(()) => Ok(true),
        Err(Errno::NOTTY) => Ok(false),
        Err(e) => Err(e).with_context(|| {
            format!(
                "cannot commit everything on the mount of {}; files that cannot be committed keep their last commits",
                directory_on_it.display()
            )
        }),
    }
}
