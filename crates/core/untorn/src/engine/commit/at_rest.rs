//! A commit of a mapped file to which threads store meanwhile: they stand still for a moment, at any instruction.

use crate::engine::Engine;
use crate::engine::content::SpillSink;
use crate::engine::files::file_state::{FileState, SharedFile};
use crate::engine::region::Region;
use crate::engine::waiting::concurrency::RwLockWriteGuard;
use std::ops::Range;
use untorn_journal::{Error, Result};

/// Has the program stand still at any instruction.
pub(crate) trait Stop {
    /// Pages that are copied at most while the threads stand.
    fn pages_most(&self) -> u64;

    /// The error for threads that store to more than that.
    fn too_many(&mut self) -> Error;

    /// Calls `copy`, which allocates nothing and takes no lock, while the program's threads stand. False: there was more to be
    /// copied than may be.
    ///
    /// # Errors
    /// They do not stand, or not at a moment at which that helps: nothing is committed.
    fn at_rest(&mut self, copy: &mut dyn FnMut() -> std::io::Result<bool>) -> Result<()>;

    /// Makes what was copied whole, and looks at it.
    fn mend(&mut self, staged: Staged<'_>) -> Result<()>;
}

impl Engine {
    /// Stages what is stored to files at a moment at which the program's threads stand, and what that becomes.
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

    /// Copies what was stored to a file so far, for a commit that comes soon.
    pub(crate) fn stage_ahead(&self, file: &SharedFile) -> Result<()> {
        let mut state = file.write();
        state.check_commit(None)?;
        state.stage_ahead(self)
    }
}

impl FileState {
    /// Copies what was stored to the file's mapping so far, while threads store.
    pub(crate) fn stage_ahead(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        match &mut self.region {
            Some(region) => region.stage_ahead(&mut self.content, sink, unit),
            None => Ok(()),
        }
    }

    /// Copies what was stored so far, and makes room for what [`Self::copy_now`] copies. False: see [`Region::prepare_copy`].
    fn prepare_copy(&mut self, most: u64) -> Result<bool> {
        match &mut self.region {
            Some(region) => region.prepare_copy(&mut self.content, most),
            None => Ok(true),
        }
    }

    /// Copies what was stored since, while the program's threads stand still, if that is no more than so many pages. Allocates
    /// nothing, and takes no lock.
    fn copy_now(&mut self, most: u64) -> std::io::Result<bool> {
        self.region.as_mut().map_or(Ok(true), |region| region.copy_now(most))
    }

    /// Stages what was copied; also after an error.
    pub(crate) fn stage_copied(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        match &mut self.region {
            Some(region) => region.stage_copied(&mut self.content, sink, unit),
            None => Ok(()),
        }
    }
}

/// A mapped file as the next commit makes it.
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

    /// Fills the buffer, which lies within the file.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.state.content.read_at(buf, offset)
    }

    /// Stages other bytes than memory has.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let source = self.state.content.source_of(self.sink, bytes, offset)?;
        self.state.content.write(range.clone(), source);
        if let Some(region) = &mut self.state.region {
            region.differs_in_memory(range);
        }
        Ok(())
    }

    /// Pages that the commit concerns.
    pub(crate) fn touched(&self) -> Vec<Range<u64>> {
        self.state.region.as_ref().map(Region::touched).unwrap_or_default()
    }

    /// It was looked at, and is in order.
    pub(crate) fn approve(&mut self) {
        if let Some(region) = &mut self.state.region {
            region.forget_touched();
        }
    }
}
