//! `untorn put`.

use clap::{Args, ValueHint};
use std::path::PathBuf;
use untorn::offline;
use untorn_terminal::{Failure, Output};

/// Replace a file's contents from standard input, whole or not at all.
///
/// After a crash at any moment the file holds its old contents or all of the new ones; when this
/// returns, the new ones are durable. Mode, owner, ACL and extended attributes stay; where they
/// cannot, the file is left as it is. A missing file is created. A symbolic link is followed, and
/// stays. A file that a store manages is replaced by a commit in its store.
#[derive(Args)]
pub struct Put {
    /// The file to replace or create.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
}

impl Put {
    pub fn run(self) -> Result<Output, Failure> {
        offline::put(&self.file, &mut std::io::stdin().lock())?;
        Ok(Output::default())
    }
}
