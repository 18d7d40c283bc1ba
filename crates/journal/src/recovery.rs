//! Opens a store: locks it, recovers what a crash left, and begins a new epoch.
//!
//! Recovery reads the journal past the page cache, computes the final state, checks every file, and
//! only then writes: names, and then the contents (redo), or no contents where they can be carried over.
//! It may crash anywhere and be done again.

use crate::apply::{DirLeft, apply_overlay};
use crate::carry::{Carried, carry};
use crate::create::sync_names;
use crate::error::{Context, Error, Result};
use crate::final_state::{FileState, FinalState};
use crate::format::{Attribute, AttributeFound, EPOCHS_MAX, Header, Key, ListedEpoch, StoreId};
use crate::invariant;
use crate::journal::{Journal, Options};
use crate::locate::{Contents, DataFiles, Location, Locations, open_for_writing};
use crate::quarantine::{NAME_SPARE, PendingFiles};
use crate::record::Record;
use crate::salvage::{SALVAGED, write_contents};
use crate::scan::{ReadMode, Scan, flush_header, note_lost_flush, read_header, scan};
use crate::spill::spill_name;
use crate::store_dir::{NewJournal, StoreDir, StoreLock, create_journal, lock_store, make_spare, remove_tree};
use crate::strip::{remove_temporaries, strip_attribute, strip_attributes};
use crate::sync_point;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Storage, SyncPoint, holds};

/// More files than this are flushed by one `syncfs` instead of one by one.
const FLUSH_ONE_BY_ONE_MAX: usize = 16;

/// Whether this number of files is flushed one by one.
pub fn flush_one_by_one(storage: &dyn Storage, files: usize) -> bool {
    files <= FLUSH_ONE_BY_ONE_MAX || !storage.sync_file_system_reports_errors()
}

/// How to open.
pub struct OpenOptions<'a> {
    /// Sizes and failure class of the new epoch.
    pub journal: Options,
    /// Make the store if there is none.
    pub create: bool,
    /// Wait while another process has the store open.
    pub wait: bool,
    /// Take the files of a class `process` store as they are after a machine crash.
    pub accept_unknown: bool,
    /// Redo the accepted commits of a damaged journal, and archive that journal.
    pub salvage: bool,
    /// Apply everything before the store is served.
    pub redo: bool,
    /// Bytes read and applied so far, of how many.
    pub progress: &'a dyn Fn(u64, u64),
}

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Commits that were found in the journal.
    pub commits: u64,
    /// Files that show them.
    pub files: u64,
    /// Bytes that these files lacked.
    pub bytes: u64,
    /// An unfinished record at the end was dropped.
    pub torn_tail: bool,
    /// Where damaged journals were archived, if they were salvaged.
    pub salvaged: Vec<PathBuf>,
    /// Things that could not be done, and without which the store works.
    pub notes: Vec<String>,
}

/// A file or directory that could not be redone.
#[derive(Clone, Debug)]
pub struct Quarantined {
    /// Its newest name.
    pub path: PathBuf,
    /// Its identity; 0: a directory.
    pub id: u64,
    /// Why.
    pub reason: Error,
}

/// An open store's journal.
pub struct Opened {
    /// Ready for commits.
    pub journal: Journal,
    /// Held until the store is closed.
    pub store_lock: StoreLock,
    /// What recovery did.
    pub recovered: Recovered,
    /// Files that could not be redone.
    pub quarantined: Vec<Quarantined>,
    /// What is committed and not applied.
    pub carried: Carried,
    /// Room is set apart for quarantining the journal on a full disk.
    pub has_spare: bool,
}

/// Opens a store, recovering it.
pub fn open(storage: &Arc<dyn Storage>, store_dir: &StoreDir, options: &OpenOptions<'_>) -> Result<Opened> {
    let store_lock = lock_store(&**storage, store_dir, options.create, options.wait)?;
    let mut opening = Opening {
        storage,
        store_dir,
        options,
        recovered: Recovered::default(),
        quarantined: Vec::new(),
        carried: Carried::default(),
        archived_header: None,
    };
    if store_lock.unclean {
        opening.flush_after_kill().map_err(|e| opening.doubt(e))?;
    }
    opening.finish_creation()?;
    opening.recover_quarantined()?;
    let journal = match opening.recover_current() {
        Err(e @ Error::Corrupt { .. }) if options.salvage => {
            opening.salvage_current(&e)?;
            opening.recover_current()?
        }
        done => done?,
    };
    let Opening { recovered, quarantined, carried, .. } = opening;
    // Without room, the store goes on without it; checkpoints try again.
    let has_spare =
        !options.journal.spare || make_spare(&**storage, store_dir, options.journal.segment_bytes_first).is_ok();
    Ok(Opened { journal, store_lock, recovered, quarantined, carried, has_spare })
}

/// The list of epochs in a header that begins a new epoch behind these records.
fn listed_after(scanned: &Scan) -> Vec<ListedEpoch> {
    let mut listed = scanned.header.listed.clone();
    listed.extend(scanned.epochs.iter().filter(|epoch| epoch.first_lsn >= scanned.header.open_lsn));
    listed
}

struct Opening<'a> {
    storage: &'a Arc<dyn Storage>,
    store_dir: &'a StoreDir,
    options: &'a OpenOptions<'a>,
    recovered: Recovered,
    quarantined: Vec<Quarantined>,
    carried: Carried,
    /// The header of an archived journal: the store keeps its identity.
    archived_header: Option<Header>,
}

/// The result of redoing one journal.
struct Redone {
    state: FinalState,
    locations: Locations,
    /// Directories that could not be redone, and why; or that a file needs which could not be redone.
    dirs_left: BTreeMap<PathBuf, String>,
    /// Names are applied, and contents are not.
    names_only: bool,
    /// A file was in the middle of an exchange of names.
    from_temporary: bool,
}

impl Redone {
    fn is_whole(&self) -> bool {
        self.dirs_left.is_empty() && self.locations.values().all(Result::is_ok)
    }

    /// The files that could not be redone, and why.
    fn not_redone(&self) -> BTreeMap<u64, String> {
        self.locations.iter().filter_map(|(id, o)| Some((*id, o.as_ref().err()?.to_string()))).collect()
    }
}

impl Opening<'_> {
    fn storage(&self) -> &dyn Storage {
        &**self.storage
    }

    /// Flushes the last header and the names of the journal, which a killed process may have left in the
    /// page cache only. They must be on the disk before anything relies on them: the header that a power
    /// cut would bring back still needs the journal space that the last header truncated.
    fn flush_after_kill(&self) -> Result<()> {
        let journal = self.store_dir.journal();
        if !self.exists(&journal)? {
            return Ok(());
        }
        flush_header(self.storage(), &journal)?;
        for dir in [journal.as_path(), self.store_dir.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(dir, sync_point::RECOVER_JOURNAL).context("flush", dir)?;
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.storage().stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("stat", path, e)),
        }
    }

    /// Makes a journal if there is none, whatever crash interrupted the making of one.
    fn finish_creation(&self) -> Result<()> {
        let journal = self.store_dir.journal();
        if self.exists(&journal)? {
            let Some(pending) = PendingFiles::read(self.storage(), &journal)? else { return Ok(()) };
            // A crash came between the list and the new name.
            self.quarantine_journal(&pending)?;
        }
        let mut key = [0; 8];
        self.storage().random(&mut key).context("draw a key for", &journal)?;
        let mut new = NewJournal {
            key: Key(u64::from_le_bytes(key)),
            store: [0; 16],
            checkpoint_lsn: 0,
            link: 0,
            generation: 0,
            segment_bytes: self.options.journal.segment_bytes_first,
            durable: true,
        };
        for dir in self.store_dir.quarantined_journals(self.storage())? {
            let Some(pending) = PendingFiles::read(self.storage(), &dir)? else { continue };
            let header = read_header(self.storage(), &dir)?;
            if header.generation >= new.generation {
                new.store = header.store;
                new.checkpoint_lsn = pending.last_lsn;
                new.link = pending.last_crc;
                new.generation = header.generation;
            }
        }
        if let Some(header) = &self.archived_header {
            new.store = header.store;
            new.checkpoint_lsn = header.checkpoint_lsn;
            new.link = header.link;
            new.generation = header.generation;
        }
        if new.generation == 0 {
            // The making of this store was interrupted before its first commit.
            self.storage().random(&mut new.store).context("draw an identity for", &journal)?;
            let mut salt = [0; 8];
            self.storage().random(&mut salt).context("draw a salt for", &journal)?;
            new.link = u64::from_le_bytes(salt);
        }
        create_journal(self.storage(), self.store_dir, &new)
    }

    /// Quarantines the current journal: renames it after its epoch.
    fn quarantine_journal(&self, pending: &PendingFiles) -> Result<()> {
        let (journal, quarantined) = (self.store_dir.journal(), self.store_dir.quarantined_journal(pending.epoch));
        self.storage().rename(&journal, &quarantined, false).context("rename to", &quarantined)?;
        self.storage().sync_dir(&self.store_dir.dir, sync_point::QUARANTINE_NAME).context("flush", &self.store_dir.dir)
    }

    /// Sets room apart for the next list of a quarantined journal, if there is any.
    fn set_list_apart(&self, quarantined: &Path) {
        if self.options.journal.spare {
            let _ = PendingFiles::set_apart(self.storage(), quarantined);
        }
    }

    /// An error by which what class `process` had not flushed may be lost is remembered by the store.
    fn doubt(&self, e: Error) -> Error {
        let dir = self.store_dir.journal();
        if e.is_failed_flush() && read_header(self.storage(), &dir).is_ok_and(|header| header.boot.is_some()) {
            // On a disk that does not take this either, nobody knows.
            let _ = note_lost_flush(self.storage(), &dir);
        }
        e
    }

    fn recover_current(&mut self) -> Result<Journal> {
        self.recover_journal().map_err(|e| self.doubt(e))
    }

    fn recover_journal(&mut self) -> Result<Journal> {
        let dir = self.store_dir.journal();
        let header = read_header(self.storage(), &dir)?;
        let boot = header.boot;
        // Class `power` works also where nobody can tell one boot from another.
        let now = match boot.is_some() || !self.options.journal.durable {
            true if self.options.accept_unknown => self.storage().boot_id().ok(),
            true => Some(boot_id(self.storage(), &self.store_dir.dir)?),
            false => None,
        };
        if boot.is_some_and(|boot| Some(boot) != now) {
            let unknown = Error::UnknownState { path: self.store_dir.dir.clone() };
            if !self.options.accept_unknown {
                return Err(unknown);
            }
            self.salvage_current(&unknown)?;
            return self.recover_current();
        }
        // In class `process`, on the same boot, the page cache holds the truth and nothing need be flushed.
        let flush = self.options.journal.durable || boot.is_none() || boot != now;
        let mode = if flush { ReadMode::PastCache } else { ReadMode::Cached };
        // What class `process` wrote is in the page cache: its segments are read even after a clean shutdown.
        let mut scanned = scan(self.storage, &dir, mode, boot.is_some(), self.options.progress)?;
        if let Some(e) = scanned.corrupt.take() {
            return Err(e);
        }
        if scanned.clean_shutdown {
            self.remove_orphans(&dir, &scanned.orphans);
            return Journal::new(self.storage.clone(), dir, self.options.journal, scanned.header, scanned.segments);
        }
        let listed = listed_after(&scanned);
        // What the page cache holds of an epoch of class `process` is not in the journal's hands.
        let may_carry = boot.is_none() && self.options.journal.durable && !self.options.redo && !listed.is_empty();
        let fits = listed.len() <= EPOCHS_MAX || !holds(invariant::LIST_BOUNDED);
        let before = self.recovered.clone();
        let redone = self.redo(&dir, &scanned, None, flush, may_carry && fits)?;
        if redone.names_only
            && let Some(carried) = carry(
                self.storage(),
                redone.state.clone(),
                &redone.locations,
                &scanned,
                &dir,
                self.options.journal.in_memory_max,
            )?
        {
            self.carried = carried;
            if redone.from_temporary {
                self.carried.dirs.insert(dir.clone());
            }
            return self.list_epochs(dir, scanned, listed);
        }
        let redone = match redone.names_only {
            true => {
                self.recovered = before;
                self.redo(&dir, &scanned, None, flush, false)?
            }
            false => redone,
        };
        if boot.is_some()
            && let Some(e) = redone.locations.values().filter_map(|o| o.as_ref().err()).find(|e| e.is_failed_flush())
        {
            return Err(e.clone());
        }
        if boot.is_some() && flush {
            self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.store_dir.dir)?;
        }
        if !redone.is_whole() {
            if !flush {
                // The header of the new journal will say that everything was flushed.
                self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.store_dir.dir)?;
            }
            self.clear_pending_of(&redone, scanned.header.store, true)?;
            let epoch = scanned.last_epoch();
            let pending = PendingFiles {
                last_lsn: scanned.last_lsn,
                last_crc: scanned.last_crc,
                epoch,
                files: redone.not_redone(),
                dirs: redone.dirs_left.clone(),
            };
            pending.write(self.storage(), &dir)?;
            self.quarantine_journal(&pending)?;
            self.finish_creation()?;
            self.set_list_apart(&self.store_dir.quarantined_journal(epoch));
            let scanned = scan(self.storage, &dir, ReadMode::PastCache, false, self.options.progress)?;
            return Journal::new(self.storage.clone(), dir, self.options.journal, scanned.header, scanned.segments);
        }
        self.begin_epoch(dir, scanned, &redone, flush)
    }

    /// Begins a new epoch behind records that are not applied.
    fn list_epochs(&mut self, dir: PathBuf, scanned: Scan, mut listed: Vec<ListedEpoch>) -> Result<Journal> {
        listed.drain(..listed.len().saturating_sub(EPOCHS_MAX));
        let open_lsn = scanned.last_lsn + 1;
        let nothing_new = scanned.header.open_lsn == open_lsn;
        let mut header = Header { listed, open_lsn, link: scanned.last_crc, clean: false, ..scanned.header };
        if holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal =
            Journal::new(self.storage.clone(), dir.clone(), self.options.journal, header, scanned.segments)?;
        if holds(invariant::LISTED_ANEW) || !nothing_new {
            journal.go_on(scanned.live_spills.clone())?;
        }
        let is_live = |name: &String| {
            let live = scanned.live_spills.iter().any(|(spill, _)| spill_name(spill.id) == *name);
            live && holds(invariant::LISTED_SPILLS_STAY)
        };
        let orphans: Vec<String> = scanned.orphans.iter().filter(|name| !is_live(name)).cloned().collect();
        self.remove_orphans(&dir, &orphans);
        Ok(journal)
    }

    /// What the first record of an epoch repeats, and no record before it does. A record that was dropped because a
    /// part of it never reached the disk must not come back to life when a later commit happens to write that part.
    fn fresh_link(&self, dir: &Path) -> Result<u64> {
        let mut link = [0; 8];
        self.storage().random(&mut link).context("draw a link for", dir)?;
        Ok(u64::from_le_bytes(link))
    }

    /// Begins a new epoch after everything was redone: the journal is empty.
    fn begin_epoch(&mut self, dir: PathBuf, scanned: Scan, redone: &Redone, flushed: bool) -> Result<Journal> {
        let dirty =
            scanned.last_lsn > scanned.header.checkpoint_lsn || !scanned.header.clean || scanned.header.boot.is_some();
        let dirty = dirty || scanned.start_changed;
        let (checkpoint_lsn, open_lsn) = (scanned.last_lsn, scanned.last_lsn + 1);
        let mut header =
            Header { checkpoint_lsn, open_lsn, link: scanned.last_crc, listed: Vec::new(), ..scanned.header };
        if dirty && holds(invariant::FRESH_START) {
            header.link = self.fresh_link(&dir)?;
        }
        let mut journal =
            Journal::new(self.storage.clone(), dir.clone(), self.options.journal, header, scanned.segments)?;
        self.clear_pending_of(redone, journal.store(), flushed)?;
        if dirty {
            journal.write_clean_header(flushed)?;
        }
        self.remove_orphans(&dir, &scanned.orphans);
        Ok(journal)
    }

    /// Removes files that no record refers to. One that cannot be removed is tried again by the next opening.
    fn remove_orphans(&self, dir: &Path, orphans: &[String]) {
        for name in orphans.iter().filter(|name| *name != NAME_SPARE || !self.options.journal.spare) {
            let _ = self.storage().unlink(&dir.join(name));
        }
    }

    fn recover_quarantined(&mut self) -> Result<()> {
        let quarantined = self.store_dir.quarantined_journals(self.storage())?;
        if quarantined.is_empty() {
            return Ok(());
        }
        let store = read_header(self.storage(), &self.store_dir.journal())?.store;
        for dir in quarantined {
            let Some(mut pending) = PendingFiles::read(self.storage(), &dir)? else {
                // No file waits for it any more: a crash interrupted its removal.
                // A killed process may have removed the list in the page cache only, and it must not come back alone.
                self.storage().sync_dir(&dir, sync_point::QUARANTINE_CONTENTS).context("flush", &dir)?;
                remove_tree(self.storage(), &dir)?;
                continue;
            };
            let mut scanned = scan(self.storage, &dir, ReadMode::PastCache, true, self.options.progress)?;
            if scanned.corrupt.is_none() && scanned.last_lsn < pending.last_lsn {
                let what =
                    format!("it ends with commit {}, and {} was in it before", scanned.last_lsn, pending.last_lsn);
                scanned.corrupt = Some(Error::corrupt(&dir, what));
            }
            if let Some(e) = scanned.corrupt.take() {
                if !self.options.salvage {
                    return Err(e);
                }
                self.archive(&dir, pending.epoch, &e, &[])?;
                continue;
            }
            if scanned.header.store != store {
                return Err(Error::Foreign { path: dir, detail: "this journal belongs to another store".into() });
            }
            let before = self.quarantined.len();
            let redone = self.redo(&dir, &scanned, Some(&pending), true, false)?;
            let not_redone = redone.not_redone();
            if redone.is_whole() {
                self.clear_pending_of(&redone, store, true)?;
                PendingFiles::remove(self.storage(), &dir)?;
                remove_tree(self.storage(), &dir)?;
            } else if self.options.salvage {
                let why = self.quarantined[before].reason.clone();
                let kept = self.keep_contents(&redone, &dir)?;
                // The contents are the only copy of their commits from here on.
                self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &dir)?;
                self.strip_files(&redone);
                self.quarantined.truncate(before);
                self.archive(&dir, pending.epoch, &why, &kept)?;
            } else if not_redone != pending.files || redone.dirs_left != pending.dirs {
                let before = std::mem::replace(&mut pending.files, not_redone);
                let dirs_before = std::mem::replace(&mut pending.dirs, redone.dirs_left.clone());
                self.clear_pending_of(&redone, store, true)?;
                match pending.write(self.storage(), &dir) {
                    Err(e @ Error::NoSpace { .. }) => {
                        // What was redone just now is in the list still: the next opening redoes it over later commits.
                        let redone_now = before.keys().filter(|id| !pending.files.contains_key(id));
                        let dirs_now = dirs_before.keys().filter(|dir| !pending.dirs.contains_key(*dir));
                        let files = redone_now.filter_map(|id| redone.state.files.get(id));
                        let files = files.map(|file| (file.display_name().to_owned(), file.id));
                        let all = files.chain(dirs_now.map(|dir| (dir.clone(), 0)));
                        self.quarantined.extend(all.map(|(path, id)| Quarantined { path, id, reason: e.clone() }));
                    }
                    done => done?,
                }
                self.set_list_apart(&dir);
            }
        }
        Ok(())
    }

    /// Redoes a journal: applies names, contents and attributes, and flushes them. `only`: what is listed there. With
    /// `carry`, and if nothing must be left out, contents wait, except those of files that get names.
    fn redo(
        &mut self,
        dir: &Path,
        scanned: &Scan,
        only: Option<&PendingFiles>,
        flush: bool,
        carry: bool,
    ) -> Result<Redone> {
        let mut state = FinalState::default();
        for accepted in &scanned.accepted {
            self.check_standalone(&accepted.record, dir)?;
            state.add_record(&accepted.record, accepted.lsn)?;
        }
        if let Some(pending) = only {
            state.retain(&pending.file_ids(), &pending.dir_paths());
        }
        let named = state.files.values().filter(|file| file.name.is_some()).count();
        let one_by_one = flush_one_by_one(self.storage(), named);
        let redo = Redo {
            storage: self.storage(),
            checkpoint_lsn: scanned.last_lsn,
            durable: flush,
            flush: (flush && one_by_one).then_some(sync_point::CHECKPOINT_DATA),
            done: RefCell::default(),
        };
        let data_files = DataFiles {
            storage: self.storage(),
            store: scanned.header.store,
            epoch: scanned.last_epoch(),
            newest_lsn: Some(scanned.last_lsn),
            rename_dir: dir.to_owned(),
            durable: flush,
            contents: Some(&redo),
        };
        let mut locations = data_files.find(&state);
        let temporary =
            |o: &Result<Location>| matches!(o, Ok(Location::At(at)) if at.starts_with(&data_files.rename_dir));
        let from_temporary = locations.values().any(temporary);
        let left = data_files.apply_names(&state, &mut locations);
        if carry && left.is_empty() && locations.values().all(Result::is_ok) {
            let r = &mut self.recovered;
            r.commits += scanned.commits();
            r.files += locations.len() as u64;
            r.bytes += state.files.values().map(|file| file.overlay.changed_bytes()).sum::<u64>();
            r.torn_tail |= scanned.torn_tail;
            return Ok(Redone { state, locations, dirs_left: BTreeMap::new(), names_only: true, from_temporary });
        }
        let mut bytes = 0;
        let all: u64 = state.files.values().map(|f| f.overlay.changed_bytes()).sum();
        if flush && !one_by_one && state.files.values().any(|f| f.created.is_some() && !f.overlay.is_empty()) {
            self.storage().sync_file_system(sync_point::ATTRIBUTE_MANY).context("flush", &self.store_dir.dir)?;
        }
        for file in state.files.values() {
            let Some(Ok(Location::At(at))) = locations.get(&file.id) else { continue };
            // The disk may refuse it: this file waits, the others go on.
            if !redo.done.borrow().contains(&file.id)
                && let Err(e) = data_files
                    .open(file, at)
                    .and_then(|handle| redo.redo_file(file, &*handle, at, sync_point::ATTRIBUTE))
            {
                locations.insert(file.id, Err(e));
            }
            bytes += file.overlay.changed_bytes();
            (self.options.progress)(bytes, all);
        }
        if flush && !one_by_one {
            self.storage().sync_file_system(sync_point::CHECKPOINT_MANY).context("flush", &self.store_dir.dir)?;
        } else if flush {
            for touched in state.touched_dirs().into_iter().chain(from_temporary.then(|| dir.to_owned())) {
                sync_names(self.storage(), &touched, sync_point::CHECKPOINT_NAMES)?;
            }
        }
        let mut dirs_left = BTreeMap::new();
        for file in state.files.values() {
            if let Some(Err(reason)) = locations.get(&file.id) {
                let path = file.display_name().to_owned();
                self.quarantined.push(Quarantined { path, id: file.id, reason: reason.clone() });
                let needed =
                    |name: &PathBuf| state.dirs.keys().filter(|dir| name.starts_with(dir)).cloned().collect::<Vec<_>>();
                dirs_left.extend(file.names.iter().flat_map(needed).map(|dir| (dir, String::new())));
            }
        }
        for DirLeft { path, reason, .. } in left.iter().filter(|dir| !dir.given_up) {
            dirs_left.insert(path.clone(), reason.to_string());
            self.quarantined.push(Quarantined { path: path.clone(), id: 0, reason: reason.clone() });
        }
        let r = &mut self.recovered;
        r.commits += scanned.commits();
        r.files += locations.values().filter(|o| o.is_ok()).count() as u64;
        r.bytes += bytes;
        r.torn_tail |= scanned.torn_tail;
        r.notes.extend(left.iter().filter(|dir| dir.given_up).map(|dir| dir.reason.to_string()));
        Ok(Redone { state, locations, dirs_left, names_only: false, from_temporary })
    }

    /// The journal of a standalone file may touch that file only.
    fn check_standalone(&self, record: &Record, dir: &Path) -> Result<()> {
        let Some(standalone) = &self.store_dir.standalone else { return Ok(()) };
        if record.files.iter().all(|f| f.path == *standalone) && record.ops.iter().all(|op| !op.names_a_directory()) {
            return Ok(());
        }
        Err(Error::Foreign {
            path: dir.to_owned(),
            detail: format!("this journal is not that of {}", standalone.display()),
        })
    }

    /// Clears the pending flag of these files, which are complete without the journal, before the journal is given
    /// up: a flag that stayed set would keep a file from being used wherever it is moved to.
    fn clear_pending_of(&self, redone: &Redone, store: StoreId, flush: bool) -> Result<()> {
        let mut cleared = Vec::new();
        for (id, outcome) in &redone.locations {
            let Ok(Location::At(at)) = outcome else { continue };
            let Ok(file) = open_for_writing(self.storage(), at) else { continue };
            if clear_pending(&*file, store, *id) {
                cleared.push(at);
            }
        }
        if !flush || cleared.is_empty() {
            return Ok(());
        }
        if !flush_one_by_one(self.storage(), cleared.len()) {
            return self.storage().sync_file_system(sync_point::CLEARED).context("flush", &self.store_dir.dir);
        }
        for at in cleared {
            if let Ok(file) = open_for_writing(self.storage(), at) {
                file.sync_all(sync_point::CLEARED).context("flush the attribute of", at)?;
            }
        }
        Ok(())
    }

    /// `--salvage`: redoes what is accepted before the damage, then archives the journal.
    fn salvage_current(&mut self, why: &Error) -> Result<()> {
        let dir = self.store_dir.journal();
        let (mut epoch, mut kept) = (0, Vec::new());
        match scan(self.storage, &dir, ReadMode::PastCache, true, self.options.progress) {
            Ok(scanned) => {
                self.archived_header =
                    Some(Header { checkpoint_lsn: scanned.last_lsn, link: scanned.last_crc, ..scanned.header.clone() });
                epoch = scanned.last_epoch();
                let before = self.quarantined.len();
                let redone = self.redo(&dir, &scanned, None, true, false)?;
                self.quarantined.truncate(before);
                kept = self.keep_contents(&redone, &dir)?;
                if !matches!(why, Error::UnknownState { .. }) {
                    self.strip_files(&redone);
                }
                // All files, as names may have reached the disk without their records, and a
                // crash before the next journal is there lets that one begin another store.
                self.strip(Some(scanned.header.store))?;
            }
            Err(e) => {
                self.recovered.notes.push(format!("nothing of the journal could be used: {e}"));
                // It is unknown which store the files belong to: all are taken as they are, whatever their attribute.
                self.strip(None)?;
            }
        }
        // A file with an attribute that a power cut brought back could not be opened.
        self.storage().sync_file_system(sync_point::RECOVER_DATA).context("flush", &self.store_dir.dir)?;
        self.archive(&dir, epoch, why, &kept)?;
        self.finish_creation()
    }

    /// Writes what the commits of files that could not be redone make of these files beside the journal, which is
    /// about to be archived. The caller flushes.
    fn keep_contents(&self, redone: &Redone, dir: &Path) -> Result<Vec<PathBuf>> {
        write_contents(self.storage(), &redone.state, &redone.locations, dir)
    }

    /// Archives a journal: moves it out of the store directory, where the user can look at it.
    fn archive(&mut self, dir: &Path, epoch: u64, why: &Error, kept: &[PathBuf]) -> Result<()> {
        let mut unique = [0; 4];
        self.storage().random(&mut unique).context("draw a name in", dir)?;
        let to = PathBuf::from(format!("untorn-salvage.{epoch:016x}.{:08x}", u32::from_le_bytes(unique)));
        self.storage().rename(dir, &to, false).context("rename to", &to)?;
        for synced in [self.store_dir.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(synced, sync_point::QUARANTINE_NAME).context("flush", synced)?;
        }
        self.recovered.notes.push(format!("the journal was archived in {}: {why}", to.display()));
        for name in kept {
            let contents = to.join(SALVAGED).join(name);
            self.recovered.notes.push(format!(
                "{} was left as it is; what its commits make of it is in {}",
                name.display(),
                contents.display()
            ));
        }
        self.recovered.salvaged.push(to);
        Ok(())
    }

    /// Takes the files of a salvaged journal as they are: removes their attributes.
    fn strip_files(&self, redone: &Redone) {
        for name in redone.state.files.values().flat_map(|file| &file.names) {
            strip_attribute(self.storage(), name, &|_| true);
        }
    }

    /// Takes the files of this store, or of an unknown one, as they are: removes their attributes, except
    /// those of files that wait for a quarantined journal.
    fn strip(&self, store: Option<StoreId>) -> Result<()> {
        let mut waiting = BTreeSet::new();
        for dir in self.store_dir.quarantined_journals(self.storage())? {
            waiting
                .extend(PendingFiles::read(self.storage(), &dir)?.into_iter().flat_map(|pending| pending.file_ids()));
        }
        let ours = |a: &Attribute| store.is_none_or(|store| a.store == store) && !waiting.contains(&a.file);
        match &self.store_dir.standalone {
            Some(standalone) => strip_attribute(self.storage(), standalone, &ours),
            // What stays in a closed directory is of a state that nobody asks for any more.
            None => drop(strip_attributes(self.storage(), Path::new(""), &ours)?),
        }
        match store {
            Some(_) => remove_temporaries(self.storage(), Path::new(""), self.store_dir.standalone.is_none(), &ours),
            None => Ok(()),
        }
    }
}

/// How recovery brings files up to their final state.
struct Redo<'a> {
    storage: &'a dyn Storage,
    checkpoint_lsn: u64,
    /// Whether to wait for the disk.
    durable: bool,
    /// Flushes each file through the descriptor that it was written through. None: all are flushed at the end.
    flush: Option<SyncPoint>,
    /// Files that were brought up before they got their names.
    done: RefCell<BTreeSet<u64>>,
}

impl Redo<'_> {
    /// Brings one file up to its final state; with a sync point, flushes it through the same descriptor.
    fn redo_file(&self, file: &FileState, handle: &dyn File, at: &Path, attribute: SyncPoint) -> Result<()> {
        if self.durable {
            // A flush may have failed before the crash.
            handle.forget_cached().context("drop the cache of", at)?;
        }
        // A crash must not leave contents in a file that nothing tells from a foreign one.
        let is_new = file.created.is_some() && !file.overlay.is_empty();
        let flushed = match attribute {
            sync_point::ATTRIBUTE_NEW => self.durable && !self.storage.keeps_order(),
            _ => self.flush.is_some(),
        };
        if is_new && flushed {
            handle.sync_all(attribute).context("flush the attribute of", at)?;
        }
        apply_overlay(handle, &file.overlay, at)?;
        if let Some(mode) = file.final_mode()
            && handle.meta().context("stat", at)?.mode != mode
        {
            // Writing took setuid and setgid bits away.
            handle.set_mode(mode).context("change the mode of", at)?;
        }
        set_checkpoint_lsn(handle, self.checkpoint_lsn, at).map_err(|e| Error::attribute(at, e))?;
        match self.flush {
            Some(point) => handle.sync_all(point).context("flush", at),
            None => Ok(()),
        }
    }
}

impl Contents for Redo<'_> {
    fn are_missing(&self, file: &FileState) -> bool {
        !file.overlay.is_empty() && !self.done.borrow().contains(&file.id)
    }

    fn write(&self, file: &FileState, handle: &Arc<dyn File>) -> Result<()> {
        self.redo_file(file, &**handle, file.display_name(), sync_point::ATTRIBUTE_NEW)?;
        self.done.borrow_mut().insert(file.id);
        Ok(())
    }
}

/// This boot of the kernel, which tells class `process` whether the machine went down.
pub fn boot_id(storage: &dyn Storage, store: &Path) -> Result<[u8; 16]> {
    storage.boot_id().map_err(|e| Error::Unsupported {
        path: store.to_owned(),
        detail: format!(
            "failure class `process` has to know whether the machine was started again, and \
             /proc/sys/kernel/random/boot_id cannot be read ({e}). Mount `/proc` whole (not with `subset=pid`), or \
             use class `power`; a store that was not closed in class `process` needs `/proc` once, or `untorn recover \
             --accept-unknown`"
        ),
    })
}

/// Sets the checkpoint LSN in a file's attribute, and the checksum of its path.
pub fn set_checkpoint_lsn(file: &dyn File, checkpoint_lsn: u64, path: &Path) -> std::io::Result<()> {
    let AttributeFound::Valid(old) = Attribute::decode(file.attribute()?.as_deref()) else { return Ok(()) };
    let new = Attribute { checkpoint_lsn, path_crc: Attribute::path_crc_of(path), ..old };
    if new == old { Ok(()) } else { file.set_attribute(&new.encode()) }
}

/// Clears the pending flag, if the file is still the same one. Whether there was one, and it is cleared now.
pub fn clear_pending(file: &dyn File, store: StoreId, id: u64) -> bool {
    if let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && a.store == store
        && a.file == id
        && a.pending
    {
        // A flag that stays is recognised as stale where the file stays, as its epoch has ended.
        return file.set_attribute(&Attribute { pending: false, ..a }.encode()).is_ok();
    }
    false
}
