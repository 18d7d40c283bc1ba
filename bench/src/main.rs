//! `untorn-bench`: benchmarks of Untorn, each figure side by side with a peer that a careful program would
//! write with plain system calls, in the same run, in turns; and the demonstration.

mod append;
mod bench_run;
mod benchmarks;
mod child;
mod child_work;
mod cli;
mod commits;
mod flush_times;
mod fs;
mod harness;
mod heap_large;
mod kv;
mod live;
mod memory_use;
mod mounted;
mod mounted_programs;
mod msync;
mod msync_large;
mod oneshot;
mod peers;
mod plot;
mod reader_costs;
mod recovery_time;
mod scratch;
mod section;
mod section_text;
mod slow_disk;
mod statistics;
mod status_line;
mod syncv;
mod threads;
mod xsync;

use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match child_work::run_if_child() {
        Some(done) => done.map_err(cli::failure).map(|()| untorn_terminal::Output::default()),
        None => untorn_demo::run_if_child().unwrap_or_else(cli::run),
    };
    untorn_terminal::print(env!("CARGO_BIN_NAME"), result)
}
