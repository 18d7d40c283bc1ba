//! `untorn checkpoint`.

use super::recover;
use crate::progress_bar::Progress;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use untorn::Recovered;
use untorn::offline::{self, RecoverOptions};
use untorn_terminal::{Failure, Output};

/// Apply and flush everything committed, so that data files are plain and whole.
///
/// A store that a program has open is busy: then only that program can make a checkpoint, and it makes one by itself
/// when it closes the store.
#[derive(Args)]
pub struct Checkpoint {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
}

impl Checkpoint {
    pub fn run(self) -> Result<Output, Failure> {
        let progress = Progress::new("recovering");
        let store = offline::open(&self.path, &RecoverOptions::default(), &|done, all| progress.show(done, all))?;
        store.checkpoint()?;
        let status = store.status();
        store.close()?;
        recover::refuse_quarantined(&status.quarantined)?;
        let recovered = status.recovered;
        Ok(Output::text(format!("checkpointed{}; data files are plain and whole\n", after_crash(&recovered))))
    }
}

fn after_crash(recovered: &Recovered) -> String {
    match recovered.commits {
        0 => String::new(),
        n => format!(", after recovering {}", untorn_terminal::table::count(n, "commit", "commits")),
    }
}
