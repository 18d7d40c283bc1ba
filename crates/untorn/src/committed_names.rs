//! Committed changes of names, made so in the table of open files and on disk.

use crate::contents_first::ContentsFirst;
use crate::engine::{Engine, JournalState, Unapplied};
use crate::file_state::{FileState, Life, SharedFile};
use crate::name_op::NameOp;
use crate::queue::Request;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::apply::{DataFiles, Location, open_for_writing};
use untorn_journal::final_state::FinalState;
use untorn_journal::{Error, Result};
use untorn_os::File;

impl Engine {
    /// Follows a commit of names: the table of open files first, then the disk. What cannot be done on disk now is
    /// left to the next checkpoint; recovery would do all of it, so nothing depends on it here.
    pub(crate) fn follow_names(&self, files: &[Arc<SharedFile>], names: FinalState, journal: &mut JournalState) {
        journal.dirs.extend(names.touched_dirs());
        let _renaming = self.renaming.write();
        self.update_table(files, &names);
        if let Some(reason) = self.apply_names(files, &names) {
            journal.unapplied.push(Unapplied { names, files: files.to_vec(), reason });
        }
    }

    /// Applies committed names that could not be applied when they were committed.
    pub(crate) fn apply_waiting_names(&self, journal: &mut JournalState) {
        journal.unapplied.retain_mut(|waiting| {
            let _renaming = self.renaming.write();
            match self.apply_names(&waiting.files, &waiting.names) {
                Some(reason) => {
                    waiting.reason = reason;
                    true
                }
                None => false,
            }
        });
    }

    /// Names are checked against what is on the disk: committed ones that could not be applied must be out of
    /// the way.
    pub(crate) fn check_names_applied(&self, requests: &[Request], journal: &mut JournalState) -> Result<()> {
        let paths = || requests.iter().flat_map(|r| &r.names).flat_map(NameOp::paths);
        if journal.unapplied.is_empty() || paths().next().is_none() {
            return Ok(());
        }
        self.apply_waiting_names(journal);
        let waiting = |path: &&Path| journal.unapplied.iter().find(|waiting| waiting.names.depends_on(path));
        match paths().find_map(|path| waiting(&path).map(|waiting| (path, &waiting.reason))) {
            None => Ok(()),
            Some((path, reason)) => Err(Error::Conflict {
                path: path.to_owned(),
                detail: format!("a change of this name is committed and could not be made yet: {reason}"),
            }),
        }
    }

    /// Brings the table and the states of files to their committed names.
    fn update_table(&self, files: &[Arc<SharedFile>], names: &FinalState) {
        let mut table = self.files.lock();
        for file in files {
            let mut state = file.write();
            table.remove_name(state.path(), file);
            let last = &names.files[&file.id];
            state.names_changed |= last.names.len() > 1 || last.mode.is_some() || last.created.is_some();
            state.mode_set = last.final_mode().or(state.mode_set);
            match &last.name {
                Some(name) => state.content.path = name.clone(),
                None => {
                    table.remove(state.path(), file);
                    state.be_gone();
                }
            }
            if state.life == Life::Uncommitted {
                // The committed overlay was dropped as long as the file had no name.
                state.life = Life::Named;
                state.attribute_set = true;
                state.attribute_unsynced = true;
                state.content.committed = last.overlay.clone();
            }
        }
        for file in files {
            let state = file.read();
            if state.life == Life::Named {
                table.insert(state.path().to_owned(), file.clone());
                if state.handles == 0 {
                    table.note_idle(file);
                }
            }
        }
    }

    /// Applies committed names on disk. Returns why something could not be done now.
    fn apply_names(&self, files: &[Arc<SharedFile>], names: &FinalState) -> Option<Error> {
        let named = files.iter().filter(|file| file.read().life == Life::Named);
        let first = ContentsFirst::new(self, named.map(|file| (file.id, file.clone())).collect());
        let data_files = DataFiles {
            storage: &*self.storage,
            store: self.store_id,
            epoch: self.epoch,
            newest_lsn: None,
            rename_dir: self.store_dir.journal(),
            durable: self.is_durable(),
            contents: Some(&first),
        };
        let mut locations = data_files.find(names);
        let left = data_files.apply_names(names, &mut locations);
        for dir in &left {
            tracing::warn!(error = %dir.reason, given_up = dir.given_up, "a committed change of names waits");
        }
        // Also of files that no table has any more: a committed unlink is not forgotten.
        let of_files = locations.values().filter_map(|location| location.as_ref().err());
        let of_dirs = left.iter().filter(|dir| !dir.given_up).map(|dir| &dir.reason);
        let waits = of_files.chain(of_dirs).next().cloned();
        let mut table = self.files.lock();
        let most = self.storage.open_files_max();
        for file in first.files() {
            let mut state = file.write();
            match &locations[&file.id] {
                Ok(Location::At(at)) => {
                    state.quarantine = None;
                    let written = first.take_written(file.id);
                    state.attribute_unsynced &= written.is_none();
                    let room = table.descriptors() < most;
                    if state.content.data.is_none() && room && self.open_created(&mut state, at, written) {
                        table.note_descriptor(file);
                    }
                }
                Ok(Location::Absent) => {}
                Err(e) => state.quarantine = Some(e.clone()),
            }
        }
        waits
    }

    /// Opens the data file that a created file has now. One that is not opened here is opened when it is needed.
    fn open_created(&self, state: &mut FileState, at: &Path, written: Option<Arc<dyn File>>) -> bool {
        let Ok(file) = written.map_or_else(|| open_for_writing(&*self.storage, at), Ok) else { return false };
        let claimed = file.try_claim().unwrap_or(false);
        let meta = file.meta();
        let (true, Ok(meta)) = (claimed, meta) else { return false };
        // Of a file that was open before, an edit from outside must still show.
        if state.content.last_stat.is_none() {
            state.content.base_size = meta.size;
            state.content.last_stat = Some(meta);
        }
        state.content.data = Some(file);
        true
    }
}
