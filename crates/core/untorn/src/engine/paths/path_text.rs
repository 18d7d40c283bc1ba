//! Paths in results for programs: a name that is not UTF-8 must not make the rest unreadable.

use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

/// A path as text, with U+FFFD for bytes that are not UTF-8.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Several paths as text.
pub(crate) fn paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
