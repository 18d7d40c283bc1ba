//! Reads the header file of a journal: its slots, and the attribute in which a closed journal has its header.

use crate::error::{Context, Error, Result};
use crate::format::unreadable::{header_stops, is_media_error, read_around};
use crate::format::{BLOCK_BYTES, HEADER_SLOTS, Header, VERSION};
use crate::invariant;
use crate::sync_point;
use std::path::Path;
use untorn_os::{
    AlignedBuf, File, Open, Storage, SyncPoint, holds, read_full_at, read_full_past_cache_at, write_all_at,
};

/// Reads the slots of a header file; missing bytes are zeros.
pub(crate) fn read_slots(file: &dyn File, path: &Path) -> Result<Vec<u8>> {
    let mut slots = vec![0; BLOCK_BYTES * HEADER_SLOTS as usize];
    read_full_at(file, &mut slots, 0).context("read", path)?;
    Ok(slots)
}

/// Reads the slots of a header file; unreadable ones are zeros. Returns whether the disk could read all.
fn read_readable_slots(file: &dyn File, path: &Path) -> Result<(Vec<u8>, bool)> {
    let mut slots = vec![0; BLOCK_BYTES * HEADER_SLOTS as usize];
    let read = |slot: &mut [u8], at| read_full_at(file, slot, at).map(drop);
    let unreadable = read_around(&mut slots, read).context("read", path)?;
    Ok((slots, unreadable.is_empty()))
}

/// The header in the slot of a generation. A header in the wrong slot was not written there: a torn write left old
/// contents of another block, perhaps a header of a removed journal.
fn header_in_slot(slots: &[u8], generation: u64, path: &Path) -> Result<Option<Header>> {
    let at = Header::slot_of(generation);
    let header = Header::decode(&slots[at as usize..][..BLOCK_BYTES], path)?;
    Ok(header.filter(|header| Header::slot_of(header.generation) == at))
}

/// Reads the newest valid header of a journal: from a slot, or from the attribute.
pub fn read_header(storage: &dyn Storage, journal: &Path) -> Result<Header> {
    match read_readable_header(storage, journal)? {
        (header, None) => Ok(header),
        (_, Some(unreadable)) => Err(unreadable),
    }
}

/// Reads the newest valid header that the disk can read. If an error is returned with it, an unreadable slot may have a
/// newer one.
pub(crate) fn read_readable_header(storage: &dyn Storage, journal: &Path) -> Result<(Header, Option<Error>)> {
    let path = journal.join("header");
    let file = match storage.open(&path, Open::READ) {
        // A journal is created with its header, so somebody removed it.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corrupt(path, "the header file is missing"));
        }
        done => done.context("open", &path)?,
    };
    let (slots, all_readable) = read_readable_slots(&*file, &path)?;
    let unreadable = (!all_readable && holds(invariant::UNREADABLE_HEADER)).then(|| header_stops(&path));
    let mut best: Option<Header> = None;
    for generation in 0..HEADER_SLOTS {
        let header = header_in_slot(&slots, generation, &path)?;
        best = best.into_iter().chain(header).max_by_key(|header| header.generation);
    }
    if let Some(slot) = &best
        && let Some(value) = file.attribute().context("read the attribute of", &path)?
        && let Some(closed) = slot.decode_closed(&value, &slots, &path)?
        && closed.generation >= slot.generation
    {
        return Ok((closed, unreadable));
    }
    match (best, unreadable) {
        (Some(header), unreadable) => Ok((header, unreadable)),
        (None, Some(unreadable)) => Err(unreadable),
        (None, None)
            if slots.iter().any(|b| *b != 0)
                && !slots.windows(8).step_by(BLOCK_BYTES).any(|w| w == crate::format::HEADER_MAGIC) =>
        {
            Err(Error::Foreign { path, detail: "it is not a journal header of Untorn's".into() })
        }
        (None, None) => Err(Error::corrupt(path, "neither header slot is valid")),
    }
}

/// Flushes the header and reads it back from the disk, because after an earlier failed flush the page cache still shows
/// the lost bytes.
pub fn flush_header(storage: &dyn Storage, journal: &Path, how: Open, point: SyncPoint) -> Result<()> {
    let path = journal.join("header");
    let file = match storage.open(&path, how) {
        // The reader of the header reports that it is missing.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        done => done.context("open", &path)?,
    };
    // A full flush, because it includes the attribute.
    file.sync_all(point).context("flush", &path)?;
    let mut slots = AlignedBuf::zeroed(BLOCK_BYTES * HEADER_SLOTS as usize);
    match read_full_past_cache_at(&*file, &mut slots, 0) {
        // The reader of the header reports that it cannot be read.
        Err(e) if is_media_error(&e) => Ok(()),
        done => done.context("read", &path).map(drop),
    }
}

/// A boot id that no boot has. The state of the files is unknown to every opening of a journal with it.
const NO_BOOT: [u8; 16] = [0xff; 16];

/// Notes durably that a flush of unflushed data of class `process` failed. The kernel reports success for the next
/// flush, although the data are lost.
pub fn note_lost_flush(storage: &dyn Storage, journal: &Path) -> Result<()> {
    if !holds(invariant::FAILED_FLUSH_NOTED) {
        return Ok(());
    }
    let header = read_header(storage, journal)?;
    let path = journal.join("header");
    let file = storage.open(&path, Open::WRITE).context("open", &path)?;
    // A power cut may tear this write, and the remaining header must name a boot, too. If both headers name a boot, the
    // older one is durable, and the newer one possibly not. Otherwise the newer one is durable.
    let older = header_in_slot(&read_slots(&*file, &path)?, header.generation + 1, &path)?;
    let older_names_boot = older.is_some_and(|older| older.boot.is_some() && older.generation < header.generation);
    let over_newest = older_names_boot || header.by_attribute;
    let generation = header.generation + if over_newest { HEADER_SLOTS } else { 1 };
    let header =
        Header { generation, clean: false, boot: Some(NO_BOOT), by_attribute: false, version: VERSION, ..header };
    write_all_at(&*file, &header.encode(), Header::slot_of(header.generation)).context("write", &path)?;
    file.sync_data(sync_point::HEADER_BOOT).context("flush", &path)
}
