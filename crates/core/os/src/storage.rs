//! The traits in front of the operating system, and the arguments and results of their calls.

pub(crate) mod byte_locks;
pub(crate) mod clone_range;
pub(crate) mod file_system_id;
pub(crate) mod file_system_info;
pub(crate) mod kernel;
pub(crate) mod linux;
pub(crate) mod linux_file;
pub(crate) mod metadata_order;
pub(crate) mod other_process;
pub(crate) mod read_write;
pub(crate) mod share_out;
pub(crate) mod write_out;

use crate::descriptors::listener::Listener;
use crate::mapping::line_mapping::Lines;
use crate::mapping::read_mapping::ReadMapping;
use crate::mapping::shared_view::View;
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
    /// Modification time in nanoseconds since the epoch. A hint on a running system, but not reliable after a crash.
    pub mtime_ns: i128,
    /// Number of hard links of a file. For a directory, the meaning depends on the file system.
    pub links: u64,
    /// Permission bits (0o7777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Parameters of opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file with exactly these permission bits, regardless of the umask; the call fails with `EEXIST` if the
    /// name is taken (`O_EXCL`).
    pub create: Option<u32>,
    /// Bypass the page cache where the file system allows it (`O_DIRECT`); see [`File::is_direct`].
    pub direct: bool,
    /// Make a new file readable for the users that may read its directory.
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
    /// Makes the new file readable for the users that may read its directory.
    pub const fn shown(self) -> Open {
        Open { shown: true, ..self }
    }
    /// Bypasses the page cache where the file system allows it.
    pub const fn direct(self) -> Open {
        Open { direct: true, ..self }
    }
}

/// The read permission bits for group and others that a directory with these permission bits implies for its contents.
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

/// Space on the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user may still allocate.
    pub available_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
    /// Files and directories that may still be made; `None` if the file system has no such limit.
    pub available_inodes: Option<u64>,
    /// The longest name of a file, in bytes.
    pub name_bytes_max: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

/// A change that [`Storage::check_access`] tests.
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
/// In every call, `..` and absolute paths give `EXDEV`, or `EINVAL` if they do not end in a name. A symbolic link on
/// the way gives `ELOOP`; in calls other than [`Storage::open`], a link in the place of the last directory gives
/// `ENOTDIR`.
pub trait Storage: Send + Sync {
    /// Opens a regular file, or any other file without blocking (the caller checks [`File::meta`]). Never follows a
    /// symbolic link (`ELOOP`), never crosses a mount (`EXDEV`). A directory can be opened for reading only (`EISDIR`).
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>>;
    /// Makes a regular file without a name in a directory (`O_TMPFILE`), open for writing, with the permission bits
    /// 0600. It inherits the attributes that named files in the directory would inherit. [`File::give_name`] makes it
    /// visible; closing it without a name deletes it. `EOPNOTSUPP` if the file system does not support this.
    fn create_unnamed(&self, directory: &Path) -> io::Result<Arc<dyn File>>;
    /// `lstat`. The empty path is the root directory.
    fn stat(&self, path: &Path) -> io::Result<Meta>;
    /// Names in a directory, unsorted, without `.` and `..`. The empty path is the root directory.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Renames a file or directory. With `replace`, an existing file or empty directory of the new name
    /// is replaced atomically; without, `EEXIST`. A directory that is not empty is not replaced: `ENOTEMPTY`,
    /// and `EEXIST` on XFS. Two names of one file both stay.
    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()>;
    /// Gives a file a second name, in any directory of the same file system (`linkat`). `EEXIST` if the name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory with exactly these permission bits.
    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// `chmod` of a directory, exactly these permission bits.
    fn set_dir_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &Path) -> io::Result<()>;
    /// Whether this user may make a change, as far as that is known without making it: permissions, read-only file
    /// systems, sticky, immutable and append-only directories and files, mount points. The error is the one of the
    /// change itself.
    fn check_access(&self, path: &Path, access: Access) -> io::Result<()>;
    /// Whether a directory has an access control list, which grants access beyond its mode. The empty path is the root.
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
    /// Whether the file system has one ordered log: after a crash, a file with a new name, or with a new size from a
    /// write, also has the attributes that were set before. False if that is not known.
    fn keeps_order(&self) -> bool;
    /// Remaining space.
    fn space(&self) -> io::Result<Space>;
    /// Limit for the files that one store may keep open without starving the program.
    fn open_files_max(&self) -> usize;
    /// The effective user.
    fn effective_user(&self) -> u32;
    /// This boot of the kernel (`/proc/sys/kernel/random/boot_id`).
    fn boot_id(&self) -> io::Result<[u8; 16]>;
    /// The time, in seconds since 1970; `None` if the clock is not set.
    fn time(&self) -> Option<u64>;
    /// The largest offset up to which this process may write files now (`RLIMIT_FSIZE`), in bytes. Writes and growth
    /// beyond it give `EFBIG`, and never the signal `SIGXFSZ`.
    fn file_size_limit(&self) -> u64;
    /// Random bytes.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
    /// Waits for a few milliseconds.
    fn pause(&self);
    /// Waits for at least this time, by [`Storage::uptime`].
    fn pause_for(&self, time: Duration);
    /// Time since an arbitrary point (`CLOCK_MONOTONIC`).
    fn uptime(&self) -> Duration;
    /// Whether this file system shows files of another one, whose changes and locks it does not see (overlay, FUSE).
    fn shows_another(&self) -> bool {
        false
    }
    /// Whether files here are taken for files on byte-addressable memory ([`crate::Linux::open_as_memory`]).
    #[doc(hidden)]
    fn is_on_trial(&self) -> bool {
        false
    }
    /// Runs both functions, in parallel if possible, and returns when both are done.
    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        other();
        own();
    }
    /// Calls the function in this thread and, if possible, at the same time in others, up to `most` together; returns
    /// when all calls have returned. The calls share out the work among themselves, so a single one does all of it.
    fn in_threads(&self, _most: usize, work: &(dyn Fn() + Sync)) {
        work();
    }
    /// Totals so far.
    fn counters(&self) -> Counters;
}

/// One open file.
pub trait File: Any + Send + Sync {
    /// Names a file of [`Storage::create_unnamed`] in the directory in which it was made. `EEXIST`: the name is taken.
    /// `EINVAL`: the file was made with a name, or has one already. `ENOENT`: the directory was removed, or the system
    /// does not let this user name such a file.
    fn give_name(&self, name: &OsStr) -> io::Result<()>;
    /// `pread`: may return fewer bytes than asked; 0 at the end of the file.
    /// On a direct file, buffer, offset and length are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// `pwrite`: may write fewer bytes than asked. Alignment as for `read_at`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Writes like [`File::write_at`], right after [`Storage::file_size_limit`] allowed the end of the write, so that the
    /// limit is not asked for again.
    fn write_allowed_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_at(buf, offset)
    }
    /// Fails if the program has closed the file's descriptor, whose number may now belong to another file
    /// ([`is_closed_by_program`](crate::is_closed_by_program)). Calls that change a file check this themselves, except
    /// `write_at`, because one check can serve many writes.
    fn check_own(&self) -> io::Result<()> {
        Ok(())
    }
    /// When the file was made, in nanoseconds since 1970; 0 if the file system does not know. Tells a file from a later
    /// one that got the same inode number.
    fn born_ns(&self) -> u64 {
        0
    }
    /// Reads from the device, not from the cache. Call after a flush of the file. Buffer, offset and length are
    /// multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Starts to read these bytes into the page cache, without waiting.
    fn begin_read(&self, _range: Range<u64>) {}
    /// Drops the cached contents of the file and the kernel's knowledge of its blocks. Call before rewriting data that
    /// a failed flush may have lost: ext4 treats new blocks whose write failed as written, even when they are
    /// overwritten from the cache; XFS does so with a new size.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
    /// Lets a range of this file share blocks with a range of another file of the same storage, and so take its
    /// contents (`FICLONERANGE`). Nothing is written twice; later changes of either file do not affect the other.
    /// Offsets and length are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES); the range lies within the other file.
    /// `EOPNOTSUPP`, `EINVAL`, `EXDEV`: not supported by this file system, or for these files. After an error, a part
    /// of the range may have the new contents.
    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> io::Result<()>;
    /// `ftruncate`.
    fn set_len(&self, size: u64) -> io::Result<()>;
    /// The largest size that the file system allows for the file, in bytes, regardless of [`Storage::file_size_limit`].
    fn size_max(&self) -> io::Result<u64>;
    /// Reserves space for a range, and extends the file if necessary (`fallocate`); a no-op where the file system
    /// cannot. If space runs out (`ENOSPC`), the file may have become longer, by zeros: ext4 keeps the blocks that it
    /// got.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Reserves space for a range, within the file and beyond its end; contents and length stay unchanged. A no-op
    /// where the file system cannot. If space runs out (`ENOSPC`), a part may be reserved.
    fn keep_room(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Makes a range within the file read as zeros, without changing the file's length.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()>;
    /// `fdatasync`: contents and size.
    fn sync_data(&self, point: SyncPoint) -> io::Result<()>;
    /// `fsync`: contents, size and attributes.
    fn sync_all(&self, point: SyncPoint) -> io::Result<()>;
    /// Starts to write a range of the contents, with length 0 up to the end, to the device (`sync_file_range`), without
    /// waiting for it. This is for speed only: the next flush reports errors.
    fn begin_write_out(&self, _offset: u64, _len: u64) {}
    /// Writes the contents to the device's cache, and waits for that (`sync_file_range`). A power cut may still lose
    /// them until the device is flushed. If the storage keeps order ([`Storage::keeps_order`]), the flush of any file
    /// whose attribute was set afterwards also flushes the device, and so everything from before: contents, sizes,
    /// names, attributes. Otherwise it guarantees nothing.
    fn write_out(&self, point: SyncPoint) -> io::Result<()>;
    /// `fstat`.
    fn meta(&self) -> io::Result<Meta>;
    /// `fchmod`, exactly these permission bits.
    fn set_mode(&self, mode: u32) -> io::Result<()>;
    /// The extended attribute `user.untorn`, or `None`. An attribute of more than 256 bytes was not written by Untorn,
    /// and is returned as empty.
    fn attribute(&self) -> io::Result<Option<Vec<u8>>>;
    /// Sets the extended attribute `user.untorn`.
    fn set_attribute(&self, value: &[u8]) -> io::Result<()>;
    /// Removes the extended attribute `user.untorn`; nothing happens if there is none.
    fn remove_attribute(&self) -> io::Result<()>;
    /// Claims the file against claims through any other opening of it (`flock`, exclusive, without waiting). Returns
    /// false if another opening has the claim. Ends when this `File` is dropped.
    fn try_claim(&self) -> io::Result<bool>;
    /// Takes the open-file-description write lock on the whole file, and waits for it if `wait` is set. The file must
    /// be open for writing (`EBADF`). Returns false if another opening holds the lock. Ends when this `File` is
    /// dropped.
    fn lock(&self, wait: bool) -> io::Result<bool>;
    /// Whether another opening holds [`File::lock`], or bytes of the file; takes neither.
    fn is_locked(&self) -> io::Result<bool>;
    /// Holds a range of bytes: takes the open-file-description read lock on it. Any number of openings may hold the
    /// same bytes, which may lie beyond the end of the file. The file may be open for reading only. Returns false if
    /// another opening excludes it. Ends when this `File` is dropped.
    fn hold(&self, range: Range<u64>) -> io::Result<bool>;
    /// Releases bytes that this opening holds; it keeps the others.
    fn release(&self, range: Range<u64>) -> io::Result<()>;
    /// Bytes in the range that another opening holds: any one of the held ranges, cut to the range.
    fn held(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>>;
    /// The first bytes of the file as they are now and as they will be: changes by any process show at once. The file
    /// must not become shorter while the view lives.
    fn view(&self, len: usize) -> io::Result<Box<dyn View>>;
    /// The first bytes of the file, a multiple of [`LINE_BYTES`](crate::LINE_BYTES) that it has, for stores without
    /// calls, if they are on byte-addressable memory. The file, open for writing, must not become shorter than that
    /// while the lines live. Bytes that calls write to it become durable by its flush, as ever.
    fn lines(&self, _len: u64) -> io::Result<Box<dyn Lines>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether the process with this id, in this process's pid namespace, has the file open. `None` if this process may
    /// not know.
    fn is_open_in(&self, _pid: u32) -> Option<bool> {
        None
    }
    /// Reports writes to the file from now on, by any process. Fails if this is not supported.
    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether reads and writes bypass the page cache.
    fn is_direct(&self) -> bool;
    /// Maps the file privately. The mapping may outlive this `File` and all claims through it. `EOPNOTSUPP` if the
    /// requested tracker does not work here.
    fn map(&self, request: &MapRequest) -> io::Result<Box<dyn Mapping>>;
    /// Shows the first bytes of the file, which must not change any more, in memory.
    fn show_in(&self, _memory: &mut ReadMapping, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// A duplicate of the descriptor.
    fn duplicate(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The next range with contents at or after `from`; bytes before it are zeros. `None` if there is none before
    /// `end`.
    fn next_contents(&self, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        Ok((from < end).then_some(from..end))
    }
}
