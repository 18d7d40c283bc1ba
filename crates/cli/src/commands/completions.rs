//! `untorn completions`.

use crate::answer::{Answer, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a completion script for a shell.
///
/// For bash: `untorn completions bash > ~/.local/share/bash-completion/completions/untorn`
#[derive(Args)]
pub struct Completions {
    /// Which shell.
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<Answer, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::cli::Cli::command(), "untorn", &mut script);
        Ok(Answer::text(String::from_utf8(script).expect("generated from text")))
    }
}
