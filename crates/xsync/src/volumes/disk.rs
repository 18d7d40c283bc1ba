//! The disk of a volume: a block device, or a loop device for a file.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_os::{LoopDevice, loop_device_of};

/// After a session was killed, the kernel needs a moment to unmount its volume.
const LEFT_BEHIND_TIME_MAX: Duration = Duration::from_secs(10);

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
        let LoopDevice { device, path } = LoopDevice::attach(file, true, 0)
            .or_else(|_| LoopDevice::attach(file, false, 0))
            .context("no loop device; run as root on a machine with /dev/loop-control")?;
        Ok(Disk { device, path })
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

/// Waits until no loop device uses this file, because two mounts of one image would destroy it.
pub fn wait_until_detached(file: &File, path: &Path) -> Result<()> {
    let meta = file.metadata()?;
    let started = Instant::now();
    while let Some(device) = loop_device_of(meta.dev(), meta.ino()) {
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
