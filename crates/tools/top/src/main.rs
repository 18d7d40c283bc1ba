//! `untorn-top`: the work of stores right now, on a screen, as JSON, or for Prometheus.

mod cli;
mod commits;
mod exposition;
mod interval;
mod metrics;
mod screen;
mod summary;
mod top;
mod watched;

use std::process::ExitCode;

fn main() -> ExitCode {
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run())
}
