//! Bytes of commits, read from the journal's segments where they lie.
//!
//! After a crash the accepted records are served without being applied: an overlay refers to the bytes in the segment,
//! piece by piece, each with a checksum that was made when the record was found, and that is checked at each reading.
//! A segment is not written again as long as something refers to it.

use crate::error::{Context, Error, Result};
use crate::format::crc64;
use crate::format::sized_memory;
use crate::format::unreadable::is_media_error;
use crate::invariant;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use untorn_os::{AlignedBuf, BLOCK_BYTES, File, Open, Storage, holds, read_full_at, read_full_past_cache_at};

/// Most bytes of a piece: what is read and checked for one of its bytes.
pub const PIECE_BYTES_MAX: u64 = 16 << 10;

/// Bytes that are begun to be read, ahead of those that are wanted.
const AHEAD_BYTES: u64 = 8 << 20;

/// A segment with records that are not applied.
pub struct LogSegment {
    file: Arc<dyn File>,
    path: PathBuf,
    /// LSN of the last accepted record in it.
    last_lsn: AtomicU64,
    /// Up to here it was begun to be read, in order.
    ahead: AtomicU64,
}

impl fmt::Debug for LogSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl LogSegment {
    /// Opens a segment for reading what lies in it.
    pub fn open(storage: &dyn Storage, path: &Path) -> Result<Arc<LogSegment>> {
        let file = storage.open(path, Open::READ).context("open", path)?;
        let (last_lsn, ahead) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(LogSegment { file, path: path.to_owned(), last_lsn, ahead }))
    }

    /// The segment's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record of that LSN is the last one in the segment.
    pub fn ends_with(&self, lsn: u64) {
        self.last_lsn.store(lsn, Relaxed);
    }

    /// Whether the segment stays as it is when the log is truncated behind this LSN.
    pub fn outlives(&self, lsn: u64) -> bool {
        self.last_lsn.load(Relaxed) > lsn
    }

    /// Reads a piece, which has that checksum.
    pub fn read(&self, at: u64, len: u64, crc: u64) -> Result<Vec<u8>> {
        let mut piece = sized_memory::zeros(len, &self.path)?;
        let n = match read_full_at(&*self.file, &mut piece, at) {
            // The kernel may have wanted more around it than there can be read.
            Err(e) if is_media_error(&e) => 0,
            read => read.context("read", &self.path)?,
        };
        if (n == piece.len() && crc64(&piece) == crc) || !holds(invariant::LOG_VERIFIED) {
            return Ok(piece);
        }
        // The page cache may show what a failed flush never brought to the disk. The records were read past it.
        let start = at - at % BLOCK_BYTES as u64;
        let bytes = (at + len - start).next_multiple_of(BLOCK_BYTES as u64) as usize;
        let mut blocks = AlignedBuf::default();
        blocks.try_reserve(bytes).map_err(|_| sized_memory::none(bytes, &self.path))?;
        blocks.resize(bytes);
        read_full_past_cache_at(&*self.file, &mut blocks, start).context("read", &self.path)?;
        piece.copy_from_slice(&blocks[(at - start) as usize..][..len as usize]);
        if crc64(&piece) == crc {
            return Ok(piece);
        }
        Err(Error::corrupt(
            &self.path,
            format!("{len} bytes at {at} have another checksum than when the journal was opened"),
        ))
    }

    /// Begins to read these bytes into the page cache.
    pub fn begin_read(&self, range: Range<u64>) {
        self.file.begin_read(range);
    }

    /// Pieces of the segment are wanted in their order, and now the one that ends there: all up to it, and somewhat more, is
    /// begun to be read, once, so that it is in the page cache when its turn comes, also for files whose turn is later.
    pub fn read_ahead(&self, end: u64) {
        let begun = self.ahead.load(Relaxed);
        if end + AHEAD_BYTES / 2 > begun {
            self.file.begin_read(begun..end + AHEAD_BYTES);
            self.ahead.fetch_max(end + AHEAD_BYTES, Relaxed);
        }
    }
}
