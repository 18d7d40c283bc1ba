//! The changes of names that a transaction requests.

use crate::engine::files::file_state::SharedFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One change of names.
#[derive(Clone)]
pub(crate) enum NameOp {
    Create { file: Arc<SharedFile>, path: PathBuf, mode: u32 },
    Rename { from: PathBuf, to: PathBuf },
    Unlink { path: PathBuf },
    Mkdir { path: PathBuf, mode: u32 },
    Rmdir { path: PathBuf },
    Chmod { path: PathBuf, mode: u32 },
}

impl NameOp {
    /// The names that the change affects.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let (path, to) = match self {
            NameOp::Rename { from, to } => (from, Some(to)),
            NameOp::Create { path, .. }
            | NameOp::Unlink { path }
            | NameOp::Mkdir { path, .. }
            | NameOp::Rmdir { path }
            | NameOp::Chmod { path, .. } => (path, None),
        };
        std::iter::once(path).chain(to).map(PathBuf::as_path)
    }
}
