//! Loop devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const BLKFLSBUF: libc::Ioctl = 0x1261;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// `struct loop_info64` of `<linux/loop.h>`.
#[repr(C)]
struct Info {
    ids: [u64; 3],
    offset: u64,
    size_limit: u64,
    numbers: [u32; 3],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A file as a block device. It detaches itself when this is dropped and nothing is mounted from it.
pub struct Loop {
    device: File,
    path: PathBuf,
}

impl Loop {
    /// Attaches a file; `direct` passes by the page cache of its file system.
    pub fn attach(file: &File, direct: bool) -> io::Result<Loop> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let flags = AUTOCLEAR | if direct { DIRECT_IO } else { 0 };
        let mut tries = 0;
        loop {
            // SAFETY: this request takes no argument.
            let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
            match Loop::configure(PathBuf::from(format!("/dev/loop{number}")), file, flags) {
                // Another process took the device first.
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < 100 => tries += 1,
                done => return done,
            }
        }
    }

    fn configure(path: PathBuf, file: &File, flags: u32) -> io::Result<Loop> {
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let info =
            Info { ids: [0; 3], offset: 0, size_limit: 0, numbers: [0; 3], flags, names: [0; 160], init: [0; 2] };
        let config = Config { fd: file.as_raw_fd() as u32, block_size: 512, info, reserved: [0; 8] };
        // SAFETY: the kernel only reads a `loop_config`, whose layout `Config` has.
        checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) })?;
        Ok(Loop { device, path })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets what is cached of the device: its file was changed beneath it.
    pub fn forget_cache(&self) -> io::Result<()> {
        // SAFETY: this request takes no argument.
        checked(unsafe { libc::ioctl(self.device.as_raw_fd(), BLKFLSBUF, 0) }).map(|_| ())
    }
}

fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<super::Info>(), 232);
        assert_eq!(size_of::<super::Config>(), 304);
    }
}
