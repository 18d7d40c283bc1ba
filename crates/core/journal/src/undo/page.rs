//! The page through which an owner and the readers of its store know of each other: `readers` in the store directory.
//!
//! ```text
//! head     identity: store, boot, the file itself, the chain of kept data, the owner's process
//! cells    four numbers: durable, named, kept, given_up
//! figures  behind the page, while a program watches
//! ```
//!
//! The numbers never decrease within a chain, also across owners of one boot. Readers see them through a mapping of the
//! page. Each is published **before** the change that relies on it: `kept` before anything of which the old state was
//! kept is overwritten, `given_up` before anything kept is freed. `durable` is published after the flush. The page is
//! never flushed: after a power cut the boot differs, and an opening begins a new chain.

use crate::directories::spare::open_or_create;
use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, StoreId, crc64, place_of, u32_at, u64_at};
use crate::invariant;
use crate::statistics::figures::{FIGURES_BYTES, Figures};
use crate::undo::holds::{FOLLOWED, HOLDS_END, Holds, WATCHED, oldest_follower};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Release, Ordering::SeqCst, fence};
use std::time::Duration;
use untorn_os::{File, Lines, Listener, Open, Pauses, Storage, View, holds, read_full_at, write_all_at};

/// First bytes of the page.
pub const PAGE_MAGIC: &[u8; 8] = b"UNTORN-R";
/// Version of the page. A reader refuses a newer one.
pub const PAGE_VERSION: u32 = 3;
/// Bytes of the head, its checksum included.
pub const PAGE_HEAD_BYTES: usize = 96;
/// Offset of the chain in the head.
const CHAIN_AT: usize = 64;
/// Offset of the cells.
pub const PAGE_CELLS_AT: usize = 128;
/// Bytes of a cell: a number, and its checksum.
pub const PAGE_CELL_BYTES: usize = 16;
/// Number of cells.
const CELLS: usize = 4;

/// Tries at reading a cell or head that is being written meanwhile.
const TRIES: usize = 1000;

/// Time between two looks whether somebody follows the log.
const FOLLOWERS_LOOK: Duration = Duration::from_millis(1);

/// Tries at reading figures that are being written meanwhile.
const FIGURES_TRIES: usize = 3;

/// A number of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Every commit up to this one is durable.
    Durable,
    /// The names of commits up to this one are on the disk.
    Named,
    /// The kept data: the generation of the index, and how many of its bytes are published ([`Published`]).
    Kept,
    /// Nothing is kept any more for commits before this one.
    GivenUp,
}

/// Owner and identity of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    /// The owner's process, as in the lock file.
    pub pid: u32,
    /// The store.
    pub store: StoreId,
    /// The boot in which the chain was begun.
    pub boot: [u8; 16],
    /// Device of the page itself, and its inode number mixed with its time of birth, because a copy has others.
    pub place: (u64, u64),
    /// A random number that names the chain; 0 if the chain has ended.
    pub chain: u64,
}

impl PageHead {
    /// The bytes of the head.
    pub fn encode(&self) -> [u8; PAGE_HEAD_BYTES] {
        let mut b = [0; PAGE_HEAD_BYTES];
        b[..8].copy_from_slice(PAGE_MAGIC);
        b[8..12].copy_from_slice(&PAGE_VERSION.to_le_bytes());
        b[12..16].copy_from_slice(&self.pid.to_le_bytes());
        b[16..32].copy_from_slice(&self.store);
        b[32..48].copy_from_slice(&self.boot);
        b[48..56].copy_from_slice(&self.place.0.to_le_bytes());
        b[56..64].copy_from_slice(&self.place.1.to_le_bytes());
        b[CHAIN_AT..CHAIN_AT + 8].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc64(&b[..PAGE_HEAD_BYTES - 8]);
        b[PAGE_HEAD_BYTES - 8..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a head and its version. Returns `None` if the head is torn or being written.
    pub fn decode(b: &[u8; PAGE_HEAD_BYTES]) -> Option<(PageHead, u32)> {
        if &b[..8] != PAGE_MAGIC || u64_at(b, PAGE_HEAD_BYTES - 8) != crc64(&b[..PAGE_HEAD_BYTES - 8]) {
            return None;
        }
        let head = PageHead {
            pid: u32_at(b, 12),
            store: b[16..32].try_into().expect("sixteen bytes"),
            boot: b[32..48].try_into().expect("sixteen bytes"),
            place: (u64_at(b, 48), u64_at(b, 56)),
            chain: u64_at(b, CHAIN_AT),
        };
        Some((head, u32_at(b, 8)))
    }
}

/// How much of the index is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The index file.
    pub generation: u64,
    /// The bytes of it that count.
    pub bytes: u64,
}

/// Bits of the length in the cell.
const PUBLISHED_BITS: u32 = 40;

impl Published {
    /// The number in the cell.
    pub fn number(self) -> u64 {
        debug_assert!(self.bytes < 1 << PUBLISHED_BITS, "an index of {} bytes", self.bytes);
        self.generation << PUBLISHED_BITS | self.bytes
    }

    /// The meaning of the number in the cell.
    pub fn of(number: u64) -> Published {
        Published { generation: number >> PUBLISHED_BITS, bytes: number & ((1 << PUBLISHED_BITS) - 1) }
    }
}

/// The bytes of a cell. The checksum reveals a cell that is being written.
pub fn encode_cell(cell: Cell, number: u64) -> [u8; PAGE_CELL_BYTES] {
    let mut b = [0; PAGE_CELL_BYTES];
    b[..8].copy_from_slice(&number.to_le_bytes());
    b[8..].copy_from_slice(&cell_crc(cell, number).to_le_bytes());
    b
}

fn cell_crc(cell: Cell, number: u64) -> u64 {
    let mut b = [cell as u8; 9];
    b[1..].copy_from_slice(&number.to_le_bytes());
    crc64(&b)
}

fn cell_at(cell: Cell) -> usize {
    PAGE_CELLS_AT + cell as usize * PAGE_CELL_BYTES
}

/// Whether somebody followed the log when the owner looked last. Times are those of [`Storage::uptime`].
#[derive(Default)]
struct Followers {
    looked: Option<Duration>,
    are_there: bool,
}

/// The page, as the owner of the store writes it.
pub struct OwnersPage {
    file: Arc<dyn File>,
    /// The page itself, if it is on byte-addressable memory: a number is published without a call.
    memory: Option<Box<dyn Lines>>,
    followers: Mutex<Followers>,
    path: PathBuf,
    chain: u64,
    numbers: Mutex<[u64; CELLS]>,
}

impl OwnersPage {
    /// Goes on with the chain of an earlier owner of this boot; the log ends with this commit. `None` if there is no
    /// such chain, or if the log lacks commits that the page calls durable: an older journal was put back.
    pub fn continued(
        storage: &dyn Storage,
        store_dir: &StoreDir,
        store: StoreId,
        last_lsn: u64,
    ) -> Result<Option<OwnersPage>> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let Some(head) = chain_of(storage, &*file, &path)?.filter(|head| head.store == store) else { return Ok(None) };
        let mut b = [0; PAGE_CELL_BYTES * CELLS];
        read_full_at(&*file, &mut b, PAGE_CELLS_AT as u64).context("read", &path)?;
        let mut numbers = [0; CELLS];
        for cell in [Cell::Durable, Cell::Named, Cell::Kept, Cell::GivenUp] {
            let at = cell_at(cell) - PAGE_CELLS_AT;
            let Some(number) = decode_cell(&b[at..], cell) else { return Ok(None) };
            numbers[cell as usize] = number;
        }
        if numbers[Cell::Durable as usize] > last_lsn {
            return Ok(None);
        }
        // The number tells a person who owns the store. If it cannot be written, nothing depends on it.
        let _ = write_all_at(&*file, &PageHead { pid: std::process::id(), ..head }.encode(), 0);
        Ok(Some(OwnersPage::with(file, path, head.chain, numbers)))
    }

    /// Begins a chain in which everything up to this commit is durable and named. The page keeps its inode, so that
    /// locks of readers of the closed store are seen.
    pub fn begin(storage: &dyn Storage, store_dir: &StoreDir, store: StoreId, lsn: u64) -> Result<OwnersPage> {
        let path = store_dir.readers_page();
        let boot = storage.boot_id().context("read the boot id for", &path)?;
        let (file, _) = open_or_create(storage, &path, false).context("make", &path)?;
        let meta = file.meta().context("look at", &path)?;
        let mut chain = [0; 8];
        storage.random(&mut chain).context("draw a number for", &path)?;
        let chain = u64::from_le_bytes(chain).max(1);
        let head = PageHead { pid: std::process::id(), store, boot, place: place_of(&*file, &meta), chain };
        let numbers = [lsn, lsn, Published { generation: 1, bytes: 0 }.number(), 0];
        let mut behind = vec![0; BLOCK_BYTES - PAGE_HEAD_BYTES];
        for (cell, number) in [Cell::Durable, Cell::Named, Cell::Kept, Cell::GivenUp].into_iter().zip(numbers) {
            let at = cell_at(cell) - PAGE_HEAD_BYTES;
            behind[at..at + PAGE_CELL_BYTES].copy_from_slice(&encode_cell(cell, number));
        }
        write_all_at(&*file, &behind, PAGE_HEAD_BYTES as u64).context("write", &path)?;
        fence(SeqCst);
        // The head comes last: a reader that sees this chain also sees its numbers.
        write_all_at(&*file, &head.encode(), 0).context("write", &path)?;
        fence(SeqCst);
        Ok(OwnersPage::with(file, path, chain, numbers))
    }

    fn with(file: Arc<dyn File>, path: PathBuf, chain: u64, numbers: [u64; CELLS]) -> OwnersPage {
        let memory = file.lines(BLOCK_BYTES as u64).ok();
        OwnersPage { file, memory, followers: Mutex::default(), path, chain, numbers: Mutex::new(numbers) }
    }

    /// Publishes a number, if it is higher than the published one.
    ///
    /// # Errors
    /// The page cannot be written, so the change that relies on the number must not be made.
    pub fn raise(&self, cell: Cell, number: u64) -> Result<()> {
        let mut numbers = self.numbers.lock();
        let known = &mut numbers[cell as usize];
        if *known >= number {
            return Ok(());
        }
        let (bytes, at) = (encode_cell(cell, number), cell_at(cell) as u64);
        let written = match &self.memory {
            Some(memory) => {
                // A reader that sees the number sees all earlier stores.
                fence(Release);
                memory.copy(&bytes, at)
            }
            None => write_all_at(&*self.file, &bytes, at),
        };
        written.context("write", &self.path)?;
        *known = number;
        fence(SeqCst);
        Ok(())
    }

    /// Wakes those who follow the log. A number that was published without a call is no event for them, so it is written
    /// once more. Followers who came within the last `FOLLOWERS_LOOK` are not known yet, and look again by themselves.
    pub fn wake_followers(&self, storage: &dyn Storage) {
        if self.memory.is_none() {
            return;
        }
        let now = storage.uptime();
        let mut followers = self.followers.lock();
        if followers.looked.is_none_or(|looked| now.saturating_sub(looked) >= FOLLOWERS_LOOK) {
            followers.are_there = !matches!(self.file.held(FOLLOWED..FOLLOWED + HOLDS_END), Ok(None));
            followers.looked = Some(now);
        }
        if followers.are_there {
            let numbers = self.numbers.lock();
            let bytes = encode_cell(Cell::Durable, numbers[Cell::Durable as usize]);
            let _ = write_all_at(&*self.file, &bytes, cell_at(Cell::Durable) as u64);
        }
    }

    /// The published number.
    pub fn told(&self, cell: Cell) -> u64 {
        self.numbers.lock()[cell as usize]
    }

    /// Whether somebody may hold a commit before this one.
    pub fn is_held_before(&self, lsn: u64) -> bool {
        fence(SeqCst);
        let from = self.told(Cell::GivenUp).min(HOLDS_END);
        // If the kernel cannot say, somebody may.
        !matches!(self.file.held(from..lsn.clamp(from, HOLDS_END)), Ok(None))
    }

    /// The commits that readers hold, of those that are not given up.
    pub fn holds(&self) -> Result<Holds> {
        fence(SeqCst);
        Holds::list(&*self.file, self.told(Cell::GivenUp)).context("list the readers of", &self.path)
    }

    /// The LSN of the follower that has the fewest commits.
    pub fn oldest_follower(&self) -> Option<u64> {
        oldest_follower(&*self.file).ok().flatten()
    }

    /// How many commits readers hold; `most` of them are counted.
    pub fn held(&self, most: usize) -> usize {
        let holds = Holds::list_some(&*self.file, self.told(Cell::GivenUp), most);
        holds.map_or(0, |holds| holds.commits().len().min(most))
    }

    /// Whether a program watches the figures of the owner.
    pub fn is_watched(&self) -> bool {
        matches!(self.file.held(WATCHED..WATCHED + 1), Ok(Some(_)))
    }

    /// Replaces the figures behind the page. Nothing depends on them.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub fn publish(&self, figures: &Figures) -> Result<()> {
        write_all_at(&*self.file, &figures.encode(self.chain), BLOCK_BYTES as u64).context("write", &self.path)
    }
}

/// Ends the chain of a page, because later changes are not shown to readers: every snapshot ends.
pub fn end_chain(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
    let path = store_dir.readers_page();
    let file = match storage.open(&path, Open::WRITE) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => done.context("open", &path)?,
    };
    let mut boot = [0; 16];
    storage.random(&mut boot).context("draw a number for", &path)?;
    let nobody = PageHead { pid: 0, store: [0; 16], boot, place: (0, 0), chain: 0 };
    let told = write_all_at(&*file, &nobody.encode(), 0);
    fence(SeqCst);
    // Readers that hold this file see its end. The next owner makes another one.
    match told {
        Err(e) if !matches!(file.held(0..HOLDS_END), Ok(None)) => return Err(Error::io("write", &path, e)),
        _ => {}
    }
    match storage.unlink(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", &path, e)),
        _ => Ok(()),
    }
}

/// The page, as readers see it.
pub struct ReadersPage {
    file: Arc<dyn File>,
    view: Box<dyn View>,
    path: PathBuf,
    place: (u64, u64),
    /// The chain, or the bytes in its place in the page of a store that nobody has opened since the boot.
    chain: AtomicU64,
    /// The chain of this boot was seen.
    has_begun: std::sync::atomic::AtomicBool,
}

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Nobody has opened the store since the boot.
    NotBegun,
    /// The numbers count.
    Begun,
    /// Held commits are no longer kept.
    Ended,
}

impl ReadersPage {
    /// Opens the page of any owner. `None` if there is no page.
    pub fn open(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<ReadersPage>> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let meta = file.meta().context("look at", &path)?;
        if meta.size < BLOCK_BYTES as u64 || meta.links == 0 {
            return Ok(None);
        }
        let view = match file.view(BLOCK_BYTES) {
            // A file system without shared mappings.
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => return Ok(None),
            done => done.context("map", &path)?,
        };
        let before = u64::from_le(view.load(CHAIN_AT));
        let has_begun = chain_of(storage, &*file, &path)?;
        let chain = has_begun.map_or(before, |head| head.chain);
        Ok(Some(ReadersPage {
            file,
            view,
            path,
            place: (meta.device, meta.inode),
            chain: AtomicU64::new(chain),
            has_begun: has_begun.is_some().into(),
        }))
    }

    /// The state of the page now.
    pub fn chain(&self, storage: &dyn Storage) -> Result<Chain> {
        let (now, known) = (u64::from_le(self.view.load(CHAIN_AT)), self.chain.load(SeqCst));
        match (now == known, self.has_begun.load(SeqCst)) {
            (true, true) => return Ok(Chain::Begun),
            (true, false) => return Ok(Chain::NotBegun),
            (false, true) => return Ok(Chain::Ended),
            (false, false) => {}
        }
        // Somebody has opened the store since.
        let Some(head) = chain_of(storage, &*self.file, &self.path)? else { return Ok(Chain::Ended) };
        self.chain.store(head.chain, SeqCst);
        self.has_begun.store(true, SeqCst);
        Ok(Chain::Begun)
    }

    /// A published number.
    pub fn number(&self, cell: Cell) -> Result<u64> {
        for _ in 0..TRIES {
            let number = u64::from_le(self.view.load(cell_at(cell)));
            if u64::from_le(self.view.load(cell_at(cell) + 8)) == cell_crc(cell, number) {
                return Ok(number);
            }
            std::hint::spin_loop();
        }
        Err(Error::corrupt(&self.path, format!("its number {cell:?} has a wrong checksum")))
    }

    /// Opens the page once more, for locks of its own. `None` if another page has taken the place of this one.
    pub fn opened_again(&self, storage: &dyn Storage) -> Result<Option<Arc<dyn File>>> {
        let file = match storage.open(&self.path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &self.path)?,
        };
        let meta = file.meta().context("look at", &self.path)?;
        Ok(((meta.device, meta.inode) == self.place).then_some(file))
    }

    /// Waits for numbers that the owner publishes from now on.
    pub fn listen(&self) -> Box<dyn Listener> {
        self.file.listen().unwrap_or_else(|_| Box::new(Pauses))
    }
}

/// The page, as a program sees it that watches the owner. Not mapped: the store's user may cut the file.
pub struct WatchedPage {
    file: Arc<dyn File>,
    path: PathBuf,
    place: (u64, u64),
}

impl WatchedPage {
    /// Opens the page of any owner, and asks that and the next ones for figures until it is dropped. `None` if there is
    /// no page.
    pub fn open(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<WatchedPage>> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let meta = file.meta().context("look at", &path)?;
        file.hold(WATCHED..WATCHED + 1).context("lock", &path)?;
        Ok(Some(WatchedPage { file, path, place: (meta.device, meta.inode) }))
    }

    /// Whether this is still the page of the store.
    pub fn is_current(&self, storage: &dyn Storage) -> bool {
        storage.stat(&self.path).is_ok_and(|meta| (meta.device, meta.inode) == self.place)
    }

    /// The figures that an owner published last in this chain; `None` if there are none.
    pub fn figures(&self, storage: &dyn Storage) -> Result<Option<Figures>> {
        let Some(head) = chain_of(storage, &*self.file, &self.path)? else { return Ok(None) };
        for _ in 0..FIGURES_TRIES {
            let mut b = [0; FIGURES_BYTES];
            if read_full_at(&*self.file, &mut b, BLOCK_BYTES as u64).context("read", &self.path)? < FIGURES_BYTES {
                return Ok(None);
            }
            if let Some(figures) = Figures::decode(&b, head.chain) {
                return Ok(Some(figures));
            }
        }
        Ok(None)
    }
}

/// The head of a chain of this boot in this file, if there is one.
fn chain_of(storage: &dyn Storage, file: &dyn File, path: &Path) -> Result<Option<PageHead>> {
    let meta = file.meta().context("look at", path)?;
    let Some((head, version)) = read_head(file).context("read", path)? else { return Ok(None) };
    if version > PAGE_VERSION {
        return Err(Error::NewerVersion { path: path.to_owned(), found: version, supported: PAGE_VERSION });
    }
    let is_here = head.place == place_of(file, &meta) && storage.boot_id().is_ok_and(|boot| boot == head.boot);
    let is_chain = version == PAGE_VERSION && head.chain != 0;
    Ok((is_chain && (is_here || !holds(invariant::OTHER_BOOT_VOID))).then_some(head))
}

/// The commits of a store that readers hold, whether the store is open or closed.
pub fn held_commits(storage: &dyn Storage, store_dir: &StoreDir) -> Vec<u64> {
    let Ok(page) = storage.open(&store_dir.readers_page(), Open::READ) else { return Vec::new() };
    Holds::list(&*page, 0).map(|holds| holds.commits()).unwrap_or_default()
}

fn decode_cell(b: &[u8], cell: Cell) -> Option<u64> {
    let number = u64_at(b, 0);
    (u64_at(b, 8) == cell_crc(cell, number)).then_some(number)
}

fn read_head(file: &dyn File) -> io::Result<Option<(PageHead, u32)>> {
    for _ in 0..TRIES {
        let mut b = [0; PAGE_HEAD_BYTES];
        if read_full_at(file, &mut b, 0)? < PAGE_HEAD_BYTES {
            return Ok(None);
        }
        if let Some(found) = PageHead::decode(&b) {
            return Ok(Some(found));
        }
        if &b[..8] != PAGE_MAGIC {
            return Ok(None);
        }
    }
    Ok(None)
}
