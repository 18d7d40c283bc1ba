//! The session's volume: an ext4 file system with data in its journal, in a file or on a block device.

use crate::host::outer_streams::tell;
use crate::invariant::DATA_IN_THE_JOURNAL;
use crate::volumes::disk::{Disk, wait_until_detached};
use crate::volumes::journal_blocks;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn_os::holds;

const MIB: u64 = 1 << 20;
/// The size of a volume by default.
pub const BYTES_DEFAULT: u64 = 2048 * MIB;
/// The smallest size, for file system, journal and a little data.
pub const BYTES_MIN: u64 = 32 * MIB;
/// The limits of the journal's size. The journal holds writes until they have reached their places in the file system.
const JOURNAL_MIB_MAX: u64 = 256;
const JOURNAL_MIB_MIN: u64 = 8;
/// The least part of a journal that is written before its first use. It is enough for sessions with few commits.
const JOURNAL_WRITTEN_MIB_MIN: u64 = 16;
/// The label that marks a file system as made for sessions.
const LABEL: &[u8] = b"untorn-xsync";
const SUPERBLOCK_AT: u64 = 1024;
const MAGIC: (usize, [u8; 2]) = (0x38, [0x53, 0xEF]);
/// `s_state`, and its bit for errors that the kernel found.
const STATE_AT: usize = 0x3A;
const HAS_ERRORS: u8 = 2;
const LABEL_AT: usize = 0x78;
/// `s_log_block_size`: the block size is 1 KiB shifted left by this.
const BLOCK_SIZE_AT: usize = 0x18;
/// The `f_type` of file systems in memory: tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58F6];
/// FS_IOC_SETFLAGS of `<linux/fs.h>`, and the flag that makes a file system overwrite in place instead of copying on
/// write.
const SETFLAGS: libc::Ioctl = 0x4008_6602;
const NO_COPY_ON_WRITE: libc::c_long = 0x0080_0000;
/// FS_IOC_SHUTDOWN, and the flag that keeps the file system from writing anything more, including the journal.
const SHUTDOWN: libc::Ioctl = 0x8004_587D;
const WITHOUT_THE_JOURNAL: u32 = 2;

/// The use that a new volume is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// One session, then the volume is thrown away. It has to be ready soon.
    OneSession,
    /// Many commits for which clients wait.
    Servers,
}

/// The image of a volume, locked against other sessions.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
}

impl Image {
    /// Makes a new volume, and allocates its room.
    pub fn create(path: &Path, bytes: u64, use_for: Use) -> Result<Image> {
        if bytes < BYTES_MIN {
            bail!("a volume of {} MiB is too small: at least {} MiB", bytes / MIB, BYTES_MIN / MIB);
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot create the volume {}", path.display()))?;
        let image = Image { file, path: path.to_owned() };
        let made = image.make(bytes, use_for);
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made.map(|()| image)
    }

    fn make(&self, bytes: u64, use_for: Use) -> Result<()> {
        self.lock()?;
        let kind = statfs(&self.path).with_context(|| format!("cannot ask about {}", self.path.display()))?.f_type;
        if IN_MEMORY.contains(&(kind as i64)) {
            bail!("{} would be in memory, and lost with it: put the volume on a disk", self.path.display());
        }
        // Fails on file systems that never copy on write, which does no harm.
        // SAFETY: the request reads one number, which outlives the call.
        unsafe { libc::ioctl(self.file.as_raw_fd(), SETFLAGS, &NO_COPY_ON_WRITE) };
        self.allocate(bytes)?;
        make_file_system(&self.path, bytes)?;
        self.write_journal(use_for)?;
        self.file.sync_all().with_context(|| format!("cannot flush {}", self.path.display()))?;
        sync_parent(&self.path)
    }

    /// Writes the journal once. Otherwise commits would also wait for the file system that holds the image.
    fn write_journal(&self, use_for: Use) -> Result<()> {
        let superblock = self.superblock()?;
        let shift = u32::from_le_bytes(superblock[BLOCK_SIZE_AT..BLOCK_SIZE_AT + 4].try_into().expect("four bytes"));
        let (code, said) = run("debugfs", &["-R".as_ref(), "blocks <8>".as_ref(), self.path.as_os_str()])?;
        // The output begins with standard error, on which debugfs prints its version. The list is on standard output.
        let list = said.lines().rfind(|line| line.starts_with(|c: char| c.is_ascii_digit())).unwrap_or_default();
        ensure!(code == 0, "debugfs could not look at {}: {said}", self.path.display());
        let bytes_max = match use_for {
            Use::OneSession => JOURNAL_WRITTEN_MIB_MIN * MIB,
            Use::Servers => u64::MAX,
        };
        journal_blocks::write_back(&self.file, list, 1024 << shift, bytes_max)
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        fallocate(&self.file, FallocateFlags::empty(), 0, bytes).with_context(|| {
            format!(
                "cannot allocate {} MiB for the volume {} (--size, or FILE:SIZE, makes another size, --place puts it elsewhere)",
                bytes / MIB,
                self.path.display()
            )
        })
    }

    /// Opens an existing volume. Repairs it if the kernel has found errors in it.
    pub fn open(path: &Path) -> Result<Image> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.with_context(|| format!("cannot open the volume {}", path.display()))?;
        let image = Image { file, path: path.to_owned() };
        image.lock()?;
        if !image.is_device() {
            wait_until_detached(&image.file, path)?;
        }
        let superblock = image.superblock()?;
        if superblock[MAGIC.0..MAGIC.0 + 2] != MAGIC.1 || !superblock[LABEL_AT..LABEL_AT + 16].starts_with(LABEL) {
            bail!(
                "{} is no volume of xsync (an ext4 file system with the label {}); --volume makes a file that does \
                 not exist yet",
                path.display(),
                String::from_utf8_lossy(LABEL)
            );
        }
        if superblock[STATE_AT] & HAS_ERRORS != 0 {
            tell(format_args!("{} has errors; repairing it by e2fsck", path.display()));
            image.check()?;
        }
        Ok(image)
    }

    fn superblock(&self) -> Result<[u8; 1024]> {
        let mut superblock = [0; 1024];
        match self.file.read_exact_at(&mut superblock, SUPERBLOCK_AT) {
            // The file is too short. Zeros do not have the magic number.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok([0; 1024]),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", self.path.display())),
            Ok(()) => Ok(superblock),
        }
    }

    /// Runs e2fsck with the repairs that it makes without asking.
    fn check(&self) -> Result<()> {
        // e2fsck returns 0 if nothing was wrong, 1 after a repair.
        let (code, said) = run("e2fsck", &["-f".as_ref(), "-p".as_ref(), self.path.as_os_str()])?;
        if code > 1 {
            bail!("{} cannot be repaired without asking; run `e2fsck {0}`: {said}", self.path.display());
        }
        Ok(())
    }

    /// Enlarges a volume to this size. A larger volume stays as it is.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let now = self.file.metadata()?.len();
        if self.is_device() || now >= bytes {
            return Ok(());
        }
        self.allocate(bytes)?;
        self.check()?;
        let (code, said) = run("resize2fs", &[self.path.as_os_str()])?;
        if code != 0 {
            bail!("resize2fs could not make {} larger: {said}", self.path.display());
        }
        Ok(())
    }

    fn lock(&self) -> Result<()> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{} belongs to another session; wait for its end", self.path.display()))
    }

    fn is_device(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
    }

    /// Removes the image durably.
    pub fn remove(self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot remove {}", self.path.display()))
            }
            // Another process may have removed it already.
            _ => sync_parent(&self.path),
        }
    }

    /// Mounts the volume at an existing directory of this mount namespace.
    pub fn mount(self, at: &Path) -> Result<Volume> {
        // Opens the file again: the loop device keeps its file open until the unmount, and the lock must be this
        // process's alone.
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        let disk = Disk::of(&file.with_context(|| format!("cannot open {}", self.path.display()))?, &self.path)?;
        let data = if holds(DATA_IN_THE_JOURNAL) { "journal" } else { "ordered" };
        let options = CString::new(format!("data={data},errors=remount-ro,barrier=1")).expect("no zero in it");
        let flags = MountFlags::NOATIME | MountFlags::NODEV;
        let mut mounted = mount(disk.path(), at, "ext4", flags, &*options);
        if mounted == Err(Errno::BADMSG) {
            // The superblock is the only block that ext4 writes in place. If a power cut tore it, a backup copy
            // replaces it.
            tell(format_args!("the superblock of {} is torn; repairing it by e2fsck", self.path.display()));
            repair_superblock(disk.path())?;
            mounted = mount(disk.path(), at, "ext4", flags, &*options);
        }
        mounted.with_context(|| format!("cannot mount the volume {} as ext4 with data={data}", self.path.display()))?;
        let root = File::open(at).context("the volume's directory")?;
        Ok(Volume { image: self, disk, at: at.to_owned(), root })
    }
}

/// A mounted volume.
#[derive(Debug)]
pub struct Volume {
    image: Image,
    disk: Disk,
    at: PathBuf,
    root: File,
}

impl Volume {
    /// The open root directory of the volume.
    pub fn root(&self) -> &File {
        &self.root
    }

    /// The mount point.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The file or device of the volume.
    pub fn path(&self) -> &Path {
        &self.image.path
    }

    /// Renames the image durably, within its directory.
    pub fn rename(&mut self, to: &Path) -> Result<()> {
        let from = &self.image.path;
        std::fs::rename(from, to).with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))?;
        self.image.path = to.to_owned();
        sync_parent(to)
    }

    /// The block device that is mounted.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Unmounts and removes the volume. Uncommitted changes are dropped, because they are not needed.
    pub fn throw_away(self) -> Result<()> {
        // If the kernel does not know the request, the unmount writes the changes first, which does no harm.
        // SAFETY: the request reads one number, which outlives the call.
        unsafe { libc::ioctl(self.root.as_raw_fd(), SHUTDOWN, &WITHOUT_THE_JOURNAL) };
        self.unmount()?.remove()
    }

    /// Unmounts the volume, which writes everything to the image.
    pub fn unmount(self) -> Result<Image> {
        drop(self.root);
        // Another process may be using the mount (`df`). The kernel then unmounts it when that process is done.
        unmount(&self.at, UnmountFlags::DETACH).with_context(|| format!("cannot unmount {}", self.at.display()))?;
        self.disk.wait_until_unmounted()?;
        Ok(self.image)
    }
}

/// Runs e2fsck, which restores the superblock from a copy and replays the journal.
fn repair_superblock(disk: &Path) -> Result<()> {
    let (code, said) = run("e2fsck", &["-f".as_ref(), "-y".as_ref(), disk.as_os_str()])?;
    ensure!(code <= 1, "e2fsck could not repair the superblock: {said}");
    Ok(())
}

fn make_file_system(path: &Path, bytes: u64) -> Result<()> {
    let journal = (bytes / MIB / 4).clamp(JOURNAL_MIB_MIN, JOURNAL_MIB_MAX);
    // Initializes all tables now, and keeps the room allocated. Sessions need one journal for everything, so fast
    // commits are off.
    let options = format!("size={journal}");
    let (code, said) = run(
        "mkfs.ext4",
        &[
            "-q".as_ref(),
            "-F".as_ref(),
            "-m".as_ref(),
            "0".as_ref(),
            "-L".as_ref(),
            OsStr::new("untorn-xsync"),
            "-O".as_ref(),
            "^fast_commit,^encrypt,^casefold,^verity".as_ref(),
            "-E".as_ref(),
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard".as_ref(),
            "-J".as_ref(),
            options.as_ref(),
            path.as_os_str(),
        ],
    )?;
    if code != 0 {
        bail!("mkfs.ext4 could not make the volume {}: {said}", path.display());
    }
    Ok(())
}

fn run(program: &str, arguments: &[&OsStr]) -> Result<(i32, String)> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).env("PATH", path).output();
    let output = output.with_context(|| format!("cannot run {program}; install the package e2fsprogs"))?;
    let said = [output.stderr, output.stdout].concat();
    Ok((output.status.code().unwrap_or(i32::MAX), String::from_utf8_lossy(&said).trim().to_owned()))
}

/// Flushes the directory of a file, which makes the names in it durable.
pub fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let open = File::open(parent).with_context(|| format!("cannot open {}", parent.display()))?;
    open.sync_all().with_context(|| format!("cannot flush {}", parent.display()))
}
