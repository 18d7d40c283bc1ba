//! Commits as a follower gets them, with the bytes that they wrote.

use crate::engine::paths::error_paths::error_in_store;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use untorn_journal::commits::overlay::{NO_END, Source};
use untorn_journal::commits::record::{Op, Record};
use untorn_journal::commits::spill::verify;
use untorn_journal::{Error, Result};

/// An item of [`Follow`](crate::reader::Follow).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Followed {
    /// A commit.
    Commit(Commit),
    /// Some commits in this range were applied by a checkpoint, and their place in the journal was reused, before they
    /// were read: their changes are in the files, but cannot be listed.
    Missed {
        /// The first commit that may be missing.
        first_lsn: u64,
        /// The last one.
        last_lsn: u64,
    },
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its LSN. LSNs grow; some belong to no commit.
    pub lsn: u64,
    /// Its changes; those of one file are in order.
    pub changes: Vec<Change>,
}

/// A change of one file or directory. Two are equal if path and kind are equal; the bytes are not compared.
///
/// A change keeps the bytes of its commit in memory. Those of a large commit are in a file of the journal, which it
/// keeps open, and which takes disk space until the change is dropped.
#[derive(Clone)]
pub struct Change {
    /// The name before this commit.
    pub path: PathBuf,
    /// The change itself.
    pub what: What,
    contents: Option<Arc<Contents>>,
}

/// The bytes of a range, as a commit wrote them.
struct Contents {
    range: Range<u64>,
    source: Source,
    /// Set once the checksum of bytes outside of memory was verified.
    checked: OnceLock<()>,
    /// Path of the store, for messages.
    store: Arc<Path>,
}

/// The kind of a change of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// Bytes were written; [`Change::read_at`] reads them.
    Written(Range<u64>),
    /// Bytes became zeros.
    Zeroed(Range<u64>),
    /// The file has this length now.
    Resized(u64),
    /// A new file.
    Created,
    /// The file has another name now.
    Renamed(PathBuf),
    /// The file is gone.
    Removed,
    /// Other permission bits.
    Mode(u32),
    /// A new directory.
    DirectoryMade,
    /// The directory is gone.
    DirectoryRemoved,
}

impl Commit {
    /// Converts the record of a commit.
    pub(crate) fn of(lsn: u64, record: &Record, store: &Arc<Path>) -> Commit {
        Commit { lsn, changes: record.ops.iter().filter_map(|op| Change::of(op, record, store)).collect() }
    }
}

impl Change {
    fn of(op: &Op, record: &Record, store: &Arc<Path>) -> Option<Change> {
        let file = |index: &u32| record.files[*index as usize].path.clone();
        let (path, what) = match op {
            Op::Write { file: index, range, source } => {
                // The range of a truncation, including zeros before the cut, ends at the new length.
                let end = if range.end == NO_END { size_of_file(record, *index)? } else { range.end };
                let range = Some(range.start..end).filter(|range| !range.is_empty())?;
                let what = if *source == Source::Zero { What::Zeroed } else { What::Written };
                let (what, source) = (what(range.clone()), source.clone());
                let contents = Contents { range, source, checked: OnceLock::new(), store: store.clone() };
                return Some(Change { path: file(index), what, contents: Some(Arc::new(contents)) });
            }
            Op::Truncate { file: index, size } => (file(index), What::Resized(*size)),
            Op::Create { file: index, .. } => (file(index), What::Created),
            Op::Rename { file: index, to } => (file(index), What::Renamed(to.clone())),
            Op::Unlink { file: index } => (file(index), What::Removed),
            Op::Mode { file: index, mode } => (file(index), What::Mode(*mode)),
            Op::Mkdir { path, .. } => (path.clone(), What::DirectoryMade),
            Op::Rmdir { path } => (path.clone(), What::DirectoryRemoved),
            Op::DirMode { path, mode } => (path.clone(), What::Mode(*mode)),
            Op::Restate => return None,
        };
        Some(Change { path, what, contents: None })
    }

    /// Reads bytes of the range that was written or zeroed, as this commit wrote them, regardless of later commits.
    /// Returns the number of bytes read: as many as there are from this offset in the file on, up to the length of
    /// `buf`. 0 means that the range ends there.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # use untorn::{Reader, Store, reader::{Followed, What}};
    /// # let store = Store::open_or_create(path)?;
    /// # let file = store.open_or_create_file("greetings")?;
    /// # file.commit()?;
    /// let mut follow = Reader::open(path)?.follow()?;
    /// file.write_at(b"hello", 0)?;
    /// file.commit()?;
    /// if let Some(Followed::Commit(commit)) = follow.next().transpose()? {
    ///     for change in commit.changes {
    ///         if let What::Written(range) = &change.what {
    ///             let mut bytes = vec![0; (range.end - range.start) as usize];
    ///             change.read_at(&mut bytes, range.start)?;
    ///             assert_eq!(bytes, b"hello");
    ///         }
    ///     }
    /// }
    /// # store.close()?;
    /// # Ok::<(), untorn::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the offset is not in the range, or nothing was written; [`Error::Corrupt`] if the bytes of
    /// a large commit are not those that were committed; [`Error::Io`].
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let Some(contents) = &self.contents else {
            return Err(Error::invalid(format!("this change of {} wrote no bytes", self.path.display())));
        };
        let Range { start, end } = contents.range;
        if !(start..=end).contains(&offset) {
            let path = self.path.display();
            return Err(Error::invalid(format!(
                "offset {offset} of {path} is outside of the range that this change wrote, {start} to {end}"
            )));
        }
        let len = usize::try_from(end - offset).map_or(buf.len(), |left| left.min(buf.len()));
        if len > 0 {
            contents.read(&mut buf[..len], offset).map_err(|e| error_in_store(e, &contents.store))?;
        }
        Ok(len)
    }
}

impl Contents {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if let Source::Spill { spill, at, len, crc, .. } = &self.source
            && self.checked.get().is_none()
        {
            // The follower has not read these bytes before.
            verify(spill, *at, *len, *crc)?;
            self.checked.get_or_init(|| ());
        }
        self.source.copy_to(buf, offset)
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Change) -> bool {
        (&self.path, &self.what) == (&other.path, &other.what)
    }
}

impl Eq for Change {}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("path", &self.path).field("what", &self.what).finish_non_exhaustive()
    }
}

/// The length that a commit gives a file.
fn size_of_file(record: &Record, index: u32) -> Option<u64> {
    record.ops.iter().find_map(|op| match op {
        Op::Truncate { file, size } if *file == index => Some(*size),
        _ => None,
    })
}
