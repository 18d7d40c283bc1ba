//! Subcommands that print files for an installation: completion scripts and manual pages.

use crate::output::{Failure, Output};
use clap::{Args, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;

/// Print a completion script for a shell.
///
/// For bash, put it into a file named after the program in `~/.local/share/bash-completion/completions`.
#[derive(Args)]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    /// The script for this command line.
    pub fn run(self, mut command: clap::Command) -> Result<Output, Failure> {
        let (mut script, name) = (Vec::new(), command.get_name().to_owned());
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        Ok(Output::text(String::from_utf8(script).expect("generated from text")))
    }
}

/// Write the manual pages, of this program and of each of its subcommands, into a directory.
#[derive(Args)]
#[command(hide = true)]
pub struct Man {
    /// An existing directory.
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

impl Man {
    /// Writes the pages of this command line.
    pub fn run(self, command: clap::Command) -> Result<Output, Failure> {
        clap_mangen::generate_to(command, &self.dir).map_err(|e| Failure::io("write manual pages to", &self.dir, e))?;
        Ok(Output::default())
    }
}
