//! Loop devices, which make a disk of a file.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;
/// The number of attempts to get a free device while other processes are faster.
const TRIES: usize = 200;
/// After a session was killed, the kernel needs a moment to unmount its volume.
const LEFT_BEHIND_TIME_MAX: Duration = Duration::from_secs(10);

/// `struct loop_info64` of `<linux/loop.h>`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers: [u32; 3],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

impl Info {
    fn new(flags: u32) -> Info {
        let [device, inode, rdevice, offset, size_limit] = [0; 5];
        Info { device, inode, rdevice, offset, size_limit, numbers: [0; 3], flags, names: [0; 160], init: [0; 2] }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A disk that can be mounted. A loop device detaches itself when this value is dropped and nothing is mounted from it.
#[derive(Debug)]
pub struct Disk {
    device: File,
    path: PathBuf,
}

impl Disk {
    /// The disk of a volume: a block device itself, or a loop device for a file.
    pub fn of(file: &File, path: &Path) -> Result<Disk> {
        if file.metadata()?.file_type().is_block_device() {
            // The kernel names a journal after the device, not after a link to it.
            return Ok(Disk { device: file.try_clone()?, path: std::fs::canonicalize(path)? });
        }
        // Some file systems have no direct I/O. A flush reaches the disk with and without it.
        attach(file, AUTOCLEAR | DIRECT_IO)
            .or_else(|_| attach(file, AUTOCLEAR))
            .context("no loop device; run as root on a machine with /dev/loop-control")
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the disk is not mounted any more.
    pub fn wait_until_unmounted(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.path) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) && started.elapsed() < LEFT_BEHIND_TIME_MAX => {}
                done => {
                    return done.map(drop).with_context(|| format!("{} is still mounted", self.path.display()));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> Result<u64> {
        Ok(rustix::fs::seek(&self.device, rustix::fs::SeekFrom::End(0))?)
    }
}

fn attach(file: &File, flags: u32) -> io::Result<Disk> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut tries = 0;
    loop {
        // SAFETY: this request takes no argument.
        let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
        match configure(PathBuf::from(format!("/dev/loop{number}")), file, flags) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

fn configure(path: PathBuf, file: &File, flags: u32) -> io::Result<Disk> {
    let device = OpenOptions::new().read(true).write(true).open(&path)?;
    let config = Config { fd: file.as_raw_fd() as u32, block_size: 0, info: Info::new(flags), reserved: [0; 8] };
    // SAFETY: the request reads `config`, which outlives the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) })?;
    Ok(Disk { device, path })
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Waits until no loop device uses this file, because two mounts of one image would destroy it.
pub fn wait_until_detached(file: &File, path: &Path) -> Result<()> {
    let meta = file.metadata()?;
    let started = Instant::now();
    while let Some(device) = loop_of(meta.dev(), meta.ino()) {
        if started.elapsed() > LEFT_BEHIND_TIME_MAX {
            bail!(
                "{} is in use as {}; unmount it there first (`losetup -a` shows it)",
                path.display(),
                device.display()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn loop_of(device: u64, inode: u64) -> Option<PathBuf> {
    let names = std::fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
    let names = names.filter(|name| name.to_string_lossy().starts_with("loop"));
    names.map(|name| Path::new("/dev").join(name)).find(|path| {
        let attached = Path::new("/sys/block").join(path.file_name().unwrap_or_default()).join("loop").exists();
        let Some(open) = attached.then(|| File::open(path).ok()).flatten() else { return false };
        let mut info = Info::new(0);
        // SAFETY: the request fills `info`, which outlives the call.
        let known = unsafe { libc::ioctl(open.as_raw_fd(), LOOP_GET_STATUS64, &mut info) } == 0;
        known && info.device == device && info.inode == inode
    })
}
