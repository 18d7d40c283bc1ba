//! `in_machine DIR TEXTS SEED`, `in_machine live HEAP NAME`: the programs that `scripts/machine-cuts.sh` and
//! `scripts/nvm-tests.sh` run in a machine.

use std::process::ExitCode;

const PROGRAM: &str = "in_machine";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, third] = &arguments[..] else {
        eprintln!("{PROGRAM}: DIR TEXTS SEED, or live HEAP NAME");
        return ExitCode::from(2);
    };
    let ended = match first.as_str() {
        "live" => untorn_demo::change_until_the_end(second.as_ref(), third),
        dir => untorn_demo::update_until_the_end(dir.as_ref(), second.as_ref(), third.parse().unwrap_or(0)),
    };
    untorn_terminal::print(PROGRAM, ended.map(|never| match never {}))
}
