//! Marks that an owner left which did not close its store: files that wait for commits which never came.
//!
//! A file is marked before the record of its first commit is written, and waits for its journal from then on, wherever it
//! goes. If the owner dies in between, no record names the file, and nobody else does either. So closing a store that was
//! not closed before goes through its directory. A mark may go if its commits can be nowhere: all of the log was read, none
//! of it names the file, no quarantined journal waits for it, and it lies where it was marked (another one may be a copy).

use crate::engine::Engine;
use crate::invariant;
use crate::sync_point;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::data_tree::each_data_file;
use untorn_journal::format::{Attribute, AttributeFound, Header};
use untorn_journal::locate::open_for_writing;
use untorn_journal::recovery::{clear_pending, flush_one_by_one};
use untorn_journal::{Context, Result};
use untorn_os::{File, Open, holds};

impl Engine {
    /// Clears the marks of former owners whose commits never came, before the header says that the store is closed. With
    /// `flush`, they are flushed.
    pub(crate) fn clear_left_marks(&self, flush: bool) -> Result<()> {
        let is_due = self.journal.lock().journal.header().marks_left;
        if !is_due || !holds(invariant::LEFT_MARKS_CLEARED) {
            return Ok(());
        }
        let waiting: BTreeSet<&Path> = self.quarantined.iter().map(|quarantined| quarantined.path.as_path()).collect();
        let (mut cleared, mut count) = (Vec::<(Arc<dyn File>, PathBuf)>::new(), 0);
        let mut clear = |path: &Path| {
            if waiting.contains(path) || !self.is_left(path) {
                return;
            }
            let Some(data) = self.clear_mark(path) else { return };
            count += 1;
            match flush_one_by_one(&*self.storage, count) {
                true => cleared.push((data, path.to_owned())),
                false => cleared.clear(),
            }
        };
        match &self.store_dir.standalone {
            Some(file) => clear(file),
            None => each_data_file(&*self.storage, &mut clear),
        }
        if flush && self.is_durable() && count > 0 {
            if !flush_one_by_one(&*self.storage, count) {
                self.storage.sync_file_system(sync_point::CLEARED).context("flush", &self.path)?;
            }
            for (data, path) in cleared {
                data.sync_all(sync_point::CLEARED).context("flush the attribute of", path)?;
            }
        }
        self.journal.lock().journal.note_marks_cleared();
        Ok(())
    }

    /// Whether a mark is of an owner that this journal does not know, or was made when the journal had more commits.
    pub(crate) fn is_of_another_journal(&self, a: &Attribute) -> bool {
        !self.found.knows(a) || Header::is_behind(a, self.found_lsn)
    }

    /// Whether the file of a name has a mark whose commits never came.
    fn is_left(&self, path: &Path) -> bool {
        let value = self.storage.open(path, Open::READ).and_then(|file| file.attribute());
        let Ok(AttributeFound::Valid(a)) = value.map(|value| Attribute::decode(value.as_deref())) else { return false };
        a.pending
            && a.store == self.store_id
            && a.epoch != self.epoch
            && !self.is_of_another_journal(&a)
            && a.path_crc == Attribute::path_crc_of(path)
            && !self.carried.contains(&a.file)
            && !self.quarantined.iter().any(|quarantined| quarantined.id == a.file)
    }

    /// Clears a mark. None: the file is in use elsewhere, or cannot be changed: its mark stays.
    fn clear_mark(&self, path: &Path) -> Option<Arc<dyn File>> {
        let known = self.files.lock().get(path).cloned();
        let data = match &known {
            Some(file) => self.changeable(file).ok()?.content.data.clone()?,
            None => open_for_writing(&*self.storage, path).ok().filter(|data| data.try_claim().unwrap_or(false))?,
        };
        // With the claim nobody else marks it.
        let value = data.attribute().ok()?;
        let AttributeFound::Valid(a) = Attribute::decode(value.as_deref()) else { return None };
        clear_pending(&*data, self.store_id, a.file).then_some(data)
    }
}
