//! `untorn-xsync`: synchronous durability at asynchronous speed, for unmodified programs.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run())
}
