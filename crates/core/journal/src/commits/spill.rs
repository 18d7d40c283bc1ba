//! Spill files: the bytes of large commits, written once, beside the journal.
//!
//! The name of a spill file is durable before a record that refers to it is written. Its contents are flushed together
//! with the record, so recovery drops a last record whose contents are torn. The file is removed after the log was
//! truncated behind the last such record, or when no commit refers to it, but never before the last change that refers
//! to it is dropped: changes that one commit refused may be committed by another. Names are random and never reused.

use crate::error::{Context, Error, Result};
use crate::format::sized_memory;
use crate::format::unreadable::is_unreadable;
use crate::format::{Crc64, crc64};
use crate::invariant;
use crate::sync_point;
use parking_lot::Mutex;
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use untorn_os::{
    AlignedBuf, BLOCK_BYTES, File, Open, Storage, holds, read_full_at, read_full_past_cache_at, write_all_at,
};

const PREFIX: &str = "spill.";

/// Number of sufficiently long gaps that are tried, to find one in which the bytes get the right offset within their
/// block.
const GAPS_TRIED: usize = 16;

/// Bytes that are read or written at once.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A spill file.
pub struct Spill {
    /// Its id, from which its name is made.
    pub id: u64,
    file: Arc<dyn File>,
    len: AtomicU64,
    /// End of the bytes that are written. Bytes are appended by one thread at a time.
    written_len: AtomicU64,
    durable_len: AtomicU64,
    /// The name is durable.
    named: AtomicBool,
    /// Storage and path, for removing the file.
    location: (Arc<dyn Storage>, PathBuf),
    /// A record of the journal refers to it, or may do so.
    referenced: AtomicBool,
    /// Pieces that were checked, by offset and length; `None` if none needs to be.
    checked: Mutex<Option<BTreeSet<(u64, u64)>>>,
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spill {:016x}", self.id)
    }
}

/// The name of a spill file in the journal's directory.
pub fn spill_name(id: u64) -> String {
    format!("{PREFIX}{id:016x}")
}

/// The id in a spill file's name.
pub fn spill_id(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

impl Spill {
    /// Makes a new, empty spill file. Nothing about it is durable yet.
    pub fn create(storage: &Arc<dyn Storage>, journal: &Path) -> Result<Arc<Spill>> {
        let mut id = [0; 8];
        storage.random(&mut id).context("draw a name in", journal)?;
        let id = u64::from_le_bytes(id);
        let path = journal.join(spill_name(id));
        let file = storage.open(&path, Open::create(0o600).shown()).context("create", &path)?;
        Ok(Arc::new(Spill::new(id, file, None, (storage.clone(), path))))
    }

    /// Opens a spill file that a record refers to. The file stays until the journal says that no record does.
    pub fn open(storage: &Arc<dyn Storage>, journal: &Path, id: u64) -> Result<Arc<Spill>> {
        Spill::open_at(storage, journal.join(spill_name(id)), id)
    }

    /// Opens a spill file under any name.
    pub(crate) fn open_at(storage: &Arc<dyn Storage>, path: PathBuf, id: u64) -> Result<Arc<Spill>> {
        let file = storage.open(&path, Open::READ).context("open", &path)?;
        let len = file.meta().context("stat", &path)?.size;
        let spill = Spill::new(id, file, Some(len), (storage.clone(), path));
        spill.set_referenced();
        Ok(Arc::new(spill))
    }

    /// `found`: the length of a file that was there before.
    fn new(id: u64, file: Arc<dyn File>, found: Option<u64>, location: (Arc<dyn Storage>, PathBuf)) -> Spill {
        let [len, written_len, durable_len] = [(); 3].map(|()| AtomicU64::new(found.unwrap_or(0)));
        let (named, referenced) = (AtomicBool::new(found.is_some()), AtomicBool::new(false));
        Spill { id, file, len, written_len, durable_len, named, location, referenced, checked: Mutex::default() }
    }

    /// Marks the file as one that a record may refer to, so that it outlives the last change that refers to it.
    pub(crate) fn set_referenced(&self) {
        self.referenced.store(true, SeqCst);
    }

    /// Marks the file as one that no record refers to.
    pub(crate) fn clear_referenced(&self) {
        let was_referenced = self.referenced.swap(false, SeqCst);
        debug_assert!(was_referenced, "no record referred to {self:?}");
    }

    /// Whether the contents up to this end are flushed.
    pub(crate) fn is_durable_to(&self, end: u64) -> bool {
        self.durable_len.load(SeqCst) >= end
    }

    /// Whether the name is durable.
    pub(crate) fn is_named(&self) -> bool {
        self.named.load(SeqCst)
    }

    /// Notes that the journal's directory was flushed after the file had its name.
    pub(crate) fn set_named(&self) {
        self.named.store(true, SeqCst);
    }

    /// Whether data files can share blocks with this file, which is empty.
    pub fn shares_blocks(&self) -> bool {
        debug_assert!(self.is_empty(), "{self:?} has contents");
        let block = BLOCK_BYTES as u64;
        let shared = self.file.set_len(2 * block).and_then(|()| self.file.clone_range(&*self.file, 0, block, block));
        shared.and_then(|()| self.file.set_len(0)).is_ok()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes, by one thread at a time, and returns their offset. `origin` is their offset in a data file; with it, the bytes get the same
    /// offset within a block as in the data file, which can then share the blocks ([`File::clone_range`]).
    pub fn append(&self, bytes: &[u8], origin: Option<u64>) -> Result<u64> {
        let at = self.take_room(bytes.len() as u64, origin);
        write_all_at(&*self.file, bytes, at).context("write", self.path())?;
        self.note_written(at + bytes.len() as u64);
        Ok(at)
    }

    fn note_written(&self, end: u64) {
        self.written_len.fetch_max(end, SeqCst);
    }

    /// Reserves room for this many bytes and returns its offset.
    fn take_room(&self, bytes: u64, origin: Option<u64>) -> u64 {
        let end = |len: u64| Some(congruent(len, origin) + bytes);
        let before = self.len.fetch_update(SeqCst, SeqCst, end).expect("an end");
        congruent(before, origin)
    }

    /// Overwrites a range that nothing refers to.
    fn write_again(&self, bytes: &[u8], at: u64) -> Result<()> {
        debug_assert!(!self.referenced.load(SeqCst), "a record refers to {self:?}, of which a part is overwritten");
        debug_assert!(
            at + bytes.len() as u64 <= self.len(),
            "{} bytes at {at} of {self:?}, which has {}",
            bytes.len(),
            self.len()
        );
        self.durable_len.store(0, SeqCst);
        write_all_at(&*self.file, bytes, at).context("write", self.path())?;
        // A write that failed may have left the gap, at the end of the file.
        self.note_written(at + bytes.len() as u64);
        Ok(())
    }

    /// Notes that pieces were not checked, so that each is when it is used first.
    pub(crate) fn check_when_used(&self) {
        self.checked.lock().get_or_insert_default();
    }

    /// Checks a piece that is used, unless it was checked before.
    pub(crate) fn check_used(&self, at: u64, len: u64, crc: u64) -> Result<()> {
        let is_due = |checked: &BTreeSet<(u64, u64)>| !checked.contains(&(at, len)) && holds(invariant::SPILLS_CHECKED);
        if self.checked.lock().as_ref().is_some_and(is_due) {
            verify(self, at, len, crc, false).map_err(|e| match is_unreadable(&e) {
                true => Error::unreadable(self.path(), "the disk cannot read contents of a commit".into()),
                false => e,
            })?;
            self.note_checked(at, len);
        }
        Ok(())
    }

    fn note_checked(&self, at: u64, len: u64) {
        if let Some(checked) = self.checked.lock().as_mut() {
            checked.insert((at, len));
        }
    }

    /// Checks a piece of a record that may be torn.
    pub(crate) fn check_now(&self, at: u64, len: u64, crc: u64, past_cache: bool) -> Result<()> {
        verify(self, at, len, crc, past_cache)?;
        self.note_checked(at, len);
        Ok(())
    }

    /// Reads bytes back.
    pub fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let n = read_full_at(&*self.file, buf, at).context("read", self.path())?;
        self.check_read(at + n as u64, at + buf.len() as u64)
    }

    /// The checksum of a range. With `past_cache`, of the bytes on the disk: after a failed flush, the page cache may
    /// differ from them.
    pub fn crc(&self, range: Range<u64>, past_cache: bool) -> Result<u64> {
        let (mut sum, block) = (Crc64::new(), BLOCK_BYTES as u64);
        let mut at = range.start - range.start % block;
        let mut buf = AlignedBuf::default();
        let most = (range.end - at).next_multiple_of(block).min(CHUNK_BYTES as u64) as usize;
        buf.try_reserve(most).map_err(|_| sized_memory::none(most, self.path()))?;
        buf.resize(most);
        while at < range.end {
            let blocks = &mut buf[..most.min((range.end - at).next_multiple_of(block) as usize)];
            let past_cache = past_cache && holds(invariant::SPILLS_PAST_CACHE);
            let read = if past_cache { read_full_past_cache_at } else { read_full_at };
            let end = at + read(&*self.file, blocks, at).context("read", self.path())? as u64;
            let wanted = range.end.min(at + blocks.len() as u64);
            self.check_read(end, wanted)?;
            sum.add(&blocks[(range.start.max(at) - at) as usize..(wanted - at) as usize]);
            at += blocks.len() as u64;
        }
        Ok(sum.sum())
    }

    /// Checks that a read to this end got bytes that may go into data files, which nothing compares with a checksum.
    fn check_read(&self, end: u64, wanted: u64) -> Result<()> {
        self.file.check_own().context("read", self.path())?;
        match end < wanted {
            true => Err(Error::corrupt(self.path(), format!("it ends at byte {end}, before its record says"))),
            false => Ok(()),
        }
    }

    /// Makes the contents up to this end durable.
    pub fn sync_to(&self, end: u64) -> std::io::Result<()> {
        let written = self.written_len.load(SeqCst);
        debug_assert!(end <= written, "{end} bytes of {self:?} are to be flushed, and {written} are written");
        if !self.is_durable_to(end) {
            self.file.sync_data(sync_point::SPILL_CONTENTS)?;
            self.durable_len.fetch_max(written, SeqCst);
        }
        Ok(())
    }

    /// Flushes the contents as a killed owner left them.
    pub(crate) fn flush_found(&self) -> std::io::Result<()> {
        self.file.sync_data(sync_point::RECOVER_SPILLS)
    }

    /// Lets a range of a data file share blocks with this range of the spill file.
    pub fn clone_to(&self, file: &dyn File, at: u64, offset: u64, len: u64) -> std::io::Result<()> {
        file.clone_range(&*self.file, at, offset, len)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.location.1
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let (storage, path) = &self.location;
        if !self.referenced.load(SeqCst) {
            // If this fails, the file is an orphan, which the next recovery removes.
            let _ = storage.unlink(path);
        }
    }
}

/// Checks a range of a spill file against its checksum, as [`Spill::crc`] reads it.
pub fn verify(spill: &Spill, at: u64, len: u64, crc: u64, past_cache: bool) -> Result<()> {
    if at.checked_add(len).is_none_or(|end| end > spill.len()) {
        return Err(Error::corrupt(spill.path(), "it is shorter than its record says"));
    }
    if spill.crc(at..at + len, past_cache)? != crc {
        return Err(Error::corrupt(spill.path(), format!("checksum of {len} bytes at {at} is wrong")));
    }
    Ok(())
}

/// Appends bytes like [`Spill::append`]; returns their offset and checksum.
pub fn append_summed(spill: &Spill, bytes: &[u8], origin: Option<u64>) -> Result<(u64, u64)> {
    append_pieces(spill, &[bytes], origin)
}

/// Appends pieces that belong side by side, at offset `origin` of a data file; returns their offset and checksum.
pub fn append_run(spill: &Spill, pieces: &[&[u8]], origin: u64) -> Result<(u64, u64)> {
    append_pieces(spill, pieces, Some(origin))
}

/// While a chunk is copied and summed, the device writes the previous one, so that the flush has little left to do.
fn append_pieces(spill: &Spill, pieces: &[&[u8]], origin: Option<u64>) -> Result<(u64, u64)> {
    let start = spill.take_room(pieces.iter().map(|piece| piece.len() as u64).sum(), origin);
    let (mut sum, mut at) = (Crc64::new(), start);
    for chunk in pieces.iter().flat_map(|piece| piece.chunks(CHUNK_BYTES)) {
        write_all_at(&*spill.file, chunk, at).context("write", spill.path())?;
        if chunk.len() == CHUNK_BYTES {
            spill.file.begin_write_out(at, chunk.len() as u64);
        }
        sum.add(chunk);
        at += chunk.len() as u64;
    }
    debug_assert!(at <= spill.len(), "bytes to {at} in {spill:?}, of {} bytes", spill.len());
    spill.note_written(at);
    Ok((start, sum.sum()))
}

/// The first offset from `at` on that has the same position within its block as `origin`; `at` itself without an
/// origin.
fn congruent(at: u64, origin: Option<u64>) -> u64 {
    let (block, found) =
        (BLOCK_BYTES as u64, at + origin.map_or(0, |origin| origin.wrapping_sub(at) % BLOCK_BYTES as u64));
    debug_assert!(
        origin.is_none_or(|origin| found % block == origin % block) && found - at < block,
        "{found} from {at} on, for {origin:?}"
    );
    found
}

/// A spill file for uncommitted changes of one file, whose space is reused when a change is overwritten. No record
/// refers to the file yet; nothing is added once its changes are on their way to the journal.
#[derive(Debug)]
pub struct SpillSpace {
    spill: Arc<Spill>,
    /// Gaps that nothing refers to: length and offset.
    free: BTreeSet<(u64, u64)>,
    /// Bytes of all gaps together.
    free_bytes: u64,
    /// Bytes written since the last search for gaps.
    written: u64,
    /// Bytes written after which a new search is worthwhile.
    look_after: u64,
    look_after_min: u64,
    clone_bytes_least: u64,
}

impl SpillSpace {
    /// Makes the space in a new spill file. Gaps are searched after at least `look_after_min` written bytes. Pieces of
    /// at least `clone_bytes_least` bytes are placed so that a data file can share their blocks.
    pub fn new(spill: Arc<Spill>, look_after_min: u64, clone_bytes_least: u64) -> SpillSpace {
        let (free, look_after) = (BTreeSet::new(), look_after_min);
        SpillSpace { spill, free, free_bytes: 0, written: 0, look_after, look_after_min, clone_bytes_least }
    }

    /// The spill file.
    pub fn spill(&self) -> &Arc<Spill> {
        &self.spill
    }

    /// Whether to search for gaps before this many bytes are written; the caller then calls [`SpillSpace::set_used`].
    pub fn wants_look(&self, bytes: u64) -> bool {
        self.written >= self.look_after && self.free.last().is_none_or(|(len, _)| *len < bytes)
    }

    /// Sets the ranges that uncommitted changes refer to. All others become free.
    pub fn set_used(&mut self, used: &RangeSet<u64>) {
        let bytes: u64 = used.iter().map(|range| range.end - range.start).sum();
        self.written = 0;
        // A search costs as much as the bytes in use. This bound keeps the file at most about twice as long as these.
        self.look_after = bytes.max(self.look_after_min);
        self.free = used.gaps(&(0..self.spill.len())).map(|gap| (gap.end - gap.start, gap.start)).collect();
        self.free_bytes = self.free.iter().map(|(len, _)| len).sum();
        debug_assert_eq!(self.free_bytes + bytes, self.spill.len(), "bytes are neither free nor in use: {used:?}");
    }

    /// Writes bytes that belong at offset `origin` of a data file, into a gap if they fit into one. Returns their
    /// offset and checksum.
    pub fn put(&mut self, bytes: &[u8], origin: u64) -> Result<(u64, u64)> {
        // Small pieces are packed, because their blocks are not shared.
        let origin = (bytes.len() as u64 >= self.clone_bytes_least).then_some(origin);
        match self.put_into_gap(bytes, origin)? {
            Some(at) => Ok((at, crc64(bytes))),
            None => append_summed(&self.spill, bytes, origin),
        }
    }

    /// Writes pieces side by side with one call; returns the offset and checksum of each. If only several separate gaps
    /// have enough room, the pieces go there one by one.
    pub fn put_together(&mut self, pieces: &[&[u8]]) -> Result<Vec<(u64, u64)>> {
        let all = pieces.concat();
        let len = all.len() as u64;
        if self.free_bytes >= len && self.free.last().is_some_and(|(gap_len, _)| *gap_len < len) {
            return pieces.iter().map(|piece| self.put(piece, 0)).collect();
        }
        let mut at = match self.put_into_gap(&all, None)? {
            Some(at) => at,
            None => self.spill.append(&all, None)?,
        };
        let place = |piece: &&[u8]| {
            let start = at;
            at += piece.len() as u64;
            (start, crc64(piece))
        };
        Ok(pieces.iter().map(place).collect())
    }

    /// Writes bytes into a gap if they fit into one, and returns their offset.
    fn put_into_gap(&mut self, bytes: &[u8], origin: Option<u64>) -> Result<Option<u64>> {
        let len = bytes.len() as u64;
        self.written += len;
        let fits = |(gap_len, gap_at): &(u64, u64)| congruent(*gap_at, origin) + len <= gap_at + gap_len;
        let mut candidates = self.free.range((len, 0)..).take(GAPS_TRIED);
        let Some(gap) = candidates.find(|gap| fits(gap)).copied() else { return Ok(None) };
        let (gap_len, gap_at) = gap;
        let at = congruent(gap_at, origin);
        self.spill.write_again(bytes, at)?;
        let was_free = self.free.remove(&gap);
        debug_assert!(was_free && len <= self.free_bytes, "{gap:?} for {len} bytes, {} are free", self.free_bytes);
        self.free_bytes -= len;
        for rest in [gap_at..at, at + len..gap_at + gap_len] {
            if !rest.is_empty() {
                self.free.insert((rest.end - rest.start, rest.start));
            }
        }
        Ok(Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use untorn_os::Linux;

    #[test]
    fn a_gap_of_a_failed_write_counts_as_written_when_it_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Linux::open(dir.path()).unwrap();
        let spill = Spill::create(&storage, Path::new("")).unwrap();
        spill.append(b"first", None).unwrap();
        // An append whose write fails has its room.
        let at = spill.take_room(3, None);
        spill.write_again(b"gap", at).unwrap();
        spill.sync_to(at + 3).unwrap();
        assert!(spill.is_durable_to(at + 3));
    }
}
