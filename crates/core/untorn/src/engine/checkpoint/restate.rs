//! Restates unapplied changes at the end of the log, so that they do not hold up truncation of the rest.
//!
//! ```text
//! log:    create a (cannot be applied) · commits of others … · restated: create a · …
//!         └───────────── truncated by the checkpoint ──────┘
//! ```

use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::engine::{Engine, JournalState};
use crate::invariant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::Result;
use untorn_journal::commits::record::{FileRef, Op, Record};
use untorn_os::holds;

impl Engine {
    /// Restates the unapplied names, and the contents of all of these files. Returns whether the log may be truncated:
    /// not if there is no room for the record, or if the log holds only restated commits. As long as the log is not
    /// filling up, nothing is done, because a full disk may refuse the record, too.
    pub(crate) fn restate(&self, journal: &mut JournalState, waiting: &BTreeMap<u64, Arc<SharedFile>>) -> Result<bool> {
        let is_due = self.wants_checkpoint(journal) || self.checkpoints.room_wanted.load(Relaxed);
        if journal.journal.holds_only_restated() || !is_due {
            return Ok(false);
        }
        let (record, files) = self.restated(journal, waiting)?;
        for file in files.iter().filter(|_| holds(invariant::RESTATED_LEAVES_LOG)) {
            file.write().content.leave_log()?;
        }
        let restated = journal.journal.restate(&record);
        self.life.note_failure(&journal.journal, &self.path);
        let Some(lsn) = restated? else { return Ok(false) };
        for file in files {
            let mut state = file.write();
            debug_assert!(state.last_lsn < lsn, "{:?}: restated as {lsn} after {}", state.path(), state.last_lsn);
            state.last_lsn = lsn;
        }
        Ok(true)
    }

    /// Reserves log space for restating the unapplied changes.
    pub(crate) fn reserve_for_waiting(&self, journal: &mut JournalState) {
        let waits = |file: &&Arc<SharedFile>| file.read().quarantine.is_some();
        let waiting = journal.dirty.values().filter(waits).map(|file| (file.id, file.clone())).collect();
        self.reserve_for(journal, &waiting);
    }

    /// Reserves log space for restating the unapplied names, and the contents of all of these files.
    pub(crate) fn reserve_for(&self, journal: &mut JournalState, waiting: &BTreeMap<u64, Arc<SharedFile>>) {
        // Contents that cannot be read cannot be restated either.
        if let Ok((record, _)) = self.restated(journal, waiting) {
            journal.journal.reserve(Some(&record));
        }
    }

    /// The record, and the files in it. The caller holds the journal's lock, so no commit is on its way.
    fn restated(
        &self,
        journal: &JournalState,
        waiting: &BTreeMap<u64, Arc<SharedFile>>,
    ) -> Result<(Record, Vec<Arc<SharedFile>>)> {
        let mut files = waiting.clone();
        let named = journal.unapplied.iter().flat_map(|unapplied| &unapplied.files);
        files.extend(named.map(|file| (file.id, file.clone())));
        let mut record = Record { files: Vec::new(), ops: vec![Op::Restate] };
        for unapplied in &journal.unapplied {
            unapplied.names.restate_names(&mut record, |file| match files.get(&file.id).map(|shared| shared.read()) {
                Some(state) if state.life != Life::Gone => state.applied_lsn,
                _ => file.previous_lsn,
            });
        }
        let whole_pages = self.options.full_page && holds(invariant::FULL_PAGE);
        for file in files.values() {
            let mut state = file.read();
            if whole_pages && state.life != Life::Gone && state.content.data.is_none() && state.content.base_size > 0 {
                drop(state);
                self.reopen(file)?;
                state = file.read();
            }
            if state.life != Life::Gone {
                restate_contents(&mut record, file.id, &state, whole_pages)?;
            }
        }
        Ok((record, files.into_values().collect()))
    }
}

/// Adds to the record the contents that the data file lacks, and the file's name and mode, unless the record has them.
fn restate_contents(record: &mut Record, id: u64, state: &FileState, whole_pages: bool) -> Result<()> {
    let known = record.files.iter().position(|file| file.id == id);
    let index = known.unwrap_or(record.files.len()) as u32;
    if known.is_none() {
        record.files.push(FileRef { id, previous_lsn: state.applied_lsn, path: state.path().to_owned() });
    }
    // The effects of earlier commits on the file are on the disk, but perhaps not flushed.
    let is_created = record.ops.iter().any(|op| matches!(op, Op::Create { file, .. } if *file == index));
    let has_mode = is_created || record.ops.iter().any(|op| matches!(op, Op::Mode { file, .. } if *file == index));
    let missing = state.mode_set.and_then(|mode| match state.attribute_unsynced && !is_created {
        true => Some(Op::Create { file: index, mode }),
        false => (!has_mode).then_some(Op::Mode { file: index, mode }),
    });
    record.ops.extend(missing);
    // A page that is written in place must be completely in the log, also after earlier records are truncated.
    record.push_overlay(index, &state.content.pending(whole_pages)?);
    Ok(())
}
