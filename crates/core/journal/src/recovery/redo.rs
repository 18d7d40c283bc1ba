//! Redoes a journal: applies its final state to the files, or its names alone.

use super::{Opening, Quarantined, Redone, flush_one_by_one, set_checkpoint_lsn};
use crate::commits::final_state::{FileState, FinalState};
use crate::commits::record::Record;
use crate::data_files::apply::{DirLeft, apply_overlay};
use crate::data_files::create::sync_names;
use crate::data_files::locate::{Contents, DataFiles, Location, leave_unreadable};
use crate::directories::quarantine::PendingFiles;
use crate::error::{Context, Error, Result};
use crate::invariant;
use crate::scanning::scan::Scan;
use crate::sync_point;
use crate::undo::keep::Undo;
use crate::undo::page::Cell;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Storage, SyncPoint, holds};

impl Opening<'_> {
    /// Redoes a journal: applies names, contents and attributes, and flushes them. `only`: just the files and
    /// directories in this list. With `may_stay`, and if nothing must be left out, contents stay in the journal, except
    /// those of files that get names.
    pub(super) fn redo(
        &mut self,
        dir: &Path,
        scanned: &Scan,
        only: Option<&PendingFiles>,
        flush: bool,
        may_stay: bool,
    ) -> Result<Redone> {
        debug_assert!(
            scanned.accepted.is_sorted_by(|one, next| one.lsn < next.lsn),
            "commits are not in order, up to {}",
            scanned.last_lsn
        );
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
            clone_bytes_least: flush.then_some(self.options.journal.clone_bytes_least),
            flush: (flush && one_by_one).then_some(sync_point::CHECKPOINT_DATA),
            done: RefCell::default(),
            undo: self.undo.as_deref(),
        };
        if let Some(undo) = self.undo.as_ref().filter(|_| only.is_none()) {
            keep_former_names(undo, scanned)?;
        }
        let data_files = DataFiles {
            storage: self.storage(),
            store: scanned.header.store,
            epoch: scanned.last_epoch(),
            newest_lsn: Some(scanned.last_lsn),
            rename_dir: dir.to_owned(),
            durable: flush,
            contents: Some(&redo),
            kept_links: self.undo.as_ref().map(|undo| undo.links()).unwrap_or_default(),
        };
        let mut locations = data_files.find(&state);
        if data_files.finish_half_renames(&state, &locations) {
            locations = data_files.find(&state);
        }
        leave_unreadable(&state, &mut locations);
        let temporary =
            |o: &Result<Location>| matches!(o, Ok(Location::At(at)) if at.starts_with(&data_files.rename_dir));
        let from_temporary = locations.values().any(temporary);
        let left = data_files.apply_names(&state, &mut locations);
        debug_assert_eq!(locations.len(), state.files.len(), "files without a location");
        if let Some(undo) = self.undo.as_ref().filter(|_| only.is_none()) {
            undo.tell_named(scanned.last_lsn);
        }
        if may_stay && left.is_empty() && locations.values().all(Result::is_ok) {
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
            // If the disk refuses this file, it waits, and the others continue.
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
            let dirs = state.touched_dirs().into_iter().chain(from_temporary.then(|| dir.to_owned()));
            sync_names(self.storage(), dirs, sync_point::CHECKPOINT_NAMES)?;
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
}

/// Brings files to their final state in recovery.
struct Redo<'a> {
    storage: &'a dyn Storage,
    checkpoint_lsn: u64,
    /// Whether to wait for the disk.
    durable: bool,
    /// Least size of a range that shares blocks with a spill file.
    clone_bytes_least: Option<u64>,
    /// Flushes each file through the descriptor that wrote it. `None` if all files are flushed at the end.
    flush: Option<SyncPoint>,
    /// Files that got their contents before their names.
    done: RefCell<BTreeSet<u64>>,
    undo: Option<&'a Undo>,
}

/// Keeps the files and directories of names before the commits whose names the last owner may not have got on the disk.
fn keep_former_names(undo: &Undo, scanned: &Scan) -> Result<()> {
    let named = undo.page().told(Cell::Named);
    let after = scanned.accepted.iter().filter(|accepted| accepted.lsn > named && !accepted.record.restates());
    for accepted in after.filter(|_| holds(invariant::FORMER_NAMES_KEPT)) {
        let mut names = FinalState::default();
        names.add_record(&accepted.record, accepted.lsn)?;
        if names.has_name_changes() {
            undo.keep_names(&names, accepted.lsn)?;
        }
    }
    Ok(())
}

impl Redo<'_> {
    /// Brings one file to its final state; with a sync point, flushes it through the same descriptor.
    fn redo_file(&self, file: &FileState, handle: &dyn File, at: &Path, attribute: SyncPoint) -> Result<()> {
        if self.durable {
            // A flush may have failed before the crash, so the cache may differ from the disk.
            handle.forget_cached().context("drop the cache of", at)?;
        }
        // A crash must not leave a file with contents but without its attribute, which would look like a foreign file.
        let is_new = file.created.is_some() && !file.overlay.is_empty();
        let flushed = match attribute {
            sync_point::ATTRIBUTE_NEW => self.durable && !self.storage.keeps_order(),
            _ => self.flush.is_some(),
        };
        if is_new && flushed {
            handle.sync_all(attribute).context("flush the attribute of", at)?;
        }
        if let Some(undo) = self.undo {
            undo.keep_contents(handle, &file.overlay, self.checkpoint_lsn, at)?;
        }
        apply_overlay(handle, &file.overlay, at, self.clone_bytes_least)?;
        if let Some(mode) = file.final_mode()
            && handle.meta().context("stat", at)?.mode != mode
        {
            // Writing cleared the setuid and setgid bits.
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
