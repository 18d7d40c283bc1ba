//! Applies committed changes of names to the table of open files and to the disk.

use crate::engine::commit::contents_first::ContentsFirst;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::engine::files::name_op::NameOp;
use crate::engine::files::queue::Request;
use crate::engine::{Engine, JournalState, Unapplied};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::final_state::FinalState;
use untorn_journal::data_files::locate::{DataFiles, Location, open_for_writing};
use untorn_journal::{Error, Result};
use untorn_os::File;

impl Engine {
    /// Applies a commit of names: first to the table of open files, then to the disk. Changes that cannot be made on
    /// the disk now are left to the next checkpoint; recovery would make all of them, so correctness does not depend on
    /// this call.
    pub(crate) fn follow_names(&self, files: &[Arc<SharedFile>], names: FinalState, journal: &mut JournalState) {
        debug_assert_eq!(files.len(), names.files.len(), "files of a change of names");
        journal.dirs.extend(names.touched_dirs());
        let renaming = self.renaming.write();
        let new = files.iter().filter(|file| file.read().life == Life::Uncommitted).map(|file| file.id).collect();
        self.update_table(files, &names);
        let unapplied = self.apply_names(files.to_vec(), names, &new);
        drop(renaming);
        let Some(mut unapplied) = unapplied else { return };
        for file in files {
            if let Some(waiting) = unapplied.names.files.get_mut(&file.id) {
                // The unlinked file may lack commits from before.
                waiting.previous_lsn = file.read().applied_lsn;
            }
        }
        journal.unapplied.push(unapplied);
        self.reserve_for_waiting(journal);
    }

    /// Applies committed names that could not be applied when they were committed.
    pub(crate) fn apply_waiting_names(&self, journal: &mut JournalState) {
        for waiting in std::mem::take(&mut journal.unapplied) {
            let _renaming = self.renaming.write();
            let before = (waiting.names.files.len(), waiting.names.dirs.len());
            let touched = waiting.names.touched_dirs();
            let still = self.apply_names(waiting.files, waiting.names, &BTreeSet::new());
            let after = still.as_ref().map(|still| (still.names.files.len(), still.names.dirs.len()));
            if after != Some(before) {
                // The directories may have been flushed before these names were in them.
                journal.dirs.extend(touched);
                journal.names_healed += 1;
            }
            journal.unapplied.extend(still);
        }
    }

    /// Checks that committed names that could not be applied do not affect these requests, because names are checked
    /// against the disk.
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
                detail: format!("a committed change of this name could not be applied yet: {reason}"),
            }),
        }
    }

    /// Updates the table and the states of files to their committed names.
    fn update_table(&self, files: &[Arc<SharedFile>], names: &FinalState) {
        let mut table = self.files.lock();
        for file in files {
            let mut state = file.write();
            debug_assert_ne!(state.life, Life::Gone, "{:?} is in a commit of names, and has none", state.path());
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
                state.life = Life::Named;
                state.attribute_set = true;
                state.attribute_unsynced = true;
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

    /// Applies committed names of these files on the disk; files in `new` never existed there. Returns the changes that
    /// could not be applied now, and why.
    fn apply_names(
        &self,
        mut files: Vec<Arc<SharedFile>>,
        mut names: FinalState,
        new: &BTreeSet<u64>,
    ) -> Option<Unapplied> {
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
            kept_links: self.kept_links(),
        };
        let mut locations = data_files.find_but(&names, new);
        let left = data_files.apply_names(&names, &mut locations);
        debug_assert_eq!(locations.len(), names.files.len(), "files without a location");
        for dir in &left {
            tracing::warn!(
                id = "untorn.checkpoint.names_wait",
                error = %dir.reason, given_up = dir.given_up, "a committed change of names waits"
            );
        }
        // Also for files that are in no table any more, because a committed unlink must not be lost.
        let of_files = locations.values().filter_map(|location| location.as_ref().err());
        let dirs_left = || left.iter().filter(|dir| !dir.given_up);
        let reason = of_files.chain(dirs_left().map(|dir| &dir.reason)).next().cloned();
        let mut table = self.files.lock();
        let most = self.storage.open_files_max();
        for file in first.files() {
            let mut state = file.write();
            match &locations[&file.id] {
                Ok(Location::At(at)) => {
                    state.quarantine = None;
                    let written = first.take_written(file.id);
                    let room = table.descriptors() + first.held() < most;
                    if state.content.data.is_none() && room && self.open_created(&mut state, at, written) {
                        table.note_descriptor(file);
                    }
                }
                Ok(Location::Absent) => {}
                Err(e) => state.quarantine = Some(e.clone()),
            }
        }
        drop(table);
        if locations.values().any(|at| at.as_ref().is_err_and(Error::is_failed_flush)) {
            // The failed flush may have been one of the whole file system, and so of other files' data.
            self.flush.note_failure();
        }
        let reason = reason?;
        let waiting: BTreeSet<u64> = locations.iter().filter(|(_, at)| at.is_err()).map(|(id, _)| *id).collect();
        let mut dirs: BTreeSet<PathBuf> = dirs_left().map(|dir| dir.path.clone()).collect();
        dirs.extend(waiting.iter().flat_map(|id| names.dirs_of(&names.files[id])));
        debug_assert!(!waiting.is_empty() || !dirs.is_empty(), "names wait for nothing: {reason}");
        names.retain(&waiting, &dirs);
        debug_assert_eq!(names.files.len(), waiting.len(), "files that wait");
        files.retain(|file| waiting.contains(&file.id));
        Some(Unapplied { names, files, reason })
    }

    /// Opens the data file of a created file. A file that is not opened here is opened when it is needed.
    fn open_created(&self, state: &mut FileState, at: &Path, written: Option<Arc<dyn File>>) -> bool {
        debug_assert!(state.content.data.is_none(), "{:?} is open already", state.path());
        debug_assert_eq!(state.path(), at, "a created file has another name");
        let Ok(file) = written.map_or_else(|| open_for_writing(&*self.storage, at), Ok) else { return false };
        let claimed = file.try_claim().unwrap_or(false);
        let meta = file.meta();
        let (true, Ok(meta)) = (claimed, meta) else { return false };
        // If the file was open before, keep the old metadata, so that an outside edit is still detected.
        if state.content.last_stat.is_none() {
            state.content.base_size = meta.size;
            state.content.last_stat = Some(meta);
        }
        state.content.data = Some(file);
        true
    }
}
