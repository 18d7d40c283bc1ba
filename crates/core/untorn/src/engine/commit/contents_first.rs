//! Writes committed contents to a data file before a commit gives the file a name, so that a name never shows less than
//! the committed contents.
//!
//! The record is durable by then, so these writes need no flush, and the overlays stay until a checkpoint has flushed
//! the file: recovery, or that checkpoint, rewrites everything that a crash or a failed flush lost.

use crate::engine::Engine;
use crate::engine::content::edited;
use crate::engine::files::file_state::{SharedFile, WrittenFirst};
use crate::sync_point;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use untorn_journal::commits::final_state::FileState as Final;
use untorn_journal::commits::overlay::Overlay;
use untorn_journal::data_files::apply::apply_overlay;
use untorn_journal::data_files::locate::Contents;
use untorn_journal::recovery::flush_one_by_one;
use untorn_journal::{Context, Result};
use untorn_os::File;

/// The committed contents of files whose names change. The caller keeps the names locked meanwhile.
pub(crate) struct ContentsFirst<'a> {
    engine: &'a Engine,
    files: BTreeMap<u64, Arc<SharedFile>>,
    /// Descriptors that may be kept: half of those for which the store has room. The other half may be needed for new
    /// files without contents.
    room: usize,
    /// Descriptors through which contents were written.
    written: RefCell<BTreeMap<u64, Arc<dyn File>>>,
}

impl<'a> ContentsFirst<'a> {
    pub(crate) fn new(engine: &'a Engine, files: BTreeMap<u64, Arc<SharedFile>>) -> ContentsFirst<'a> {
        let room = engine.storage.open_files_max().saturating_sub(engine.files.lock().descriptors());
        ContentsFirst { engine, files, room: room / 2, written: RefCell::default() }
    }

    /// The descriptor through which contents of a file were written.
    pub(crate) fn take_written(&self, id: u64) -> Option<Arc<dyn File>> {
        self.written.borrow_mut().remove(&id)
    }

    /// Descriptors that were not taken yet.
    pub(crate) fn held(&self) -> usize {
        self.written.borrow().len()
    }

    /// The files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<SharedFile>> {
        self.files.values()
    }
}

impl Engine {
    /// Whether the attribute of a new file needs a flush before contents are written. Otherwise it is durable before
    /// them anyway.
    fn flushes_new(&self) -> bool {
        self.is_durable() && !self.storage.keeps_order()
    }
}

impl Contents for ContentsFirst<'_> {
    fn made_at_once(&self) -> usize {
        let many = self.engine.flushes_new() && !flush_one_by_one(&*self.engine.storage, self.files.len());
        if many { self.room } else { 0 }
    }

    fn flush_attributes(&self) -> Result<()> {
        self.engine.sync_file_system(sync_point::ATTRIBUTE_NEW)
    }

    fn are_missing(&self, file: &Final) -> bool {
        let Some(shared) = self.files.get(&file.id) else { return !file.overlay.is_empty() };
        let state = shared.read();
        let content = &state.content;
        let pending = !content.committed.is_empty() || content.applying.as_ref().is_some_and(|o| !o.is_empty());
        // A new file that could not get its name is created again.
        let is_all = file.created.is_none() && state.written_first.as_ref().is_some_and(|written| written.is_all);
        pending && !is_all
    }

    fn write(&self, file: &Final, handle: &Arc<dyn File>) -> Result<()> {
        self.write_to(file, handle, false)
    }

    fn write_behind_attribute(&self, file: &Final, handle: &Arc<dyn File>) -> Result<()> {
        self.write_to(file, handle, true)
    }
}

impl ContentsFirst<'_> {
    fn write_to(&self, file: &Final, handle: &Arc<dyn File>, behind_attribute: bool) -> Result<()> {
        let engine = self.engine;
        let Some(shared) = self.files.get(&file.id) else {
            return apply_overlay(&**handle, &file.overlay, file.display_name(), engine.clone_bytes_least());
        };
        // A running checkpoint must not write older changes over these.
        let _writing = shared.writing.lock();
        let mut state = shared.write();
        self.written.borrow_mut().remove(&file.id);
        if state.outcome_unknown {
            let detail = "it is unknown whether a commit of it failed; reopen the store to find out";
            return Err(state.content.conflict(detail));
        }
        let path = state.path().to_owned();
        let data = state.content.data.clone().unwrap_or_else(|| handle.clone());
        data.check_own().context("look at", &path)?;
        let (now, found) = (data.meta().context("look at", &path)?, handle.meta().context("look at", &path)?);
        if (now.inode, now.device) != (found.inode, found.device) {
            return Err(state.content.conflict("another program replaced the file while it was in use"));
        }
        if let Some(last) = state.content.last_stat.filter(|_| file.created.is_none())
            && edited(&now, &last)
        {
            return Err(state.content.conflict("another program changed the file while it was in use"));
        }
        let is_new = file.created.is_some() || state.attribute_unsynced;
        if is_new && !behind_attribute && engine.flushes_new() {
            // A crash must not leave a file with contents but without its attribute, which would look like a foreign
            // file.
            data.sync_all(sync_point::ATTRIBUTE_NEW).context("flush the attribute of", &path)?;
        }
        let mut overlay = state.content.applying.as_deref().map_or_else(Overlay::default, Overlay::clone);
        state.content.committed.lay_over(&mut overlay);
        // For a file that this commit creates, readers take everything from the log.
        if file.created.is_none() {
            engine.keep_contents(&*data, &overlay, state.last_lsn, &path)?;
        }
        state.attribute_unsynced = false;
        let (through, failures) = (Arc::downgrade(&data), engine.flush.failures());
        state.written_first = Some(WrittenFirst { through: through.clone(), failures, is_all: false });
        let applied = apply_overlay(&*data, &overlay, &path, engine.clone_bytes_least())
            .and_then(|()| state.restore_mode(&*engine.storage, &*data));
        // Even a write that failed half-way has changed the file, and the change is this process's own.
        let meta = data.meta();
        state.content.last_stat = meta.as_ref().ok().copied();
        state.content.base_size = meta.as_ref().map_or(state.content.base_size, |meta| meta.size);
        applied?;
        state.written_first = Some(WrittenFirst { through, failures, is_all: true });
        let mut written = self.written.borrow_mut();
        if written.len() < self.room {
            written.insert(file.id, data);
        }
        Ok(())
    }
}
