//! Paths in results for programs: a name that is no UTF-8 must not keep anybody from all the rest.

use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

/// A path as text; what is no UTF-8 becomes U+FFFD.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Several.
pub(crate) fn paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
