//! Leases: they keep a checkpoint from applying commits while somebody reads an older one.
//!
//! A lease is an open-file-description read lock on one byte of the owner's page, and ends with its holder. The offset
//! of the byte encodes the commit, so the owner can ask the kernel for the oldest commit that is held, and writes
//! nothing for readers. A reader locks first and then checks whether the owner already wants to apply newer commits; an
//! owner first announces its intent, and then looks for leases. So at least one of the two sees the other.

use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Result};
use crate::format::crc64;
use crate::invariant;
use crate::scanning::scan::read_slots;
use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;
use untorn_os::{File, Open, Storage, holds};

/// How long leases are honoured, unless the owner says otherwise.
pub const LEASES_HONOURED: Duration = Duration::from_secs(10);

/// Bits of the commit's LSN in the offset of its lease.
const LSN_BITS: u32 = 48;
/// Bits of the page's life in the offset. The next owner must not wait for a broken lease, which is one of an ended
/// life.
const LIFE_BITS: u32 = 14;

/// The byte of the page that readers of this commit lock, or `None` if no commit has such a number.
pub fn lease_at(life: u64, lsn: u64) -> Option<u64> {
    let of_life = (life & ((1 << LIFE_BITS) - 1)) << LSN_BITS;
    (lsn < 1 << LSN_BITS).then_some(of_life | lsn)
}

/// The byte range of the leases on these commits.
pub fn leases_of(life: u64, lsns: Range<u64>) -> Range<u64> {
    let most = (1 << LSN_BITS) - 1;
    let at = |lsn: u64| lease_at(life, lsn.min(most)).expect("a number that is small enough");
    let leases = at(lsns.start)..at(lsns.end).max(at(lsns.start));
    debug_assert!(leases.end < 1 << (LSN_BITS + LIFE_BITS), "leases at {leases:?} reach to the byte of all readers");
    leases
}

/// Limit for reported leases, because a reader may lock any number of bytes.
const TOLD_MAX: usize = 1000;

/// The commits among these that readers hold.
pub fn held(page: &dyn File, life: u64, lsns: Range<u64>) -> Vec<u64> {
    let (mut found, mut left) = (Vec::new(), vec![leases_of(life, lsns)]);
    while let Some(range) = left.pop().filter(|_| found.len() < TOLD_MAX) {
        if let Ok(Some(at)) = page.leased(range.clone()) {
            found.push(at & ((1 << LSN_BITS) - 1));
            left.extend([range.start..at, at + 1..range.end]);
        }
    }
    found.sort_unstable();
    found
}

/// The life to which leases on a closed store belong. It changes each time somebody opens the store, because the page's
/// head then changes, if not the header.
pub fn closed_life(header: &[u8], page_head: &[u8]) -> u64 {
    // The head is taken without its checksum: a CRC over bytes that end in their own checksum does not depend on the
    // bytes.
    let drawn = page_head.len().saturating_sub(size_of::<u64>());
    let page_head = if holds(invariant::PAGE_HEAD_COMPARED) { &page_head[..drawn] } else { &[] };
    crc64(&[header, page_head].concat())
}

/// The contents of the header file and of its attribute.
pub fn header_bytes(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<u8>> {
    let path = store_dir.journal().join("header");
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        done => done.context("open", &path)?,
    };
    let mut bytes = read_slots(&*file, &path)?;
    bytes.extend(file.attribute().context("read the attribute of", &path)?.unwrap_or_default());
    Ok(bytes)
}

/// Waits until none of these bytes is leased, for at most `honoured`, and not beyond `end`.
pub fn wait(
    storage: &dyn Storage,
    page: &dyn File,
    ranges: &[Range<u64>],
    honoured: Duration,
    end: impl Fn() -> Duration,
) {
    // If the kernel cannot report leases, there is nothing to wait for.
    let leased = |range: &Range<u64>| page.leased(range.clone()).ok().flatten();
    let (mut since, mut last) = (storage.uptime(), None);
    while let Some(at) = ranges.iter().find_map(leased) {
        // One timer for all leases: with a new one for each, successive readers could hold up the owner for ever.
        if !holds(invariant::ONE_TIMER) && last.replace(at) != Some(at) {
            since = storage.uptime();
        }
        if storage.uptime() >= since.saturating_add(honoured).min(end()) {
            return;
        }
        storage.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_have_places_of_their_own() {
        let most = (1 << LSN_BITS) - 1;
        assert_eq!(lease_at(0, 7), Some(7));
        assert_eq!(lease_at(u64::MAX, most), Some((1 << (LSN_BITS + LIFE_BITS)) - 1), "an offset of a file");
        assert_eq!(lease_at(1, 1 << LSN_BITS), None);
        assert_eq!(leases_of(3, 5..u64::MAX), (3 << LSN_BITS | 5)..(3 << LSN_BITS | most));
        assert!(leases_of(3, Range { start: 9, end: 5 }).is_empty());
    }
}
