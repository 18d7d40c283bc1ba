//! Reading a store without its lock: a snapshot of its files as of one commit, without writing.
//!
//! A file of a snapshot is its data file, with old bytes that the owner kept, under its changes in the log between the
//! header's checkpoint and the commit. Data that may be overwritten is read first, the index of kept data afterwards.
//! Nothing is read twice, and nobody waits.

mod copying;

use crate::commits::final_state::{DirState, FileState};
use crate::commits::overlay::{Overlay, read_through};
use crate::commits::record::check_path;
use crate::data_files::locate::{DataFiles, Location, check_attribute};
use crate::directories::store_dir::{STORE_DIR, StoreDir};
use crate::error::{Context, Error, Result};
use crate::format::{Attribute, AttributeFound, ListedEpoch, StoreId};
use crate::invariant;
use crate::readers::epochs::known_epochs;
use crate::readers::known_log::{Known, KnownLog};
use crate::readers::refusal;
use crate::readers::watch::{Taken, Wanted, Watch};
use crate::scanning::scan::read_header;
use crate::slots::epochs::Epochs;
use crate::undo::index::{Inode, NAMES_DIR, UndoIndex, Was, link_name};
use crate::undo::kept_links::KeptLinks;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use untorn_os::{Errno, File, Kind, Open, Storage, holds, read_full_at};

/// Searches for a file that is under none of its names. It may move from the name that is looked at last to the one
/// that was looked at first, because the names of a commit reach the disk after it is durable.
const SEARCHES_MAX: usize = 3;

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

/// The files of a store as of one commit, held until it is dropped.
pub struct Snapshot {
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    watch: Watch,
    lsn: u64,
    /// The epochs in the log of a store that nobody has opened since the boot.
    epochs: Vec<ListedEpoch>,
    /// The index of the data that the owner has kept, as far as it was read.
    index: Mutex<UndoIndex>,
    /// The log, once it was looked at.
    log: Mutex<Option<Arc<KnownLog>>>,
    known: Arc<Known>,
}

/// A file of a snapshot, open for reading.
pub struct SnapshotFile {
    snapshot: Arc<Snapshot>,
    path: PathBuf,
    data: Option<(Arc<dyn File>, Inode)>,
    /// The log, and the identity of the file, if the log changes it.
    logged: Option<(Arc<KnownLog>, u64)>,
    mode: Option<u32>,
}

/// The changes of a file that the log does not change.
static NO_CHANGES: LazyLock<Overlay> = LazyLock::new(Overlay::default);

/// The result of looking up a name.
enum FoundName {
    /// A file of this identity with changes in the log, under any name on the disk.
    Logged(Option<Arc<dyn File>>, Arc<KnownLog>, u64),
    /// A file without changes in the log, and its permission bits if they are known.
    Plain(Arc<dyn File>, Option<u32>),
    Nothing,
}

impl Snapshot {
    /// Takes a snapshot of a store, as of this commit or a later one. Nothing is read yet.
    pub fn take(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        known: &Arc<Known>,
        at_least: u64,
    ) -> Result<Arc<Snapshot>> {
        let wanted = Wanted::Snapshot { at_least };
        let Taken { watch, lsn, mut log, .. } = Watch::take(storage, store_dir, &known.page, wanted)?;
        let epochs = log.as_mut().map(|log| std::mem::take(&mut log.epochs)).unwrap_or_default();
        let log = log.map(|log| KnownLog::of_closed(log).map(Arc::new)).transpose()?;
        Ok(Arc::new(Snapshot {
            storage: storage.clone(),
            store_dir: store_dir.clone(),
            watch,
            lsn,
            epochs,
            index: Mutex::new(UndoIndex::new(lsn)),
            log: Mutex::new(log),
            known: known.clone(),
        }))
    }

    /// The identity of the store, and its epochs as far as they are known.
    pub fn epochs(&self) -> Result<(StoreId, Epochs)> {
        known_epochs(&*self.storage, &self.store_dir, &self.epochs)
    }

    /// The commit that the snapshot shows.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Checks that everything that was read so far is of this one commit, and that more can be read.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`] · [`Error::SnapshotEnded`]
    pub fn check(&self) -> Result<()> {
        self.watch.check(&*self.storage, &self.store_dir, self.lsn)
    }

    /// Checks that this version can read the store; the log is read when a file is opened.
    pub fn check_header(&self) -> Result<()> {
        if self.log.lock().is_some() {
            return Ok(());
        }
        match read_header(&*self.storage, &self.store_dir.journal())?.boot {
            Some(_) => Err(refusal::class_process(&self.store_dir, None)),
            None => Ok(()),
        }
    }

    /// The log, which is read when it is first needed.
    fn log(&self) -> Result<Arc<KnownLog>> {
        let mut log = self.log.lock();
        if let Some(log) = &*log {
            return Ok(log.clone());
        }
        let page = self.watch.page();
        let before = page.and_then(|page| self.known.take_log(page, self.lsn));
        let mut index = self.index.lock();
        let looked = KnownLog::look(&self.storage, &self.store_dir, &self.watch, self.lsn, &mut index, before)?;
        let looked = Arc::new(looked);
        if let Some(page) = page {
            self.known.put_log(page, &looked);
        }
        *log = Some(looked.clone());
        Ok(looked)
    }

    /// The index with everything that is published now; the caller has read the data before.
    fn index(&self) -> Result<MutexGuard<'_, UndoIndex>> {
        let mut index = self.index.lock();
        let disk = &*self.storage;
        index.update(disk, &self.store_dir.undo(), || self.watch.published(disk, &self.store_dir, self.lsn))?;
        Ok(index)
    }

    fn not_kept(&self, path: &Path) -> Error {
        Error::FileNotKept { path: path.to_owned(), lsn: self.lsn }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`] · [`Error::FileNotKept`] · [`Error::Io`] with `NotFound` · [`Error::Conflict`] and
    /// [`Error::NeedsJournal`] for a file that recovery would refuse, too.
    pub fn open(self: &Arc<Snapshot>, path: &Path) -> Result<SnapshotFile> {
        self.check_name(path)?;
        let found = self.checked(self.find(path))?;
        let open = |data: Option<Arc<dyn File>>, logged, mode| {
            let data = data.map(|data| data.meta().map(|meta| (data.clone(), (meta.device, meta.inode)))).transpose();
            let data = data.context("look at", path)?;
            Ok(SnapshotFile { snapshot: self.clone(), path: path.to_owned(), data, logged, mode })
        };
        match found {
            FoundName::Logged(data, log, id) => {
                let mode = log.state.files[&id].final_mode();
                open(data, Some((log, id)), mode)
            }
            FoundName::Plain(data, mode) => open(Some(data), None, mode),
            FoundName::Nothing => Err(Error::io("open", path, ErrorKind::NotFound.into())),
        }
    }

    /// A result, if the snapshot is still kept; otherwise the error may be due to that.
    fn checked<T>(&self, found: Result<T>) -> Result<T> {
        self.check()?;
        found
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

    fn find(&self, path: &Path) -> Result<FoundName> {
        let log = self.log()?;
        if let Some(file) = log.state.files.values().find(|file| file.name.as_deref() == Some(path)) {
            let data = if file.created.is_some() { None } else { self.data_of(&log, file)? };
            let id = file.id;
            return Ok(FoundName::Logged(data, log, id));
        }
        if log.is_gone(path) {
            return Ok(FoundName::Nothing);
        }
        let early =
            (!holds(invariant::INDEX_AFTER_NAME)).then(|| self.index().map(|index| index.name(path))).transpose()?;
        let opened = match self.storage.open(path, Open::READ) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            // The attribute is that of the name, too: a later commit changes both.
            done => done.map(|data| Some((data.attribute(), data))),
        };
        let was = match early {
            Some(was) => was,
            None => self.index()?.name(path),
        };
        let (attribute, data, mode) = match was {
            None => match opened.context("open", path)? {
                None => return Ok(FoundName::Nothing),
                Some((attribute, data)) => (attribute, data, None),
            },
            Some(Was::Nothing) => return Ok(FoundName::Nothing),
            Some(Was::Directory(_)) => return Err(Error::io("open", path, ErrorKind::IsADirectory.into())),
            Some(Was::Lost) => return Err(self.not_kept(path)),
            Some(Was::File { mode, link }) => (Ok(None), self.open_link(path, link)?, Some(mode)),
        };
        let meta = data.meta().context("look at", path)?;
        match meta.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::io("open", path, ErrorKind::IsADirectory.into())),
            _ => return Err(Error::invalid(format!("{}: it is not a regular file", path.display()))),
        }
        let found = Attribute::decode(attribute.context("read the attribute of", path)?.as_deref());
        let quarantined = |id: u64| match log.quarantined.get(&id) {
            None => Ok(()),
            Some(why) => Err(Error::NeedsJournal {
                path: path.to_owned(),
                detail: format!("its commits wait in a quarantined journal: {why}"),
            }),
        };
        // Of a file that was kept under its old name, the attribute may name a newer one.
        if was.is_none() {
            let is_known = |a: &Attribute| log.state.files.contains_key(&a.file);
            let is_newer = |a: &Attribute| log.left_by.as_ref().is_some_and(|header| !header.knows(a));
            check_attribute(found, path, log.store, quarantined, is_known, is_newer)?;
        }
        Ok(FoundName::Plain(data, mode))
    }

    /// Opens a kept file.
    fn open_link(&self, path: &Path, link: u64) -> Result<Arc<dyn File>> {
        match self.storage.open(&self.store_dir.undo().join(NAMES_DIR).join(link_name(link)), Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.check()?;
                Err(self.not_kept(path))
            }
            done => done.context("open", path),
        }
    }

    /// The data file of a file in the log, found by its identity under any of its names, or as it was kept.
    fn data_of(&self, log: &KnownLog, file: &FileState) -> Result<Option<Arc<dyn File>>> {
        let Some(store) = log.store else { return Ok(None) };
        if !holds(invariant::READ_BY_IDENTITY) {
            return self.storage.open(file.display_name(), Open::READ).context("open", file.display_name()).map(Some);
        }
        let data_files = DataFiles {
            storage: &*self.storage,
            store,
            epoch: 0,
            // Beside an owner, data files are ahead of the snapshot.
            newest_lsn: log.left_by.is_some().then_some(self.lsn),
            rename_dir: self.store_dir.journal(),
            durable: false,
            contents: None,
            kept_links: KeptLinks::any(),
        };
        let identity = |data: &Arc<dyn File>| match Attribute::decode(data.attribute().ok().flatten().as_deref()) {
            AttributeFound::Valid(a) if a.store == store => Some(a.file),
            _ => None,
        };
        let name = file.display_name();
        let mut found = Ok(Location::Absent);
        for _ in 0..SEARCHES_MAX {
            found = data_files.find_one(file);
            if let Ok(Location::At(at)) = &found
                && let Ok(data) = self.storage.open(at, Open::READ)
                && identity(&data) == Some(file.id)
            {
                return Ok(Some(data));
            }
            // An owner that forgot the file meanwhile has given it another identity. Under its name it is the file all
            // the same, unless a later commit changed that name.
            let is_named = self.watch.names_are_applied(&*self.storage, log.last_named())?;
            let opened = self.storage.open(name, Open::READ).ok();
            let was = self.index()?.name(name);
            let data = match was {
                Some(Was::File { link, .. }) => Some(self.open_link(name, link)?),
                Some(Was::Lost) => return Err(self.not_kept(name)),
                Some(Was::Nothing | Was::Directory(_)) => None,
                None => opened.filter(|_| is_named),
            };
            if let Some(data) = data.filter(|data| identity(data).is_some()) {
                return Ok(Some(data));
            }
        }
        match found? {
            Location::Absent => Ok(None),
            Location::At(at) => Err(Error::Conflict { path: at, detail: "it was replaced just now".into() }),
        }
    }

    /// Names in a directory, sorted, without Untorn's own; the empty path is the store itself.
    pub fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        if let Some(file) = &self.store_dir.standalone {
            return Ok(vec![file.clone().into_os_string()]);
        }
        if !dir.as_os_str().is_empty() {
            self.check_name(dir)?;
        }
        self.checked(self.listed(dir))
    }

    fn listed(&self, dir: &Path) -> Result<Vec<OsString>> {
        let missing = || Error::io("list", dir, ErrorKind::NotFound.into());
        let log = self.log()?;
        if log.is_gone(dir) {
            return Err(missing());
        }
        let listed = self.storage.list(dir);
        let index = self.index()?;
        let was = index.name(dir);
        if matches!(was, Some(Was::Nothing)) && !log.state.dirs.get(dir).is_some_and(|state| state.exists) {
            return Err(missing());
        }
        let is_file = matches!(was, Some(Was::File { .. } | Was::Lost));
        if is_file || log.state.files.values().any(|file| file.name.as_deref() == Some(dir)) {
            return Err(Error::io("list", dir, Errno::NOTDIR.into()));
        }
        let may_be_gone = log.state.dirs.contains_key(dir) || was.is_some();
        let mut names: BTreeSet<OsString> = match listed {
            Ok(names) => names.into_iter().collect(),
            Err(e) if e.kind() == ErrorKind::NotFound && may_be_gone => BTreeSet::new(),
            Err(e) => return Err(Error::io("list", dir, e)),
        };
        for (path, was) in index.names_in(dir) {
            let Some(name) = path.file_name() else { continue };
            match was {
                Was::Nothing => _ = names.remove(name),
                Was::Directory(_) | Was::File { .. } | Was::Lost => _ = names.insert(name.to_owned()),
            }
        }
        drop(index);
        names.retain(|name| !is_own(name) && !log.is_gone(&dir.join(name)));
        let files = log.state.files.values().filter_map(|file| file.name.as_deref());
        let dirs = log.state.dirs.iter().filter(|(_, state)| state.exists).map(|(path, _)| path.as_path());
        let here = files.chain(dirs).filter(|path| path.parent() == Some(dir));
        names.extend(here.filter_map(|path| path.file_name()).map(OsString::from));
        Ok(names.into_iter().collect())
    }

    /// The file or directory under a name.
    pub fn entry(self: &Arc<Snapshot>, path: &Path) -> Result<Entry> {
        if !path.as_os_str().is_empty() {
            self.check_name(path)?;
        }
        match self.checked(self.directory(path))? {
            Some(mode) => Ok(Entry { is_directory: true, len: 0, mode }),
            None => {
                let file = self.open(path)?;
                Ok(Entry { is_directory: false, len: file.len()?, mode: file.mode()? })
            }
        }
    }

    /// The permission bits of a directory, or `None` if there is none under this name.
    fn directory(&self, path: &Path) -> Result<Option<u32>> {
        let log = self.log()?;
        if log.is_gone(path) || log.state.files.values().any(|file| file.name.as_deref() == Some(path)) {
            return Ok(None);
        }
        let on_disk = match self.storage.stat(path) {
            Ok(meta) => (meta.kind == Kind::Directory).then_some(meta.mode),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(e) => return Err(Error::io("look at", path, e)),
        };
        let before = match self.index()?.name(path) {
            None => on_disk,
            Some(Was::Directory(mode)) => Some(mode),
            Some(_) => None,
        };
        Ok(match log.state.dirs.get(path) {
            Some(DirState { exists: true, mode }) => mode.or(before).or(Some(0o700)),
            Some(_) => None,
            None => before,
        })
    }
}

/// Whether a name is one of Untorn's own directories or temporaries, which hold no data.
fn is_own(name: &OsString) -> bool {
    name.as_encoded_bytes().ends_with(STORE_DIR.as_bytes())
}

impl SnapshotFile {
    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its changes in the log.
    fn overlay(&self) -> &Overlay {
        match &self.logged {
            Some((log, id)) => &log.state.files[id].overlay,
            None => &NO_CHANGES,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> Result<u64> {
        self.snapshot.checked(self.len_now())
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    fn len_now(&self) -> Result<u64> {
        match (self.overlay().size, &self.data) {
            (Some(size), _) => Ok(size),
            (None, Some((data, inode))) => {
                let len = data.meta().context("look at", &self.path)?.size;
                Ok(self.snapshot.index()?.len(*inode).unwrap_or(len))
            }
            (None, None) => Ok(0),
        }
    }

    /// Permission bits.
    pub fn mode(&self) -> Result<u32> {
        let Some((data, _)) = &self.data else { return Ok(self.mode.unwrap_or(0o600)) };
        if let Some(mode) = self.mode {
            return Ok(mode);
        }
        let mode = data.meta().context("look at", &self.path)?.mode;
        let was = self.snapshot.index()?.name(&self.path);
        self.snapshot.check()?;
        Ok(match was {
            Some(Was::File { mode, .. }) => mode,
            _ => mode,
        })
    }

    /// The data file, for metadata: times, owner, other attributes. `None` if it does not exist yet.
    pub fn data(&self) -> Option<&Arc<dyn File>> {
        self.data.as_ref().map(|(data, _)| data)
    }

    fn undo(&self, inode: Inode, buf: &mut [u8], offset: u64) -> Result<()> {
        let snapshot = &self.snapshot;
        let mut index = snapshot.index.lock();
        let done = index.undo(&*snapshot.storage, &snapshot.store_dir.undo(), inode, buf, offset);
        drop(index);
        snapshot.checked(done)
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let Some((data, inode)) = &self.data else {
            let left = self.len_now()?.saturating_sub(offset);
            let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            return read_through(&[self.overlay()], None, &mut buf[..n], offset).map(|()| n);
        };
        if self.overlay().covers(&range) {
            // Nothing below shows, and an overlay that leaves the size alone lies within the file.
            let end = self.overlay().size.unwrap_or(range.end).clamp(range.start, range.end);
            let n = (end - offset) as usize;
            return read_through(&[self.overlay()], None, &mut buf[..n], offset).map(|()| n);
        }
        let early = !holds(invariant::INDEX_AFTER_DATA);
        if early {
            drop(self.snapshot.index()?);
        }
        let read = read_full_at(&**data, buf, offset);
        // The index comes after the data.
        let (is_changed, old_len) = {
            let index = if early { self.snapshot.index.lock() } else { self.snapshot.index()? };
            (index.has(*inode), index.len(*inode))
        };
        let mut over = self.overlay().overlapping(&range).peekable();
        let read = match read {
            // A part that the disk cannot read may be covered.
            Err(e) if over.peek().is_none() && !is_changed => return Err(Error::io("read", &self.path, e)),
            read => read,
        };
        let size = match (self.overlay().size.or(old_len), &read) {
            (Some(size), _) => Some(size),
            // The read ended at the end of the file.
            (None, Ok(n)) if *n > 0 => Some(offset + *n as u64),
            _ => None,
        };
        let size = match size {
            Some(size) if size < range.end || read.as_ref().is_ok_and(|n| *n == buf.len()) => size,
            _ => self.len_now()?,
        };
        let n = buf.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        match read {
            Ok(got) => buf[got.min(n)..n].fill(0),
            Err(_) => read_through(&[self.overlay()], Some(&**data), &mut buf[..n], offset)?,
        }
        if is_changed {
            self.undo(*inode, &mut buf[..n], offset)?;
        }
        for (found, source) in over {
            let part = found.start.max(range.start)..found.end.min(offset + n as u64);
            if part.start < part.end {
                source.copy_to(&mut buf[(part.start - offset) as usize..(part.end - offset) as usize], part.start)?;
            }
        }
        Ok(n)
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: `buf` may hold anything.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.read_now(buf, offset);
        self.snapshot.checked(read).map_err(|e| match e {
            Error::Io { action, source, .. } => Error::Io { action, path: self.path.clone(), source },
            e => e,
        })
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.lsn).finish_non_exhaustive()
    }
}
