//! This program, started again as another part of the laboratory.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// How to start a part: the server of the device, or a worker.
#[derive(Clone, Debug)]
pub struct Again {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Again {
    /// The running program with these arguments; what it finds in its environment says which part it is.
    pub fn with(arguments: &[&str]) -> io::Result<Again> {
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        Ok(Again { program: std::env::current_exe()?, arguments })
    }

    /// A test program, to run only the test of this name.
    pub fn test(name: &str) -> io::Result<Again> {
        Again::with(&["--exact", name, "--nocapture", "--test-threads=1"])
    }

    /// The command, to be given its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// The command as arguments of another program, which executes it.
    pub(super) fn behind(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).arg(&self.program).args(&self.arguments);
        command
    }
}
