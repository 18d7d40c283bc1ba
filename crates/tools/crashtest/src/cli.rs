//! The command line: help, completions and manual pages all come from here.

use crate::command::Crashtest;
use crate::disk::Disk;
use clap::{CommandFactory, Parser, Subcommand};
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::{Failure, Output};

#[derive(Parser)]
#[command(
    name = env!("CARGO_BIN_NAME"),
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    crashtest: Option<Crashtest>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Disk(Disk),
    Completions(Completions),
    Man(Man),
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install(env!("CARGO_BIN_NAME"), &cli.log, LevelFilter::WARN);
    match (cli.command, cli.crashtest) {
        (Some(Command::Disk(disk)), _) => disk.run(),
        (Some(Command::Completions(completions)), _) => completions.run(Cli::command()),
        (Some(Command::Man(man)), _) => man.run(Cli::command()),
        (None, Some(crashtest)) => crashtest.run(),
        (None, None) => Err(Failure::new("nothing to do; see --help").code(2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
