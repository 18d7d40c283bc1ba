//! Memory-mapped files: stores to random pages, then a commit by Untorn or an ordinary `msync`.

use crate::measuring::fs::Place;
use crate::measuring::harness::Activity;
use crate::report::section::Extras;
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use memmap2::MmapMut;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::{Map, MapOptions, Status, Store, StoreOptions, TrackerKind};

pub const PAGE_BYTES: usize = 4096;

/// The options for a tracker.
///
/// With `pagemap`, every commit compares all pages that were ever stored to, unless they are dropped. That needs the
/// promise `quiet`: no thread stores during a commit. Here none does.
pub fn tracked_by(tracker: TrackerKind) -> MapOptions {
    MapOptions::new().tracker(tracker).quiet(tracker == TrackerKind::PageMap)
}

/// A memory-mapped file.
pub trait Memory {
    /// The bytes of the file, to be stored to.
    fn bytes(&mut self) -> &mut [u8];
    /// Names a dirty range, where the memory needs that.
    fn tell(&mut self, _offset: usize, _len: usize) -> Result<()> {
        Ok(())
    }
    /// Makes all stores durable.
    fn commit(&mut self) -> Result<()>;
    /// Writes everything to its final place.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
    /// The status of the store, if there is one.
    fn status(&self) -> Option<Status> {
        None
    }
}

/// A file that Untorn maps, alone in its store.
pub struct Managed {
    map: Map,
    store: Store,
    eager: bool,
    /// The tracker is `explicit`, so that the program marks its stores.
    marks: bool,
}

impl Managed {
    /// Maps `data` in the store `root`. `eager` makes a checkpoint part of each commit.
    pub fn open(root: &Path, journal_bytes: u64, options: &MapOptions, eager: bool) -> Result<Managed> {
        let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(root)?;
        let map = store.open_file("data")?.map_with(options)?;
        let marks = map.tracker()? == TrackerKind::Explicit;
        Ok(Managed { map, store, eager, marks })
    }

    pub fn close(self) -> Result<()> {
        self.map.unmap()?;
        Ok(self.store.close()?)
    }
}

impl Memory for Managed {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the only map of the file, used by this thread alone; the slice lives shorter than the borrow.
        unsafe { self.map.as_mut_slice() }
    }

    fn tell(&mut self, offset: usize, len: usize) -> Result<()> {
        if self.marks {
            self.map.mark_dirty(self.map.as_ptr().wrapping_add(offset), len)?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.map.msync()?;
        if self.eager { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        match self.map.tracker()? {
            TrackerKind::Scan | TrackerKind::Explicit => Ok(self.store.checkpoint()?),
            TrackerKind::PageMap => Ok(self.map.reclaim()?),
        }
    }

    fn status(&self) -> Option<Status> {
        Some(self.store.status())
    }
}

impl Memory for MmapMut {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }

    /// `msync` with `MS_SYNC` over the whole mapping.
    fn commit(&mut self) -> Result<()> {
        Ok(self.flush()?)
    }
}

/// The way in which a file came into the page cache. It decides how much a store makes dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// Written page by page: a store makes one page dirty.
    Small,
    /// Written in one go: the page cache may hold the file in large folios, and a store makes a whole folio dirty.
    Large,
}

/// Maps a new file of random bytes with `mmap`.
pub fn plain_mapping(path: &Path, bytes: u64, folios: Folios) -> Result<MmapMut> {
    let step = match folios {
        Folios::Small => PAGE_BYTES,
        Folios::Large => bytes.min(16 << 20) as usize,
    };
    let mut chunk = vec![0; step];
    fastrand::fill(&mut chunk);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    for at in (0..bytes).step_by(step) {
        file.write_all_at(&chunk, at)?;
    }
    file.sync_all()?;
    if folios == Folios::Small {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    }
    map_shared(&file).with_context(|| format!("cannot map {}", path.display()))
}

pub fn map_shared(file: &File) -> std::io::Result<MmapMut> {
    // SAFETY: a file of the benchmark's own, which no other program changes or truncates.
    unsafe { MmapMut::map_mut(file) }
}

/// The pages of a file that are in use: all, or those of every n-th chunk of a sparse file.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub resident_bytes: u64,
    /// One of so many chunks is in use.
    pub one_in: u64,
}

impl Layout {
    pub const CHUNK_BYTES: u64 = 2 << 20;

    pub fn dense(bytes: u64) -> Layout {
        Layout { resident_bytes: bytes, one_in: 1 }
    }

    pub fn file_bytes(&self) -> u64 {
        self.resident_bytes * self.one_in
    }

    pub fn pages(&self) -> usize {
        self.resident_bytes as usize / PAGE_BYTES
    }

    /// The offset of the n-th page in use.
    pub fn offset(&self, page: usize) -> usize {
        let (chunk, inside) = (page * PAGE_BYTES / Layout::CHUNK_BYTES as usize, page * PAGE_BYTES);
        chunk * Layout::CHUNK_BYTES as usize * self.one_in as usize + inside % Layout::CHUNK_BYTES as usize
    }
}

/// Stores to random distinct pages, the same pages for every contender. The bytes are always new, because Untorn
/// commits only differences.
pub struct Stores {
    random: Rng,
    layout: Layout,
    /// All pages; the first `count` are the next to be stored to.
    pages: Vec<u32>,
    count: usize,
    /// The offset of each store in its page.
    slots: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stores {
    /// Stores of `bytes` bytes to `count` of the pages of a file.
    pub fn new(layout: Layout, count: usize, bytes: usize) -> Stores {
        let pages = (0..layout.pages() as u32).collect();
        Stores { random: Rng::with_seed(1), layout, pages, count, slots: vec![0; count], bytes: vec![0; bytes] }
    }

    /// The number of bytes that one cycle changes.
    pub fn changed_bytes(&self) -> usize {
        self.count * self.bytes.len()
    }

    /// Chooses pages and fresh bytes.
    pub fn draw(&mut self) {
        for n in 0..self.count {
            let other = self.random.usize(n..self.pages.len());
            self.pages.swap(n, other);
            self.slots[n] = self.random.usize(..PAGE_BYTES / self.bytes.len()) * self.bytes.len();
        }
        fastrand::fill(&mut self.bytes);
    }

    /// Stores, and names the dirty ranges.
    pub fn store_to(&self, memory: &mut impl Memory) -> Result<()> {
        self.store(memory.bytes());
        let mut places = self.pages.iter().zip(&self.slots);
        places.try_for_each(|(page, slot)| memory.tell(self.layout.offset(*page as usize) + slot, self.bytes.len()))
    }

    pub fn store(&self, memory: &mut [u8]) {
        for (page, slot) in self.pages.iter().zip(&self.slots) {
            let at = self.layout.offset(*page as usize) + slot;
            memory[at..at + self.bytes.len()].copy_from_slice(&self.bytes);
        }
    }
}

/// Stores and commits. Returns the time of both, and of the commit alone.
pub fn cycle(memory: &mut impl Memory, stores: &mut Stores) -> Result<[Duration; 2]> {
    stores.draw();
    let start = Instant::now();
    stores.store_to(memory)?;
    let stored = start.elapsed();
    memory.commit()?;
    let all = start.elapsed();
    Ok([all, all - stored])
}

/// Stores to every page and commits, so that afterwards no page and no private copy is new.
pub fn warm_up(memory: &mut impl Memory) -> Result<()> {
    for at in (0..memory.bytes().len()).step_by(PAGE_BYTES) {
        let byte = &mut memory.bytes()[at];
        *byte = byte.wrapping_add(1);
        memory.tell(at, 1)?;
    }
    memory.commit()?;
    memory.settle()
}

/// Runs some cycles alone, and counts page faults and written bytes.
///
/// The bytes "at commit" do not include an asynchronous checkpoint; the bytes "in all" include it, and everything that
/// was cached.
pub fn account(memory: &mut impl Memory, stores: &mut Stores, place: &Place, cycles: u32) -> Result<Extras> {
    memory.settle()?;
    let status = memory.status();
    let before = place.device_bytes_written()?;
    let (mut faults, mut at_commits) = (0, 0);
    for _ in 0..cycles {
        stores.draw();
        let (faults_before, written_before) = (minor_faults()?, place.device_bytes_written_by_now()?);
        stores.store_to(memory)?;
        memory.commit()?;
        faults += minor_faults()? - faults_before;
        if let (Some(from), Some(to)) = (written_before, place.device_bytes_written_by_now()?) {
            at_commits += to - from;
        }
    }
    let mut extras = Extras::default();
    let per_commit = |n: u64| n as f64 / f64::from(cycles);
    extras.add("faults", per_commit(faults), 1);
    if let (Some(before), Some(after)) = (status, memory.status()) {
        let done = Activity::between(&before, &after);
        let least = u64::from(cycles) * stores.changed_bytes() as u64;
        // A commit by reference journals only the places of the bytes.
        ensure!(done.journal_bytes >= least || done.syncs > 2 * done.commits, "commits without what was stored");
        extras.add("journal B", per_commit(done.journal_bytes), 0);
        extras.add("syncs", per_commit(done.syncs), 2);
    }
    memory.settle()?;
    if let (Some(from), Some(to)) = (before, place.device_bytes_written()?) {
        extras.add("device KiB at commit", per_commit(at_commits) / 1024.0, 1);
        extras.add("device KiB in all", per_commit(to - from) / 1024.0, 1);
    }
    Ok(extras)
}

/// The page faults of this thread that read nothing from disk.
pub fn minor_faults() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat")?;
    // See proc(5): this is the tenth field. The second field, a name in parentheses, may contain anything.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let faults = after_name.split_whitespace().nth(7).and_then(|field| field.parse().ok());
    faults.context("cannot understand /proc/thread-self/stat")
}

/// The processor time of this thread so far, which does not count the turns of other processes.
pub fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_go_to_distinct_pages_and_are_the_same_for_everyone() {
        let [mut a, mut b] = [(); 2].map(|()| Stores::new(Layout::dense(1 << 20), 100, 64));
        let [mut one, mut two] = [(); 2].map(|()| vec![0; 1 << 20]);
        for _ in 0..10 {
            let before = one.clone();
            a.draw();
            b.draw();
            a.store(&mut one);
            assert_ne!(a.bytes, b.bytes);
            two.copy_from_slice(&before);
            b.bytes.clone_from(&a.bytes);
            b.store(&mut two);
            let changed = |page: &(&[u8], &[u8])| page.0 != page.1;
            let pages = one.chunks(PAGE_BYTES).zip(before.chunks(PAGE_BYTES));
            assert_eq!((pages.filter(changed).count(), a.changed_bytes()), (100, 6400));
            assert!(one == two);
        }
    }

    #[test]
    fn a_sparse_layout_takes_whole_chunks() {
        let layout = Layout { resident_bytes: 3 * Layout::CHUNK_BYTES, one_in: 64 };
        let offsets: Vec<u64> = (0..layout.pages()).map(|page| layout.offset(page) as u64).collect();
        let chunks: Vec<u64> = offsets.iter().map(|at| at / Layout::CHUNK_BYTES).collect();
        assert_eq!((chunks[0], chunks[511], chunks[512], chunks[1535]), (0, 0, 64, 128));
        assert!(offsets.windows(2).all(|pair| pair[0] < pair[1]) && offsets[1535] < layout.file_bytes());
    }

    #[test]
    fn faults_are_counted() {
        let before = minor_faults().unwrap();
        let mut pages = MmapMut::map_anon(64 * PAGE_BYTES).unwrap();
        pages.advise(memmap2::Advice::NoHugePage).unwrap();
        pages.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
        assert!(minor_faults().unwrap() - before >= 64);
    }
}
