//! Loop devices, which make a block device of a file. The crates `libc` and `rustix` do not define their requests.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// Requests and flags of `<linux/loop.h>`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// The number of attempts to get a free device while other processes are faster.
const TRIES: usize = 200;

/// `struct loop_info64`.
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
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A file as a block device, which the kernel detaches when `device` is closed and nothing is mounted from it, even
/// after a kill.
#[derive(Debug)]
pub struct LoopDevice {
    /// The open block device.
    pub device: File,
    /// The path of the block device.
    pub path: PathBuf,
}

impl LoopDevice {
    /// Attaches a file. With `direct`, the device bypasses the page cache of the file's file system. `sector_bytes` is
    /// the device's logical block size; the kernel chooses it if it is 0.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `ENODEV` or `ENXIO`: this process can have no loop device, as in a container.
    pub fn attach(file: impl AsFd, direct: bool, sector_bytes: u32) -> io::Result<LoopDevice> {
        let control = open(CONTROL.as_ref())?;
        let flags = LO_FLAGS_AUTOCLEAR | if direct { LO_FLAGS_DIRECT_IO } else { 0 };
        let file = file.as_fd().as_raw_fd().cast_unsigned();
        let config = Config { file, block_size: sector_bytes, info: Info::new(flags), reserved: [0; 8] };
        let mut tries = 0;
        loop {
            // SAFETY: this request takes no argument.
            let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            // SAFETY: the request reads `config`, which has the layout of a `loop_config` and outlives the call.
            match checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }) {
                // Another process took the device first.
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) && tries < TRIES => tries += 1,
                configured => return configured.map(|_| LoopDevice { device, path }),
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Finds a loop device that a file is attached to, by the file's device and inode numbers.
pub fn loop_device_of(device: u64, inode: u64) -> Option<PathBuf> {
    let names = std::fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
    let names = names.filter(|name| name.to_string_lossy().starts_with("loop"));
    names.map(|name| Path::new("/dev").join(name)).find(|path| {
        let attached = Path::new("/sys/block").join(path.file_name().unwrap_or_default()).join("loop").exists();
        let Some(open) = attached.then(|| File::open(path).ok()).flatten() else { return false };
        let mut info = Info::new(0);
        // SAFETY: the request fills `info`, which has the layout of a `loop_info64` and outlives the call.
        let known = unsafe { libc::ioctl(open.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } == 0;
        known && info.device == device && info.inode == inode
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }

    #[test]
    fn a_file_is_a_device_until_the_device_is_closed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let numbers = file.metadata().map(|meta| (meta.dev(), meta.ino())).unwrap();
        let attached = match LoopDevice::attach(&file, false, 512) {
            Err(e) => return println!("skipped: needs loop devices ({e})"),
            Ok(attached) => attached,
        };
        assert_eq!(loop_device_of(numbers.0, numbers.1), Some(attached.path.clone()));
        // The kernel detaches it at the last close, for which another process that looks at all devices may be late.
        drop(attached);
        while loop_device_of(numbers.0, numbers.1).is_some() {
            std::thread::yield_now();
        }
    }
}
