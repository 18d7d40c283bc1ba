//! The pack: a file of the store with the contents of small files, each in an extent of it.
//!
//! The pack has staged changes only while a commit is being built, so that no commit includes those of another.
//! Uncommitted contents of a small file are in memory (`draft.rs`). If the store refuses a commit, all its changes of
//! the pack are undone.

use crate::small_files::pack_room::{BLOCK, Extent, Extents};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, File, Result};

/// The pack's name in the store.
pub const PACK: &str = "pack";

/// The pack.
pub(crate) struct Pack {
    file: Arc<File>,
    extents: Extents,
    /// Extents that the commit under construction has allocated, and has freed of files that stay.
    given: Vec<Extent>,
    taken_back: Vec<Extent>,
    /// Blocks that have lost their last extent, and must be made holes.
    emptied: BTreeSet<u64>,
    is_staged: bool,
    /// Number of allocations and frees: a reader without the tree's lock checks that it has not changed meanwhile.
    moves: u64,
}

impl Pack {
    /// Loads the pack, with the extents of all rows.
    pub fn load(file: File, used: Vec<Extent>) -> Result<Pack> {
        let damaged = |detail: &str| Error::Corrupt {
            path: PathBuf::from(PACK),
            detail: detail.to_owned(),
            advice: "Restore the store from a copy.",
        };
        let end = used.iter().map(|extent| extent.end()).max().unwrap_or(0);
        if file.len()? < end {
            return Err(damaged("it ends before the contents of files that should be in it"));
        }
        let extents = Extents::around(used).ok_or_else(|| damaged("contents of two files overlap"))?;
        let (given, taken_back, emptied) = Default::default();
        let (is_staged, moves) = (false, 0);
        Ok(Pack { file: Arc::new(file), extents, given, taken_back, emptied, is_staged, moves })
    }

    /// The file, for reading without the tree's lock; see [`moves`](Pack::moves).
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Changes whenever an extent may have moved.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// All bytes of an extent.
    pub fn read(&self, extent: Extent) -> Result<Vec<u8>> {
        let mut bytes = vec![0; extent.len()];
        self.file.read_exact_at(&mut bytes, extent.offset)?;
        Ok(bytes)
    }

    /// Stages contents for the commit under construction, in place of earlier ones. Bytes outside `changed` are the
    /// same as before.
    pub fn put(&mut self, before: Option<Extent>, bytes: &[u8], changed: Range<usize>) -> Result<Option<Extent>> {
        debug_assert!(
            changed.start <= changed.end && changed.end <= bytes.len(),
            "{changed:?} of {} bytes changed",
            bytes.len()
        );
        if let Some(extent) = before.and_then(|extent| extent.with_len(bytes.len())) {
            if !changed.is_empty() {
                self.is_staged = true;
                self.file.write_all_at(&bytes[changed.clone()], extent.offset + changed.start as u64)?;
            }
            return Ok(Some(extent));
        }
        if let Some(extent) = before {
            self.take_back(extent);
        }
        let Some(extent) = self.extents.give(bytes.len()) else { return Ok(None) };
        self.given.push(extent);
        self.moves += 1;
        self.is_staged = true;
        self.file.write_all_at(bytes, extent.offset)?;
        Ok(Some(extent))
    }

    /// Frees an extent with the commit under construction. The same commit may allocate it again, because a commit is
    /// atomic.
    pub fn take_back(&mut self, extent: Extent) {
        self.taken_back.push(extent);
        self.free(extent);
    }

    /// Frees the extent of an inode that is gone: every later commit removes the inode's row.
    pub fn free(&mut self, extent: Extent) {
        self.moves += 1;
        self.emptied.extend(self.extents.take_back(extent));
    }

    /// Stages blocks without extents as holes, which take no room in the file system below.
    pub fn stage_holes(&mut self) -> Result<()> {
        let end = self.file.len()?;
        for block in &self.emptied {
            debug_assert!(block.is_multiple_of(BLOCK), "a block at {block}");
            if self.extents.is_free(*block) && *block < end {
                self.is_staged = true;
                self.file.zero(*block, BLOCK.min(end - block))?;
            }
        }
        Ok(())
    }

    /// Whether exactly the extents of these rows are allocated; for tests.
    pub fn is_as(&self, rows: Vec<Extent>) -> bool {
        self.extents.are_around(rows)
    }

    /// The file, if the commit under construction changes it.
    pub fn staged(&self) -> Option<&File> {
        self.is_staged.then_some(&*self.file)
    }

    /// Notes that the commit was submitted.
    pub fn submitted(&mut self) {
        self.emptied.clear();
        self.begin();
    }

    /// Undoes the commit under construction, which the store refused.
    pub fn undo(&mut self) -> Result<()> {
        for extent in std::mem::take(&mut self.given) {
            self.extents.take_back(extent);
        }
        for extent in std::mem::take(&mut self.taken_back) {
            self.extents.give_again(extent);
        }
        self.moves += 1;
        let done = if self.is_staged { self.file.rollback() } else { Ok(()) };
        self.begin();
        done
    }

    fn begin(&mut self) {
        self.given.clear();
        self.taken_back.clear();
        self.is_staged = false;
    }
}
