//! The table of a store's open files: by name, those with a descriptor, and those that may be forgotten.

use crate::engine::files::file_state::SharedFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Limit for the descriptors that are examined when one must be closed; those of files in use cannot be closed.
const LOOK_MAX: usize = 32;

/// The files that a store has in memory.
///
/// For an unused file, the table and one caller hold the only references: [`FileTable::is_unused`].
#[derive(Default)]
pub(crate) struct FileTable {
    by_name: BTreeMap<PathBuf, Arc<SharedFile>>,
    /// Files whose data file was opened, by identity; some may be closed again, or gone.
    with_descriptor: BTreeMap<u64, Weak<SharedFile>>,
    /// Identity at which the search for a descriptor to close continues.
    hand: u64,
    /// Files without handles that can be forgotten after a checkpoint, by identity.
    idle: BTreeMap<u64, Weak<SharedFile>>,
    /// Number of files visited by walks through the whole table.
    walked: u64,
}

impl FileTable {
    pub(crate) fn get(&self, path: &Path) -> Option<&Arc<SharedFile>> {
        self.by_name.get(path)
    }

    pub(crate) fn insert(&mut self, path: PathBuf, file: Arc<SharedFile>) {
        self.by_name.insert(path, file);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Number of files visited by walks through the whole table, since the store was opened. No step of a commit may
    /// cause a walk.
    pub(crate) fn walked(&self) -> u64 {
        self.walked
    }

    /// All files, for operations whose cost is proportional to the number of files.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &Arc<SharedFile>> {
        self.walked += self.by_name.len() as u64;
        self.by_name.values()
    }

    /// Removes all files from the table, and returns them.
    pub(crate) fn take_all(&mut self) -> Vec<Arc<SharedFile>> {
        let files = std::mem::take(self);
        files.by_name.into_values().collect()
    }

    /// Whether this name belongs to this file.
    pub(crate) fn has(&self, path: &Path, file: &Arc<SharedFile>) -> bool {
        self.by_name.get(path).is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// Removes a file's name from the table, if it belongs to that file. The file may get another name.
    pub(crate) fn remove_name(&mut self, path: &Path, file: &Arc<SharedFile>) {
        if self.has(path, file) {
            self.by_name.remove(path);
        }
    }

    /// Removes a file from the table that is gone, or that is to be forgotten.
    pub(crate) fn remove(&mut self, path: &Path, file: &Arc<SharedFile>) {
        self.remove_name(path, file);
        self.with_descriptor.remove(&file.id);
        self.idle.remove(&file.id);
    }

    /// Whether only the table, under this name, and the caller refer to the file: no handle, transaction, commit or
    /// checkpoint does. Nobody else can get a reference while the table is locked.
    pub(crate) fn is_unused(&self, path: &Path, file: &Arc<SharedFile>) -> bool {
        self.has(path, file) && Arc::strong_count(file) == 2
    }

    /// Notes a file that may be forgotten after a checkpoint.
    pub(crate) fn note_idle(&mut self, file: &Arc<SharedFile>) {
        self.idle.insert(file.id, Arc::downgrade(file));
    }

    /// Number of files that may be forgotten.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// The files that may be forgotten.
    pub(crate) fn take_idle(&mut self) -> Vec<Weak<SharedFile>> {
        std::mem::take(&mut self.idle).into_values().collect()
    }

    /// Notes that a data file was opened.
    pub(crate) fn note_descriptor(&mut self, file: &Arc<SharedFile>) {
        let before = self.with_descriptor.insert(file.id, Arc::downgrade(file));
        debug_assert!(
            before.is_none_or(|before| before.ptr_eq(&Arc::downgrade(file))),
            "two files have the identity {}",
            file.id
        );
    }

    /// Upper bound of the open data files.
    pub(crate) fn descriptors(&self) -> usize {
        self.with_descriptor.len()
    }

    /// Closes data files while more than `most` are open; they are reopened when needed. A file that is in use at the
    /// moment keeps its descriptor, because this call does not wait.
    pub(crate) fn close_descriptors(&mut self, most: usize) {
        let mut looks = if most == 0 { self.descriptors() } else { LOOK_MAX };
        while self.descriptors() > most && looks > 0 {
            looks -= 1;
            // Identities are random numbers, so the choice is random, too.
            let next = self.with_descriptor.range(self.hand..).next().or_else(|| self.with_descriptor.iter().next());
            let Some((id, file)) = next.map(|(id, file)| (*id, file.upgrade())) else { return };
            self.hand = id.wrapping_add(1);
            if file.is_none_or(|file| close_unused(&file)) {
                self.with_descriptor.remove(&id);
            }
        }
    }
}

/// Closes a data file that nobody is using. Returns whether it is closed.
fn close_unused(file: &SharedFile) -> bool {
    let Some(mut state) = file.try_write() else { return false };
    // A clone of the descriptor, such as a checkpoint's, keeps the claim on the file, so that nobody could reopen it.
    if state.content.data.as_ref().is_some_and(|data| Arc::strong_count(data) > 1) {
        return false;
    }
    state.content.data = None;
    true
}
