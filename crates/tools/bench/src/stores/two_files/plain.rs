//! Plain files: no consistency, and the files of the protocols.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::peers::fill;
use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Makes the files, and opens them.
pub fn open_files(dir: &Path, shape: Shape) -> Result<Vec<File>> {
    let open = |n: usize| {
        let path = dir.join(n.to_string());
        fill(&path, shape.file_bytes)?;
        Ok(File::options().read(true).write(true).open(path)?)
    };
    (0..shape.files).map(open).collect()
}

/// Reads a whole file.
#[cfg(test)]
pub fn read_file(file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes in place: a crash may leave a part of a transaction.
pub struct NoConsistency {
    files: Vec<File>,
}

impl NoConsistency {
    pub fn open(dir: &Path, shape: Shape) -> Result<NoConsistency> {
        Ok(NoConsistency { files: open_files(dir, shape)? })
    }
}

impl Protocol for NoConsistency {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        changes.iter().try_for_each(|change| self.files[change.file].write_all_at(change.bytes, change.at))?;
        changes.iter().try_for_each(|change| self.files[change.file].sync_data())?;
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        read_file(&self.files[file])
    }
}
