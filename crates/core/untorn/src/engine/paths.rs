//! Paths in messages and in results for programs. Stands on nothing else here.

pub(crate) mod error_paths;
pub(crate) mod path_text;
