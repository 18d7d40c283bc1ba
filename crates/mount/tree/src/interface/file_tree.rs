//! What a file system of untorn files does, as the kernel asks for it: by inode number.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Number of a transaction.
pub type Transaction = u64;

/// Number of an inode. Never used for a second one.
pub type Ino = u64;

/// The directory that everything lies below.
pub const ROOT: Ino = 1;

/// An error number of the system, such as `libc::ENOENT`: what the program is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What an operation gives.
pub type Result<T> = std::result::Result<T, Errno>;

/// Seconds and nanoseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// What an inode is.
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

/// What `stat` tells about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permissions, setuid, setgid and sticky bits: the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Names; a directory has 2 and one for each directory in it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of devices.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that are taken.
    pub blocks: u64,
    /// Last reading; changed by `utimensat` and never by reading (as with `noatime`).
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// A name in a directory, in the order in which `read_dir` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where to go on after this entry; never 0, less than 2³¹ - 2, and the same as long as the name is there, under another
    /// name in the same directory, too.
    pub next: u64,
    /// The name. `.` and `..` are not among them.
    pub name: OsString,
    /// What it names.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This one.
    At(Time),
}

/// Attributes to be set (`chmod`, `chown`, `truncate`, `utimensat`); those that are `None` stay.
///
/// The kernel has checked the rights, and has cleared setuid and setgid bits by `mode` where that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The low 12 bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: what is beyond is gone, what is new is zeros.
    pub size: Option<u64>,
    /// Last reading.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of anything, as the kernel's cache of writes has it.
    pub ctime: Option<Time>,
}

/// Who asks: the owner of what is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// User of the program.
    pub uid: u32,
    /// Its group. A directory with the setgid bit passes its own on.
    pub gid: u32,
    /// Rights that what is made does not get, unless the directory has a list to pass on.
    pub umask: u32,
}

/// How `rename` treats what has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFlags {
    /// It is replaced.
    Replace,
    /// It is kept: `EEXIST`.
    NoReplace,
    /// The two exchange their names.
    Exchange,
}

/// What `statfs` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks there are.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Blocks that are free to ordinary users.
    pub available: u64,
    /// Inodes there are, and those that are free.
    pub files: u64,
    /// Inodes that are free.
    pub files_free: u64,
}

/// The condition of a tree, as of now. Of what the kernel has in its cache, and has not sent, it knows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeStatus {
    /// Inodes.
    pub inodes: usize,
    /// Files that programs have open for writing.
    pub open_for_writing: usize,
    /// Files with uncommitted contents.
    pub uncommitted: usize,
    /// How long the oldest of it, or of the names and attributes, has been uncommitted.
    pub oldest: Option<Duration>,
    /// Names or attributes are uncommitted.
    pub names_uncommitted: bool,
    /// Commits that may not be durable yet.
    pub on_their_way: usize,
    /// Files of renames that found no room for their commits: the next commit has them.
    pub owed: usize,
    /// Transactions of programs.
    pub transactions: usize,
    /// Files of which a write failed: nothing commits them until they are written anew, cut, or opened anew. One name of
    /// each, where it has one.
    pub poisoned: Vec<PathBuf>,
    /// A flush of the log failed: nothing is committed until the store is opened again.
    pub failed: bool,
}

/// Brings what programs wrote to a file, and the kernel still has in its cache, to the tree.
pub trait Pull: Send + Sync {
    /// Makes the kernel send the dirty pages of `ino`, and waits until [`FileTree::write`] has had them all.
    ///
    /// The tree calls it without holding any lock that `write`, `read` or `attributes` need. An error means that a write
    /// failed (the file is *poisoned*): of one that the tree has not refused itself, nobody knows what it was to have.
    fn pull(&self, ino: Ino) -> Result<()>;

    /// Reads what the kernel has in its cache of `ino`, and the tree has not. `EIO`: it has not all of it. Called without
    /// locks, as [`pull`](Pull::pull).
    fn cached(&self, _ino: Ino, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(Errno(libc::EIO))
    }

    /// Before the thread waits for what another one does with the kernel.
    fn begin_waiting(&self) {}

    /// The tree has other contents of `ino` than the kernel's cache, and this size. Called without locks, as
    /// [`pull`](Pull::pull).
    fn rolled_back(&self, _ino: Ino, _size: u64) {}
}

/// A file system, as the kernel asks for it. Every method can be called from any thread.
///
/// Names are bytes without `/` and zero, at most 255. The kernel has checked the rights of the program (the mount has
/// `default_permissions`), that a directory is one, and that no name but in `lookup` is `.` or `..`.
///
/// Each inode that [`lookup`](FileTree::lookup), [`make`](FileTree::make), [`symlink`](FileTree::symlink) or
/// [`link`](FileTree::link) gives counts as known to the kernel once more, until [`forget`](FileTree::forget). Each
/// [`open`](FileTree::open) has its [`release`](FileTree::release). An inode without names stays as long as it is known or
/// open.
pub trait FileTree: Send + Sync {
    /// The inode that `name` in `dir` names. `.` is `dir`, which may be any inode then, and `..` the directory that it lies
    /// in: that is how the kernel comes by an inode of which a program has a file handle.
    fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes>;
    /// The kernel forgets `count` of the times that it was given `ino`.
    fn forget(&self, ino: Ino, count: u64);
    /// Attributes, with uncommitted changes.
    fn attributes(&self, ino: Ino) -> Result<Attributes>;
    /// The directory that a directory lies in; of the root, itself.
    fn parent(&self, dir: Ino) -> Result<Ino>;
    /// Whether an inode has lost its last name, or is gone.
    fn has_no_name(&self, ino: Ino) -> bool;
    /// Changes attributes. A new length belongs to the file's uncommitted contents, the rest to the names.
    fn set_attributes(&self, ino: Ino, change: &Change) -> Result<Attributes>;

    /// Makes an inode of any kind but a symbolic link; `EEXIST` if the name is taken.
    fn make(&self, by: Request, dir: Ino, name: &OsStr, kind: Kind, mode: u32, rdev: u32) -> Result<Attributes>;
    /// Makes a file without a name (`O_TMPFILE`).
    fn make_unnamed(&self, by: Request, dir: Ino, mode: u32) -> Result<Attributes>;
    /// Makes a symbolic link.
    fn symlink(&self, by: Request, dir: Ino, name: &OsStr, target: &OsStr) -> Result<Attributes>;
    /// Where a symbolic link leads.
    fn read_link(&self, ino: Ino) -> Result<OsString>;
    /// Gives `ino` one name more.
    fn link(&self, ino: Ino, dir: Ino, name: &OsStr, pull: &dyn Pull) -> Result<Attributes>;
    /// Takes a name from what is no directory.
    fn unlink(&self, dir: Ino, name: &OsStr) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: Ino, name: &OsStr) -> Result<()>;
    /// Gives another name.
    fn rename(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), flags: RenameFlags, pull: &dyn Pull) -> Result<()>;
    /// Names in `dir`, at most `most` of them, from `start` on: 0, or an entry's `next`.
    ///
    /// Names that are there all the time come exactly once, whatever else is made and removed meanwhile.
    fn read_dir(&self, dir: Ino, start: u64, most: usize) -> Result<Vec<Entry>>;

    /// An opening of a file; `writable` if it can write.
    fn open(&self, ino: Ino, writable: bool) -> Result<()>;
    /// Before a program opens a file for writing: if it is poisoned, and no other program has it open so, it is as of its last
    /// commit from then on, unless the kernel has all that is lost, and there is no room for it.
    fn restore(&self, _ino: Ino, _pull: &dyn Pull) -> Result<()> {
        Ok(())
    }
    /// The end of an opening: of its descriptors and its mappings. False: it was told of before.
    fn release(&self, ino: Ino, writable: bool) -> bool;
    /// Reads into `buf` from `offset`; less than its length at the end of the file alone.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data` at `offset`, as the kernel's cache has it. If it fails, no program knows of which write it was a
    /// part: the file is poisoned, and reads of that range fail, until all of the range is written, or cut off.
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;
    /// As [`write`](FileTree::write), for a program that waits for it. If it fails, the file is as it was before.
    fn write_now(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write(ino, offset, data)
    }
    /// `fallocate` with `mode` as the kernel has it.
    fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()>;
    /// `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
    fn seek(&self, ino: Ino, offset: u64, whence: i32, pull: &dyn Pull) -> Result<u64>;

    /// Commits the file's contents, and all names and attributes: `fsync`, `fdatasync`, `msync`, `O_SYNC`.
    fn sync(&self, ino: Ino, pull: &dyn Pull) -> Result<()>;
    /// Commits all names and attributes: `fsync` of a directory.
    fn sync_names(&self, pull: &dyn Pull) -> Result<()>;
    /// Commits everything but what a program syncs itself and has open for writing: `syncfs`. If a file is poisoned, all else
    /// is committed, and this says `EIO`; or why what is lost of it cannot be brought back yet, as `ENOSPC`.
    fn sync_all(&self, pull: &dyn Pull) -> Result<()>;
    /// Commits as [`sync_all`](FileTree::sync_all) does, but nothing that a program may be in the middle of: before an
    /// unmount.
    fn prepare_end(&self, pull: &dyn Pull) -> Result<()>;
    /// Commits several files as one.
    fn sync_files(&self, inos: &[Ino], pull: &dyn Pull) -> Result<()>;
    /// Begins a transaction without files, of an opening. If it `keeps`, the end of the opening dissolves it, else aborts.
    ///
    /// All that is uncommitted of its files, from before and from then on, whoever writes it, is committed with the
    /// transaction and by nothing else: a sync of one of them, or what would commit one, is `EBUSY`. Names and attributes
    /// are not part of it.
    fn begin(&self, owner: u64, keeps: bool) -> Result<Transaction>;
    /// Adds a file; `EBUSY` if it is in another one.
    fn add(&self, txn: Transaction, ino: Ino) -> Result<()>;
    /// Commits the files as one, and all names and attributes. If that cannot be asked for, the transaction goes on; if
    /// it was asked for and cannot be written, as on a full disk, the next sync of anything tries again. With `chains`, the
    /// transaction goes on with the same files, and the end of its opening aborts it from then on.
    fn commit(&self, txn: Transaction, chains: bool, pull: &dyn Pull) -> Result<()>;
    /// Ends the transaction: the files are as of their last commits. With `chains`, it goes on with the same files. Returns
    /// whether anything of them was uncommitted.
    fn abort(&self, txn: Transaction, chains: bool, pull: &dyn Pull) -> Result<bool>;
    /// Ends the transaction: what is uncommitted of the files stays so.
    fn dissolve(&self, txn: Transaction);
    /// The transactions that an opening has begun, and that go on.
    fn transactions_of(&self, owner: u64) -> Vec<Transaction>;
    /// An opening has ended: these transactions are to be [left](FileTree::leave), by another process if this one is killed.
    fn end_opening(&self, owner: u64) -> Vec<Transaction>;
    /// Those that a process was to leave, and was killed.
    fn left(&self) -> Vec<Transaction>;
    /// Ends a transaction whose opening has ended.
    fn leave(&self, txn: Transaction, pull: &dyn Pull);

    /// What is due without being asked for; to be called about every second.
    fn tick(&self, pull: &dyn Pull);
    /// Has the kernel send what it has of files that programs have had open for writing for so long since it last sent all
    /// of them. Nothing is committed by that.
    fn write_back_after(&self, _after: Duration, _pull: &dyn Pull) {}

    /// An extended attribute's value; `ENODATA` if there is none.
    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>>;
    /// Sets one; `flags` are `XATTR_CREATE` and `XATTR_REPLACE`. An access list (`system.posix_acl_access`) changes the
    /// mode, and a mode the list.
    fn set_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()>;
    /// The names.
    fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>>;
    /// Removes one.
    fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Result<()>;

    /// The kernel's question of this number was answered: it will not ask again. See [`answering`](crate::answering).
    fn answered(&self, _unique: u64) {}
    /// Files that programs have open for writing, and how often.
    fn opened_for_writing(&self) -> Vec<(Ino, u64)> {
        Vec::new()
    }

    /// How it is.
    fn status(&self) -> Result<TreeStatus>;
    /// Room on the file system below, less what is promised to uncommitted contents.
    fn space(&self) -> Result<SpaceUse>;
    /// Commits as [`prepare_end`](FileTree::prepare_end) does, applies everything and closes the store. Nothing works after it.
    fn close(&self, pull: &dyn Pull) -> Result<()>;
}
