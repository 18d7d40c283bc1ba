//! The audit of sections: with `UNTORN_SECTION_AUDIT=1`, each section is compared with the state that its log would
//! restore. A store that was not logged is reported, and the process is stopped: a kill would have left half of that
//! section.
//!
//! Sections run one at a time then, and each copies the heap: for tests of a program, and of how it was compiled.

use crate::heap::alloc::registry::WeakHeap;
use crate::heap::image::layout::{CHUNK_BYTES, SEGMENT_BYTES};
use crate::heap::log::section_mark::MarkedLock;
use crate::heap::log::section_thread::ThreadSections;
use parking_lot::lock_api::RawMutex as _;
use parking_lot::{Mutex, RawMutex};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::OnceLock;

/// The bytes before a [`MarkedLock`] in a `SectionLock`, which say to which heap the lock belongs.
const LOCK_SAYS: usize = 8;

static ONE: RawMutex = RawMutex::INIT;

/// Locks that any thread has used. They may lie in the heap, and are not logged.
static LOCKS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// The heap as it was when this thread's section began.
    static BEFORE: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Whether sections are audited.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("UNTORN_SECTION_AUDIT").is_some_and(|value| value != "0" && !value.is_empty()))
}

/// The bytes of a heap, and its address.
fn bytes_of<'h>(heap: WeakHeap) -> Option<(usize, &'h [u8])> {
    let (base, bytes) = heap.mapped()?;
    // SAFETY: mapped, and no other thread of a program that is audited stores there outside of a section.
    Some((base as usize, unsafe { std::slice::from_raw_parts(base, bytes) }))
}

/// The outermost section of this thread is about to begin.
#[inline]
pub(crate) fn before(heap: WeakHeap) {
    if is_on() {
        ONE.lock();
        BEFORE.with(|before| *before.borrow_mut() = bytes_of(heap).map(|(_, bytes)| bytes.to_vec()));
    }
}

/// A thread is about to use a lock, in a section or before one.
#[inline]
pub(crate) fn uses(lock: &MarkedLock) {
    if is_on() {
        LOCKS.lock().insert(std::ptr::from_ref(lock).addr());
    }
}

/// The outermost section of this thread is about to end.
#[inline]
pub(crate) fn after(heap: WeakHeap, section: &ThreadSections) {
    if is_on() {
        let before = BEFORE.with(|before| before.borrow_mut().take());
        // A section that changed more than its log holds cannot be compared.
        if let (Some(before), Some((base, now)), false) = (before, bytes_of(heap), section.is_unlogged()) {
            compare(heap, base, &before, now, section);
        }
        // SAFETY: locked in `before` by this thread.
        unsafe { ONE.unlock() };
    }
}

fn compare(heap: WeakHeap, base: usize, before: &[u8], now: &[u8], section: &ThreadSections) {
    let mut undone = now[..before.len().min(now.len())].to_vec();
    let blocks = section.undo_in(base, &mut undone).into_iter();
    let allocated: Vec<_> = blocks
        .filter_map(|at| Some(at..at + heap.size_of(NonNull::new(with_exposed_provenance_mut(at))?).ok()?))
        .collect();
    let locks = LOCKS.lock().clone();
    let is_own = |at: usize| {
        let is_locks = |lock: &usize| (lock - LOCK_SAYS..lock + size_of::<MarkedLock>()).contains(&(base + at));
        at % SEGMENT_BYTES < CHUNK_BYTES || locks.iter().any(is_locks)
    };
    let differs = |at: &usize| {
        let differs = undone[*at] != before[*at];
        differs && !is_own(*at) && !allocated.iter().any(|block| block.contains(&(base + at)))
    };
    let Some(first) = (0..undone.len()).find(differs) else { return };
    let end = (first..undone.len()).take_while(differs).last().unwrap_or(first) + 1;
    eprintln!(
        "untorn: audit: a section stored to {} bytes at {:#x} (offset {first:#x} of the heap), but did not log them: \
         they were {:02x?}, and are {:02x?}. Compile everything that stores to the heap with untorn-cc or untorn-c++, \
         and call untorn_section_log() before all other stores",
        end - first,
        base + first,
        &before[first..end.min(first + 16)],
        &now[first..end.min(first + 16)],
    );
    std::process::abort();
}
