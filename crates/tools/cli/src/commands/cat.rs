//! `untorn cat`.

use crate::siblings;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use untorn::reader::Snapshot;
use untorn::{Error, Reader};
use untorn_terminal::table::bytes;
use untorn_terminal::{Failure, Output, write};

/// Size up to which a file is read before anything is printed, so that a checkpoint of its owner has no effect.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a larger file that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Print a file of a store as of its last durable commit, while a program may have the store open.
///
/// Changes nothing, and needs no right to write. While a file of more than 64 MiB is printed, a checkpoint waits, as
/// for any reader that holds a commit (`StoreOptions::leases`). The system's `cat` prints the state of the last
/// checkpoint, or a mixture while a checkpoint runs.
#[derive(Args)]
pub struct Cat {
    /// A file in a store, or a file with its own store.
    #[arg(value_hint = ValueHint::FilePath)]
    path: PathBuf,
}

impl Cat {
    pub fn run(self) -> Result<Output, Failure> {
        if let Some(said) = siblings::of_a_mount(&self.path) {
            return Err(Failure::new(said));
        }
        let (reader, name) = Reader::open_containing(&self.path)?;
        if name.as_os_str().is_empty() {
            let path = self.path.display();
            return Err(Failure::new(format!("{path} is a store; name a file in it (`untorn ls {path}` lists them)")));
        }
        let small = reader.with_snapshot(|snapshot| whole(snapshot, &name))?;
        match small {
            Some(contents) => write(&contents).map(drop)?,
            None => self.pieces(&reader, &name)?,
        }
        Ok(Output::default())
    }

    /// Prints a large file in pieces, all of them from one snapshot.
    fn pieces(&self, reader: &Reader, name: &Path) -> Result<(), Failure> {
        // A snapshot with a lease, where possible, so that no checkpoint makes it expire.
        let file = reader.held_snapshot().or_else(|_| reader.snapshot())?.open(name)?;
        let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
        loop {
            let n = file.read_at(&mut piece, at).map_err(|e| match e {
                Error::SnapshotExpired { .. } if at > 0 => Failure::new(format!(
                    "{}: a checkpoint overtook this command after {}; the printed part is of one commit, but the rest \
                     of the file is missing. Run the command again, or copy the store with `untorn cp`",
                    self.path.display(),
                    bytes(at)
                )),
                e => e.into(),
            })?;
            if n == 0 || !write(&piece[..n])? {
                return Ok(());
            }
            at += n as u64;
        }
    }
}

/// The contents of a file. None if it is large.
fn whole(snapshot: &Snapshot, name: &Path) -> untorn::Result<Option<Vec<u8>>> {
    let file = snapshot.open(name)?;
    let len = file.len()?;
    if len > WHOLE_BYTES_MAX {
        return Ok(None);
    }
    let mut contents = vec![0; len as usize];
    let n = file.read_at(&mut contents, 0)?;
    contents.truncate(n);
    Ok(Some(contents))
}
