//! The store directory, in which Untorn keeps the journal: its permissions, the lock, and its creation.
//!
//! ```text
//! .untorn/                beside the data (or `foo.db.untorn/` for a standalone file): 0700; 0750 or 0755, if others
//!                         may read the store
//!     owner               locked by the process that has the store open; never readable for others, never removed
//!     lock                shows others that the store is open: the owner read-locks it, and writes its id into it
//!     journal/            header, segment.N, spill.X, index.N (the records in a segment, for readers)
//!     journal.new/        an unfinished new journal
//!     journal.spare/      reserved space for one when the disk is full
//!     readers             the page: the owner's published numbers, and the locks of readers
//!     undo/               data that the owner keeps for readers of older commits: index.N, old.A.C, names/N
//!     quarantine.N/       a quarantined journal: some of its files could not be redone
//!     epochs              the epochs of the store and where each begins, once it had a slot
//!     slots/              a directory for each slot
//!     kept/               second names of files of the journal that slots need
//! ```

use crate::directories::quarantine::{NAME_SPARE, PendingFiles};
use crate::directories::spare::{open_or_create, set_apart};
use crate::error::{Context, Error, Result, is_loop, is_no_space};
use crate::format::{BLOCK_BYTES, HEADER_SLOTS, Header, Key, StoreId, VERSION, crc64};
use crate::sync_point;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Kind, Open, Storage, SyncPoint, read_full_at, write_all_at};

/// Name of the store directory.
pub const STORE_DIR: &str = ".untorn";

/// Beginning of the name of a quarantined journal.
const QUARANTINE: &str = "quarantine.";

/// The store directory, relative to the storage's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDir {
    /// `.untorn`, or `foo.db.untorn`.
    pub dir: PathBuf,
    /// The name of a standalone store's data file, or `None` if the store is a directory of files.
    pub standalone: Option<PathBuf>,
}

/// Whether a name in a store directory is Untorn's. `parked` is of version 1 of the readers' page.
pub fn is_own_name(name: &OsStr) -> bool {
    let names = [
        "owner",
        "lock",
        "journal",
        "journal.new",
        "journal.spare",
        "readers",
        "undo",
        "parked",
        "epochs",
        "epochs.new",
        "slots",
        "kept",
    ];
    names.iter().any(|own| name == *own) || is_quarantined(name)
}

/// Whether a name in a store directory is that of a quarantined journal.
pub(crate) fn is_quarantined(name: impl AsRef<OsStr>) -> bool {
    name.as_ref().as_encoded_bytes().starts_with(QUARANTINE.as_bytes())
}

impl StoreDir {
    /// The store directory of a directory with many files.
    pub fn of_directory() -> StoreDir {
        StoreDir { dir: STORE_DIR.into(), standalone: None }
    }

    /// The store directory of a standalone file, by the file's name in its directory.
    pub fn of_file(name: &Path) -> StoreDir {
        let mut dir: OsString = name.as_os_str().to_owned();
        dir.push(STORE_DIR);
        StoreDir { dir: dir.into(), standalone: Some(name.to_owned()) }
    }

    /// The file whose lock excludes other owners.
    pub fn owner_file(&self) -> PathBuf {
        self.dir.join("owner")
    }

    /// The lock file, which shows readers that there is an owner.
    pub fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }

    /// A journal whose creation is not finished.
    pub fn journal_new(&self) -> PathBuf {
        self.dir.join("journal.new")
    }

    /// The page in which the owner announces its state to readers.
    pub fn readers_page(&self) -> PathBuf {
        self.dir.join("readers")
    }

    /// Directory of the data that the owner keeps for readers of older commits.
    pub fn undo(&self) -> PathBuf {
        self.dir.join("undo")
    }

    /// Reserved space for a new journal.
    pub fn journal_spare(&self) -> PathBuf {
        self.dir.join("journal.spare")
    }

    /// The list of epochs.
    pub fn epochs(&self) -> PathBuf {
        self.dir.join("epochs")
    }

    /// An unfinished list of epochs.
    pub fn epochs_new(&self) -> PathBuf {
        self.dir.join("epochs.new")
    }

    /// Directory of the slots.
    pub fn slots(&self) -> PathBuf {
        self.dir.join("slots")
    }

    /// Directory of the log that slots need.
    pub fn kept(&self) -> PathBuf {
        self.dir.join("kept")
    }

    /// The directory of the quarantined journal of an epoch.
    pub fn quarantined_journal(&self, epoch: u64) -> PathBuf {
        self.dir.join(format!("{QUARANTINE}{epoch:016x}"))
    }

    /// The directories of all quarantined journals.
    pub fn quarantined_journals(&self, storage: &dyn Storage) -> Result<Vec<PathBuf>> {
        let names = storage.list(&self.dir).context("list", &self.dir)?;
        let mut found: Vec<PathBuf> = names.iter().filter(|n| is_quarantined(n)).map(|n| self.dir.join(n)).collect();
        found.sort_unstable();
        Ok(found)
    }
}

/// Contents of the lock file while the store is closed. Any other contents say that the owner was killed.
const CLOSED: &str = "closed     \n";

/// Whether these contents of a lock file say that the store is closed.
pub(crate) fn is_closed_note(note: &[u8]) -> bool {
    note == CLOSED.as_bytes()
}

/// Whether a lock file says that the store is closed.
pub fn is_noted_closed(lock: &dyn File) -> bool {
    let mut note = [0; CLOSED.len() + 1];
    read_full_at(lock, &mut note, 0).is_ok_and(|n| is_closed_note(&note[..n]))
}

/// Contents of the lock file while a process has the store open; as long as [`CLOSED`], so that each overwrites the
/// other.
fn opened_by(pid: u32) -> String {
    format!("{pid:<11}\n")
}

/// The lock of an open store; dropping it unlocks the store.
pub struct StoreLock {
    file: Arc<dyn File>,
    /// Locked for writing. Read access to a file is enough to lock it for reading, so readers get no access to this
    /// one.
    _owner: Arc<dyn File>,
    /// The process that had the store open before did not release it: it was killed, or its close failed.
    pub unclean: bool,
    /// Permission bits of the store directory, and of the directories in it.
    pub dir_mode: u32,
}

impl StoreLock {
    /// Unlocks the store after everything was flushed, and notes that in the lock file, so that the next opening has
    /// nothing to flush. The note need not survive a power cut, after which cache and disk are the same anyway.
    pub fn release(self) {
        // If the lock file cannot be written, the next opening costs some flushes.
        let _ = write_all_at(&*self.file, CLOSED.as_bytes(), 0);
    }
}

/// Locks the store. Creates a missing store directory with the permission bits in `create`, if there are any.
pub fn lock_store(storage: &dyn Storage, store_dir: &StoreDir, create: Option<u32>, wait: bool) -> Result<StoreLock> {
    let dir_mode = match (store_dir.check_trust(storage)?, create) {
        (Some(mode), _) => mode,
        (None, None) => return Err(Error::io("open the store in", &store_dir.dir, ErrorKind::NotFound.into())),
        (None, Some(mode)) => {
            store_dir.check_may_create(storage)?;
            match storage.mkdir(&store_dir.dir, mode) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", &store_dir.dir, e)),
                _ => {}
            }
            let made = store_dir.check_trust(storage)?;
            made.ok_or_else(|| Error::io("make", &store_dir.dir, ErrorKind::NotFound.into()))?
        }
    };
    let (path, owner_path) = (store_dir.lock_file(), store_dir.owner_file());
    // Another process may be ejecting the store, so check that the locked files still have their names.
    for _ in 0..1000 {
        let owner = open_lock_file(storage, &owner_path, Open::create(0o600))?;
        if owner.meta().context("stat", &owner_path)?.mode & 0o077 != 0 {
            // Somebody gave access to other users, which could lock it.
            owner.set_mode(0o600).context("change the mode of", &owner_path)?;
        }
        let lock = || storage.open(&path, Open::READ).ok();
        let pid = || lock().and_then(|lock| read_pid(&*lock));
        if !acquire(storage, &*owner, &pid, wait).context("lock", &owner_path)? {
            return Err(busy(&store_dir.dir, lock().as_deref()));
        }
        // Created only now: a process that ejects the store removes this file first, and then the directory.
        let file = open_lock_file(storage, &path, Open::create(0o600).shown())?;
        if !file.hold(0..1).context("lock", &path)? {
            return Err(busy(&store_dir.dir, lock().as_deref()));
        }
        if is_named(storage, &*owner, &owner_path)? && is_named(storage, &*file, &path)? {
            let mut note = [0; CLOSED.len() + 1];
            let n = read_full_at(&*file, &mut note, 0).context("read", &path)?;
            let unclean = &note[..n] != CLOSED.as_bytes();
            note_owner(&*file, n).context("write", &path)?;
            return Ok(StoreLock { file, _owner: owner, unclean, dir_mode });
        }
    }
    Err(Error::busy(&store_dir.dir, None))
}

/// The error of a store that is open in the process named in the lock file.
fn busy(path: &Path, lock: Option<&dyn File>) -> Error {
    let pid = lock.and_then(read_pid);
    match (lock, pid) {
        (Some(lock), Some(pid)) if is_of_another_namespace(lock, pid) => Error::busy_elsewhere(path, pid),
        _ => Error::busy(path, pid),
    }
}

/// Whether the pid in the lock file is one of another pid namespace: the process with this number does not have the
/// locked file open.
pub fn is_of_another_namespace(lock: &dyn File, pid: u32) -> bool {
    // The process may have closed the store just now.
    let has_it = || lock.is_locked().unwrap_or(false) && read_pid(lock) == Some(pid);
    lock.is_open_in(pid) == Some(false) && has_it()
}

/// Notes that this process has the store open, before it changes anything. On a full disk there may be no room for the
/// process id. But the note of a closed store must go, and truncating the file needs no space.
fn note_owner(file: &dyn File, bytes: usize) -> io::Result<()> {
    let note = opened_by(std::process::id());
    match write_all_at(file, note.as_bytes(), 0) {
        Ok(()) if bytes > note.len() => file.set_len(note.len() as u64),
        Err(e) if is_no_space(&e) => file.set_len(0),
        done => done,
    }
}

/// Whether a process has the store of this lock file open. For users that cannot open the owner file, the lock file
/// decides, and any user with read access to it can fake that lock.
pub fn is_owned_by_somebody(storage: &dyn Storage, store_dir: &StoreDir, lock: &dyn File) -> io::Result<bool> {
    match storage.open(&store_dir.owner_file(), Open::READ) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => lock.is_locked(),
        done => done?.is_locked(),
    }
}

fn is_named(storage: &dyn Storage, file: &dyn File, path: &Path) -> Result<bool> {
    let locked = file.meta().context("stat", path)?;
    match storage.stat(path) {
        Ok(named) => Ok(named.inode == locked.inode && locked.links > 0),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        // For example, too many open files, which says nothing about this file.
        Err(e) => Err(Error::io("stat", path, e)),
    }
}

/// Locks the owner file. A child that this process is spawning holds copies of the descriptors until it executes its
/// program, and so their locks, also of a closed store. So the lock is retried for a moment.
fn acquire(storage: &dyn Storage, owner: &dyn File, pid: &dyn Fn() -> Option<u32>, wait: bool) -> io::Result<bool> {
    for _ in 0..20 {
        if owner.lock(wait)? {
            return Ok(true);
        }
        if pid().is_some_and(|owner| owner != std::process::id()) {
            break;
        }
        storage.pause();
    }
    Ok(false)
}

fn open_lock_file(storage: &dyn Storage, path: &Path, create: Open) -> Result<Arc<dyn File>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for _ in 0..1000 {
        for how in [Open::WRITE, create] {
            match storage.open(path, how) {
                Ok(file) if file.meta().context("stat", path)?.kind == Kind::File => return Ok(file),
                Ok(_) => return Err(no_file(path)),
                Err(e) if is_loop(&e) => return Err(no_file(path)),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => last = e,
                Err(e) => return Err(Error::io("open", path, e)),
            }
        }
    }
    Err(Error::io("open", path, last))
}

fn no_file(path: &Path) -> Error {
    let detail = "it is not a file; somebody put something else in its place. Remove it";
    Error::Foreign { path: path.to_owned(), detail: detail.into() }
}

/// The process id in a lock file, if it has one.
pub fn read_pid(lock: &dyn File) -> Option<u32> {
    let mut text = [0; 16];
    let n = read_full_at(lock, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..n]).ok()?.trim().parse().ok()
}

/// Initial values of a new journal.
pub struct NewJournal {
    /// The store; drawn at random for a new one.
    pub store: StoreId,
    /// LSN of the last commit of the previous journal.
    pub checkpoint_lsn: u64,
    /// The link: the first record repeats it as the checksum of its predecessor.
    pub link: u64,
    /// Generation of the previous journal's header.
    pub generation: u64,
    /// The epochs that were not closed.
    pub unclosed: Vec<u64>,
    /// The epoch of the last commit of the previous journal, or 0.
    pub epoch: u64,
    /// The secret key of its records' checksums.
    pub key: Key,
    /// Bytes of the first segment.
    pub segment_bytes: u64,
    /// No previous owner can have left marks that an owner has to look for.
    pub closed: bool,
    /// The whole previous journal could be read.
    pub read_whole: bool,
    /// Whether to wait for the disk.
    pub durable: bool,
    /// Permission bits of its directory.
    pub dir_mode: u32,
}

/// Reserves names, inodes and blocks, so that recovery can quarantine the journal and create a new one on a full disk.
pub fn make_spare(storage: &dyn Storage, store_dir: &StoreDir, segment_bytes: u64, dir_mode: u32) -> io::Result<()> {
    let spare = store_dir.journal_spare();
    PendingFiles::set_apart(storage, &store_dir.journal())?;
    let header = || set_apart(storage, &spare.join("header"), BLOCK_BYTES as u64 * HEADER_SLOTS);
    match header() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            storage.mkdir(&spare, dir_mode)?;
            header()?;
        }
        done => done?,
    }
    set_apart(storage, &spare.join(segment_name(0)), segment_bytes)?;
    PendingFiles::set_apart(storage, &spare)
}

/// Takes the reserve for a new journal, and removes unexpected files from it. Returns false if there is none.
fn take_spare(storage: &dyn Storage, store_dir: &StoreDir) -> Result<bool> {
    let (spare, new) = (store_dir.journal_spare(), &store_dir.journal_new());
    match storage.rename(&spare, new, false) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        done => done.context("rename", &spare)?,
    }
    for name in storage.list(new).context("list", new)? {
        if name == "header" || name == NAME_SPARE || name.to_str() == Some(&segment_name(0)) {
            continue;
        }
        let path = new.join(name);
        match storage.stat(&path).context("stat", &path)?.kind {
            Kind::Directory => remove_tree(storage, &path)?,
            _ => storage.unlink(&path).context("remove", &path)?,
        }
    }
    Ok(true)
}

/// Creates an empty journal; on a full disk, in the reserved space. After a crash at any point, the next opening finds
/// no journal or a complete one.
pub fn create_journal(storage: &dyn Storage, store_dir: &StoreDir, from: &NewJournal) -> Result<()> {
    let new = store_dir.journal_new();
    // New files each time: if a flush of the old ones failed, a later flush may succeed without writing anything.
    remove_tree(storage, &new)?;
    let made =
        storage.mkdir(&new, from.dir_mode).context("make", &new).and_then(|()| fill_journal(storage, store_dir, from));
    match made {
        Err(e @ Error::NoSpace { .. }) => {
            remove_tree(storage, &new)?;
            if !take_spare(storage, store_dir)? {
                return Err(e);
            }
            fill_journal(storage, store_dir, from)?;
        }
        done => done?,
    }
    let journal = store_dir.journal();
    storage.rename(&new, &journal, false).context("rename to", &journal)?;
    if from.durable {
        storage.sync_dir(&store_dir.dir, sync_point::CREATE_NAME).context("flush", &store_dir.dir)?;
        storage.sync_dir(Path::new(""), sync_point::CREATE_STORE_NAME).context("flush", ".")?;
    }
    Ok(())
}

/// Creates the files of a new journal, or uses the reserved ones, and flushes them.
fn fill_journal(storage: &dyn Storage, store_dir: &StoreDir, from: &NewJournal) -> Result<()> {
    let new = store_dir.journal_new();
    let segment_bytes = first_segment(storage, &new, from.segment_bytes, from.durable)?;
    let header = Header {
        version: VERSION,
        store: from.store,
        generation: from.generation + 1,
        checkpoint_lsn: from.checkpoint_lsn,
        listed: Vec::new(),
        open_lsn: from.checkpoint_lsn + 1,
        link: from.link,
        clean: from.closed,
        start_segment: 0,
        start_crc: crc64(&[0; BLOCK_BYTES]),
        start_blocks: (segment_bytes / BLOCK_BYTES as u64) as u32,
        boot: None,
        epoch: from.epoch,
        lengths: vec![(segment_bytes / BLOCK_BYTES as u64) as u32],
        unclosed: from.unclosed.clone(),
        marks_left: !from.closed && from.read_whole,
        key: from.key,
        by_attribute: false,
    };
    let path = new.join("header");
    let (file, _) = open_or_create(storage, &path, false).context("create", &path)?;
    // Refuse the store if attributes cannot be set, because its first commit would fail. Lack of space is no reason: a
    // full disk may be why this journal is created.
    match file.set_attribute(&[0]).and_then(|()| file.remove_attribute()) {
        Err(e) if !is_no_space(&e) => return Err(Error::attribute(&store_dir.dir, e)),
        _ => {}
    }
    let mut slots = vec![0; BLOCK_BYTES * HEADER_SLOTS as usize];
    let at = BLOCK_BYTES * (header.generation % HEADER_SLOTS) as usize;
    slots[at..at + BLOCK_BYTES].copy_from_slice(&header.encode());
    write_all_at(&*file, &slots, 0).context("write", &path)?;
    if from.durable {
        file.sync_all(sync_point::CREATE_CONTENTS).context("flush", &path)?;
    }
    if from.durable {
        storage.sync_dir(&new, sync_point::CREATE_ENTRIES).context("flush", &new)?;
    }
    Ok(())
}

/// The name of a segment.
pub fn segment_name(index: u32) -> String {
    format!("segment.{index}")
}

/// The name of the index of a segment.
pub fn log_index_name(index: u32) -> String {
    format!("index.{index}")
}

/// The index in a segment's name.
pub fn segment_index(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment.")?;
    let index = digits.parse().ok()?;
    (segment_name(index) == name).then_some(index)
}

/// Creates a segment, and writes all of it, so that the flush of a commit has no metadata to write. The caller flushes
/// the directory.
pub fn create_segment(
    storage: &dyn Storage,
    journal: &Path,
    index: u32,
    bytes: u64,
    durable: bool,
    point: SyncPoint,
) -> Result<Arc<dyn File>> {
    let path = journal.join(segment_name(index));
    let how = Open::create(0o600).shown();
    let file = storage.open(&path, if durable { how.direct() } else { how }).context("create", &path)?;
    let made = file.allocate(0, bytes).and_then(|()| write_segment(&*file, bytes, durable, point));
    if let Err(e) = made {
        // An incomplete segment is useless. If it cannot be removed, its name stays.
        let _ = storage.unlink(&path);
        return Err(Error::io("write", &path, e));
    }
    Ok(file)
}

/// Creates the first segment of a new journal, or takes the reserved one, which may be smaller than requested. Returns
/// its length.
fn first_segment(storage: &dyn Storage, journal: &Path, bytes: u64, durable: bool) -> Result<u64> {
    let path = journal.join(segment_name(0));
    let (file, _) = open_or_create(storage, &path, durable).context("create", &path)?;
    let there = file.meta().context("look at", &path)?.size;
    let bytes = match file.allocate(0, bytes) {
        Err(e) if is_no_space(&e) && there >= BLOCK_BYTES as u64 => {
            // ext4 keeps the blocks that it could allocate.
            file.set_len(there).context("truncate", &path)?;
            there - there % BLOCK_BYTES as u64
        }
        done => done.map(|()| bytes.max(there)).context("write", &path)?,
    };
    write_segment(&*file, bytes, durable, sync_point::CREATE_CONTENTS).context("write", &path)?;
    Ok(bytes)
}

fn write_segment(file: &dyn File, bytes: u64, durable: bool, point: SyncPoint) -> io::Result<()> {
    let zeros = AlignedBuf::zeroed_up_to((bytes as usize).min(1 << 20));
    let mut at = 0;
    while at < bytes {
        let n = zeros.len().min((bytes - at) as usize);
        write_all_at(file, &zeros[..n], at)?;
        at += n as u64;
    }
    if durable { file.sync_data(point) } else { Ok(()) }
}

/// Removes a directory inside the store directory and everything in it, if it exists.
pub fn remove_tree(storage: &dyn Storage, dir: &Path) -> Result<()> {
    let names = match storage.list(dir) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", dir, e)),
    };
    for name in names {
        let path = dir.join(name);
        if storage.stat(&path).context("stat", &path)?.kind == Kind::Directory {
            remove_tree(storage, &path)?;
        } else {
            storage.unlink(&path).context("remove", &path)?;
        }
    }
    storage.rmdir(dir).context("remove", dir)
}
