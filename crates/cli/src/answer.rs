//! What a command has to say, and how it is said: results to standard output, errors to standard
//! error as `untorn: …`, and an exit code that scripts can rely on.

use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// A command's result.
#[derive(Default)]
pub struct Answer {
    pub text: String,
    pub code: u8,
}

impl Answer {
    pub fn text(text: impl Into<String>) -> Answer {
        Answer { text: text.into(), code: 0 }
    }

    pub fn json(value: &impl Serialize) -> Result<Answer, Failure> {
        let text = serde_json::to_string_pretty(value).map_err(|e| Failure::new(format!("cannot write JSON: {e}")))?;
        Ok(Answer::text(text + "\n"))
    }

    pub fn code(self, code: u8) -> Answer {
        Answer { code, ..self }
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub code: u8,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code: 1 }
    }

    /// An operating-system error outside the library.
    pub fn io(action: &'static str, path: &Path, e: std::io::Error) -> Failure {
        Failure::new(untorn::Error::io(action, path, e).to_string())
    }

    pub fn code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl From<untorn::Error> for Failure {
    fn from(e: untorn::Error) -> Failure {
        Failure::new(match advice(&e) {
            Some(advice) => format!("{e}; {advice}"),
            None => e.to_string(),
        })
    }
}

/// The library's errors say what to do, except where only the system's error number is known.
fn advice(e: &untorn::Error) -> Option<&'static str> {
    let untorn::Error::Io { source, .. } = e else { return None };
    match source.kind() {
        ErrorKind::NotFound => Some(
            "check the path: a store is a directory with `.untorn` in it, or a file with `<file>.untorn` beside it",
        ),
        ErrorKind::PermissionDenied => Some("run this as the owner of the data, or as root"),
        ErrorKind::ReadOnlyFilesystem => Some("remount the file system for writing, or copy the data elsewhere"),
        _ => None,
    }
}

/// Prints, and turns the result into the process's exit code.
pub fn give(result: Result<Answer, Failure>) -> ExitCode {
    match result {
        Ok(answer) => {
            let mut out = std::io::stdout().lock();
            match out.write_all(answer.text.as_bytes()).and_then(|()| out.flush()) {
                // A reader that has seen enough (`| head`) is no failure.
                Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                    eprintln!("untorn: cannot write the result: {e}");
                    ExitCode::FAILURE
                }
                _ => answer.code.into(),
            }
        }
        Err(failure) => {
            eprintln!("untorn: {}", failure.message);
            failure.code.into()
        }
    }
}
