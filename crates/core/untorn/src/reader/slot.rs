//! Slots: names under which consumers outside of a store have its log kept until they acknowledge it.

use crate::engine::paths::error_paths::error_in_store;
use crate::reader::locate_store::locate;
use crate::reader::{Acknowledged, Reader};
use crate::sync_point;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::directories::store_dir::{StoreDir, remove_tree};
use untorn_journal::scanning::scan::flush_header;
use untorn_journal::slots::slot_dir::{CAP_MAGIC, LOST_MAGIC, SlotDir, SlotFound, encode_number};
use untorn_journal::{Context, Error, Result};
use untorn_os::{Errno, File, Open, Storage, write_all_at};

/// The most bytes that are kept for a slot whose maker names no cap; a tenth of the free space, if that is less.
const CAP_MAX: u64 = 16 << 30;

/// A slot of a store: the store keeps its log from the last acknowledged commit on, up to a cap, across checkpoints,
/// closes, crashes and openings. So a consumer that ships the commits elsewhere, and is stopped for a while, goes on
/// where it was.
///
/// Its files are in the store's own directory, which belongs to the store's user. Beyond the cap, or on a full disk, the
/// oldest part of the log goes: [`Slot::lost`].
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// use untorn::reader::{Acknowledged, Followed, Slot};
/// use untorn::{Reader, Store};
///
/// let store = Store::open_or_create(path)?;
/// let slot = Slot::open_or_create(path, "backup", None)?;
/// let from = slot.acknowledged()?.expect("a new slot has the last commit").point;
/// let file = store.open_or_create_file("a")?;
/// file.write_at(b"hello", 0)?;
/// file.commit()?;
/// let mut commits = Reader::open(path)?.follow_from_point(from)?;
/// if let Some(Followed::Commit(commit)) = commits.next().transpose()? {
///     slot.acknowledge(&Acknowledged { point: commit.point(), ..Acknowledged::default() })?;
/// }
/// # store.close()?;
/// # Ok::<(), untorn::Error>(())
/// ```
pub struct Slot {
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    /// The path with which the store was named.
    path: PathBuf,
    slot: SlotDir,
    acknowledged: Arc<dyn File>,
}

/// A slot, as [`Slot::list`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotStatus {
    /// Its name.
    pub name: String,
    /// How many bytes of the log are kept for it at most.
    pub cap: u64,
    /// The last acknowledgement; `None` if a power cut tore it.
    pub acknowledged: Option<Acknowledged>,
    /// Up to this LSN, log that it needs is gone; `None` if it has all.
    pub lost: Option<u64>,
}

impl SlotStatus {
    fn of(found: SlotFound) -> SlotStatus {
        let lost = found.is_lost().then_some(found.lost);
        SlotStatus { name: found.slot.name, cap: found.cap, acknowledged: found.acknowledged, lost }
    }
}

impl Slot {
    /// Opens the slot with this name, or makes it: the log is kept from the last durable commit on, which the new slot
    /// has as acknowledged. `cap`: the most bytes that are kept for a new slot; `None`: 16 GiB, or a tenth of the free
    /// space if that is less.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the store is of class `process`, or the file system has no hard links.
    /// [`Error::Untrusted`]: the store belongs to another user. [`Error::Invalid`]: `name` cannot be one.
    pub fn open_or_create(path: impl AsRef<Path>, name: &str, cap: Option<u64>) -> Result<Slot> {
        let (storage, store_dir) = locate(path.as_ref())?;
        Slot::open_or_create_on(storage, store_dir, path.as_ref().to_owned(), name, cap)
    }

    /// Opens or makes a slot on any storage.
    pub(crate) fn open_or_create_on(
        storage: Arc<dyn Storage>,
        store_dir: StoreDir,
        path: PathBuf,
        name: &str,
        cap: Option<u64>,
    ) -> Result<Slot> {
        let slot = SlotDir::of(&store_dir, name)?;
        store_dir.check_trust(&*storage).map_err(|e| error_in_store(e, &path))?;
        if let Ok(acknowledged) = storage.open(&slot.acknowledged_file(), Open::WRITE)
            && storage.stat(&slot.cap_file()).is_ok()
        {
            return Ok(Slot { storage, store_dir, path, slot, acknowledged });
        }
        // Refuses class `process`.
        let reader = Reader::open_on(storage.clone(), store_dir.clone(), path.clone())?;
        let made = make(&storage, &store_dir, &slot, cap).and_then(|acknowledged| {
            // The owner keeps the log from now on. The epoch that the header names is on the disk before it is used.
            flush_header(&*storage, &store_dir.journal(), Open::WRITE, sync_point::SLOT)?;
            let point = reader.last_commit()?;
            let slot =
                Slot { storage: storage.clone(), store_dir, path: path.clone(), slot: slot.clone(), acknowledged };
            slot.acknowledge(&Acknowledged { point, ..Acknowledged::default() })?;
            Ok(slot)
        });
        if made.is_err() {
            let _ = remove_tree(&*storage, &slot.dir);
        }
        made.map_err(|e| error_in_store(e, &path))
    }

    /// Opens the slot with this name.
    ///
    /// # Errors
    /// [`Error::Io`] with `NotFound` if there is none. Those of [`Slot::open_or_create`].
    pub fn open(path: impl AsRef<Path>, name: &str) -> Result<Slot> {
        let path = path.as_ref().to_owned();
        let (storage, store_dir) = locate(&path)?;
        store_dir.check_trust(&*storage).map_err(|e| error_in_store(e, &path))?;
        let slot = SlotDir::of(&store_dir, name)?;
        let found = storage.stat(&slot.cap_file()).and_then(|_| storage.open(&slot.acknowledged_file(), Open::WRITE));
        let acknowledged = found.context("open the slot", &slot.dir).map_err(|e| error_in_store(e, &path))?;
        Ok(Slot { storage, store_dir, path, slot, acknowledged })
    }

    /// The slots of a store, by name.
    pub fn list(path: impl AsRef<Path>) -> Result<Vec<SlotStatus>> {
        let path = path.as_ref();
        let (storage, store_dir) = locate(path)?;
        Slot::list_on(&*storage, &store_dir).map_err(|e| error_in_store(e, path))
    }

    pub(crate) fn list_on(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<SlotStatus>> {
        let slots = SlotDir::all(storage, store_dir)?;
        let found = slots.iter().filter_map(|slot| slot.look(storage).transpose());
        found.map(|found| found.map(SlotStatus::of)).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// The directory of its files, of which a consumer may add its own.
    pub fn dir(&self) -> PathBuf {
        let root = match self.store_dir.standalone {
            Some(_) => self.path.parent().unwrap_or(Path::new("")),
            None => &self.path,
        };
        root.join(&self.slot.dir)
    }

    /// How it is now.
    pub fn status(&self) -> Result<SlotStatus> {
        let found = self.slot.look(&*self.storage).map_err(|e| self.error(e))?;
        found.map(SlotStatus::of).ok_or_else(|| Error::io("open the slot", self.dir(), ErrorKind::NotFound.into()))
    }

    /// The last acknowledgement; `None` if a power cut tore it.
    pub fn acknowledged(&self) -> Result<Option<Acknowledged>> {
        Ok(self.status()?.acknowledged)
    }

    /// Up to this LSN, log that it needs is gone; `None` if it has all.
    pub fn lost(&self) -> Result<Option<u64>> {
        Ok(self.status()?.lost)
    }

    /// Whether log that it needs is gone.
    pub fn is_lost(&self) -> Result<bool> {
        Ok(self.lost()?.is_some())
    }

    /// Acknowledges the commits to this one: the store need not keep them any more, and its owner may show what depends on
    /// them as safe elsewhere. This is one write, without a flush: a power cut may take it back.
    pub fn acknowledge(&self, acknowledged: &Acknowledged) -> Result<()> {
        let written = write_all_at(&*self.acknowledged, &acknowledged.encode(), 0);
        written.context("write", self.slot.acknowledged_file()).map_err(|e| self.error(e))
    }

    /// Locks the slot for one consumer, until the lock is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`]: another one has it.
    pub fn lock(&self) -> Result<SlotLock> {
        let path = self.slot.lock_file();
        let lock = || {
            let file = self.storage.open(&path, Open::WRITE)?;
            Ok(file.lock(false)?.then_some(file))
        };
        let locked: std::io::Result<_> = lock();
        match locked.context("lock", &path).map_err(|e| self.error(e))? {
            Some(file) => Ok(SlotLock { _file: file }),
            None => Err(Error::busy(self.dir(), None)),
        }
    }

    /// Removes the slot: no log is kept for it any more.
    pub fn drop_slot(self) -> Result<()> {
        remove(&*self.storage, &self.store_dir, &self.slot).map_err(|e| self.error(e))
    }

    fn error(&self, e: Error) -> Error {
        error_in_store(e, &self.path)
    }
}

/// The lock of a slot.
pub struct SlotLock {
    _file: Arc<dyn File>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("path", &self.path).field("name", &self.slot.name).finish_non_exhaustive()
    }
}

/// Makes the files of a slot. The one with the cap comes last: with it, the owner sees the slot.
fn make(storage: &Arc<dyn Storage>, store_dir: &StoreDir, slot: &SlotDir, cap: Option<u64>) -> Result<Arc<dyn File>> {
    let free = storage.space().context("look at the space of", &store_dir.dir)?.available_bytes;
    let cap = cap.unwrap_or(CAP_MAX.min(free / 10));
    let mode = storage.stat(&store_dir.dir).context("look at", &store_dir.dir)?.mode;
    for (dir, mode) in [(store_dir.kept(), mode & 0o777), (store_dir.slots(), 0o700)] {
        match storage.mkdir(&dir, mode) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", dir, e)),
            _ => {}
        }
    }
    // A maker that was killed may have left a part.
    remove_tree(&**storage, &slot.dir)?;
    storage.mkdir(&slot.dir, 0o700).context("make", &slot.dir)?;
    let create = |path: PathBuf, bytes: &[u8]| {
        let file = storage.open(&path, Open::create(0o600)).context("create", &path)?;
        write_all_at(&*file, bytes, 0).context("write", &path)?;
        Ok::<_, Error>(file)
    };
    create(slot.lock_file(), &[])?;
    // On a full disk, this file is overwritten.
    create(slot.lost_file(), &encode_number(LOST_MAGIC, 0))?;
    let acknowledged = create(slot.acknowledged_file(), &[])?;
    check_links(&**storage, store_dir, &slot.lock_file())?;
    create(slot.cap_file(), &encode_number(CAP_MAGIC, cap))?.sync_all(sync_point::SLOT).context("flush", &slot.dir)?;
    for dir in [&slot.dir, &store_dir.slots(), &store_dir.dir] {
        storage.sync_dir(dir, sync_point::SLOT).context("flush", dir)?;
    }
    Ok(acknowledged)
}

/// Refuses a file system without hard links, by which the log is kept.
fn check_links(storage: &dyn Storage, store_dir: &StoreDir, file: &Path) -> Result<()> {
    let probe = store_dir.kept().join("probe");
    let _ = storage.unlink(&probe);
    match storage.link(file, &probe) {
        Ok(()) => storage.unlink(&probe).context("remove", &probe),
        Err(e)
            if matches!(
                Errno::from_io_error(&e),
                Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK)
            ) =>
        {
            Err(Error::Unsupported {
                path: store_dir.dir.clone(),
                detail: format!(
                    "a slot keeps the log by hard links, and this file system makes none ({e}): move the store to another \
                     file system, such as ext4, XFS or btrfs"
                ),
            })
        }
        Err(e) => Err(Error::io("make a hard link in", store_dir.kept(), e)),
    }
}

/// Removes a slot: the file with the cap first, without which it is none.
pub(crate) fn remove(storage: &dyn Storage, store_dir: &StoreDir, slot: &SlotDir) -> Result<()> {
    match storage.unlink(&slot.cap_file()) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("remove", slot.cap_file(), e)),
        _ => {}
    }
    remove_tree(storage, &slot.dir)?;
    storage.sync_dir(&store_dir.slots(), sync_point::SLOT).context("flush", store_dir.slots())
}
