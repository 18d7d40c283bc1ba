//! Reports of a program's hooks (`live/hooks.c`): for each mapping with the tracker `explicit`, a byte for each line of 64
//! bytes that was stored to, and a byte for each page with such a line.
//!
//! A hook sets the line's byte and then the page's, before the store. [`Hooked::take`] clears a page's byte and then
//! takes its lines: a byte that is set meanwhile is found now, or the next time. A commit that takes a byte between the
//! report and the store does not have the store, and neither has a later one. So threads that store while another
//! thread commits hold a guard, or report again.
//!
//! A hook may read the entry of a mapping that was just unmapped, because other memory may be there. So an entry is
//! never changed or freed, and the bytes that hooks set stay mapped: those of one mapping are reused for a later one,
//! for which an extra byte that is set is harmless.

use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};
use untorn_os::Scratch;

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
const LINES: usize = (PAGE_BYTES / LINE_BYTES) as usize;
/// Limit for the mappings that the hooks know at the same time.
const MAPPINGS_MOST: usize = 64;

/// The table that the hooks read before each store, in the program's memory. Laid out as in `live/hooks.c`.
#[repr(C)]
pub struct MarkTable {
    /// Number of entries that were ever used.
    used: AtomicUsize,
    /// Null for an entry without a mapping.
    entries: [AtomicPtr<Known>; MAPPINGS_MOST],
}

/// A mapping, as the hooks know it.
#[repr(C)]
struct Known {
    base: usize,
    bytes: usize,
    lines: *const AtomicU8,
    pages: *const AtomicU8,
    /// The previous value of its entry, so that leaked memory stays reachable. The hooks do not have this field.
    _before: Option<&'static Known>,
}

// SAFETY: addresses of memory that stays for ever, and is used as atomics alone.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

/// The bytes of an entry, used for one mapping after the other.
struct Room {
    lines: Scratch,
    pages: Scratch,
    /// Size of the largest mapping that they cover.
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

static TABLE: OnceLock<&'static MarkTable> = OnceLock::new();
/// For each entry that was ever used.
static ROOMS: Mutex<Vec<Room>> = Mutex::new(Vec::new());

/// Sets the table that the program's hooks read.
pub fn set_mark_table(table: &'static MarkTable) {
    let _ = TABLE.set(table);
}

/// A mapping that the hooks know.
pub(super) struct Hooked {
    entry: usize,
    table: &'static MarkTable,
    known: &'static Known,
}

impl Hooked {
    /// Registers a mapping with the hooks. Returns `None` if the program has no hooks.
    pub(super) fn new(base: usize, bytes: u64) -> io::Result<Option<Hooked>> {
        let Some(table) = TABLE.get() else { return Ok(None) };
        let mut rooms = ROOMS.lock();
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
                        "the program's hooks support at most {MAPPINGS_MOST} mappings with the tracker `explicit`; unmap one first"
                    )));
                };
                let last = rooms[entry].last;
                // A hook may still be about to set a byte in the smaller room, so that one stays mapped.
                std::mem::forget(std::mem::replace(&mut rooms[entry], Room { last, ..Room::new(bytes)? }));
                entry
            }
        };
        let room = &mut rooms[entry];
        debug_assert!(!room.is_taken && room.bytes >= bytes, "entry {entry} of {} bytes for {bytes}", room.bytes);
        debug_assert!(table.entries[entry].load(Relaxed).is_null(), "the hooks know a mapping in entry {entry}");
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

    /// Appends the lines before `end` that were stored to.
    pub(super) fn take(&self, end: u64, into: &mut Vec<Range<u64>>) {
        const AT_ONCE: usize = 8;
        debug_assert!(end <= self.known.bytes as u64, "{end} bytes of a mapping of {}", self.known.bytes);
        let pages = self.flags(self.known.pages, 0..end.div_ceil(PAGE_BYTES) as usize);
        for (n, some) in pages.chunks(AT_ONCE).enumerate() {
            // Usually all of them are clear.
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
        let mut rooms = ROOMS.lock();
        let room = &mut rooms[self.entry];
        room.lines.clear();
        room.pages.clear();
        room.is_taken = false;
    }
}
