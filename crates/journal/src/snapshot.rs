//! Reading a store without owning it: a snapshot of its files as of one commit, without locks and without a write.
//!
//! ```text
//! an owner lives     S = durable ─▶ header, log up to S ─▶ data files ─▶ applying_to ≤ S? names_to ≤ S?
//! nobody has it      flush the log, S = its end         ─▶ data files ─▶ has nobody opened it meanwhile?
//! ```
//!
//! A file is its data file under what the log says of it between the header's checkpoint and S. Whatever is read is
//! believed only if what it rests on is still there afterwards; otherwise the snapshot has expired.

use crate::error::{Context, Error, Result};
use crate::final_state::{DirState, FileState, FinalState};
use crate::format::{Attribute, AttributeFound, Header, StoreId};
use crate::invariant;
use crate::locate::{DataFiles, Location, check_attribute};
use crate::overlay::{Overlay, read_through};
use crate::quarantine::PendingFiles;
use crate::readers_page::{Cell, ReadersPage};
use crate::record::check_path;
use crate::scan::{AcceptedRecord, ReadMode, Scan, flush_header, given_up_after, read_header, read_slots, scan};
use crate::store_dir::{STORE_DIR, StoreDir, read_pid};
use crate::sync_point;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use untorn_os::{File, Kind, Open, Storage, holds, read_full_at};

/// A look that the owner disturbs is begun anew so often, after the first few with a pause before it.
const LOOKS_MAX: usize = 400;
/// So many without a pause.
const LOOKS_AT_ONCE: usize = 4;

/// A file that is not under any of its names is looked for so often.
const SEARCHES_MAX: usize = 5;

/// The bytes of a lock file that count.
const NOTE_BYTES: usize = 16;

/// What a reader relies on to stay as it is.
enum Watch {
    /// The owner's page.
    Owner(ReadersPage),
    /// Nobody has the store open: the lock file, its note, and the header.
    Closed { lock: Option<Arc<dyn File>>, note: Vec<u8>, header: Vec<u8> },
}

/// The log of a store at one moment.
pub struct Look {
    watch: Watch,
    /// The last commit that is looked at.
    pub lsn: u64,
    /// The log was truncated behind this one.
    pub checkpoint_lsn: u64,
    /// Commits between the two; of a look after a commit, all those behind it.
    pub accepted: Vec<AcceptedRecord>,
    /// Commits behind the one that the look is after may be missing.
    pub is_missing_some: bool,
    store: Option<StoreId>,
    /// Files that wait for commits in quarantined journals, and why.
    quarantined: BTreeMap<u64, String>,
}

/// Whether this user may read the store: its owner and root may, as nothing is written.
fn check_may_read(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
    match store_dir.check_trust(storage) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::io("find a store at", &store_dir.dir, ErrorKind::NotFound.into())),
        Err(e @ Error::Untrusted { .. }) if storage.effective_user() == 0 => {
            let meta = storage.stat(&store_dir.dir).context("stat", &store_dir.dir)?;
            if meta.kind == Kind::Directory && meta.mode & 0o077 == 0 { Ok(()) } else { Err(e) }
        }
        Err(e) => Err(e),
    }
}

impl Look {
    /// Looks at a store, at this commit or a later one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if its owner tells readers nothing: it is of class `process`, had no room for the page, or
    /// is still opening the store.
    pub fn take(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, at_least, None)
    }

    /// As [`Look::take`], with every commit behind this one that is still in the log.
    pub fn take_after(storage: &Arc<dyn Storage>, store_dir: &StoreDir, lsn: u64) -> Result<Look> {
        Look::take_with(storage, store_dir, lsn, Some(lsn))
    }

    fn take_with(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64, after: Option<u64>) -> Result<Look> {
        check_may_read(&**storage, store_dir)?;
        let mut disturbed = None;
        for n in 0..LOOKS_MAX {
            if n >= LOOKS_AT_ONCE {
                storage.pause();
            }
            match look(storage, store_dir, at_least, after) {
                Ok(Attempt::Done(look)) => return Ok(*look),
                Ok(Attempt::Disturbed(why)) => disturbed = Some(why),
                Err(e) => return Err(e),
            }
        }
        Err(disturbed.expect("an attempt"))
    }

    /// Whether a newer look would find newer commits, or another owner.
    pub fn is_stale(&self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<bool> {
        match &self.watch {
            // A killed owner tells nothing any more, and what it left may be more than it told.
            Watch::Owner(page) => Ok(page.lsn(Cell::Durable)? != Some(self.lsn)
                || !page.is_kept()?
                || !is_owned(&**storage, store_dir)?.0),
            Watch::Closed { .. } => match self.check(&**storage, store_dir, false) {
                Err(Error::SnapshotExpired { .. }) => Ok(true),
                done => done.map(|()| false),
            },
        }
    }

    /// Whether what was read of data files is of this moment; with `names`, whether names are, too.
    fn check(&self, storage: &dyn Storage, store_dir: &StoreDir, names: bool) -> Result<()> {
        let valid = match &self.watch {
            Watch::Owner(page) => {
                let validates = |invariant, cell| match holds(invariant) {
                    true => Ok(page.lsn(cell)?.is_some_and(|lsn| lsn <= self.lsn)),
                    false => Ok(true),
                };
                validates(invariant::READ_VALIDATED, Cell::ApplyingTo)?
                    && (!names || validates(invariant::NAME_VALIDATED, Cell::NamesTo)?)
                    // After the LSNs: a new owner ends this life before it publishes its own.
                    && page.is_kept()?
            }
            Watch::Closed { lock, note, header } => {
                let now = || -> Result<bool> {
                    let same = lock_note(storage, store_dir)?.is_some_and(|(found, text)| {
                        lock.as_ref().is_some_and(|lock| is_same(&**lock, &*found)) && text == *note
                    });
                    Ok((same || (lock.is_none() && lock_note(storage, store_dir)?.is_none()))
                        && header_bytes(storage, store_dir)? == *header)
                };
                !holds(invariant::CLOSED_VALIDATED) || now()?
            }
        };
        if valid { Ok(()) } else { Err(Error::SnapshotExpired { path: store_dir.dir.clone(), lsn: self.lsn }) }
    }
}

fn is_same(a: &dyn File, b: &dyn File) -> bool {
    matches!((a.meta(), b.meta()), (Ok(a), Ok(b)) if (a.device, a.inode, a.links) == (b.device, b.inode, b.links))
}

enum Attempt {
    Done(Box<Look>),
    /// Why there is no look now; perhaps there is one in a moment.
    Disturbed(Error),
}

/// A lock file, and what is in it.
type LockNote = (Arc<dyn File>, Vec<u8>);

/// The lock file, and what is in it, if nobody holds the lock.
fn lock_note(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<LockNote>> {
    let path = store_dir.lock_file();
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        done => done.context("open", &path)?,
    };
    if file.is_locked().context("look at", &path)? {
        return Ok(None);
    }
    let mut note = vec![0; NOTE_BYTES];
    let n = read_full_at(&*file, &mut note, 0).context("read", &path)?;
    note.truncate(n);
    // Locked before it was read, or after.
    Ok((!file.is_locked().context("look at", &path)?).then_some((file, note)))
}

fn header_bytes(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<u8>> {
    let path = store_dir.journal().join("header");
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        done => done.context("open", &path)?,
    };
    let mut bytes = read_slots(&*file, &path)?;
    bytes.extend(file.attribute().context("read the attribute of", &path)?.unwrap_or_default());
    Ok(bytes)
}

fn is_owned(storage: &dyn Storage, store_dir: &StoreDir) -> Result<(bool, Option<u32>)> {
    let path = store_dir.lock_file();
    match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok((false, None)),
        Err(e) => Err(Error::io("open", &path, e)),
        Ok(lock) => Ok((lock.is_locked().context("look at", &path)?, read_pid(&*lock))),
    }
}

fn look(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64, after: Option<u64>) -> Result<Attempt> {
    match is_owned(&**storage, store_dir)? {
        (true, pid) => look_at_owned(storage, store_dir, at_least, after, pid),
        (false, _) => look_at_closed(storage, store_dir, at_least, after),
    }
}

/// Adds the commits behind this one that the log was truncated behind. Whether some may be missing.
fn add_given_up(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    scanned: &Scan,
    after: Option<u64>,
    accepted: &mut Vec<AcceptedRecord>,
) -> bool {
    let Some(after) = after.filter(|after| *after < scanned.header.checkpoint_lsn) else { return false };
    match given_up_after(storage, journal, scanned, after) {
        Some(given_up) => {
            accepted.splice(0..0, given_up);
            false
        }
        None => true,
    }
}

fn look_at_owned(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    at_least: u64,
    after: Option<u64>,
    pid: Option<u32>,
) -> Result<Attempt> {
    let page = ReadersPage::open(&**storage, store_dir)?;
    let Some(page) = page.filter(|page| Some(page.head.pid) == pid) else { return no_page(&**storage, store_dir, pid) };
    let Some(lsn) = page.lsn(Cell::Durable)? else { return Ok(Attempt::Disturbed(changing(store_dir, pid))) };
    if lsn < at_least {
        return Ok(Attempt::Disturbed(went_back(store_dir, at_least, lsn)));
    }
    let journal = store_dir.journal();
    // What an owner that works leaves half-way is no damage.
    let mut scanned = match scan(storage, &journal, ReadMode::Cached, after.is_some(), &|_, _| {}) {
        Ok(scanned) => scanned,
        Err(e @ (Error::NewerVersion { .. } | Error::Foreign { .. })) => return Err(e),
        Err(e) => return Ok(Attempt::Disturbed(e)),
    };
    if scanned.header.boot.is_some() {
        return Err(class_process(store_dir));
    }
    let reaches = scanned.last_lsn >= lsn || !holds(invariant::LOG_REACHES);
    if scanned.header.checkpoint_lsn > lsn || !reaches || scanned.header.store != page.head.store {
        let why = scanned.corrupt.unwrap_or_else(|| changing(store_dir, pid));
        return Ok(Attempt::Disturbed(why));
    }
    let mut accepted = std::mem::take(&mut scanned.accepted);
    accepted.retain(|record| record.lsn <= lsn);
    let is_missing_some = add_given_up(storage, &journal, &scanned, after, &mut accepted);
    let quarantined = match quarantined_files(&**storage, store_dir) {
        Ok(quarantined) => quarantined,
        Err(e) => return Ok(Attempt::Disturbed(e)),
    };
    let look = Look {
        watch: Watch::Owner(page),
        lsn,
        checkpoint_lsn: scanned.header.checkpoint_lsn,
        accepted,
        is_missing_some,
        store: Some(scanned.header.store),
        quarantined,
    };
    match look.check(&**storage, store_dir, false) {
        Ok(()) => Ok(Attempt::Done(Box::new(look))),
        Err(e @ Error::SnapshotExpired { .. }) => Ok(Attempt::Disturbed(e)),
        Err(e) => Err(e),
    }
}

fn no_page(storage: &dyn Storage, store_dir: &StoreDir, pid: Option<u32>) -> Result<Attempt> {
    match read_header(storage, &store_dir.journal()) {
        Ok(header) if header.boot.is_some() => Err(class_process(store_dir)),
        _ => Ok(Attempt::Disturbed(changing(store_dir, pid))),
    }
}

fn changing(store_dir: &StoreDir, pid: Option<u32>) -> Error {
    let owner = pid.map_or("the process that has it open".to_owned(), |pid| format!("process {pid}"));
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail: format!(
            "{owner} tells readers nothing: it is opening or closing the store, had no room on the disk for `readers` \
             when it opened it, or is of an Untorn that has no readers. Try again, or open the store there again"
        ),
    }
}

fn class_process(store_dir: &StoreDir) -> Error {
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail:
            "its owner works in failure class `process` and flushes nothing, so that nothing in it is durable yet; \
                 read it after it was closed, or use class `power`"
                .into(),
    }
}

fn went_back(store_dir: &StoreDir, at_least: u64, lsn: u64) -> Error {
    Error::Conflict {
        path: store_dir.dir.clone(),
        detail: format!(
            "it holds commits up to {lsn}, and {at_least} was read before; it was replaced by an older copy"
        ),
    }
}

fn look_at_closed(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    at_least: u64,
    after: Option<u64>,
) -> Result<Attempt> {
    let disk = &**storage;
    let (lock, note) = match lock_note(disk, store_dir)? {
        Some((lock, note)) => (Some(lock), note),
        None if disk.stat(&store_dir.lock_file()).is_ok() => {
            return Ok(Attempt::Disturbed(changing(store_dir, None)));
        }
        None => (None, Vec::new()),
    };
    let header = header_bytes(disk, store_dir)?;
    let journal = store_dir.journal();
    let mut look = Look {
        watch: Watch::Closed { lock, note, header },
        lsn: 0,
        checkpoint_lsn: 0,
        accepted: Vec::new(),
        is_missing_some: false,
        store: None,
        quarantined: BTreeMap::new(),
    };
    let found = read_closed(storage, store_dir, &journal, after, &mut look);
    // Whatever was found counts if nobody came meanwhile.
    match look.check(disk, store_dir, false) {
        Ok(()) => found?,
        Err(e @ Error::SnapshotExpired { .. }) => return Ok(Attempt::Disturbed(e)),
        Err(e) => return Err(e),
    }
    match look.lsn < at_least {
        true => Err(went_back(store_dir, at_least, look.lsn)),
        false => Ok(Attempt::Done(Box::new(look))),
    }
}

/// Reads what recovery would accept.
fn read_closed(
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    journal: &Path,
    after: Option<u64>,
    look: &mut Look,
) -> Result<()> {
    look.quarantined = quarantined_files(&**storage, store_dir)?;
    match storage.stat(journal) {
        // The making of the store, or of a new journal, was interrupted: nothing is committed in it.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => done.context("look at", journal)?,
    };
    flush_header(&**storage, journal, Open::READ, sync_point::READER_LOG)?;
    let header = read_header(&**storage, journal)?;
    if let Some(boot) = header.boot {
        let same = storage.boot_id().is_ok_and(|now| now == boot);
        return Err(if same { class_process_left(store_dir) } else { unknown_state(store_dir) });
    }
    let mut scanned = scan(storage, journal, ReadMode::PastCacheReadOnly, after.is_some(), &|_, _| {})?;
    if let Some(e) = scanned.corrupt {
        return Err(e);
    }
    let Header { checkpoint_lsn, store, .. } = scanned.header;
    (look.lsn, look.checkpoint_lsn, look.store) = (scanned.last_lsn, checkpoint_lsn, Some(store));
    look.accepted = std::mem::take(&mut scanned.accepted);
    look.is_missing_some = add_given_up(storage, journal, &scanned, after, &mut look.accepted);
    Ok(())
}

fn unknown_state(store_dir: &StoreDir) -> Error {
    Error::UnknownState { path: store_dir.dir.clone() }
}

fn class_process_left(store_dir: &StoreDir) -> Error {
    Error::Unsupported {
        path: store_dir.dir.clone(),
        detail: "its owner worked in failure class `process` and did not close it, so that what is in it may not be \
                 durable; `untorn recover` flushes it"
            .into(),
    }
}

/// The files that quarantined journals have commits of.
fn quarantined_files(storage: &dyn Storage, store_dir: &StoreDir) -> Result<BTreeMap<u64, String>> {
    let mut files = BTreeMap::new();
    for dir in store_dir.quarantined_journals(storage)? {
        files.extend(PendingFiles::read(storage, &dir)?.map(|pending| pending.files).unwrap_or_default());
    }
    Ok(files)
}

/// What the log of a look amounts to.
struct View {
    checkpoint_lsn: u64,
    state: FinalState,
    store: Option<StoreId>,
    quarantined: BTreeMap<u64, String>,
}

impl View {
    fn of(look: &mut Look) -> Result<View> {
        let mut state = FinalState::default();
        for accepted in std::mem::take(&mut look.accepted) {
            state.add_record(&accepted.record, accepted.lsn)?;
        }
        let quarantined = std::mem::take(&mut look.quarantined);
        Ok(View { checkpoint_lsn: look.checkpoint_lsn, state, store: look.store, quarantined })
    }

    /// The log says that nothing has this name any more.
    fn is_gone(&self, path: &Path) -> bool {
        let files = || self.state.files.values();
        if files().any(|file| file.name.as_deref() == Some(path)) || self.state.dirs.get(path).is_some_and(|d| d.exists)
        {
            return false;
        }
        let removed = |dir: &Path| self.state.dirs.get(dir).is_some_and(|dir| !dir.exists);
        files().any(|file| file.names.iter().any(|name| name == path)) || path.ancestors().any(removed)
    }
}

/// A file or directory of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A directory.
    pub is_directory: bool,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
}

/// The files of a store as of one commit.
pub struct Snapshot {
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    look: Look,
    view: RwLock<Arc<View>>,
}

/// A file of a snapshot, open for reading.
pub struct SnapshotFile {
    snapshot: Arc<Snapshot>,
    path: PathBuf,
    data: Option<Arc<dyn File>>,
    overlay: Overlay,
    mode: Option<u32>,
}

/// What a name leads to.
enum Found {
    /// A file that the log knows, whatever names are on the disk.
    Logged(Option<Arc<dyn File>>, Box<FileState>),
    /// A file that it does not, and its permission bits.
    Plain(Arc<dyn File>, u32),
    Nothing,
}

impl Snapshot {
    /// Takes a snapshot of a store, as of this commit or a later one.
    pub fn take(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64) -> Result<Arc<Snapshot>> {
        let mut look = Look::take(storage, store_dir, at_least)?;
        let view = RwLock::new(Arc::new(View::of(&mut look)?));
        Ok(Arc::new(Snapshot { storage: storage.clone(), store_dir: store_dir.clone(), look, view }))
    }

    /// The commit as of which it is.
    pub fn lsn(&self) -> u64 {
        self.look.lsn
    }

    /// Whether the snapshot can still be read.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]
    pub fn check(&self) -> Result<()> {
        self.check_now(false)
    }

    fn check_now(&self, names: bool) -> Result<()> {
        self.look.check(&*self.storage, &self.store_dir, names)
    }

    fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the log anew, as a checkpoint may have applied what the view says of a file. False: it says the same.
    fn reload(&self, old: &View) -> Result<bool> {
        let Watch::Owner(_) = &self.look.watch else { return Ok(false) };
        let mut newer = Look::take(&self.storage, &self.store_dir, self.look.lsn)?;
        newer.accepted.retain(|record| record.lsn <= self.look.lsn);
        if newer.checkpoint_lsn > self.look.lsn {
            return Err(Error::SnapshotExpired { path: self.store_dir.dir.clone(), lsn: self.look.lsn });
        }
        let view = View::of(&mut newer)?;
        if view.checkpoint_lsn == old.checkpoint_lsn {
            return Ok(false);
        }
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        Ok(true)
    }

    /// What `act` finds in names; as of the snapshot's commit, or not at all. It tells whether that rests on names of the
    /// disk.
    fn of_this_moment<T>(&self, act: impl Fn(&View) -> Result<(T, bool)>) -> Result<T> {
        let mut tries = 0;
        loop {
            let view = self.view();
            match act(&view) {
                Ok((found, by_name)) => {
                    self.check_now(by_name)?;
                    return Ok(found);
                }
                Err(e) => {
                    self.check_now(true)?;
                    tries += 1;
                    // A file may have moved from the name that is looked at last to the one that was looked at first: names
                    // of this commit, and of those before it, are made on the disk after they are durable.
                    if !self.reload(&view)? && tries >= SEARCHES_MAX {
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`] · [`Error::Io`] with `NotFound` · [`Error::Conflict`] and [`Error::NeedsJournal`] for a
    /// file that recovery would not take either.
    pub fn open(self: &Arc<Snapshot>, path: &Path) -> Result<SnapshotFile> {
        self.check_name(path)?;
        let found = self.of_this_moment(|view| {
            let found = self.find(view, path)?;
            let by_name = !matches!(found, Found::Logged(..));
            Ok((found, by_name))
        })?;
        let open =
            |data, overlay, mode| SnapshotFile { snapshot: self.clone(), path: path.to_owned(), data, overlay, mode };
        match found {
            Found::Logged(data, file) => Ok(open(data, file.overlay.clone(), file.final_mode())),
            Found::Plain(data, mode) => Ok(open(Some(data), Overlay::default(), Some(mode))),
            Found::Nothing => Err(Error::io("open", path, ErrorKind::NotFound.into())),
        }
    }

    fn check_name(&self, path: &Path) -> Result<()> {
        check_path(path).map_err(|why| Error::invalid(format!("{}: {why}", path.display())))?;
        match &self.store_dir.standalone {
            Some(file) if file != path => {
                Err(Error::invalid(format!("{} is not the file of this store", path.display())))
            }
            _ => Ok(()),
        }
    }

    fn find(&self, view: &View, path: &Path) -> Result<Found> {
        if let Some(file) = view.state.files.values().find(|file| file.name.as_deref() == Some(path)) {
            let data = if file.created.is_some() { None } else { self.data_of(view, file)? };
            return Ok(Found::Logged(data, Box::new(file.clone())));
        }
        if view.is_gone(path) {
            return Ok(Found::Nothing);
        }
        let data = match self.storage.open(path, Open::READ) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Found::Nothing),
            done => done.context("open", path)?,
        };
        let meta = data.meta().context("look at", path)?;
        match meta.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::io("open", path, ErrorKind::IsADirectory.into())),
            _ => return Err(Error::invalid(format!("{}: it is not a regular file", path.display()))),
        }
        let found = Attribute::decode(data.attribute().context("read the attribute of", path)?.as_deref());
        let quarantined = |id: u64| match view.quarantined.get(&id) {
            None => Ok(()),
            Some(why) => Err(Error::NeedsJournal {
                path: path.to_owned(),
                detail: format!("its commits wait in a quarantined journal: {why}"),
            }),
        };
        check_attribute(found, path, view.store, quarantined, |a| view.state.files.contains_key(&a.file))?;
        Ok(Found::Plain(data, meta.mode))
    }

    /// The data file of a file that the log knows, by its identity, under whichever of its names.
    fn data_of(&self, view: &View, file: &FileState) -> Result<Option<Arc<dyn File>>> {
        let Some(store) = view.store else { return Ok(None) };
        if !holds(invariant::READ_BY_IDENTITY) {
            return self.storage.open(file.display_name(), Open::READ).context("open", file.display_name()).map(Some);
        }
        let data_files = DataFiles {
            storage: &*self.storage,
            store,
            epoch: 0,
            newest_lsn: Some(self.look.lsn),
            rename_dir: self.store_dir.journal(),
            durable: false,
            contents: None,
        };
        let Location::At(at) = data_files.find_one(file)? else { return Ok(None) };
        let data = self.storage.open(&at, Open::READ).context("open", &at)?;
        match Attribute::decode(data.attribute().context("read the attribute of", &at)?.as_deref()) {
            AttributeFound::Valid(a) if a.store == store && a.file == file.id => Ok(Some(data)),
            _ => Err(Error::Conflict { path: at, detail: "it was replaced just now".into() }),
        }
    }

    /// Names in a directory, sorted; the empty path is the store itself. Untorn's own are left out.
    pub fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        if let Some(file) = &self.store_dir.standalone {
            return Ok(vec![file.clone().into_os_string()]);
        }
        if !dir.as_os_str().is_empty() {
            self.check_name(dir)?;
        }
        let missing = || Error::io("list", dir, ErrorKind::NotFound.into());
        self.of_this_moment(|view| {
            if view.is_gone(dir) {
                return Err(missing());
            }
            let mut names: BTreeSet<OsString> = match self.storage.list(dir) {
                Ok(names) => names.into_iter().collect(),
                Err(e) if e.kind() == ErrorKind::NotFound && view.state.dirs.contains_key(dir) => BTreeSet::new(),
                Err(e) => return Err(Error::io("list", dir, e)),
            };
            names.retain(|name| !is_own(name) && !view.is_gone(&dir.join(name)));
            let files = view.state.files.values().filter_map(|file| file.name.as_deref());
            let dirs = view.state.dirs.iter().filter(|(_, state)| state.exists).map(|(path, _)| path.as_path());
            let here = files.chain(dirs).filter(|path| path.parent() == Some(dir));
            names.extend(here.filter_map(|path| path.file_name()).map(OsString::from));
            Ok((names.into_iter().collect(), true))
        })
    }

    /// What is under a name.
    pub fn entry(self: &Arc<Snapshot>, path: &Path) -> Result<Entry> {
        if !path.as_os_str().is_empty() {
            self.check_name(path)?;
        }
        let directory = self.of_this_moment(|view| Ok((self.directory(view, path)?, true)));
        match directory? {
            Some(mode) => Ok(Entry { is_directory: true, len: 0, mode }),
            None => {
                let file = self.open(path)?;
                Ok(Entry { is_directory: false, len: file.len()?, mode: file.mode()? })
            }
        }
    }

    /// The permission bits of a directory.
    fn directory(&self, view: &View, path: &Path) -> Result<Option<u32>> {
        if view.is_gone(path) {
            return Ok(None);
        }
        let on_disk = match self.storage.stat(path) {
            Ok(meta) => (meta.kind == Kind::Directory).then_some(meta.mode),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(e) => return Err(Error::io("look at", path, e)),
        };
        Ok(match view.state.dirs.get(path) {
            Some(DirState { exists: true, mode }) => mode.or(on_disk).or(Some(0o700)),
            Some(_) => None,
            None => on_disk,
        })
    }
}

/// Untorn's own directories and temporaries hold no data.
fn is_own(name: &OsString) -> bool {
    name.as_encoded_bytes().ends_with(STORE_DIR.as_bytes())
}

impl SnapshotFile {
    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes.
    pub fn len(&self) -> Result<u64> {
        let len = self.len_now()?;
        self.snapshot.check_now(false)?;
        Ok(len)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    fn len_now(&self) -> Result<u64> {
        match (self.overlay.size, &self.data) {
            (Some(size), _) => Ok(size),
            (None, Some(data)) => Ok(data.meta().context("look at", &self.path)?.size),
            (None, None) => Ok(0),
        }
    }

    /// Permission bits.
    pub fn mode(&self) -> Result<u32> {
        match (self.mode, &self.data) {
            (Some(mode), _) => Ok(mode),
            (None, Some(data)) => {
                let mode = data.meta().context("look at", &self.path)?.mode;
                self.snapshot.check_now(true)?;
                Ok(mode)
            }
            (None, None) => Ok(0o600),
        }
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: `buf` may hold anything.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.len_now()?.saturating_sub(offset);
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = read_through(&[&self.overlay], self.data.as_deref(), &mut buf[..n], offset);
        self.snapshot.check_now(false)?;
        read.map(|()| n).map_err(|e| match e {
            Error::Io { action, source, .. } => Error::Io { action, path: self.path.clone(), source },
            e => e,
        })
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.look.lsn).finish_non_exhaustive()
    }
}
