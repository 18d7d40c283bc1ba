//! `in_machine DIR TEXTS SEED`: the program that `scripts/machine-cuts.sh` runs in a machine.

use std::process::ExitCode;

const PROGRAM: &str = "in_machine";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, texts, seed] = &arguments[..] else {
        eprintln!("{PROGRAM}: DIR TEXTS SEED");
        return ExitCode::from(2);
    };
    let seed = seed.parse().unwrap_or(0);
    let ended = untorn_demo::update_until_the_end(dir.as_ref(), texts.as_ref(), seed);
    untorn_terminal::print(PROGRAM, ended.map(|never| match never {}))
}
