//! Undo logs of sections: the bytes that the sections of a thread overwrite, saved in the memory of a live heap.
//!
//! ```text
//! place    64 of them, one for each thread that has sections; two numbers in the head of
//!          the memory, and 1 MiB behind it
//! numbers  tail: bytes of the log in use · stable: sections up to this one can not be rolled back any more
//! record   16 bytes: address (48 bits), kind (4), size (8), 4 unused; a number
//! ```
//!
//! A kill stops each thread at an instruction. So the order is: record, tail, then the store that the record is about.
//! Only the compiler must be kept from changing that order.

use crate::invariant;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};
use untorn_os::{LIVE_HEAD_BYTES, LIVE_OWN_BYTES, holds};

/// The number of threads that can have a log at the same time.
pub(crate) const PLACES: usize = 64;
/// The size of a log.
pub(crate) const LOG_BYTES: usize = 1 << 20;
/// A log reserves room in steps of this size.
pub(crate) const ROOM_STEP: usize = 128 << 10;
/// The offset of the places' numbers in the head of the memory, behind `LiveHead`.
pub(crate) const PLACES_AT: usize = 64 << 10;
/// The offset of the logs.
const LOGS_AT: usize = 4 << 20;

pub(crate) const RECORD_BYTES: usize = 16;
const ADDRESS_BITS: u32 = 48;

const _: () = assert!(PLACES_AT + PLACES * size_of::<Numbers>() <= LIVE_OWN_BYTES);
const _: () = assert!(LOGS_AT + PLACES * LOG_BYTES <= LIVE_HEAD_BYTES);

/// The index of a log slot.
pub(crate) type Place = u8;

/// A section: its log slot, and its sequence number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SectionId {
    pub place: Place,
    pub number: u64,
}

/// On cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Numbers {
    tail: AtomicU64,
    stable: AtomicU64,
}

impl Numbers {
    #[inline]
    fn set_stable(&self, number: u64) {
        compiler_fence(SeqCst);
        self.stable.store(number, Release);
        compiler_fence(SeqCst);
    }

    /// Marks the section of this number as stable: it cannot be rolled back any more. Empties the log, which has no
    /// other section.
    #[inline]
    pub(crate) fn settle(&self, number: u64) {
        self.set_stable(number);
        self.tail.store(0, Release);
    }
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'l> {
    /// The old bytes, at most 8, at an address.
    Store { address: usize, old: [u8; 8], len: usize },
    /// More than 8 old bytes at an address.
    Bytes { address: usize, old: &'l [u8] },
    /// A section begins, at this time of the thread's clock.
    Begin { number: u64, clock: u64 },
    /// The section is complete, but may depend on others.
    End { number: u64 },
    /// The section has seen changes of another section that may still be rolled back.
    Depends { on: SectionId },
    /// From here on, the thread's clock has this time.
    Clock { clock: u64 },
    /// The section has allocated this block.
    Allocated { address: usize },
    /// The section frees this block, once it cannot be rolled back any more.
    Frees { address: usize },
    /// The record of a block that was freed, or is about to be.
    Freed,
}

const STORE: u64 = 1;
const BYTES: u64 = 2;
const BEGIN: u64 = 3;
const END: u64 = 4;
const DEPENDS: u64 = 5;
const CLOCK: u64 = 6;
const ALLOCATED: u64 = 7;
const FREES: u64 = 8;
const FREED: u64 = 9;

const fn word(kind: u64, address: u64, size: usize) -> u64 {
    address & ((1 << ADDRESS_BITS) - 1) | kind << ADDRESS_BITS | (size as u64) << (ADDRESS_BITS + 4)
}

/// Both words of a record without bytes behind it.
#[inline]
pub(crate) fn words_of(record: &Record<'_>) -> [u64; 2] {
    match *record {
        Record::Store { address, old, len } => [word(STORE, address as u64, len), u64::from_ne_bytes(old)],
        Record::Bytes { address, old } => [word(BYTES, address as u64, 0), old.len() as u64],
        Record::Begin { number, clock } => [word(BEGIN, number, 0), clock],
        Record::End { number } => [word(END, number, 0), 0],
        Record::Depends { on } => [word(DEPENDS, u64::from(on.place), 0), on.number],
        Record::Clock { clock } => [word(CLOCK, 0, 0), clock],
        Record::Allocated { address } => [word(ALLOCATED, address as u64, 0), 0],
        Record::Frees { address } => [word(FREES, address as u64, 0), 0],
        Record::Freed => [word(FREED, 0, 0), 0],
    }
}

/// The size of a record with this many old bytes.
pub(crate) fn bytes_record(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(RECORD_BYTES)?.checked_add(RECORD_BYTES)
}

/// The logs in the head of a live heap's memory. They stay mapped for ever, even after the heap is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectionLogs {
    head: NonNull<u8>,
}

// SAFETY: atomics, and bytes that only one thread at a time uses.
unsafe impl Send for SectionLogs {}
// SAFETY: as above.
unsafe impl Sync for SectionLogs {}

impl SectionLogs {
    /// # Safety
    /// The head of live memory is mapped there, for ever.
    pub(crate) unsafe fn at(head: NonNull<u8>) -> SectionLogs {
        SectionLogs { head }
    }

    pub(crate) fn numbers(&self, place: Place) -> &Numbers {
        assert!((place as usize) < PLACES);
        // SAFETY: within the head, at a multiple of the alignment; numbers are any bytes.
        unsafe { self.head.add(PLACES_AT).cast::<Numbers>().add(place as usize).as_ref() }
    }

    pub(crate) fn tail(&self, place: Place) -> &AtomicU64 {
        &self.numbers(place).tail
    }

    /// The last section of a place that is stable.
    #[inline]
    pub(crate) fn stable(&self, place: Place) -> u64 {
        self.numbers(place).stable.load(Acquire)
    }

    pub(crate) fn set_stable(&self, place: Place, number: u64) {
        self.numbers(place).set_stable(number);
    }

    /// The offset of a place's records in the head.
    pub(crate) fn offset(place: Place) -> usize {
        LOGS_AT + place as usize * LOG_BYTES
    }

    pub(crate) fn records(&self, place: Place) -> NonNull<u8> {
        // SAFETY: within the head.
        unsafe { self.head.add(SectionLogs::offset(place)) }
    }

    /// Notes that the block of the record at an offset is free, or is about to be freed.
    pub(crate) fn set_freed(&self, place: Place, at: usize) {
        assert!(at + RECORD_BYTES <= LOG_BYTES);
        compiler_fence(SeqCst);
        // SAFETY: within the log; a record's first word, which nobody else changes.
        unsafe { AtomicU64::from_ptr(self.records(place).add(at).cast().as_ptr()) }
            .store(words_of(&Record::Freed)[0], Relaxed);
        compiler_fence(SeqCst);
    }

    /// The records of a place. None: the tail is beyond the end of the log.
    ///
    /// # Safety
    /// Nobody changes the log while the records are used.
    pub(crate) unsafe fn read(&self, place: Place) -> Option<&[u8]> {
        let tail = self.tail(place).load(Acquire) as usize;
        // SAFETY: bytes in use, within the log; nobody changes them.
        (tail <= LOG_BYTES).then(|| unsafe { std::slice::from_raw_parts(self.records(place).as_ptr(), tail) })
    }

    /// Copies the logs of all places to zeroed memory with the layout of the head. Allocates nothing, and takes no
    /// lock.
    ///
    /// # Safety
    /// Nobody changes the logs meanwhile, and nobody else uses the memory.
    pub(crate) unsafe fn copy_to(&self, other: &SectionLogs) {
        for place in 0..PLACES as Place {
            let (from, to) = (self.numbers(place), other.numbers(place));
            let tail = from.tail.load(Acquire);
            to.tail.store(tail, Relaxed);
            to.stable.store(from.stable.load(Acquire), Relaxed);
            // A tail beyond the end is copied without bytes, and a reader reports it.
            if tail <= LOG_BYTES as u64 {
                // SAFETY: bytes in use, and as many in the other memory.
                unsafe { other.records(place).copy_from_nonoverlapping(self.records(place), tail as usize) };
            }
        }
    }

    /// Empties the logs of all places.
    pub(crate) fn settle_all(&self) {
        for place in 0..PLACES as Place {
            if self.tail(place).load(Relaxed) != 0 {
                self.tail(place).store(0, Release);
            }
        }
    }
}

/// Parses a log: each record with its offset. A last item of None means that the rest makes no sense.
pub(crate) fn parse(log: &[u8]) -> impl Iterator<Item = Option<(usize, Record<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= log.len() {
            return None;
        }
        let Some((record, len)) = parse_one(&log[at..]) else {
            at = log.len();
            return Some(None);
        };
        let found = (at, record);
        at += len;
        Some(Some(found))
    })
}

fn parse_one(log: &[u8]) -> Option<(Record<'_>, usize)> {
    let word = |at: usize| Some(u64::from_ne_bytes(log.get(at..at + 8)?.try_into().ok()?));
    let (first, second) = (word(0)?, word(8)?);
    let address = first & ((1 << ADDRESS_BITS) - 1);
    let size = (first >> (ADDRESS_BITS + 4) & 0xff) as usize;
    let record = match first >> ADDRESS_BITS & 0xf {
        STORE if (1..=8).contains(&size) => {
            Record::Store { address: address as usize, old: second.to_ne_bytes(), len: size }
        }
        BYTES => {
            let len = usize::try_from(second).ok()?;
            let bytes = bytes_record(len).filter(|bytes| *bytes <= log.len())?;
            let old = &log[RECORD_BYTES..RECORD_BYTES + len];
            return Some((Record::Bytes { address: address as usize, old }, bytes));
        }
        BEGIN => Record::Begin { number: address, clock: second },
        END => Record::End { number: address },
        DEPENDS => {
            let place = Place::try_from(address).ok().filter(|place| (*place as usize) < PLACES)?;
            Record::Depends { on: SectionId { place, number: second } }
        }
        CLOCK => Record::Clock { clock: second },
        ALLOCATED => Record::Allocated { address: address as usize },
        FREES => Record::Frees { address: address as usize },
        FREED => Record::Freed,
        _ => return None,
    };
    Some((record, RECORD_BYTES))
}

/// Writes to the log of one thread. The program's own hooks write there, too, so `live/hooks.c` has the same layout.
#[repr(C, align(64))]
pub struct LogWriter {
    /// The address of the heap.
    base: usize,
    /// The bytes of address space of the heap. 0: the thread is in no section.
    bytes: usize,
    /// The number of bytes in use, as a recovery sees it.
    tail: *const AtomicU64,
    records: *mut u8,
    /// The offset behind the record that begins the section. That record comes into use only with the next one.
    begun: usize,
    /// The number of bytes for which there is room.
    room: usize,
    /// The number of the section to which filter entries belong, in the upper 12 bits.
    epoch: u64,
    /// The thread's state in the heap in which it had its last section. The module above knows the type.
    pub(crate) section: *mut (),
    /// A cache of the stores that the section has logged: address, size (4 bits), epoch.
    filter: [u64; FILTER],
}

const FILTER: usize = 128;
const EPOCH_SHIFT: u32 = 52;
const SIZE_SHIFT: u32 = ADDRESS_BITS;

impl LogWriter {
    pub(crate) const fn new() -> LogWriter {
        LogWriter {
            base: 0,
            bytes: 0,
            tail: std::ptr::null(),
            records: std::ptr::null_mut(),
            begun: 0,
            room: 0,
            epoch: 0,
            section: std::ptr::null_mut(),
            filter: [0; FILTER],
        }
    }

    /// Begins a section in a heap at these addresses, with the log of a place.
    pub(crate) fn begin(&mut self, (base, bytes): (usize, usize), logs: &SectionLogs, place: Place, room: usize) {
        self.tail = logs.tail(place);
        self.records = logs.records(place).as_ptr();
        (self.begun, self.room) = (0, room);
        if holds(invariant::SECTION_FILTER_FORGETS) {
            self.forget();
        }
        (self.base, self.bytes) = (base, bytes);
    }

    /// Writes the record that begins a section, at the start of an empty log, and clears the filter.
    #[inline(always)]
    pub(crate) fn prepare(&mut self, begin: &Record<'_>) {
        if holds(invariant::SECTION_FILTER_FORGETS) {
            self.forget();
        }
        // SAFETY: in the log of this thread, which has room for that.
        unsafe { self.records.cast::<[u64; 2]>().write(words_of(begin)) };
    }

    /// Begins the next section in the same heap; its first record is written already.
    #[inline(always)]
    pub(crate) fn go_on(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: the tail of this thread's log, which is mapped for ever.
        unsafe { &*self.tail }
    }

    /// Invalidates all entries of the filter.
    #[inline]
    fn forget(&mut self) {
        #[cold]
        fn begin_anew(writer: &mut LogWriter) {
            writer.filter = [0; FILTER];
            writer.epoch = 1 << EPOCH_SHIFT;
        }
        self.epoch = self.epoch.wrapping_add(1 << EPOCH_SHIFT);
        if self.epoch == 0 {
            begin_anew(self);
        }
    }

    /// Ends the section: the thread is in none now.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.bytes = 0;
    }

    /// The bytes of the log that are written, including the record that begins the section.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.begun.max(self.tail().load(Relaxed) as usize)
    }

    /// Whether the prepared section has logged anything.
    #[inline(always)]
    pub(crate) fn has_logged(&self) -> bool {
        self.tail().load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    pub(crate) fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Whether this many bytes more fit.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.room - self.used()
    }

    /// Writes the record that begins a section; a recovery sees it together with the next record. The caller has made
    /// sure that there is room.
    pub(crate) fn append_begin(&mut self, begin: &Record<'_>) {
        let at = self.used();
        self.begun = self.write(at, begin);
    }

    /// Appends a record that a recovery sees from now on; the caller makes its store after this. The caller has made
    /// sure that there is room. Returns the record's offset.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> usize {
        let at = self.used();
        let used = self.write(at, record);
        self.publish(used);
        at
    }

    /// Writes a record; returns the offset of its end.
    fn write(&mut self, at: usize, record: &Record<'_>) -> usize {
        let words = words_of(record);
        // SAFETY: the caller has seen that there is room, in the log of this thread.
        unsafe { self.records.add(at).cast::<[u64; 2]>().write(words) };
        let mut len = RECORD_BYTES;
        if let Record::Bytes { old, .. } = record {
            // SAFETY: as above.
            unsafe { self.records.add(at + RECORD_BYTES).copy_from_nonoverlapping(old.as_ptr(), old.len()) };
            len = bytes_record(old.len()).expect("it has room");
        }
        debug_assert!(len <= self.room - at);
        at + len
    }

    fn publish(&self, used: usize) {
        if holds(invariant::SECTION_LOGGED_FIRST) {
            compiler_fence(SeqCst);
            self.tail().store(used as u64, Release);
            compiler_fence(SeqCst);
        }
    }

    /// Removes the records behind this offset from the log.
    pub(crate) fn cut_back(&mut self, used: usize) {
        self.forget();
        self.publish(used);
    }

    /// Whether these bytes were logged in this section. If not, they count as logged from now on.
    pub(crate) fn is_known(&mut self, address: usize, len: usize) -> bool {
        if !(1..=8).contains(&len) {
            return false;
        }
        let key = address as u64 | (len as u64) << SIZE_SHIFT | self.epoch;
        std::mem::replace(&mut self.filter[(address >> 3) % FILTER], key) == key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let old = [7; 45];
        let on = SectionId { place: 63, number: 1 << 60 };
        let address = (31 << 40) + 5;
        let records = [
            Record::Begin { number: 5, clock: u64::MAX },
            Record::Store { address, old: [1, 2, 3, 0, 0, 0, 0, 0], len: 3 },
            Record::Bytes { address, old: &old },
            Record::Bytes { address, old: &[] },
            Record::Depends { on },
            Record::Clock { clock: 9 },
            Record::Allocated { address },
            Record::Frees { address },
            Record::Freed,
            Record::End { number: 5 },
        ];
        let mut log = Vec::new();
        for record in &records {
            log.extend(words_of(record).iter().flat_map(|word| word.to_ne_bytes()));
            if let Record::Bytes { old, .. } = record {
                log.extend_from_slice(old);
                log.resize(log.len().next_multiple_of(RECORD_BYTES), 0);
            }
        }
        let read: Vec<_> = parse(&log).map(|found| found.expect("a record").1).collect();
        assert_eq!(read, records);
        // Reading stays within the bytes, and a cut-off record is reported.
        for end in 0..log.len() {
            let all: Vec<_> = parse(&log[..end]).collect();
            assert!(all.iter().filter(|found| found.is_none()).count() <= 1);
        }
        assert_eq!(parse(&[0xff; 16]).collect::<Vec<_>>(), [None]);
    }
}
