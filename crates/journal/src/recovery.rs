//! Opens a store: takes ownership, recovers what the last owner left, and starts a new session.
//!
//! Recovery reads the journal past the cache, computes every result, checks every file, and only
//! then writes. It may crash anywhere and be done again. Only who opens a store pays for it.

use crate::apply::{Applier, Outcomes, Place, apply_layer, open_for_writing};
use crate::care::{Care, kept};
use crate::error::{Context, Error, Result};
use crate::format::{Attribute, AttributeFound, Header, StoreId};
use crate::held::Only;
use crate::home::{Birth, HOME, Home, Ownership, create_journal, own, remove_tree};
use crate::journal::{Journal, Options};
use crate::record::Record;
use crate::scan::{ReadMode, Scan, flush_header, read_header, scan};
use crate::state::{FileState, FinalState};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Kind, Step, Storage};

/// More files than this are flushed by one `syncfs` instead of one by one.
const FLUSH_ONE_BY_ONE_MAX: usize = 16;

/// Whether so many files are flushed one by one.
pub fn flush_one_by_one(storage: &dyn Storage, files: usize) -> bool {
    files <= FLUSH_ONE_BY_ONE_MAX || !storage.sync_everything_tells()
}

/// How to open.
pub struct OpenOptions<'a> {
    /// Of the new session.
    pub journal: Options,
    /// Make the store if there is none.
    pub create: bool,
    /// Wait for another owner.
    pub wait: bool,
    /// Take the files of a class `process` store as they are after a machine crash.
    pub accept_unknown: bool,
    /// Keep what is acceptable of a damaged journal, and put the rest aside.
    pub salvage: bool,
    /// Bytes read and applied so far, of how many.
    pub progress: &'a dyn Fn(u64, u64),
}

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Commits that were found in the journal.
    pub commits: u64,
    /// Files that were brought up to them.
    pub files: u64,
    /// Bytes written to them.
    pub bytes: u64,
    /// An unfinished record at the end was dropped.
    pub torn_tail: bool,
    /// Where a damaged journal was put, if it was salvaged.
    pub salvaged: Vec<PathBuf>,
    /// Things that could not be done and stand in nobody's way.
    pub notes: Vec<String>,
}

/// A file that could not be served.
#[derive(Clone, Debug)]
pub struct Quarantined {
    /// Its newest name.
    pub path: PathBuf,
    /// Its identity.
    pub id: u64,
    /// Why.
    pub reason: Error,
}

/// An open store's journal.
pub struct Opened {
    /// Ready for commits.
    pub journal: Journal,
    /// Held until the store is closed.
    pub ownership: Ownership,
    /// What was done.
    pub recovered: Recovered,
    /// What could not be done.
    pub quarantined: Vec<Quarantined>,
}

/// Opens a store, recovering it.
pub fn open(storage: &Arc<dyn Storage>, home: &Home, options: &OpenOptions<'_>) -> Result<Opened> {
    let ownership = own(&**storage, home, options.create, options.wait)?;
    let mut opening =
        Opening { storage, home, options, recovered: Recovered::default(), quarantined: Vec::new(), put_away: None };
    if ownership.unclean {
        opening.flush_what_was_left()?;
    }
    opening.finish_creation()?;
    opening.recover_held()?;
    let journal = match opening.recover_current() {
        Err(e @ Error::Corrupt { .. }) if options.salvage => {
            opening.salvage_current(&e)?;
            opening.recover_current()?
        }
        done => done?,
    };
    let Opening { recovered, quarantined, .. } = opening;
    Ok(Opened { journal, ownership, recovered, quarantined })
}

struct Opening<'a> {
    storage: &'a Arc<dyn Storage>,
    home: &'a Home,
    options: &'a OpenOptions<'a>,
    recovered: Recovered,
    quarantined: Vec<Quarantined>,
    /// The header of a journal that was put away: the store stays the one that files know.
    put_away: Option<Header>,
}

/// One journal, recovered as far as it could be.
struct Served {
    state: FinalState,
    outcomes: Outcomes,
}

impl Served {
    fn unserved(&self) -> BTreeSet<u64> {
        self.outcomes.iter().filter(|(_, o)| o.is_err()).map(|(id, _)| *id).collect()
    }
}

impl Opening<'_> {
    fn storage(&self) -> &dyn Storage {
        &**self.storage
    }

    /// An owner that was killed may have left its last header, and names of the journal, in the cache
    /// only. They must be on the disk before anything is done that relies on them: journal space that
    /// such a header gives up is still needed by the header that a power cut would bring back.
    fn flush_what_was_left(&self) -> Result<()> {
        let journal = self.home.journal();
        if !self.exists(&journal)? {
            return Ok(());
        }
        flush_header(self.storage(), &journal)?;
        for dir in [journal.as_path(), self.home.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(dir, Step::RecoverJournal).context("flush", dir)?;
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.storage().stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("look at", path, e)),
        }
    }

    /// There is a journal afterwards, whatever crash the making of one met.
    fn finish_creation(&self) -> Result<()> {
        let journal = self.home.journal();
        if self.exists(&journal)? {
            let Some(only) = Only::read(self.storage(), &journal)? else { return Ok(()) };
            // A crash came between the list and the new name.
            self.set_aside(&only)?;
        }
        let mut birth = Birth {
            store: [0; 16],
            through: 0,
            through_crc: 0,
            generation: 0,
            segment_bytes: self.options.journal.segment_bytes_first,
            durable: true,
        };
        for held in self.home.all_held(self.storage())? {
            let Some(only) = Only::read(self.storage(), &held)? else { continue };
            let header = read_header(self.storage(), &held)?;
            if header.generation >= birth.generation {
                birth.store = header.store;
                birth.through = only.through;
                birth.through_crc = only.through_crc;
                birth.generation = header.generation;
            }
        }
        if let Some(header) = &self.put_away {
            birth.store = header.store;
            birth.through = header.through;
            birth.through_crc = header.through_crc;
            birth.generation = header.generation;
        }
        if birth.generation == 0 {
            // The making of this store was interrupted before its first commit.
            self.storage().random(&mut birth.store).context("draw an identity for", &journal)?;
            let mut salt = [0; 8];
            self.storage().random(&mut salt).context("draw a salt for", &journal)?;
            birth.through_crc = u64::from_le_bytes(salt);
        }
        create_journal(self.storage(), self.home, &birth)
    }

    /// Gives the current journal the name of one that is set aside.
    fn set_aside(&self, only: &Only) -> Result<()> {
        let (journal, held) = (self.home.journal(), self.home.held(only.session));
        self.storage().rename(&journal, &held, false).context("rename to", &held)?;
        self.storage().sync_dir(&self.home.dir, Step::HeldName).context("flush", &self.home.dir)
    }

    fn recover_current(&mut self) -> Result<Journal> {
        let dir = self.home.journal();
        let header = read_header(self.storage(), &dir)?;
        let boot = header.boot;
        let now = self.storage().boot_id().context("read the boot id for", &dir)?;
        if boot.is_some_and(|boot| boot != now) {
            let unknown = Error::UnknownState { path: self.home.dir.clone() };
            if !self.options.accept_unknown {
                return Err(unknown);
            }
            self.salvage_current(&unknown)?;
            return self.recover_current();
        }
        // In class `process`, on the same boot, the page cache holds the truth and nothing need be flushed.
        let flush = self.options.journal.durable || boot != Some(now);
        let mode = if flush { ReadMode::PastCache } else { ReadMode::Cached };
        // What class `process` wrote is in the cache: the header's shortcut past the segments is not for it.
        let scanned = scan(self.storage, &dir, mode, boot.is_some(), self.options.progress)?;
        if let Some(e) = scanned.corrupt {
            return Err(e);
        }
        if scanned.untouched {
            self.remove_orphans(&dir, &scanned.strays);
            return Journal::new(self.storage.clone(), dir, self.options.journal, scanned.header, scanned.segments);
        }
        let served = self.serve(&dir, &scanned, None, flush)?;
        if boot.is_some() && flush {
            self.storage().sync_everything(Step::RecoverData).context("flush", &self.home.dir)?;
        }
        let unserved = served.unserved();
        if !unserved.is_empty() {
            if !flush {
                // The journal that takes this one's place will say that everything was flushed.
                self.storage().sync_everything(Step::RecoverData).context("flush", &self.home.dir)?;
            }
            let session = scanned.session.unwrap_or(scanned.header.session);
            let only = Only { through: scanned.last, through_crc: scanned.last_crc, session, files: unserved };
            only.write(self.storage(), &dir)?;
            self.set_aside(&only)?;
            self.finish_creation()?;
            self.clear_flags(&served, scanned.header.store);
            let scanned = scan(self.storage, &dir, ReadMode::PastCache, false, self.options.progress)?;
            return Journal::new(self.storage.clone(), dir, self.options.journal, scanned.header, scanned.segments);
        }
        self.start_over(dir, scanned, &served, flush)
    }

    /// Everything was served: the journal is empty, and a new session begins.
    fn start_over(&mut self, dir: PathBuf, scanned: Scan, served: &Served, flushed: bool) -> Result<Journal> {
        let news = scanned.last > scanned.header.through || !scanned.header.clean || scanned.header.boot.is_some();
        let news = news || scanned.start_changed;
        let mut header = Header { through: scanned.last, through_crc: scanned.last_crc, ..scanned.header };
        if news && kept(Care::FreshStart) {
            // A record that was dropped because a part of it never reached the disk must not come back to
            // life when a later commit happens to write that part: nothing follows the old checksum now.
            let mut salt = [0; 8];
            self.storage().random(&mut salt).context("draw a salt for", &dir)?;
            header.through_crc = u64::from_le_bytes(salt);
        }
        let mut journal =
            Journal::new(self.storage.clone(), dir.clone(), self.options.journal, header, scanned.segments)?;
        if news {
            journal.empty(flushed)?;
        }
        self.clear_flags(served, journal.store());
        self.remove_orphans(&dir, &scanned.strays);
        Ok(journal)
    }

    /// Files that no record refers to. One that stays is tried again next time.
    fn remove_orphans(&self, dir: &Path, strays: &[String]) {
        for name in strays {
            let _ = self.storage().unlink(&dir.join(name));
        }
    }

    fn recover_held(&mut self) -> Result<()> {
        let held = self.home.all_held(self.storage())?;
        if held.is_empty() {
            return Ok(());
        }
        let store = read_header(self.storage(), &self.home.journal())?.store;
        for dir in held {
            let Some(mut only) = Only::read(self.storage(), &dir)? else {
                // It owes nothing any more: a crash came while it was being removed.
                remove_tree(self.storage(), &dir)?;
                continue;
            };
            let mut scanned = scan(self.storage, &dir, ReadMode::PastCache, true, self.options.progress)?;
            if scanned.corrupt.is_none() && scanned.last < only.through {
                let what = format!("it ends with commit {}, and {} was in it before", scanned.last, only.through);
                scanned.corrupt = Some(Error::corrupt(&dir, what));
            }
            if let Some(e) = scanned.corrupt.take() {
                if !self.options.salvage {
                    return Err(e);
                }
                self.put_away(&dir, only.session, &e)?;
                continue;
            }
            if scanned.header.store != store {
                return Err(Error::Foreign { path: dir, detail: "this journal belongs to another store".into() });
            }
            let before = self.quarantined.len();
            let served = self.serve(&dir, &scanned, Some(&only.files), true)?;
            let unserved = served.unserved();
            if unserved.is_empty() {
                Only::remove(self.storage(), &dir)?;
                remove_tree(self.storage(), &dir)?;
                self.clear_flags(&served, store);
            } else if self.options.salvage {
                let why = self.quarantined[before].reason.clone();
                self.release_files(&served);
                self.quarantined.truncate(before);
                self.put_away(&dir, only.session, &why)?;
            } else if unserved != only.files {
                only.files = unserved;
                only.write(self.storage(), &dir)?;
                self.clear_flags(&served, store);
            }
        }
        Ok(())
    }

    /// Applies what a journal says: names, contents, attributes; and flushes it all.
    fn serve(&mut self, dir: &Path, scanned: &Scan, only: Option<&BTreeSet<u64>>, flush: bool) -> Result<Served> {
        let mut state = FinalState::default();
        for accepted in &scanned.accepted {
            self.check_lone(&accepted.record, dir)?;
            state.absorb(&accepted.record, accepted.sequence)?;
        }
        if let Some(ids) = only {
            state.only(ids);
        }
        let applier = Applier {
            storage: self.storage(),
            store: scanned.header.store,
            session: scanned.session.unwrap_or(0),
            newest: Some(scanned.last),
            limbo: dir.to_owned(),
        };
        let mut outcomes = applier.locate(&state);
        let limbo = |o: &Result<Place>| matches!(o, Ok(Place::At(at)) if at.starts_with(&applier.limbo));
        let from_limbo = outcomes.values().any(limbo);
        let notes = applier.apply_names(&state, &mut outcomes);
        if let Some(e) = notes.iter().find(|e| !matches!(e, Error::Conflict { .. })) {
            // A directory that is not there yet is owed by this journal, as no file's attribute tells of it.
            return Err(e.clone());
        }
        let mut bytes = 0;
        let all: u64 = state.files.values().map(|f| f.layer.changed_bytes()).sum();
        let living = state.files.values().filter(|f| matches!(outcomes.get(&f.id), Some(Ok(Place::At(_)))));
        let one_by_one = flush_one_by_one(self.storage(), living.count());
        if flush && !one_by_one && state.files.values().any(|f| f.created.is_some() && !f.layer.is_empty()) {
            self.storage().sync_everything(Step::AttributeMany).context("flush", &self.home.dir)?;
        }
        for file in state.files.values() {
            let Some(Ok(Place::At(at))) = outcomes.get(&file.id) else { continue };
            let step = (flush && one_by_one).then_some(Step::CheckpointData);
            match serve_file(&applier, file, at, scanned.last, flush, step) {
                Ok(()) => {}
                // The disk would not take it: this file waits, the rest goes on.
                Err(e) => {
                    outcomes.insert(file.id, Err(e));
                }
            }
            bytes += file.layer.changed_bytes();
            (self.options.progress)(bytes, all);
        }
        if flush && !one_by_one {
            self.storage().sync_everything(Step::CheckpointMany).context("flush", &self.home.dir)?;
        } else if flush {
            for touched in state.touched_dirs().into_iter().chain(from_limbo.then(|| dir.to_owned())) {
                match self.storage().sync_dir(&touched, Step::CheckpointNames) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("flush", touched, e)),
                    _ => {}
                }
            }
        }
        for file in state.files.values() {
            if let Some(Err(reason)) = outcomes.get(&file.id) {
                let path = file.shown_name().to_owned();
                self.quarantined.push(Quarantined { path, id: file.id, reason: reason.clone() });
            }
        }
        let r = &mut self.recovered;
        r.commits += scanned.accepted.len() as u64;
        r.files += outcomes.values().filter(|o| o.is_ok()).count() as u64;
        r.bytes += bytes;
        r.torn_tail |= scanned.torn_tail;
        r.notes.extend(notes.iter().map(Error::to_string));
        Ok(Served { state, outcomes })
    }

    /// The journal of a lone file may touch that file only.
    fn check_lone(&self, record: &Record, dir: &Path) -> Result<()> {
        let Some(lone) = &self.home.lone else { return Ok(()) };
        if record.files.iter().all(|f| f.path == *lone) && record.ops.iter().all(|op| !op.names_a_directory()) {
            return Ok(());
        }
        Err(Error::Foreign { path: dir.to_owned(), detail: format!("this journal is not that of {}", lone.display()) })
    }

    /// The journal no longer says anything about these files: whole without it. Not flushed: a flag
    /// that stays set on a file in its place, of a session that is over, says nothing.
    fn clear_flags(&self, served: &Served, store: StoreId) {
        for (id, outcome) in &served.outcomes {
            let Ok(Place::At(at)) = outcome else { continue };
            let Ok(file) = open_for_writing(self.storage(), at) else { continue };
            clear_flag(&*file, store, *id);
        }
    }

    /// `--salvage`: what is acceptable before the damage is served, then the journal is put away.
    fn salvage_current(&mut self, why: &Error) -> Result<()> {
        let dir = self.home.journal();
        let mut session = 0;
        match scan(self.storage, &dir, ReadMode::PastCache, true, self.options.progress) {
            Ok(scanned) => {
                self.put_away =
                    Some(Header { through: scanned.last, through_crc: scanned.last_crc, ..scanned.header.clone() });
                session = scanned.session.unwrap_or(scanned.header.session);
                let before = self.quarantined.len();
                let served = self.serve(&dir, &scanned, None, true)?;
                self.quarantined.truncate(before);
                if !matches!(why, Error::UnknownState { .. }) {
                    self.release_files(&served);
                }
                // All files, as names may have reached the disk without the records that tell of them, and a
                // crash before the next journal is there lets that one begin another store.
                self.strip(Some(scanned.header.store))?;
            }
            Err(e) => {
                self.recovered.notes.push(format!("nothing of the journal could be used: {e}"));
                // Nobody knows which store the files belong to: whatever they say, they are taken as they are.
                self.strip(None)?;
            }
        }
        // An attribute that a power cut brought back would lock its file out.
        self.storage().sync_everything(Step::RecoverData).context("flush", &self.home.dir)?;
        self.put_away(&dir, session, why)?;
        self.finish_creation()
    }

    /// Moves a journal out of Untorn's directory, where its owner can look at it.
    fn put_away(&mut self, dir: &Path, session: u64, why: &Error) -> Result<()> {
        let mut unique = [0; 4];
        self.storage().random(&mut unique).context("draw a name in", dir)?;
        let to = PathBuf::from(format!("untorn-salvage.{session:016x}.{:08x}", u32::from_le_bytes(unique)));
        self.storage().rename(dir, &to, false).context("rename to", &to)?;
        for synced in [self.home.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(synced, Step::HeldName).context("flush", synced)?;
        }
        self.recovered.notes.push(format!("the journal was put into {}: {why}", to.display()));
        self.recovered.salvaged.push(to);
        Ok(())
    }

    /// Salvaged: the files are taken as they are.
    fn release_files(&self, served: &Served) {
        for name in served.state.files.values().flat_map(|file| &file.names) {
            strip_attribute(self.storage(), name, &|_| true);
        }
    }

    /// Takes the files of this store, or of one that nobody knows, as they are; not those that wait for a
    /// journal that is set aside.
    fn strip(&self, store: Option<StoreId>) -> Result<()> {
        let mut wait = BTreeSet::new();
        for held in self.home.all_held(self.storage())? {
            wait.extend(Only::read(self.storage(), &held)?.into_iter().flat_map(|only| only.files));
        }
        let ours = |a: &Attribute| store.is_none_or(|store| a.store == store) && !wait.contains(&a.file);
        match &self.home.lone {
            Some(lone) => strip_attribute(self.storage(), lone, &ours),
            None => strip_attributes(self.storage(), Path::new(""), &ours)?,
        }
        Ok(())
    }
}

/// Removes those attributes that are `ours` from the files of a directory and of those below. Files that
/// have a store of their own, alone or by their directory, are none of this one's.
pub fn strip_attributes(storage: &dyn Storage, dir: &Path, ours: &dyn Fn(&Attribute) -> bool) -> Result<()> {
    let names: BTreeSet<OsString> = storage.list(dir).context("list", dir)?.into_iter().collect();
    if dir != Path::new("") && names.contains(OsStr::new(HOME)) {
        return Ok(());
    }
    for name in &names {
        let path = dir.join(name);
        // What is Untorn's own is not data.
        if name.as_encoded_bytes().ends_with(HOME.as_bytes())
            || names.contains(Home::of_file(Path::new(name)).dir.as_os_str())
        {
            continue;
        }
        match storage.stat(&path).map(|m| m.kind) {
            Ok(Kind::Directory) => match strip_attributes(storage, &path, ours) {
                // A directory on another file system, or closed to us, holds nothing of this store.
                Err(Error::Io { source, .. })
                    if matches!(source.kind(), ErrorKind::CrossesDevices | ErrorKind::PermissionDenied) => {}
                done => done?,
            },
            Ok(Kind::File) => strip_attribute(storage, &path, ours),
            _ => {}
        }
    }
    Ok(())
}

/// The same for one file. An attribute that stays is harmless when it is not pending.
pub fn strip_attribute(storage: &dyn Storage, path: &Path, ours: &dyn Fn(&Attribute) -> bool) {
    if let Ok(file) = open_for_writing(storage, path)
        && let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && ours(&a)
    {
        let _ = file.remove_attribute();
    }
}

/// Brings one file up to its final state; with a step, flushes it through the same descriptor.
fn serve_file(
    applier: &Applier<'_>,
    file: &FileState,
    at: &Path,
    through: u64,
    durable: bool,
    flush: Option<Step>,
) -> Result<()> {
    let handle = applier.open(file, at)?;
    if durable {
        // The last owner may have met a failed flush.
        handle.forget_cached().context("drop the cache of", at)?;
    }
    if flush.is_some() && file.created.is_some() && !file.layer.is_empty() {
        // A crash must not leave contents in a file that nothing tells from a stranger's.
        handle.sync_all(Step::Attribute).context("flush the attribute of", at)?;
    }
    apply_layer(&*handle, &file.layer, at)?;
    set_through(&*handle, through, at).context("set the attribute of", at)?;
    match flush {
        Some(step) => handle.sync_all(step).context("flush", at),
        None => Ok(()),
    }
}

/// Notes in a file's attribute up to which commit it is whole, and where it lives.
pub fn set_through(file: &dyn File, through: u64, path: &Path) -> std::io::Result<()> {
    let AttributeFound::Valid(old) = Attribute::decode(file.attribute()?.as_deref()) else { return Ok(()) };
    let new = Attribute { through, place: Attribute::place_of(path), ..old };
    if new == old { Ok(()) } else { file.set_attribute(&new.encode()) }
}

/// Clears the pending flag, if the file is still the one.
pub fn clear_flag(file: &dyn File, store: StoreId, id: u64) {
    if let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && a.store == store
        && a.file == id
        && a.pending
    {
        // A flag that stays is recognised as stale, as its session is over.
        let _ = file.set_attribute(&Attribute { pending: false, ..a }.encode());
    }
}
