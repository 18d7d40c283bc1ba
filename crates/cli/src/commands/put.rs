//! `untorn put`.

use crate::standard_input;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use untorn::offline;
use untorn_terminal::{Failure, Output};

/// Replace a file's contents, whole or not at all: from standard input, or by what a command prints.
///
/// After a crash at any moment the file holds its old contents or all of the new ones; when this
/// returns, the new ones are durable. Mode, owner, ACL and extended attributes stay; where they
/// cannot, the file is left as it is. A missing file is created. A symbolic link is followed, and
/// stays. A file that a store manages is replaced by a commit in its store. Replacements of one file,
/// and those in one store, wait for each other.
///
/// A pipe does not tell whether the program before it succeeded: `failing | untorn put FILE` replaces
/// FILE by what came. `untorn put FILE -- COMMAND` runs the command, and replaces FILE only if the
/// command ends with exit status 0.
///
/// With --store, several files of one store are replaced, all or none.
#[derive(Args)]
#[command(override_usage = "untorn put [OPTIONS] <FILE> [-- <COMMAND>...]\n       \
                            untorn put --store <DIR> --set <NAME> <SOURCE> [--set <NAME> <SOURCE>]...")]
pub struct Put {
    /// The file to replace or create.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "store")]
    file: Option<PathBuf>,
    /// The directory of a store, which is made if there is none; with --set.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "set", conflicts_with = "file")]
    store: Option<PathBuf>,
    /// Replace the file NAME in the store by the contents of the file SOURCE.
    #[arg(long, num_args = 2, value_names = ["NAME", "SOURCE"], requires = "store")]
    set: Vec<PathBuf>,
    /// Replace FILE by nothing also when standard input looks as if it had been closed.
    #[arg(long)]
    allow_empty: bool,
    /// A command and its arguments, instead of standard input.
    #[arg(last = true, conflicts_with = "store")]
    command: Vec<OsString>,
}

impl Put {
    pub fn run(self) -> Result<Output, Failure> {
        if let Some(store) = &self.store {
            put_files(store, &self.set)?;
        } else if let Some(file) = &self.file {
            match self.command.split_first() {
                Some((program, arguments)) => offline::put(file, &mut Producer::start(program, arguments)?)?,
                None => offline::put(file, &mut standard_input::open(self.allow_empty)?)?,
            };
        }
        Ok(Output::default())
    }
}

fn put_files(store: &Path, pairs: &[PathBuf]) -> Result<(), Failure> {
    let mut files: Vec<(PathBuf, Box<dyn Read>)> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let source = std::fs::File::open(&pair[1]).map_err(|e| Failure::io("open", &pair[1], e))?;
        if files.iter().any(|(name, _)| *name == pair[0]) {
            return Err(Failure::new(format!("{} is given twice; nothing was changed", pair[0].display())));
        }
        files.push((pair[0].clone(), Box::new(source)));
    }
    offline::put_files(store, &mut files)?;
    Ok(())
}

/// The output of a command, which ends without an error only if the command succeeded.
struct Producer {
    name: String,
    child: Child,
    out: Option<ChildStdout>,
}

impl Producer {
    fn start(program: &OsString, arguments: &[OsString]) -> Result<Producer, Failure> {
        let mut command = Command::new(program);
        let mut child = command
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::new(format!("cannot execute {}: {e}; nothing was changed", program.display())))?;
        Ok(Producer { name: program.display().to_string(), out: child.stdout.take(), child })
    }
}

impl Read for Producer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(out) = &mut self.out else { return Ok(0) };
        let n = out.read(buf)?;
        if n > 0 || buf.is_empty() {
            return Ok(n);
        }
        self.out = None;
        match self.child.wait()? {
            status if status.success() => Ok(0),
            status => {
                Err(io::Error::other(format!("the command {} failed ({status}). Nothing was changed", self.name)))
            }
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // A command that goes on printing gets SIGPIPE.
        self.out = None;
        let _ = self.child.wait();
    }
}
