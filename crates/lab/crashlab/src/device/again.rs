//! Starts this program again as another part of the laboratory.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// The command line of a part: the server of the device, or a worker.
#[derive(Clone, Debug)]
pub struct Again {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Again {
    /// The running program with these arguments; its environment selects the part.
    pub fn with(arguments: &[&str]) -> io::Result<Again> {
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        Ok(Again { program: std::env::current_exe()?, arguments })
    }

    /// A test program that runs only the test of this path in it.
    pub fn test(path: &str) -> io::Result<Again> {
        Again::with(&["--exact", path, "--nocapture", "--test-threads=1"])
    }

    /// The command; the caller sets its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// The command as arguments of another program that executes it.
    pub(super) fn behind(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).arg(&self.program).args(&self.arguments);
        command
    }
}
