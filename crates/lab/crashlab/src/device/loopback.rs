//! Loop devices.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use untorn_os::LoopDevice;

const BLKFLSBUF: libc::Ioctl = 0x1261;
/// cachestat(2), which has the same number on all architectures except alpha.
const CACHESTAT: libc::c_long = 451;
const SECTOR_BYTES: u32 = 512;

/// A file as a block device. It detaches itself when this is dropped and nothing is mounted from it.
pub struct Loop(LoopDevice);

impl Loop {
    /// Attaches a file; with `direct`, the device bypasses the page cache of the file's file system.
    pub fn attach(file: &File, direct: bool) -> io::Result<Loop> {
        LoopDevice::attach(file, direct, SECTOR_BYTES).map(Loop)
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Writes back and drops the device's page cache. Returns whether nothing is left in the cache: the kernel skips a
    /// page that somebody uses at that moment, and if it cannot count the pages, the answer is unknown (false).
    pub fn forget_cache(&self) -> io::Result<bool> {
        // SAFETY: this request takes no argument.
        if unsafe { libc::ioctl(self.0.device.as_raw_fd(), BLKFLSBUF, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let (range, mut pages) = ([0u64; 2], [0u64; 5]);
        // SAFETY: the kernel reads a `cachestat_range`, two numbers, and writes a `cachestat`, five.
        let done = unsafe { libc::syscall(CACHESTAT, self.0.device.as_raw_fd(), &range, &mut pages, 0) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{memory_file, watch};
    use std::os::unix::fs::FileExt;

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
            device.0.device.read_exact_at(&mut byte, at as u64).unwrap();
            byte[0]
        };
        // SAFETY: a new mapping of one page, which is only read.
        let held = unsafe {
            let fd = device.0.device.as_raw_fd();
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
