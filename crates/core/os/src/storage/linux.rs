//! A directory on Linux, behind the trait [`Storage`].

use crate::descriptors::descriptor::{Fd, above_standard, directory_above_standard};
use crate::descriptors::descriptor_identity::OVERLAYFS_MAGIC;
use crate::storage::kernel::kernel_is;
use crate::storage::linux_file::{LinuxFile, Totals, file_size_limit, meta_of};
use crate::storage::metadata_order::keeps_order;
use crate::storage::{Access, Counters, File, Meta, Open, Space, Storage, shown_by};
use crate::sync_point::SyncPoint;
use crate::threads::in_threads::{both_at_once, in_threads};
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The type number of FUSE in `statfs`.
const FUSE_MAGIC: u32 = 0x6573_5546;

/// A directory on a real file system.
pub struct Linux {
    root: Fd,
    totals: Arc<Totals>,
    has_openat2: AtomicBool,
    keeps_order: OnceLock<bool>,
    /// Takes the file system for one on byte-addressable memory.
    on_trial: bool,
}

impl Linux {
    /// Opens a directory as the root of a storage. The path itself may contain links.
    pub fn open(path: &Path) -> io::Result<Arc<Linux>> {
        Linux::open_root(path, false)
    }

    /// Opens a directory like [`Linux::open`], and takes its file system for one on byte-addressable memory: commits
    /// survive a killed process, and no power cut. For tests and measurements without such memory.
    #[doc(hidden)]
    pub fn open_as_memory(path: &Path) -> io::Result<Arc<Linux>> {
        Linux::open_root(path, true)
    }

    fn open_root(path: &Path, on_trial: bool) -> io::Result<Arc<Linux>> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Arc::new(Linux {
            root: Fd::new(directory_above_standard(|| fs::open(path, flags, Mode::empty()))?)?,
            totals: Arc::default(),
            has_openat2: AtomicBool::new(true),
            keeps_order: OnceLock::new(),
            on_trial,
        }))
    }

    /// Makes a file of a descriptor that another component has opened.
    pub fn file_of(fd: OwnedFd) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LinuxFile::new(Fd::new(fd)?, None, false, Arc::default())))
    }

    /// A new file in memory, without a name (`memfd_create`).
    pub fn memory_file() -> io::Result<Arc<dyn File>> {
        Linux::file_of(above_standard(|| fs::memfd_create("untorn", fs::MemfdFlags::CLOEXEC))?)
    }

    /// Opens beneath the root, without following links or crossing mounts.
    fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let root = self.root.own()?;
        // `TMPFILE` contains the bits of `DIRECTORY`.
        match flags.contains(OFlags::DIRECTORY) && !flags.contains(OFlags::TMPFILE) {
            true => directory_above_standard(|| self.open_below(root, path, flags, mode)),
            false => above_standard(|| self.open_below(root, path, flags, mode)),
        }
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
        let mut file = LinuxFile::new(Fd::new(fd)?, directory, direct, self.totals.clone());
        file.on_trial = self.on_trial;
        Ok(file)
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
        for entry in fs::Dir::new(dir)? {
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

    fn time(&self) -> Option<u64> {
        let seconds = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
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

    fn is_on_trial(&self) -> bool {
        self.on_trial
    }

    fn shows_another(&self) -> bool {
        let kind = self.root.get().ok().and_then(|root| fs::fstatfs(root).ok()).map(|st| st.f_type as u32);
        kind.is_some_and(|kind| [OVERLAYFS_MAGIC, FUSE_MAGIC].contains(&kind))
    }

    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        both_at_once(other, own);
    }

    fn in_threads(&self, most: usize, work: &(dyn Fn() + Sync)) {
        in_threads(most, work);
    }

    fn counters(&self) -> Counters {
        Counters {
            syncs: self.totals.syncs.load(Relaxed),
            writes: self.totals.writes.load(Relaxed),
            bytes_written: self.totals.bytes.load(Relaxed),
        }
    }
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
