//! `untorn-ship`: ships the commits of a store to an object store, restores them, and follows them.

use std::process::ExitCode;
use untorn_ship::program::cli;

fn main() -> ExitCode {
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run())
}
