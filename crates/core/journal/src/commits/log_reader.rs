//! Bytes of commits, read from the journal's segments in place.
//!
//! After a crash the store serves accepted records without applying them: an overlay refers to the bytes in the
//! segment, in pieces. Each piece has a checksum that was computed when the record was found, and that every read
//! checks. A segment is not reused as long as an overlay refers to it.

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
use untorn_os::{AlignedBuf, BLOCK_BYTES, File, Meta, Open, Storage, holds, read_full_at, read_full_past_cache_at};

/// Limit for the bytes of a piece, all of which are read and checked for any one of its bytes.
pub const PIECE_BYTES_MAX: u64 = 16 << 10;

/// Bytes that are prefetched ahead of those that are wanted.
const AHEAD_BYTES: u64 = 8 << 20;

/// A segment with records that are not applied.
pub struct LogSegment {
    file: Arc<dyn File>,
    path: PathBuf,
    /// LSN of the last accepted record in it.
    last_lsn: AtomicU64,
    /// End of the part that was prefetched, in order.
    ahead: AtomicU64,
}

impl fmt::Debug for LogSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl LogSegment {
    /// LSN of the last accepted record in it.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Opens a segment for reading unapplied commits.
    pub fn open(storage: &dyn Storage, path: &Path) -> Result<Arc<LogSegment>> {
        let file = storage.open(path, Open::READ).context("open", path)?;
        let (last_lsn, ahead) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(LogSegment { file, path: path.to_owned(), last_lsn, ahead }))
    }

    /// The segment's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is the file with this metadata.
    pub(crate) fn is_file(&self, meta: &Meta) -> bool {
        self.file.meta().is_ok_and(|own| (own.device, own.inode) == (meta.device, meta.inode))
    }

    /// Sets the LSN of the last record in the segment.
    pub fn ends_with(&self, lsn: u64) {
        let before = self.last_lsn.swap(lsn, Relaxed);
        debug_assert!(before <= lsn, "{self:?} ended with record {before}, and now with {lsn}");
    }

    /// Whether the segment is still needed when the log is truncated behind this LSN.
    pub fn outlives(&self, lsn: u64) -> bool {
        self.last_lsn.load(Relaxed) > lsn
    }

    /// Reads a piece, and checks it against this checksum.
    pub fn read(&self, at: u64, len: u64, crc: u64) -> Result<Vec<u8>> {
        debug_assert!((1..=PIECE_BYTES_MAX).contains(&len), "a piece of {len} bytes at {at} of {self:?}");
        let mut piece = sized_memory::zeros(len, &self.path)?;
        let n = match read_full_at(&*self.file, &mut piece, at) {
            // Read-ahead of the kernel may have met a bad block outside of the piece.
            Err(e) if is_media_error(&e) => 0,
            read => read.context("read", &self.path)?,
        };
        if (n == piece.len() && crc64(&piece) == crc) || !holds(invariant::LOG_VERIFIED) {
            return Ok(piece);
        }
        self.file.check_own().context("read", &self.path)?;
        // The page cache may show bytes that a failed flush never brought to the disk. The scan read the records past
        // the cache.
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

    /// Prefetches these bytes into the page cache.
    pub fn begin_read(&self, range: Range<u64>) {
        self.file.begin_read(range);
    }

    /// Prefetches the segment up to `end` and somewhat beyond, once, when pieces are read in their order. The following
    /// pieces are then in the page cache when they are needed, also those of files that come later.
    pub fn read_ahead(&self, end: u64) {
        let begun = self.ahead.load(Relaxed);
        if end + AHEAD_BYTES / 2 > begun {
            self.file.begin_read(begun..end + AHEAD_BYTES);
            self.ahead.fetch_max(end + AHEAD_BYTES, Relaxed);
        }
    }
}
