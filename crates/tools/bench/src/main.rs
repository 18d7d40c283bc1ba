//! `untorn-bench`: benchmarks of Untorn, and the demonstration.
//!
//! Each figure is measured side by side with a peer, in turns in the same run: the code that a careful program would
//! write with plain system calls.

mod benchmarks;
mod child_work;
mod cli;
mod kv;
mod live;
mod maps;
mod measuring;
mod mounts;
mod paper;
mod plot;
mod preloaded;
mod report;
mod run_benchmarks;
mod shipped;
mod sqlite;
mod stores;
mod xsync;

use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match child_work::run_if_child() {
        Some(done) => done.map_err(cli::failure).map(|()| untorn_terminal::Output::default()),
        None => untorn_demo::run_if_child().unwrap_or_else(cli::run),
    };
    untorn_terminal::print(env!("CARGO_BIN_NAME"), result)
}
