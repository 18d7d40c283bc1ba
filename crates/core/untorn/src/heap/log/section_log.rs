//! The logs of sections: what the sections of a thread overwrite, in the memory of a live heap.
//!
//! ```text
//! place    64 of them, one for each thread that has sections; two numbers in the head of the memory, and 1 MiB behind it
//! numbers  tail: bytes of the log in use · stable: sections up to this one can not be rolled back any more
//! record   16 bytes: address (48 bits), kind (4), size (8), 4 unused; a number
//! ```
//!
//! A process that is killed stops each thread at an instruction. So the order is: record, tail, then the store that the record
//! is about; only the compiler has to be kept from changing it.

use crate::invariant;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};
use untorn_os::{LIVE_HEAD_BYTES, LIVE_OWN_BYTES, holds};

/// Threads that have a log at the same time.
pub(crate) const PLACES: usize = 64;
/// Bytes of a log.
pub(crate) const LOG_BYTES: usize = 1 << 20;
/// By so many bytes a log takes room.
pub(crate) const ROOM_STEP: usize = 128 << 10;
/// Where the numbers of the places are in the head of the memory; before them is `LiveHead`.
pub(crate) const PLACES_AT: usize = 64 << 10;
/// Where the logs are.
const LOGS_AT: usize = 4 << 20;

pub(crate) const RECORD_BYTES: usize = 16;
const ADDRESS_BITS: u32 = 48;

const _: () = assert!(PLACES_AT + PLACES * size_of::<Numbers>() <= LIVE_OWN_BYTES);
const _: () = assert!(LOGS_AT + PLACES * LOG_BYTES <= LIVE_HEAD_BYTES);

/// The number of a place.
pub(crate) type Place = u8;

/// A section: of which place, and the how manyth one there.
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

    /// The section of this number can not be rolled back any more, and nothing else is in the log.
    #[inline]
    pub(crate) fn settle(&self, number: u64) {
        self.set_stable(number);
        self.tail.store(0, Release);
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'l> {
    /// Up to 8 bytes at an address were these.
    Store { address: usize, old: [u8; 8], len: usize },
    /// More bytes than that.
    Bytes { address: usize, old: &'l [u8] },
    /// A section begins, at a time of the thread's clock.
    Begin { number: u64, clock: u64 },
    /// It is complete, and may depend on others.
    End { number: u64 },
    /// The section has seen what another one did that may be rolled back.
    Depends { on: SectionId },
    /// It is so late on the thread's clock from here on.
    Clock { clock: u64 },
    /// The section has allocated this block.
    Allocated { address: usize },
    /// The section frees this block, once it can not be rolled back any more.
    Frees { address: usize },
    /// That was done, or begun.
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

/// Both words of a record that has no bytes behind it.
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

/// Bytes that the record of so many bytes takes.
pub(crate) fn bytes_record(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(RECORD_BYTES)?.checked_add(RECORD_BYTES)
}

/// The logs in the head of a live heap's memory, which is mapped for ever; when the heap is closed, they are nobody's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectionLogs {
    head: NonNull<u8>,
}

// SAFETY: atomics, and bytes that one thread at a time has.
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

    /// The last section of a place that can not be rolled back any more.
    #[inline]
    pub(crate) fn stable(&self, place: Place) -> u64 {
        self.numbers(place).stable.load(Acquire)
    }

    pub(crate) fn set_stable(&self, place: Place, number: u64) {
        self.numbers(place).set_stable(number);
    }

    /// Where a place's records are in the head.
    pub(crate) fn offset(place: Place) -> usize {
        LOGS_AT + place as usize * LOG_BYTES
    }

    pub(crate) fn records(&self, place: Place) -> NonNull<u8> {
        // SAFETY: within the head.
        unsafe { self.head.add(SectionLogs::offset(place)) }
    }

    /// Notes that what the record at an offset frees is free, or is about to be.
    pub(crate) fn set_freed(&self, place: Place, at: usize) {
        assert!(at + RECORD_BYTES <= LOG_BYTES);
        compiler_fence(SeqCst);
        // SAFETY: within the log; a record's first word, which nobody else changes.
        unsafe { AtomicU64::from_ptr(self.records(place).add(at).cast().as_ptr()) }
            .store(words_of(&Record::Freed)[0], Relaxed);
        compiler_fence(SeqCst);
    }

    /// The records of a place. None: there are more bytes than a log has.
    ///
    /// # Safety
    /// Nobody changes the log as long as they are used.
    pub(crate) unsafe fn read(&self, place: Place) -> Option<&[u8]> {
        let tail = self.tail(place).load(Acquire) as usize;
        // SAFETY: bytes in use, of which there is room for so many; nobody changes them.
        (tail <= LOG_BYTES).then(|| unsafe { std::slice::from_raw_parts(self.records(place).as_ptr(), tail) })
    }

    /// Copies what all places have, to memory of zeros that is laid out as the head. Allocates nothing, and takes no lock.
    ///
    /// # Safety
    /// Nobody changes the logs meanwhile, and nobody else has the memory.
    pub(crate) unsafe fn copy_to(&self, other: &SectionLogs) {
        for place in 0..PLACES as Place {
            let (from, to) = (self.numbers(place), other.numbers(place));
            let tail = from.tail.load(Acquire);
            to.tail.store(tail, Relaxed);
            to.stable.store(from.stable.load(Acquire), Relaxed);
            // More than a log has makes no sense, and is told as that.
            if tail <= LOG_BYTES as u64 {
                // SAFETY: bytes in use, and as many in the other memory.
                unsafe { other.records(place).copy_from_nonoverlapping(self.records(place), tail as usize) };
            }
        }
    }

    /// No place has anything to undo.
    pub(crate) fn settle_all(&self) {
        for place in 0..PLACES as Place {
            if self.tail(place).load(Relaxed) != 0 {
                self.tail(place).store(0, Release);
            }
        }
    }
}

/// The records in a log's bytes, each with where it is. None in the end: what is left makes no sense.
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

/// Writes to the log of one thread. The program's own hooks write there, too, so its layout is theirs (`live/hooks.c`).
#[repr(C, align(64))]
pub struct LogWriter {
    /// Where the heap is.
    base: usize,
    /// Bytes of address space that it has. 0: the thread is in no section.
    bytes: usize,
    /// Bytes of the log in use, as a recovery sees it.
    tail: *const AtomicU64,
    records: *mut u8,
    /// Behind the record that begins the section, which is not in use before the next one is.
    begun: usize,
    /// Bytes that there is room for.
    room: usize,
    /// In the upper 12 bits: which section the entries of the filter are of.
    epoch: u64,
    /// What the thread has in the heap that it had a section of last; the room above knows what that is.
    pub(crate) section: *mut (),
    /// What the section has logged: address, size (4 bits), epoch.
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

    /// A section begins, of a heap at these addresses, in the log of a place.
    pub(crate) fn begin(&mut self, (base, bytes): (usize, usize), logs: &SectionLogs, place: Place, room: usize) {
        self.tail = logs.tail(place);
        self.records = logs.records(place).as_ptr();
        (self.begun, self.room) = (0, room);
        if holds(invariant::SECTION_FILTER_FORGETS) {
            self.forget();
        }
        (self.base, self.bytes) = (base, bytes);
    }

    /// Writes the record that begins a section, the first of the log, in which nothing is in use; the section has logged nothing.
    #[inline(always)]
    pub(crate) fn prepare(&mut self, begin: &Record<'_>) {
        if holds(invariant::SECTION_FILTER_FORGETS) {
            self.forget();
        }
        // SAFETY: in the log of this thread, which has room for that.
        unsafe { self.records.cast::<[u64; 2]>().write(words_of(begin)) };
    }

    /// The next section of the same heap begins, whose first record is written.
    #[inline(always)]
    pub(crate) fn go_on(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: the tail of this thread's log, which is mapped for ever.
        unsafe { &*self.tail }
    }

    /// What the filter knows holds no longer.
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

    /// The thread is in no section.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.bytes = 0;
    }

    /// Bytes of the log that are written, the record that begins the section among them.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.begun.max(self.tail().load(Relaxed) as usize)
    }

    /// Whether the section that was prepared has logged anything.
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

    /// Whether so many bytes more fit.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.room - self.used()
    }

    /// Writes the record that begins a section, which a recovery sees with the next one. There is room for it.
    pub(crate) fn append_begin(&mut self, begin: &Record<'_>) {
        let at = self.used();
        self.begun = self.write(at, begin);
    }

    /// Appends a record that a recovery sees from now on: what the caller stores comes behind this. There is room for it.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> usize {
        let at = self.used();
        let used = self.write(at, record);
        self.publish(used);
        at
    }

    /// Where the record ends.
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

    /// What is behind so many bytes is not in the log any more.
    pub(crate) fn cut_back(&mut self, used: usize) {
        self.forget();
        self.publish(used);
    }

    /// Whether these bytes were logged in this section; if not, they count as logged from now on.
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
        // No bytes are read beyond the end, and what makes no sense is told.
        for end in 0..log.len() {
            let all: Vec<_> = parse(&log[..end]).collect();
            assert!(all.iter().filter(|found| found.is_none()).count() <= 1);
        }
        assert_eq!(parse(&[0xff; 16]).collect::<Vec<_>>(), [None]);
    }
}
