//! Files of a snapshot as memory: copies that nothing changes afterwards.

use crate::reader::{Reader, Snapshot};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::{Context, Error, Result};
use untorn_os::{File, Linux, ReadMapping};

/// A file's bytes in memory, all of one commit. They do not change, even if the store does.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path();
/// # let store = untorn::Store::open_or_create(path)?;
/// # let file = store.open_or_create_file("settings")?;
/// # file.write_at(b"dark", 0)?;
/// # file.commit()?;
/// let reader = untorn::Reader::open(path)?;
/// let mut settings = reader.map("settings")?;
/// assert_eq!(&settings[..], b"dark");
/// file.write_at(b"dull", 0)?;
/// file.commit()?;
/// assert_eq!(&settings[..], b"dark");
/// assert!(settings.refresh()?);
/// assert_eq!(&settings[..], b"dull");
/// # Ok::<(), untorn::Error>(())
/// ```
pub struct ReadMap {
    reader: Reader,
    path: PathBuf,
    lsn: u64,
    memory: ReadMapping,
}

/// A copy of a file as of one commit.
pub(crate) struct ReadCopy {
    pub file: Arc<dyn File>,
    pub len: u64,
    pub lsn: u64,
}

impl ReadCopy {
    /// Copies a file as of the last durable commit.
    pub(crate) fn take(reader: &Reader, path: &Path) -> Result<ReadCopy> {
        reader.with_snapshot(|snapshot| ReadCopy::of(reader, snapshot, path))
    }

    fn of(reader: &Reader, snapshot: &Snapshot, path: &Path) -> Result<ReadCopy> {
        let from = snapshot.open(path)?;
        let copy = |file: Arc<dyn File>| {
            from.copy_into(&*file, &mut |_| {}).map(|len| ReadCopy { file, len, lsn: snapshot.lsn() })
        };
        // Copy to the store's file system if this user may write there, because blocks can be shared; to memory
        // otherwise, or if the disk is full.
        match reader.unnamed_file().map(copy) {
            None | Some(Err(Error::NoSpace { .. })) => {}
            Some(done) => return done,
        }
        copy(Linux::memory_file().context("make memory for", path)?).map_err(|e| match e {
            Error::NoSpace { .. } => Error::NoMemory {
                path: path.to_owned(),
                detail: "there is no room for a copy; read it in pieces with a snapshot".into(),
            },
            e => e,
        })
    }

    /// The length as a size in memory.
    pub(crate) fn bytes(&self, path: &Path) -> Result<usize> {
        usize::try_from(self.len).map_err(|_| Error::NoMemory {
            path: path.to_owned(),
            detail: format!("it has {} bytes, which memory cannot hold", self.len),
        })
    }
}

impl Reader {
    /// Maps a file as of the last durable commit.
    ///
    /// # Errors
    /// Those of [`Reader::read`].
    pub fn map(&self, path: impl AsRef<Path>) -> Result<ReadMap> {
        let path = path.as_ref();
        let (lsn, memory) = self.mapped(path)?;
        Ok(ReadMap { reader: self.clone(), path: path.to_owned(), lsn, memory })
    }

    fn mapped(&self, path: &Path) -> Result<(u64, ReadMapping)> {
        let copy = ReadCopy::take(self, path)?;
        let len = copy.bytes(path)?;
        let mut memory = ReadMapping::reserve(None, len).context("map", path)?;
        copy.file.show_in(&mut memory, len).context("map", path)?;
        Ok((copy.lsn, memory))
    }

    /// Whether a file may differ from its state at this commit.
    pub(crate) fn has_changed(&self, lsn: u64) -> Result<bool> {
        Ok(self.snapshot()?.lsn() != lsn)
    }
}

impl ReadMap {
    /// LSN of the commit that it shows.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Advances to the last durable commit. Returns false if there is no newer one. After an error the map is
    /// unchanged.
    pub fn refresh(&mut self) -> Result<bool> {
        if !self.reader.has_changed(self.lsn)? {
            return Ok(false);
        }
        (self.lsn, self.memory) = self.reader.mapped(&self.path)?;
        Ok(true)
    }
}

impl Deref for ReadMap {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl std::fmt::Debug for ReadMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadMap").field("path", &self.path).field("lsn", &self.lsn).finish_non_exhaustive()
    }
}
