//! Commits a mapped file while threads store to it, by stopping the threads briefly, each at an arbitrary instruction.

use crate::engine::Engine;
use crate::engine::content::SpillSink;
use crate::engine::files::file_state::{FileState, SharedFile};
use crate::engine::region::Region;
use std::ops::Range;
use untorn_journal::Result;

impl Engine {
    /// Copies the bytes stored to a file so far, for a commit that comes soon.
    pub(crate) fn stage_ahead(&self, file: &SharedFile) -> Result<()> {
        let mut state = file.write();
        state.check_commit(None)?;
        state.stage_ahead(self)
    }
}

impl FileState {
    /// Copies the bytes stored to the file's mapping so far, while threads store.
    pub(crate) fn stage_ahead(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        match &mut self.region {
            Some(region) => region.stage_ahead(&mut self.content, sink, unit),
            None => Ok(()),
        }
    }

    /// Copies the bytes stored so far, and allocates memory for [`Self::copy_now`]. Returns false as
    /// [`Region::prepare_copy`] does.
    pub(crate) fn prepare_copy(&mut self, most: u64) -> Result<bool> {
        match &mut self.region {
            Some(region) => region.prepare_copy(&mut self.content, most),
            None => Ok(true),
        }
    }

    /// Copies the bytes stored since then, while the program's threads are stopped, if these are at most `most` pages.
    /// Allocates nothing, and takes no lock.
    pub(crate) fn copy_now(&mut self, most: u64) -> std::io::Result<bool> {
        self.region.as_mut().map_or(Ok(true), |region| region.copy_now(most))
    }

    /// Stages the copied bytes; also after an error.
    pub(crate) fn stage_copied(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        match &mut self.region {
            Some(region) => region.stage_copied(&mut self.content, sink, unit),
            None => Ok(()),
        }
    }
}

/// A mapped file as the next commit will leave it.
pub(crate) struct Staged<'s> {
    state: &'s mut FileState,
    sink: &'s dyn SpillSink,
}

impl<'s> Staged<'s> {
    pub(crate) fn new(state: &'s mut FileState, sink: &'s dyn SpillSink) -> Staged<'s> {
        Staged { state, sink }
    }

    pub(crate) fn size(&self) -> u64 {
        self.state.content.size()
    }

    /// Fills the buffer from a range within the file.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.state.content.read_at(buf, offset)
    }

    /// Stages bytes that differ from those in memory.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let source = self.state.content.source_of(self.sink, bytes, offset)?;
        self.state.content.write(range.clone(), source);
        if let Some(region) = &mut self.state.region {
            region.differs_in_memory(range);
        }
        Ok(())
    }

    /// Pages that the commit changes.
    pub(crate) fn touched(&self) -> Vec<Range<u64>> {
        self.state.region.as_ref().map(Region::touched).unwrap_or_default()
    }

    /// Notes that the staged state was checked and is valid.
    pub(crate) fn approve(&mut self) {
        if let Some(region) = &mut self.state.region {
            region.forget_touched();
        }
    }
}
