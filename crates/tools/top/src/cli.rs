//! The command line: help, completions and manual pages all come from here.

use crate::metrics::Metrics;
use crate::top::Top;
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::{Failure, Output};

/// Show the work of stores right now: rates, times, journal, memory, readers.
///
/// `untorn top` and `untorn metrics` run this program. It may watch every store that it may read
/// (`untorn readers`), and changes nothing. An owner measures only while a program watches.
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
    Top(Top),
    Metrics(Metrics),
    Completions(Completions),
    Man(Man),
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install(env!("CARGO_PKG_NAME"), &cli.log, LevelFilter::WARN);
    raise_descriptors();
    match cli.command {
        Command::Top(c) => c.run(),
        Command::Metrics(c) => c.run(),
        Command::Completions(c) => c.run(Cli::command()),
        Command::Man(c) => c.run(Cli::command()),
    }
}

/// Raises the limit of open files, because each store needs several descriptors.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the stores beyond the limit are shown with that error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
