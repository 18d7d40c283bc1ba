//! `untorn-mount`: serves a store as a file system, for unmodified programs.

use std::process::ExitCode;
use untorn_mount::cli;
use untorn_mount::mounts::mounted_store;

fn main() -> ExitCode {
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run(mounted_store::open))
}
