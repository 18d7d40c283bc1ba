//! Parses the command line of a program.

use crate::log::leading_options;
use crate::{output, standard_streams};
use clap::error::{Error, ErrorKind};
use clap::{Command, Parser};
use std::ffi::OsString;

/// Parses the command line of this process.
///
/// Options of the log may stand before a subcommand, too. A request for help and wrong usage end the process as `clap`
/// does. If help cannot be written, the exit code says so.
pub fn parse<C: Parser>() -> C {
    let arguments = subcommand_first(&C::command(), std::env::args_os().collect());
    C::try_parse_from(arguments).unwrap_or_else(|e| std::process::exit(answer(&e)))
}

/// Puts a subcommand before the options of the log. Otherwise `clap` would take it for an argument of a program that
/// needs no subcommand.
fn subcommand_first(command: &Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let at = 1 + leading_options(arguments.get(1..).unwrap_or_default());
    if arguments.get(at).is_some_and(|name| command.find_subcommand(name).is_some()) {
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

fn answer(e: &Error) -> i32 {
    let text = e.render().to_string();
    if e.use_stderr() {
        crate::tell!("{text}");
        return e.exit_code();
    }
    match standard_streams::write_output(text.as_bytes()) {
        Ok(_) => e.exit_code(),
        Err(why) => {
            let what = if e.kind() == ErrorKind::DisplayVersion { "the version" } else { "the help" };
            crate::tell!("{}", output::unwritten(what, why.into()).message);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subcommand_is_found_behind_options_of_the_log() {
        let command = Command::new("untorn-mount").subcommand(Command::new("status"));
        let first = |text: &str| {
            let arguments = text.split(' ').map(OsString::from).collect();
            subcommand_first(&command, arguments).join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(first("untorn-mount -v --log-format json status at"), "untorn-mount status -v --log-format json at");
        for same in ["untorn-mount", "untorn-mount status -v", "untorn-mount -v store at", "untorn-mount -v"] {
            assert_eq!(first(same), same);
        }
    }
}
