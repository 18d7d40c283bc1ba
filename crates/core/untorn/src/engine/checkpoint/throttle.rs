//! Write-back throttle of a checkpoint: data goes to the device in steps, so that the flush of a concurrent commit
//! finds a short queue.

use crate::engine::Engine;
use crate::sync_point;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::{Context, Result};
use untorn_os::File;

/// Bytes of a step while commits run, and without commits.
const STEP_BESIDE_COMMITS: u64 = 4 << 20;
const STEP_ALONE: u64 = 64 << 20;

/// Progress of writing one file: bytes that were written and not yet sent to the device.
pub(crate) struct Throttle<'a> {
    engine: &'a Engine,
    file: &'a dyn File,
    path: &'a Path,
    written: u64,
    looked_at: u64,
    batches: u64,
}

impl<'a> Throttle<'a> {
    pub(crate) fn new(engine: &'a Engine, file: &'a dyn File, path: &'a Path) -> Throttle<'a> {
        Throttle { engine, file, path, written: 0, looked_at: 0, batches: engine.commits.batches.load(Relaxed) }
    }

    /// Notes that bytes were written to the file, and sends them to the device if a step is full.
    pub(crate) fn wrote(&mut self, bytes: u64) -> Result<()> {
        debug_assert!(self.looked_at <= self.written, "looked at {} of {}", self.looked_at, self.written);
        self.written += bytes;
        if self.written - self.looked_at < STEP_BESIDE_COMMITS || !self.engine.is_durable() {
            return Ok(());
        }
        self.looked_at = self.written;
        let batches = self.engine.commits.batches.load(Relaxed);
        let commits_are_made = std::mem::replace(&mut self.batches, batches) != batches;
        if !commits_are_made && self.written < STEP_ALONE {
            return Ok(());
        }
        (self.written, self.looked_at) = (0, 0);
        self.file.write_out(sync_point::CHECKPOINT_STEP).context("flush", self.path)
    }
}
