//! `untorn man`.

use crate::answer::{Answer, Failure};
use clap::{Args, CommandFactory, ValueHint};
use std::path::PathBuf;

/// Write the manual pages, of this command and of each of its subcommands, into a directory.
#[derive(Args)]
#[command(hide = true)]
pub struct Man {
    /// An existing directory.
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

impl Man {
    pub fn run(self) -> Result<Answer, Failure> {
        clap_mangen::generate_to(crate::cli::Cli::command(), &self.dir)
            .map_err(|e| Failure::io("write manual pages to", &self.dir, e))?;
        Ok(Answer::default())
    }
}
