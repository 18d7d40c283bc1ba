//! Results go to standard output, errors to standard error after the program's name, and the exit code
//! is one that scripts can rely on.

use crate::standard_streams;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// A command's result.
#[derive(Debug, Default)]
pub struct Output {
    /// For standard output.
    pub text: String,
    /// The process's exit code.
    pub code: u8,
}

impl Output {
    /// A text, and success.
    pub fn text(text: impl Into<String>) -> Output {
        Output { text: text.into(), code: 0 }
    }

    /// With another exit code.
    pub fn code(self, code: u8) -> Output {
        Output { code, ..self }
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub struct Failure {
    /// For standard error.
    pub message: String,
    /// The process's exit code.
    pub code: u8,
}

impl Failure {
    /// A message, and exit code 1.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code: 1 }
    }

    /// An operating-system error outside the library.
    pub fn io(action: &'static str, path: &Path, e: std::io::Error) -> Failure {
        Failure::new(untorn::Error::io(action, path, e).to_string())
    }

    /// With another exit code.
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
        ErrorKind::PermissionDenied if crate::user_namespace::is_root() => Some(
            "not even root may: the file or its directory cannot be changed (`lsattr -d` shows it, `chattr -i -a` ends it), \
             or the system denies it to this process (a container, a file system of another machine)",
        ),
        ErrorKind::PermissionDenied => Some("run this as the owner of the data, or as root"),
        ErrorKind::CrossesDevices | ErrorKind::ResourceBusy => Some(
            "it may be a mount point, and a store lies on one file system: unmount what is mounted there, or move the \
             store's files together",
        ),
        ErrorKind::ReadOnlyFilesystem => Some("remount the file system for writing, or copy the data elsewhere"),
        _ => None,
    }
}

/// Writes to standard output. False: whoever reads it has seen enough (`| head`).
///
/// # Errors
/// Standard output was closed, or takes nothing.
pub fn write(bytes: &[u8]) -> Result<bool, Failure> {
    standard_streams::write_output(bytes).map_err(|e| unwritten("the result", e.into()))
}

pub(crate) fn unwritten(what: &str, e: std::io::Error) -> Failure {
    match standard_streams::output_was_closed() {
        true => Failure::new(format!("cannot write {what}: standard output is closed")),
        false => Failure::new(format!("cannot write {what}: {e}")),
    }
}

/// Prints the result of a program, and turns it into the process's exit code: the result's own, but never 0 if a part of it
/// was lost. A message that standard error does not take changes no exit code.
pub fn print(program: &str, result: Result<Output, Failure>) -> ExitCode {
    let printed = |output: Output| match write(output.text.as_bytes()) {
        Ok(_) => Ok(output.code),
        Err(failure) => Err(failure.code(output.code.max(1))),
    };
    let said = |code: u8| {
        standard_streams::lost_output().map_or(Ok(code), |e| Err(unwritten("the result", e).code(code.max(1))))
    };
    match result.and_then(printed).and_then(said) {
        Ok(code) => code.into(),
        Err(failure) => {
            crate::tell!("{program}: {}", failure.message);
            failure.code.into()
        }
    }
}
