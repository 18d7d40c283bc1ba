//! A thread's section: its log, its dependencies, and the work at its end.
//!
//! A thread keeps a place in each live heap in which it has had sections, until the thread ends. It is in sections of
//! only one heap at a time.

mod log_writer;
mod lookup;
mod persist;
mod undo;

use super::flushing::Seed;
use super::live_head::LiveHead;
use super::section_log::{
    LOG_BYTES, LogWriter, Numbers, Place, RECORD_BYTES, Record, SectionId, SectionLogs, bytes_record,
};
use super::section_mark::{Mark, MarkedLock, Mode};
use super::section_stability::{Complete, Then};
use super::sections::{Busy, Sections, Settled};
use crate::invariant;
pub(crate) use log_writer::writer;
pub use log_writer::{has_hooks, set_hooks};
pub use lookup::log;
pub(crate) use lookup::{
    current_of, known_sections, last_sections, open_section, section_of, sections_in, set_current,
};
use std::ops::Range;
use std::ptr::null;
use std::sync::atomic::Ordering::{Relaxed, Release};
use untorn_os::{holds, is_asymmetric, process_generation};

/// The heap of a thread's sections.
#[derive(Clone)]
pub(crate) struct SectionHeap {
    /// The heap's sections, which stay at their address for ever.
    pub sections: &'static Sections,
    pub opening: u64,
    /// The heap's address space.
    pub addresses: Range<usize>,
    pub head: LiveHead,
    pub logs: SectionLogs,
}

/// The log of a thread's sections in one heap.
struct Log {
    place: Place,
    logs: SectionLogs,
    numbers: &'static Numbers,
    busy: &'static Busy,
    /// The bytes for which the log has room.
    room: usize,
    /// Sections may begin and end by [`ThreadSections::begin_at_once`] and [`ThreadSections::end_at_once`].
    at_once: bool,
    /// The section began with an empty log: the sections before it left nothing to do.
    usual: bool,
    /// The log has the record that begins the section.
    begun: bool,
    /// The offset at which the section begins in the log.
    begun_at: usize,
    number: u64,
    clock: u64,
    /// The log's records have checksums, and are flushed.
    is_checked: bool,
    /// The number of the first section in the log.
    first: u64,
}

/// Bytes that a section has changed, to be flushed at its end.
struct Changed {
    address: usize,
    len: usize,
    /// Blocks that the bytes point to may have been stored to without a record: a push stores behind the end of a vector.
    follows: bool,
}

/// A thread's sections in one heap.
pub(crate) struct ThreadSections {
    heap: SectionHeap,
    process: u64,
    /// None: no log was available. Then the section is protected like a change under a guard.
    log: Option<Log>,
    /// The number of locks and explicit sections that the thread holds.
    depth: usize,
    /// The lock with which the section began, if the section may end by [`ThreadSections::end_at_once`]: it holds no
    /// other lock, and its end only has to empty the log.
    first: *const MarkedLock,
    /// The next section may begin by [`ThreadSections::begin_at_once`]: none is open, and its first record is already
    /// in the log.
    ready: bool,
    /// The size of the heap's address space.
    bytes: usize,
    /// The part of `depth` that is due to the lock of the heap.
    own_lock: usize,
    depends: Vec<SectionId>,
    /// Blocks that the section frees, each with the offset of its record in the log.
    frees: Vec<(usize, usize)>,
    /// Blocks that the section allocated and gave up, to be freed when it has ended.
    aborted: Vec<usize>,
    then: Vec<Then>,
    /// In memory that needs flushes: the bytes that the section has changed.
    changed: Vec<Changed>,
    /// Another section may depend on this one.
    marked: bool,
    /// The section changed more than its log had room for.
    unlogged: bool,
    /// A section without a log may still wait to become stable.
    unplaced: bool,
}

/// The work that is left once a section has ended, to be done without the lock that ended it.
#[must_use]
#[derive(Default)]
pub(crate) struct Ended {
    pub settled: Settled,
    /// Blocks to free and callbacks to call for the section itself, if it is stable.
    pub frees: Vec<(usize, usize)>,
    pub then: Vec<Then>,
    /// The place whose thread is in no section any more.
    pub place: Option<Place>,
    /// The log is to be emptied when the blocks are free.
    pub empties: bool,
}

impl ThreadSections {
    fn new(heap: SectionHeap) -> ThreadSections {
        ThreadSections {
            bytes: heap.addresses.len(),
            heap,
            process: process_generation(),
            log: None,
            depth: 0,
            first: null(),
            ready: false,
            own_lock: 0,
            depends: Vec::new(),
            frees: Vec::new(),
            aborted: Vec::new(),
            then: Vec::new(),
            changed: Vec::new(),
            marked: false,
            unlogged: false,
            unplaced: false,
        }
    }

    fn is_of(&self, opening: u64) -> bool {
        self.heap.opening == opening && self.process == process_generation()
    }

    /// Whether the heap was closed, or the state is a parent process's.
    fn is_gone(&self) -> bool {
        self.process != process_generation() || !self.heap.sections.are_of(self.heap.opening)
    }

    fn thread_ends(mut self) {
        if self.is_gone() {
            return;
        }
        if self.depth > 0 {
            tracing::error!(
                id = "untorn.section.thread_ended",
                "a thread ended within a section of a live heap: cuts commit the heap without the section's changes, \
                 commits that wait for sections are refused, and the section is undone when the process ends"
            );
            self.writer().end();
            self.heap.sections.abandon(self.log.take().map(|log| log.place), self.unlogged, self.heap.opening);
        } else if let Some(log) = self.log.take() {
            self.heap.sections.give_place(log.place, self.heap.opening);
        }
    }

    pub(crate) fn heap(&self) -> &SectionHeap {
        &self.heap
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn own_lock(&mut self) -> &mut usize {
        &mut self.own_lock
    }

    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.marked
    }

    pub(crate) fn is_unlogged(&self) -> bool {
        self.unlogged
    }

    #[inline]
    fn writer(&self) -> &'static mut LogWriter {
        // SAFETY: this thread's own, for ever; each use ends before the next one begins.
        unsafe { &mut *writer() }
    }

    /// Whether the thread has a log; takes one if it has none. Without a log, the next section needs a guard.
    /// `at_once`: sections may begin and end without a call to anything but the log.
    ///
    /// # Errors
    /// There is no room for a log.
    pub(crate) fn find_log(&mut self, at_once: bool) -> std::io::Result<bool> {
        if self.log.is_none()
            && let Some((place, room, is_checked)) = self.heap.sections.take_place()?
        {
            let logs = self.heap.logs;
            self.log = Some(Log {
                place,
                logs,
                // SAFETY: in the head of live memory, which is mapped for ever.
                numbers: unsafe { &*std::ptr::from_ref(logs.numbers(place)) },
                busy: self.heap.sections.busy(place),
                room,
                at_once: at_once && is_asymmetric() && !is_checked,
                usual: false,
                begun: false,
                begun_at: 0,
                number: logs.stable(place) + 1,
                clock: 1,
                is_checked,
                first: 0,
            });
        }
        Ok(self.log.is_some())
    }

    /// Counts one more lock, or a nested section.
    #[inline]
    pub(crate) fn deepen(&mut self) {
        self.first = null();
        self.depth += 1;
    }

    /// Begins a section by the fast path: it is outermost, the sections before it left nothing to do, and no commit
    /// waits. False: nothing was done.
    #[inline(always)]
    pub(crate) fn begin_at_once(&mut self, writer: &mut LogWriter, lock: &MarkedLock) -> bool {
        let opening = self.heap.opening;
        if !self.ready || self.process != process_generation() {
            return false;
        }
        let (sections, Some(log)) = (self.heap.sections, &self.log) else { return false };
        if !sections.are_of(opening) || !sections.enter_at_once(log.busy) {
            return false;
        }
        self.ready = false;
        (self.depth, self.first) = (1, lock);
        writer.go_on(self.bytes);
        true
    }

    /// Takes back [`ThreadSections::begin_at_once`], after which nothing was logged.
    #[cold]
    pub(crate) fn cancel(&mut self, writer: &mut LogWriter) {
        (self.depth, self.first) = (0, null());
        self.ready = true;
        writer.end();
        self.leave();
    }

    /// Ends a section by the fast path: no section waits for it, and it waits for none. False: nothing was done.
    /// Otherwise the caller gives back the lock, and then calls [`ThreadSections::leave`].
    #[inline(always)]
    pub(crate) fn end_at_once(&mut self, writer: &mut LogWriter, lock: &MarkedLock) -> bool {
        if self.first != std::ptr::from_ref(lock) || self.process != process_generation() {
            return false;
        }
        let (opening, Some(log)) = (self.heap.opening, &mut self.log) else { return false };
        if !self.heap.sections.are_of(opening) {
            return false;
        }
        if writer.has_logged() {
            log.numbers.settle(log.number);
            log.number += 1;
            writer.prepare(&Record::Begin { number: log.number, clock: log.clock });
        }
        (self.depth, self.first) = (0, null());
        self.ready = true;
        writer.end();
        true
    }

    /// Notes that the thread is in no section any more, after [`ThreadSections::end_at_once`].
    #[inline(always)]
    pub(crate) fn leave(&self) {
        if let Some(log) = &self.log {
            log.busy.leave();
        }
    }

    /// Begins the outermost section. The thread has a log, or a guard that marks a change in progress.
    pub(crate) fn begin(&mut self, may_pass: impl Fn() -> bool) {
        (self.depth, self.first, self.ready) = (1, null(), false);
        let Some(log) = &mut self.log else { return };
        let sections = self.heap.sections;
        sections.enter(log.place, may_pass);
        // SAFETY: as in `writer`.
        let writer = unsafe { &mut *writer() };
        let mut used = log.logs.tail(log.place).load(Relaxed) as usize;
        if used != 0 && !sections.has_waiting(log.place) {
            log.logs.tail(log.place).store(0, Release);
            used = 0;
        }
        if used == 0 {
            log.first = log.number;
        }
        self.changed.clear();
        self.aborted.clear();
        let addresses = &self.heap.addresses;
        // A rollback makes a log void by another generation.
        let seed = log.is_checked.then(|| Seed { generation: log.numbers.generation(), first: log.first });
        writer.begin((addresses.start, addresses.len()), &log.logs, log.place, log.room, seed);
        (log.begun_at, log.usual) = (used, false);
        log.begun = has_room(sections, log.place, writer, RECORD_BYTES);
        if log.begun {
            writer.append_begin(&Record::Begin { number: log.number, clock: log.clock });
            log.usual = log.at_once && used == 0 && !log.busy.has_waiting();
        } else {
            self.go_unlogged();
        }
    }

    /// Protects the section like a change under a guard from now on: a kill takes the heap back to its last cut.
    fn go_unlogged(&mut self) {
        if !self.unlogged {
            self.unlogged = true;
            self.first = null();
            self.heap.head.begin_change();
            self.writer().end();
            tracing::warn!(
                id = "untorn.section.log_full",
                "a section has changed more than its log of {LOG_BYTES} bytes holds: until the section has ended, a kill takes \
                 the heap back to its last cut"
            );
        }
    }

    /// Appends a record that a recovery sees from now on. Without room for it, the section becomes unlogged. Returns
    /// the record's offset.
    fn log_record(&mut self, record: &Record<'_>) -> usize {
        let Some(log) = self.log.as_ref().filter(|_| !self.unlogged) else { return 0 };
        let bytes = match record {
            Record::Bytes { old, .. } => bytes_record(old.len()),
            _ => Some(RECORD_BYTES),
        };
        let writer = self.writer();
        if bytes.is_some_and(|bytes| has_room(self.heap.sections, log.place, writer, bytes)) {
            return writer.append(record);
        }
        self.go_unlogged();
        0
    }

    /// Whether this many bytes more can be logged.
    pub(crate) fn can_log(&self, len: usize) -> bool {
        let Some(log) = self.log.as_ref().filter(|_| !self.unlogged) else { return true };
        let writer = self.writer();
        bytes_record(len).is_some_and(|bytes| has_room(self.heap.sections, log.place, writer, bytes))
    }

    /// Logs bytes in the heap that the thread is about to change. `follows`: the section may also store, without a record,
    /// to blocks that the bytes point to.
    ///
    /// # Safety
    /// They can be read, and no other thread changes them.
    pub(crate) unsafe fn log_bytes(&mut self, address: usize, len: usize, follows: bool) {
        if len == 0 || self.log.is_none() || self.unlogged {
            return;
        }
        if self.writer().is_known(address, len) {
            return;
        }
        self.has_changed(Changed { address, len, follows });
        // SAFETY: the caller's promise.
        let old = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(address), len) };
        if len <= 8 {
            let mut word = [0; 8];
            word[..len].copy_from_slice(old);
            self.log_record(&Record::Store { address, old: word, len });
        } else {
            self.log_record(&Record::Bytes { address, old });
        }
    }

    /// Logs that the section has allocated a block of this many bytes.
    pub(crate) fn allocated(&mut self, address: usize, len: usize) {
        if holds(invariant::LIVE_BLOCKS_DURABLE) {
            self.has_changed(Changed { address, len, follows: false });
        }
        self.log_record(&Record::Allocated { address });
    }

    /// Notes that the section frees a block when it has ended. False: it has freed this block before.
    pub(crate) fn frees(&mut self, address: usize) -> bool {
        if self.frees.iter().any(|(_, other)| *other == address) {
            return false;
        }
        let at = self.log_record(&Record::Frees { address });
        self.frees.push((at, address));
        self.first = null();
        true
    }

    /// Notes that the thread has taken a lock, perhaps the one with which the section begins.
    pub(crate) fn has_locked(&mut self, lock: &MarkedLock, mode: Mode) {
        if self.depth == 1 && mode == Mode::Exclusive && self.log.as_ref().is_some_and(|log| log.usual) {
            self.first = lock;
        }
        self.has_taken(&lock.mark);
    }

    /// Notes that the thread has taken a lock with this mark: the section depends on the section in the mark, unless
    /// that one is stable.
    #[inline]
    pub(crate) fn has_taken(&mut self, mark: &Mark) {
        if let Some((on, clock)) = mark.read() {
            self.has_seen(on, clock);
        }
    }

    #[cold]
    fn has_seen(&mut self, on: SectionId, clock: u64) {
        let own = self.log.as_ref().map(|log| log.place);
        let logs = self.heap.logs;
        if own == Some(on.place) || logs.stable(on.place) >= on.number {
            return;
        }
        if let Some(log) = &mut self.log {
            log.clock = log.clock.max(clock) + 1;
            let clock = log.clock;
            self.log_record(&Record::Depends { on });
            self.log_record(&Record::Clock { clock });
        }
        if !self.depends.contains(&on) {
            self.depends.push(on);
            self.first = null();
        }
    }

    /// Marks a lock that the thread is about to give back while its section goes on: the next holder depends on this
    /// section.
    #[inline]
    pub(crate) fn marks(&mut self, mark: &Mark) {
        self.marked = true;
        if let Some(log) = self.log.as_ref().filter(|_| holds(invariant::SECTION_MARKS)) {
            mark.write(SectionId { place: log.place, number: log.number }, log.clock);
        }
    }

    /// Counts one lock less; the section goes on.
    #[inline]
    pub(crate) fn rise(&mut self) {
        self.depth -= 1;
    }

    /// Ends the outermost section; the caller gives back the last lock after this.
    pub(crate) fn end(&mut self, mark: Option<&Mark>) -> Ended {
        (self.depth, self.first) = (0, null());
        let logs = self.heap.logs;
        self.depends.retain(|on| logs.stable(on.place) < on.number);
        let mut ended =
            Ended { then: std::mem::take(&mut self.then), frees: std::mem::take(&mut self.frees), ..Ended::default() };
        let unlogged = std::mem::take(&mut self.unlogged);
        let marked = std::mem::take(&mut self.marked);
        // SAFETY: as in `writer`.
        let writer = unsafe { &mut *writer() };
        let Some(log) = &mut self.log else {
            // The guard ends with the section. If the section depends on others, a second guard is held until they are
            // stable.
            if !self.depends.is_empty() {
                self.heap.head.begin_change();
                self.unplaced = true;
                let depends = std::mem::take(&mut self.depends);
                let section =
                    Complete { depends, then: std::mem::take(&mut ended.then), unlogged: true, ..Complete::default() };
                ended.settled = self.heap.sections.add(&logs, None, section);
            }
            return ended;
        };
        let (sections, place, number) = (self.heap.sections, log.place, log.number);
        ended.place = Some(place);
        log.room = writer.limit();
        let is_logged = writer.used() > log.begun_at + writer.with_check(RECORD_BYTES) || unlogged;
        let waits = sections.has_waiting(place);
        if self.depends.is_empty() && !waits {
            if is_logged || marked {
                log.logs.set_stable(place, number);
                log.number += 1;
            }
            if unlogged {
                self.heap.head.end_change();
            }
            if is_logged {
                match ended.frees.is_empty() {
                    true => log.logs.tail(place).store(0, Release),
                    false => ended.empties = true,
                }
            }
            writer.end();
            if marked {
                ended.settled = sections.is_stable_now(&log.logs);
            }
            return ended;
        }
        if !is_logged && !marked && self.depends.is_empty() {
            // The section changed nothing.
            writer.end();
            for then in std::mem::take(&mut ended.then) {
                ended.then.extend(sections.add_then(Some(place), then));
            }
            return ended;
        }
        if log.begun {
            writer.append(&Record::End { number });
        }
        writer.end();
        if let Some(mark) = mark.filter(|_| holds(invariant::SECTION_MARKS)) {
            mark.write(SectionId { place, number }, log.clock);
        }
        log.number += 1;
        let section = Complete {
            number,
            depends: std::mem::take(&mut self.depends),
            then: std::mem::take(&mut ended.then),
            frees: std::mem::take(&mut ended.frees),
            unlogged,
        };
        ended.settled = sections.add(&log.logs, Some(place), section);
        ended
    }

    /// Registers a callback for the time when nothing so far can be undone any more. Returns it if that is already so.
    pub(crate) fn on_stable(&mut self, then: Then) -> Option<Then> {
        let sections = self.heap.sections;
        let then: Then = match self.unplaced {
            // After everything else, it also waits for the sections without a log.
            true => Box::new(move || {
                if let Some(then) = sections.add_then(None, then) {
                    then();
                }
            }),
            false => then,
        };
        if self.depth > 0 {
            self.then.push(then);
            self.first = null();
            return None;
        }
        match &self.log {
            Some(log) => sections.add_then(Some(log.place), then),
            None => Some(then),
        }
    }

    /// Empties the log, after the blocks that the section freed are free.
    pub(crate) fn empty_log(&self, place: Place) {
        if let Some(log) = self.log.as_ref().filter(|log| log.place == place) {
            log.logs.tail(place).store(0, Release);
        }
    }
}

/// Whether the log has room for this many bytes more and for the record that ends the section; reserves more if needed.
/// False: the log is full, or the tmpfs is.
#[inline]
fn has_room(sections: &Sections, place: Place, writer: &mut LogWriter, bytes: usize) -> bool {
    #[cold]
    fn make_room(sections: &Sections, place: Place, writer: &mut LogWriter, bytes: usize) -> bool {
        if let Ok(room) = sections.grow(place, writer.used(), bytes) {
            writer.set_room(room);
        }
        writer.has_room(bytes)
    }
    let bytes = writer.with_check(bytes) + writer.with_check(RECORD_BYTES);
    writer.has_room(bytes) || make_room(sections, place, writer, bytes)
}
