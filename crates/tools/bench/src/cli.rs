//! The command line: help, completions and manual pages all come from here.

use crate::paper::command::PaperFigures;
use crate::run_benchmarks::Bench;
use clap::{CommandFactory, Parser, Subcommand};
use untorn_demo::Demo;
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
    bench: Option<Bench>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Demo(Demo),
    Paper(PaperFigures),
    Completions(Completions),
    Man(Man),
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install(env!("CARGO_BIN_NAME"), &cli.log, LevelFilter::WARN);
    match (cli.command, cli.bench) {
        (Some(Command::Demo(demo)), _) => demo.run(env!("CARGO_BIN_NAME")),
        // The tables are printed as they are finished.
        (Some(Command::Paper(paper)), _) => paper.run().map(|()| Output::default()).map_err(failure),
        (Some(Command::Completions(completions)), _) => completions.run(Cli::command()),
        (Some(Command::Man(man)), _) => man.run(Cli::command()),
        (None, Some(bench)) => bench.run().map(|()| Output::default()).map_err(failure),
        (None, None) => Err(Failure::new("nothing to measure; see --help").code(2)),
    }
}

/// An error with its causes.
pub fn failure(e: anyhow::Error) -> Failure {
    Failure::new(format!("{e:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
