//! New files that are created before the first of them gets contents, so that one flush serves the attributes of many.

use crate::commits::final_state::{FileState, FinalState};
use crate::data_files::locate::DataFiles;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use untorn_os::File;

/// Files without names whose attributes are durable.
#[derive(Default)]
pub(crate) struct Ahead(RefCell<HashMap<u64, Arc<dyn File>>>);

impl Ahead {
    /// The file of this identity, if it was created ahead.
    pub fn take(&self, id: u64) -> Option<Arc<dyn File>> {
        self.0.borrow_mut().remove(&id)
    }
}

impl DataFiles<'_> {
    /// Creates these files. A file that cannot be created here is created later by itself, which also reports the
    /// error.
    pub(crate) fn make_ahead<'f>(
        &self,
        state: &FinalState,
        new: impl Iterator<Item = (&'f FileState, &'f Path)>,
    ) -> Ahead {
        let Some(contents) = self.contents else { return Ahead::default() };
        let mut made = HashMap::new();
        for (file, at) in new.filter(|(file, _)| self.are_missing(file)) {
            let Some(directory) = at.parent() else { continue };
            if let Ok(handle) = self.with_rights(state, &[at], || self.storage.create_unnamed(directory))
                && self.set_identity(file, &*handle, at).is_ok()
            {
                made.insert(file.id, handle);
            }
        }
        if made.is_empty() || contents.flush_attributes().is_err() { Ahead::default() } else { Ahead(made.into()) }
    }
}
