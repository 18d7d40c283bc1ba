//! Memory that outlives the process which stores to it, until the machine goes down: a file in memory (tmpfs).
//!
//! ```text
//! /dev/shm/untorn-UID/heap-DEVICE-INODE     UNTORN_LIVE_DIR instead of /dev/shm, if it is set
//! head     68 MiB, for bookkeeping; mapped by itself. Most of it is a hole, until somebody reserves room there
//! body     what the mapping shows (`SharedMapping`)
//! ```
//!
//! What is stored to is allocated before: a store to tmpfs that finds no room is a `SIGBUS`.

use crate::descriptors::descriptor::{Fd, above_standard};
use crate::live::shared_mapping::{LIVE_HEAD_BYTES, SharedMapping, allocate, write_all};
use crate::mapping::{MapRequest, Mapping};
use crate::storage::File;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the head that always have room.
pub const LIVE_OWN_BYTES: usize = 128 << 10;

/// How often something is tried that somebody else is in the way of.
const TRIES: usize = 100;

/// A file in memory.
pub struct LiveMemory {
    path: PathBuf,
    file: Fd,
    head: NonNull<u8>,
}

// SAFETY: an address of shared memory; whoever uses it says how.
unsafe impl Send for LiveMemory {}
// SAFETY: as above.
unsafe impl Sync for LiveMemory {}

/// Where all users have their directories.
pub fn live_memory_top() -> PathBuf {
    let top = std::env::var_os("UNTORN_LIVE_DIR").filter(|dir| !dir.is_empty());
    top.map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// Where the live memory of a file is, if it is a user's.
pub fn live_memory_path(uid: u32, device: u64, inode: u64) -> PathBuf {
    live_memory_top().join(format!("untorn-{uid}")).join(format!("heap-{device:x}-{inode:x}"))
}

/// Makes the user's directory, or sees that it is nobody else's.
fn make_directory(dir: &Path) -> io::Result<()> {
    match fs::mkdir(dir, Mode::from_raw_mode(0o711)) {
        Ok(()) => fs::chmod(dir, Mode::from_raw_mode(0o711))?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let stat = fs::lstat(dir)?;
    let is_own = stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o022 == 0;
    match is_own {
        true => Ok(()),
        false => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "{} is not a directory of this user's alone: remove it, or set UNTORN_LIVE_DIR to a directory in another \
                 tmpfs",
                dir.display()
            ),
        )),
    }
}

/// Makes the file as long as its head.
fn grow(file: &OwnedFd) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    // The kernel would send `SIGXFSZ`, which kills.
    if LIVE_HEAD_BYTES as u64 > limit {
        return Err(Errno::FBIG.into());
    }
    Ok(fs::ftruncate(file, LIVE_HEAD_BYTES as u64)?)
}

/// Whoever uses a memory has a shared lock of it, which keeps [`FoundMemory::remove_unused`] away. That one needs a moment;
/// whoever else locks the file is not waited for.
fn lock_shared(file: &OwnedFd) {
    for _ in 0..TRIES {
        match fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            // A file system without locks was chosen by hand.
            _ => return,
        }
    }
}

/// Opens the file of that name, if it is one that a user made.
pub(crate) fn open_of(path: &Path, uid: u32, access: OFlags) -> io::Result<(OwnedFd, fs::Stat)> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = above_standard(|| fs::open(path, flags, Mode::empty()))?;
    lock_shared(&file);
    let stat = fs::fstat(&file)?;
    let is_one = stat.st_mode & libc::S_IFMT == libc::S_IFREG
        && stat.st_uid == uid
        && stat.st_nlink == 1
        && stat.st_size >= LIVE_HEAD_BYTES as i64;
    match is_one {
        true => Ok((file, stat)),
        false => Err(ErrorKind::InvalidData.into()),
    }
}

impl LiveMemory {
    /// A new file of that name, of this user's, without a body. What had the name before loses it.
    pub fn create(path: &Path) -> io::Result<LiveMemory> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let attempt = || {
            make_directory(path.parent().unwrap_or(Path::new("/")))?;
            match fs::unlink(path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
            Ok(above_standard(|| fs::open(path, flags, Mode::from_raw_mode(0o600)))?)
        };
        let mut tries = 0;
        let file: OwnedFd = loop {
            tries += 1;
            let file: OwnedFd = match attempt() {
                // Another process may have removed the directory just now, as it was empty.
                Err(e) if io::Error::kind(&e) == ErrorKind::NotFound && tries <= TRIES => continue,
                done => done?,
            };
            lock_shared(&file);
            // Before it was locked, it may have been removed as nobody's.
            if fs::fstat(&file)?.st_nlink > 0 || tries > TRIES {
                break file;
            }
        };
        let made = allocate(&file, 0, LIVE_OWN_BYTES as u64)
            .and_then(|()| grow(&file))
            .and_then(|()| LiveMemory::of(path, file));
        made.inspect_err(|_| {
            let _ = fs::unlink(path);
        })
    }

    /// The file of that name, which a user made. `InvalidData`: it is no such file.
    pub fn open(path: &Path, uid: u32) -> io::Result<LiveMemory> {
        let (file, _) = open_of(path, uid, OFlags::RDWR)?;
        allocate(&file, 0, LIVE_OWN_BYTES as u64)?;
        LiveMemory::of(path, file)
    }

    fn of(path: &Path, file: OwnedFd) -> io::Result<LiveMemory> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let head = unsafe { mm::mmap(std::ptr::null_mut(), LIVE_HEAD_BYTES, both, MapFlags::SHARED, &file, 0)? };
        // SAFETY: the mapping just made. A forked child is another process, and stores to no memory of its parent.
        let _ = unsafe { mm::madvise(head, LIVE_HEAD_BYTES, Advice::LinuxDontFork) };
        let head = NonNull::new(head.cast()).ok_or(Errno::NOMEM)?;
        Ok(LiveMemory { path: path.to_owned(), file: Fd::new(file)?, head })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the head is. It can be accessed for ever; when this ends, it is ordinary memory.
    pub fn head(&self) -> NonNull<u8> {
        self.head
    }

    /// Bytes of the head, from an offset on, may be stored to.
    pub fn reserve_head(&self, offset: usize, bytes: usize) -> io::Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > LIVE_HEAD_BYTES) {
            return Err(Errno::INVAL.into());
        }
        allocate(&self.file.own()?.try_clone_to_owned()?, offset as u64, bytes as u64)
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> io::Result<u64> {
        Ok((fs::fstat(self.file.get()?)?.st_size as u64).saturating_sub(LIVE_HEAD_BYTES as u64))
    }

    /// Reads bytes of the body; `UnexpectedEof` behind its end.
    pub fn read_at(&self, mut buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut at = (LIVE_HEAD_BYTES as u64).checked_add(offset).ok_or(Errno::INVAL)?;
        while !buf.is_empty() {
            match rustix::io::retry_on_intr(|| {
                rustix::io::pread(self.file.get().map_err(|_| Errno::BADF)?, &mut *buf, at)
            })? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => {
                    buf = &mut buf[n..];
                    at += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes bytes within the body.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_all(&self.file, bytes, (LIVE_HEAD_BYTES as u64).checked_add(offset).ok_or(Errno::INVAL)?)
    }

    /// Maps the body. So many bytes of it are there already; of the rest, what is shown comes from `data`.
    /// `EOPNOTSUPP`: the tracker that was asked for does not work here.
    pub fn map(&self, data: Arc<dyn File>, request: &MapRequest, present: u64) -> io::Result<Box<dyn Mapping>> {
        // Another description of the file, which a mapping needs as long as it lives.
        let again = format!("/proc/self/fd/{}", self.file.own()?.as_raw_fd());
        let file = above_standard(|| fs::open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))?;
        // What is behind it would come back as something else than zeros.
        fs::ftruncate(&file, LIVE_HEAD_BYTES as u64 + present)?;
        Ok(Box::new(SharedMapping::new(file, &self.path, data, request, present)?))
    }

    /// Removes the name, if it is still this file's: nobody finds the memory any more.
    pub fn remove(&self) -> io::Result<()> {
        remove_name(&self.path, self.file.own()?)
    }
}

/// Removes the name of a file, if it is still that file's. No link is followed. The last one leaves no directory either.
fn remove_name(path: &Path, file: impl AsFd) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let directory = match fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let (own, named) = (fs::fstat(file)?, fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW));
    match named {
        Ok(named) if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) => {
            fs::unlinkat(&directory, name, AtFlags::empty())?;
            let _ = fs::rmdir(parent);
            Ok(())
        }
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A file that may be live memory, of whichever user. It is read and never mapped, and no link is followed: its user may do
/// with it what they want.
pub struct FoundMemory {
    path: PathBuf,
    file: std::fs::File,
}

impl FoundMemory {
    /// The file of that name in a directory of memories. `InvalidData`: it is no such file.
    pub fn open(path: &Path) -> io::Result<FoundMemory> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ErrorKind::InvalidData.into());
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let directory = fs::open(parent, flags | OFlags::DIRECTORY, Mode::empty())?;
        let file = above_standard(|| fs::openat(&directory, name, flags, Mode::empty()))?;
        match fs::fstat(&file)?.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(FoundMemory { path: path.to_owned(), file: file.into() }),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Reads bytes of the head; `UnexpectedEof`: it is shorter.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Whether a program uses it.
    pub fn is_used(&self) -> io::Result<bool> {
        let free = self.lock()?;
        fs::flock(&self.file, FlockOperation::Unlock)?;
        Ok(!free)
    }

    /// Locks it, unless somebody uses it. False: somebody does.
    fn lock(&self) -> io::Result<bool> {
        match rustix::io::retry_on_intr(|| fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes it, unless somebody uses it. True: it is gone.
    pub fn remove_unused(&self) -> io::Result<bool> {
        Ok(self.lock()? && remove_name(&self.path, &self.file).map(|()| true)?)
    }
}

impl Drop for LiveMemory {
    fn drop(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // A thread may be about to store there, as it ends a change of a heap that is being closed: the addresses stay.
        // SAFETY: over the mapping that `of` made, and nothing else.
        let _ = unsafe {
            mm::mmap_anonymous(self.head.as_ptr().cast(), LIVE_HEAD_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
    }
}
