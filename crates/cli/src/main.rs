//! The `untorn` command: look at stores, repair them, replace files, see it work.

mod answer;
mod cli;
mod commands;
mod demo;
mod progress;
mod signals;
mod table;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Cli::parse().command.run()
}
