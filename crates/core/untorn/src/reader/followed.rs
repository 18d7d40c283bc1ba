//! Commits as a follower gets them, with the bytes that they wrote.

use crate::engine::paths::error_paths::error_in_store;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use untorn_journal::commits::overlay::{NO_END, Source};
use untorn_journal::commits::record::{Op, Record};
use untorn_journal::commits::spill::verify;
use untorn_journal::scanning::scan::AcceptedRecord;
use untorn_journal::slots::epochs::Point;
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
    /// The epoch in which it was made: one opening of the store.
    pub epoch: u64,
    /// When it was made, to the second, by the clock of its machine; `None` if its log is of an older version.
    pub time: Option<SystemTime>,
    /// Its changes; those of one file are in order.
    pub changes: Vec<Change>,
}

/// A change of one file or directory. Two are equal if path and kind are equal; the bytes are not compared.
///
/// A change keeps the bytes of its commit in memory. Those of a large commit are in a file of the journal, which it
/// keeps open, and which takes disk space until the change is dropped.
#[derive(Clone)]
pub struct Change {
    /// The name before this commit; of a new file, its first name.
    pub path: PathBuf,
    /// Tells the files of this commit apart, whatever their names are in the course of it; 0 for a directory.
    pub file: u64,
    /// The change itself.
    pub kind: ChangeKind,
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
pub enum ChangeKind {
    /// Bytes were written; [`Change::read_at`] reads them.
    Written(Range<u64>),
    /// Bytes became zeros.
    Zeroed(Range<u64>),
    /// The file has this length now.
    Resized(u64),
    /// A new file, with these permission bits.
    Created(u32),
    /// The file has another name now.
    Renamed(PathBuf),
    /// The file is gone.
    Removed,
    /// Other permission bits.
    Mode(u32),
    /// A new directory, with these permission bits.
    DirectoryMade(u32),
    /// The directory is gone.
    DirectoryRemoved,
}

impl Commit {
    /// Converts the record of a commit.
    pub(crate) fn of(accepted: &AcceptedRecord, store: &Arc<Path>) -> Commit {
        let AcceptedRecord { lsn, epoch, time, record } = accepted;
        let time = time.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let changes = record.ops.iter().filter_map(|op| Change::of(op, record, store)).collect();
        Commit { lsn: *lsn, epoch: *epoch, time, changes }
    }

    /// Its name beyond this store.
    pub fn point(&self) -> Point {
        Point { epoch: self.epoch, lsn: self.lsn }
    }
}

impl Change {
    fn of(op: &Op, record: &Record, store: &Arc<Path>) -> Option<Change> {
        let of_file = |index: &u32| {
            let file = &record.files[*index as usize];
            (file.path.clone(), file.id)
        };
        let ((path, file), kind) = match op {
            Op::Write { file: index, range, source } => {
                // The range of a truncation, including zeros before the cut, ends at the new length.
                let end = if range.end == NO_END { size_of_file(record, *index)? } else { range.end };
                let range = Some(range.start..end).filter(|range| !range.is_empty())?;
                let kind = if *source == Source::Zero { ChangeKind::Zeroed } else { ChangeKind::Written };
                let (kind, source) = (kind(range.clone()), source.clone());
                let contents = Contents { range, source, checked: OnceLock::new(), store: store.clone() };
                let (path, file) = of_file(index);
                return Some(Change { path, file, kind, contents: Some(Arc::new(contents)) });
            }
            Op::Truncate { file, size } => (of_file(file), ChangeKind::Resized(*size)),
            Op::Create { file, mode } => (of_file(file), ChangeKind::Created(*mode)),
            Op::Rename { file, to } => (of_file(file), ChangeKind::Renamed(to.clone())),
            Op::Unlink { file } => (of_file(file), ChangeKind::Removed),
            Op::Mode { file, mode } => (of_file(file), ChangeKind::Mode(*mode)),
            Op::Mkdir { path, mode } => ((path.clone(), 0), ChangeKind::DirectoryMade(*mode)),
            Op::Rmdir { path } => ((path.clone(), 0), ChangeKind::DirectoryRemoved),
            Op::DirMode { path, mode } => ((path.clone(), 0), ChangeKind::Mode(*mode)),
            Op::Restate => return None,
        };
        Some(Change { path, file, kind, contents: None })
    }

    /// Reads bytes of the range that was written or zeroed, as this commit wrote them, regardless of later commits.
    /// Returns the number of bytes read: as many as there are from this offset in the file on, up to the length of
    /// `buf`. 0 means that the range ends there.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path();
    /// # use untorn::{Reader, Store, reader::{Followed, ChangeKind}};
    /// # let store = Store::open_or_create(path)?;
    /// # let file = store.open_or_create_file("greetings")?;
    /// # file.commit()?;
    /// let mut follow = Reader::open(path)?.follow()?;
    /// file.write_at(b"hello", 0)?;
    /// file.commit()?;
    /// if let Some(Followed::Commit(commit)) = follow.next().transpose()? {
    ///     for change in commit.changes {
    ///         if let ChangeKind::Written(range) = &change.kind {
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
            verify(spill, *at, *len, *crc, false)?;
            self.checked.get_or_init(|| ());
        }
        self.source.copy_to(buf, offset)
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Change) -> bool {
        (&self.path, &self.kind) == (&other.path, &other.kind)
    }
}

impl Eq for Change {}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("path", &self.path).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The length that a commit gives a file.
fn size_of_file(record: &Record, index: u32) -> Option<u64> {
    record.ops.iter().find_map(|op| match op {
        Op::Truncate { file, size } if *file == index => Some(*size),
        _ => None,
    })
}
