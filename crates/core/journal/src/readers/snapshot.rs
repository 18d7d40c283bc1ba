//! Reading a store without its lock: a snapshot of its files as of one commit, without writing.
//!
//! ```text
//! an owner lives     S = durable ─▶ header, log up to S ─▶ data files ─▶ applying_to ≤ S? names_to ≤ S?
//! nobody has it      flush the log, S = its end         ─▶ data files ─▶ has nobody opened it meanwhile?
//! ```
//!
//! A file of a snapshot is its data file, overlaid with its changes in the log between the header's checkpoint and S.
//! Data that was read is believed only if the state that it relies on is unchanged afterwards; otherwise the snapshot
//! has expired. A lease postpones that: the owner delays changes that would make the snapshot expire, and keeps removed
//! files; name changes behind S are undone.

use crate::commits::final_state::{DirState, FileState, FinalState};
use crate::commits::overlay::{Overlay, read_through};
use crate::commits::record::check_path;
use crate::data_files::apply::apply_overlay;
use crate::data_files::locate::{DataFiles, Location, check_attribute};
use crate::directories::store_dir::{STORE_DIR, StoreDir, parked_name};
use crate::error::{Context, Error, Result, is_loop};
use crate::format::{Attribute, AttributeFound, Header, StoreId};
use crate::invariant;
use crate::readers::look::{Look, Valid, Watch, is_owned, quarantined_files};
use crate::readers::names_since::NamesSince;
use crate::readers::readers_page::Cell;
use crate::scanning::scan::{AcceptedRecord, read_header};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, BLOCK_BYTES, File, Kind, Open, Storage, holds, read_full_at, write_all_at};

/// Searches for a file that is under none of its names.
const SEARCHES_MAX: usize = 5;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Lookups that are repeated because new names have to be undone.
const UNDONE_MAX: usize = 1000;

/// The net effect of a look at the log.
struct View {
    checkpoint_lsn: u64,
    /// The commits behind the checkpoint, in order.
    accepted: Vec<Arc<AcceptedRecord>>,
    state: FinalState,
    store: Option<StoreId>,
    /// The header, if the store is closed.
    left_by: Option<Arc<Header>>,
    quarantined: BTreeMap<u64, String>,
}

impl View {
    fn of(look: &mut Look) -> Result<View> {
        let accepted: Vec<_> = std::mem::take(&mut look.accepted).into_iter().map(Arc::new).collect();
        let mut state = FinalState::default();
        accepted.iter().try_for_each(|accepted| state.add_record(&accepted.record, accepted.lsn))?;
        let quarantined = std::mem::take(&mut look.quarantined);
        let left_by = look.left_by.take().map(Arc::new);
        Ok(View { checkpoint_lsn: look.checkpoint_lsn, accepted, state, store: look.store, left_by, quarantined })
    }

    /// The view after these commits, with the log truncated behind this checkpoint: applied commits are dropped.
    fn go_on(
        &self,
        newer: Vec<AcceptedRecord>,
        checkpoint_lsn: u64,
        quarantined: BTreeMap<u64, String>,
    ) -> Result<View> {
        let is_same = checkpoint_lsn == self.checkpoint_lsn;
        let mut state = if is_same { self.state.clone() } else { FinalState::default() };
        let mut accepted: Vec<_> = self.accepted.iter().filter(|a| a.lsn > checkpoint_lsn).cloned().collect();
        let known = if is_same { accepted.len() } else { 0 };
        accepted.extend(newer.into_iter().filter(|a| a.lsn > checkpoint_lsn).map(Arc::new));
        accepted[known..].iter().try_for_each(|accepted| state.add_record(&accepted.record, accepted.lsn))?;
        debug_assert!(
            accepted.is_sorted_by(|one, next| one.lsn < next.lsn),
            "commits behind {checkpoint_lsn} are not in order"
        );
        let (store, left_by) = (self.store, self.left_by.clone());
        Ok(View { checkpoint_lsn, accepted, state, store, left_by, quarantined })
    }

    /// Whether the log says that nothing has this name any more.
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
    /// The view with which the snapshot was taken.
    taken: Arc<View>,
    /// Name changes behind the snapshot's commit, as far as they were read.
    since: RwLock<Arc<NamesSince>>,
    lease: Mutex<Option<Arc<dyn File>>>,
}

/// A file of a snapshot, open for reading.
pub struct SnapshotFile {
    snapshot: Arc<Snapshot>,
    path: PathBuf,
    data: Option<Arc<dyn File>>,
    overlay: Overlay,
    mode: Option<u32>,
}

/// The result of looking up a name.
enum FoundName {
    /// A file with changes in the log, under any name on the disk.
    Logged(Option<Arc<dyn File>>, Box<FileState>),
    /// A file without changes in the log, and its permission bits.
    Plain(Arc<dyn File>, u32),
    /// A file that only commits behind the snapshot changed, and its permission bits, if these did not change.
    Moved(Arc<dyn File>, Option<u32>),
    Nothing,
}

impl Snapshot {
    fn new(storage: &Arc<dyn Storage>, store_dir: &StoreDir, look: Look, taken: Arc<View>) -> Arc<Snapshot> {
        let (view, since) = (RwLock::new(taken.clone()), RwLock::new(Arc::new(NamesSince::new(look.lsn))));
        let (storage, store_dir) = (storage.clone(), store_dir.clone());
        Arc::new(Snapshot { storage, store_dir, look, view, taken, since, lease: Mutex::default() })
    }

    /// Takes a snapshot of a store, as of this commit or a later one.
    pub fn take(storage: &Arc<dyn Storage>, store_dir: &StoreDir, at_least: u64) -> Result<Arc<Snapshot>> {
        let mut look = Look::take(storage, store_dir, at_least)?;
        let view = View::of(&mut look)?;
        Ok(Snapshot::new(storage, store_dir, look, Arc::new(view)))
    }

    /// A snapshot as of the last commit that the same owner has made durable; the log that was read before is not read
    /// again. Returns `None` if this needs a scan of the whole log.
    pub fn go_on(self: &Arc<Snapshot>, at_least: u64) -> Option<Arc<Snapshot>> {
        let (Watch::Owner(page), Some(tail)) = (&self.look.watch, &self.look.tail) else { return None };
        let (old, mut tail) = (self.view(), tail.clone());
        let moment = page.moment(&*self.storage);
        let now = page.look().ok()?;
        let lsn = now.lsn(Cell::Durable).filter(|lsn| *lsn >= at_least.max(self.look.lsn))?;
        // Files whose commits were applied meanwhile may need nothing from the log any more.
        let is_applied = now.lsn(Cell::ApplyingTo).is_none_or(|to| to > old.checkpoint_lsn);
        let has_changed = lsn > self.look.lsn || is_applied;
        let checkpoint_lsn = match has_changed {
            true => read_header(&*self.storage, &self.store_dir.journal()).ok()?.checkpoint_lsn,
            false => old.checkpoint_lsn,
        };
        if checkpoint_lsn < old.checkpoint_lsn || checkpoint_lsn > lsn {
            return None;
        }
        let accepted = tail.read_to(lsn, page, &self.storage, &self.store_dir.journal(), true)?;
        if is_owned(&*self.storage, &self.store_dir).ok()? != (true, Some(page.head.pid)) {
            return None;
        }
        let look = Look {
            watch: Watch::Owner(page.clone()),
            lsn,
            checkpoint_lsn,
            accepted: Vec::new(),
            is_missing_some: false,
            store: old.store,
            left_by: None,
            quarantined: BTreeMap::new(),
            tail: Some(tail),
            moment,
        };
        let quarantined =
            if has_changed { quarantined_files(&*self.storage, &self.store_dir).ok()? } else { BTreeMap::new() };
        let valid = look.is_valid(&*self.storage, &self.store_dir, None).ok()?;
        if valid != Valid::Yes {
            return None;
        }
        if !has_changed {
            return Some(Snapshot::new(&self.storage, &self.store_dir, look, old));
        }
        let view = old.go_on(accepted, checkpoint_lsn, quarantined).ok()?;
        Some(Snapshot::new(&self.storage, &self.store_dir, look, Arc::new(view)))
    }

    /// The commit that the snapshot shows.
    pub fn lsn(&self) -> u64 {
        self.look.lsn
    }

    /// Takes a lease on the snapshot. Until it is released, or for as long as the owner honours leases, the owner
    /// delays changes that would make the snapshot expire.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: newer commits are being applied, or names have changed. [`Error::Unsupported`]:
    /// there is no page to lock.
    pub fn hold(&self) -> Result<()> {
        let mut lease = self.lease.lock();
        if lease.is_some() {
            return self.check();
        }
        let taken = self.look.lease(&*self.storage, &self.store_dir).map_err(|e| match e {
            Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => Error::Unsupported {
                path: self.store_dir.dir.clone(),
                detail:
                    "it has no page for readers, which a lease needs; open and close the store once, which makes this \
                         page"
                        .into(),
            },
            e => e,
        });
        *lease = taken?;
        if lease.is_some() { Ok(()) } else { Err(self.expired()) }
    }

    /// Ends the lease, if there is one. The snapshot stays valid until a change makes it expire.
    pub fn release(&self) {
        *self.lease.lock() = None;
    }

    /// Whether there is a lease. The owner may nevertheless have stopped waiting for it.
    pub fn is_held(&self) -> bool {
        self.lease.lock().is_some()
    }

    fn expired(&self) -> Error {
        Error::SnapshotExpired { path: self.store_dir.dir.clone(), lsn: self.look.lsn }
    }

    /// Whether the snapshot can still be read.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]
    pub fn check(&self) -> Result<()> {
        if !holds(invariant::LEASES_VALIDATED) && self.is_held() {
            return Ok(());
        }
        match self.look.is_valid(&*self.storage, &self.store_dir, None)? {
            Valid::Yes | Valid::NewNames(_) => Ok(()),
            Valid::No => Err(self.expired()),
        }
    }

    /// Whether data that was read just now is valid.
    fn check_read(&self) -> Result<()> {
        if !holds(invariant::LEASES_VALIDATED) && self.is_held() {
            return Ok(());
        }
        match self.look.is_still_valid(&*self.storage, &self.store_dir)? {
            true => Ok(()),
            false => Err(self.expired()),
        }
    }

    /// Whether the result of a name lookup is valid, given that name changes behind the snapshot were undone as far as
    /// `since` knows them. Returns false if, under a lease, there were newer changes; these are known afterwards.
    fn check_names(&self, since: &NamesSince) -> Result<bool> {
        let known = if holds(invariant::NAMES_UNDONE) || !self.is_held() { since.to } else { u64::MAX };
        match self.look.is_valid(&*self.storage, &self.store_dir, Some(known))? {
            Valid::Yes => Ok(true),
            Valid::NewNames(to) if self.is_held() => self.learn_names(since, to).map(|()| false),
            Valid::NewNames(_) | Valid::No => Err(self.expired()),
        }
    }

    /// Reads the name changes of commits up to this one. These commits stay in the log as long as the snapshot is held.
    fn learn_names(&self, since: &NamesSince, to: u64) -> Result<()> {
        let read = match (&self.look.watch, self.look.tail.clone()) {
            (Watch::Owner(page), Some(mut tail)) => {
                tail.read_to(to, page, &self.storage, &self.store_dir.journal(), false)
            }
            _ => None,
        };
        let accepted = match read {
            Some(accepted) => accepted,
            None => {
                let newer = self.look.again(&self.storage, &self.store_dir, Some(self.look.lsn))?;
                let newer = newer.filter(|newer| !newer.is_missing_some && newer.lsn >= to);
                newer.ok_or_else(|| self.expired())?.accepted
            }
        };
        let mut now = since.clone();
        now.add(&accepted, to);
        *self.since.write() = Arc::new(now);
        Ok(())
    }

    fn since(&self) -> Arc<NamesSince> {
        self.since.read().clone()
    }

    fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Reads the log again, because a checkpoint may have applied a file's commits. Returns false if the log was not
    /// truncated.
    fn reload(&self, old: &View) -> Result<bool> {
        let Some(mut newer) = self.look.again(&self.storage, &self.store_dir, None)? else { return Ok(false) };
        newer.accepted.retain(|record| record.lsn <= self.look.lsn);
        if newer.checkpoint_lsn > self.look.lsn {
            return Err(Error::SnapshotExpired { path: self.store_dir.dir.clone(), lsn: self.look.lsn });
        }
        let view = View::of(&mut newer)?;
        if view.checkpoint_lsn == old.checkpoint_lsn {
            return Ok(false);
        }
        *self.view.write() = Arc::new(view);
        Ok(true)
    }

    /// Runs `act`, which looks up names, and returns its result if that is valid for the snapshot's commit. The flag
    /// that `act` returns says whether the result relies on names on the disk.
    fn of_this_moment<T>(&self, act: impl Fn(&View, &NamesSince) -> Result<(T, bool)>) -> Result<T> {
        let mut tries = 0;
        for _ in 0..UNDONE_MAX {
            let (view, since) = (self.view(), self.since());
            match act(&view, &since) {
                Ok((found, by_name)) => {
                    self.check()?;
                    if !by_name || self.check_names(&since)? {
                        return Ok(found);
                    }
                }
                Err(e) => {
                    if !self.check_names(&since)? {
                        continue;
                    }
                    // No name has changed, so this error is the answer.
                    if says_what_is_there(&e) {
                        return Err(e);
                    }
                    tries += 1;
                    // A file may have moved from the name that is looked at last to the one that was looked at first,
                    // because name changes of this commit, and of commits before it, reach the disk after these commits
                    // are durable.
                    if !self.reload(&view)? && tries >= SEARCHES_MAX {
                        // The file could not be parked, and is gone.
                        return Err(if since.to > self.look.lsn { self.expired() } else { e });
                    }
                    if self.is_held() {
                        self.storage.pause();
                    }
                }
            }
        }
        Err(self.expired())
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`] · [`Error::Io`] with `NotFound` · [`Error::Conflict`] and [`Error::NeedsJournal`] for
    /// a file that recovery would refuse, too.
    pub fn open(self: &Arc<Snapshot>, path: &Path) -> Result<SnapshotFile> {
        self.check_name(path)?;
        let found = self.of_this_moment(|view, since| {
            let found = self.find(view, since, path)?;
            let by_name = !matches!(found, FoundName::Logged(..));
            Ok((found, by_name))
        })?;
        let open =
            |data, overlay, mode| SnapshotFile { snapshot: self.clone(), path: path.to_owned(), data, overlay, mode };
        match found {
            FoundName::Logged(data, file) => Ok(open(data, file.overlay.clone(), file.final_mode())),
            FoundName::Plain(data, mode) => Ok(open(Some(data), Overlay::default(), Some(mode))),
            FoundName::Moved(data, mode) => Ok(open(Some(data), Overlay::default(), mode)),
            FoundName::Nothing => Err(Error::io("open", path, ErrorKind::NotFound.into())),
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

    fn find(&self, view: &View, since: &NamesSince, path: &Path) -> Result<FoundName> {
        if let Some(file) = view.state.files.values().find(|file| file.name.as_deref() == Some(path)) {
            let data = if file.created.is_some() { None } else { self.data_of(view, since, file)? };
            return Ok(FoundName::Logged(data, Box::new(file.clone())));
        }
        if view.is_gone(path) {
            return Ok(FoundName::Nothing);
        }
        if let Some(id) = since.file_of(path) {
            return self.moved(view, since, id, path);
        }
        if since.is_new(path) {
            return Ok(FoundName::Nothing);
        }
        let data = match self.storage.open(path, Open::READ) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(FoundName::Nothing);
            }
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
        let is_known = |a: &Attribute| view.state.files.contains_key(&a.file);
        let is_newer = |a: &Attribute| view.left_by.as_ref().is_some_and(|header| !header.knows(a));
        check_attribute(found, path, view.store, quarantined, is_known, is_newer)?;
        Ok(FoundName::Plain(data, meta.mode))
    }

    /// Finds a file that only commits behind the snapshot touch.
    fn moved(&self, view: &View, since: &NamesSince, id: u64, path: &Path) -> Result<FoundName> {
        let data = self.data_of(view, since, &FileState::named(id, path))?;
        let is_whole = |data: &Arc<dyn File>| match Attribute::decode(data.attribute().ok().flatten().as_deref()) {
            AttributeFound::Valid(a) => a.checkpoint_lsn >= since.previous_lsn(id) || !holds(invariant::LEFT_OUT_KEPT),
            _ => false,
        };
        // A checkpoint skips the commits of a file that is already removed, and truncates the log behind them.
        match (data, self.taken.state.files.get(&id)) {
            (Some(data), _) if is_whole(&data) => {
                let mode = data.meta().context("look at", path)?.mode;
                Ok(FoundName::Moved(data, (!since.has_mode(path)).then_some(mode)))
            }
            (data, Some(file)) if data.is_some() || file.created.is_some() => {
                Ok(FoundName::Logged(data.filter(|_| file.created.is_none()), Box::new(file.clone())))
            }
            _ => Err(self.expired()),
        }
    }

    /// The data file of a file in the log, found by its identity under any of its names.
    fn data_of(&self, view: &View, since: &NamesSince, file: &FileState) -> Result<Option<Arc<dyn File>>> {
        let Some(store) = view.store else { return Ok(None) };
        if !holds(invariant::READ_BY_IDENTITY) {
            return self.storage.open(file.display_name(), Open::READ).context("open", file.display_name()).map(Some);
        }
        let data_files = DataFiles {
            storage: &*self.storage,
            store,
            epoch: 0,
            newest_lsn: Some(self.look.lsn.max(since.to)),
            rename_dir: self.store_dir.journal(),
            durable: false,
            contents: None,
            parking: None,
        };
        let moved = |at: PathBuf| Error::Conflict { path: at, detail: "it was replaced just now".into() };
        let at = match self.located(&data_files, since, file) {
            Ok(Location::At(at)) => at,
            Ok(_) => return Ok(None),
            Err(e) if says_what_is_there(&e) => return Err(moved(file.display_name().to_owned())),
            Err(e) => return Err(e),
        };
        let data = match self.storage.open(&at, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(moved(at)),
            done => done.context("open", &at)?,
        };
        match Attribute::decode(data.attribute().context("read the attribute of", &at)?.as_deref()) {
            AttributeFound::Valid(a) if a.store == store && a.file == file.id => Ok(Some(data)),
            _ => Err(moved(at)),
        }
    }

    /// Finds a data file under its old names, the names that it got since, or its parked name.
    fn located(&self, data_files: &DataFiles<'_>, since: &NamesSince, file: &FileState) -> Result<Location> {
        if !self.is_held() {
            return data_files.find_one(file);
        }
        let mut file = file.clone();
        file.names.insert(0, self.store_dir.parked().join(parked_name(file.id)));
        file.names.extend(since.names_of(file.id).iter().cloned());
        data_files.find_one(&file)
    }

    /// Names in a directory, sorted, without Untorn's own; the empty path is the store itself.
    pub fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        if let Some(file) = &self.store_dir.standalone {
            return Ok(vec![file.clone().into_os_string()]);
        }
        if !dir.as_os_str().is_empty() {
            self.check_name(dir)?;
        }
        let missing = || Error::io("list", dir, ErrorKind::NotFound.into());
        self.of_this_moment(|view, since| {
            if view.is_gone(dir) || since.had_dir(dir) == Some(false) {
                return Err(missing());
            }
            let may_be_gone = view.state.dirs.contains_key(dir) || since.had_dir(dir).is_some();
            let mut names: BTreeSet<OsString> = match self.storage.list(dir) {
                Ok(names) => names.into_iter().collect(),
                Err(e) if e.kind() == ErrorKind::NotFound && may_be_gone => BTreeSet::new(),
                Err(e) => return Err(Error::io("list", dir, e)),
            };
            let is_new = |path: &Path| since.had_dir(path) == Some(false) || since.is_new(path);
            names.retain(|name| !is_own(name) && !view.is_gone(&dir.join(name)) && !is_new(&dir.join(name)));
            let before = since.names_in(dir).filter(|path| !view.is_gone(path));
            names.extend(before.filter_map(|path| path.file_name()).map(OsString::from));
            let files = view.state.files.values().filter_map(|file| file.name.as_deref());
            let dirs = view.state.dirs.iter().filter(|(_, state)| state.exists).map(|(path, _)| path.as_path());
            let here = files.chain(dirs).filter(|path| path.parent() == Some(dir));
            names.extend(here.filter_map(|path| path.file_name()).map(OsString::from));
            Ok((names.into_iter().collect(), true))
        })
    }

    /// The file or directory under a name.
    pub fn entry(self: &Arc<Snapshot>, path: &Path) -> Result<Entry> {
        if !path.as_os_str().is_empty() {
            self.check_name(path)?;
        }
        let directory = self.of_this_moment(|view, since| Ok((self.directory(view, since, path)?, true)));
        match directory? {
            Some(mode) => Ok(Entry { is_directory: true, len: 0, mode }),
            None => {
                let file = self.open(path)?;
                Ok(Entry { is_directory: false, len: file.len()?, mode: file.mode()? })
            }
        }
    }

    /// The permission bits of a directory, or `None` if there is none under this name.
    fn directory(&self, view: &View, since: &NamesSince, path: &Path) -> Result<Option<u32>> {
        if view.is_gone(path) || since.had_dir(path) == Some(false) || since.file_of(path).is_some() {
            return Ok(None);
        }
        let on_disk = match self.storage.stat(path) {
            Ok(meta) => (meta.kind == Kind::Directory).then_some(meta.mode),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(e) => return Err(Error::io("look at", path, e)),
        };
        let known = view.state.dirs.get(path).and_then(|dir| dir.mode);
        if known.is_none() && (since.has_mode(path) || (since.had_dir(path).is_some() && on_disk.is_none())) {
            // The log has the new mode, not the old one.
            return Err(self.expired());
        }
        Ok(match view.state.dirs.get(path) {
            Some(DirState { exists: true, mode }) => mode.or(on_disk).or(Some(0o700)),
            Some(_) => None,
            None => on_disk,
        })
    }
}

/// Whether an error describes the object under a name, so that another lookup of unchanged names gives the same error.
fn says_what_is_there(e: &Error) -> bool {
    let kinds = [ErrorKind::NotFound, ErrorKind::IsADirectory, ErrorKind::NotADirectory];
    matches!(e, Error::Io { source, .. } if kinds.contains(&source.kind()) || is_loop(source))
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

    /// Length in bytes.
    pub fn len(&self) -> Result<u64> {
        let len = self.len_now()?;
        self.snapshot.check_read()?;
        Ok(len)
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Whether the mode of the data file is that of the snapshot's commit.
    fn check_mode(&self) -> Result<()> {
        let snapshot = &self.snapshot;
        loop {
            let since = snapshot.since();
            if snapshot.check_names(&since)? {
                return if since.has_mode(&self.path) { Err(snapshot.expired()) } else { Ok(()) };
            }
        }
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
                self.check_mode()?;
                Ok(mode)
            }
            (None, None) => Ok(0o600),
        }
    }

    /// Copies the contents to an empty file: blocks are shared where the file system supports that, and ranges that
    /// read as zeros stay holes. Returns the length. `progress` gets the bytes done.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: the other file may hold anything, as after any error.
    pub fn copy_to(&self, to: &dyn File, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        let size = self.len_now()?;
        let there = match &self.data {
            Some(data) => data.meta().context("look at", &self.path)?.size.min(size),
            None => 0,
        };
        to.set_len(size).context("make a copy of", &self.path)?;
        if let Some(data) = &self.data {
            let block = BLOCK_BYTES as u64;
            let whole = there - there % block;
            let cloned = if whole > 0 && to.clone_range(&**data, 0, 0, whole).is_ok() { whole } else { 0 };
            let mut piece = AlignedBuf::zeroed_up_to(COPY_BYTES.min(there as usize).max(1));
            let mut from = cloned;
            while let Some(range) = data.next_contents(from, there).context("look at", &self.path)? {
                from = range.start;
                while from < range.end {
                    let n = piece.len().min((range.end - from) as usize);
                    let n = read_full_at(&**data, &mut piece[..n], from).context("read", &self.path)?;
                    if n == 0 {
                        break;
                    }
                    if piece[..n].iter().any(|byte| *byte != 0) {
                        write_all_at(to, &piece[..n], from).context("write a copy of", &self.path)?;
                    }
                    from += n as u64;
                    progress(from);
                }
                from = range.end;
            }
        }
        let applied = apply_overlay(to, &self.overlay, &self.path, Some(BLOCK_BYTES as u64));
        self.snapshot.check()?;
        applied?;
        to.set_len(size).context("make a copy of", &self.path)?;
        progress(size);
        Ok(size)
    }

    /// The data file, for metadata: times, owner, other attributes. `None` if it does not exist yet.
    pub fn data(&self) -> Option<&Arc<dyn File>> {
        self.data.as_ref()
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        // Where the data file determines the length, the read itself finds the end.
        if let (None, Some(data)) = (self.overlay.size, &self.data) {
            let mut over = self.overlay.overlapping(&range).peekable();
            match read_full_at(&**data, buf, offset).context("read", &self.path) {
                Ok(n) if n == buf.len() => {
                    for (found, source) in over {
                        let part = found.start.max(range.start)..found.end.min(range.end);
                        let within = (part.start - offset) as usize..(part.end - offset) as usize;
                        source.copy_to(&mut buf[within], part.start)?;
                    }
                    return Ok(n);
                }
                done if over.peek().is_none() => return done,
                // The read ended at the end of the file, or the disk cannot read a part that overlays cover.
                _ => {}
            }
        }
        let left = self.len_now()?.saturating_sub(offset);
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        read_through(&[&self.overlay], self.data.as_deref(), &mut buf[..n], offset).map(|()| n)
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    ///
    /// # Errors
    /// [`Error::SnapshotExpired`]: `buf` may hold anything.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.read_now(buf, offset) {
            Ok(n) => self.snapshot.check_read().map(|()| n),
            Err(e) => {
                // The data may have been overwritten or removed meanwhile.
                self.snapshot.check()?;
                Err(match e {
                    Error::Io { action, source, .. } => Error::Io { action, path: self.path.clone(), source },
                    e => e,
                })
            }
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("lsn", &self.look.lsn).finish_non_exhaustive()
    }
}
