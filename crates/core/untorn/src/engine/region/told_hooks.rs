//! What a program's hooks tell (`live/hooks.c`): of each mapping with the tracker `told`, a byte for each line of 64 bytes that
//! was stored to, and one for each page with such a line.
//!
//! A hook sets the line's byte and then the page's, before the store. [`Hooked::take`] clears a page's byte and then takes its
//! lines: what is set meanwhile is found now, or the next time. A commit that takes a byte between the telling and the store
//! does not have the store, and nor has a later one: threads that store while another commits hold a guard, or tell again.
//!
//! A hook may look at a mapping that has just been unmapped, as other memory may lie there. So what it looks at is never changed
//! and never freed, and the bytes that it sets stay mapped: those of one mapping become those of a later one, for which a byte
//! too many that is set is no harm.

use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use untorn_os::Scratch;

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
const LINES: usize = (PAGE_BYTES / LINE_BYTES) as usize;
/// Mappings that the hooks know at the same time.
const MAPPINGS_MOST: usize = 64;

/// What the hooks look at before each store, in the program's memory. Laid out as in `live/hooks.c`.
#[repr(C)]
pub struct ToldTable {
    /// No entry from here on was ever used.
    used: AtomicUsize,
    /// Null: there is no mapping.
    entries: [AtomicPtr<Known>; MAPPINGS_MOST],
}

/// A mapping, as the hooks know it.
#[repr(C)]
struct Known {
    base: usize,
    bytes: usize,
    lines: *const AtomicU8,
    pages: *const AtomicU8,
    /// What its entry had before, so that nothing is out of reach. The hooks do not have it.
    _before: Option<&'static Known>,
}

// SAFETY: addresses of memory that stays for ever, and is used as atomics alone.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

/// An entry's bytes, for one mapping after the other.
struct Room {
    lines: Scratch,
    pages: Scratch,
    /// For mappings of so many bytes.
    bytes: u64,
    is_taken: bool,
    last: Option<&'static Known>,
}

impl Room {
    fn new(bytes: u64) -> io::Result<Room> {
        let of = |unit: u64| Scratch::new(bytes.div_ceil(unit) as usize);
        Ok(Room { lines: of(LINE_BYTES)?, pages: of(PAGE_BYTES)?, bytes, is_taken: false, last: None })
    }
}

static TABLE: OnceLock<&'static ToldTable> = OnceLock::new();
/// Of each entry that was ever used.
static ROOMS: Mutex<Vec<Room>> = Mutex::new(Vec::new());

fn rooms() -> MutexGuard<'static, Vec<Room>> {
    ROOMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program's hooks look at this table.
pub fn set_told_table(table: &'static ToldTable) {
    let _ = TABLE.set(table);
}

/// A mapping that the hooks know.
pub(super) struct Hooked {
    entry: usize,
    table: &'static ToldTable,
    known: &'static Known,
}

impl Hooked {
    /// The hooks know the mapping from now on. None: the program has no hooks.
    pub(super) fn new(base: usize, bytes: u64) -> io::Result<Option<Hooked>> {
        let Some(table) = TABLE.get() else { return Ok(None) };
        let mut rooms = rooms();
        let is_free = |room: &Room| !room.is_taken && room.bytes >= bytes;
        let free = rooms.iter().position(is_free);
        let entry = match free {
            Some(entry) => entry,
            None if rooms.len() < MAPPINGS_MOST => {
                rooms.push(Room::new(bytes)?);
                rooms.len() - 1
            }
            None => {
                let Some(entry) = rooms.iter().position(|room| !room.is_taken) else {
                    return Err(io::Error::other(format!(
                        "the program's hooks know {MAPPINGS_MOST} mappings with the tracker `told` already; unmap one first"
                    )));
                };
                let last = rooms[entry].last;
                // A hook may still be about to set a byte of the smaller one, which stays where it is.
                std::mem::forget(std::mem::replace(&mut rooms[entry], Room { last, ..Room::new(bytes)? }));
                entry
            }
        };
        let room = &mut rooms[entry];
        let known: &'static Known = Box::leak(Box::new(Known {
            base,
            bytes: bytes as usize,
            lines: room.lines.address().cast().as_ptr(),
            pages: room.pages.address().cast().as_ptr(),
            _before: room.last,
        }));
        (room.is_taken, room.last) = (true, Some(known));
        table.entries[entry].store(std::ptr::from_ref(known).cast_mut(), Release);
        table.used.fetch_max(entry + 1, Release);
        Ok(Some(Hooked { entry, table, known }))
    }

    fn flags(&self, all: *const AtomicU8, range: Range<usize>) -> &[AtomicU8] {
        // SAFETY: within the room, which stays mapped; bytes that are used as atomics alone.
        unsafe { std::slice::from_raw_parts(all.add(range.start), range.len()) }
    }

    /// Appends the lines that were stored to, before an end.
    pub(super) fn take(&self, end: u64, into: &mut Vec<Range<u64>>) {
        const AT_ONCE: usize = 8;
        let pages = self.flags(self.known.pages, 0..end.div_ceil(PAGE_BYTES) as usize);
        for (n, some) in pages.chunks(AT_ONCE).enumerate() {
            // Most of them are clear.
            if some.iter().fold(0, |all, page| all | page.load(Relaxed)) == 0 {
                continue;
            }
            for (m, page) in some.iter().enumerate() {
                if page.load(Relaxed) != 0 && page.swap(0, Acquire) != 0 {
                    self.take_page(n * AT_ONCE + m, into);
                }
            }
        }
    }

    fn take_page(&self, page: usize, into: &mut Vec<Range<u64>>) {
        for (n, line) in self.flags(self.known.lines, page * LINES..(page + 1) * LINES).iter().enumerate() {
            if line.load(Relaxed) == 0 || line.swap(0, Acquire) == 0 {
                continue;
            }
            let start = (page * LINES + n) as u64 * LINE_BYTES;
            match into.last_mut() {
                Some(last) if last.end == start => last.end += LINE_BYTES,
                _ => into.push(start..start + LINE_BYTES),
            }
        }
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        self.table.entries[self.entry].store(null_mut(), Release);
        let mut rooms = rooms();
        let room = &mut rooms[self.entry];
        room.lines.clear();
        room.pages.clear();
        room.is_taken = false;
    }
}
