//! How the workload of a figure runs, and where.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::unavailable::need_root;
use anyhow::Result;

pub struct Setting<'a> {
    pub run: &'a Run,
    /// The number of runs of each cell, in which the contenders take turns.
    pub runs: usize,
}

impl Setting<'_> {
    /// A file system in an image.
    pub fn image(&self, fs: FileSystem) -> Result<Place> {
        need_root("a file system in an image")?;
        Place::prepare(fs, &self.run.dir, self.run.quick, &self.run.progress)
    }
}
