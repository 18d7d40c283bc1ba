//! Mappings of files: private ones, with the ways of finding stores to them, and views and lines that are shared.

pub(crate) mod chunk_scan;
pub(crate) mod line_flushes;
pub(crate) mod line_mapping;
pub(crate) mod line_stores;
pub(crate) mod linux_map;
pub(crate) mod read_mapping;
pub(crate) mod shared_view;
pub(crate) mod still_copy;
pub(crate) mod tracker;

use crate::mapping::still_copy::StillCopy;
use std::fmt;
use std::io;
use std::ops::Range;

/// How to find the pages that a program stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrackerKind {
    /// `PAGEMAP_SCAN` with an asynchronous write-protecting `userfaultfd`: exact, cheap to query, one fault at the
    /// first store to a page after each scan. Linux 6.7 or newer, where `userfaultfd` is allowed.
    Scan,
    /// `/proc/self/pagemap`: any kernel, no faults. A page counts as stored to until it is dropped, so each scan finds
    /// all such pages again.
    PageMap,
    /// Explicit dirty ranges: the program reports its changes. No faults, no queries, no comparisons. Changes that it
    /// does not report are not committed. Any kernel.
    Explicit,
}

impl TrackerKind {
    /// A stable name: `scan`, `pagemap`, `explicit`.
    pub fn name(self) -> &'static str {
        match self {
            TrackerKind::Scan => "scan",
            TrackerKind::PageMap => "pagemap",
            TrackerKind::Explicit => "explicit",
        }
    }
}

impl fmt::Display for TrackerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parameters of a mapping.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRequest {
    /// Bytes of address space to reserve; rounded up to whole pages.
    pub address_space: u64,
    /// Requested address, a multiple of the page size; fails with `EEXIST` if it is in use. `None`: any address.
    pub address: Option<usize>,
    /// Map for reading only.
    pub read_only: bool,
    /// `None`: the best tracker that works here.
    pub tracker: Option<TrackerKind>,
    /// Ask for huge pages where the file system has them.
    pub huge_pages: bool,
}

/// Bytes to copy out of a mapping.
pub struct Piece<'a> {
    /// Their offset in the mapping.
    pub offset: u64,
    /// Destination.
    pub into: &'a mut [u8],
}

/// A reserved range of addresses that shows a file privately: stores to it never reach the file by themselves.
///
/// Offsets are those of the file. Ranges that are shown, blanked or hidden consist of whole pages. Nothing is
/// accessible at first.
pub trait Mapping: Send + Sync {
    /// Address of offset 0.
    fn address(&self) -> *mut u8;
    /// Bytes of address space.
    fn address_space(&self) -> u64;
    /// Size of a page in bytes.
    fn page_bytes(&self) -> u64;
    /// The way in which stores are found.
    fn tracker(&self) -> TrackerKind;
    /// Shows the file in this range, which lies within the file's pages, and drops private pages there.
    fn show(&self, range: Range<u64>) -> io::Result<()>;
    /// Shows zeros in this range, regardless of the file.
    fn blank(&self, range: Range<u64>) -> io::Result<()>;
    /// Makes this range inaccessible and drops private pages there.
    fn hide(&self, range: Range<u64>) -> io::Result<()>;
    /// Reads the file's pages of this range ahead.
    fn populate(&self, range: Range<u64>) -> io::Result<()>;
    /// Appends, in order, the ranges of pages in `within` that may have been stored to since the last query; after an
    /// error, those that were found before it. `within` is accessible. Pages that were only loaded may be among them.
    /// With the tracker `explicit`, nothing is found.
    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()>;
    /// Appends the ranges of private pages in `within`: pages that were stored to and not dropped since.
    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()>;
    /// Copies bytes out of ranges that are shown or blank. `EFAULT` if some of their pages are gone. Hidden pages also
    /// give `EFAULT`, but Linux without `process_vm_writev` may return zeros for them.
    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()>;
    /// Finds pages like [`Mapping::changed`], and copies them if there are at most `most`. For live memory, this
    /// allocates nothing and takes no lock, so the other threads may be stopped meanwhile. After an error, or if there
    /// are more (false), the found ranges are in `into`, and nothing was copied.
    fn copy_changed(&self, within: Range<u64>, most: u64, into: &mut StillCopy) -> io::Result<bool> {
        let mut found = Vec::new();
        let asked = self.changed(within, &mut found);
        found.iter().for_each(|range| into.push(range.clone()));
        asked?;
        if into.pages() > most && self.tracker() == TrackerKind::Scan {
            return Ok(false);
        }
        for range in found {
            let room = into.room((range.end - range.start) as usize);
            self.copy_out(&mut [Piece { offset: range.start, into: room }])?;
        }
        Ok(true)
    }
    /// Stores bytes in a range that is shown or blank. `EFAULT` if some of its pages are gone; bytes before these were
    /// stored. Linux may accept a store to a hidden page, where nobody sees it.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Leaves all addresses mapped when this value is dropped: the caller takes them over.
    fn leave(&mut self);
}

/// The limit of this process's memory, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes, swap included.
    pub bytes: u64,
    /// For messages: `the memory cgroup /sys/fs/cgroup/x`, `this machine`.
    pub of: String,
}
