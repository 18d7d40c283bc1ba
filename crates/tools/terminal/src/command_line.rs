//! Parses the command line of a program.

use crate::{output, standard_streams};
use clap::Parser;
use clap::error::{Error, ErrorKind};

/// Parses the command line of this process.
///
/// A request for help and wrong usage end the process as `clap` does. If help cannot be written, the exit code says so.
pub fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|e| std::process::exit(answer(&e)))
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
