//! The results, errors and exit codes of programs.
//!
//! Results go to standard output, and errors to standard error after the program's name. Scripts can rely on the exit
//! code.

use crate::standard_streams;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// A command's result.
#[derive(Debug, Default)]
pub struct Output {
    /// The text for standard output.
    pub text: String,
    /// The process's exit code.
    pub code: u8,
}

impl Output {
    /// A text, with exit code 0.
    pub fn text(text: impl Into<String>) -> Output {
        Output { text: text.into(), code: 0 }
    }

    /// Sets another exit code.
    pub fn code(self, code: u8) -> Output {
        Output { code, ..self }
    }
}

/// The reason why a command could not do its work.
#[derive(Debug)]
pub struct Failure {
    /// The text for standard error.
    pub message: String,
    /// The process's exit code.
    pub code: u8,
}

impl Failure {
    /// A message, and exit code 1.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), code: 1 }
    }

    /// An error of the operating system outside of the library.
    pub fn io(action: &'static str, path: &Path, e: std::io::Error) -> Failure {
        Failure::new(untorn::Error::io(action, path, e).to_string())
    }

    /// Sets another exit code.
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

/// Advice for errors of which only the system's error number is known. The library's other errors have their own.
fn advice(e: &untorn::Error) -> Option<&'static str> {
    let untorn::Error::Io { source, .. } = e else { return None };
    match source.kind() {
        ErrorKind::NotFound => Some(
            "check the path: a store is a directory with `.untorn` in it, or a file with `<file>.untorn` beside it",
        ),
        ErrorKind::PermissionDenied if crate::user_namespace::is_root() => Some(
            "even root is refused: the file or its directory cannot be changed (`lsattr -d` shows this, `chattr -i -a` \
             allows changes), or the system denies it to this process (a container, a file system of another machine)",
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

/// Writes to standard output. False if the reader has closed the pipe (`| head`).
///
/// # Errors
/// Standard output was closed, or cannot be written.
pub fn write(bytes: &[u8]) -> Result<bool, Failure> {
    standard_streams::write_output(bytes).map_err(|e| unwritten("the result", e.into()))
}

pub(crate) fn unwritten(what: &str, e: std::io::Error) -> Failure {
    match standard_streams::output_was_closed() {
        true => Failure::new(format!("cannot write {what}: standard output is closed")),
        false => Failure::new(format!("cannot write {what}: {e}")),
    }
}

/// Prints the result of a program, and returns the process's exit code.
///
/// It is the result's exit code, but never 0 if a part of the result was lost. A message that cannot be written to
/// standard error does not change the exit code.
pub fn print(program: &str, result: Result<Output, Failure>) -> ExitCode {
    let printed = |output: Output| match write(output.text.as_bytes()) {
        Ok(_) => Ok(output.code),
        Err(failure) => Err(failure.code(output.code.max(1))),
    };
    let said = |code: u8| {
        standard_streams::lost_output().map_or(Ok(code), |e| Err(unwritten("the result", e).code(code.max(1))))
    };
    let done = result.and_then(printed).and_then(said);
    let code = match done {
        Ok(code) => code.into(),
        Err(failure) => {
            crate::tell!("{program}: {}", failure.message);
            #[cfg(feature = "pages")]
            crate::log::failed(&failure.message);
            failure.code.into()
        }
    };
    #[cfg(feature = "pages")]
    crate::log::finish();
    code
}
