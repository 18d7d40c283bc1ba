//! The pieces of a held snapshot of a store, which go into the bucket.

use crate::error::{Error, Result};
use crate::interface::{PIECE_BYTES_MAX, Piece, Pieces};
use crate::store::entry::{About, is_zero};
use crate::store::paths::is_own;
use bytes::Bytes;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn::reader::{Snapshot, SnapshotFile};

/// The pieces of a held snapshot, directory by directory.
pub struct SnapshotPieces {
    snapshot: Snapshot,
    path: PathBuf,
    /// Paths that come next, the last one first.
    ahead: Vec<PathBuf>,
    /// The file whose contents come, its length, and the next offset.
    file: Option<(SnapshotFile, u64, u64)>,
}

fn failed(e: untorn::Error) -> Error {
    Error::store(e)
}

impl SnapshotPieces {
    /// The pieces of a snapshot of the store at this path.
    pub fn new(snapshot: Snapshot, path: PathBuf) -> SnapshotPieces {
        SnapshotPieces { snapshot, path, ahead: vec![PathBuf::new()], file: None }
    }

    /// Adds the names in a directory. False if it is not shipped.
    fn add_names(&mut self, dir: &Path) -> Result<bool> {
        let names = match self.snapshot.list(dir) {
            Ok(names) => names,
            Err(e) if is_lost_and_found(dir, &e) => return Ok(false),
            Err(e) => return Err(failed(e)),
        };
        let names = names.into_iter().rev().filter(|name| !is_own(name.as_bytes()));
        self.ahead.extend(names.map(|name| dir.join(name)));
        Ok(true)
    }

    /// The next block of the file with contents.
    fn block(&mut self) -> Result<Option<Piece>> {
        while let Some((file, len, offset)) = &mut self.file {
            if *offset >= *len {
                self.file = None;
                break;
            }
            let at = *offset;
            let mut block = vec![0; (*len - at).min(PIECE_BYTES_MAX as u64) as usize];
            let n = file.read_at(&mut block, at).map_err(failed)?;
            if n < block.len() {
                return Err(Error::store("a file of a snapshot became shorter: ship again"));
            }
            *offset += block.len() as u64;
            if !is_zero(&block) {
                return Ok(Some(About::Contents(at).piece(block.into())));
            }
        }
        Ok(None)
    }

    fn is_shipped(&self, path: &Path) -> bool {
        let found = self.path.join(path).symlink_metadata();
        found.map_or(true, |found| found.is_file() || found.is_dir())
    }
}

/// Whether a directory that cannot be listed is the one that `mkfs.ext4` makes, which only root can read.
fn is_lost_and_found(dir: &Path, e: &untorn::Error) -> bool {
    let is_denied = matches!(e, untorn::Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied);
    is_denied && dir == Path::new("lost+found")
}

impl Pieces for SnapshotPieces {
    fn next_piece(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.block()? {
                return Ok(Some(piece));
            }
            let Some(path) = self.ahead.pop() else {
                self.snapshot.check().map_err(failed)?;
                return Ok(None);
            };
            if path.as_os_str().is_empty() {
                self.add_names(&path)?;
                continue;
            }
            let is_standalone = self.path.is_file();
            if !is_standalone && !self.is_shipped(&path) {
                // Links, devices, sockets: no store changes them.
                continue;
            }
            let about = self.snapshot.metadata(&path).map_err(failed)?;
            if about.is_directory {
                if !self.add_names(&path)? {
                    continue;
                }
                return Ok(Some(About::Directory(path, about.mode & 0o7777).piece(Bytes::new())));
            }
            self.file = Some((self.snapshot.open(&path).map_err(failed)?, about.len, 0));
            let mode = about.mode & 0o7777;
            let of_file = if is_standalone { About::Standalone } else { About::File };
            return Ok(Some(of_file(path, mode, about.len).piece(Bytes::new())));
        }
    }
}
