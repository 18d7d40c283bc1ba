//! The file systems of the laboratory: creating, mounting, unmounting.

use super::disk_image::Image;
use super::loopback::Loop;
use super::memory_file::memory_file;
use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CString, OsString};
use std::fmt;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// A file system and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileSystem {
    /// ext4 with its default `data=ordered`: metadata in its journal, data written before it.
    Ext4,
    /// ext4 with data in its journal, too.
    Ext4Journal,
    /// ext4 that never flushes the disk: it is not safe, and the laboratory must detect that.
    Ext4NoBarrier,
    /// XFS with reflinks.
    Xfs,
    /// btrfs on one device.
    Btrfs,
}

/// The file systems on which programs are tested.
pub const SOUND: [FileSystem; 4] = [FileSystem::Ext4, FileSystem::Ext4Journal, FileSystem::Xfs, FileSystem::Btrfs];

impl FileSystem {
    /// The name for reports and options.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Ext4Journal => "ext4-journal",
            FileSystem::Ext4NoBarrier => "ext4-nobarrier",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    fn kernel_name(self) -> &'static str {
        match self {
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            _ => "ext4",
        }
    }

    /// The program that creates it.
    pub fn mkfs(self) -> String {
        format!("mkfs.{}", self.kernel_name())
    }

    /// The smallest disk on which it can be created, in bytes.
    pub fn bytes_min(self) -> u64 {
        match self {
            FileSystem::Xfs => 300 << 20,
            FileSystem::Btrfs => 128 << 20,
            _ => 64 << 20,
        }
    }

    /// The range of its superblock on the disk.
    pub fn superblock(self) -> Range<u64> {
        match self {
            FileSystem::Xfs => 0..512,
            FileSystem::Btrfs => 65536..65536 + 4096,
            _ => 0..4096,
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            FileSystem::Xfs => &["-q", "-f", "-K", "-m", "reflink=1"],
            FileSystem::Btrfs => &["-q", "-f", "-K"],
            // Initialises everything now, so that the kernel writes nothing of it later, during the recording.
            _ => &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
        }
    }

    fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "data=ordered",
            FileSystem::Ext4Journal => "data=journal",
            FileSystem::Ext4NoBarrier => "barrier=0",
            FileSystem::Xfs => "nouuid",
            FileSystem::Btrfs => "",
        }
    }

    /// Creates a file system in an image.
    pub fn make(self, bytes: u64) -> Result<Image> {
        let file = memory_file("image")?;
        file.set_len(bytes.max(self.bytes_min()))?;
        let device = Loop::attach(&file, false).context("no loop device")?;
        let mut command = Command::new(self.mkfs());
        command.args(self.arguments()).arg(device.path()).stdin(Stdio::null()).env("PATH", program_path());
        let output = command.output().with_context(|| format!("cannot run {}", self.mkfs()))?;
        if !output.status.success() {
            bail!("{} failed: {}", self.mkfs(), String::from_utf8_lossy(&output.stderr).trim());
        }
        device.forget_cache()?;
        Ok(Image::load(&file)?)
    }

    /// Mounts a device; the kernel recovers the file system here.
    pub fn mount(self, device: &Path, at: &Path) -> Result<()> {
        self.mount_by(device, at, self.options())
    }

    /// Mounts a device that is not recorded and never loses power. File systems that can do so run without flushes,
    /// each of which would wait for several threads of the kernel.
    pub fn mount_for_once(self, device: &Path, at: &Path) -> Result<()> {
        let unflushed = match self {
            FileSystem::Ext4 => "data=ordered,barrier=0",
            FileSystem::Ext4Journal => "data=journal,barrier=0",
            FileSystem::Btrfs => "nobarrier",
            FileSystem::Ext4NoBarrier | FileSystem::Xfs => self.options(),
        };
        self.mount_by(device, at, unflushed)
    }

    fn mount_by(self, device: &Path, at: &Path, options: &str) -> Result<()> {
        if self == FileSystem::Btrfs {
            forget_btrfs_devices();
        }
        let options = CString::new(options).expect("a constant");
        mount(device, at, self.kernel_name(), MountFlags::empty(), &*options)
            .with_context(|| format!("{} cannot be mounted", self.name()))
    }
}

/// The search path of programs, including those of the system's administrator.
pub(in crate::device) fn program_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Unmounts; waits until the kernel has written everything.
pub fn unmount_now(at: &Path) -> Result<()> {
    let mut tries = 0;
    loop {
        match unmount(at, UnmountFlags::empty()) {
            // A process that has just ended may still use it briefly.
            Err(rustix::io::Errno::BUSY) if tries < 200 => tries += 1,
            done => return done.with_context(|| format!("cannot unmount {}", at.display())),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Makes the kernel forget its btrfs devices; otherwise it takes an older image of the same file system for an error.
fn forget_btrfs_devices() {
    /// BTRFS_IOC_FORGET_DEV; an empty name means all devices that are not mounted.
    const FORGET: libc::Ioctl = 0x5000_9405;
    if let Ok(control) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/btrfs-control") {
        let arguments = [0u8; 4096];
        // SAFETY: the kernel only reads a `btrfs_ioctl_vol_args`, which is 4096 bytes of a number and a name.
        unsafe { libc::ioctl(control.as_raw_fd(), FORGET, &arguments) };
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = String;

    fn from_str(name: &str) -> Result<FileSystem, String> {
        let all = SOUND.into_iter().chain([FileSystem::Ext4NoBarrier]);
        let names: Vec<_> = all.clone().map(FileSystem::name).collect();
        all.into_iter().find(|fs| fs.name() == name).ok_or_else(|| format!("`{name}` is none of {}", names.join(", ")))
    }
}
