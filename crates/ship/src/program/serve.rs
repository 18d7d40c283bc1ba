//! `serve`: the other side of `ssh://`.

use crate::bucket::place::Place;
use crate::bucket::serve::serve;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use untorn_terminal::{Failure, Output};

/// Serve a directory to `untorn-ship` on another machine, which runs this by ssh for ssh://HOST/DIRECTORY.
///
/// The directory is made if it is missing. An object is flushed, with its name, before the answer is sent. To allow a key
/// of ssh nothing else, put `command="untorn-ship serve DIRECTORY",restrict` before it in `authorized_keys`.
#[derive(Args)]
pub struct Serve {
    /// The directory
    directory: PathBuf,
}

impl Serve {
    /// Serves until the other side ends the connection.
    ///
    /// # Errors
    /// The directory cannot be used, or the connection broke.
    pub fn run(self) -> Result<Output, Failure> {
        let directory = std::path::absolute(&self.directory)
            .map_err(|e| Failure::new(format!("{} cannot be found: {e}", self.directory.display())))?;
        let bucket = Place::of_directory(directory).open(true)?;
        serve(Arc::from(bucket), std::io::stdin().lock(), std::io::stdout())
            .map_err(|e| Failure::new(format!("the connection ended: {e}")))?;
        Ok(Output::default())
    }
}
