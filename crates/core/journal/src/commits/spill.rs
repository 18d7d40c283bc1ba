//! Spill files: the bytes of large commits, written once, beside the journal.
//!
//! A spill file is durable, name included, before the record that refers to it is written. It is
//! removed after the log was truncated behind that record, or when no commit refers to it, and in
//! either case not before the last change that refers to it is dropped: what one commit refused may
//! be committed by another. Names are random and never reused.

use crate::error::{Context, Error, Result};
use crate::format::sized_memory;
use crate::format::{Crc64, crc64};
use crate::sync_point;
use rangemap::RangeSet;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use untorn_os::{BLOCK_BYTES, File, Open, Storage, read_full_at, write_all_at};

const PREFIX: &str = "spill.";

/// So many gaps of sufficient length are looked at for one in which bytes come to lie where they should in their block.
const GAPS_TRIED: usize = 16;

/// Bytes that are read or written at once.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A spill file.
pub struct Spill {
    /// Its number, which is its name.
    pub id: u64,
    file: Arc<dyn File>,
    len: AtomicU64,
    durable_len: AtomicU64,
    /// The storage and path by which it is removed.
    location: (Arc<dyn Storage>, PathBuf),
    /// A record of the journal refers to it, or may do so.
    referenced: AtomicBool,
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

/// The number of a spill file's name.
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
        Ok(Arc::new(Spill::new(id, file, 0, (storage.clone(), path))))
    }

    /// Opens a spill file that a record refers to: it stays until the journal says that none does.
    pub fn open(storage: &Arc<dyn Storage>, journal: &Path, id: u64) -> Result<Arc<Spill>> {
        let path = journal.join(spill_name(id));
        let file = storage.open(&path, Open::READ).context("open", &path)?;
        let len = file.meta().context("stat", &path)?.size;
        let spill = Spill::new(id, file, len, (storage.clone(), path));
        spill.set_referenced();
        Ok(Arc::new(spill))
    }

    fn new(id: u64, file: Arc<dyn File>, len: u64, location: (Arc<dyn Storage>, PathBuf)) -> Spill {
        let (len, durable_len) = (AtomicU64::new(len), AtomicU64::new(len));
        Spill { id, file, len, durable_len, location, referenced: AtomicBool::new(false) }
    }

    /// From now on a record may refer to it: it stays when the last change that refers to it is dropped.
    pub(crate) fn set_referenced(&self) {
        self.referenced.store(true, SeqCst);
    }

    /// No record refers to it any more.
    pub(crate) fn clear_referenced(&self) {
        self.referenced.store(false, SeqCst);
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    /// Nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes; returns their offset. With an `origin`, the offset that they are for in a data file, they lie in
    /// blocks of the spill file as they will in blocks of the data file, which can share these ([`File::clone_range`]).
    pub fn append(&self, bytes: &[u8], origin: Option<u64>) -> Result<u64> {
        let at = self.take_room(bytes.len() as u64, origin);
        write_all_at(&*self.file, bytes, at).context("write", self.path())?;
        Ok(at)
    }

    /// The offset of so many bytes, for which there is room from now on.
    fn take_room(&self, bytes: u64, origin: Option<u64>) -> u64 {
        let end = |len: u64| Some(congruent(len, origin) + bytes);
        let before = self.len.fetch_update(SeqCst, SeqCst, end).expect("an end");
        congruent(before, origin)
    }

    /// Writes bytes where nothing refers to what is there.
    fn write_again(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.durable_len.store(0, SeqCst);
        write_all_at(&*self.file, bytes, at).context("write", self.path())
    }

    /// Reads bytes back.
    pub fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let n = read_full_at(&*self.file, buf, at).context("read", self.path())?;
        if n < buf.len() {
            return Err(Error::corrupt(
                self.path(),
                format!("it ends at byte {}, before its record says", at + n as u64),
            ));
        }
        Ok(())
    }

    /// The checksum of a range.
    pub fn crc(&self, mut at: u64, mut len: u64) -> Result<u64> {
        let mut sum = Crc64::new();
        let mut buf = sized_memory::zeros(len.min(CHUNK_BYTES as u64), &self.path())?;
        while len > 0 {
            let n = buf.len().min(len as usize);
            self.read(&mut buf[..n], at)?;
            sum.add(&buf[..n]);
            at += n as u64;
            len -= n as u64;
        }
        Ok(sum.sum())
    }

    /// Makes the contents durable. Returns whether there was anything to do, in which case the
    /// journal's directory has to be synced too.
    pub fn sync(&self) -> std::io::Result<bool> {
        let len = self.len();
        if self.durable_len.load(SeqCst) == len {
            return Ok(false);
        }
        self.file.sync_data(sync_point::SPILL_CONTENTS)?;
        self.durable_len.store(len, SeqCst);
        Ok(true)
    }

    /// Lets a range of a data file share the blocks of bytes that lie here.
    pub fn clone_to(&self, file: &dyn File, at: u64, offset: u64, len: u64) -> std::io::Result<()> {
        file.clone_range(&*self.file, at, offset, len)
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(spill_name(self.id))
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let (storage, path) = &self.location;
        if !self.referenced.load(SeqCst) {
            // A spill file that cannot be removed now is an orphan, which the next recovery removes.
            let _ = storage.unlink(path);
        }
    }
}

/// Checks a range of a spill file against its checksum.
pub fn verify(spill: &Spill, at: u64, len: u64, crc: u64) -> Result<()> {
    if at.checked_add(len).is_none_or(|end| end > spill.len()) {
        return Err(Error::corrupt(spill_name(spill.id), "it is shorter than its record says"));
    }
    if spill.crc(at, len)? != crc {
        return Err(Error::corrupt(spill_name(spill.id), format!("checksum of {len} bytes at {at} is wrong")));
    }
    Ok(())
}

/// Appends bytes as [`Spill::append`] does; returns their offset and their checksum.
///
/// While a chunk is copied and summed up, the device writes the one before: the flush finds little left.
pub fn append_summed(spill: &Spill, bytes: &[u8], origin: Option<u64>) -> Result<(u64, u64)> {
    if bytes.len() <= CHUNK_BYTES {
        return Ok((spill.append(bytes, origin)?, crc64(bytes)));
    }
    let start = spill.take_room(bytes.len() as u64, origin);
    let mut sum = Crc64::new();
    let mut at = start;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        write_all_at(&*spill.file, chunk, at).context("write", spill.path())?;
        spill.file.begin_write_out(at, chunk.len() as u64);
        sum.add(chunk);
        at += chunk.len() as u64;
    }
    Ok((start, sum.sum()))
}

/// The first offset from `at` that lies in a block where `origin` does, or any.
fn congruent(at: u64, origin: Option<u64>) -> u64 {
    at + origin.map_or(0, |origin| origin.wrapping_sub(at) % BLOCK_BYTES as u64)
}

/// A spill file of uncommitted changes of one file: where such a change was changed again, its space is used again.
/// No record refers to any of it yet; when the changes are on their way to the journal, nothing more goes into it.
#[derive(Debug)]
pub struct SpillSpace {
    spill: Arc<Spill>,
    /// Gaps that nothing refers to: length and offset.
    free: BTreeSet<(u64, u64)>,
    /// Of all gaps together.
    free_bytes: u64,
    /// Bytes that were written since the gaps were looked for.
    written: u64,
    /// So many make it worthwhile to look again.
    look_after: u64,
    look_after_min: u64,
    clone_bytes_least: u64,
}

impl SpillSpace {
    /// The space of a new spill file. Gaps are looked for after so many bytes, or later. Pieces of at least
    /// `clone_bytes_least` bytes lie where a data file can share their blocks.
    pub fn new(spill: Arc<Spill>, look_after_min: u64, clone_bytes_least: u64) -> SpillSpace {
        let (free, look_after) = (BTreeSet::new(), look_after_min);
        SpillSpace { spill, free, free_bytes: 0, written: 0, look_after, look_after_min, clone_bytes_least }
    }

    /// The spill file.
    pub fn spill(&self) -> &Arc<Spill> {
        &self.spill
    }

    /// Whether it is time to look for gaps, before so many bytes are written: [`SpillSpace::set_used`].
    pub fn wants_look(&self, bytes: u64) -> bool {
        self.written >= self.look_after && self.free.last().is_none_or(|(len, _)| *len < bytes)
    }

    /// What the uncommitted changes refer to. The rest is free.
    pub fn set_used(&mut self, used: &RangeSet<u64>) {
        let bytes: u64 = used.iter().map(|range| range.end - range.start).sum();
        self.written = 0;
        // Looking costs as much as there is in use; the file is at most twice as long, and a little more.
        self.look_after = bytes.max(self.look_after_min);
        self.free = used.gaps(&(0..self.spill.len())).map(|gap| (gap.end - gap.start, gap.start)).collect();
        self.free_bytes = self.free.iter().map(|(len, _)| len).sum();
    }

    /// Writes bytes that are for the offset `origin` of a data file, into a gap if they fit into one; returns their
    /// offset and their checksum.
    pub fn put(&mut self, bytes: &[u8], origin: u64) -> Result<(u64, u64)> {
        // Small pieces lie side by side.
        let origin = (bytes.len() as u64 >= self.clone_bytes_least).then_some(origin);
        match self.put_into_gap(bytes, origin)? {
            Some(at) => Ok((at, crc64(bytes))),
            None => append_summed(&self.spill, bytes, origin),
        }
    }

    /// Writes pieces side by side with one call; returns the offset and the checksum of each. Where gaps have as much room,
    /// but apart from each other, the pieces go there.
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

    /// Writes bytes into a gap if they fit into one; returns their offset.
    fn put_into_gap(&mut self, bytes: &[u8], origin: Option<u64>) -> Result<Option<u64>> {
        let len = bytes.len() as u64;
        self.written += len;
        let fits = |(gap_len, gap_at): &(u64, u64)| congruent(*gap_at, origin) + len <= gap_at + gap_len;
        let mut candidates = self.free.range((len, 0)..).take(GAPS_TRIED);
        let Some(gap) = candidates.find(|gap| fits(gap)).copied() else { return Ok(None) };
        let (gap_len, gap_at) = gap;
        let at = congruent(gap_at, origin);
        self.spill.write_again(bytes, at)?;
        self.free.remove(&gap);
        self.free_bytes -= len;
        for rest in [gap_at..at, at + len..gap_at + gap_len] {
            if !rest.is_empty() {
                self.free.insert((rest.end - rest.start, rest.start));
            }
        }
        Ok(Some(at))
    }
}
