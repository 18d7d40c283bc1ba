//! The `untorn` command: shows the condition of stores, repairs them, replaces files.

mod cli;
mod commands;
mod json;
mod progress_bar;
mod siblings;
mod sqlite_files;
mod standard_input;

use std::process::ExitCode;

fn main() -> ExitCode {
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run())
}
