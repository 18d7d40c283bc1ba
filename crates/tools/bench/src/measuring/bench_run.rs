//! The settings of a run that every benchmark needs.

use crate::report::status_line::StatusLine;
use std::path::PathBuf;

/// A run of the program, with the settings from its arguments.
pub struct Run {
    pub quick: bool,
    /// A run of everything: what takes long is repeated less often.
    pub all: bool,
    /// Mounts beside other FUSE file systems.
    pub peers: bool,
    pub runs: Option<u16>,
    pub think_ms: Vec<u64>,
    pub log_mib: Vec<u64>,
    pub without: Vec<String>,
    /// The directory for images.
    pub dir: PathBuf,
    pub progress: StatusLine,
}

impl Run {
    /// The number of rounds of whole programs: all of them, two thirds in a run of everything, one in a quick one.
    pub fn rounds(&self, rounds: usize) -> usize {
        match (self.quick, self.all) {
            (true, _) => 1,
            (false, true) => (2 * rounds).div_ceil(3),
            (false, false) => rounds,
        }
    }
}
