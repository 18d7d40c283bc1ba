//! A command on several databases, one after the other.

use crate::json;
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn_terminal::{Failure, Output, shown};

/// The result for one database.
pub trait Done: Serialize {
    fn path(&self) -> &Path;

    /// Lines for people.
    fn text(&self) -> &str;
}

/// Runs a command on each database. A failure names those that were done before.
pub fn each<T: Done>(
    databases: &[PathBuf],
    as_json: bool,
    run: impl Fn(&Path) -> Result<T, Failure>,
) -> Result<Output, Failure> {
    let mut done = Vec::new();
    for path in databases {
        done.push(run(path).map_err(|failure| behind(failure, &done))?);
    }
    match as_json {
        true => json::output(&done),
        false => Ok(Output::text(done.iter().map(T::text).collect::<String>())),
    }
}

fn behind<T: Done>(failure: Failure, done: &[T]) -> Failure {
    if done.is_empty() {
        return failure;
    }
    let names: Vec<_> = done.iter().map(|one| shown(one.path())).collect();
    Failure { message: format!("{} (done before: {})", failure.message, names.join(", ")), ..failure }
}
