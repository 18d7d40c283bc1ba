//! The page that the owner of a store keeps for readers: `readers` in the store directory.
//!
//! ```text
//! head     whose page it is: store, machine and boot, the file itself, the owner's process, its life
//! cells    four LSNs: durable, names_to, wanted_to, applying_to
//! ```
//!
//! A reader takes no lock. It reads header, log and data files, and compares afterwards: what it read is of one moment if
//! the life is still the same and nothing newer was being written where it read. So each LSN is published **before** the
//! change that it tells of, but `durable`, which is published after the flush. Within a life they never decrease; a new
//! life begins where its log ends, behind everything that a life before it has published. Nothing here is flushed: after
//! a power cut the boot is another one, and the page is not believed.

use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, StoreId, crc64, u32_at, u64_at};
use crate::spare::open_or_create;
use crate::store_dir::StoreDir;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use untorn_os::{File, Open, Storage, read_full_at, write_all_at};

/// First bytes of the page.
pub const PAGE_MAGIC: &[u8; 8] = b"UNTORN-R";
/// Version of the page. A reader refuses a newer one.
pub const PAGE_VERSION: u32 = 1;
/// Bytes of the head, its checksum included.
pub const PAGE_HEAD_BYTES: usize = 96;
/// Where the cells begin.
pub const PAGE_CELLS_AT: usize = 128;
/// Bytes of a cell: an LSN, and its checksum.
pub const PAGE_CELL_BYTES: usize = 16;
/// Cells.
const CELLS: usize = 4;

/// Reads of a cell or head that was being written meanwhile are repeated so often.
const TRIES: usize = 100;

/// An LSN of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Every commit up to this one is durable.
    Durable,
    /// Names may have changed as far as commits up to this one say.
    NamesTo,
    /// A checkpoint wants to apply commits up to this one.
    WantedTo,
    /// Data files may hold parts of commits up to this one.
    ApplyingTo,
}

/// Whose page it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    /// The owner's process, as in the lock file.
    pub pid: u32,
    /// The store.
    pub store: StoreId,
    /// The boot in which the owner runs.
    pub boot: [u8; 16],
    /// Device and inode of the page itself: a copy has others.
    pub place: (u64, u64),
    /// A random number that this opening of the store drew; 0: nobody keeps the page.
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

    /// Reads a head; none: it is not whole, or being written.
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

/// The bytes of a cell. The checksum tells a cell that is just being written.
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

/// The owner's side.
pub struct OwnersPage {
    storage: Arc<dyn Storage>,
    file: Arc<dyn File>,
    path: PathBuf,
    head: PageHead,
    /// What was published; none: the page was given up.
    published: Mutex<Option<[u64; CELLS]>>,
}

impl OwnersPage {
    /// Whatever page an owner before has left: from now on nobody believes it. Called with the store's lock, before
    /// anything changes.
    pub fn withdraw(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            done => done.context("open", &path)?,
        };
        let nobody = PageHead { pid: 0, store: [0; 16], boot: [0; 16], place: (0, 0), life: 0 };
        end_life(storage, &*file, &path, &nobody).context("withdraw", &path)
    }

    /// Publishes a page: everything up to this LSN is durable, and may be applied. Nobody believes what lies there.
    pub fn publish(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        store: StoreId,
        lsn: u64,
    ) -> Result<Arc<OwnersPage>> {
        let path = store_dir.readers_page();
        let boot = storage.boot_id().context("ask for the boot, for", &path)?;
        let (file, _) = open_or_create(&**storage, &path, false).context("make", &path)?;
        let meta = file.meta().context("look at", &path)?;
        let mut life = [0; 8];
        storage.random(&mut life).context("draw a life for", &path)?;
        let life = u64::from_le_bytes(life).max(1);
        let head = PageHead { pid: std::process::id(), store, boot, place: (meta.device, meta.inode), life };
        let mut behind = vec![0; BLOCK_BYTES - PAGE_HEAD_BYTES];
        for cell in [Cell::Durable, Cell::NamesTo, Cell::WantedTo, Cell::ApplyingTo] {
            let at = cell_at(cell) as usize - PAGE_HEAD_BYTES;
            behind[at..at + PAGE_CELL_BYTES].copy_from_slice(&encode_cell(cell, lsn));
        }
        write_all_at(&*file, &behind, PAGE_HEAD_BYTES as u64).context("write", &path)?;
        fence(SeqCst);
        // Last: who sees this life sees its LSNs.
        write_all_at(&*file, &head.encode(), 0).context("write", &path)?;
        let published = Mutex::new(Some([lsn; CELLS]));
        Ok(Arc::new(OwnersPage { storage: storage.clone(), file, path, head, published }))
    }

    fn published(&self) -> MutexGuard<'_, Option<[u64; CELLS]>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an LSN, if it is beyond what was. A page that cannot be written is given up: readers are refused from
    /// then on.
    ///
    /// # Errors
    /// The page can be neither written nor given up: what it was to tell of must not be done.
    pub fn raise(&self, cell: Cell, lsn: u64) -> Result<()> {
        let mut published = self.published();
        let Some(cells) = &mut *published else { return Ok(()) };
        let known = &mut cells[cell as usize];
        if *known >= lsn {
            return Ok(());
        }
        if write_all_at(&*self.file, &encode_cell(cell, lsn), cell_at(cell)).is_ok() {
            *known = lsn;
            fence(SeqCst);
            return Ok(());
        }
        *published = None;
        self.end_life().context("write the readers' page", &self.path)
    }

    /// Data files are about to hold parts of commits up to this one.
    pub fn raise_applying(&self, lsn: u64) -> Result<()> {
        self.raise(Cell::WantedTo, lsn)?;
        self.raise(Cell::ApplyingTo, lsn)
    }

    /// The owner closes the store. Nothing that it does from now on is told.
    pub fn end(&self) -> Result<()> {
        match self.published().take() {
            Some(_) => self.end_life().context("withdraw", &self.path),
            None => Ok(()),
        }
    }

    fn end_life(&self) -> io::Result<()> {
        end_life(&*self.storage, &*self.file, &self.path, &PageHead { life: 0, ..self.head })
    }
}

/// Whoever holds the page open sees that its life has ended: in its head, or as it has no name, or is cut off.
fn end_life(storage: &dyn Storage, file: &dyn File, path: &std::path::Path, head: &PageHead) -> io::Result<()> {
    let done = write_all_at(file, &head.encode(), 0).or_else(|e| {
        let removed = storage.unlink(path).or_else(|_| file.set_len(0));
        removed.map_err(|_| e)
    });
    fence(SeqCst);
    done
}

/// A reader's side: the page of an owner that was alive when it was opened.
pub struct ReadersPage {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Whose page it is.
    pub head: PageHead,
}

impl ReadersPage {
    /// Opens the page, if there is one that somebody keeps, here and now.
    pub fn open(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<ReadersPage>> {
        let path = store_dir.readers_page();
        let file = match storage.open(&path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let meta = file.meta().context("look at", &path)?;
        let Some((head, version)) = read_head(&*file).context("read", &path)? else { return Ok(None) };
        if version > PAGE_VERSION {
            return Err(Error::NewerVersion { path, found: version, supported: PAGE_VERSION });
        }
        let is_here = head.place == (meta.device, meta.inode) && storage.boot_id().is_ok_and(|boot| boot == head.boot);
        Ok((head.life != 0 && is_here).then_some(ReadersPage { file, path, head }))
    }

    /// An LSN. None: the page was cut off, or is not whole.
    pub fn lsn(&self, cell: Cell) -> Result<Option<u64>> {
        fence(SeqCst);
        for _ in 0..TRIES {
            let mut b = [0; PAGE_CELL_BYTES];
            read_full_at(&*self.file, &mut b, cell_at(cell)).context("read", &self.path)?;
            let lsn = u64_at(&b, 0);
            if u64_at(&b, 8) == cell_crc(cell, lsn) {
                return Ok(Some(lsn));
            }
        }
        Ok(None)
    }

    /// Whether the owner that published it still keeps it, or was killed and nobody has come after it.
    pub fn is_kept(&self) -> Result<bool> {
        fence(SeqCst);
        let named = self.file.meta().context("look at", &self.path)?.links > 0;
        let head = read_head(&*self.file).context("read", &self.path)?;
        Ok(named && head.is_some_and(|(head, _)| head == self.head))
    }
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
