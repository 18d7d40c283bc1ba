//! Copies a file of a snapshot to a file of the file system.

use super::SnapshotFile;
use crate::data_files::apply::apply_overlay;
use crate::error::{Context, Result};
use untorn_os::{AlignedBuf, BLOCK_BYTES, File, read_full_at, write_all_at};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

impl SnapshotFile {
    /// Copies the contents to an empty file: blocks are shared where the file system supports that, and ranges that
    /// read as zeros stay holes. Returns the length. `progress` gets the bytes done.
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::Error::SnapshotExpired): the other file may hold anything, as after any error.
    pub fn copy_to(&self, to: &dyn File, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        let size = self.len_now()?;
        to.set_len(size).context("make a copy of", &self.path)?;
        let mut piece = AlignedBuf::zeroed_up_to(COPY_BYTES.min(size as usize).max(1));
        if let Some((data, inode)) = &self.data {
            let there = data.meta().context("look at", &self.path)?.size.min(size);
            let block = BLOCK_BYTES as u64;
            let whole = there - there % block;
            let cloned = if whole > 0 && to.clone_range(&**data, 0, 0, whole).is_ok() { whole } else { 0 };
            let mut from = cloned;
            while let Some(range) = data.next_contents(from, there).context("look at", &self.path)? {
                from = range.start;
                while from < range.end {
                    let n = piece.len().min((range.end - from) as usize);
                    let n = read_full_at(&**data, &mut piece[..n], from).context("read", &self.path)?;
                    if n == 0 {
                        break;
                    }
                    if piece[..n].iter().any(|byte| *byte != 0) {
                        write_all_at(to, &piece[..n], from).context("write a copy of", &self.path)?;
                    }
                    from += n as u64;
                    progress(from);
                }
                from = range.end;
            }
            // Some of the copied bytes may be newer than the commit: its own bytes, which were kept, replace them.
            let kept = self.snapshot.index()?.kept_in(*inode, &(0..size));
            for mut range in kept {
                while range.start < range.end {
                    let n = piece.len().min((range.end - range.start) as usize);
                    self.undo(*inode, &mut piece[..n], range.start)?;
                    write_all_at(to, &piece[..n], range.start).context("write a copy of", &self.path)?;
                    range.start += n as u64;
                }
            }
        }
        let applied = apply_overlay(to, self.overlay(), &self.path, Some(BLOCK_BYTES as u64));
        self.snapshot.check()?;
        applied?;
        to.set_len(size).context("make a copy of", &self.path)?;
        progress(size);
        Ok(size)
    }
}
