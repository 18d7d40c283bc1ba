//! Shadow copies: each file of a transaction is copied, changed and flushed, and a switch file makes the renames one step.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::peers::fill;
use anyhow::Result;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Shadow {
    dir: PathBuf,
    /// The number of the next switch file.
    next: AtomicU64,
}

impl Shadow {
    pub fn open(dir: &Path, shape: Shape) -> Result<Shadow> {
        (0..shape.files).try_for_each(|n| fill(&dir.join(n.to_string()), shape.file_bytes))?;
        Ok(Shadow { dir: dir.to_owned(), next: AtomicU64::new(0) })
    }

    fn path(&self, file: usize) -> PathBuf {
        self.dir.join(file.to_string())
    }

    fn copy_of(&self, file: usize) -> PathBuf {
        self.dir.join(format!("{file}.copy"))
    }

    fn flush_directory(&self) -> Result<()> {
        Ok(File::open(&self.dir)?.sync_all()?)
    }
}

impl Protocol for Shadow {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        for Change { file, at, bytes } in changes {
            let from = File::open(self.path(*file))?;
            let copy = File::create(self.copy_of(*file))?;
            if rustix::fs::ioctl_ficlone(&copy, &from).is_err() {
                std::io::copy(&mut &from, &mut &copy)?;
            }
            copy.write_all_at(bytes, *at)?;
            copy.sync_all()?;
        }
        // From here on, a recovery would finish the renames.
        let switch = self.dir.join(format!("switch-{}", self.next.fetch_add(1, Relaxed)));
        let mut names = File::create(&switch)?;
        for change in changes {
            writeln!(names, "{}", change.file)?;
        }
        names.sync_all()?;
        self.flush_directory()?;
        changes.iter().try_for_each(|change| std::fs::rename(self.copy_of(change.file), self.path(change.file)))?;
        self.flush_directory()?;
        Ok(std::fs::remove_file(&switch)?)
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path(file))?)
    }
}
