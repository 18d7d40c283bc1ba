//! The helper process that makes the kernel send the dirty pages of a file to the daemon.
//!
//! A thread that requests this (`sync_file_range` on a descriptor of the mount) waits in the kernel for the daemon. If
//! the thread belonged to the daemon, and the daemon were killed, the thread would never end, and would keep
//! `/dev/fuse` open: all users of the mount would wait for ever, and could not be killed. So another process does it,
//! which shares nothing with the daemon but a connection: if either is killed, or both are, everything ends.
//!
//! The helper opens files of the mount through the *hidden directory*: its name is a random number, is looked up once,
//! and does not exist after that. In it, each inode has its number as its name. Since the helper follows no path of the
//! mount, it waits for no lock that the program of a waiting handler holds.

pub mod marks;

use self::marks::Marks;
use crate::processes::passed_descriptors::{receive, send};
use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, unmount};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use untorn_terminal::user_namespace;

/// The subcommand of this process.
pub const WRITE_BACK_HELPER: &str = "write-back-helper";

/// Answer: the file could not be opened, so nothing was written back.
pub const NOT_OPENED: i32 = -1;
/// Answer: this user may not open the file as write-backs do; the daemon asks again, for [reading](WriteBack::reads).
pub const NOT_ALLOWED: i32 = -2;
/// Access mode neither for reading nor for writing, so that a program can still get a lease, which requires that nobody
/// else has the file open.
const NEITHER: OFlags = OFlags::from_bits_retain(libc::O_ACCMODE.cast_unsigned());

/// The most bytes that one message asks to read.
const READ_MAX: usize = 64 << 10;

/// Inode number of a file, as bytes of a message.
pub type Number = [u8; 8];

/// The event for which a write-back waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// The end of the kernel's writeback. On Linux before 6.16 the daemon may get the data later.
    Pages = 0,
    /// In addition, the [arrival](crate::fuse::arrivals) of the data, if somebody else has the inode's lock.
    Marks = 1,
    /// The end of an `fsync`, which takes the inode's lock.
    Sync = 2,
}

/// A request for a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBack {
    pub awaits: Awaits,
    /// Whether the file is opened for reading.
    pub reads: bool,
}

impl WriteBack {
    /// The second number of the request, which is not the size of any file.
    pub fn number(self) -> u64 {
        u64::MAX - (self.awaits as u64 * 2 + u64::from(self.reads))
    }

    fn of(number: u64) -> Option<WriteBack> {
        let of = |awaits| [false, true].map(|reads| WriteBack { awaits, reads });
        [Awaits::Pages, Awaits::Marks, Awaits::Sync].into_iter().flat_map(of).find(|all| all.number() == number)
    }
}

/// Opens the hidden directory, in a mount of the helper's own, so that the mount point of the users is not busy.
fn open_hidden(path: &Path) -> Result<OwnedFd> {
    // As root: in a detached mount that belongs to no namespace.
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if let Ok(tree) = rustix::mount::open_tree(CWD, path, clone) {
        return Ok(tree);
    }
    // As another user: in a mount namespace of this process.
    if user_namespace::is_root() {
        bail!("this process is root without the right to have mounts of its own");
    }
    user_namespace::enter().map_err(anyhow::Error::msg)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("private mounts")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let hidden = rustix::fs::open(path, flags, Mode::empty())?;
    // In an initial ramdisk, whose root cannot be exchanged, other mounts stay in use.
    let _ = leave_other_mounts();
    Ok(hidden)
}

/// Exchanges the root for an empty directory, so that this namespace has no copies of other mounts: they would stay in
/// use after their unmount as long as this process lives.
fn leave_other_mounts() -> rustix::io::Result<()> {
    // Any directory that is always there.
    let place = c"/proc";
    mount(c"none", place, c"tmpfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    rustix::process::chdir(place)?;
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)
}

/// Files of the mount that this process has open.
struct Files {
    hidden: OwnedFd,
    /// Locked while a file is opened, so that no file is opened twice.
    open: Mutex<HashMap<Number, Arc<OwnedFd>>>,
    marks: Marks,
}

impl Files {
    /// Returns a descriptor of the file, and whether it was opened just now.
    fn descriptor(&self, number: Number, mode: OFlags) -> rustix::io::Result<(Arc<OwnedFd>, bool)> {
        let mut open = self.open.lock();
        if let Some(own) = open.get(&number) {
            return Ok((Arc::clone(own), false));
        }
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let own = Arc::new(rustix::fs::openat(&self.hidden, name(number), flags | mode, Mode::empty())?);
        open.insert(number, Arc::clone(&own));
        Ok((own, true))
    }

    fn close(&self, number: Number) {
        let closed = self.open.lock().remove(&number);
        // Closing waits until the kernel has sent the dirty pages, and for the file's lock, so another thread does it.
        if let Some(closed) = closed {
            let _ = thread::Builder::new().spawn(move || drop(closed));
        }
    }

    /// Sets the kernel's size of a file. Does not open the file: it would be an opening for writing, for which the
    /// daemon may be waiting.
    ///
    /// No system call takes a directory and a size, so the hidden directory becomes the working directory.
    fn set_size(&self, number: Number, size: Number) -> rustix::io::Result<()> {
        rustix::process::fchdir(&self.hidden)?;
        let path = std::ffi::CString::new(name(number)).map_err(|_| rustix::io::Errno::INVAL)?;
        let size = i64::try_from(u64::from_ne_bytes(size)).map_err(|_| rustix::io::Errno::FBIG)?;
        // SAFETY: a path that ends at a zero and outlives the call.
        match unsafe { libc::truncate(path.as_ptr(), size) } {
            0 => Ok(()),
            _ => {
                Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO))
            }
        }
    }

    /// Reads a file's bytes from the kernel's cache. Bytes that are not there are an error, because the daemon refuses
    /// to read them.
    fn read(&self, number: Number, offset: u64, bytes: &mut [u8]) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let own = rustix::fs::openat(&self.hidden, name(number), flags, Mode::empty())?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&own, &mut bytes[done..], offset + done as u64) {
                Ok(0) => return Err(rustix::io::Errno::IO),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write_back(&self, own: &OwnedFd, awaits: Awaits) -> i32 {
        let before = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        let pages = || sync_range(own, before | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER);
        let done = match awaits {
            Awaits::Pages => pages(),
            // The last step returns the errors of writes that the kernel sent before the marks.
            Awaits::Marks => pages()
                .and_then(|()| self.marks.send(&self.hidden))
                .and_then(|()| self.marks.send(&self.hidden))
                .and_then(|()| sync_range(own, before)),
            Awaits::Sync => rustix::io::retry_on_intr(|| rustix::fs::fsync(own)),
        };
        done.err().map_or(0, rustix::io::Errno::raw_os_error)
    }

    /// Returns the answer, and whether the file was opened just now.
    fn open_and_write_back(&self, number: Number, asked: WriteBack) -> (i32, bool) {
        match self.descriptor(number, if asked.reads { OFlags::RDONLY } else { NEITHER }) {
            Ok((own, is_new)) => (self.write_back(&own, asked.awaits), is_new),
            Err(rustix::io::Errno::ACCESS) if !asked.reads => (NOT_ALLOWED, false),
            Err(_) => (NOT_OPENED, false),
        }
    }

    /// Serves the requests of one connection.
    ///
    /// The first number is the file. Two numbers: [write it back](WriteBack), or set its size. Three numbers: read bytes
    /// at an offset, with a length. The answer is an error number or 0, and the bytes.
    fn serve(&self, line: &OwnedFd) {
        let mut asked = [Number::default(); 3];
        while let Ok((len @ (16 | 24), _)) = receive(line, asked.as_flattened_mut()) {
            let number = asked[0];
            let mut bytes = Vec::new();
            let (answer, is_new) = match len {
                16 => match WriteBack::of(u64::from_ne_bytes(asked[1])) {
                    Some(asked) => self.open_and_write_back(number, asked),
                    None => (self.set_size(number, asked[1]).err().map_or(0, rustix::io::Errno::raw_os_error), true),
                },
                _ => {
                    bytes.resize(usize::from_ne_bytes(asked[2]).min(READ_MAX), 0);
                    match self.read(number, u64::from_ne_bytes(asked[1]), &mut bytes) {
                        Ok(()) => (0, true),
                        Err(e) => (e.raw_os_error(), true),
                    }
                }
            };
            if is_new {
                // The daemon allows one lookup of a file. This second lookup fails, and makes the kernel drop the name,
                // which would otherwise keep the inode when all its other names and openings are gone. Must come before
                // the answer, after which the daemon may allow a lookup for another request.
                let _ = rustix::fs::statat(&self.hidden, name(number), AtFlags::SYMLINK_NOFOLLOW);
            }
            if answer != 0 {
                bytes.clear();
            }
            let answer = [&answer.to_ne_bytes(), &bytes[..]].concat();
            if send(line, &answer, None).is_err() {
                return;
            }
        }
    }
}

fn name(number: Number) -> String {
    u64::from_ne_bytes(number).to_string()
}

/// Writes and waits as the flags say.
fn sync_range(own: &OwnedFd, flags: libc::c_uint) -> rustix::io::Result<()> {
    // SAFETY: a system call on a descriptor that is open as long as `own` is there; it takes no memory.
    match unsafe { libc::sync_file_range(own.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO)),
    }
}

/// Runs the process, whose standard input is a connection to the daemon.
///
/// The first message has the hidden directory, or its path; for a path, the opened directory is sent back. After that
/// each message is a new connection to serve, or the number of a file to close.
pub fn run() -> Result<()> {
    // The helper ends when the daemon ends: a signal that is sent to both at once must not end the helper first.
    // SAFETY: a set of signals is numbers, and `sigfillset` makes it a valid one, which outlives the calls.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
    let control = rustix::io::dup(rustix::stdio::stdin()).context("the connection")?;
    let mut path = [0; libc::PATH_MAX as usize];
    let (len, given) = receive(&control, &mut path).context("the connection")?;
    let hidden = match given {
        Some(hidden) => hidden,
        None => {
            use std::os::unix::ffi::OsStrExt;
            let opened = open_hidden(Path::new(std::ffi::OsStr::from_bytes(&path[..len])));
            let sent = opened.as_ref().ok().map(AsFd::as_fd);
            send(&control, b"h", sent).context("the connection")?;
            opened?
        }
    };
    let files = Arc::new(Files { hidden, open: Mutex::default(), marks: Marks::new() });
    let mut number = Number::default();
    loop {
        match receive(&control, &mut number) {
            Ok((0, _)) | Err(_) => return Ok(()),
            Ok((_, Some(line))) => {
                let files = Arc::clone(&files);
                // Without the thread the connection is closed, and the daemon falls back to dropping the cache.
                let _ = thread::Builder::new().spawn(move || files.serve(&line));
            }
            Ok(_) => files.close(number),
        }
    }
}
