//! The command line: help, completions and manual pages all come from here.

use crate::program::following::Follow;
use crate::program::keep::{Compact, Prune, Verify};
use crate::program::listing::Log;
use crate::program::restore::Restore;
use crate::program::serve::Serve;
use crate::program::start::Ship;
use clap::{CommandFactory, Parser, Subcommand};
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::{Failure, Output};

/// Ship the commits of a store to an object store, and restore any point of them.
///
/// A PLACE is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///DIRECTORY or
/// ssh://HOST/DIRECTORY. Each store has a
/// place of its own. Credentials come from the environment and from the files of the cloud's own programs.
#[derive(Parser)]
#[command(name = env!("CARGO_PKG_NAME"), version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ship(Ship),
    Restore(Restore),
    Follow(Follow),
    Log(Log),
    Verify(Verify),
    Prune(Prune),
    Compact(Compact),
    Serve(Serve),
    Completions(Completions),
    Man(Man),
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install(env!("CARGO_PKG_NAME"), &cli.log, LevelFilter::WARN);
    match cli.command {
        Command::Ship(c) => c.run(),
        Command::Restore(c) => c.run(),
        Command::Follow(c) => c.run(),
        Command::Log(c) => c.run(),
        Command::Verify(c) => c.run(),
        Command::Prune(c) => c.run(),
        Command::Compact(c) => c.run(),
        Command::Serve(c) => c.run(),
        Command::Completions(c) => c.run(Cli::command()),
        Command::Man(c) => c.run(Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
