//! Commits a mapped file while threads store to it, by stopping the threads briefly, each at an arbitrary instruction.

use crate::engine::Engine;
use crate::engine::content::SpillSink;
use crate::engine::files::file_state::{FileState, SharedFile};
use crate::engine::region::Region;
use crate::engine::waiting::concurrency::RwLockWriteGuard;
use std::ops::Range;
use untorn_journal::{Error, Result};

/// Stops the program's threads at arbitrary instructions.
pub(crate) trait Stop {
    /// Limit for the pages that are copied while the threads are stopped.
    fn pages_most(&self) -> u64;

    /// The error if the threads store to more pages than that.
    fn too_many(&mut self) -> Error;

    /// Calls `copy`, which allocates nothing and takes no lock, while the program's threads are stopped. Returns false
    /// if there was more to copy than allowed.
    ///
    /// # Errors
    /// The threads do not stop, or not at a suitable moment; nothing is committed.
    fn at_rest(&mut self, copy: &mut dyn FnMut() -> std::io::Result<bool>) -> Result<()>;

    /// Completes the staged state, and checks it.
    fn mend(&mut self, staged: Staged<'_>) -> Result<()>;
}

impl Engine {
    /// Stages the bytes that files' mappings hold at a moment at which the program's threads are stopped, and completes
    /// the staged state.
    pub(crate) fn copy_at_rest(
        &self,
        states: &mut [RwLockWriteGuard<'_, FileState>],
        stop: &mut dyn Stop,
        copied: &mut dyn FnMut(),
    ) -> Result<()> {
        let most = stop.pages_most();
        for state in &mut *states {
            state.check_commit(None)?;
            if !state.prepare_copy(most)? {
                return Err(stop.too_many());
            }
        }
        let rested = stop.at_rest(&mut || {
            for state in &mut *states {
                if !state.copy_now(most)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        copied();
        for state in &mut *states {
            let staged = state.stage_copied(self);
            rested.clone().and(staged)?;
            stop.mend(Staged::new(state, self))?;
        }
        Ok(())
    }

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
    fn prepare_copy(&mut self, most: u64) -> Result<bool> {
        match &mut self.region {
            Some(region) => region.prepare_copy(&mut self.content, most),
            None => Ok(true),
        }
    }

    /// Copies the bytes stored since then, while the program's threads are stopped, if these are at most `most` pages.
    /// Allocates nothing, and takes no lock.
    fn copy_now(&mut self, most: u64) -> std::io::Result<bool> {
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
