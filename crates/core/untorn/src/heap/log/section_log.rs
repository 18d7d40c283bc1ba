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
//!
//! In memory that needs flushes, a second record with a checksum follows each record. Both are durable before the store,
//! behind one fence, and the tail is not flushed: a recovery reads up to the first record that is not valid.

use super::flushing::{Flushing, Seed};
use super::section_record::{ADDRESS_BITS, freed, valid_bytes, words_of};
pub(crate) use super::section_record::{PLACES, Place, RECORD_BYTES, Record, SectionId, bytes_record, parse};
use crate::invariant;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};
use untorn_os::{Invariant, LIVE_HEAD_BYTES, LIVE_OWN_BYTES, fence_lines, flush_lines, holds};

/// The size of a log.
pub(crate) const LOG_BYTES: usize = 1 << 20;
/// A log reserves room in steps of this size.
pub(crate) const ROOM_STEP: usize = 128 << 10;
/// The offset of the places' numbers in the head of the memory, behind `LiveHead`.
pub(crate) const PLACES_AT: usize = 64 << 10;
/// The offset of the logs.
const LOGS_AT: usize = 4 << 20;

const _: () = assert!(PLACES_AT + PLACES * size_of::<Numbers>() <= LIVE_OWN_BYTES);
const _: () = assert!(LOGS_AT + PLACES * LOG_BYTES <= LIVE_HEAD_BYTES);

/// On cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Numbers {
    tail: AtomicU64,
    stable: AtomicU64,
    /// In memory that needs flushes: the last section that is durably stable. `stable` follows it, so that no section
    /// relies on one that a power cut undoes.
    kept: AtomicU64,
    /// In memory that needs flushes: see [`Seed`]. 0: no thread has had the log.
    generation: AtomicU64,
}

impl Numbers {
    /// The generation of the log's records, if these have checksums.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

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

    /// The last section of a place that is stable, as a recovery sees it.
    pub(crate) fn last_stable(&self, place: Place) -> u64 {
        let numbers = self.numbers(place);
        if self.flushing().is_on() { numbers.kept.load(Acquire) } else { numbers.stable.load(Acquire) }
    }

    /// Marks sections of a place up to this number as stable: durably first, if the memory needs flushes.
    pub(crate) fn set_stable(&self, place: Place, number: u64) {
        let numbers = self.numbers(place);
        if self.flushing().is_on() {
            if !holds(invariant::LIVE_SHOWN_DURABLE) {
                numbers.set_stable(number);
            }
            compiler_fence(SeqCst);
            numbers.kept.store(number, Release);
            self.flushing().persist(invariant::LIVE_END_DURABLE, &numbers.kept);
        }
        numbers.set_stable(number);
    }

    /// How the memory becomes durable.
    #[inline]
    pub(crate) fn flushing(&self) -> Flushing {
        // SAFETY: mapped for ever.
        unsafe { Flushing::at(self.head) }
    }

    /// Makes all records in the log of a place void, for a thread that takes the log. Returns whether records have
    /// checksums.
    pub(crate) fn renew(&self, place: Place) -> bool {
        self.tail(place).store(0, Release);
        if !self.flushing().is_on() {
            return false;
        }
        let numbers = self.numbers(place);
        // After a power cut, the one that is not flushed may be of any time.
        let stable = numbers.stable.load(Relaxed).max(numbers.kept.load(Relaxed));
        numbers.stable.store(stable, Relaxed);
        numbers.kept.store(stable, Relaxed);
        let generation = numbers.generation.load(Relaxed).wrapping_add(1).max(1);
        numbers.generation.store(generation, Release);
        self.flushing().persist(invariant::LIVE_GENERATION_DURABLE, numbers);
        true
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
        let first = unsafe { AtomicU64::from_ptr(self.records(place).add(at).cast().as_ptr()) };
        // The address stays: the checksum has it.
        first.store(freed(first.load(Relaxed)), Relaxed);
        self.flushing().persist(invariant::LIVE_FREED_DURABLE, first);
        compiler_fence(SeqCst);
    }

    /// The records of a place. None: the tail is beyond the end of the log.
    ///
    /// # Safety
    /// Nobody changes the log while the records are used.
    pub(crate) unsafe fn read(&self, place: Place) -> Option<&[u8]> {
        if self.flushing().are_logs_void() {
            return Some(&[]);
        }
        if self.flushing().is_on() {
            let generation = self.numbers(place).generation.load(Acquire);
            // Of a log that no thread has had, no byte is allocated.
            let most = if generation == 0 { 0 } else { LOG_BYTES };
            // SAFETY: within the log; nobody changes it.
            let log = unsafe { std::slice::from_raw_parts(self.records(place).as_ptr(), most) };
            return Some(&log[..valid_bytes(log, generation)]);
        }
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

    /// Empties the logs of all places. A recovery finds all of them as they are, or none.
    pub(crate) fn settle_all(&self) {
        self.flushing().set_logs_void(holds(invariant::SECTION_LOGS_VOID_AT_ONCE));
        for place in 0..PLACES as Place {
            if self.tail(place).load(Relaxed) != 0 {
                self.tail(place).store(0, Release);
            }
            let generation = &self.numbers(place).generation;
            let number = generation.load(Relaxed);
            if self.flushing().is_on() && number != 0 && holds(invariant::LIVE_LOGS_VOID) {
                generation.store(number.wrapping_add(1).max(1), Release);
                self.flushing().persist(invariant::LIVE_LOGS_VOID, generation);
            }
        }
        self.flushing().set_logs_void(false);
    }
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
    /// The number of bytes for which there is room, for the program's hooks.
    room: usize,
    /// The number of the section to which filter entries belong, in the upper 12 bits.
    epoch: u64,
    /// The thread's state in the heap in which it had its last section. The module above knows the type.
    pub(crate) section: *mut (),
    /// A cache of the stores that the section has logged: address, size (4 bits), epoch.
    filter: [u64; FILTER],
    /// The number of bytes for which there is room. `room` is that number for the program's hooks, or 0 if they have to
    /// leave each record to this library, because it is flushed.
    limit: usize,
    /// The seed of the records' checksums. Generation 0: they have none.
    seed: Seed,
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
            limit: 0,
            seed: Seed { generation: 0, first: 0 },
        }
    }

    /// Begins a section in a heap at these addresses, with the log of a place, and records with checksums if there is a
    /// seed for these.
    pub(crate) fn begin(
        &mut self,
        (base, bytes): (usize, usize),
        logs: &SectionLogs,
        place: Place,
        room: usize,
        seed: Option<Seed>,
    ) {
        self.tail = logs.tail(place);
        self.records = logs.records(place).as_ptr();
        self.seed = seed.unwrap_or(Seed { generation: 0, first: 0 });
        self.begun = 0;
        self.set_room(room);
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

    /// Whether records have checksums, and are flushed.
    #[inline]
    fn is_checked(&self) -> bool {
        self.seed.generation != 0
    }

    /// The bytes of a record of this many bytes, with its checksum.
    #[inline]
    pub(crate) fn with_check(&self, bytes: usize) -> usize {
        if self.is_checked() { bytes + RECORD_BYTES } else { bytes }
    }

    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn set_room(&mut self, room: usize) {
        self.limit = room;
        self.room = if self.is_checked() { 0 } else { room };
    }

    /// Whether this many bytes more fit.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.limit - self.used()
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
        if self.is_checked() {
            // With the record that begins the section, which comes into use only now.
            let from = self.tail().load(Relaxed) as usize;
            self.persist(invariant::LIVE_RECORDS_DURABLE, from..used);
        }
        self.publish(used);
        at
    }

    /// Makes bytes of a log with checksums durable.
    fn persist(&self, needed: Invariant, range: Range<usize>) {
        if holds(needed) {
            // SAFETY: in the log of this thread, which is mapped for ever.
            unsafe { flush_lines(self.records as usize + range.start, range.len()) };
            fence_lines();
        }
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
        if self.is_checked() {
            let bytes: &[u8] = if let Record::Bytes { old, .. } = record { old } else { &[] };
            let check = words_of(&Record::Check { sum: self.seed.sum(at, words, bytes) });
            // SAFETY: as above.
            unsafe { self.records.add(at + len).cast::<[u64; 2]>().write(check) };
            len += RECORD_BYTES;
        }
        debug_assert!(len <= self.limit - at);
        at + len
    }

    fn publish(&self, used: usize) {
        if holds(invariant::SECTION_LOGGED_FIRST) {
            compiler_fence(SeqCst);
            self.tail().store(used as u64, Release);
            compiler_fence(SeqCst);
        }
    }

    /// Removes the records of the section from the log, but for the one that begins it.
    pub(crate) fn cut_back(&mut self) {
        self.forget();
        if (self.tail().load(Relaxed) as usize) < self.begun {
            // There are none.
            return;
        }
        if self.is_checked() && holds(invariant::LIVE_ABORT_ERASED) {
            let old = self.begun..self.used();
            // SAFETY: in the log of this thread.
            unsafe { self.records.add(old.start).write_bytes(0, old.len()) };
            self.persist(invariant::LIVE_ABORT_ERASED, old);
        }
        self.publish(self.begun);
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
