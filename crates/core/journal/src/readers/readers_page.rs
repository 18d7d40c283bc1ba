//! The page that the owner of a store keeps for readers: `readers` in the store directory.
//!
//! ```text
//! head     owner and identity: store, machine and boot, the file itself, the owner's process, its life
//! cells    four LSNs: durable, names_to, wanted_to, applying_to
//! log      a copy of the newest log writes, if a reader follows the log: reading it takes no disk access
//! ```
//!
//! A reader takes no lock that an owner waits for, except leases. It reads header, log and data files, and compares the
//! page afterwards: the data is consistent if the life is still the same and nothing newer was being written where it
//! read. So each LSN is published **before** the change that it announces, except `durable`, which is published after
//! the flush. Within a life, LSNs never decrease; a new life begins where its log ends, behind all LSNs that an earlier
//! life published. The page is never flushed: after a power cut the boot id differs, and readers do not believe the
//! page.

use crate::directories::spare::open_or_create;
use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, StoreId, crc64, u32_at, u64_at};
use crate::invariant;
use crate::readers::leases::{closed_life, header_bytes, held, lease_at, leases_of, wait};
use crate::readers::moment::{Moment, is_read, let_pass};
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use untorn_os::{File, Listener, Open, Pauses, Storage, holds, read_full_at, write_all_at};

/// First bytes of the page.
pub const PAGE_MAGIC: &[u8; 8] = b"UNTORN-R";
/// Version of the page. A reader refuses a newer one.
pub const PAGE_VERSION: u32 = 1;
/// Bytes of the head, its checksum included.
pub const PAGE_HEAD_BYTES: usize = 96;
/// Offset of the cells.
pub const PAGE_CELLS_AT: usize = 128;
/// Bytes of a cell: an LSN, and its checksum.
pub const PAGE_CELL_BYTES: usize = 16;
/// Number of cells.
const CELLS: usize = 4;
const ALL_CELLS: [Cell; CELLS] = [Cell::Durable, Cell::NamesTo, Cell::WantedTo, Cell::ApplyingTo];

/// Bytes behind the page to which the owner copies its log writes. The byte at an offset of a segment is
/// copied to that offset modulo this size.
pub const LOG_SHOWN_BYTES: u64 = 64 << 10;
/// Largest group that is copied.
pub(crate) const GROUP_SHOWN_MAX: usize = 16 << 10;

/// Tries at reading a cell or head that is being written meanwhile.
const TRIES: usize = 100;

/// An LSN of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Every commit up to this one is durable.
    Durable,
    /// Names may have changed by commits up to this one.
    NamesTo,
    /// A checkpoint wants to apply commits up to this one.
    WantedTo,
    /// Data files may hold parts of commits up to this one.
    ApplyingTo,
}

/// Owner and identity of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    /// The owner's process, as in the lock file.
    pub pid: u32,
    /// The store.
    pub store: StoreId,
    /// The boot in which the owner runs.
    pub boot: [u8; 16],
    /// Device and inode of the page itself, because a copy has others. In a page without an owner: 0 and the life of
    /// its last owner.
    pub place: (u64, u64),
    /// A random number that this opening of the store drew; 0 if the page has no owner.
    pub life: u64,
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
        b[64..72].copy_from_slice(&self.life.to_le_bytes());
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
            life: u64_at(b, 64),
        };
        Some((head, u32_at(b, 8)))
    }
}

/// The bytes of a cell. The checksum reveals a cell that is being written.
pub fn encode_cell(cell: Cell, lsn: u64) -> [u8; PAGE_CELL_BYTES] {
    let mut b = [0; PAGE_CELL_BYTES];
    b[..8].copy_from_slice(&lsn.to_le_bytes());
    b[8..].copy_from_slice(&cell_crc(cell, lsn).to_le_bytes());
    b
}

fn cell_crc(cell: Cell, lsn: u64) -> u64 {
    let mut b = [cell as u8; 9];
    b[1..].copy_from_slice(&lsn.to_le_bytes());
    crc64(&b)
}

fn cell_at(cell: Cell) -> u64 {
    (PAGE_CELLS_AT + cell as usize * PAGE_CELL_BYTES) as u64
}

/// The page, as the owner of the store writes it.
pub struct OwnersPage {
    storage: Arc<dyn Storage>,
    file: Arc<dyn File>,
    path: PathBuf,
    head: PageHead,
    /// The published LSNs, or `None` if the page was given up.
    published: Mutex<Option<[u64; CELLS]>>,
    /// No reader relies on state from before data files could hold parts of commits up to this one.
    passed: Mutex<u64>,
    /// How long leases are honoured.
    honoured: Duration,
    /// Time since which nobody gets a lease any more.
    ends_since: OnceLock<Duration>,
}

impl OwnersPage {
    /// Invalidates the page that an earlier owner left, after honouring its leases for this long. The caller holds the
    /// store's lock and has changed nothing yet.
    pub fn withdraw(storage: &dyn Storage, store_dir: &StoreDir, honoured: Duration) -> Result<()> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                if holds(invariant::MOMENT_PASSES_UNSEEN) {
                    let_pass(storage, None);
                }
                return Ok(());
            }
            done => done.context("open", &path)?,
        };
        if holds(invariant::NEXT_OWNER_WAITS) {
            wait_for_former(storage, store_dir, &*file, honoured)?;
        }
        // A new random number each time, so that a reader that holds a commit of a closed store sees that an owner
        // came.
        let mut boot = [0; 16];
        storage.random(&mut boot).context("draw a number for", &path)?;
        let nobody = PageHead { pid: 0, store: [0; 16], boot, place: (0, 0), life: 0 };
        end_life(storage, &*file, &path, &nobody).context("withdraw", &path)
    }

    /// Publishes a page: everything up to this LSN is durable, and may be applied. Readers must not believe the old
    /// contents of the file, because it was withdrawn before.
    pub fn publish(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        store: StoreId,
        lsn: u64,
        honoured: Duration,
    ) -> Result<Arc<OwnersPage>> {
        let path = store_dir.readers_page();
        let boot = storage.boot_id().context("read the boot id for", &path)?;
        let (file, _) = open_or_create(&**storage, &path, false).context("make", &path)?;
        let meta = file.meta().context("look at", &path)?;
        let mut life = [0; 8];
        storage.random(&mut life).context("draw a life for", &path)?;
        let life = u64::from_le_bytes(life).max(1);
        let head = PageHead { pid: std::process::id(), store, boot, place: (meta.device, meta.inode), life };
        let mut behind = vec![0; BLOCK_BYTES - PAGE_HEAD_BYTES];
        for cell in ALL_CELLS {
            let at = cell_at(cell) as usize - PAGE_HEAD_BYTES;
            behind[at..at + PAGE_CELL_BYTES].copy_from_slice(&encode_cell(cell, lsn));
        }
        write_all_at(&*file, &behind, PAGE_HEAD_BYTES as u64).context("write", &path)?;
        // The rest of the file is an earlier life's copy of the log.
        if meta.size > BLOCK_BYTES as u64 {
            file.set_len(BLOCK_BYTES as u64).context("cut", &path)?;
        }
        fence(SeqCst);
        // The head comes last: a reader that sees this life also sees its LSNs.
        write_all_at(&*file, &head.encode(), 0).context("write", &path)?;
        let (published, passed) = (Mutex::new(Some([lsn; CELLS])), Mutex::new(lsn));
        let (storage, ends_since) = (storage.clone(), OnceLock::new());
        Ok(Arc::new(OwnersPage { storage, file, path, head, published, passed, honoured, ends_since }))
    }

    /// Publishes an LSN, if it is higher than the published one. A page that cannot be written is given up: readers are
    /// refused from then on.
    ///
    /// # Errors
    /// The page can be neither written nor given up, so the change that it was to announce must not be made.
    pub fn raise(&self, cell: Cell, lsn: u64) -> Result<()> {
        let mut published = self.published.lock();
        let Some(cells) = &mut *published else { return Ok(()) };
        let known = &mut cells[cell as usize];
        if *known >= lsn {
            return Ok(());
        }
        if write_all_at(&*self.file, &encode_cell(cell, lsn), cell_at(cell)).is_ok() {
            *known = lsn;
            debug_assert!(
                cells[Cell::ApplyingTo as usize] <= cells[Cell::WantedTo as usize],
                "{cell:?} to {lsn}: applying was announced before it was wanted: {cells:?}"
            );
            fence(SeqCst);
            return Ok(());
        }
        self.end_life().context("write the readers' page", &self.path)?;
        // Only after the life ended: otherwise readers would believe a page that no longer gets announcements.
        *published = None;
        Ok(())
    }

    /// Copies a flushed group, written at this offset of its segment, to where readers find it without disk access, if
    /// there are readers. They verify it: a copy that does not continue their log is ignored.
    pub(crate) fn show_log(&self, position: u64, group: &[u8]) {
        if group.len() > GROUP_SHOWN_MAX || self.published.lock().is_none() || !is_read(&*self.file) {
            return;
        }
        let mut left = group;
        for (at, len) in shown_at(position, group.len()) {
            let piece;
            (piece, left) = left.split_at(len);
            // If the copy fails, readers read the log itself.
            if write_all_at(&*self.file, piece, at).is_err() {
                return;
            }
        }
    }

    /// The published LSN, or `None` if the page was given up.
    pub fn told(&self, cell: Cell) -> Option<u64> {
        self.published.lock().map(|cells| cells[cell as usize])
    }

    /// Announces that data files are about to hold parts of commits up to this one. First waits for leases on older
    /// commits.
    pub fn raise_applying(&self, lsn: u64) -> Result<()> {
        let Some(applied) = self.told(Cell::ApplyingTo) else { return Ok(()) };
        if applied < lsn {
            if holds(invariant::WANTED_FIRST) {
                self.raise(Cell::WantedTo, lsn)?;
            }
            if holds(invariant::LEASES_WAITED_FOR) {
                self.wait_for_leases(applied, lsn);
            }
            self.raise(Cell::WantedTo, lsn)?;
        }
        // A second thread that applies up to the same LSN continues when the grace period is over, not when the LSN was
        // announced.
        let mut passed = self.passed.lock();
        if *passed < lsn {
            self.raise(Cell::ApplyingTo, lsn)?;
            if holds(invariant::MOMENT_PASSES) {
                let_pass(&*self.storage, Some(&*self.file));
            }
            *passed = lsn;
        }
        Ok(())
    }

    /// Waits for unbroken leases on commits before this one. No new ones can be taken any more.
    fn wait_for_leases(&self, applied: u64, lsn: u64) {
        let from = if holds(invariant::BROKEN_LEASES_FORGOTTEN) { applied } else { 0 };
        let end = || self.ends_since.get().map_or(Duration::MAX, |since| since.saturating_add(self.honoured));
        wait(&*self.storage, &*self.file, &[leases_of(self.head.life, from..lsn)], self.honoured, end);
    }

    /// The commits before this one that readers hold.
    pub fn held_before(&self, lsn: u64) -> Vec<u64> {
        let applied = self.told(Cell::ApplyingTo);
        applied.map(|applied| held(&*self.file, self.head.life, applied..lsn)).unwrap_or_default()
    }

    /// Whether readers hold a commit before this one.
    pub fn is_held_before(&self, lsn: u64) -> bool {
        let Some(applied) = self.told(Cell::ApplyingTo) else { return false };
        matches!(self.file.leased(leases_of(self.head.life, applied..lsn)), Ok(Some(_)))
    }

    /// Stops granting leases, because the owner closes the store.
    pub fn begin_end(&self) {
        let _ = self.ends_since.set(self.storage.uptime());
        let _ = self.raise(Cell::WantedTo, u64::MAX);
    }

    /// Withdraws the page, because the owner closes the store or makes changes that no reader may see. Waits for
    /// leases; later changes are not announced.
    pub fn end(&self) -> Result<()> {
        self.begin_end();
        if let Some(applied) = self.told(Cell::ApplyingTo).filter(|_| holds(invariant::LEASES_WAITED_FOR)) {
            self.wait_for_leases(applied, u64::MAX);
        }
        let mut published = self.published.lock();
        if published.is_some() {
            self.end_life().context("withdraw", &self.path)?;
            *published = None;
        }
        Ok(())
    }

    fn end_life(&self) -> io::Result<()> {
        // The old life is in the head, so that a reader that holds a commit of the closed store sees that an owner
        // came.
        let head = PageHead { life: 0, place: (0, self.head.life), ..self.head };
        end_life(&*self.storage, &*self.file, &self.path, &head)
    }
}

/// Waits for leases of readers of the state that a killed owner or a closed store left.
fn wait_for_former(storage: &dyn Storage, store_dir: &StoreDir, page: &dyn File, honoured: Duration) -> Result<()> {
    let path = store_dir.readers_page();
    let head = read_head(page).context("read", &path)?;
    let life = head.map_or(0, |(head, _)| head.life);
    if life != 0 {
        // Nobody gets a lease from now on. Without an owner, readers see that the store is locked.
        let _ = write_all_at(page, &encode_cell(Cell::WantedTo, u64::MAX), cell_at(Cell::WantedTo));
        fence(SeqCst);
    }
    let applied = if life == 0 { None } else { read_cell(page, Cell::ApplyingTo).context("read", &path)? };
    let of_life = applied.map(|applied| leases_of(life, applied..u64::MAX));
    let page_head = head_bytes(page).context("read", &path)?;
    let of_closed = leases_of(closed_life(&header_bytes(storage, store_dir)?, &page_head), 0..u64::MAX);
    let ranges: Vec<_> = of_life.into_iter().chain([of_closed]).collect();
    wait(storage, page, &ranges, honoured, || Duration::MAX);
    Ok(())
}

/// Ends the page's life. Readers that have the page open see that in its head, or because the page has no name, or is
/// cut off.
fn end_life(storage: &dyn Storage, file: &dyn File, path: &std::path::Path, head: &PageHead) -> io::Result<()> {
    let done = write_all_at(file, &head.encode(), 0).or_else(|e| {
        let removed = storage.unlink(path).or_else(|_| file.set_len(0));
        removed.map_err(|_| e)
    });
    fence(SeqCst);
    if holds(invariant::MOMENT_PASSES) {
        let_pass(storage, Some(file));
    }
    done
}

/// The page, as readers see it: that of an owner that was alive when it was opened.
#[derive(Clone)]
pub struct ReadersPage {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Owner and identity of the page.
    pub head: PageHead,
}

/// The contents of a page at one moment. A new owner ends the previous life before it publishes its own LSNs, and
/// begins these behind the previous ones. So the LSNs belong to the life that is seen, or are too high for a reader of
/// that life.
pub struct PageNow {
    /// The page is valid: the owner that published it still keeps it, or was killed and has no successor yet.
    pub is_kept: bool,
    lsns: [Option<u64>; CELLS],
}

impl PageNow {
    /// An LSN, or `None` if the page was cut off or the cell is torn.
    pub fn lsn(&self, cell: Cell) -> Option<u64> {
        self.lsns[cell as usize]
    }
}

impl ReadersPage {
    /// Opens the page, if there is one that an owner keeps, on this file system and in this boot.
    pub fn open(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<ReadersPage>> {
        let path = store_dir.readers_page();
        let Some(file) = open_page(storage, store_dir)? else { return Ok(None) };
        let meta = file.meta().context("look at", &path)?;
        let Some((head, version)) = read_head(&*file).context("read", &path)? else { return Ok(None) };
        if version > PAGE_VERSION {
            return Err(Error::NewerVersion { path, found: version, supported: PAGE_VERSION });
        }
        let is_here = head.place == (meta.device, meta.inode) && storage.boot_id().is_ok_and(|boot| boot == head.boot);
        Ok((head.life != 0 && is_here).then_some(ReadersPage { file, path, head }))
    }

    /// Reads the present contents of the page.
    pub fn look(&self) -> Result<PageNow> {
        fence(SeqCst);
        let is_named = self.file.meta().context("look at", &self.path)?.links > 0;
        let (head, lsns) = read_page(&*self.file).context("read", &self.path)?;
        Ok(PageNow { is_kept: is_named && head == Some(self.head), lsns })
    }

    /// Shows the owner that somebody reads, as long as the returned value lives: the owner then copies its log and
    /// grants readers a grace period.
    pub(crate) fn moment(&self, storage: &dyn Storage) -> Moment {
        Moment::shown_in(storage, Some(&*self.file))
    }

    /// The bytes that the owner may have copied from this part of the log.
    pub(crate) fn shown_log(&self, position: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut found = vec![0; bytes];
        let mut done = 0;
        for (at, len) in shown_at(position, bytes) {
            let n = read_full_at(&*self.file, &mut found[done..done + len], at).ok()?;
            done += n;
            if n < len {
                break;
            }
        }
        found.truncate(done);
        Some(found)
    }

    /// Takes a lease on this commit, which is valid if no newer commit is wanted afterwards. Returns `None` if that is
    /// not possible.
    pub fn lease(&self, storage: &dyn Storage, lsn: u64) -> Result<Option<Arc<dyn File>>> {
        let Some(at) = lease_at(self.head.life, lsn) else { return Ok(None) };
        let file = storage.open(&self.path, Open::READ).context("open", &self.path)?;
        let locked = file.lease(at).context("take a lease in", &self.path)?;
        fence(SeqCst);
        // The lease must be on the page that the owner looks at.
        let head = read_head(&*file).context("read", &self.path)?;
        Ok((locked && head.is_some_and(|(head, _)| head == self.head)).then_some(file))
    }

    /// Waits for LSNs that the owner publishes from now on.
    pub fn listen(&self) -> Box<dyn Listener> {
        self.file.listen().unwrap_or_else(|_| Box::new(Pauses))
    }
}

/// The commits of a store that readers hold, whether the store is open or closed.
pub fn held_commits(storage: &dyn Storage, store_dir: &StoreDir) -> Vec<u64> {
    let Ok(page) = storage.open(&store_dir.readers_page(), Open::READ) else { return Vec::new() };
    let life = read_head(&*page).ok().flatten().map_or(0, |(head, _)| head.life);
    let applied = read_cell(&*page, Cell::ApplyingTo).ok().flatten().unwrap_or(0);
    let mut found = if life == 0 { Vec::new() } else { held(&*page, life, applied..u64::MAX) };
    if let (Ok(header), Ok(page_head)) = (header_bytes(storage, store_dir), head_bytes(&*page)) {
        found.extend(held(&*page, closed_life(&header, &page_head), 0..u64::MAX));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Takes a lease on a commit of a closed store, in this life. Returns `None` if that is not possible.
pub fn lease_of_closed(
    storage: &dyn Storage,
    store_dir: &StoreDir,
    life: u64,
    lsn: u64,
) -> Result<Option<LeaseOfClosed>> {
    let path = store_dir.readers_page();
    let Some(at) = lease_at(life, lsn) else { return Ok(None) };
    let open = || storage.open(&path, Open::READ).context("open", &path);
    let (lease, page) = (open()?, open()?);
    let locked = lease.lease(at).context("take a lease in", &path)?;
    fence(SeqCst);
    let inode = |file: &dyn File| file.meta().map(|meta| (meta.device, meta.inode)).context("look at", &path);
    let is_same = inode(&*lease)? == inode(&*page)?;
    Ok((locked && is_same).then_some(LeaseOfClosed { lease, page }))
}

/// A lease of a commit of a store that nobody has open.
pub struct LeaseOfClosed {
    /// The lock, which ends when this descriptor is closed.
    pub lease: Arc<dyn File>,
    /// The page.
    pub page: Arc<dyn File>,
}

/// The page that a store has now, whether an owner keeps it or not.
pub fn open_page(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<Arc<dyn File>>> {
    let path = store_dir.readers_page();
    match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        done => done.context("open", &path).map(Some),
    }
}

/// The head of a page; empty if there is no page.
pub fn page_head_of(page: Option<&dyn File>, store_dir: &StoreDir) -> Result<Vec<u8>> {
    page.map_or(Ok(Vec::new()), |page| head_bytes(page).context("read", store_dir.readers_page()))
}

/// The bytes of the head; empty if the page has no name any more.
pub fn head_bytes(page: &dyn File) -> io::Result<Vec<u8>> {
    let mut b = vec![0; PAGE_HEAD_BYTES];
    let n = read_full_at(page, &mut b, 0)?;
    b.truncate(if page.meta()?.links > 0 { n } else { 0 });
    Ok(b)
}

/// The offsets and lengths of the copies of bytes at an offset of a segment.
fn shown_at(position: u64, bytes: usize) -> impl Iterator<Item = (u64, usize)> {
    let within = position % LOG_SHOWN_BYTES;
    let first = bytes.min((LOG_SHOWN_BYTES - within) as usize);
    let at = BLOCK_BYTES as u64;
    [(at + within, first), (at, bytes - first)].into_iter().filter(|(_, len)| *len > 0)
}

fn decode_cell(b: &[u8], cell: Cell) -> Option<u64> {
    let lsn = u64_at(b, 0);
    (u64_at(b, 8) == cell_crc(cell, lsn)).then_some(lsn)
}

/// The head, if it is valid, and the valid LSNs. One read returns all of them, the head first.
fn read_page(file: &dyn File) -> io::Result<(Option<PageHead>, [Option<u64>; CELLS])> {
    let (mut head, mut lsns) = (None, [None; CELLS]);
    for _ in 0..TRIES {
        let mut b = [0; PAGE_CELLS_AT + CELLS * PAGE_CELL_BYTES];
        if read_full_at(file, &mut b, 0)? < b.len() {
            return Ok((None, [None; CELLS]));
        }
        head = PageHead::decode(b[..PAGE_HEAD_BYTES].try_into().expect("a head")).map(|(head, _)| head);
        lsns = ALL_CELLS.map(|cell| decode_cell(&b[cell_at(cell) as usize..][..PAGE_CELL_BYTES], cell));
        if head.is_some() && lsns.iter().all(Option::is_some) {
            break;
        }
    }
    Ok((head, lsns))
}

fn read_cell(file: &dyn File, cell: Cell) -> io::Result<Option<u64>> {
    Ok(read_page(file)?.1[cell as usize])
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
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_cannot_be_ended_is_not_taken_for_ended() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = untorn_os::Linux::open(dir.path()).unwrap();
        let store_dir = StoreDir::of_directory();
        storage.mkdir(&store_dir.dir, 0o700).unwrap();
        let page = OwnersPage::publish(&storage, &store_dir, [1; 16], 5, Duration::ZERO).unwrap();
        let readers = ReadersPage::open(&*storage, &store_dir).unwrap().unwrap();
        // The page can be neither written, nor removed, nor cut.
        let file = storage.open(&store_dir.readers_page(), Open::READ).unwrap();
        let mut page = Arc::into_inner(page).unwrap();
        (page.file, page.path) = (file, "nowhere".into());
        for _ in 0..2 {
            assert!(page.raise(Cell::Durable, 6).is_err() && page.raise_applying(6).is_err());
        }
        assert!(page.end().is_err() && readers.look().unwrap().is_kept);
    }
}
