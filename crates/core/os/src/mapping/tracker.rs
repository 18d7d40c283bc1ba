//! Finds the pages of a private mapping that were stored to.
//!
//! Both ways query `/proc/self/pagemap`. [`PageMap`] reads it, or lets the kernel search it where that is possible: a
//! present page of a private mapping that is not a page of a file was stored to. [`Scan`] lets the kernel write-protect
//! pages, without a handler, and report those that lost the protection (`PAGEMAP_SCAN`, Linux 6.7).

use crate::descriptors::descriptor::Fd;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Entries that are read at once.
const ENTRIES: usize = 4096;
/// Limit for the ranges that one scan reports.
const REGIONS: usize = 512;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// `/proc/self/pagemap`.
pub(crate) struct PageMap {
    fd: Fd,
}

/// Appends a range of addresses, joined with the previous one if they are adjacent.
fn push(into: &mut Vec<Range<u64>>, range: Range<u64>) {
    match into.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => into.push(range),
    }
}

impl PageMap {
    pub fn open() -> io::Result<PageMap> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(PageMap { fd: Fd::open(|| fs::open("/proc/self/pagemap", flags, Mode::empty()))? })
    }

    /// Appends the addresses of pages that were stored to and are present or in swap.
    pub fn private(&self, addresses: Range<u64>, page: u64, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let mut found = Vec::new();
        let pages = ScanArg {
            category_inverted: PAGE_IS_FILE,
            category_mask: PAGE_IS_FILE,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArg::default()
        };
        match self.scan_all(addresses.clone(), pages, &mut found) {
            Ok(()) => {
                found.into_iter().for_each(|range| push(into, range));
                Ok(())
            }
            // Before Linux 6.7, the entry of every page is read, also in holes.
            Err(_) => self.private_by_reading(addresses, page, into),
        }
    }

    /// Appends the addresses of pages with small entries in the page table, or in swap, that no `userfaultfd` watches.
    pub fn small_unwatched(&self, addresses: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let small = ScanArg {
            category_inverted: PAGE_IS_HUGE | PAGE_IS_WPALLOWED,
            category_mask: PAGE_IS_HUGE | PAGE_IS_WPALLOWED,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArg::default()
        };
        self.scan_all(addresses, small, into)
    }

    /// Appends like [`PageMap::small_unwatched`], with watched pages as well.
    #[cfg(test)]
    pub fn small(&self, addresses: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let small = ScanArg {
            category_inverted: PAGE_IS_HUGE,
            category_mask: PAGE_IS_HUGE | PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        self.scan_all(addresses, small, into)
    }

    fn private_by_reading(&self, addresses: Range<u64>, page: u64, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let mut entries = vec![0u64; ENTRIES.min(((addresses.end - addresses.start) / page) as usize)];
        let mut at = addresses.start;
        while at < addresses.end {
            let n = entries.len().min(((addresses.end - at) / page) as usize);
            // SAFETY: the bytes of `u64`s, all of which are valid whatever they hold.
            let bytes = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), n * 8) };
            let fd = self.fd.get()?;
            let got = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *bytes, at / page * 8))?;
            if got < 8 {
                return Err(Errno::IO.into());
            }
            for entry in &entries[..got / 8] {
                if entry & (PRESENT | SWAPPED) != 0 && entry & OF_A_FILE == 0 {
                    push(into, at..at + page);
                }
                at += page;
            }
        }
        Ok(())
    }

    /// Appends the addresses of pages that match a query. Holes cost nothing.
    fn scan_all(&self, addresses: Range<u64>, question: ScanArg, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.scan_each(addresses, question, u64::MAX, &mut |range| push(into, range))
    }

    /// Finds pages like [`PageMap::scan_all`], ends after `most` pages, and allocates nothing.
    fn scan_each(
        &self,
        addresses: Range<u64>,
        question: ScanArg,
        most: u64,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        let mut found = [Region::default(); REGIONS];
        let (mut start, mut left) = (addresses.start, most);
        while start < addresses.end && left > 0 {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start,
                end: addresses.end,
                vec: found.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: left,
                ..question
            };
            let n = self.scan(&mut arg)?;
            for r in &found[..n] {
                left -= ((r.end - r.start) / rustix::param::page_size() as u64).min(left);
                each(r.start..r.end);
            }
            // The kernel stops when its vector is full.
            if arg.walk_end <= start {
                break;
            }
            start = arg.walk_end;
        }
        Ok(())
    }

    fn scan(&self, arg: &mut ScanArg) -> io::Result<usize> {
        loop {
            // SAFETY: the argument is laid out as the kernel wants it, and its vector is live.
            let n = unsafe { ioctl(self.fd.get()?.as_raw_fd(), PAGEMAP_SCAN, (&raw mut *arg).cast()) };
            match (n, io::Error::last_os_error()) {
                (0.., _) => return Ok(n as usize),
                (_, e) if e.kind() == io::ErrorKind::Interrupted => {}
                (_, e) => return Err(e),
            }
        }
    }
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xC060_6610_u32 as libc::Ioctl;
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WPALLOWED: u64 = 1 << 0;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_HUGE: u64 = 1 << 6;

const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;

/// A `userfaultfd` that write-protects pages without a handler.
pub(crate) struct Scan {
    uffd: Fd,
}

impl Scan {
    /// Opens one. `EOPNOTSUPP` where the kernel does not support or does not allow it.
    pub fn open() -> io::Result<Scan> {
        static WORKS: OnceLock<bool> = OnceLock::new();
        if *WORKS.get_or_init(|| trial().unwrap_or(false)) {
            // A filter of system calls may have been installed since.
            Scan::open_untried().map_err(|e| match Errno::from_io_error(&e) {
                Some(Errno::NOSYS | Errno::PERM) => Errno::OPNOTSUPP.into(),
                _ => e,
            })
        } else {
            Err(Errno::OPNOTSUPP.into())
        }
    }

    fn open_untried() -> io::Result<Scan> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        let uffd = Fd::open(|| {
            // SAFETY: a system call without pointers.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            // SAFETY: a descriptor that the kernel has just made.
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
        })?;
        let mut api = [UFFD_API, UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED, 0];
        // SAFETY: three 64-bit fields, as `struct uffdio_api` has.
        if unsafe { ioctl(uffd.get()?.as_raw_fd(), UFFDIO_API, api.as_mut_ptr().cast()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Scan { uffd })
    }

    /// Starts to track stores to these addresses. Must be called again after each mapping there.
    pub fn watch(&self, addresses: Range<u64>) -> io::Result<()> {
        let mut register = [addresses.start, addresses.end - addresses.start, UFFDIO_REGISTER_MODE_WP, 0];
        // SAFETY: four 64-bit fields, as `struct uffdio_register` has.
        match unsafe { ioctl(self.uffd.get()?.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr().cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Appends the addresses of unprotected entries, including holes, and of unwatched pages. Changes nothing.
    pub fn unprotected(&self, pagemap: &PageMap, addresses: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let unprotected =
            ScanArg { category_mask: PAGE_IS_WRITTEN, return_mask: PAGE_IS_WRITTEN, ..ScanArg::default() };
        pagemap.scan_all(addresses, unprotected, into)
    }

    /// Appends the addresses of pages that were stored to since the last call, and of pages of a file that were read
    /// since then; then protects them. Holes are left alone, because protecting them would cost page tables.
    pub fn stored(&self, pagemap: &PageMap, addresses: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let stored = ScanArg {
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            category_mask: PAGE_IS_WRITTEN,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_WRITTEN,
            ..ScanArg::default()
        };
        pagemap.scan_all(addresses, stored, into)
    }

    /// Finds pages like [`Scan::stored`], in shared memory, where a page may have left the page table after a store: a
    /// hole counts once as stored to, and is then protected. Ends after `most` pages, and leaves the pages behind them
    /// unchanged. Allocates nothing.
    pub fn stored_or_absent(
        &self,
        pagemap: &PageMap,
        addresses: Range<u64>,
        most: u64,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        let stored = ScanArg {
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            category_mask: PAGE_IS_WRITTEN,
            return_mask: PAGE_IS_WRITTEN,
            ..ScanArg::default()
        };
        pagemap.scan_each(addresses, stored, most, each)
    }
}

/// Tests on a new mapping whether stores are found.
fn trial() -> io::Result<bool> {
    let (scan, pagemap) = (Scan::open_untried()?, PageMap::open()?);
    let page = rustix::param::page_size();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new anonymous mapping.
    let base = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), page, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    let addresses = base as u64..base as u64 + page as u64;
    let small = || {
        let mut found = Vec::new();
        pagemap.small_unwatched(addresses.clone(), &mut found).map(|()| found.len())
    };
    let try_it = || {
        let mut counts = vec![small()?];
        // SAFETY: the first byte of the page mapped above.
        unsafe { base.cast::<u8>().write_volatile(1) };
        counts.push(small()?);
        scan.watch(addresses.clone())?;
        counts.push(small()?);
        for store in [true, false, true] {
            if store {
                // SAFETY: the first byte of the page mapped above.
                unsafe { base.cast::<u8>().write_volatile(1) };
            }
            let mut found = Vec::new();
            scan.stored(&pagemap, addresses.clone(), &mut found)?;
            counts.push(found.len());
        }
        Ok(counts == [0, 1, 0, 1, 0, 1])
    };
    let works = try_it();
    // SAFETY: the page mapped above, which nobody uses any more.
    unsafe { mm::munmap(base, page)? };
    works
}

/// `ioctl` past the C library: MemorySanitizer, which sees only stores of C code, would check the argument.
///
/// # Safety
/// The requirements of the request apply.
unsafe fn ioctl(fd: i32, request: libc::Ioctl, argument: *mut libc::c_void) -> libc::c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn private_pages_are_the_same_asked_or_read() {
        const PAGES: usize = 3000;
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; PAGES * page]).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), PAGES * page, both, MapFlags::PRIVATE, &file, 0).unwrap() };
        let stored: Vec<usize> = (0..PAGES).filter(|n| n % 5 == 0 || n % 1000 < 9).collect();
        for n in 0..PAGES {
            // SAFETY: inside the mapping made above.
            unsafe {
                let at = base.cast::<u8>().add(n * page);
                if stored.binary_search(&n).is_ok() {
                    at.write_volatile(2);
                } else if n % 2 == 0 {
                    at.read_volatile();
                }
            }
        }
        let (pagemap, start) = (PageMap::open().unwrap(), base as u64);
        let (mut asked, mut read) = (Vec::new(), Vec::new());
        let addresses = start..start + (PAGES * page) as u64;
        pagemap.private(addresses.clone(), page as u64, &mut asked).unwrap();
        pagemap.private_by_reading(addresses, page as u64, &mut read).unwrap();
        let mut wanted = Vec::new();
        stored.iter().for_each(|n| push(&mut wanted, start + (n * page) as u64..start + ((n + 1) * page) as u64));
        assert_eq!(read, wanted);
        assert_eq!(asked, wanted);
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { mm::munmap(base, PAGES * page).unwrap() };
    }
}
