//! What every benchmark needs to know of the run that it is part of.

use crate::report::status_line::StatusLine;
use std::path::PathBuf;

/// A run of the program, as its arguments ask for it.
pub struct Run {
    pub quick: bool,
    pub runs: Option<u16>,
    pub think_ms: Vec<u64>,
    pub without: Vec<String>,
    /// Where images are made.
    pub dir: PathBuf,
    pub progress: StatusLine,
}
