//! Results for programs, as JSON.

use serde::Serialize;
use untorn_terminal::{Failure, Output};

/// A value, to which the caller may add members.
pub fn value(of: &impl Serialize) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(of).map_err(failure)
}

/// The output of a value as text.
pub fn output(value: &impl Serialize) -> Result<Output, Failure> {
    Ok(Output::text(serde_json::to_string_pretty(value).map_err(failure)? + "\n"))
}

/// A path as text. Parts that are not UTF-8 become U+FFFD.
pub fn path<S: serde::Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Works like [`path`], for an optional path.
pub fn maybe_path<S: serde::Serializer>(path: &Option<std::path::PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

fn failure(e: serde_json::Error) -> Failure {
    Failure::new(format!("cannot write JSON: {e}"))
}
