//! The tracker `scan`, in chunks of one page table each: only chunks with small pages are watched.
//!
//! Where `userfaultfd` protects a range, the kernel does no fault-around. So once a first store has split a huge entry,
//! reads of the chunk would take a fault for each page. Therefore a chunk is not watched as long as the page table has
//! one huge entry for it, or none: a store to such a chunk creates a small entry, which `PAGEMAP_SCAN` finds without
//! any protection. A chunk with a small entry is watched from then on, until it is mapped again:
//!
//! ```text
//! bring back   the pages that the split took out of the page table, if the page cache has them: one fault for all
//! watch        with userfaultfd; nothing is protected yet
//! scan         present pages become protected; those of them that are private were stored to
//! ```
//!
//! In files with small folios, chunks have small entries as soon as they are read, so they are watched from the first
//! scan.

use crate::mapping::tracker::{PageMap, Scan};
use parking_lot::Mutex;
use rangemap::RangeSet;
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use std::ffi::c_void;
use std::io;
use std::ops::Range;

/// Bytes that one page table covers.
const CHUNK_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;
/// Each run of unwatched chunks is a separate mapping to the kernel, which limits their number. With more runs than
/// this, all chunks are watched.
const RUNS_MOST: usize = 1024;
/// Watched chunks at most this far apart are scanned in one call: huge entries in between cost less than a call.
const NEAR_CHUNK_BYTES: u64 = 16 << 20;
/// Small ranges at most this far apart are scanned in one call.
const NEAR_BYTES: u64 = 128 << 10;
/// A smaller range is scanned once instead of twice: holes, of which a small heap has many, look like stores in the
/// first scan.
const ONE_LOOK_BYTES: u64 = 4 << 20;
/// If more than one in this many pages of a chunk is present, there is too little to bring back.
const PRESENT_ONE_IN: u64 = 4;

/// A tracker that watches the chunks with small pages.
pub(crate) struct ChunkScan {
    scan: Scan,
    /// Addresses that show the file and are not watched.
    unwatched: Mutex<RangeSet<u64>>,
}

impl ChunkScan {
    /// Opens the tracker. `EOPNOTSUPP` where the kernel does not support or does not allow it.
    pub fn open() -> io::Result<ChunkScan> {
        Ok(ChunkScan { scan: Scan::open()?, unwatched: Mutex::default() })
    }

    /// Watches a range that was just mapped.
    pub fn watch(&self, addresses: Range<u64>) -> io::Result<()> {
        self.hidden(&addresses);
        self.scan.watch(addresses)
    }

    /// Notes that a range that was just mapped is inaccessible.
    pub fn hidden(&self, addresses: &Range<u64>) {
        if !addresses.is_empty() {
            self.unwatched.lock().remove(addresses.clone());
        }
    }

    /// Notes that a range that was just mapped shows the file.
    pub fn shows_file(&self, addresses: Range<u64>) -> io::Result<()> {
        if rustix::param::page_size() as u64 != PAGE_BYTES {
            return self.watch(addresses);
        }
        let unwatched = &mut *self.unwatched.lock();
        let first = addresses.start.next_multiple_of(CHUNK_BYTES).min(addresses.end);
        let last = (addresses.end - addresses.end % CHUNK_BYTES).max(first);
        for edge in [addresses.start..first, last..addresses.end] {
            if edge.is_empty() {
                continue;
            }
            // An edge is treated like the rest of its chunk.
            if unwatched.overlaps(&chunk_of(edge.start)) {
                unwatched.insert(edge);
            } else {
                self.scan.watch(edge)?;
            }
        }
        if first < last {
            unwatched.insert(first..last);
        }
        if unwatched.iter().nth(RUNS_MOST).is_some() {
            self.watch_all(unwatched)?;
        }
        Ok(())
    }

    fn watch_all(&self, unwatched: &mut RangeSet<u64>) -> io::Result<()> {
        // Mark each run as watched at once, because a later one may fail.
        for run in unwatched.clone() {
            self.scan.watch(run.clone())?;
            unwatched.remove(run);
        }
        Ok(())
    }

    /// Appends the addresses of pages that were stored to since the last call; in watched chunks also pages of the file
    /// that were read since then. After an error, those that were found before it.
    pub fn changed(&self, pagemap: &PageMap, addresses: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        let unwatched = &mut *self.unwatched.lock();
        let new = self.watch_small(unwatched, pagemap, &addresses)?;
        let mut found = Vec::new();
        let asked = self.stored(unwatched, pagemap, &addresses, &mut found);
        // In a newly watched chunk, every present page looks stored to, so filter by private pages.
        for range in found {
            let (mut at, before) = (range.start, into.len());
            let filtered = new.overlapping(&range).try_for_each(|chunk| {
                let chunk = chunk.start.max(range.start)..chunk.end.min(range.end);
                push(into, at..chunk.start);
                at = chunk.end;
                pagemap.private(chunk, PAGE_BYTES, into)
            });
            if filtered.is_err() {
                into.truncate(before);
                at = range.start;
            }
            push(into, at..range.end);
        }
        asked
    }

    /// Finds pages like [`ChunkScan::changed`], in shared memory, where a page may have left the page table after a
    /// store: a hole counts once as stored to, and is then protected. Ends after `most` pages. Allocates nothing, and
    /// takes no lock.
    pub fn changed_or_absent(
        &self,
        pagemap: &PageMap,
        addresses: Range<u64>,
        most: u64,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        self.scan.stored_or_absent(pagemap, addresses, most, each)
    }

    /// Watches the chunks with small pages. Returns the ranges that were not watched before.
    fn watch_small(
        &self,
        unwatched: &mut RangeSet<u64>,
        pagemap: &PageMap,
        within: &Range<u64>,
    ) -> io::Result<RangeSet<u64>> {
        let mut new = RangeSet::new();
        let mut parts = unwatched.overlapping(within);
        let Some(first) = parts.next() else { return Ok(new) };
        let end = parts.next_back().unwrap_or(first).end;
        let mut small = Vec::new();
        pagemap.small_unwatched(first.start.max(within.start)..end.min(within.end), &mut small)?;
        for range in &small {
            let chunks = range.start - range.start % CHUNK_BYTES..range.end.next_multiple_of(CHUNK_BYTES);
            for part in unwatched.overlapping(&chunks) {
                new.insert(part.start.max(chunks.start)..part.end.min(chunks.end));
            }
            if range.start - range.start % CHUNK_BYTES == (range.end - 1) - (range.end - 1) % CHUNK_BYTES {
                bring_back(range, unwatched);
            }
        }
        for part in new.clone() {
            match self.scan.watch(part.clone()) {
                Ok(()) => unwatched.remove(part.clone()),
                // The limit of mappings is reached. Watching everything needs fewer.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NOMEM) => {
                    let rest = unwatched.clone();
                    self.watch_all(unwatched)?;
                    rest.into_iter().for_each(|run| new.insert(run));
                    return Ok(new);
                }
                Err(e) => return Err(e),
            }
        }
        if unwatched.iter().nth(RUNS_MOST).is_some() {
            unwatched.iter().for_each(|run| new.insert(run.clone()));
            self.watch_all(unwatched)?;
        }
        Ok(new)
    }

    /// Scans watched addresses, in two passes.
    ///
    /// The first pass asks for unprotected entries only, which the kernel answers three times as fast. It also reports
    /// holes and unwatched pages, and changes nothing. The second pass scans the reported ranges: it tells pages from
    /// holes, and protects each page at the moment in which it reports the page.
    fn stored(
        &self,
        unwatched: &RangeSet<u64>,
        pagemap: &PageMap,
        within: &Range<u64>,
        into: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        if within.is_empty() {
            return Ok(());
        }
        let watched: Vec<Range<u64>> = unwatched.gaps(within).collect();
        let hull = |near: &[Range<u64>]| near[0].start..near[near.len() - 1].end;
        for runs in watched.chunk_by(|one, next| next.start - one.end <= NEAR_CHUNK_BYTES) {
            let all = hull(runs);
            if runs.len() == 1 && all.end - all.start <= ONE_LOOK_BYTES {
                self.scan.stored(pagemap, all, into)?;
                continue;
            }
            let mut unprotected = Vec::new();
            self.scan.unprotected(pagemap, all, &mut unprotected)?;
            let found: Vec<Range<u64>> = unprotected.iter().flat_map(|range| unwatched.gaps(range)).collect();
            // The second pass must not cross unwatched ranges, which the kernel refuses.
            let between = |one: &Range<u64>, next: &Range<u64>| {
                one.end < next.start && unwatched.overlaps(&(one.end..next.start))
            };
            let near = found.chunk_by(|one, next| next.start - one.end <= NEAR_BYTES && !between(one, next));
            near.map(hull).try_for_each(|range| self.scan.stored(pagemap, range, into))?;
        }
        Ok(())
    }
}

fn chunk_of(address: u64) -> Range<u64> {
    let start = address - address % CHUNK_BYTES;
    start..start + CHUNK_BYTES
}

fn push(into: &mut Vec<Range<u64>>, range: Range<u64>) {
    if !range.is_empty() {
        into.push(range);
    }
}

/// Makes the kernel map the cached pages around these, if they are the only ones of their chunk in the page table: one
/// fault brings back the pages of a split huge entry. Nothing is read from the disk.
fn bring_back(present: &Range<u64>, unwatched: &RangeSet<u64>) {
    let chunk = chunk_of(present.start);
    if (present.end - present.start) * PRESENT_ONE_IN > CHUNK_BYTES {
        return;
    }
    let beside = [present.end, present.start.wrapping_sub(PAGE_BYTES)];
    let Some(at) = beside.into_iter().find(|at| chunk.contains(at) && unwatched.contains(at)) else { return };
    let (at, len) = (at as *mut c_void, PAGE_BYTES as usize);
    let mut in_memory = 0u8;
    // SAFETY: asks about one page, and stores one byte.
    let asked = unsafe { libc::mincore(at, len, (&raw mut in_memory).cast()) };
    if asked == 0 && in_memory & 1 != 0 {
        // SAFETY: reads a page of a mapping ahead, nothing else. If it fails, the page comes when it is read.
        let _ = unsafe { mm::madvise(at, len, Advice::LinuxPopulateRead) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const CHUNKS: usize = 6;
    const CHUNK: usize = CHUNK_BYTES as usize;
    const PAGE: usize = PAGE_BYTES as usize;

    /// A private mapping of a file of whole chunks, and its tracker.
    struct Tracked {
        scan: ChunkScan,
        pagemap: PageMap,
        file: File,
        reserved: *mut c_void,
        base: *mut u8,
    }

    impl Tracked {
        /// Maps a new file, or returns `None` if the kernel does not support this tracker.
        fn new(bytes_at_once: usize) -> Option<Tracked> {
            let Ok(scan) = ChunkScan::open() else {
                println!("skipped: PAGEMAP_SCAN or userfaultfd is not to be had here");
                return None;
            };
            let file = tempfile::tempfile().unwrap();
            for at in (0..CHUNKS * CHUNK).step_by(bytes_at_once) {
                file.write_all_at(&vec![1; bytes_at_once], at as u64).unwrap();
            }
            file.sync_all().unwrap();
            let (none, private) = (std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a new mapping.
            let reserved =
                unsafe { mm::mmap_anonymous(none, (CHUNKS + 1) * CHUNK, ProtFlags::empty(), private).unwrap() };
            let base = (reserved as usize).next_multiple_of(CHUNK) as *mut u8;
            let tracked = Tracked { scan, pagemap: PageMap::open().unwrap(), file, reserved, base };
            tracked.show(0..CHUNKS * CHUNK);
            Some(tracked)
        }

        fn show(&self, range: Range<usize>) {
            let (flags, both) = (MapFlags::PRIVATE | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
            let offset = range.start as u64;
            // SAFETY: inside the reserved range.
            unsafe {
                mm::mmap(self.base.add(range.start).cast(), range.len(), both, flags, &self.file, offset).unwrap()
            };
            self.scan.shows_file(self.addresses(range)).unwrap();
        }

        fn addresses(&self, range: Range<usize>) -> Range<u64> {
            (self.base as usize + range.start) as u64..(self.base as usize + range.end) as u64
        }

        fn read(&self, range: Range<usize>) {
            // SAFETY: inside the mapping.
            range.step_by(PAGE).for_each(|at| _ = unsafe { self.base.add(at).read_volatile() });
        }

        fn store(&self, at: usize) {
            // SAFETY: inside the mapping.
            unsafe { self.base.add(at).write_volatile(self.base.add(at).read_volatile() + 1) };
        }

        /// The pages that a scan finds, by number.
        fn changed(&self, within: Range<usize>) -> Vec<usize> {
            let mut found = Vec::new();
            self.scan.changed(&self.pagemap, self.addresses(within), &mut found).unwrap();
            let page = |address: u64| (address as usize - self.base as usize) / PAGE;
            found.into_iter().flat_map(|range| page(range.start)..page(range.end)).collect()
        }

        /// The chunks that are not watched.
        fn unwatched(&self) -> Vec<usize> {
            let unwatched = self.scan.unwatched.lock();
            (0..CHUNKS).filter(|n| unwatched.overlaps(&self.addresses(n * CHUNK..(n + 1) * CHUNK))).collect()
        }

        fn present(&self, range: Range<usize>) -> usize {
            let mut found = Vec::new();
            self.pagemap.small(self.addresses(range), &mut found).unwrap();
            found.iter().map(|range| (range.end - range.start) as usize / PAGE).sum()
        }
    }

    impl Drop for Tracked {
        fn drop(&mut self) {
            // SAFETY: reserved in `new`, and used no more.
            unsafe { mm::munmap(self.reserved, (CHUNKS + 1) * CHUNK).unwrap() };
        }
    }

    #[test]
    fn a_chunk_is_watched_from_its_first_store_until_it_is_mapped_anew() {
        let Some(tracked) = Tracked::new(CHUNK) else { return };
        let all = 0..CHUNKS * CHUNK;
        tracked.read(all.clone());
        assert_eq!(tracked.changed(all.clone()), []);
        if tracked.unwatched().len() < CHUNKS {
            println!("skipped: files have no huge pages here");
            return;
        }
        let (one, other) = (3 * CHUNK + 100 * PAGE, 3 * CHUNK + 200 * PAGE);
        tracked.store(one);
        tracked.store(5 * CHUNK);
        // A store outside of the scanned range is found by a later scan.
        assert_eq!(tracked.changed(0..3 * CHUNK), []);
        assert_eq!(tracked.unwatched().len(), CHUNKS);
        assert_eq!(tracked.changed(one..one + PAGE), [one / PAGE]);
        assert_eq!(tracked.unwatched(), [0, 1, 2, 4, 5]);
        assert_eq!(tracked.present(3 * CHUNK..4 * CHUNK), CHUNK / PAGE, "the split took pages away");
        tracked.store(other);
        assert!(tracked.changed(all.clone()).ends_with(&[5 * CHUNK / PAGE]));
        assert_eq!(tracked.changed(all.clone()), []);
        assert_eq!(tracked.unwatched(), [0, 1, 2, 4]);
        tracked.store(other);
        tracked.store(one);
        assert_eq!(tracked.changed(all.clone()), [one / PAGE, other / PAGE]);
        // Map one page again: the rest of its chunk is watched, and so is the page.
        tracked.show(one..one + PAGE);
        tracked.store(one);
        assert_eq!(tracked.changed(all.clone()), [one / PAGE]);
        tracked.show(3 * CHUNK..4 * CHUNK);
        assert_eq!(tracked.unwatched(), [0, 1, 2, 3, 4]);
        tracked.read(3 * CHUNK..4 * CHUNK);
        assert_eq!(tracked.changed(all.clone()), []);
        tracked.store(one);
        assert_eq!(tracked.changed(all), [one / PAGE]);
    }

    #[test]
    fn zeros_in_a_chunk_that_is_not_watched_are_watched() {
        let Some(tracked) = Tracked::new(CHUNK) else { return };
        let all = 0..CHUNKS * CHUNK;
        let blanks = [CHUNK + 5 * PAGE..CHUNK + 100 * PAGE, CHUNK + 110 * PAGE..CHUNK + 400 * PAGE];
        for range in &blanks {
            let (flags, both) = (MapFlags::PRIVATE | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: inside the reserved range.
            unsafe { mm::mmap_anonymous(tracked.base.add(range.start).cast(), range.len(), both, flags).unwrap() };
            tracked.scan.watch(tracked.addresses(range.clone())).unwrap();
        }
        assert_eq!(tracked.changed(all.clone()), []);
        for range in &blanks {
            tracked.store(range.start);
            tracked.store(range.end - PAGE);
        }
        let stored = blanks.map(|range| [range.start / PAGE, range.end / PAGE - 1]).concat();
        assert_eq!(tracked.changed(all.clone()), stored);
        assert!(tracked.unwatched().contains(&1), "the rest of the chunk");
        tracked.store(CHUNK + 105 * PAGE);
        assert_eq!(tracked.changed(all.clone()), [CHUNK / PAGE + 105]);
        assert_eq!(tracked.changed(all), []);
    }

    #[test]
    fn chunks_in_small_pages_are_watched_at_the_first_look() {
        let Some(tracked) = Tracked::new(PAGE) else { return };
        let all = 0..CHUNKS * CHUNK;
        tracked.read(CHUNK..2 * CHUNK);
        tracked.store(4 * CHUNK);
        let huge = tracked.present(CHUNK..2 * CHUNK) == 0;
        assert_eq!(tracked.changed(all.clone()), [4 * CHUNK / PAGE]);
        if huge {
            println!("skipped: the kernel made huge pages of single ones");
            return;
        }
        assert_eq!(tracked.unwatched(), [0, 2, 3, 5]);
        // Pages that were only read are reported, too, which is harmless.
        tracked.read(4 * CHUNK..5 * CHUNK);
        tracked.store(4 * CHUNK);
        assert!(tracked.changed(all.clone()).contains(&(4 * CHUNK / PAGE)));
        assert_eq!(tracked.changed(all), []);
    }

    #[test]
    fn stores_during_a_look_are_found_by_it_or_by_the_next() {
        const WORDS: usize = 64;
        for seed in 0..20 {
            let Some(tracked) = Tracked::new(CHUNK) else { return };
            let all = 0..CHUNKS * CHUNK;
            tracked.read(all.clone());
            let place = |n: usize| (n * 7919 + seed * 104_729) % (CHUNKS * CHUNK / PAGE) * PAGE;
            let base = tracked.base as usize;
            let mut found = std::thread::scope(|scope| {
                // SAFETY: inside the mapping; bytes that nobody else stores to.
                let store =
                    move || (0..WORDS).for_each(|n| unsafe { ((base + place(n)) as *mut u8).write_volatile(9) });
                let storing = scope.spawn(store);
                let mut found = Vec::new();
                while !storing.is_finished() {
                    found.extend(tracked.changed(all.clone()));
                }
                found
            });
            found.extend(tracked.changed(all.clone()));
            for page in (0..WORDS).map(|n| place(n) / PAGE) {
                assert!(found.contains(&page), "page {page}, seed {seed}");
            }
            assert_eq!(tracked.changed(all), []);
        }
    }

    #[test]
    fn more_runs_than_the_kernel_should_have_are_watched() {
        let Ok(scan) = ChunkScan::open() else { return println!("skipped: no such tracker here") };
        // Addresses without a mapping cannot be watched, so watching all fails; unwatched ones are only noted.
        for n in 0..RUNS_MOST as u64 {
            let start = (1 << 40) + 2 * n * CHUNK_BYTES;
            scan.shows_file(start..start + CHUNK_BYTES).unwrap();
        }
        let start = (1 << 40) + 2 * RUNS_MOST as u64 * CHUNK_BYTES;
        assert!(scan.shows_file(start..start + CHUNK_BYTES).is_err());
    }
}
