//! `untorn-crashtest`: runs any program on a recording disk, and examines possible results of power cuts.
//!
//! The command itself ([`command`]) only watches and reports. Everything that could hang is done by a worker
//! ([`worker`]), another process of this program. The device that the worker records on is a third process.

mod cli;
mod command;
mod disk;
mod job;
mod results;
mod tested_program;
mod worker;

use std::process::ExitCode;
use untorn_crashlab::device::serve_if_asked;
use untorn_crashlab::device::watch::work_if_asked;

fn main() -> ExitCode {
    serve_if_asked();
    work_if_asked(worker::work);
    untorn_terminal::print(env!("CARGO_BIN_NAME"), cli::run())
}
