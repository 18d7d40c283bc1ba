//! The directory of `--on DIR`: an existing directory of an ext4 file system with data in its journal.

use crate::host::mount_flags;
use crate::invariant::DATA_IN_THE_JOURNAL;
use crate::volumes::committer::Ground;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock, major, minor, statfs};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_os::holds;

/// The subdirectory for files that commits need. The session sees it empty.
pub const HIDDEN: &str = ".untorn-xsync";
/// `f_type` of ext4.
const EXT4: rustix::fs::FsWord = 0xEF53;
/// FS_IOC_GETFLAGS of `<linux/fs.h>`, and the flags of refused directories: the journal does not order their files, or
/// they cannot be part of an overlay.
const GETFLAGS: libc::Ioctl = 0x8008_6601;
const TROUBLE: [(libc::c_long, &str); 3] =
    [(0x800, "is encrypted"), (0x0200_0000, "has DAX"), (0x4000_0000, "ignores the case of names")];
/// After the supervisor was killed, the kernel needs a moment to end the processes of the session.
const LEFT_BEHIND_TIME_MAX: Duration = Duration::from_secs(1);

/// A directory that a session may write. It is locked against other sessions.
#[derive(Debug)]
pub struct OnDirectory {
    dir: PathBuf,
    root: File,
    hidden: PathBuf,
    _lock: File,
    disk: String,
}

impl OnDirectory {
    /// Checks that the directory's file system keeps the order of writes, and locks the directory.
    pub fn open(dir: &Path) -> Result<OnDirectory> {
        let named = dir;
        let dir = fs::canonicalize(dir).with_context(|| format!("--on {}", dir.display()))?;
        ensure!(dir.is_dir(), "--on {} is not a directory", named.display());
        ensure!(
            dir != Path::new("/"),
            "a session cannot work on the root directory, because nothing is outside of it; name another directory"
        );
        let Checked { dir, disk } = check(&dir)?;
        check_beneath(&dir)?;
        let root = File::open(&dir).with_context(|| format!("cannot open {}", dir.display()))?;
        let hidden = dir.join(HIDDEN);
        let lock = lock(&dir, &hidden)?;
        Ok(OnDirectory { dir, root, hidden, _lock: lock, disk })
    }

    /// The directory, without links in its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The files that commits of this directory need.
    pub fn ground(&self) -> Ground<'_> {
        Ground { root: &self.root, at: &self.hidden, disk: &self.disk }
    }

    /// Makes a mount of the directory for the session alone. This process must have its own mount namespace.
    pub fn mount(&self) -> Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, &self.dir, flags)
            .with_context(|| format!("cannot make a mount of {} for the session", self.dir.display()))?;
        mount_flags::restrict(&tree, mount_flags::NODEV)
            .with_context(|| format!("the session's mount of {}", self.dir.display()))?;
        Ok(tree)
    }
}

impl Drop for OnDirectory {
    /// Removes the files for commits. If they stay, the next session still works.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.hidden);
    }
}

/// A directory whose file system keeps the order of writes.
#[derive(Debug)]
pub struct Checked {
    /// The path of the directory, without links.
    pub dir: PathBuf,
    /// The name of its disk.
    pub disk: String,
}

/// Checks that a directory's file system keeps the order of writes, and that this user may write there.
pub fn check(dir: &Path) -> Result<Checked> {
    let dir = fs::canonicalize(dir).with_context(|| dir.display().to_string())?;
    let disk = disk_of(&dir)?;
    check_options(&dir, &disk)?;
    check_flags(&dir)?;
    let writable = accessat(CWD, &dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    writable.with_context(|| {
        format!("{} cannot be written; an administrator gives it to you by `chown USER {0}`", dir.display())
    })?;
    Ok(Checked { dir, disk })
}

/// The name of the disk of a directory's file system. An error if that is not ext4.
pub fn disk_of(dir: &Path) -> Result<String> {
    let kind = statfs(dir).with_context(|| format!("cannot ask about {}", dir.display()))?.f_type;
    let meta = fs::metadata(dir).with_context(|| format!("cannot ask about {}", dir.display()))?;
    let device = format!("/sys/dev/block/{}:{}", major(meta.dev()), minor(meta.dev()));
    let disk = fs::canonicalize(device).ok().and_then(|path| path.file_name().map(|name| name.to_owned()));
    match disk {
        Some(disk) if kind == EXT4 => Ok(disk.to_string_lossy().into_owned()),
        _ => bail!("{} does not lie on an ext4 file system. {}", dir.display(), the_way(dir)),
    }
}

/// A message: how to get a directory on which a session can be.
fn the_way(dir: &Path) -> String {
    format!(
        "An administrator provides a directory that orders what is written: `untorn xsync --print-fstab {}` prints how. \
         As root, a session with a volume (--volume FILE) needs no such directory",
        dir.display()
    )
}

/// Checks the mount options, from the kernel's list, which includes the defaults of the file system.
fn check_options(dir: &Path, disk: &str) -> Result<()> {
    let path = format!("/proc/fs/ext4/{disk}/options");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: what {} is mounted with", dir.display()))?;
    let options: Vec<&str> = text.lines().collect();
    for wrong in ["nobarrier", "barrier=0", "dax", "dax=always", "inlinecrypt", "test_dummy_encryption", "ro"] {
        if options.contains(&wrong) {
            bail!(
                "the file system of {} is mounted with {wrong}: a commit could not keep its promise; an \
                 administrator mounts it without",
                dir.display()
            );
        }
    }
    if holds(DATA_IN_THE_JOURNAL) && !options.contains(&"data=journal") {
        bail!(
            "the file system of {} is not mounted with data=journal: a crash would mix old and new. {}",
            dir.display(),
            the_way(dir)
        );
    }
    Ok(())
}

fn check_flags(dir: &Path) -> Result<()> {
    let (open, mut flags) = (File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?, 0);
    // SAFETY: the request fills `flags`, which outlives the call.
    if unsafe { libc::ioctl(open.as_raw_fd(), GETFLAGS, &mut flags) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("cannot ask about {}", dir.display()));
    }
    match TROUBLE.iter().find(|(flag, _)| flags & flag != 0) {
        Some((_, what)) => {
            bail!("{} {what}: a session cannot work on such a directory; name another one", dir.display())
        }
        None => Ok(()),
    }
}

/// Refuses a directory with ways out of it: other file systems mounted in it, and sockets and FIFOs, whose other ends
/// may be outside.
fn check_beneath(dir: &Path) -> Result<()> {
    let mounts = crate::host::host_view::mount_points()?;
    if let Some(mount) = mounts.iter().find(|at| *at != dir && at.starts_with(dir)) {
        bail!(
            "{} has another file system in it, at {}: a session writes to only one file system; unmount it, or name a \
             directory beside it",
            dir.display(),
            mount.display()
        );
    }
    match find_way_out(dir) {
        Some(path) => bail!(
            "{} is a socket or a FIFO: what the session sends there would not wait for a commit; remove it, or name \
             a directory without any",
            path.display()
        ),
        None => Ok(()),
    }
}

/// Finds a socket or FIFO. Directories that cannot be read are skipped, because the session cannot read them either.
fn find_way_out(dir: &Path) -> Option<PathBuf> {
    let mut inner = Vec::new();
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_socket() || kind.is_fifo() {
            return Some(entry.path());
        }
        if kind.is_dir() {
            inner.push(entry.path());
        }
    }
    inner.iter().find_map(|dir| find_way_out(dir))
}

fn lock(dir: &Path, hidden: &Path) -> Result<File> {
    let started = Instant::now();
    loop {
        match DirBuilder::new().mode(0o700).create(hidden) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("cannot make {}", hidden.display()));
            }
            _ => {}
        }
        let open = match File::open(hidden) {
            // An earlier session has just removed it.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && started.elapsed() < LEFT_BEHIND_TIME_MAX => continue,
            open => open.with_context(|| {
                format!(
                    "cannot open {}; a session of another user left it: let that user, or root, remove it",
                    hidden.display()
                )
            })?,
        };
        let locked = flock(&open, FlockOperation::NonBlockingLockExclusive);
        // An earlier session may have removed it since.
        let is_there = fs::metadata(hidden).is_ok_and(|meta| open.metadata().is_ok_and(|our| our.ino() == meta.ino()));
        match locked {
            Ok(()) if is_there => return Ok(open),
            Ok(()) if started.elapsed() < LEFT_BEHIND_TIME_MAX => {}
            Err(_) if started.elapsed() < LEFT_BEHIND_TIME_MAX => std::thread::sleep(Duration::from_millis(5)),
            _ => bail!("another session works on {}; wait for its end", dir.display()),
        }
    }
}
