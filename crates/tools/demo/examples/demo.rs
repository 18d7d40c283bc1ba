//! The demonstration as a program, for `make demo`: it has far fewer dependencies than `untorn-bench demo`.

use clap::Parser;
use std::process::ExitCode;

const PROGRAM: &str = "demo";

#[derive(Parser)]
#[command(name = PROGRAM)]
struct Arguments {
    #[command(flatten)]
    demo: untorn_demo::Demo,
}

fn main() -> ExitCode {
    if let Some(result) = untorn_demo::run_if_child() {
        return untorn_terminal::print(PROGRAM, result);
    }
    untorn_terminal::print(PROGRAM, Arguments::parse().demo.run(PROGRAM))
}
