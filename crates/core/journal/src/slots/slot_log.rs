//! The log that slots need behind the checkpoint: files of the journal that have a second name in `kept`.
//!
//! ```text
//! kept/log.F      a segment whose first record is F; its name in `journal` goes when no commit in it waits any more
//! kept/spill.ID.L a spill file to which commit L refers, and no later one
//! ```
//!
//! The names are durable before the header that truncates the log. A file with a second name is never written again,
//! except behind its last record. So recovery, closes and later openings need not know the kept log.

use crate::commits::spill::spill_name;
use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{Header, ListedEpoch, StoreId};
use crate::invariant;
use crate::slots::epochs::{EpochStart, Epochs};
use crate::slots::kept_files::{KeptFiles, kept_log_name, kept_spill_name};
use crate::slots::slot_dir::{LOST_MAGIC, SlotDir, SlotFound, encode_number};
use crate::sync_point;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{Open, Storage, holds, write_all_at};

/// A slot, and the commit behind which it needs the log.
struct Needed {
    found: SlotFound,
    after: u64,
}

/// The slots of an open store, and the log that is kept for them.
pub struct SlotLog {
    storage: Arc<dyn Storage>,
    store_dir: StoreDir,
    store: StoreId,
    epochs: Epochs,
    /// The list of epochs on the disk has the present one.
    is_listed: bool,
    /// There was a list when the store was opened.
    had_list: bool,
    kept: KeptFiles,
    /// The newest acknowledgement of each slot that was whole, and of a commit of this store.
    known: HashMap<String, u64>,
    /// Names in `kept` are not flushed yet.
    unflushed: bool,
}

impl SlotLog {
    /// The slots of a store, and the log that an earlier owner kept. `accepted`: the epochs of the records that recovery
    /// found, of which the last has LSN `last_lsn`.
    pub fn open(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        header: &Header,
        accepted: &[ListedEpoch],
        last_lsn: u64,
    ) -> Result<SlotLog> {
        let list = match Epochs::read(&**storage, store_dir, &header.store) {
            // Slots find that their commits are of another history.
            Err(e @ Error::Corrupt { .. }) => {
                tracing::warn!(id = "untorn.slot.epochs_anew", error = %e, "the list of epochs begins anew");
                Some(Epochs::default())
            }
            done => done?,
        };
        let had_list = list.is_some();
        let mut epochs = list.unwrap_or_default();
        epochs.cut(last_lsn, header.epoch);
        epochs.add_journal(header, accepted);
        Ok(SlotLog {
            storage: storage.clone(),
            store_dir: store_dir.clone(),
            store: header.store,
            epochs,
            is_listed: false,
            had_list,
            kept: KeptFiles::find(&**storage, store_dir)?,
            known: HashMap::new(),
            unflushed: false,
        })
    }

    /// The names of the slots.
    pub fn names(&self) -> Result<Vec<String>> {
        Ok(SlotDir::all(&*self.storage, &self.store_dir)?.into_iter().map(|slot| slot.name).collect())
    }

    /// The epochs, the present one included.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Begins an epoch with this record. The list is durable before the first header and the first record of the epoch,
    /// if the store has a slot or had one.
    pub fn begin(&mut self, start: EpochStart) -> Result<()> {
        self.epochs.push(start);
        let has_slots = !SlotDir::all(&*self.storage, &self.store_dir)?.is_empty();
        match self.had_list || has_slots {
            true => self.write_list(start.first_lsn - 1),
            false => Ok(()),
        }
    }

    /// Writes the list. On a full disk, the kept log goes first, then the list: without it, no commit is taken for one of
    /// an earlier epoch.
    fn write_list(&mut self, last_lsn: u64) -> Result<()> {
        if !holds(invariant::EPOCH_LISTED_FIRST) {
            return Ok(());
        }
        let write = |log: &SlotLog| {
            let mode = log.storage.stat(&log.store_dir.dir).context("look at", &log.store_dir.dir)?.mode;
            log.epochs.write(&*log.storage, &log.store_dir, &log.store, mode)
        };
        let mut written = write(self);
        if matches!(written, Err(Error::NoSpace { .. })) && self.lose(last_lsn)? {
            written = write(self);
        }
        if matches!(written, Err(Error::NoSpace { .. })) {
            tracing::warn!(
                id = "untorn.slot.epochs_full",
                "no room for the list of epochs: slots do not know the commits of this store any more"
            );
            self.lose(last_lsn)?;
            return remove_list(&*self.storage, &self.store_dir);
        }
        self.is_listed = written.is_ok();
        written
    }

    /// Ends the history of the store: nobody may take a commit of it for one before. The kept log goes.
    pub fn end_history(&mut self, last_lsn: u64) -> Result<()> {
        self.lose(last_lsn)?;
        remove_list(&*self.storage, &self.store_dir)?;
        self.epochs = Epochs::default();
        Ok(())
    }

    /// The slots, each with the commit behind which it needs the log. A slot that cannot be read needs the log from the
    /// same commit as before.
    fn needed(&mut self) -> Vec<Needed> {
        let slots = match SlotDir::all(&*self.storage, &self.store_dir) {
            Ok(slots) => slots,
            Err(e) => {
                tracing::warn!(id = "untorn.slot.list_failed", error = %e, "the slots cannot be listed");
                return Vec::new();
            }
        };
        let mut needed = Vec::new();
        for slot in slots {
            let found = match slot.look(&*self.storage) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(e) => {
                    tracing::warn!(
                        id = "untorn.slot.read_failed",
                        slot = slot.name, error = %e, "a slot cannot be read"
                    );
                    SlotFound { slot, cap: u64::MAX, acknowledged: None, lost: 0 }
                }
            };
            let known = self.known.entry(found.slot.name.clone()).or_insert(0);
            let is_of_store = |point| self.epochs.contains(point) || !holds(invariant::ACKNOWLEDGED_BY_EPOCH);
            if let Some(acknowledged) = found.acknowledged.filter(|acknowledged| is_of_store(acknowledged.point)) {
                *known = acknowledged.point.lsn;
            }
            needed.push(Needed { after: (*known).max(found.lost), found });
        }
        needed
    }

    /// The commit behind which slots need the log; `None` without slots. Frees the files that none needs. `to`: the last
    /// commit that was truncated from the log, or is about to be.
    pub fn needed_behind(&mut self, to: u64) -> Result<Option<u64>> {
        let after = self.needed().iter().map(|needed| needed.after).min();
        if after.is_some() && !self.is_listed {
            self.write_list(to)?;
        }
        self.free_to(after.unwrap_or(u64::MAX), to);
        Ok(after)
    }

    /// Removes the kept files whose commits are all at or before this one.
    fn free_to(&mut self, after: u64, to: u64) {
        let logs: Vec<u64> =
            self.kept.logs.keys().copied().filter(|first| self.kept.last_of(*first, to) <= after).collect();
        for first in logs {
            if self.remove(&kept_log_name(first)) {
                self.kept.logs.remove(&first);
            }
        }
        let is_free = |(last_lsn, _): &(u64, u64)| *last_lsn <= after;
        let spills: Vec<(u64, u64)> = self.kept.spills.keys().copied().take_while(is_free).collect();
        for (last_lsn, id) in spills {
            if self.remove(&kept_spill_name(id, last_lsn)) {
                self.kept.spills.remove(&(last_lsn, id));
            }
        }
    }

    fn remove(&self, name: &str) -> bool {
        match self.storage.unlink(&self.store_dir.kept().join(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                tracing::warn!(
                    id = "untorn.slot.log_stays",
                    name, error = %e, "a part of the kept log cannot be removed"
                );
                false
            }
            _ => true,
        }
    }

    /// Gives a segment, whose first record has this LSN, its name in `kept`.
    pub fn keep_segment(&mut self, segment: &Path, first_lsn: u64) -> io::Result<()> {
        let bytes = self.link(segment, &kept_log_name(first_lsn))?;
        self.kept.logs.insert(first_lsn, bytes);
        Ok(())
    }

    /// Gives a spill file its name in `kept`.
    pub fn keep_spill(&mut self, journal: &Path, id: u64, last_lsn: u64) -> io::Result<()> {
        let bytes = self.link(&journal.join(spill_name(id)), &kept_spill_name(id, last_lsn))?;
        self.kept.spills.insert((last_lsn, id), bytes);
        Ok(())
    }

    fn link(&mut self, from: &Path, name: &str) -> io::Result<u64> {
        let kept = self.store_dir.kept();
        let to = kept.join(name);
        self.unflushed = true;
        let meta = self.storage.stat(from)?;
        match self.storage.link(from, &to) {
            // A crash came between the link and the header.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                if self.storage.stat(&to)?.inode != meta.inode {
                    self.storage.unlink(&to)?;
                    self.storage.link(from, &to)?;
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.storage.mkdir(&kept, self.storage.stat(&self.store_dir.dir)?.mode & 0o777)?;
                self.storage.link(from, &to)?;
            }
            done => done?,
        }
        Ok(meta.size)
    }

    /// The directory whose names must be flushed before the log is truncated; `None` if there are none.
    pub fn unflushed(&self) -> Option<PathBuf> {
        (self.unflushed && holds(invariant::KEPT_NAMES_FLUSHED)).then(|| self.store_dir.kept())
    }

    /// Notes that the names were flushed.
    pub fn note_flushed(&mut self) {
        self.unflushed = false;
    }

    /// Frees the oldest log of slots that need more than their cap.
    pub fn hold_caps(&mut self, to: u64) {
        for Needed { found, after } in self.needed() {
            if self.kept.bytes_behind(after, to) <= found.cap {
                continue;
            }
            let mut ends =
                self.kept.logs.keys().map(|first| self.kept.last_of(*first, to)).filter(|last| *last > after);
            let lost = ends.find(|end| self.kept.bytes_behind(*end, to) <= found.cap).unwrap_or(to);
            self.note_lost(&found, lost, "it needed more of the log than its cap");
        }
        let after = self.needed().iter().map(|needed| needed.after).min();
        self.free_to(after.unwrap_or(u64::MAX), to);
    }

    /// Frees all log that slots need up to this commit, because the disk is full or the log cannot be kept. Returns whether
    /// any was freed.
    pub fn lose(&mut self, to: u64) -> Result<bool> {
        let before = self.kept.count();
        for Needed { found, after } in self.needed() {
            if after < to {
                self.note_lost(&found, to, "there was no room for the log that it needs");
            }
        }
        let after = self.needed().iter().map(|needed| needed.after).min();
        self.free_to(after.unwrap_or(u64::MAX).max(to), to);
        Ok(self.kept.count() < before)
    }

    /// Notes in a slot that log to this LSN is gone. Without the note, its consumer finds the same, later.
    fn note_lost(&mut self, found: &SlotFound, lost: u64, why: &str) {
        tracing::warn!(
            id = "untorn.slot.lost_log",
            slot = found.slot.name,
            lost,
            "a slot lost a part of the log: {why}"
        );
        let path = found.slot.lost_file();
        let written = match self.storage.open(&path, Open::WRITE) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.storage.open(&path, Open::create(0o600)),
            opened => opened,
        };
        let written = written.and_then(|file| write_all_at(&*file, &encode_number(LOST_MAGIC, lost), 0));
        if let Err(e) = written {
            tracing::warn!(
                id = "untorn.slot.loss_not_noted",
                slot = found.slot.name, error = %e, "the loss cannot be noted"
            );
        }
        let known = self.known.entry(found.slot.name.clone()).or_insert(0);
        *known = lost.max(*known);
    }

    /// Whether files have or had second names since the store was opened.
    pub fn is_used(&self) -> bool {
        self.is_listed || !self.kept.logs.is_empty()
    }

    /// Bytes of the kept log.
    pub fn bytes(&self) -> u64 {
        self.kept.bytes()
    }
}

/// Removes the list of epochs, durably: no commit of the store is one of an earlier history any more.
pub fn remove_list(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
    let path = store_dir.epochs();
    match storage.unlink(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => done.context("remove", &path)?,
    }
    storage.sync_dir(&store_dir.dir, sync_point::EPOCHS_NAME).context("flush", &store_dir.dir)
}
