//! Reads around the parts of a journal for which the disk returns errors, and decides which commits stay known.
//!
//! A durable record of which the disk returns everything but contents is known: its head gives its place in the chain,
//! and the parts between the contents give its files and names. Its contents are unknown, because its checksum cannot
//! be checked. Any other unreadable part may hold a commit that nothing else mentions, so opening fails.

use crate::error::Error;
use crate::format::{Key, RECORD_ALIGN_BYTES, RECORD_HEAD_BYTES, RecordHead};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{BLOCK_BYTES, Errno};

/// Bytes that are read at once around an error; if that read fails too, the piece is read block by block.
const PIECE_BYTES: usize = 16 * BLOCK_BYTES;

/// After this many unreadable blocks in a file, no more are tried: a disk may take seconds for each.
const BLOCKS_TRIED: usize = 64;

/// Whether the disk could not read a part of a file while other parts may be readable: EIO, or the errors that kernels
/// report instead for a bad sector or a wrong checksum.
pub(crate) fn is_media_error(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::BADMSG))
}

/// Whether an error of the journal is a media error: of a read, or of opening the file to read.
pub(crate) fn is_unreadable(e: &Error) -> bool {
    matches!(e, Error::Io { source, .. } if is_media_error(source))
}

/// Fills `buf`. Returns the ranges that could not be read, in order and disjoint; these are filled with zeros.
pub(crate) fn read_around(
    buf: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Vec<Range<u64>>> {
    match read(buf, 0) {
        Err(e) if is_media_error(&e) => {}
        done => return done.map(|()| Vec::new()),
    }
    let (mut unreadable, mut failed): (Vec<Range<u64>>, usize) = (Vec::new(), 0);
    for (n, piece) in buf.chunks_mut(PIECE_BYTES).enumerate() {
        let start = n * PIECE_BYTES;
        if failed < BLOCKS_TRIED {
            match read(piece, start as u64) {
                Err(e) if is_media_error(&e) => {}
                Err(e) => return Err(e),
                Ok(()) => continue,
            }
        }
        for (n, block) in piece.chunks_mut(BLOCK_BYTES).enumerate() {
            let at = (start + n * BLOCK_BYTES) as u64;
            if failed < BLOCKS_TRIED {
                match read(block, at) {
                    Err(e) if is_media_error(&e) => failed += 1,
                    Err(e) => return Err(e),
                    Ok(()) => continue,
                }
            }
            block.fill(0);
            let end = at + block.len() as u64;
            match unreadable.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => unreadable.push(at..end),
            }
        }
    }
    Ok(unreadable)
}

/// Whether any of the ranges, which are in order and disjoint, touches this one.
pub(crate) fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let next = ranges.partition_point(|one| one.end <= range.start);
    ranges.get(next).is_some_and(|one| one.start < range.end)
}

/// The first unreadable block that holds no part of these accepted records. A commit behind the last of them may be in
/// it. The other blocks cannot hide one: accepted records stay in place until they are applied, and a record behind
/// them in the same block would be accepted, too.
pub(crate) fn first_unknown(unreadable: &[Range<u64>], accepted: &[Range<u64>]) -> Option<u64> {
    let mut blocks = unreadable.iter().flat_map(|range| range.clone().step_by(BLOCK_BYTES));
    blocks.find(|at| !accepted.iter().any(|record| record.start < at + BLOCK_BYTES as u64 && *at < record.end))
}

/// The error of contents that were committed and cannot be read.
pub(crate) fn contents_of(lsn: u64, at: &Path) -> Arc<Error> {
    Arc::new(Error::unreadable(at, format!("the disk cannot read contents of commit {lsn}")))
}

/// The error of a commit, or of a part of the log that may hold one, that cannot be read.
pub(crate) fn stops(at: &Path, what: &str) -> Error {
    refuses(at, what, "keeps every commit before it")
}

/// The error of a header that cannot be read.
pub(crate) fn header_stops(at: &Path) -> Error {
    let salvaged = "uses the header before it, if the disk can read that one; an older header does not say which \
                    commits the files have already, so they may be of different commits";
    refuses(at, "the disk cannot read a header, which may be the newest", salvaged)
}

fn refuses(at: &Path, what: &str, salvaged: &str) -> Error {
    let detail = format!(
        "{what}. Nothing was changed. Copy the whole disk with a program that tries again, such as `ddrescue`, which \
         may succeed. If the disk cannot be read at all there, `untorn recover --salvage` {salvaged}"
    );
    Error::unreadable(at, detail)
}

/// Calls `found` for the head and checksum of each record that touches an unreadable range but whose head can be read,
/// and for each whole record that follows such a record in its group.
pub(crate) fn each_record_around(
    bytes: &[u8],
    unreadable: &[Range<u64>],
    key: Key,
    mut found: impl FnMut(RecordHead, u64, bool),
) {
    let starts = if unreadable.is_empty() { 0..0 } else { 0..bytes.len() };
    let mut seen = BTreeSet::new();
    for mut at in starts.step_by(BLOCK_BYTES) {
        // Follow the group as far as it goes. A record inside a group does not begin a group of its own.
        let mut behind_one = false;
        let head_at = |b: &[u8], at| RecordHead::decode_head(b, at, b.len() as u64, key);
        while let Some((head, crc)) = bytes.get(at..).and_then(|b| head_at(b, at as u64)) {
            let extent = at as u64..at as u64 + head.len;
            if touches(unreadable, &(extent.start..extent.start + RECORD_HEAD_BYTES as u64)) {
                break;
            }
            if touches(unreadable, &extent) {
                behind_one = true;
                if seen.insert(at) {
                    found(head, crc, false);
                }
            } else if RecordHead::decode(bytes, at, key).is_none() {
                break;
            } else if behind_one && at % BLOCK_BYTES != 0 && seen.insert(at) {
                found(head, crc, true);
            }
            at = (extent.end as usize).next_multiple_of(RECORD_ALIGN_BYTES);
        }
    }
}
