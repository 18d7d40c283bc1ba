//! What a program's hooks tell (`live/hooks.c`): of each mapping with the tracker `told`, a byte for each line of 64 bytes that
//! was stored to, and one for each page with such a line.
//!
//! A hook sets the line's byte and then the page's, before the store. [`Hooked::take`] clears a page's byte and then takes its
//! lines: what is set meanwhile is found now, or the next time.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
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
    entries: [Entry; MAPPINGS_MOST],
}

#[repr(C)]
struct Entry {
    base: AtomicUsize,
    /// 0: there is no mapping.
    bytes: AtomicUsize,
    lines: AtomicPtr<AtomicU8>,
    pages: AtomicPtr<AtomicU8>,
}

static TABLE: OnceLock<&'static ToldTable> = OnceLock::new();
/// Entries that are taken, a bit for each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The program's hooks look at this table.
pub fn set_told_table(table: &'static ToldTable) {
    let _ = TABLE.set(table);
}

/// A mapping that the hooks know.
pub(super) struct Hooked {
    entry: usize,
    table: &'static ToldTable,
    lines: Scratch,
    pages: Scratch,
}

impl Hooked {
    /// The hooks know the mapping from now on. None: the program has no hooks.
    pub(super) fn new(base: usize, bytes: u64) -> io::Result<Option<Hooked>> {
        let Some(table) = TABLE.get() else { return Ok(None) };
        let taken = TAKEN.fetch_update(Relaxed, Relaxed, |taken| (taken != u64::MAX).then(|| taken | (taken + 1)));
        let Ok(taken) = taken else {
            return Err(io::Error::other(format!(
                "the program's hooks know {MAPPINGS_MOST} mappings with the tracker `told` already; unmap one first"
            )));
        };
        let entry = taken.trailing_ones() as usize;
        let room = |unit: u64| Scratch::new(bytes.div_ceil(unit) as usize);
        let (lines, pages) = match (room(LINE_BYTES), room(PAGE_BYTES)) {
            (Ok(lines), Ok(pages)) => (lines, pages),
            (Err(e), _) | (_, Err(e)) => {
                TAKEN.fetch_and(!(1 << entry), Relaxed);
                return Err(e);
            }
        };
        let slot = &table.entries[entry];
        slot.base.store(base, Relaxed);
        slot.lines.store(lines.address().cast().as_ptr(), Relaxed);
        slot.pages.store(pages.address().cast().as_ptr(), Relaxed);
        slot.bytes.store(bytes as usize, Release);
        table.used.fetch_max(entry + 1, Release);
        Ok(Some(Hooked { entry, table, lines, pages }))
    }

    fn flags(room: &Scratch, range: Range<usize>) -> &[AtomicU8] {
        // SAFETY: within the room, which lives as long as the result; bytes that are used as atomics alone.
        unsafe { std::slice::from_raw_parts(room.address().cast::<AtomicU8>().as_ptr().add(range.start), range.len()) }
    }

    /// Appends the lines that were stored to, before an end.
    pub(super) fn take(&self, end: u64, into: &mut Vec<Range<u64>>) {
        const AT_ONCE: usize = 8;
        let pages = Hooked::flags(&self.pages, 0..end.div_ceil(PAGE_BYTES) as usize);
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
        for (n, line) in Hooked::flags(&self.lines, page * LINES..(page + 1) * LINES).iter().enumerate() {
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
        self.table.entries[self.entry].bytes.store(0, Release);
        TAKEN.fetch_and(!(1 << self.entry), Relaxed);
    }
}
