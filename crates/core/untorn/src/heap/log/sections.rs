//! The sections of an open heap: which thread has which log, which threads are in a section, and which sections wait to
//! become stable.

use super::section_log::{LOG_BYTES, PLACES, Place, ROOM_STEP, SectionId, SectionLogs};
use super::section_stability::{Complete, Stability, Then};
use parking_lot::{Condvar, Mutex};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, compiler_fence, fence};
use std::time::{Duration, Instant};
use untorn_os::{LiveMemory, heavy_barrier, light_barrier};

/// A commit that waits for sections lets others begin after this time: the open sections may wait for those.
const CLOSED_MOST: Duration = Duration::from_millis(20);

/// The low bits of an era, which count the rollbacks of an opening in steps of 2. The lowest bit has no meaning here.
const ROLLBACK_BITS: u32 = 16;

/// Whether two eras are of the same opening.
pub(crate) fn is_same_opening(one: u64, other: u64) -> bool {
    one >> ROLLBACK_BITS == other >> ROLLBACK_BITS
}

/// The first era of an opening: a random number, so that no other opening of any process has had it.
fn first_era(opening: u64) -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.write_u64(opening);
    (hasher.finish() | 1 << 63) >> ROLLBACK_BITS << ROLLBACK_BITS
}

/// A place for one thread's log, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Busy {
    /// The thread of this place is in a section.
    inside: AtomicBool,
    /// The thread of this place ended in that section.
    abandoned: AtomicBool,
    /// The number of complete sections of this place that are not stable yet, or whose blocks are not freed yet.
    waiting: AtomicU32,
}

impl Busy {
    const fn new() -> Busy {
        Busy { inside: AtomicBool::new(false), abandoned: AtomicBool::new(false), waiting: AtomicU32::new(0) }
    }

    /// Whether complete sections of the place wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Acquire) != 0
    }

    /// Notes that the thread of this place is in no section any more.
    #[inline]
    pub(crate) fn leave(&self) {
        self.inside.store(false, Release);
    }
}

/// Places that are taken, and the room of their logs.
struct Places {
    memory: Option<Arc<LiveMemory>>,
    taken: [bool; PLACES],
    /// The reserved bytes of each log.
    room: [usize; PLACES],
}

/// The sections of a heap. The structure stays at its address for ever.
#[repr(C)]
pub(crate) struct Sections {
    /// The opening that these sections are of; sections of another opening are over. 0: no heap.
    opening: AtomicU64,
    /// The number of commits that wait or gather. It is next to `opening`, because each section reads both.
    closed: AtomicU32,
    /// The era that locks of this opening have since its last rollback. 0: no heap. Each section reads it, too.
    era: AtomicU64,
    /// A thread ended within a section since the last rollback.
    abandoned: AtomicBool,
    /// One of these sections had changed more than its log holds.
    abandoned_unlogged: AtomicBool,
    places: Mutex<Places>,
    busy: [Busy; PLACES],
    gate: (Mutex<()>, Condvar),
    stability: Mutex<Stability>,
    /// The number of complete sections that are not stable.
    waiting: AtomicUsize,
}

/// Sections that have become stable, whose remaining work must be done without any lock.
#[derive(Default)]
pub(crate) struct Settled {
    pub sections: Vec<(Option<Place>, Complete)>,
}

impl Sections {
    pub(crate) fn new() -> Sections {
        Sections {
            opening: AtomicU64::new(0),
            closed: AtomicU32::new(0),
            era: AtomicU64::new(0),
            abandoned: AtomicBool::new(false),
            abandoned_unlogged: AtomicBool::new(false),
            places: Mutex::new(Places { memory: None, taken: [false; PLACES], room: [0; PLACES] }),
            busy: [const { Busy::new() }; PLACES],
            gate: (Mutex::new(()), Condvar::new()),
            stability: Mutex::new(Stability::new()),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Assigns these sections to an opening with this memory, or to no heap.
    pub(crate) fn set_heap(&self, opening: u64, memory: Option<Arc<LiveMemory>>) {
        let era = if memory.is_some() { first_era(opening) } else { 0 };
        self.era.store(era, Release);
        self.opening.store(if memory.is_some() { opening } else { 0 }, Release);
        self.abandoned.store(false, Relaxed);
        self.abandoned_unlogged.store(false, Relaxed);
        let mut places = self.places.lock();
        *places = Places { memory, taken: [false; PLACES], room: [0; PLACES] };
        self.stability.lock().clear();
        self.waiting.store(0, Relaxed);
        for busy in &self.busy {
            busy.inside.store(false, Relaxed);
            busy.abandoned.store(false, Relaxed);
            busy.waiting.store(0, Relaxed);
        }
    }

    /// Whether the sections are those of this opening of a live heap.
    #[inline]
    pub(crate) fn are_of(&self, opening: u64) -> bool {
        self.opening.load(Acquire) == opening
    }

    /// The era that locks of these sections have.
    #[inline]
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Acquire)
    }

    /// Notes that a thread ends within a section.
    pub(crate) fn abandon(&self, place: Option<Place>, unlogged: bool, opening: u64) {
        let _places = self.places.lock();
        if !self.are_of(opening) {
            return;
        }
        if let Some(place) = place {
            self.busy(place).abandoned.store(true, Release);
        }
        self.abandoned_unlogged.fetch_or(unlogged, Release);
        self.abandoned.store(true, Release);
    }

    /// Whether a thread ended within a section since the last rollback.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    /// Whether a thread ended within a section that only a rollback can undo.
    pub(crate) fn is_abandoned_unlogged(&self) -> bool {
        self.abandoned_unlogged.load(Acquire)
    }

    /// Takes a place for a thread, with an empty log; returns it with the bytes for which there is room, and
    /// whether its records have checksums. None: all are taken.
    ///
    /// # Errors
    /// There is no room for a log.
    pub(crate) fn take_place(&self) -> io::Result<Option<(Place, usize, bool)>> {
        let mut places = self.places.lock();
        let Some(memory) = places.memory.clone() else { return Ok(None) };
        let is_free = |place: &usize| !places.taken[*place] && self.busy[*place].waiting.load(Acquire) == 0;
        let Some(at) = (0..PLACES).find(is_free) else { return Ok(None) };
        if places.room[at] == 0 {
            memory.reserve_head(SectionLogs::offset(at as Place), ROOM_STEP)?;
            places.room[at] = ROOM_STEP;
        }
        places.taken[at] = true;
        // SAFETY: the head of live memory, which is mapped for ever.
        let is_checked = unsafe { SectionLogs::at(memory.head()) }.renew(at as Place);
        Ok(Some((at as Place, places.room[at], is_checked)))
    }

    /// Gives a thread's place back.
    pub(crate) fn give_place(&self, place: Place, opening: u64) {
        let mut places = self.places.lock();
        if self.are_of(opening) {
            places.taken[place as usize] = false;
        }
    }

    /// Reserves room for this many more bytes in a log, up to its limit; returns the bytes for which it has room.
    pub(crate) fn grow(&self, place: Place, used: usize, more: usize) -> io::Result<usize> {
        let mut places = self.places.lock();
        let at = place as usize;
        let wanted = used.saturating_add(more);
        if wanted > places.room[at] && wanted <= LOG_BYTES {
            let room = wanted.next_multiple_of(ROOM_STEP).min(LOG_BYTES);
            let memory = places.memory.clone().ok_or(io::ErrorKind::NotFound)?;
            memory.reserve_head(SectionLogs::offset(place), room)?;
            places.room[at] = room;
        }
        Ok(places.room[at])
    }

    /// Notes that a thread is in a section from now on. Waits while a commit gathers, unless the thread `may_pass`.
    #[inline]
    pub(crate) fn enter(&self, place: Place, may_pass: impl Fn() -> bool) {
        let inside = &self.busy[place as usize].inside;
        loop {
            inside.store(true, Relaxed);
            light_barrier();
            if self.closed.load(Acquire) == 0 {
                return;
            }
            if may_pass() {
                return;
            }
            inside.store(false, Release);
            let mut gate = self.gate.0.lock();
            if self.closed.load(Relaxed) != 0 {
                self.gate.1.wait(&mut gate);
            }
        }
    }

    pub(crate) fn busy(&self, place: Place) -> &Busy {
        &self.busy[place as usize]
    }

    /// Like [`Sections::enter`], for machines where barriers are free ([`is_asymmetric`]). False: it would have to
    /// wait; nothing was done.
    #[inline]
    pub(crate) fn enter_at_once(&self, busy: &Busy) -> bool {
        busy.inside.store(true, Relaxed);
        compiler_fence(SeqCst);
        // The load also makes the effects of a rollback visible.
        if self.closed.load(Acquire) != 0 {
            busy.leave();
            return false;
        }
        true
    }

    pub(crate) fn leave(&self, place: Place) {
        self.busy(place).leave();
    }

    /// Whether no thread is in a section. Threads that ended within one do not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.iter().all(|busy| !busy.inside.load(Acquire) || busy.abandoned.load(Acquire))
    }

    /// Waits until no thread is in a section; none begins before the result is dropped. None: `waits` has ended the
    /// wait.
    pub(crate) fn close(&self, waits: impl Fn() -> bool) -> Option<Closed<'_>> {
        while waits() {
            let closed = Closed::new(self);
            let until = Instant::now() + CLOSED_MOST;
            let mut pause = Duration::from_micros(5);
            loop {
                if self.is_idle() {
                    return Some(closed);
                }
                if Instant::now() > until {
                    break;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
            drop(closed);
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    pub(crate) fn has_waiting(&self, place: Place) -> bool {
        self.busy(place).has_waiting()
    }

    /// Adds a complete section that may not be stable yet.
    pub(crate) fn add(&self, logs: &SectionLogs, place: Option<Place>, section: Complete) -> Settled {
        if let Some(place) = place {
            self.busy[place as usize].waiting.fetch_add(1, Relaxed);
        }
        let mut stability = self.stability.lock();
        stability.add(place, section);
        self.waiting.fetch_add(1, Relaxed);
        // A section that becomes stable now sees that this one waits, or this one sees that the other is stable.
        fence(SeqCst);
        self.settle(logs, &mut stability)
    }

    /// Notes that a section became stable, for which others may have waited.
    #[inline]
    pub(crate) fn is_stable_now(&self, logs: &SectionLogs) -> Settled {
        fence(SeqCst);
        match self.waiting.load(Relaxed) {
            0 => Settled::default(),
            _ => self.settle(logs, &mut self.stability.lock()),
        }
    }

    fn settle(&self, logs: &SectionLogs, stability: &mut Stability) -> Settled {
        let sections = stability.settle(|on: &SectionId| logs.stable(on.place) >= on.number);
        for (place, section) in &sections {
            if let Some(place) = place {
                logs.set_stable(*place, section.number);
            }
        }
        self.waiting.fetch_sub(sections.len(), Relaxed);
        Settled { sections }
    }

    /// Notes that the remaining work of a stable section of a place is done.
    pub(crate) fn is_done(&self, place: Place) {
        self.busy[place as usize].waiting.fetch_sub(1, Release);
    }

    /// Adds a callback for the time when all sections of a place are stable. Returns it if they are.
    pub(crate) fn add_then(&self, place: Option<Place>, then: Then) -> Option<Then> {
        self.stability.lock().add_then(place, then)
    }

    /// Forgets all waiting sections after a rollback to the last commit, and all sections within which a thread ended.
    pub(crate) fn forget(&self) {
        let mut places = self.places.lock();
        let Some(memory) = &places.memory else { return };
        // SAFETY: the head of live memory, which is mapped for ever.
        unsafe { SectionLogs::at(memory.head()) }.settle_all();
        self.stability.lock().clear();
        self.waiting.store(0, Relaxed);
        for (place, busy) in self.busy.iter().enumerate() {
            busy.waiting.store(0, Relaxed);
            if busy.abandoned.swap(false, Relaxed) {
                busy.inside.store(false, Relaxed);
                places.taken[place] = false;
            }
        }
        self.abandoned_unlogged.store(false, Release);
        self.abandoned.store(false, Release);
    }

    /// Begins a new era after a rollback: locks held at the last commit count as free. Nobody is in a section.
    pub(crate) fn next_era(&self) {
        let era = self.era.load(Relaxed);
        let rollbacks = era.wrapping_add(2) & ((1 << ROLLBACK_BITS) - 1);
        self.era.store(era >> ROLLBACK_BITS << ROLLBACK_BITS | rollbacks, Release);
    }
}

/// While it lives, only threads that may pass can begin a section.
pub(crate) struct Closed<'a>(&'a Sections);

impl Closed<'_> {
    fn new(sections: &Sections) -> Closed<'_> {
        sections.closed.fetch_add(1, SeqCst);
        heavy_barrier();
        Closed(sections)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let _gate = self.0.gate.0.lock();
        self.0.closed.fetch_sub(1, Release);
        self.0.gate.1.notify_all();
    }
}
