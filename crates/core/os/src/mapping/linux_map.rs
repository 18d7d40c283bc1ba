//! Private mappings on Linux.

use crate::descriptors::descriptor::{Fd, above_standard};
use crate::descriptors::fork::process_generation;
use crate::mapping::chunk_scan::ChunkScan;
use crate::mapping::tracker::PageMap;
use crate::mapping::{MapRequest, Mapping, Piece, TrackerKind};
use rustix::fs::{self, AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Limit for the pieces in one call of `process_vm_writev` (`IOV_MAX`).
const PIECES_MOST: usize = 1024;

pub(crate) struct LinuxMapping {
    base: *mut u8,
    bytes: u64,
    pid: libc::pid_t,
    generation: u64,
    page_bytes: u64,
    protection: ProtFlags,
    huge_pages: bool,
    file: Fd,
    /// `None` is possible with the tracker `explicit` only, which does not need it.
    pagemap: Option<PageMap>,
    scan: Option<ChunkScan>,
    explicit: bool,
}

// SAFETY: the address is only handed out and given to the kernel, which does its own locking.
unsafe impl Send for LinuxMapping {}
// SAFETY: as above.
unsafe impl Sync for LinuxMapping {}

/// Opens another description of the same file. A mapping may outlive a claim on the file, and keeps its description
/// open, in forked children, too. A private mapping needs read access only.
fn reopen(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(above_standard(|| fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?)
}

/// Whether pages of the file are mapped from byte-addressable memory. There `userfaultfd` must protect nothing: an access
/// to a protected page that is not in the page table faults for ever, as `dax` does not replace the mark of the protection
/// (seen on Linux 6.12).
fn is_dax(file: &Fd) -> bool {
    let found = file.own().map(|file| fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE));
    matches!(found, Ok(Ok(found)) if found.stx_attributes.contains(StatxAttributes::DAX))
}

/// Opens the memory of this process as a file.
fn own_memory(access: OFlags) -> io::Result<OwnedFd> {
    Ok(above_standard(|| fs::open("/proc/self/mem", access | OFlags::CLOEXEC, Mode::empty()))?)
}

impl LinuxMapping {
    pub(crate) fn new(file: BorrowedFd<'_>, request: &MapRequest) -> io::Result<LinuxMapping> {
        LinuxMapping::of(reopen(file)?, request)
    }

    /// Makes a mapping like [`LinuxMapping::new`], from a description of the file that the mapping takes over.
    pub(crate) fn of(file: OwnedFd, request: &MapRequest) -> io::Result<LinuxMapping> {
        let page_bytes = rustix::param::page_size() as u64;
        let bytes = request.address_space.max(1).checked_next_multiple_of(page_bytes).ok_or(Errno::NOMEM)?;
        let len = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        let file = Fd::new(file)?;
        let explicit = request.tracker == Some(TrackerKind::Explicit);
        let pagemap = PageMap::open().map(Some).or_else(|e| if explicit { Ok(None) } else { Err(e) })?;
        let scan = match request.tracker {
            Some(TrackerKind::PageMap | TrackerKind::Explicit) => None,
            Some(TrackerKind::Scan) if is_dax(&file) => return Err(Errno::OPNOTSUPP.into()),
            Some(TrackerKind::Scan) => Some(ChunkScan::open()?),
            None if is_dax(&file) => None,
            None => ChunkScan::open().ok(),
        };
        let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let mut at = std::ptr::null_mut();
        if let Some(address) = request.address {
            flags |= MapFlags::FIXED_NOREPLACE;
            at = address as *mut c_void;
        }
        // SAFETY: a new mapping; FIXED_NOREPLACE never replaces another.
        let base = unsafe { mm::mmap_anonymous(at, len, ProtFlags::empty(), flags)? }.cast::<u8>();
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, !request.read_only);
        let huge_pages = request.huge_pages;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let mapping = LinuxMapping {
            base,
            bytes,
            pid,
            generation: process_generation(),
            page_bytes,
            protection,
            huge_pages,
            file,
            pagemap,
            scan,
            explicit,
        };
        // Kernels before 4.17 treat the address as a hint.
        if request.address.is_some_and(|address| address != base as usize) {
            return Err(Errno::EXIST.into());
        }
        Ok(mapping)
    }

    /// The id of this process. A forked child must not reach into its parent.
    fn pid(&self) -> io::Result<libc::pid_t> {
        if self.generation == process_generation() { Ok(self.pid) } else { Err(Errno::BADF.into()) }
    }

    fn addresses(&self, range: &Range<u64>) -> Range<u64> {
        assert!(range.start <= range.end && range.end <= self.bytes, "a range inside the reserved addresses");
        let base = self.base as u64;
        base + range.start..base + range.end
    }

    /// Address and length of a range of whole pages that is to be mapped again.
    fn address_and_len(&self, range: &Range<u64>) -> (*mut c_void, usize) {
        debug_assert!((range.start | range.end).is_multiple_of(self.page_bytes));
        let addresses = self.addresses(range);
        (addresses.start as *mut c_void, (range.end - range.start) as usize)
    }

    fn pagemap(&self) -> io::Result<&PageMap> {
        self.pagemap.as_ref().ok_or_else(|| Errno::OPNOTSUPP.into())
    }

    /// Starts tracking a range that was just mapped.
    fn watch(&self, range: &Range<u64>) -> io::Result<()> {
        match &self.scan {
            Some(scan) => scan.watch(self.addresses(range)),
            None => Ok(()),
        }
    }

    /// Maps a range of a file in memory, at an offset of that file. Stores reach the file at once. `how` is
    /// `MapFlags::SHARED`, or the flags of memory whose stores need no call to be durable.
    pub(crate) fn map_shared(&self, range: Range<u64>, offset: u64, how: MapFlags) -> io::Result<()> {
        let (at, len) = self.address_and_len(&range);
        // SAFETY: as in `show`.
        unsafe { mm::mmap(at, len, self.protection, how | MapFlags::FIXED, self.file.own()?, offset)? };
        // SAFETY: the range just mapped. A forked child is another process, and stores to no memory of its parent.
        let _ = unsafe { mm::madvise(at, len, Advice::LinuxDontFork) };
        self.watch(&range)
    }

    /// Finds pages like [`Mapping::changed`], of shared memory: pages that are not in the page table may have been
    /// stored to. Ends after `most` pages. If stores cannot be tracked, reports every page. Allocates nothing, and
    /// takes no lock.
    pub(crate) fn changed_or_absent(
        &self,
        within: Range<u64>,
        most: u64,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        if within.is_empty() {
            return Ok(());
        }
        let Some(scan) = &self.scan else {
            each(within);
            return Ok(());
        };
        let base = self.base as u64;
        let mut offsets = |found: Range<u64>| each(found.start - base..found.end - base);
        scan.changed_or_absent(self.pagemap()?, self.addresses(&within), most, &mut offsets)
    }

    /// Appends ranges of addresses as ranges of offsets.
    fn offsets(&self, addresses: Vec<Range<u64>>, into: &mut Vec<Range<u64>>) {
        let base = self.base as u64;
        into.extend(addresses.into_iter().map(|r| r.start - base..r.end - base));
    }

    /// Copies out through `/proc/self/mem`, if a filter forbids `process_vm_writev`.
    fn copy_out_by_file(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let memory = own_memory(OFlags::RDONLY)?;
        for piece in pieces {
            let mut done = 0;
            while done < piece.into.len() {
                let at = self.base as u64 + piece.offset + done as u64;
                match rustix::io::pread(&memory, &mut piece.into[done..], at) {
                    Ok(0) | Err(Errno::IO) => return Err(Errno::FAULT.into()),
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    fn copy_in_by_file(&self, offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        let memory = own_memory(OFlags::RDWR)?;
        let mut at = self.base as u64 + offset;
        while !bytes.is_empty() {
            match rustix::io::pwrite(&memory, bytes, at) {
                Ok(0) | Err(Errno::IO) => return Err(Errno::FAULT.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    at += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

impl Mapping for LinuxMapping {
    fn address(&self) -> *mut u8 {
        self.base
    }

    fn address_space(&self) -> u64 {
        self.bytes
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn tracker(&self) -> TrackerKind {
        match (&self.scan, self.explicit) {
            (_, true) => TrackerKind::Explicit,
            (Some(_), false) => TrackerKind::Scan,
            (None, false) => TrackerKind::PageMap,
        }
    }

    fn show(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = self.address_and_len(&range);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is a part of this mapping's reservation. The holders of pointers into it were told that its
        // contents follow the file's.
        unsafe { mm::mmap(at, len, self.protection, flags, self.file.own()?, range.start)? };
        if self.huge_pages {
            // SAFETY: the range just mapped. It is only advice, which kernels without huge pages refuse.
            let _ = unsafe { mm::madvise(at, len, Advice::LinuxHugepage) };
        }
        match &self.scan {
            Some(scan) => scan.shows_file(self.addresses(&range)),
            None => Ok(()),
        }
    }

    fn blank(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = self.address_and_len(&range);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `show`.
        unsafe { mm::mmap_anonymous(at, len, self.protection, flags)? };
        // Where the kernel uses huge pages unasked, the first store to one would change 512 pages.
        // SAFETY: the range just mapped. It is only advice, which kernels without huge pages refuse.
        let _ = unsafe { mm::madvise(at, len, Advice::LinuxNoHugepage) };
        self.watch(&range)
    }

    fn hide(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = self.address_and_len(&range);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `show`.
        unsafe { mm::mmap_anonymous(at, len, ProtFlags::empty(), flags)? };
        self.scan.iter().for_each(|scan| scan.hidden(&self.addresses(&range)));
        Ok(())
    }

    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = self.address_and_len(&range);
        // SAFETY: reads the range's pages ahead, nothing else.
        match unsafe { mm::madvise(at, len, Advice::LinuxPopulateRead) } {
            // Before Linux 5.14, pages are read when they are needed.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        if within.is_empty() || self.explicit {
            return Ok(());
        }
        let mut found = Vec::new();
        let asked = match &self.scan {
            Some(scan) => scan.changed(self.pagemap()?, self.addresses(&within), &mut found),
            None => self.pagemap()?.private(self.addresses(&within), self.page_bytes, &mut found),
        };
        // Report them even after an error, because a later scan does not find them again.
        self.offsets(found, into);
        asked
    }

    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        if within.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        self.pagemap()?.private(self.addresses(&within), self.page_bytes, &mut found)?;
        self.offsets(found, into);
        Ok(())
    }

    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let pid = self.pid()?;
        for pieces in pieces.chunks_mut(PIECES_MOST) {
            let from: Vec<_> = pieces
                .iter()
                .map(|p| {
                    let addresses = self.addresses(&(p.offset..p.offset + p.into.len() as u64));
                    iovec(addresses.start as *mut u8, p.into.len())
                })
                .collect();
            // Merge adjacent buffers, because the kernel pins the pages of each one.
            let mut into: Vec<libc::iovec> = Vec::new();
            let mut wanted = 0;
            for piece in pieces.iter_mut() {
                let (start, len) = (piece.into.as_mut_ptr(), piece.into.len());
                wanted += len;
                match into.last_mut() {
                    Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == start.cast() => last.iov_len += len,
                    _ => into.push(iovec(start, len)),
                }
            }
            let (n, m) = (from.len() as libc::c_ulong, into.len() as libc::c_ulong);
            // SAFETY: the kernel checks the addresses that it reads from, and writes to the pieces' exclusive buffers.
            let got = unsafe {
                match n {
                    // Valgrind knows that this call fills the buffer, which may be the program's own.
                    1 => libc::process_vm_readv(pid, into.as_ptr(), m, from.as_ptr(), n, 0),
                    // Copy with a write call, so that the many places of the mapping are read in one pass, and only the
                    // buffers are pinned. Called past the C library, because MemorySanitizer would check bytes that
                    // uninstrumented code has written.
                    _ => {
                        let flags: libc::c_ulong = 0;
                        libc::syscall(libc::SYS_process_vm_writev, pid, from.as_ptr(), n, into.as_ptr(), m, flags)
                            as isize
                    }
                }
            };
            match (got, Errno::from_io_error(&io::Error::last_os_error())) {
                (-1, Some(Errno::PERM | Errno::NOSYS)) => self.copy_out_by_file(pieces)?,
                (-1, Some(e)) => return Err(e.into()),
                (got, _) if got as usize != wanted => return Err(Errno::FAULT.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let pid = self.pid()?;
        let addresses = self.addresses(&(offset..offset + bytes.len() as u64));
        let here = iovec(bytes.as_ptr().cast_mut(), bytes.len());
        let there = iovec(addresses.start as *mut u8, bytes.len());
        // SAFETY: the kernel reads `bytes` and checks where it writes to: this mapping.
        let got = unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) };
        // The fallback also serves pages that the program itself has made read-only.
        if got == bytes.len() as isize { Ok(()) } else { self.copy_in_by_file(offset, bytes) }
    }

    fn leave(&mut self) {
        self.bytes = 0;
    }
}

impl Drop for LinuxMapping {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: reserved in `new`; the holders of pointers into it have been told when they end.
        let _ = unsafe { mm::munmap(self.base.cast(), self.bytes as usize) };
    }
}
