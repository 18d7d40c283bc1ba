//! The spill file of large ranges, whose blocks data files will share: these bytes are written once.
//!
//! Commits of all files append to one file, so that its name is flushed once. A checkpoint ends it, and the next commit
//! begins another one.

use crate::engine::waiting::concurrency::Mutex;
use std::sync::{Arc, OnceLock};
use untorn_journal::Result;
use untorn_journal::commits::overlay::Overlay;
use untorn_journal::commits::spill::Spill;

/// Length after which another file is begun.
const SPILL_BYTES_MAX: u64 = 64 << 20;

/// The spill file that commits share.
#[derive(Default)]
pub(crate) struct SharedSpill {
    spill: Mutex<Option<Arc<Spill>>>,
    /// Whether the file system shares blocks; not known before the first large range.
    shares_blocks: OnceLock<bool>,
}

impl SharedSpill {
    /// Whether ranges may go here; on a file system that cannot share blocks, they are copied more quickly from the log.
    pub(crate) fn is_possible(&self) -> bool {
        self.shares_blocks.get().is_none_or(|shares| *shares)
    }

    /// Moves runs of at least this many adjacent bytes from memory to the spill file. If that fails, because the disk is
    /// full or no descriptor is left, they stay where they are.
    pub(crate) fn spill(&self, changes: &mut Overlay, least_bytes: u64, create: &dyn Fn() -> Result<Arc<Spill>>) {
        let mut current = self.spill.lock();
        if current.as_ref().is_some_and(|spill| spill.len() >= SPILL_BYTES_MAX) {
            *current = None;
        }
        let spill = match current.take() {
            Some(spill) => spill,
            None => {
                let Ok(spill) = create() else { return };
                if !self.shares_blocks.get_or_init(|| spill.shares_blocks()) {
                    return;
                }
                spill
            }
        };
        if changes.spill_runs(&spill, least_bytes).is_ok() {
            *current = Some(spill);
        }
    }

    /// Ends the file: no later commit refers to it.
    pub(crate) fn end(&self) {
        *self.spill.lock() = None;
    }
}
