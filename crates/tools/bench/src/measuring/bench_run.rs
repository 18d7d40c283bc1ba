//! The settings of a run that every benchmark needs.

use crate::report::status_line::StatusLine;
use std::path::PathBuf;

/// A run of the program, with the settings from its arguments.
pub struct Run {
    pub quick: bool,
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
