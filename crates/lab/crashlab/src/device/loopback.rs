//! Loop devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const BLKFLSBUF: libc::Ioctl = 0x1261;
/// cachestat(2), which has the same number on all architectures except alpha.
const CACHESTAT: libc::c_long = 451;
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
    /// Attaches a file; with `direct`, the device bypasses the page cache of the file's file system.
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

    /// Writes back and drops the device's page cache. Returns whether nothing is left in the cache: the kernel skips a
    /// page that somebody uses at that moment, and if it cannot count the pages, the answer is unknown (false).
    pub fn forget_cache(&self) -> io::Result<bool> {
        // SAFETY: this request takes no argument.
        checked(unsafe { libc::ioctl(self.device.as_raw_fd(), BLKFLSBUF, 0) })?;
        let (range, mut pages) = ([0u64; 2], [0u64; 5]);
        // SAFETY: the kernel reads a `cachestat_range`, two numbers, and writes a `cachestat`, five.
        let done = unsafe { libc::syscall(CACHESTAT, self.device.as_raw_fd(), &range, &mut pages, 0) };
        Ok(done == 0 && pages[0] == 0)
    }

    /// Returns this device, or another one for the file, with nothing in its page cache; the file may have had any
    /// contents. Also returns whether it is another device. The device must not be mounted.
    pub fn emptied(self, file: &File) -> io::Result<(Loop, bool)> {
        if self.forget_cache()? {
            return Ok((self, false));
        }
        // Pages in use stay with the old device.
        drop(self);
        Ok((Loop::attach(file, false)?, true))
    }
}

fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{memory_file, watch};
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }

    #[test]
    fn what_a_file_held_before_is_not_shown_even_if_something_holds_its_page() {
        if let Some(why) = watch::missing(&[]) {
            return println!("skipped: {why}");
        }
        const PAGE: usize = 4096;
        let file = memory_file("test").unwrap();
        file.write_all_at(&[1; 4 * PAGE], 0).unwrap();
        let device = Loop::attach(&file, false).unwrap();
        let shown = |device: &Loop, at: usize| {
            let mut byte = [0];
            device.device.read_exact_at(&mut byte, at as u64).unwrap();
            byte[0]
        };
        // SAFETY: a new mapping of one page, which is only read.
        let held = unsafe {
            let fd = device.device.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, PAGE as libc::off_t)
        };
        assert_ne!(held, libc::MAP_FAILED);
        // SAFETY: mapped above.
        assert_eq!(unsafe { held.cast::<u8>().read_volatile() }, 1);

        file.write_all_at(&[2; 4 * PAGE], 0).unwrap();
        assert!(!device.forget_cache().unwrap());
        assert_eq!((shown(&device, 0), shown(&device, PAGE)), (2, 1), "the page that is held is an old one");
        let (device, is_another) = device.emptied(&file).unwrap();
        assert_eq!((shown(&device, 0), shown(&device, PAGE), is_another), (2, 2, true));
        // SAFETY: mapped above, and not used after this.
        assert_eq!(unsafe { libc::munmap(held, PAGE) }, 0);
        file.write_all_at(&[3; 4 * PAGE], 0).unwrap();
        let (device, _) = device.emptied(&file).unwrap();
        assert_eq!(shown(&device, PAGE), 3);
    }
}
