//! Memory that outlives the process that stores to it, until the machine goes down: a file in memory (tmpfs).
//!
//! ```text
//! /dev/shm/untorn-UID/heap-DEVICE-INODE     UNTORN_LIVE_DIR instead of /dev/shm, if it is set; FILESYSTEM instead of
//!                                           DEVICE, if the memory is to survive a boot (`LiveMedium`)
//! head     68 MiB, for bookkeeping; mapped by itself. Most of it is a hole until room in it is reserved
//! body     the contents of the mapping (`SharedMapping`)
//! ```
//!
//! Memory is allocated before a program stores to it, because a store to tmpfs without room raises `SIGBUS`.
//!
//! On byte-addressable memory the file is mapped with `MAP_SYNC`: the kernel promises that a page which can be stored to
//! is where it is also after a power cut. The length, and the names, are flushed by calls before they are relied on.

use crate::descriptors::descriptor::{Fd, above_standard};
use crate::descriptors::fork::process_generation;
use crate::live::live_medium::{LiveMedium, SYNCED};
use crate::live::shared_mapping::{LIVE_HEAD_BYTES, SharedMapping, allocate, write_all};
use crate::mapping::line_flushes::{LineEvent, note};
use crate::mapping::{MapRequest, Mapping};
use crate::storage::File;
use parking_lot::RwLock;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of the head that are always allocated.
pub const LIVE_OWN_BYTES: usize = 128 << 10;

/// Tries at an operation that another process obstructs.
const TRIES: usize = 100;

/// A file in memory.
pub struct LiveMemory {
    path: PathBuf,
    file: Arc<Fd>,
    head: NonNull<u8>,
    /// The head is mapped with `MAP_SYNC`.
    is_synced: bool,
    /// The memory is used as one that survives a power cut.
    is_durable: AtomicBool,
    generation: u64,
}

/// The addresses of the heads of this process, each with its file.
static HEADS: RwLock<Vec<(usize, Arc<Fd>)>> = RwLock::new(Vec::new());

/// Makes everything durable that is in the live memory with this head: returns behind the flush. Does nothing if the
/// memory is gone.
pub fn sync_live_memory(head: NonNull<u8>) -> io::Result<()> {
    let head = head.as_ptr() as usize;
    let file = HEADS.read().iter().find(|one| one.0 == head).map(|one| one.1.clone());
    if let Some(file) = file {
        rustix::io::retry_on_intr(|| fs::fsync(file.own().map_err(|_| Errno::BADF)?))?;
        note(LineEvent::Sync(head));
    }
    Ok(())
}

// SAFETY: an address of shared memory; each user of the address states how it is used.
unsafe impl Send for LiveMemory {}
// SAFETY: as above.
unsafe impl Sync for LiveMemory {}

/// The directory with the directories of all users.
pub fn live_memory_top() -> PathBuf {
    let top = std::env::var_os("UNTORN_LIVE_DIR").filter(|dir| !dir.is_empty());
    top.map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// The path of the live memory of a file that a user owns.
pub fn live_memory_path(uid: u32, device: u64, inode: u64) -> PathBuf {
    live_memory_top().join(format!("untorn-{uid}")).join(format!("heap-{device:x}-{inode:x}"))
}

/// The path of live memory that is to survive a boot. The number of a device may be another one then, so the file system
/// of the heap's file is named by its own identity ([`crate::file_system_id`]).
pub fn lasting_memory_path(uid: u32, file_system: &[u8; 16], inode: u64) -> PathBuf {
    let file_system = u128::from_le_bytes(*file_system);
    live_memory_top().join(format!("untorn-{uid}")).join(format!("heap-{file_system:032x}-{inode:x}"))
}

/// Makes the user's directory, or checks that an existing one belongs to this user alone.
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
                "{} is not a private directory of this user: remove it, or set UNTORN_LIVE_DIR to a directory in \
                 another tmpfs",
                dir.display()
            ),
        )),
    }
}

/// Extends the file to the length of its head.
fn grow(file: &OwnedFd) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    // Refused here, because the kernel would send `SIGXFSZ`, which kills the process.
    if LIVE_HEAD_BYTES as u64 > limit {
        return Err(Errno::FBIG.into());
    }
    Ok(fs::ftruncate(file, LIVE_HEAD_BYTES as u64)?)
}

/// Takes the shared lock that every user of a memory holds against [`FoundMemory::remove_unused`], which holds its own
/// lock for a moment only. Longer locks of other programs are not waited for.
fn lock_shared(file: &OwnedFd) {
    for _ in 0..TRIES {
        match fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            // A file system without locks was chosen by the user.
            _ => return,
        }
    }
}

/// Opens the file of this name, if it is a live memory that this user owns.
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
    /// The medium of live memory in this user's directory, which is made if it is missing. `on_trial`: the file system is
    /// taken for one on byte-addressable memory.
    pub fn medium_of(dir: &Path, on_trial: bool) -> io::Result<LiveMedium> {
        make_directory(dir)?;
        LiveMedium::of_directory(dir, on_trial)
    }

    /// Makes a new file of this name, owned by this user, without a body. An older file of this name is removed.
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
                // Another process may have removed the empty directory just now.
                Err(e) if io::Error::kind(&e) == ErrorKind::NotFound && tries <= TRIES => continue,
                done => done?,
            };
            lock_shared(&file);
            // Before it was locked, another process may have removed it as unused.
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

    /// Opens the memory file of this name, which this user must own. `InvalidData` if the file is no live memory.
    pub fn open(path: &Path, uid: u32) -> io::Result<LiveMemory> {
        let (file, _) = open_of(path, uid, OFlags::RDWR)?;
        allocate(&file, 0, LIVE_OWN_BYTES as u64)?;
        LiveMemory::of(path, file)
    }

    fn of(path: &Path, file: OwnedFd) -> io::Result<LiveMemory> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let map = |how| unsafe { mm::mmap(std::ptr::null_mut(), LIVE_HEAD_BYTES, both, how, &file, 0) };
        let (head, is_synced) = match map(SYNCED) {
            Ok(head) => (head, true),
            Err(_) => (map(MapFlags::SHARED)?, false),
        };
        // SAFETY: the mapping just made. A forked child is another process, and stores to no memory of its parent.
        let _ = unsafe { mm::madvise(head, LIVE_HEAD_BYTES, Advice::LinuxDontFork) };
        let head = NonNull::new(head.cast()).ok_or(Errno::NOMEM)?;
        let (path, file) = (path.to_owned(), Arc::new(Fd::new(file)?));
        HEADS.write().push((head.as_ptr() as usize, file.clone()));
        Ok(LiveMemory {
            path,
            file,
            head,
            is_synced,
            is_durable: AtomicBool::new(false),
            generation: process_generation(),
        })
    }

    /// From now on, the memory is used as one of this medium. [`LiveMemory::map`] comes after this.
    pub fn set_medium(&self, medium: LiveMedium) {
        self.is_durable.store(medium.survives_power(), Relaxed);
    }

    /// Makes everything durable that is in the memory, and its length.
    pub fn sync(&self) -> io::Result<()> {
        sync_live_memory(self.head)
    }

    /// Makes the name of the file durable, and that of its directory.
    pub fn sync_names(&self) -> io::Result<()> {
        for dir in self.path.ancestors().skip(1).take(2) {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
            match fs::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }, flags, Mode::empty()) {
                Ok(dir) => rustix::io::retry_on_intr(|| fs::fsync(&dir))?,
                // A directory that this user cannot list: all of its file system.
                Err(Errno::ACCESS) => fs::syncfs(self.file.own()?)?,
                Err(e) => return Err(e.into()),
            }
        }
        note(LineEvent::Name(self.head.as_ptr() as usize));
        Ok(())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Address of the head. It stays accessible for ever; after this value is dropped, it is ordinary memory.
    pub fn head(&self) -> NonNull<u8> {
        self.head
    }

    /// Allocates a range of the head, so that it may be stored to.
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

    /// Reads bytes of the body; `UnexpectedEof` beyond its end.
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

    /// Maps the body. Its first `present` bytes exist already; the rest is filled from `data` when it is shown.
    /// `EOPNOTSUPP` if the requested tracker does not work here.
    pub fn map(&self, data: Arc<dyn File>, request: &MapRequest, present: u64) -> io::Result<Box<dyn Mapping>> {
        // A mapping needs its own description of the file as long as it lives.
        let again = format!("/proc/self/fd/{}", self.file.own()?.as_raw_fd());
        let file = above_standard(|| fs::open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))?;
        // Bytes beyond this would reappear instead of zeros.
        fs::ftruncate(&file, LIVE_HEAD_BYTES as u64 + present)?;
        let is_durable = self.is_durable.load(Relaxed);
        let how = if is_durable && self.is_synced { SYNCED } else { MapFlags::SHARED };
        Ok(Box::new(SharedMapping::new(file, &self.path, data, request, present, how)?))
    }

    /// Removes the name, if it still belongs to this file, so that nobody finds the memory any more.
    pub fn remove(&self) -> io::Result<()> {
        remove_name(&self.path, self.file.own()?)
    }
}

/// Removes the name of a file, if it still belongs to that file. Links are not followed. The last file takes its
/// directory with it.
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

/// A file that may be live memory, of any user. It is read and never mapped, and links are not followed, because its
/// user may change it at will.
pub struct FoundMemory {
    path: PathBuf,
    file: std::fs::File,
}

impl FoundMemory {
    /// Opens the file of this name in a directory of memories. `InvalidData` if it is not a regular file.
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

    /// Reads bytes of the head; `UnexpectedEof` if the file is shorter.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    /// Bytes of memory that the file takes.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Whether a program uses the memory.
    pub fn is_used(&self) -> io::Result<bool> {
        let free = self.lock()?;
        fs::flock(&self.file, FlockOperation::Unlock)?;
        Ok(!free)
    }

    /// Locks the file exclusively. Returns false if a program uses it.
    fn lock(&self) -> io::Result<bool> {
        match rustix::io::retry_on_intr(|| fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes the file, unless a program uses it. Returns true if it is gone.
    pub fn remove_unused(&self) -> io::Result<bool> {
        Ok(self.lock()? && remove_name(&self.path, &self.file).map(|()| true)?)
    }
}

impl Drop for LiveMemory {
    fn drop(&mut self) {
        let head = self.head.as_ptr() as usize;
        // In a forked child, a thread that is not there may have the lock.
        if self.generation == process_generation() {
            HEADS.write().retain(|one| one.0 != head);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // The addresses stay mapped, because a thread that ends a change of a closing heap may be about to store there.
        // SAFETY: over the mapping that `of` made, and nothing else.
        let _ = unsafe {
            mm::mmap_anonymous(self.head.as_ptr().cast(), LIVE_HEAD_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
    }
}
