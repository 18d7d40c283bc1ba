//! Opens a store: locks it, recovers from a crash, and begins a new epoch.
//!
//! Recovery reads the journal past the page cache, computes the final state and checks every file. Only then does it
//! write: names first, and then contents (redo), unless these can stay in the journal unapplied. It may crash at any
//! point and run again.

mod damaged_journal;
mod next_epoch;
mod quarantined;
mod redo;
pub mod salvage;
pub mod unapplied;

use crate::commits::final_state::FinalState;
use crate::commits::spill::spill_id;
use crate::data_files::locate::{Location, Locations, open_for_writing};
use crate::directories::quarantine::{NAME_SPARE, PendingFiles};
use crate::directories::store_dir::{
    NewJournal, StoreDir, StoreLock, create_journal, is_quarantined, lock_store, make_spare, remove_tree,
};
use crate::error::{Context, Error, Result};
use crate::format::{Attribute, AttributeFound, EPOCHS_MAX, Header, Key, ListedEpoch, StoreId};
use crate::invariant;
use crate::journal::{Journal, Options};
use crate::recovery::unapplied::{Unapplied, leave_unapplied};
use crate::scanning::scan::{
    Scan, flush_header, note_lost_flush, read_header, read_readable_header, scan, scan_behind,
};
use crate::scanning::segment_reader::{Keep, ReadMode};
use crate::slots::slot_log::SlotLog;
use crate::sync_point;
use crate::undo::keep::{Undo, UndoHandle};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Open, Storage, holds};

/// More files than this are flushed by one `syncfs` instead of one by one.
const FLUSH_ONE_BY_ONE_MAX: usize = 16;

/// Limit for the data kept for readers, unless the owner sets one.
const READERS_SPACE_MAX: u64 = 1 << 30;

/// Whether this many files are flushed one by one.
pub fn flush_one_by_one(storage: &dyn Storage, files: usize) -> bool {
    files <= FLUSH_ONE_BY_ONE_MAX || !storage.sync_file_system_reports_errors()
}

/// Options for opening a store.
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
    /// Called with the bytes read and applied so far, and the total.
    pub progress: &'a dyn Fn(u64, u64),
}

/// The results of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// Commits that were found in the journal.
    pub commits: u64,
    /// Files that show these commits.
    pub files: u64,
    /// Bytes that these files had lacked.
    pub bytes: u64,
    /// An incomplete record at the end was dropped.
    pub torn_tail: bool,
    /// Where damaged journals were archived, if they were salvaged.
    pub salvaged: Vec<PathBuf>,
    /// Failures without which the store works nevertheless.
    pub notes: Vec<String>,
}

/// A file or directory that could not be redone.
#[derive(Clone, Debug)]
pub struct Quarantined {
    /// Its newest name.
    pub path: PathBuf,
    /// Its identity; 0 for a directory.
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
    /// The results of recovery.
    pub recovered: Recovered,
    /// Files that could not be redone.
    pub quarantined: Vec<Quarantined>,
    /// Commits in the journal that are not applied.
    pub unapplied: Unapplied,
    /// Space is reserved for quarantining the journal on a full disk.
    pub has_spare: bool,
}

/// Opens a store, recovering it.
pub fn open(storage: &Arc<dyn Storage>, store_dir: &StoreDir, options: &OpenOptions<'_>) -> Result<Opened> {
    let store_lock =
        lock_store(&**storage, store_dir, options.create.then_some(options.journal.dir_mode), options.wait)?;
    let names = storage.list(&store_dir.dir).context("list", &store_dir.dir)?;
    let has_quarantined = names.iter().any(is_quarantined);
    if options.journal.readers {
        let shown = options.journal.durable && !has_quarantined;
        if !shown {
            // Class `process` shows nothing to readers, and the commits of a quarantined journal are older than theirs.
            Undo::end(&**storage, store_dir)?;
        }
        // Where an older version kept files for readers: they have second names there.
        if names.iter().any(|name| name == "parked") {
            remove_tree(&**storage, &store_dir.dir.join("parked"))?;
        }
    }
    let mut opening = Opening {
        storage,
        store_dir,
        options,
        recovered: Recovered::default(),
        quarantined: Vec::new(),
        unapplied: Unapplied::default(),
        archived_header: None,
        unclean: store_lock.unclean,
        read_whole: true,
        dir_mode: store_lock.dir_mode,
        undo: None,
        slots: None,
    };
    if store_lock.unclean {
        opening.flush_after_kill().map_err(|e| opening.doubt(e))?;
    }
    if opening.finish_creation()? || has_quarantined {
        opening.recover_quarantined()?;
    }
    let journal = match opening.recover_current() {
        Err(e) if opening.can_salvage(&e) => {
            opening.salvage_current(&e)?;
            opening.recover_current()?
        }
        done => done?,
    };
    let Opening { recovered, quarantined, unapplied, .. } = opening;
    // Without space, the store works without the reserve; checkpoints try again.
    let has_spare = !options.journal.spare
        || make_spare(&**storage, store_dir, options.journal.segment_bytes_first, store_lock.dir_mode).is_ok();
    Ok(Opened { journal, store_lock, recovered, quarantined, unapplied, has_spare })
}

/// Limit for the data kept for readers, in bytes. A small one would give up a reader that has not looked at the log
/// yet, again and again, so it leaves room for two logs; or nothing is kept.
fn readers_space(storage: &dyn Storage, options: &Options) -> u64 {
    let least = 2 * options.journal_bytes;
    if let Some(space) = options.readers_space {
        return if space == 0 { 0 } else { space.max(least) };
    }
    let Ok(free) = storage.space().map(|space| space.available_bytes) else { return 0 };
    match READERS_SPACE_MAX.min(free / 10) {
        space if space >= least => space,
        _ if least <= free / 2 => least,
        _ => 0,
    }
}

/// The list of epochs in a header that begins a new epoch behind these records.
fn listed_after(scanned: &Scan) -> Vec<ListedEpoch> {
    let mut listed = scanned.header.listed.clone();
    listed.extend(scanned.epochs.iter().filter(|epoch| epoch.first_lsn >= scanned.header.open_lsn));
    listed
}

/// The header of an opening after an unclosed one, with the epochs that were found in its log.
fn unclosed_before(header: &Header, epochs: &[u64]) -> Header {
    let mut next = header.clone();
    if !header.is_closed() {
        let listed = header.listed.iter().map(|listed| listed.epoch);
        listed.chain([header.epoch]).for_each(|epoch| next.add_unclosed(epoch));
    }
    // The attribute that said that the store is open may be lost, so the header on the disk may be a closed one.
    epochs.iter().for_each(|epoch| next.add_unclosed(*epoch));
    next
}

struct Opening<'a> {
    storage: &'a Arc<dyn Storage>,
    store_dir: &'a StoreDir,
    options: &'a OpenOptions<'a>,
    recovered: Recovered,
    quarantined: Vec<Quarantined>,
    unapplied: Unapplied,
    /// The header of an archived journal: the store keeps its identity.
    archived_header: Option<Header>,
    /// The last owner did not finish its close.
    unclean: bool,
    /// The whole log could be read.
    read_whole: bool,
    /// Permission bits of the store directory.
    dir_mode: u32,
    /// The data kept for readers of older commits, as soon as it is known where the log ends.
    undo: Option<UndoHandle>,
    /// The slots, as soon as it is known where the log ends, and until the journal has them.
    slots: Option<SlotLog>,
}

/// The result of redoing one journal.
struct Redone {
    state: FinalState,
    locations: Locations,
    /// Directories that could not be redone, and why; also directories that files need which could not be redone.
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
        flush_header(self.storage(), &journal, Open::WRITE, sync_point::RECOVER_JOURNAL)?;
        for dir in [journal.as_path(), self.store_dir.dir.as_path(), Path::new("")] {
            self.storage().sync_dir(dir, sync_point::RECOVER_JOURNAL).context("flush", dir)?;
        }
        Ok(())
    }

    /// Whether this error may be passed over because the user asked for salvage. The error names the loss.
    fn can_salvage(&self, e: &Error) -> bool {
        self.options.salvage && (e.is_unreadable() || matches!(e, Error::Corrupt { .. }))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.storage().stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io("stat", path, e)),
        }
    }

    /// Makes a journal if there is none, also after a crash that interrupted the making of one. Returns whether it did.
    fn finish_creation(&self) -> Result<bool> {
        let journal = self.store_dir.journal();
        if self.exists(&journal)? {
            let Some(pending) = PendingFiles::read(self.storage(), &journal)? else { return Ok(false) };
            // A crash came between writing the list and renaming the journal.
            if self.options.journal.readers {
                Undo::end(self.storage(), self.store_dir)?;
            }
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
            unclosed: Vec::new(),
            epoch: 0,
            segment_bytes: self.options.journal.segment_bytes_first,
            closed: false,
            read_whole: self.read_whole,
            durable: true,
            dir_mode: self.dir_mode,
        };
        for dir in self.store_dir.quarantined_journals(self.storage())? {
            let Some(pending) = PendingFiles::read(self.storage(), &dir)? else { continue };
            let (header, _) = read_readable_header(self.storage(), &dir)?;
            if header.generation >= new.generation {
                new.store = header.store;
                new.checkpoint_lsn = pending.last_lsn;
                new.link = pending.last_crc;
                new.generation = header.generation;
                new.unclosed = unclosed_before(&header, &[pending.epoch]).unclosed;
            }
        }
        if let Some(header) = &self.archived_header {
            new.store = header.store;
            new.checkpoint_lsn = header.checkpoint_lsn;
            new.link = header.link;
            new.generation = header.generation;
            new.unclosed = unclosed_before(header, &[]).unclosed;
        }
        if new.generation == 0 {
            new.closed = true;
            // The creation of this store was interrupted before its first commit.
            self.storage().random(&mut new.store).context("draw an identity for", &journal)?;
            let mut salt = [0; 8];
            self.storage().random(&mut salt).context("draw a salt for", &journal)?;
            new.link = u64::from_le_bytes(salt);
        }
        create_journal(self.storage(), self.store_dir, &new).map(|()| true)
    }

    /// Notes in the store that unflushed data of class `process` may be lost, if this error means that.
    fn doubt(&self, e: Error) -> Error {
        let dir = self.store_dir.journal();
        if e.is_failed_flush() && read_header(self.storage(), &dir).is_ok_and(|header| header.boot.is_some()) {
            // If the disk refuses this write, too, the loss goes unnoticed.
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
        // Class `power` works without a boot id, too.
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
        // In class `process`, within one boot, the page cache is authoritative and need not be flushed.
        let flush = self.options.journal.durable || boot.is_none() || boot != now;
        let mode = if flush { ReadMode::PastCache } else { ReadMode::Cached };
        // Writes of class `process` may be in the page cache only: its segments are read even after a clean shutdown.
        let Options { in_memory_max, window_bytes, index_bytes_least, .. } = self.options.journal;
        // A recovery that applies or salvages everything reads the whole log: it finds damage before it changes a file.
        let reads_all = self.options.redo || self.options.salvage;
        let index_bytes_least = if reads_all { u64::MAX } else { index_bytes_least };
        let keep = Keep::Places { in_memory_max, window_bytes, index_bytes_least };
        let mut scanned = scan_behind(self.storage, &dir, header, mode, keep, boot.is_some(), self.options.progress)?;
        if let Some(e) = scanned.corrupt.take() {
            return Err(e);
        }
        self.open_undo(scanned.header.store, scanned.last_lsn)?;
        self.open_slots(&scanned)?;
        if scanned.clean_shutdown {
            if self.unclean {
                // A closing owner cuts its segments after it wrote the header. The next commit must not append below a
                // length that the disk still has: the commit could then survive without the metadata that its flush
                // makes durable.
                for segment in &scanned.segments {
                    segment.file.sync_data(sync_point::RECOVER_LENGTHS).context("flush", &dir)?;
                }
            }
            let Scan { header, segments, orphans, .. } = scanned;
            let mut journal = self.new_journal(&dir, header, segments)?;
            self.remove_orphans(&mut journal, &dir, &orphans)?;
            if self.options.journal.durable && !self.storage().keeps_order() {
                // Written here and not with the first commit, which has enough to flush.
                match journal.note_open() {
                    // After a failed flush, the written header may be in the page cache only.
                    Err(e) if e.is_failed_flush() || !matches!(e, Error::NoSpace { .. }) => return Err(e),
                    _ => {}
                }
            }
            return Ok(journal);
        }
        let epochs: Vec<u64> = scanned.epochs.iter().map(|epoch| epoch.epoch).collect();
        scanned.header = unclosed_before(&scanned.header, &epochs);
        // If a part of the log cannot be read, it is unknown which commits never came.
        self.read_whole = scanned.segments.iter().all(|segment| segment.unreadable.is_empty());
        scanned.header.marks_left = self.read_whole;
        let listed = listed_after(&scanned);
        // The page cache may lose writes of a class `process` epoch, so these are not left unapplied.
        let may_stay = boot.is_none() && self.options.journal.durable && !self.options.redo && !listed.is_empty();
        // Unreadable parts of the log do no harm once everything else is applied.
        let may_stay = may_stay && scanned.segments.iter().all(|segment| segment.log.is_some());
        let fits = listed.len() <= EPOCHS_MAX || !holds(invariant::LIST_BOUNDED);
        let before = self.recovered.clone();
        let mut redone = self.redo(&dir, &scanned, None, flush, may_stay && fits)?;
        if redone.names_only
            && let Some(unapplied) =
                leave_unapplied(self.storage(), std::mem::take(&mut redone.state), &redone.locations, &scanned)?
        {
            self.unapplied = unapplied;
            if redone.from_temporary {
                self.unapplied.dirs.insert(dir.clone());
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
            debug_assert!(!redone.names_only, "a journal is quarantined, and contents were left in it");
            self.clear_pending_of(&redone, scanned.header.store, true)?;
            let epoch = scanned.last_epoch();
            let pending = PendingFiles {
                last_lsn: scanned.last_lsn,
                last_crc: scanned.last_crc,
                epoch,
                files: redone.not_redone(),
                dirs: redone.dirs_left.clone(),
            };
            self.end_undo()?;
            if let Some(slots) = &mut self.slots {
                // The next journal cannot read the log of this one.
                slots.lose(scanned.last_lsn)?;
            }
            pending.write(self.storage(), &dir)?;
            self.quarantine_journal(&pending)?;
            self.finish_creation()?;
            self.set_list_apart(&self.store_dir.quarantined_journal(epoch));
            let scanned = scan(self.storage, &dir, ReadMode::PastCache, keep, false, self.options.progress)?;
            self.open_undo(scanned.header.store, scanned.last_lsn)?;
            let (header, segments) = (scanned.header, scanned.segments);
            return self.new_journal(&dir, header, segments);
        }
        self.begin_epoch(dir, scanned, &redone, flush)
    }

    /// Takes over the data that an earlier owner kept for readers, or begins anew, before anything is changed. The log
    /// ends with this commit.
    fn open_undo(&mut self, store: StoreId, last_lsn: u64) -> Result<()> {
        if !self.options.journal.readers || !self.options.journal.durable {
            return Ok(());
        }
        let space = readers_space(self.storage(), &self.options.journal);
        match Undo::of_store(self.storage, self.store_dir, store, last_lsn, space) {
            Ok(undo) => self.undo = undo,
            Err(e @ Error::NewerVersion { .. }) => return Err(e),
            Err(e) => {
                // Nobody may rely on the page any more.
                self.end_undo()?;
                let note = format!("no process can read this store until it is opened again: {e}");
                self.recovered.notes.push(note);
            }
        }
        Ok(())
    }

    /// Looks at the slots, and at the epochs of the store.
    fn open_slots(&mut self, scanned: &Scan) -> Result<()> {
        let Scan { header, epochs, last_lsn, .. } = scanned;
        let mut slots = SlotLog::open(self.storage, self.store_dir, header, epochs, *last_lsn)?;
        if self.archived_header.is_some() {
            // Salvaged files are not those of the commits that are lost.
            slots.end_history(*last_lsn)?;
        }
        if !self.options.journal.durable
            && let Some(name) = slots.names()?.first()
        {
            return Err(Error::Unsupported {
                path: self.store_dir.dir.clone(),
                detail: format!(
                    "it has the slot {name}, whose consumer gets durable commits only, and failure class `process` makes \
                     none: open it in class `power`, or drop the slot with `untorn slots --drop {name}`"
                ),
            });
        }
        self.slots = Some(slots);
        Ok(())
    }

    /// Ends everything that readers hold, because later changes are not shown to them.
    fn end_undo(&mut self) -> Result<()> {
        self.undo = None;
        match self.options.journal.readers {
            true => Undo::end(self.storage(), self.store_dir),
            false => Ok(()),
        }
    }

    /// Removes files that no record refers to, unless readers of an earlier owner need them. If one cannot be removed,
    /// the next opening tries again.
    fn remove_orphans(&self, journal: &mut Journal, dir: &Path, orphans: &[String]) -> Result<()> {
        let keeps_spills = journal.keep_former_spills(orphans)?;
        for name in orphans.iter().filter(|name| *name != NAME_SPARE || !self.options.journal.spare) {
            if !keeps_spills || spill_id(name).is_none() {
                let _ = self.storage().unlink(&dir.join(name));
            }
        }
        Ok(())
    }

    /// Clears the pending flags of files that are complete without the journal, before the journal is given up. A flag
    /// that stayed set would make a moved file unusable.
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
}

/// Identifies this boot of the kernel. Class `process` needs it to notice a restart of the machine.
pub fn boot_id(storage: &dyn Storage, store: &Path) -> Result<[u8; 16]> {
    storage.boot_id().map_err(|e| Error::Unsupported {
        path: store.to_owned(),
        detail: format!(
            "failure class `process` has to know whether the machine was restarted, but \
             /proc/sys/kernel/random/boot_id cannot be read ({e}). Mount all of `/proc` (not with `subset=pid`), or \
             use class `power`; to open a store that was not closed in class `process`, mount `/proc` once, or run \
             `untorn recover --accept-unknown`"
        ),
    })
}

/// Sets the checkpoint LSN in a file's attribute, and the checksum of its path.
pub fn set_checkpoint_lsn(file: &dyn File, checkpoint_lsn: u64, path: &Path) -> std::io::Result<()> {
    let AttributeFound::Valid(old) = Attribute::decode(file.attribute()?.as_deref()) else { return Ok(()) };
    let new = Attribute { checkpoint_lsn, path_crc: Attribute::path_crc_of(path), ..old };
    if new == old { Ok(()) } else { file.set_attribute(&new.encode()) }
}

/// Clears the pending flag, if the file is still the same one. Returns whether a flag was set and is now cleared.
pub fn clear_pending(file: &dyn File, store: StoreId, id: u64) -> bool {
    if let Ok(value) = file.attribute()
        && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
        && a.store == store
        && a.file == id
        && a.pending
    {
        // If this fails and the file stays in its place, the next owner recognises the flag as stale, because its epoch
        // has ended.
        return file.set_attribute(&Attribute { pending: false, ..a }.encode()).is_ok();
    }
    false
}
