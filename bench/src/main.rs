//! The benchmarks by themselves; `untorn bench` is the same.

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "untorn-bench", version)]
struct Arguments {
    #[command(flatten)]
    bench: untorn_bench::Bench,
}

fn main() -> ExitCode {
    Arguments::parse().bench.run()
}
