//! An open file on Linux, behind the trait [`File`].

use crate::descriptors::descriptor::{Fd, above_standard};
use crate::descriptors::listener::{Inotify, Listener};
use crate::mapping::line_mapping::{LineMapping, Lines};
use crate::mapping::linux_map::LinuxMapping;
use crate::mapping::read_mapping::ReadMapping;
use crate::mapping::shared_view::{SharedView, View};
use crate::mapping::{MapRequest, Mapping};
use crate::memory::buffer::{AlignedBuf, BLOCK_BYTES};
use crate::storage::byte_locks::ask_lock;
use crate::storage::clone_range::clone_range;
use crate::storage::other_process;
use crate::storage::read_write::write_all_at;
use crate::storage::write_out;
use crate::storage::{File, Kind, Meta};
use crate::sync_point::SyncPoint;
use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode};
use rustix::io::Errno;
use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The kernel's default for read-ahead.
const READ_AHEAD_BYTES: u64 = 128 << 10;

const ATTRIBUTE: &str = "user.untorn";

/// The writes and flushes of all files of a storage.
#[derive(Default)]
pub(super) struct Totals {
    pub syncs: AtomicU64,
    pub writes: AtomicU64,
    pub bytes: AtomicU64,
}

pub(super) fn meta_of(st: &fs::Stat) -> Meta {
    Meta {
        kind: match fs::FileType::from_raw_mode(st.st_mode) {
            fs::FileType::RegularFile => Kind::File,
            fs::FileType::Directory => Kind::Directory,
            fs::FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        },
        device: st.st_dev,
        inode: st.st_ino,
        size: st.st_size as u64,
        mtime_ns: st.st_mtime as i128 * 1_000_000_000 + st.st_mtime_nsec as i128,
        #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on other architectures")]
        links: st.st_nlink as u64,
        mode: st.st_mode & 0o7777,
        uid: st.st_uid,
        gid: st.st_gid,
    }
}

/// An open file.
pub(super) struct LinuxFile {
    fd: Fd,
    /// For a file without a name: the directory in which it will get one.
    directory: Mutex<Option<Fd>>,
    direct: bool,
    /// Shows its lines as if it were on byte-addressable memory.
    pub(super) on_trial: bool,
    /// Whether it took a lock of each kind: `flock`, and on ranges.
    claimed: AtomicBool,
    locked: AtomicBool,
    totals: Arc<Totals>,
}

/// Releases the locks. Closing alone does not release them while a copy of the descriptor exists, and a thread that
/// starts a program makes one between `vfork` and `exec`.
impl Drop for LinuxFile {
    fn drop(&mut self) {
        let (claimed, locked) = (*self.claimed.get_mut(), *self.locked.get_mut());
        if (claimed || locked)
            && let Ok(fd) = self.fd.own()
        {
            if claimed {
                let _ = fs::flock(fd, FlockOperation::Unlock);
            }
            if locked {
                let _ = set_lock(fd, libc::F_UNLCK, libc::F_OFD_SETLK, 0..0);
            }
        }
    }
}

/// Sets, releases or queries an open-file-description lock on a range (`fcntl`); an empty range means the whole file.
/// Returns the lock type that the kernel reports, and the range of that lock.
fn set_lock(
    fd: BorrowedFd<'_>,
    kind: libc::c_int,
    command: libc::c_int,
    range: Range<u64>,
) -> io::Result<(libc::c_int, Range<u64>)> {
    let lock = ask_lock(fd, kind, command, range)?;
    // A length of 0 means that the lock has no end.
    let end = if lock.l_len == 0 { u64::MAX } else { (lock.l_start + lock.l_len) as u64 };
    Ok((lock.l_type.into(), lock.l_start as u64..end))
}

/// Untorn's attribute of an open file, if it has one.
pub fn attribute_of(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0; 256];
    match fs::fgetxattr(fd, ATTRIBUTE, &mut value[..]) {
        Ok(n) => Ok(Some(value[..n].to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // Longer than any attribute of ours: it is not ours, and must not be overwritten.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(e) => Err(e.into()),
    }
}

/// The present `RLIMIT_FSIZE`.
pub(super) fn file_size_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

impl LinuxFile {
    /// `directory`: for a file without a name, the directory in which it will get one.
    pub(super) fn new(fd: Fd, directory: Option<Fd>, direct: bool, totals: Arc<Totals>) -> LinuxFile {
        let [claimed, locked] = [(); 2].map(|()| AtomicBool::new(false));
        LinuxFile { fd, directory: Mutex::new(directory), direct, on_trial: false, claimed, locked, totals }
    }

    /// Takes a lock. Returns false if a conflicting lock exists.
    fn take_lock(&self, kind: libc::c_int, command: libc::c_int, range: Range<u64>) -> io::Result<bool> {
        match set_lock(self.fd.own()?, kind, command, range) {
            Ok(_) => {
                self.locked.store(true, Relaxed);
                Ok(true)
            }
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::AGAIN | Errno::ACCESS)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Refuses to extend the file beyond this process's limit, because the kernel would send `SIGXFSZ`, which kills the
    /// process.
    fn check_growth(&self, size: u64) -> io::Result<()> {
        if size > file_size_limit() && size > fs::fstat(self.fd.get()?)?.st_size as u64 {
            return Err(Errno::FBIG.into());
        }
        Ok(())
    }

    /// Runs a change of an attribute, which needs write permission each time, even if the descriptor was opened for
    /// writing. If the mode forbids writing to the file's owner, and this process runs as the owner, the mode is
    /// changed for the duration of the change.
    fn as_writable(&self, change: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<()> {
        let fd = self.fd.own()?;
        match change(fd) {
            Err(Errno::ACCESS) => {}
            done => return Ok(done?),
        }
        let meta = self.meta()?;
        if meta.mode & 0o200 != 0 || meta.uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::ACCESS.into());
        }
        self.set_mode(meta.mode | 0o200)?;
        let done = change(fd);
        self.set_mode(meta.mode)?;
        Ok(done?)
    }

    fn zero_by_writing(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed_up_to(len.min(1 << 20) as usize);
        let mut done = 0;
        while done < len {
            let n = zeros.len().min((len - done) as usize);
            write_all_at(self, &zeros[..n], offset + done)?;
            done += n as u64;
        }
        Ok(())
    }
}

impl File for LinuxFile {
    fn born_ns(&self) -> u64 {
        let found = self.fd.own().and_then(|fd| Ok(fs::statx(fd, "", AtFlags::EMPTY_PATH, fs::StatxFlags::BTIME)?));
        let known = found.ok().filter(|st| st.stx_mask & fs::StatxFlags::BTIME.bits() != 0);
        known.map_or(0, |st| {
            (st.stx_btime.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(st.stx_btime.tv_nsec.into())
        })
    }
    fn give_name(&self, name: &OsStr) -> io::Result<()> {
        let mut place = self.directory.lock();
        let (fd, directory) = (self.fd.own()?, place.as_ref().ok_or(Errno::INVAL)?.own()?);
        if fs::fstat(fd)?.st_nlink != 0 {
            return Err(Errno::INVAL.into());
        }
        match fs::linkat(fd, "", directory, name, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 this needs a capability, but not through `/proc`.
            Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                fs::linkat(fs::CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            done => done?,
        }
        // Many new files must not each keep a descriptor of their directory.
        *place = None;
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self.fd.get()?, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        debug_assert!(
            !self.direct || (buf.len() | offset as usize | buf.as_ptr() as usize).is_multiple_of(BLOCK_BYTES)
        );
        // A write that begins at the limit raises `SIGXFSZ`, which kills the process; a write that reaches beyond the
        // limit comes back short.
        let mut most = (file_size_limit().saturating_sub(offset)).min(buf.len() as u64) as usize;
        if self.direct {
            most -= most % BLOCK_BYTES;
        }
        if most == 0 && !buf.is_empty() {
            return Err(Errno::FBIG.into());
        }
        self.write_allowed_at(&buf[..most], offset)
    }

    fn write_allowed_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let n = rustix::io::pwrite(self.fd.get()?, buf, offset)?;
        self.totals.writes.fetch_add(1, Relaxed);
        self.totals.bytes.fetch_add(n as u64, Relaxed);
        Ok(n)
    }

    fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.direct {
            fs::fadvise(self.fd.get()?, offset, NonZeroU64::new(buf.len() as u64), fs::Advice::DontNeed)?;
        }
        self.read_at(buf, offset)
    }

    fn begin_read(&self, range: Range<u64>) {
        let Ok(fd) = self.fd.get() else { return };
        // One call reads at most the kernel's read-ahead. Errors are ignored, because a real read follows.
        for at in range.clone().step_by(READ_AHEAD_BYTES as usize) {
            let len = NonZeroU64::new((range.end - at).min(READ_AHEAD_BYTES));
            let _ = fs::fadvise(fd, at, len, fs::Advice::WillNeed);
        }
    }

    fn forget_cached(&self) -> io::Result<()> {
        let fd = self.fd.own()?;
        fs::fadvise(fd, 0, None, fs::Advice::DontNeed)?;
        Ok(fs::ftruncate(fd, fs::fstat(fd)?.st_size as u64)?)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.check_growth(size)?;
        Ok(fs::ftruncate(self.fd.own()?, size)?)
    }

    fn size_max(&self) -> io::Result<u64> {
        let fd = self.fd.get()?;
        let is_possible = |size: u64| fs::seek(fd, fs::SeekFrom::Start(size)).is_ok();
        let (mut possible, mut impossible) = (0, i64::MAX as u64 + 1);
        // The limit of XFS and btrfs.
        if is_possible(impossible - 1) {
            return Ok(impossible - 1);
        }
        // The limit of ext4 with blocks of 4 KiB.
        let usual = u64::from(u32::MAX) * BLOCK_BYTES as u64;
        if is_possible(usual) && !is_possible(usual + 1) {
            (possible, impossible) = (usual, usual + 1);
        }
        while impossible - possible > 1 {
            let middle = possible + (impossible - possible) / 2;
            *(if is_possible(middle) { &mut possible } else { &mut impossible }) = middle;
        }
        fs::seek(fd, fs::SeekFrom::Start(0))?;
        Ok(possible)
    }

    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> io::Result<()> {
        let from = (from as &dyn Any).downcast_ref::<LinuxFile>().ok_or(Errno::XDEV)?;
        if offset.saturating_add(len) > file_size_limit() {
            return Err(Errno::FBIG.into());
        }
        clone_range(self.fd.own()?, offset, from.fd.own()?, from_offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_growth(offset.saturating_add(len))?;
        match fs::fallocate(self.fd.own()?, FallocateFlags::empty(), offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn keep_room(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_growth(offset.saturating_add(len))?;
        match fs::fallocate(self.fd.get()?, FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let fd = self.fd.own()?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fs::fallocate(fd, hole, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.zero_by_writing(offset, len),
            done => Ok(done?),
        }
    }

    fn sync_data(&self, _point: SyncPoint) -> io::Result<()> {
        self.totals.syncs.fetch_add(1, Relaxed);
        Ok(fs::fdatasync(self.fd.own()?)?)
    }

    fn sync_all(&self, _point: SyncPoint) -> io::Result<()> {
        self.totals.syncs.fetch_add(1, Relaxed);
        Ok(fs::fsync(self.fd.own()?)?)
    }

    fn begin_write_out(&self, offset: u64, len: u64) {
        if let Ok(fd) = self.fd.own() {
            let _ = write_out::begin(fd, offset, len);
        }
    }

    fn write_out(&self, _point: SyncPoint) -> io::Result<()> {
        write_out::whole(self.fd.own()?)
    }

    fn meta(&self) -> io::Result<Meta> {
        Ok(meta_of(&fs::fstat(self.fd.get()?)?))
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fs::fchmod(self.fd.own()?, Mode::from_raw_mode(mode))?)
    }

    fn attribute(&self) -> io::Result<Option<Vec<u8>>> {
        attribute_of(self.fd.get()?)
    }

    fn set_attribute(&self, value: &[u8]) -> io::Result<()> {
        self.as_writable(|fd| fs::fsetxattr(fd, ATTRIBUTE, value, fs::XattrFlags::empty()))
    }

    fn remove_attribute(&self) -> io::Result<()> {
        self.as_writable(|fd| match fs::fremovexattr(fd, ATTRIBUTE) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            done => done,
        })
    }

    fn try_claim(&self) -> io::Result<bool> {
        match fs::flock(self.fd.own()?, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
            Ok(()) => {
                self.claimed.store(true, Relaxed);
                Ok(true)
            }
        }
    }

    fn lock(&self, wait: bool) -> io::Result<bool> {
        let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
        loop {
            match self.take_lock(libc::F_WRLCK, command, 0..0) {
                Err(e) if Errno::from_io_error(&e) == Some(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    fn is_locked(&self) -> io::Result<bool> {
        Ok(set_lock(self.fd.own()?, libc::F_WRLCK, libc::F_OFD_GETLK, 0..0)?.0 != libc::F_UNLCK)
    }

    fn hold(&self, range: Range<u64>) -> io::Result<bool> {
        if range.is_empty() {
            return Ok(true);
        }
        self.take_lock(libc::F_RDLCK, libc::F_OFD_SETLK, range)
    }

    fn release(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        set_lock(self.fd.own()?, libc::F_UNLCK, libc::F_OFD_SETLK, range).map(drop)
    }

    fn held(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        if range.is_empty() {
            return Ok(None);
        }
        let (kind, found) = set_lock(self.fd.own()?, libc::F_WRLCK, libc::F_OFD_GETLK, range.clone())?;
        Ok((kind != libc::F_UNLCK).then(|| found.start.max(range.start)..found.end.min(range.end)))
    }

    fn view(&self, len: usize) -> io::Result<Box<dyn View>> {
        Ok(Box::new(SharedView::of(self.fd.get()?, len)?))
    }

    fn lines(&self, len: u64) -> io::Result<Box<dyn Lines>> {
        let fd = self.fd.own()?;
        Ok(Box::new(if self.on_trial { LineMapping::for_trial(fd, len)? } else { LineMapping::of(fd, len)? }))
    }

    fn is_open_in(&self, pid: u32) -> Option<bool> {
        other_process::has_open(pid, &fs::fstat(self.fd.get().ok()?).ok()?)
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(Inotify::of(self.fd.own()?)?))
    }

    fn map(&self, request: &MapRequest) -> io::Result<Box<dyn Mapping>> {
        Ok(Box::new(LinuxMapping::new(self.fd.own()?, request)?))
    }

    fn show_in(&self, memory: &mut ReadMapping, len: usize) -> io::Result<()> {
        memory.show(self.fd.own()?, len)
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        above_standard(|| self.fd.own()?.try_clone_to_owned())
    }

    fn check_own(&self) -> io::Result<()> {
        self.fd.own().map(drop)
    }

    fn next_contents(&self, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        let fd = self.fd.get()?;
        let start = match fs::seek(fd, fs::SeekFrom::Data(from)) {
            Ok(start) => start,
            // Either there are no contents behind this offset, or the file system does not support the query.
            Err(Errno::NXIO) => return Ok(None),
            Err(_) => return Ok((from < end).then_some(from..end)),
        };
        let hole = fs::seek(fd, fs::SeekFrom::Hole(start)).unwrap_or(end);
        Ok((start < end).then(|| start..hole.min(end)))
    }
}
