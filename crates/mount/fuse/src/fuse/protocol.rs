//! Messages of FUSE (`linux/fuse.h`): their numbers, and their fields in bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use untorn_tree::{Attributes, Entry, Errno, Kind, Result, SpaceUse, Time};

/// Length of the header of a request.
pub const REQUEST_HEADER: usize = 40;
/// Length of the header of an answer.
pub const ANSWER_HEADER: usize = 16;
/// The most data that one `WRITE` carries.
pub const MAX_WRITE: usize = 1 << 20;
/// Length of a receive buffer: the largest `WRITE`, and a page for the fields before its data.
pub const BUFFER: usize = MAX_WRITE + 4096;
/// The most that one `READ` asks for: [`MAX_WRITE`] bytes of a program's buffer, and a page.
pub const MAX_READ: usize = MAX_WRITE + 4096;

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Minor version: that of Linux 6.16. Later kernels fall back to it.
pub const MINOR: u32 = 44;
/// The oldest minor version that is served: that of Linux 5.15.
pub const MINOR_LEAST: u32 = 34;

/// Numbers of the requests.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
}

/// Numbers of the notifications that the server sends to the kernel.
pub mod notification {
    pub const INVAL_INODE: i32 = 2;
    pub const RESEND: i32 = 7;
}

/// Features that are agreed at `INIT`: bits of `flags`, and from bit 32 on those of `flags2`.
pub mod agreed {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// Bit that marks the number of a request that the kernel sends again.
pub const ASKED_AGAIN: u64 = 1 << 63;

/// Bits that say which fields of `SETATTR` are valid.
pub mod meant {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OPEN`: the setuid and setgid bits must go, because the contents do.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `SETXATTR` of an access list: the setgid bit must go.
pub const SETXATTR_KILL_SGID: u32 = 1 << 0;
/// `WRITE`: the data comes from the kernel's cache, and no program waits for the answer.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `WRITE`: the setuid and setgid bits must go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Answer of `OPEN`: the kernel keeps its cache of the file.
pub const KEEP_CACHE: u32 = 1 << 1;

/// Answer of `OPEN`: the kernel caches no reads and writes of programs; each call is one message.
const DIRECT_IO: u32 = 1 << 0;

/// How long the kernel may cache names and attributes. They stay valid, because all changes go through the kernel.
const BELIEVE_SECONDS: u64 = 86_400;

/// The header of a request.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Number of the operation.
    pub opcode: u32,
    /// Number of this request.
    pub unique: u64,
    /// The inode that the request is about.
    pub ino: u64,
    /// User of the program.
    pub uid: u32,
    /// Group of the program.
    pub gid: u32,
    /// The requesting thread; 0 if it has no number in the daemon's PID namespace.
    pub thread: u32,
}

/// Fields of a request, one after the other. A missing field is `EINVAL`.
pub struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Splits a message into its header and its fields.
    pub fn of(message: &'a [u8]) -> Result<(Header, Fields<'a>)> {
        let mut fields = Fields { left: message };
        let _len = fields.u32()?;
        let header = Header {
            opcode: fields.u32()?,
            unique: fields.u64()?,
            ino: fields.u64()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
            thread: fields.u32()?,
        };
        fields.skip(4)?;
        Ok((header, fields))
    }

    /// Whether these are the fields of a `WRITE` that comes from the kernel's cache.
    pub fn are_cached_write(&self) -> bool {
        let mut fields = Fields { left: self.left };
        fields.skip(20).and_then(|()| fields.u32()).is_ok_and(|flags| flags & WRITE_CACHE != 0)
    }

    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(len).ok_or(Errno(libc::EINVAL))?;
        self.left = left;
        Ok(bytes)
    }

    /// Skips bytes without a meaning.
    pub fn skip(&mut self, len: usize) -> Result<()> {
        self.bytes(len).map(drop)
    }

    /// Takes a number of 32 bits.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.bytes(4)?.try_into().expect("4 bytes")))
    }

    /// Takes a number of 64 bits.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_ne_bytes(self.bytes(8)?.try_into().expect("8 bytes")))
    }

    /// Takes a name, which ends at a zero byte.
    pub fn name(&mut self) -> Result<&'a OsStr> {
        let end = self.left.iter().position(|byte| *byte == 0).ok_or(Errno(libc::EINVAL))?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Ok(OsStr::from_bytes(name))
    }
}

/// An answer under construction: room for the header, and the fields so far.
pub struct Answer {
    bytes: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { bytes: vec![0; ANSWER_HEADER] }
    }
}

impl Answer {
    /// An answer with room for `len` bytes. `fill` fills it, and returns how many bytes it has filled.
    pub fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Answer> {
        let mut bytes = vec![0; ANSWER_HEADER + len];
        let filled = fill(&mut bytes[ANSWER_HEADER..])?.min(len);
        bytes.truncate(ANSWER_HEADER + filled);
        Ok(Answer { bytes })
    }

    /// Appends a number.
    pub fn u16(mut self, number: u16) -> Answer {
        self.bytes.extend(number.to_ne_bytes());
        self
    }

    /// Appends a number.
    pub fn u32(mut self, number: u32) -> Answer {
        self.bytes.extend(number.to_ne_bytes());
        self
    }

    /// Appends a number.
    pub fn u64(mut self, number: u64) -> Answer {
        self.bytes.extend(number.to_ne_bytes());
        self
    }

    /// Appends bytes unchanged.
    pub fn raw(mut self, bytes: &[u8]) -> Answer {
        self.bytes.extend(bytes);
        self
    }

    /// Length of the answer so far, without its header.
    pub fn len(&self) -> usize {
        self.bytes.len() - ANSWER_HEADER
    }

    /// Returns the whole message, with its header.
    pub fn message(mut self, unique: u64, error: i32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).expect("answers are short");
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[4..8].copy_from_slice(&error.to_ne_bytes());
        self.bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        self.bytes
    }

    fn seconds(self, time: Time) -> Answer {
        self.u64(time.seconds.cast_unsigned())
    }

    fn attributes(self, of: &Attributes) -> Answer {
        self.u64(of.ino)
            .u64(of.size)
            .u64(of.blocks)
            .seconds(of.atime)
            .seconds(of.mtime)
            .seconds(of.ctime)
            .u32(of.atime.nanoseconds)
            .u32(of.mtime.nanoseconds)
            .u32(of.ctime.nanoseconds)
            .u32(type_bits(of.kind) | of.mode)
            .u32(of.nlink)
            .u32(of.uid)
            .u32(of.gid)
            .u32(of.rdev)
            .u32(4096)
            .u32(0)
    }

    /// Appends the answer to `GETATTR` and `SETATTR`.
    pub fn stat(self, of: &Attributes) -> Answer {
        self.u64(BELIEVE_SECONDS).u64(0).attributes(of)
    }

    /// Appends an inode whose name the kernel may cache.
    pub fn entry(self, of: &Attributes) -> Answer {
        self.entry_for(of, BELIEVE_SECONDS)
    }

    /// Appends an inode whose name the kernel must not cache.
    pub fn unbelieved_entry(self, of: &Attributes) -> Answer {
        self.entry_for(of, 0)
    }

    fn entry_for(self, of: &Attributes, seconds: u64) -> Answer {
        self.u64(of.ino).u64(0).u64(seconds).u64(BELIEVE_SECONDS).u64(0).attributes(of)
    }

    /// Appends the answer that a name does not exist, which the kernel may cache until the name is made.
    pub fn no_entry(self) -> Answer {
        self.u64(0).u64(0).u64(BELIEVE_SECONDS).u64(0).u64(0).raw(&[0; 88])
    }

    /// Appends the answer to `OPEN`: the number of the opening, and whether each read and write must be one message.
    pub fn opened(self, handle: u64, direct: bool) -> Answer {
        self.u64(handle).u32(if direct { DIRECT_IO } else { KEEP_CACHE }).u32(0)
    }

    /// Appends the answer to `OPENDIR`. The kernel must cache no names: its cache finds a directory offset only if a
    /// name had it when the cache was filled, and takes any other, as that of a name that was removed since, for the
    /// end of the directory.
    pub fn opened_directory(self) -> Answer {
        self.u64(0).u64(0)
    }

    /// Appends the answer to `STATFS`.
    pub fn space(self, space: &SpaceUse) -> Answer {
        self.u64(space.blocks)
            .u64(space.free)
            .u64(space.available)
            .u64(space.files)
            .u64(space.files_free)
            .u32(space.block_size)
            .u32(255)
            .u32(space.block_size)
            .raw(&[0; 28])
    }

    /// Appends a name of a directory.
    pub fn dirent(self, entry: &Entry) -> Answer {
        let name = entry.name.as_bytes();
        let len = u32::try_from(name.len()).expect("names are short");
        let padding = name.len().next_multiple_of(8) - name.len();
        self.u64(entry.ino).u64(entry.next).u32(len).u32(type_bits(entry.kind) >> 12).raw(name).raw(&[0; 8][..padding])
    }
}

/// Length of a name in the answer to `READDIR`.
pub fn dirent_len(name: &OsStr) -> usize {
    24 + name.len().next_multiple_of(8)
}

/// Length of the inode that `READDIRPLUS` puts before each name.
pub const ENTRY_LEN: usize = 128;

/// The type bits of `st_mode`.
pub fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// The kind of inode that `mknod` makes for a mode.
pub fn kind_of(mode: u32) -> Result<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Ok(Kind::File),
        libc::S_IFIFO => Ok(Kind::Fifo),
        libc::S_IFSOCK => Ok(Kind::Socket),
        libc::S_IFCHR => Ok(Kind::CharDevice),
        libc::S_IFBLK => Ok(Kind::BlockDevice),
        _ => Err(Errno(libc::EINVAL)),
    }
}
