//! Private mappings of files, and how stores to them are found.

pub(crate) mod chunk_scan;
pub(crate) mod linux_map;
pub(crate) mod read_mapping;
pub(crate) mod still_copy;
pub(crate) mod tracker;

use crate::mapping::still_copy::StillCopy;
use std::fmt;
use std::io;
use std::ops::Range;

/// How the pages that a program stored to are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tracker {
    /// `PAGEMAP_SCAN` with an asynchronous write-protecting `userfaultfd`: exact, cheap to ask, one fault
    /// at the first store to a page after each scan. Linux 6.7 or newer, where `userfaultfd` is allowed.
    Scan,
    /// `/proc/self/pagemap`: any kernel, no faults. A page counts as stored to until it is dropped, so that
    /// each scan finds all of them again.
    PageMap,
    /// The program says what it changes: no faults, nothing to ask, nothing to compare. What it does not say is not
    /// committed. Any kernel.
    Told,
}

impl Tracker {
    /// A stable name: `scan`, `pagemap`, `told`.
    pub fn name(self) -> &'static str {
        match self {
            Tracker::Scan => "scan",
            Tracker::PageMap => "pagemap",
            Tracker::Told => "told",
        }
    }
}

impl fmt::Display for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How to map a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRequest {
    /// Bytes of address space to reserve; rounded up to whole pages.
    pub address_space: u64,
    /// Where, a multiple of the page size; fails with `EEXIST` if something is there. None: anywhere.
    pub address: Option<usize>,
    /// For reading only.
    pub read_only: bool,
    /// None: the best one that works here.
    pub tracker: Option<Tracker>,
    /// Ask for huge pages where the file system has them.
    pub huge_pages: bool,
}

/// Bytes at an offset, to be copied out.
pub struct Piece<'a> {
    /// Where they are in the mapping.
    pub offset: u64,
    /// Where they go.
    pub into: &'a mut [u8],
}

/// A reserved range of addresses that shows a file privately: what is stored to it never reaches the
/// file by itself.
///
/// Offsets are those of the file. Ranges that are shown, blanked or hidden are whole pages. Nothing is
/// accessible at first.
pub trait Mapping: Send + Sync {
    /// Address of offset 0.
    fn address(&self) -> *mut u8;
    /// Bytes of address space.
    fn address_space(&self) -> u64;
    /// Size of a page in bytes.
    fn page_bytes(&self) -> u64;
    /// How stores are found.
    fn tracker(&self) -> Tracker;
    /// Shows the file in this range, which lies in the file's pages, and drops what was stored there.
    fn show(&self, range: Range<u64>) -> io::Result<()>;
    /// Shows zeros in this range, whatever the file holds.
    fn blank(&self, range: Range<u64>) -> io::Result<()>;
    /// Makes this range inaccessible and drops what was stored there.
    fn hide(&self, range: Range<u64>) -> io::Result<()>;
    /// Reads the file's pages of this range ahead.
    fn populate(&self, range: Range<u64>) -> io::Result<()>;
    /// Appends the ranges of pages in `within`, which is accessible, that may have been stored to since
    /// they were asked for last, in order; after an error, those that were found before it. Pages that were
    /// only loaded may be among them. Nothing with the tracker `told`.
    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()>;
    /// Appends the ranges of pages in `within` that have left the file: stored to and not dropped since.
    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()>;
    /// Copies bytes out of ranges that are shown or blank. `EFAULT` if some of their pages are gone. Hidden pages
    /// are `EFAULT`, too, but Linux without `process_vm_writev` may return zeros.
    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()>;
    /// Finds the pages as [`Mapping::changed`] does, and copies them if there are no more than `most`. Of memory that outlives
    /// its process, this allocates nothing and takes no lock: the other threads may stand still meanwhile. After an error, and
    /// if there are more (false), what was found is told, and nothing was copied.
    fn copy_changed(&self, within: Range<u64>, most: u64, into: &mut StillCopy) -> io::Result<bool> {
        let mut found = Vec::new();
        let asked = self.changed(within, &mut found);
        found.iter().for_each(|range| into.push(range.clone()));
        asked?;
        if into.pages() > most && self.tracker() == Tracker::Scan {
            return Ok(false);
        }
        for range in found {
            let room = into.room((range.end - range.start) as usize);
            self.copy_out(&mut [Piece { offset: range.start, into: room }])?;
        }
        Ok(true)
    }
    /// Stores bytes in a range that is shown or blank. `EFAULT` if some of its pages are gone: those before
    /// them were stored. Linux may take a store to a hidden page, which nobody sees.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Leaves all addresses mapped as they are when this ends: they are somebody else's from now on.
    fn leave(&mut self);
}

/// The most memory that this process can have, and what limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes, swap included.
    pub bytes: u64,
    /// For messages: `the memory cgroup /sys/fs/cgroup/x`, `this machine`.
    pub of: String,
}
