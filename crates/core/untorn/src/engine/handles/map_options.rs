//! Options for mapping a file.

use crate::engine::region::UnmarkedCheck;
use untorn_os::TrackerKind;

/// Options for mapping a file.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MapOptions {
    pub(super) offset: u64,
    pub(super) len: Option<u64>,
    pub(super) address_space: Option<u64>,
    pub(super) address: Option<usize>,
    pub(super) tracker: Option<TrackerKind>,
    pub(super) dirty_max: Option<u64>,
    pub(super) quiet: bool,
    pub(super) debug_races: bool,
    debug_unmarked: bool,
    pub(super) populate: bool,
    pub(super) huge_pages: bool,
    pub(super) beyond_end: bool,
    pub(super) in_use: Option<u64>,
}

impl MapOptions {
    /// Maps the whole file, as it grows.
    pub fn new() -> MapOptions {
        MapOptions::default()
    }

    /// Offset in the file at which the map begins. Default: 0.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Bytes that the map covers. Default: to the end of the file, as it grows.
    pub fn len(mut self, len: u64) -> Self {
        self.len = Some(len);
        self
    }

    /// Let the map reach beyond the end of the file, for programs that map a large window first and extend the file
    /// later: bytes beyond the end become accessible when the file grows over them. Default: off.
    pub fn beyond_end(mut self, on: bool) -> Self {
        self.beyond_end = on;
        self
    }

    /// Bytes of address space to reserve: the file cannot outgrow them while it is mapped. They cost no memory.
    /// Default: 64 GiB or four times the file's size, whichever is larger, or less if there is not as much.
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.address_space = Some(bytes);
        self
    }

    /// Address of offset 0 of the file, a multiple of the page size. Mapping fails if the address is in use.
    pub fn address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// The way of finding stores. Default: the best one that works here, which [`Map::tracker`](crate::Map::tracker)
    /// returns.
    pub fn tracker(mut self, tracker: TrackerKind) -> Self {
        self.tracker = Some(tracker);
        self
    }

    /// Limit for the bytes of pages that the program stores to and that are not dropped. Required for files that are
    /// larger than memory; without it, mapping them is refused. With [`MapOptions::quiet`], a commit that finds more
    /// drops clean pages.
    pub fn dirty_max(mut self, bytes: u64) -> Self {
        self.dirty_max = Some(bytes);
        self
    }

    /// A promise that no thread stores to the file's maps while one of them is being committed with
    /// [`Map::msync`](crate::Map::msync). Then a commit may drop pages whose contents the data file has, so that memory
    /// follows actual use. Default: off. The first map of a file decides.
    pub fn quiet(mut self, on: bool) -> Self {
        self.quiet = on;
        self
    }

    /// For debugging: [`Map::msync`](crate::Map::msync) checks for stores that happened during the commit, and reports
    /// the first one as [`Error::RacingStore`](crate::Error::RacingStore). Default: off.
    pub fn debug_races(mut self, on: bool) -> Self {
        self.debug_races = on;
        self
    }

    /// For debugging with [`TrackerKind::Explicit`]: a commit checks for bytes that were stored to and not marked, as the
    /// other trackers would find them. If there are any, it is refused with [`Error::Invalid`](crate::Error::Invalid)
    /// before anything is written; the message names addresses. The check costs as much as the other trackers. No
    /// thread may store while a commit runs; otherwise a store that is about to be marked counts as an error. Default:
    /// off, unless the environment has `UNTORN_DEBUG_UNMARKED=1`; with `UNTORN_DEBUG_UNMARKED=warn`, commits are made,
    /// and each place is printed once to stderr. The first map of a file decides.
    pub fn debug_unmarked(mut self, on: bool) -> Self {
        self.debug_unmarked = on;
        self
    }

    /// Read the file into memory now, so that first accesses do not wait. Default: off.
    pub fn populate(mut self, on: bool) -> Self {
        self.populate = on;
        self
    }

    /// Ask for huge pages, where the kernel and the file system support them: faster for large files that are mostly
    /// read. Default: off.
    pub fn huge_pages(mut self, on: bool) -> Self {
        self.huge_pages = on;
        self
    }

    /// Bytes of the file that the program can use, if these are fewer than the file has.
    pub(crate) fn in_use(mut self, bytes: u64) -> Self {
        self.in_use = Some(bytes);
        self
    }

    /// The limit that the program gave for undropped stored bytes.
    pub(crate) fn dirty_max_given(&self) -> Option<u64> {
        self.dirty_max
    }

    /// Whether the program chose the tracker `explicit`.
    pub(crate) fn is_explicit(&self) -> bool {
        self.tracker == Some(TrackerKind::Explicit)
    }

    /// The way of checking for unreported stores, if the check is on.
    pub(super) fn unmarked_check(&self) -> Option<UnmarkedCheck> {
        let wanted = std::env::var_os("UNTORN_DEBUG_UNMARKED").filter(|wanted| !wanted.is_empty() && wanted != "0");
        match wanted {
            _ if self.debug_unmarked => Some(UnmarkedCheck::Refuse),
            Some(wanted) if wanted == "warn" => Some(UnmarkedCheck::Warn),
            Some(_) => Some(UnmarkedCheck::Refuse),
            None => None,
        }
    }

    /// End of the range in the file, or `None` if no file can reach it.
    pub(super) fn end(&self, size: u64) -> Option<u64> {
        self.len.map_or(Some(size.max(self.offset)), |len| self.offset.checked_add(len))
    }
}
