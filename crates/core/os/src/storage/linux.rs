//! Linux behind the traits [`Storage`] and [`File`].

use crate::descriptors::descriptor::{Fd, above_standard};
use crate::descriptors::descriptor_identity::OVERLAYFS_MAGIC;
use crate::descriptors::listener::{Inotify, Listener};
use crate::mapping::linux_map::LinuxMapping;
use crate::mapping::read_mapping::ReadMapping;
use crate::mapping::{MapRequest, Mapping};
use crate::memory::buffer::{AlignedBuf, BLOCK_BYTES};
use crate::storage::clone_range::clone_range;
use crate::storage::kernel::kernel_is;
use crate::storage::metadata_order::keeps_order;
use crate::storage::other_process;
use crate::storage::read_write::write_all_at;
use crate::storage::write_out;
use crate::storage::{Access, Counters, File, Kind, Meta, Open, Space, Storage, shown_by};
use crate::sync_point::SyncPoint;
use crate::threads::both_at_once::both_at_once;
use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The type number of FUSE in `statfs`.
const FUSE_MAGIC: u32 = 0x6573_5546;

/// The kernel's default for read-ahead.
const READ_AHEAD_BYTES: u64 = 128 << 10;

const ATTRIBUTE: &str = "user.untorn";

#[derive(Default)]
struct Totals {
    syncs: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

/// A directory on a real file system.
pub struct Linux {
    root: Fd,
    totals: Arc<Totals>,
    has_openat2: AtomicBool,
    keeps_order: OnceLock<bool>,
}

impl Linux {
    /// Opens a directory as the root of a storage. The path itself may contain links.
    pub fn open(path: &Path) -> io::Result<Arc<Linux>> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Arc::new(Linux {
            root: Fd::open(|| fs::open(path, flags, Mode::empty()))?,
            totals: Arc::default(),
            has_openat2: AtomicBool::new(true),
            keeps_order: OnceLock::new(),
        }))
    }

    /// Makes a file of a descriptor that another component has opened.
    pub fn file_of(fd: OwnedFd) -> io::Result<Arc<dyn File>> {
        let (directory, holds_lock) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Arc::new(LinuxFile { fd: Fd::new(fd)?, directory, direct: false, holds_lock, totals: Arc::default() }))
    }

    /// A new file in memory, without a name (`memfd_create`).
    pub fn memory_file() -> io::Result<Arc<dyn File>> {
        Linux::file_of(above_standard(|| fs::memfd_create("untorn", fs::MemfdFlags::CLOEXEC))?)
    }

    /// Opens beneath the root, without following links or crossing mounts.
    fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let root = self.root.own()?;
        above_standard(|| self.open_below(root, path, flags, mode))
    }

    fn open_below(&self, root: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        // `openat2` would allow `..` that stays inside.
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Errno::XDEV.into());
        }
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        if self.has_openat2.load(Relaxed) {
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
            for _ in 0..128 {
                match fs::openat2(root, path, flags, mode, resolve) {
                    // A rename raced with the walk.
                    Err(Errno::AGAIN) => continue,
                    // Before Linux 5.6, or forbidden by a container's filter.
                    Err(Errno::NOSYS | Errno::PERM) => break,
                    done => return Ok(done?),
                }
            }
        }
        self.walk(root, path, flags, mode)
    }

    /// Opens beneath the root, one directory after the other, for kernels without `openat2`.
    fn walk(&self, root: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let device = fs::fstat(root)?.st_dev;
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = fs::openat(root, ".", directory, Mode::empty())?;
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            let name = match part {
                Component::Normal(name) => name,
                Component::CurDir => OsStr::new("."),
                _ => return Err(Errno::XDEV.into()),
            };
            let last = parts.peek().is_none();
            let (f, m) = if last { (flags, mode) } else { (directory, Mode::empty()) };
            at = match fs::openat(&at, name, f, m) {
                // The error that `openat2` gives for a link on the way.
                Err(Errno::NOTDIR) if !last && is_link(&at, name) => return Err(Errno::LOOP.into()),
                done => done?,
            };
            if fs::fstat(&at)?.st_dev != device {
                return Err(Errno::XDEV.into());
            }
        }
        Ok(at)
    }

    fn file(&self, fd: OwnedFd, direct: bool, directory: Option<Fd>) -> io::Result<LinuxFile> {
        let (fd, directory, holds_lock) = (Fd::new(fd)?, Mutex::new(directory), AtomicBool::new(false));
        Ok(LinuxFile { fd, directory, direct, holds_lock, totals: self.totals.clone() })
    }

    /// The directory that holds a name, and the last component of the path.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Directory<'_>, &'p OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => {
                Directory::Below(self.open_beneath(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
            }
            _ => Directory::Root(self.root.own()?),
        };
        Ok((directory, name))
    }
}

/// A directory that holds a name.
enum Directory<'r> {
    Root(BorrowedFd<'r>),
    Below(OwnedFd),
}

impl AsFd for Directory<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Directory::Root(fd) => *fd,
            Directory::Below(fd) => fd.as_fd(),
        }
    }
}

fn is_link(directory: &OwnedFd, name: &OsStr) -> bool {
    let st = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    st.is_ok_and(|st| fs::FileType::from_raw_mode(st.st_mode).is_symlink())
}

fn meta_of(st: &fs::Stat) -> Meta {
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

impl Storage for Linux {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        // NONBLOCK: opening a pipe in the place of a file must not block.
        let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        flags |= if how.write { OFlags::RDWR } else { OFlags::RDONLY };
        let mut mode = Mode::empty();
        if how.create.is_some() {
            flags |= OFlags::CREATE | OFlags::EXCL;
            mode = Mode::from_raw_mode(0o600);
        }
        let mut direct = how.direct;
        let fd = match self.open_beneath(path, if direct { flags | OFlags::DIRECT } else { flags }, mode) {
            Err(e) if direct && Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                direct = false;
                // The refused attempt may have created the file already.
                if how.create.is_some() {
                    let _ = self.unlink(path);
                }
                self.open_beneath(path, flags, mode)?
            }
            done => done?,
        };
        let file = self.file(fd, direct, None)?;
        if let Some(mode) = how.create {
            let shown = match how.shown {
                true => shown_by(self.stat(path.parent().unwrap_or(Path::new("")))?.mode),
                false => 0,
            };
            file.set_mode(mode | shown)?;
        }
        Ok(Arc::new(file))
    }

    fn create_unnamed(&self, directory: &Path) -> io::Result<Arc<dyn File>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        match self.open_beneath(directory, flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => {
                let directory = self.open_beneath(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                Ok(Arc::new(self.file(fd, false, Some(Fd::new(directory)?))?))
            }
            // A kernel without the flag interprets it as that of a directory.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::ISDIR) => Err(Errno::OPNOTSUPP.into()),
            Err(e) => Err(e),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<Meta> {
        if path.as_os_str().is_empty() {
            return Ok(meta_of(&fs::fstat(self.root.get()?)?));
        }
        let (dir, name) = self.parent(path)?;
        Ok(meta_of(&fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let dir = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&dir)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        if replace {
            fs::renameat(&from_dir, from_name, &to_dir, to_name)?;
            return Ok(());
        }
        match fs::renameat_with(&from_dir, from_name, &to_dir, to_name, RenameFlags::NOREPLACE) {
            // Some file systems do not know the flag. Only the owner of the store could race with the check.
            Err(Errno::INVAL | Errno::NOSYS) => {
                if fs::statat(&to_dir, to_name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                Ok(fs::renameat(&from_dir, from_name, &to_dir, to_name)?)
            }
            done => Ok(done?),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        Ok(fs::linkat(&from_dir, from_name, &to_dir, to_name, AtFlags::empty())?)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::unlinkat(&dir, name, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700))?;
        // The umask may have cleared bits.
        self.set_dir_mode(path, mode)
    }

    fn set_dir_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let dir = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(fs::fchmod(&dir, Mode::from_raw_mode(mode))?)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?)
    }

    fn check_access(&self, path: &Path, access: Access) -> io::Result<()> {
        let (directory, name) = match access {
            Access::Add | Access::NewMode(_) => {
                let directory = self.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                (Directory::Below(directory), None)
            }
            _ => self.parent(path).map(|(directory, name)| (directory, Some(name)))?,
        };
        let user = rustix::process::geteuid();
        let inside = fs::fstat(&directory)?;
        let keeps_setgid = |group| {
            let groups = rustix::process::getgroups().unwrap_or_default();
            user.is_root() || groups.iter().chain([&rustix::process::getegid()]).any(|own| own.as_raw() == group)
        };
        if let Access::NewMode(mode) = access {
            let inherits = inside.st_mode & libc::S_ISGID != 0;
            return match mode & 0o2000 != 0 && inherits && !keeps_setgid(inside.st_gid) {
                true => Err(Errno::PERM.into()),
                false => Ok(()),
            };
        }
        if !matches!(access, Access::Mode(_)) {
            // The kernel checks groups, access control lists, and read-only mounts.
            fs::accessat(&directory, ".", fs::Access::WRITE_OK | fs::Access::EXEC_OK, AtFlags::EACCESS)?;
        }
        let Some(name) = name else { return Ok(()) };
        let entry = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if entry.st_dev != inside.st_dev {
            return Err(Errno::XDEV.into());
        }
        let fixed = |directory: &Directory<'_>, name: &OsStr, flags| {
            let (kind, none) =
                (AtFlags::SYMLINK_NOFOLLOW | flags, libc::STATX_ATTR_IMMUTABLE | libc::STATX_ATTR_APPEND);
            // If the kernel does not report attributes, assume that none is set.
            let st = fs::statx(directory, name, kind, fs::StatxFlags::BASIC_STATS);
            st.is_ok_and(|st| st.stx_attributes.bits() & none as u64 != 0)
        };
        if fixed(&directory, name, AtFlags::empty()) {
            return Err(Errno::PERM.into());
        }
        let is_own = |st: &fs::Stat| user.is_root() || st.st_uid == user.as_raw();
        match access {
            Access::Mode(mode) => {
                if !is_own(&entry) {
                    return Err(Errno::PERM.into());
                }
                if mode & 0o2000 != 0 && !keeps_setgid(entry.st_gid) {
                    // The kernel would silently drop the bit.
                    return Err(Errno::PERM.into());
                }
                match fs::fstatvfs(&directory)?.f_flag.contains(fs::StatVfsMountFlags::RDONLY) {
                    true => Err(Errno::ROFS.into()),
                    false => Ok(()),
                }
            }
            _ if inside.st_mode & libc::S_ISVTX != 0 && !is_own(&entry) && !is_own(&inside) => Err(Errno::PERM.into()),
            _ if fixed(&directory, OsStr::new(""), AtFlags::EMPTY_PATH) => Err(Errno::PERM.into()),
            _ => Ok(()),
        }
    }

    fn has_access_list(&self, dir: &Path) -> bool {
        let none = [rustix::io::Errno::NODATA, rustix::io::Errno::OPNOTSUPP];
        match self.open_beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => !matches!(
                fs::fgetxattr(&dir, "system.posix_acl_access", &mut [0u8; 0]), Err(e) if none.contains(&e)
            ),
            // If the list cannot be read, there may be one.
            Err(_) => true,
        }
    }

    fn sync_dir(&self, path: &Path, _point: SyncPoint) -> io::Result<()> {
        self.totals.syncs.fetch_add(1, Relaxed);
        let dir = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(fs::fsync(&dir)?)
    }

    fn sync_file_system(&self, _point: SyncPoint) -> io::Result<()> {
        self.totals.syncs.fetch_add(1, Relaxed);
        Ok(fs::syncfs(self.root.own()?)?)
    }

    fn sync_file_system_reports_errors(&self) -> bool {
        // `syncfs` reports failed writeback since Linux 5.8.
        kernel_is(5, 8)
    }

    fn keeps_order(&self) -> bool {
        *self.keeps_order.get_or_init(|| self.root.get().is_ok_and(keeps_order))
    }

    fn space(&self) -> io::Result<Space> {
        let st = fs::fstatvfs(self.root.get()?)?;
        Ok(Space {
            available_bytes: st.f_bavail.saturating_mul(st.f_frsize),
            total_bytes: st.f_blocks.saturating_mul(st.f_frsize),
            available_inodes: (st.f_files > 0).then_some(st.f_favail),
            name_bytes_max: st.f_namemax,
            read_only: st.f_flag.contains(fs::StatVfsMountFlags::RDONLY),
        })
    }

    fn open_files_max(&self) -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        (limit.unwrap_or(1024) / 2).clamp(8, 1024) as usize
    }

    fn effective_user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        let mut text = [0; 64];
        let n = std::fs::File::open("/proc/sys/kernel/random/boot_id")?.read(&mut text)?;
        let digits = text[..n].iter().filter(|byte| byte.is_ascii_hexdigit());
        let hex: String = digits.map(|byte| char::from(*byte)).collect();
        let id = u128::from_str_radix(&hex, 16).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(id.to_be_bytes())
    }

    fn file_size_limit(&self) -> u64 {
        file_size_limit()
    }

    fn random(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = rustix::io::retry_on_intr(|| {
                rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())
            })?;
            bytes = &mut bytes[n..];
        }
        Ok(())
    }

    fn pause(&self) {
        self.pause_for(Duration::from_millis(5));
    }

    fn pause_for(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn uptime(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn shows_another(&self) -> bool {
        let kind = self.root.get().ok().and_then(|root| fs::fstatfs(root).ok()).map(|st| st.f_type as u32);
        kind.is_some_and(|kind| [OVERLAYFS_MAGIC, FUSE_MAGIC].contains(&kind))
    }

    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        both_at_once(other, own);
    }

    fn counters(&self) -> Counters {
        Counters {
            syncs: self.totals.syncs.load(Relaxed),
            writes: self.totals.writes.load(Relaxed),
            bytes_written: self.totals.bytes.load(Relaxed),
        }
    }
}

struct LinuxFile {
    fd: Fd,
    /// For a file without a name: the directory in which it will get one.
    directory: Mutex<Option<Fd>>,
    direct: bool,
    holds_lock: AtomicBool,
    totals: Arc<Totals>,
}

/// Releases the locks. Closing alone does not release them while a copy of the descriptor exists, and a thread that
/// starts a program makes one between `vfork` and `exec`.
impl Drop for LinuxFile {
    fn drop(&mut self) {
        if self.holds_lock.load(Relaxed)
            && let Ok(fd) = self.fd.own()
        {
            let _ = fs::flock(fd, FlockOperation::Unlock);
            let _ = set_lock(fd, libc::F_UNLCK, libc::F_OFD_SETLK, 0..0);
        }
    }
}

/// Sets, releases or queries an open-file-description lock on a range (`fcntl`); an empty range means the whole file.
/// Returns the lock type that the kernel reports, and the start of that lock.
fn set_lock(
    fd: BorrowedFd<'_>,
    kind: libc::c_int,
    command: libc::c_int,
    range: Range<u64>,
) -> io::Result<(libc::c_int, u64)> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from(Errno::OVERFLOW));
    // SAFETY: all-zero is a valid `flock`: the whole file, from its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = number(range.start)?;
    lock.l_len = number(range.end - range.start)?;
    // SAFETY: a live descriptor and a valid `flock`, which the kernel may fill.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } == 0 {
        Ok((lock.l_type.into(), lock.l_start as u64))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The present `RLIMIT_FSIZE`.
fn file_size_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

impl LinuxFile {
    /// Takes a lock. Returns false if a conflicting lock exists.
    fn take_lock(&self, kind: libc::c_int, command: libc::c_int, range: Range<u64>) -> io::Result<bool> {
        match set_lock(self.fd.own()?, kind, command, range) {
            Ok(_) => {
                self.holds_lock.store(true, Relaxed);
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
        let n = rustix::io::pwrite(self.fd.get()?, &buf[..most], offset)?;
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
        let mut value = [0; 256];
        match fs::fgetxattr(self.fd.get()?, ATTRIBUTE, &mut value[..]) {
            Ok(n) => Ok(Some(value[..n].to_vec())),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            // Longer than any attribute of ours: it is not ours, and must not be overwritten.
            Err(Errno::RANGE) => Ok(Some(Vec::new())),
            Err(e) => Err(e.into()),
        }
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
                self.holds_lock.store(true, Relaxed);
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
        Ok(set_lock(self.fd.get()?, libc::F_WRLCK, libc::F_OFD_GETLK, 0..0)?.0 != libc::F_UNLCK)
    }

    fn lease(&self, at: u64) -> io::Result<bool> {
        self.take_lock(libc::F_RDLCK, libc::F_OFD_SETLK, at..at.saturating_add(1))
    }

    fn leased(&self, range: Range<u64>) -> io::Result<Option<u64>> {
        if range.is_empty() {
            return Ok(None);
        }
        let (kind, start) = set_lock(self.fd.get()?, libc::F_WRLCK, libc::F_OFD_GETLK, range.clone())?;
        Ok((kind != libc::F_UNLCK).then(|| start.max(range.start)))
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

/// The data that `doctor` shows about the file system that holds a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystemInfo {
    /// Type, as in `/proc/self/mountinfo`: `ext4`, `xfs`, `btrfs`, `overlay`, `tmpfs`, …
    pub kind: String,
    /// The mount point.
    pub mount_point: String,
    /// Device or source.
    pub source: String,
    /// Mount and superblock options, joined by commas.
    pub options: String,
    /// Device number, `major:minor`.
    pub device: String,
}

/// Looks up the mount that holds a path.
pub fn file_system_info(path: &Path) -> io::Result<FileSystemInfo> {
    let fd = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let st = fs::statx(&fd, "", AtFlags::EMPTY_PATH, fs::StatxFlags::MNT_ID)?;
    let text = std::fs::read("/proc/self/mountinfo")?;
    let unescape = |field: &str| {
        let mut out = Vec::new();
        let mut bytes = field.bytes();
        while let Some(b) = bytes.next() {
            if b != b'\\' {
                out.push(b);
                continue;
            }
            let octal: Vec<u8> = bytes.by_ref().take(3).collect();
            out.push(octal.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d.wrapping_sub(b'0'))));
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    for line in String::from_utf8_lossy(&text).lines() {
        let (left, right) = line.split_once(" - ").unwrap_or((line, ""));
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        if left.len() >= 6 && right.len() >= 3 && left[0].parse() == Ok(st.stx_mnt_id) {
            return Ok(FileSystemInfo {
                kind: right[0].to_owned(),
                mount_point: unescape(left[4]),
                source: unescape(right[1]),
                options: format!("{},{}", left[5], right[2]),
                device: left[2].to_owned(),
            });
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no entry in /proc/self/mountinfo for this mount"))
}

/// The umask of this process, read without changing it; 077, which widens no permission, if `/proc` does not show it.
pub fn umask() -> u32 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("Umask:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        })
        .unwrap_or(0o077)
}
