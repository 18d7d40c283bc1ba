//! `untorn cat`.

use crate::siblings;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use untorn::reader::Snapshot;
use untorn::{Error, Reader};
use untorn_terminal::{Failure, Output, write};

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Print files of a store as of its last durable commit, while a program may have the store open.
///
/// All files of one store are of one commit, at any speed of the output: the owner keeps the data of the
/// commit, up to a limit (`StoreOptions::readers_space`), and does not wait. Changes nothing, and needs no right to
/// write. The system's `cat` prints the state of the last checkpoint, or a mixture while a checkpoint runs.
///
/// For the store of a mount, prints the mount's files (the program untorn-mount): PATHS are the store's path, followed by
/// the path from the mount point.
#[derive(Args)]
pub struct Cat {
    /// Files in a store, or files with their own stores.
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    paths: Vec<PathBuf>,
}

/// A file to be printed.
struct Source {
    path: PathBuf,
    name: PathBuf,
    /// The index of the store's snapshot.
    store: usize,
}

/// A snapshot of one store, and the bytes that were printed of it.
struct Printed {
    store: PathBuf,
    snapshot: Snapshot,
    bytes: u64,
}

impl Cat {
    pub fn run(self) -> Result<Output, Failure> {
        match self.paths.iter().filter(|path| siblings::is_in_tree(path)).count() {
            0 => {}
            n if n == self.paths.len() => return Err(siblings::Other::Cat.execute()),
            _ => {
                return Err(Failure::new(
                    "some of these files are in the store of a mount, and others are not; print them with two commands",
                ));
            }
        }
        let mut stores: Vec<Printed> = Vec::new();
        let mut sources = Vec::new();
        for path in self.paths {
            sources.push(locate(path, &mut stores)?);
        }
        for source in &sources {
            if !stores[source.store].print(source)? {
                break;
            }
        }
        Ok(Output::default())
    }
}

/// Finds the store of a file, and takes a snapshot of it unless there is one already.
fn locate(path: PathBuf, stores: &mut Vec<Printed>) -> Result<Source, Failure> {
    let (reader, name) = Reader::open_containing(&path)?;
    if name.as_os_str().is_empty() {
        let path = path.display();
        return Err(Failure::new(format!("{path} is a store; name a file in it (`untorn ls {path}` lists them)")));
    }
    let known = stores.iter().position(|known| known.store == reader.path());
    let store = match known {
        Some(known) => known,
        None => {
            stores.push(Printed { store: reader.path().to_owned(), snapshot: reader.snapshot()?, bytes: 0 });
            stores.len() - 1
        }
    };
    Ok(Source { path, name, store })
}

impl Printed {
    /// Prints a file. False if the reader of the output has closed it.
    fn print(&mut self, source: &Source) -> Result<bool, Failure> {
        let file = self.snapshot.open(&source.name).map_err(|e| self.failure(&source.path, e))?;
        let len = file.len().map_err(|e| self.failure(&source.path, e))?;
        let (mut piece, mut at) = (vec![0; PIECE_BYTES.min(len as usize + 1)], 0);
        loop {
            let n = file.read_at(&mut piece, at).map_err(|e| self.failure(&source.path, e))?;
            if n == 0 {
                return Ok(true);
            }
            if !write(&piece[..n])? {
                return Ok(false);
            }
            at += n as u64;
            self.bytes += n as u64;
        }
    }

    /// The failure of a read, with the number of bytes printed before it.
    fn failure(&self, path: &Path, e: Error) -> Failure {
        if !matches!(e, Error::SnapshotExpired { .. } | Error::SnapshotEnded { .. }) {
            return e.into();
        }
        let (path, lsn) = (path.display(), self.snapshot.lsn());
        let printed = match self.bytes {
            0 => "nothing was printed".to_owned(),
            1 => "1 byte was printed, of that commit".to_owned(),
            n => format!("{n} bytes were printed, all of that commit"),
        };
        Failure::new(match e {
            Error::SnapshotEnded { .. } => format!(
                "{path}: the snapshot of commit {lsn} has ended, because the store was ejected, repaired or replaced; \
                 {printed}. Run the command again"
            ),
            _ => format!(
                "{path}: commit {lsn} was given up, because the program that has the store open keeps no more for \
                 readers; {printed}. Run the command again with a faster consumer, or copy the store with `untorn cp`; \
                 that program can keep more (`StoreOptions::readers_space`)"
            ),
        })
    }
}
