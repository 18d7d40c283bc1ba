//! `untorn put`.

use crate::standard_input::{self, Contents};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use untorn::offline;
use untorn_terminal::{Failure, Output};

/// Replace a file's contents, whole or not at all: from standard input, or by the output of a command.
///
/// After a crash at any moment the file holds its old contents or all of the new ones. When the command returns, the
/// new contents are durable. Mode, owner, ACL, extended attributes and flags (`lsattr`) stay. If they cannot stay,
/// the file is left as it is, before any input is read or any command runs. A missing file is created. A symbolic
/// link is followed, and stays. A file that a store manages is replaced by a commit in its store. Replacements of one
/// file, and those in one store, wait for each other.
///
/// A pipe does not show whether the program before it succeeded: `failing | untorn put FILE` replaces FILE by the
/// bytes that arrived, if there were any. `untorn put FILE -- COMMAND` runs the command, and replaces FILE only if
/// the command ends with exit status 0.
///
/// With --store, several files of one store are replaced, all or none.
#[derive(Args)]
#[command(override_usage = "untorn put [OPTIONS] <FILE> [-- <COMMAND>...]\n       \
                            untorn put --store <DIR> --set <NAME> <SOURCE> [--set <NAME> <SOURCE>]...")]
pub struct Put {
    /// The file to replace or create.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "store")]
    file: Option<PathBuf>,
    /// The directory of a store, which is created if it is missing; with --set.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "set", conflicts_with = "file")]
    store: Option<PathBuf>,
    /// Replace the file NAME in the store by the contents of the file SOURCE.
    #[arg(long, num_args = 2, value_names = ["NAME", "SOURCE"], requires = "store")]
    set: Vec<PathBuf>,
    /// Allow empty new contents, even if a pipe ends without a byte, or standard input was closed.
    #[arg(long)]
    allow_empty: bool,
    /// A command and its arguments, whose output is used instead of standard input.
    #[arg(last = true, conflicts_with = "store")]
    command: Vec<OsString>,
}

impl Put {
    pub fn run(self) -> Result<Output, Failure> {
        if let Some(store) = &self.store {
            put_files(store, &self.set, self.allow_empty)?;
        } else if let Some(file) = &self.file {
            match self.command.split_first() {
                Some((program, arguments)) => offline::put(file, &mut Producer::of(program, arguments))?,
                None => offline::put(file, &mut standard_input::open(self.allow_empty)?)?,
            };
        }
        Ok(Output::default())
    }
}

fn put_files(store: &Path, pairs: &[PathBuf], allow_empty: bool) -> Result<(), Failure> {
    let mut files: Vec<(PathBuf, Box<dyn Read>)> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let source = std::fs::File::open(&pair[1]).map_err(|e| Failure::io("open", &pair[1], e))?;
        if files.iter().any(|(name, _)| *name == pair[0]) {
            return Err(Failure::new(format!("{} is given twice; nothing was changed", pair[0].display())));
        }
        let contents = Contents::of(source, pair[1].display().to_string(), allow_empty);
        files.push((pair[0].clone(), Box::new(contents)));
    }
    offline::put_files(store, &mut files)?;
    Ok(())
}

/// The output of a command. It starts the command at the first read, and ends with an error if the command failed.
struct Producer {
    name: String,
    command: Command,
    started: Option<(Child, Option<ChildStdout>)>,
}

impl Producer {
    fn of(program: &OsString, arguments: &[OsString]) -> Producer {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped());
        Producer { name: program.display().to_string(), command, started: None }
    }

    fn start(&mut self) -> io::Result<(Child, Option<ChildStdout>)> {
        let mut child = self
            .command
            .spawn()
            .map_err(|e| io::Error::other(format!("cannot execute {}: {e}; nothing was changed", self.name)))?;
        let out = child.stdout.take();
        Ok((child, out))
    }
}

impl Read for Producer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.started.is_none() {
            self.started = Some(self.start()?);
        }
        let Some((child, Some(out))) = &mut self.started else { return Ok(0) };
        let n = out.read(buf)?;
        if n > 0 || buf.is_empty() {
            return Ok(n);
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(0);
        }
        Err(io::Error::other(format!("the command {} failed ({status}). Nothing was changed", self.name)))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some((mut child, out)) = self.started.take() {
            // A command that goes on printing gets SIGPIPE.
            drop(out);
            let _ = child.wait();
        }
    }
}
