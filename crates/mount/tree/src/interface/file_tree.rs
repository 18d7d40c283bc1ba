//! The interface of a file system of Untorn files, as the kernel uses it: by inode number.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Number of a transaction.
pub type Transaction = u64;

/// Number of an inode. No number is used for a second inode.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// An error number of the system, such as `libc::ENOENT`, which the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// Seconds and nanoseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device; its number is in `rdev`.
    CharDevice,
    /// A block device; its number is in `rdev`.
    BlockDevice,
}

/// The attributes of an inode, as `stat` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// Permissions, setuid, setgid and sticky bits: the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Number of names; a directory has 2 and one more for each directory in it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of devices.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of blocks of 512 bytes in use.
    pub blocks: u64,
    /// Last access; changed by `utimensat` and never by reading (as with `noatime`).
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
}

/// An entry of a directory, in the order of `read_dir`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position after this entry in the directory; never 0, less than 2³¹ - 2, and unchanged as long as the name
    /// exists, even if it is renamed within the directory.
    pub next: u64,
    /// The name, never `.` or `..`.
    pub name: OsString,
    /// The inode of the name.
    pub ino: Ino,
    /// The type of that inode.
    pub kind: Kind,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present time.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to set (`chmod`, `chown`, `truncate`, `utimensat`); those that are `None` stay.
///
/// The kernel has checked the rights, and has cleared setuid and setgid bits in `mode` where that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The low 12 bits of `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: bytes beyond it are removed, new bytes are zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, as the kernel's write cache has it.
    pub ctime: Option<Time>,
}

/// The user who sends a request, and who will own new inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// User of the program.
    pub uid: u32,
    /// Group of the program. A directory with the setgid bit passes its own group on.
    pub gid: u32,
    /// Rights that new inodes do not get, unless the directory has an access list to pass on.
    pub umask: u32,
}

/// The effect of `rename` on an existing file with the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFlags {
    /// The existing file is replaced.
    Replace,
    /// The existing file is kept, and the rename fails with `EEXIST`.
    NoReplace,
    /// The two exchange their names.
    Exchange,
}

/// The answer to `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks that are free for ordinary users.
    pub available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
}

/// The present condition of a tree. Pages that the kernel has in its cache, and has not sent, are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeStatus {
    /// Number of inodes.
    pub inodes: usize,
    /// Files that programs have open for writing.
    pub open_for_writing: usize,
    /// Files with uncommitted contents.
    pub uncommitted: usize,
    /// Age of the oldest uncommitted contents, names or attributes.
    pub oldest: Option<Duration>,
    /// Whether names or attributes are uncommitted.
    pub names_uncommitted: bool,
    /// Commits that may not be durable yet.
    pub on_their_way: usize,
    /// Files of renames that found no room for their commits: the next commit includes them.
    pub deferred: usize,
    /// Transactions of programs.
    pub transactions: usize,
    /// Files of which a write failed: nothing commits them until they are written anew, truncated, or opened anew. One
    /// name of each, where it has one.
    pub poisoned: Vec<PathBuf>,
    /// A flush of the log failed: nothing is committed until the store is opened again.
    pub failed: bool,
}

/// Brings a file's dirty pages from the kernel's cache to the tree.
pub trait KernelCache: Send + Sync {
    /// Makes the kernel send the dirty pages of `ino`, and waits until [`FileTree::write`] has got them all.
    ///
    /// The tree calls it without holding any lock that `write`, `read` or `attributes` need. An error means that a
    /// write failed (the file is *poisoned*). Unless the tree itself has refused that write, its data is not known.
    fn write_back(&self, ino: Ino) -> Result<()>;

    /// Reads bytes of `ino` that the kernel has in its cache, and the tree has not. `EIO` if the kernel does not have
    /// all of them.
    ///
    /// Called without locks, as [`write_back`](KernelCache::write_back).
    fn cached(&self, _ino: Ino, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(Errno(libc::EIO))
    }

    /// Called before the thread waits for another thread's exchange with the kernel.
    fn begin_waiting(&self) {}

    /// Called when the tree has discarded changes of `ino`: the kernel's cache is out of date, and the file has this
    /// size.
    ///
    /// Called without locks, as [`write_back`](KernelCache::write_back).
    fn rolled_back(&self, _ino: Ino, _size: u64) {}
}

/// A file system, as the kernel uses it. Every method can be called from any thread.
///
/// Names are bytes without `/` and zero, at most 255. The kernel has checked the rights of the program (the mount has
/// `default_permissions`), that each directory is one, and that no name except in `lookup` is `.` or `..`.
///
/// Each inode that [`lookup`](FileTree::lookup), [`make`](FileTree::make), [`symlink`](FileTree::symlink) or
/// [`link`](FileTree::link) returns counts as known to the kernel once more, until [`forget`](FileTree::forget). Each
/// [`open`](FileTree::open) has its [`release`](FileTree::release). An inode without names stays as long as it is known
/// or open.
pub trait FileTree: Send + Sync {
    /// Finds the inode with `name` in `dir`.
    ///
    /// With the names `.` and `..` the kernel finds the inode of a program's file handle: `.` is `dir` itself, which
    /// may then be any inode, and `..` is its parent directory.
    fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes>;
    /// The kernel forgets `count` of the times that it got `ino`.
    fn forget(&self, ino: Ino, count: u64);
    /// Attributes, with uncommitted changes.
    fn attributes(&self, ino: Ino) -> Result<Attributes>;
    /// The parent of a directory; the root is its own parent.
    fn parent(&self, dir: Ino) -> Result<Ino>;
    /// Whether an inode has lost its last name, or is gone.
    fn has_no_name(&self, ino: Ino) -> bool;
    /// Changes attributes. A new size belongs to the file's uncommitted contents, the rest to the names and attributes.
    fn set_attributes(&self, ino: Ino, change: &Change) -> Result<Attributes>;

    /// Makes an inode of any type but a symbolic link; `EEXIST` if the name is taken.
    fn make(&self, by: Request, dir: Ino, name: &OsStr, kind: Kind, mode: u32, rdev: u32) -> Result<Attributes>;
    /// Makes a file without a name (`O_TMPFILE`).
    fn make_unnamed(&self, by: Request, dir: Ino, mode: u32) -> Result<Attributes>;
    /// Makes a symbolic link.
    fn symlink(&self, by: Request, dir: Ino, name: &OsStr, target: &OsStr) -> Result<Attributes>;
    /// The target of a symbolic link.
    fn read_link(&self, ino: Ino) -> Result<OsString>;
    /// Gives `ino` one more name.
    fn link(&self, ino: Ino, dir: Ino, name: &OsStr, cache: &dyn KernelCache) -> Result<Attributes>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, dir: Ino, name: &OsStr) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: Ino, name: &OsStr) -> Result<()>;
    /// Renames a file or directory.
    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), flags: RenameFlags, cache: &dyn KernelCache)
    -> Result<()>;
    /// Reads at most `most` entries of `dir` after the position `start`: 0, or an entry's `next`.
    ///
    /// A name that exists all the time is returned exactly once, even if other names are made and removed meanwhile.
    fn read_dir(&self, dir: Ino, start: u64, most: usize) -> Result<Vec<Entry>>;

    /// Registers an opening of a file; `writable` if it can write.
    fn open(&self, ino: Ino, writable: bool) -> Result<()>;
    /// Called before a program opens a file for writing.
    ///
    /// If the file is poisoned, and no other program has it open for writing, it goes back to its last commit, unless
    /// the kernel still has all of the lost data, and only room is missing.
    fn restore(&self, _ino: Ino, _cache: &dyn KernelCache) -> Result<()> {
        Ok(())
    }
    /// Ends an opening, with its descriptors and its mappings. False if this end was registered before.
    fn release(&self, ino: Ino, writable: bool) -> bool;
    /// Reads into `buf` from `offset`; reads less than its length only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data`, which comes from the kernel's cache, at `offset`.
    ///
    /// If it fails, no program learns which of its writes failed: the file is poisoned, and reads of that range fail,
    /// until all of the range is written, or cut off.
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;
    /// Writes like [`write`](FileTree::write), for a program that waits. If it fails, the file is unchanged.
    fn write_now(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write(ino, offset, data)
    }
    /// `fallocate`, with `mode` as the kernel passes it.
    fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()>;
    /// `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
    fn seek(&self, ino: Ino, offset: u64, whence: i32, cache: &dyn KernelCache) -> Result<u64>;

    /// Commits the file's contents, and all names and attributes: `fsync`, `fdatasync`, `msync`, `O_SYNC`.
    fn sync(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()>;
    /// Commits all names and attributes: `fsync` of a directory.
    fn sync_names(&self, cache: &dyn KernelCache) -> Result<()>;
    /// Commits everything except files that a program syncs itself and has open for writing: `syncfs`.
    ///
    /// If a file is poisoned, everything else is committed, and the result is `EIO`, or the reason why the lost data
    /// cannot be recovered yet, such as `ENOSPC`.
    fn sync_all(&self, cache: &dyn KernelCache) -> Result<()>;
    /// Commits before an unmount, as [`sync_all`](FileTree::sync_all) does, but no changes that a program may be in the
    /// middle of.
    fn prepare_end(&self, cache: &dyn KernelCache) -> Result<()>;
    /// Commits several files in one commit.
    fn sync_files(&self, inos: &[Ino], cache: &dyn KernelCache) -> Result<()>;
    /// Begins a transaction of an opening, without files. At the end of the opening it is dissolved if it `keeps`, else
    /// aborted.
    ///
    /// All uncommitted changes of its files, earlier and later ones, by any program, are committed with the transaction
    /// and by nothing else: a sync of one of the files, or another operation that would commit one, fails with `EBUSY`.
    /// Names and attributes are not part of the transaction.
    fn begin(&self, owner: u64, keeps: bool) -> Result<Transaction>;
    /// Adds a file; `EBUSY` if it is in another transaction.
    fn add(&self, txn: Transaction, ino: Ino) -> Result<()>;
    /// Commits the files, and all names and attributes, in one commit.
    ///
    /// If the store refuses the commit, the transaction continues; if the commit was accepted and cannot be written, as
    /// on a full disk, the next sync of any file tries again. With `chains`, the transaction continues with the same
    /// files, and the end of its opening aborts it from then on.
    fn commit(&self, txn: Transaction, chains: bool, cache: &dyn KernelCache) -> Result<()>;
    /// Commits the files of several transactions in one commit, as [`commit`](FileTree::commit) does with `chains`.
    fn commit_together(&self, txns: &[Transaction], cache: &dyn KernelCache) -> Result<()>;
    /// Aborts the transaction: the files go back to their last commits. Returns whether they had uncommitted changes.
    ///
    /// With `chains`, the transaction continues with the same files.
    fn abort(&self, txn: Transaction, chains: bool, cache: &dyn KernelCache) -> Result<bool>;
    /// Ends the transaction; the uncommitted changes of its files stay uncommitted.
    fn dissolve(&self, txn: Transaction);
    /// The transactions that an opening has begun, and that continue.
    fn transactions_of(&self, owner: u64) -> Vec<Transaction>;
    /// Ends an opening. Returns its transactions, which must be [left](FileTree::leave), by another process if this one
    /// is killed.
    fn end_opening(&self, owner: u64) -> Vec<Transaction>;
    /// The transactions that a killed process was to leave.
    fn left(&self) -> Vec<Transaction>;
    /// Ends a transaction whose opening has ended.
    fn leave(&self, txn: Transaction, cache: &dyn KernelCache);

    /// Does the work that is due by time; must be called about every second.
    fn tick(&self, cache: &dyn KernelCache);
    /// Makes the kernel send the dirty pages of files that programs have had open for writing for `after` since it last
    /// sent them. Commits nothing.
    fn write_back_after(&self, _after: Duration, _cache: &dyn KernelCache) {}

    /// An extended attribute's value; `ENODATA` if there is none.
    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>>;
    /// Sets an extended attribute; `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    ///
    /// An access list (`system.posix_acl_access`) changes the mode, and a mode changes the list.
    fn set_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()>;
    /// The names of the extended attributes.
    fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Result<()>;

    /// The kernel has got the answer to the request with this number, and will not repeat it. See
    /// [`answering`](crate::answering).
    fn answered(&self, _unique: u64) {}
    /// Files that programs have open for writing, and how often.
    fn opened_for_writing(&self) -> Vec<(Ino, u64)> {
        Vec::new()
    }

    /// The condition of the tree.
    fn status(&self) -> Result<TreeStatus>;
    /// Room on the file system below, less the room that uncommitted contents need.
    fn space(&self) -> Result<SpaceUse>;
    /// Commits as [`prepare_end`](FileTree::prepare_end) does, applies everything and closes the store. No call works
    /// after it.
    fn close(&self, cache: &dyn KernelCache) -> Result<()>;
    /// Ends a tree whose store is about to be removed: nothing is written to the store any more, also not by its close.
    fn abandon(&self) {}
}
