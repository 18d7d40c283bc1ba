//! The traits behind which the operating system is, and the arguments and results of their calls.

pub(crate) mod clone_range;
pub(crate) mod kernel;
pub(crate) mod linux;
pub(crate) mod metadata_order;
pub(crate) mod other_process;
pub(crate) mod read_write;
pub(crate) mod write_out;

use crate::descriptors::listener::Listener;
use crate::mapping::read_mapping::ReadMapping;
use crate::mapping::{MapRequest, Mapping};
use crate::sync_point::SyncPoint;
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The kind of file that a path names (`lstat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; never followed.
    Symlink,
    /// A device, a socket, a pipe.
    Other,
}

/// The metadata of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// File, directory, link or something else.
    pub kind: Kind,
    /// Device number of the file system.
    pub device: u64,
    /// Inode number. Reused at once by some file systems: never an identity by itself.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the epoch. A hint in a living system, no proof after a crash.
    pub mtime_ns: i128,
    /// Number of hard links of a file. Of a directory, whatever the file system counts.
    pub links: u64,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file with exactly these permission bits, whatever the umask;
    /// the call fails with `EEXIST` if the name is taken (`O_EXCL`).
    pub create: Option<u32>,
    /// Bypass the page cache where the file system allows it (`O_DIRECT`); see [`File::is_direct`].
    pub direct: bool,
    /// A new file may be read by those who may read the directory that it is made in.
    pub shown: bool,
}

impl Open {
    /// For reading.
    pub const READ: Open = Open { write: false, create: None, direct: false, shown: false };
    /// For reading and writing.
    pub const WRITE: Open = Open { write: true, create: None, direct: false, shown: false };
    /// A new file with exactly these permission bits.
    pub const fn create(mode: u32) -> Open {
        Open { write: true, create: Some(mode), direct: false, shown: false }
    }
    /// Readable by those who may read the directory.
    pub const fn shown(self) -> Open {
        Open { shown: true, ..self }
    }
    /// Past the page cache where the file system allows it.
    pub const fn direct(self) -> Open {
        Open { direct: true, ..self }
    }
}

/// The right to read, for group and others, that a directory with these permission bits gives to what is in it.
pub fn shown_by(directory: u32) -> u32 {
    let readable = |bits: u32| if directory & bits == bits { bits & 0o044 } else { 0 };
    readable(0o050) | readable(0o005)
}

/// Totals of one storage and its files, since the storage was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `fdatasync`, `fsync` and `syncfs`.
    pub syncs: u64,
    /// Calls that wrote bytes.
    pub writes: u64,
    /// Bytes handed to the file system.
    pub bytes_written: u64,
}

/// Room on the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user may still allocate.
    pub available_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
    /// Files and directories that may still be made; `None`: the file system has no such limit.
    pub available_inodes: Option<u64>,
    /// The longest name of a file, in bytes.
    pub name_bytes_max: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// A change that [`Storage::check_access`] is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Making an entry in this directory.
    Add,
    /// Removing or renaming this entry.
    Remove,
    /// Giving these permission bits to this file or directory.
    Mode(u32),
    /// Making an entry with these permission bits in this directory, whose group it may inherit.
    NewMode(u32),
}

/// A directory tree on one file system.
///
/// In every call, `..` and absolute paths are `EXDEV`, or `EINVAL` where they end in no name. A symbolic link
/// on the way is `ELOOP`; in calls other than [`Storage::open`], a link in the place of the last directory is
/// `ENOTDIR`.
pub trait Storage: Send + Sync {
    /// Opens a regular file, or anything else (the caller looks at [`File::meta`]) without blocking.
    /// Never follows a symbolic link (`ELOOP`), never crosses a mount (`EXDEV`). A directory can be opened
    /// for reading only (`EISDIR`).
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>>;
    /// Makes a regular file without a name in a directory (`O_TMPFILE`), open for writing, with the permission bits
    /// 0600. It inherits what files that are created there inherit; [`File::give_name`] lets others see it. It is gone
    /// when it is closed without a name. `EOPNOTSUPP`: not on this file system.
    fn create_unnamed(&self, directory: &Path) -> io::Result<Arc<dyn File>>;
    /// `lstat`. The empty path is the root directory.
    fn stat(&self, path: &Path) -> io::Result<Meta>;
    /// Names in a directory, unsorted, without `.` and `..`. The empty path is the root directory.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Renames a file or directory. With `replace`, an existing file or empty directory of the new name
    /// is replaced atomically; without, `EEXIST`. A directory that is not empty is not replaced: `ENOTEMPTY`,
    /// and `EEXIST` on XFS. Two names of one file both stay.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()>;
    /// Gives a file a second name, in whichever directory of the same file system (`linkat`). `EEXIST`: the name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory with exactly these permission bits.
    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// `chmod` of a directory, exactly these permission bits.
    fn set_dir_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &Path) -> io::Result<()>;
    /// Whether this user may make a change, as far as that can be told without making it: rights, read-only file
    /// systems, sticky, immutable and append-only directories and files, mount points. The error is the one that
    /// the change itself would get.
    fn check_access(&self, path: &Path, access: Access) -> io::Result<()>;
    /// Whether more than its mode says who may use a directory (an access control list). The empty path is the root.
    fn has_access_list(&self, _dir: &Path) -> bool {
        false
    }
    /// Makes a directory's entries durable (`fsync` of the directory). The empty path is the root.
    fn sync_dir(&self, path: &Path, point: SyncPoint) -> io::Result<()>;
    /// Makes everything on the file system durable, and reports any writeback that failed since the
    /// storage was opened or since the last call (`syncfs` on a descriptor held since then).
    fn sync_file_system(&self, point: SyncPoint) -> io::Result<()>;
    /// Whether [`Storage::sync_file_system`] reports failed writeback at all.
    fn sync_file_system_reports_errors(&self) -> bool;
    /// Whether the file system has one ordered log: after a crash a file that has a new name, or a new size from a
    /// write, also has the attributes that were set before. False where that is not known.
    fn keeps_order(&self) -> bool;
    /// Room left.
    fn space(&self) -> io::Result<Space>;
    /// Files that one store may keep open at once without starving the program.
    fn open_files_max(&self) -> usize;
    /// The effective user.
    fn effective_user(&self) -> u32;
    /// This boot of the kernel (`/proc/sys/kernel/random/boot_id`).
    fn boot_id(&self) -> io::Result<[u8; 16]>;
    /// How far this process may write files now (`RLIMIT_FSIZE`), in bytes. Beyond it, writes and growth are `EFBIG`,
    /// and never the signal `SIGXFSZ`.
    fn file_size_limit(&self) -> u64;
    /// Random bytes.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Waits for a few milliseconds.
    fn pause(&self);
    /// Waits for at least so long, as [`Storage::uptime`] counts.
    fn pause_for(&self, time: Duration);
    /// Time that has passed, since no matter when (`CLOCK_MONOTONIC`).
    fn uptime(&self) -> Duration;
    /// Whether this file system shows files of another one, with changes and locks that it does not see (overlay, FUSE).
    fn shows_another(&self) -> bool {
        false
    }
    /// Does both, at the same time where that can be, and returns when both are done.
    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        other();
        own();
    }
    /// Totals so far.
    fn counters(&self) -> Counters;
}

/// One open file.
pub trait File: Any + Send + Sync {
    /// Gives a file of [`Storage::create_unnamed`] a name in the directory that it was made in. `EEXIST`: the name is
    /// taken. `EINVAL`: the file was not made without a name, or has one already. `ENOENT`: the directory was removed, or
    /// the system lets this user name no such file.
    fn give_name(&self, name: &OsStr) -> io::Result<()>;
    /// `pread`: may return fewer bytes than asked; 0 at the end of the file.
    /// On a direct file, buffer, offset and length are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// `pwrite`: may write fewer bytes than asked. Alignment as for `read_at`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Fails if the program has closed the descriptor of the file, which may be another file's since
    /// ([`is_closed_by_program`](crate::is_closed_by_program)). Calls that change a file ask this by themselves, but for
    /// `write_at`: one call can speak for many writes.
    fn check_own(&self) -> io::Result<()> {
        Ok(())
    }
    /// Reads what the device holds, not what the cache holds. Call after a sync of the file.
    /// Buffer, offset and length are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Has the kernel begin to read these bytes into the page cache, and waits for nothing.
    fn begin_read(&self, _range: Range<u64>) {}
    /// Drops the cached contents of the file and what the kernel knows of its blocks. Called before writing
    /// again what a failed flush may have lost: ext4 goes on treating new blocks that could not be written
    /// as written, whatever is written over them from the cache; XFS does so with a new size.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
    /// Lets a range of this file share the blocks of a range of another file of the same storage, whose contents it gets
    /// (`FICLONERANGE`). Nothing is written twice; changing either file later leaves the other one as it is. Offsets and
    /// length are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES); the range lies within the other file. `EOPNOTSUPP`,
    /// `EINVAL`, `EXDEV`: not on this file system, or not with these files. After an error, part of the range may have
    /// the new contents.
    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> io::Result<()>;
    /// `ftruncate`.
    fn set_len(&self, size: u64) -> io::Result<()>;
    /// The largest size that the file system lets the file have, in bytes, whatever [`Storage::file_size_limit`] says.
    fn size_max(&self) -> io::Result<u64>;
    /// Reserves space for a range, extending the file if need be (`fallocate`); a no-op where the
    /// file system cannot. Without room (`ENOSPC`) the file may have become longer, by zeros: ext4 keeps what
    /// it got so far.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Reserves space for a range, within the file and behind its end; contents and length stay as they are. A no-op where
    /// the file system cannot. Without room (`ENOSPC`) part of it may be reserved.
    fn keep_room(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Makes a range within the file read as zeros, without changing the file's length.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()>;
    /// `fdatasync`: contents and size.
    fn sync_data(&self, point: SyncPoint) -> io::Result<()>;
    /// `fsync`: contents, size and attributes.
    fn sync_all(&self, point: SyncPoint) -> io::Result<()>;
    /// Lets the device begin to write a range of the contents (`sync_file_range`), and waits for nothing. Speed only: errors
    /// are for the next flush.
    fn begin_write_out(&self, _offset: u64, _len: u64) {}
    /// Writes the contents out to the device, whose cache has them when this returns (`sync_file_range`). A power cut may
    /// still take them, until the device is flushed. Where the storage keeps order ([`Storage::keeps_order`]), the flush of
    /// any file whose attribute was set after this flushes the device, too, and with it what was set before: contents,
    /// sizes, names, attributes. Elsewhere it promises nothing.
    fn write_out(&self, point: SyncPoint) -> io::Result<()>;
    /// `fstat`.
    fn meta(&self) -> io::Result<Meta>;
    /// `fchmod`, exactly these permission bits.
    fn set_mode(&self, mode: u32) -> io::Result<()>;
    /// The extended attribute `user.untorn`, or `None`. One of more than 256 bytes was not written by Untorn:
    /// it is returned as empty.
    fn attribute(&self) -> io::Result<Option<Vec<u8>>>;
    /// Sets the extended attribute `user.untorn`.
    fn set_attribute(&self, value: &[u8]) -> io::Result<()>;
    /// Removes the extended attribute `user.untorn`; nothing happens if there is none.
    fn remove_attribute(&self) -> io::Result<()>;
    /// Claims the file against other claims, through any other opening of it (`flock`, exclusive,
    /// without waiting). False: somebody else holds it. Ends when this `File` is dropped.
    fn try_claim(&self) -> io::Result<bool>;
    /// Takes the open-file-description write lock on the whole file, waiting for it if asked. The file is
    /// open for writing (`EBADF`).
    /// False: somebody else holds it. Ends when this `File` is dropped.
    fn lock(&self, wait: bool) -> io::Result<bool>;
    /// Whether somebody else holds [`File::lock`], or a lease, without taking it.
    fn is_locked(&self) -> io::Result<bool>;
    /// Takes a lease: the open-file-description read lock on one byte, which any number may have and which the file need
    /// not reach. The file may be open for reading only. False: somebody keeps others from having it. Ends when this
    /// `File` is dropped.
    fn lease(&self, at: u64) -> io::Result<bool>;
    /// A byte of the range of which somebody else has a lease.
    fn leased(&self, range: Range<u64>) -> io::Result<Option<u64>>;
    /// Whether the process of this number, as this process numbers them, has the file open. None: this process may not
    /// know.
    fn is_open_in(&self, _pid: u32) -> Option<bool> {
        None
    }
    /// Hears of writes to the file from now on, by whichever process. An error: not here.
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether reads and writes bypass the page cache.
    fn is_direct(&self) -> bool;
    /// Maps the file privately. The mapping may outlive this `File` and everything claimed through it.
    /// `EOPNOTSUPP`: the tracker that was asked for does not work here.
    fn map(&self, request: &MapRequest) -> io::Result<Box<dyn Mapping>>;
    /// Shows the first bytes of the file, which nobody changes any more, in memory.
    fn show_in(&self, _memory: &mut ReadMapping, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The descriptor once more.
    fn duplicate(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Where there are contents from here on, and where these end: what is between is zeros. None: there are none.
    fn next_contents(&self, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        Ok((from < end).then_some(from..end))
    }
}
