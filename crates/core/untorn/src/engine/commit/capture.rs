//! Captures the bytes that threads stored to the mappings of files, as of one moment, for a commit.
//!
//! ```text
//!                           Run            Stopped         Stop
//! while threads store       stage_stores   -               prepare_copy
//! while they are stopped    -              copy_stores     copy_now
//! afterwards                -              stage_copies    stage_copied, mend
//! ```
//!
//! During a stop, bytes are only copied, so that it is short; comparing and spilling come afterwards.

use crate::engine::Engine;
use crate::engine::commit::stop_the_world::Staged;
use crate::engine::files::file_state::{FileState, SharedFile};
use crate::engine::waiting::concurrency::RwLockWriteGuard;
use std::sync::Arc;
use untorn_journal::{Error, Result};

/// The program's threads during a capture.
pub(crate) enum Threads<'a> {
    /// They may store at any time; each page is captured as it is when it is copied.
    Run,
    /// The caller has stopped them.
    Stopped {
        /// A file whose stored pages the caller has already queried during this stop.
        looked: Option<u64>,
        /// Ends the stop, after the stored bytes were copied.
        copied: &'a mut dyn FnMut(),
    },
    /// The capture stops them.
    Stop {
        stop: &'a mut dyn Stop,
        /// Called after the stop.
        copied: &'a mut dyn FnMut(),
    },
}

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
    fn while_stopped(&mut self, copy: &mut dyn FnMut() -> std::io::Result<bool>) -> Result<()>;

    /// Completes the staged state, and checks it.
    fn mend(&mut self, staged: Staged<'_>) -> Result<()>;
}

impl Engine {
    /// Stages the bytes that the files' mappings hold. The states are those of the files, in their order.
    pub(crate) fn capture(
        &self,
        states: &mut [RwLockWriteGuard<'_, FileState>],
        files: &[&Arc<SharedFile>],
        txn: Option<u64>,
        threads: Threads<'_>,
    ) -> Result<()> {
        debug_assert_eq!(states.len(), files.len(), "each file has a state");
        match threads {
            Threads::Run => {
                for state in states {
                    state.check_commit(txn)?;
                    state.stage_stores(self)?;
                }
            }
            Threads::Stopped { looked, copied } => {
                let mut copies = Vec::new();
                for (state, file) in states.iter_mut().zip(files) {
                    state.check_commit(txn)?;
                    copies.push(state.copy_stores(self, looked == Some(file.id))?);
                }
                copied();
                for (state, copies) in states.iter_mut().zip(copies) {
                    state.stage_copies(self, copies)?;
                }
            }
            Threads::Stop { stop, copied } => {
                self.copy_stopped(states, stop, copied)?;
                for state in states {
                    state.check_commit(txn)?;
                    state.stage_copies(self, None)?;
                }
            }
        }
        Ok(())
    }

    /// Stages the bytes that files' mappings hold at a moment at which the program's threads are stopped, and completes
    /// the staged state.
    fn copy_stopped(
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
        let rested = stop.while_stopped(&mut || {
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
}
