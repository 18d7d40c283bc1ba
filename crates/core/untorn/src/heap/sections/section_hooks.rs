//! What compiled hooks and other languages need of sections. No part of the library's promise to Rust programs.

pub use crate::engine::region::{ToldTable, set_told_table};
use crate::heap::alloc::registry::WeakHeap;
pub use crate::heap::log::section_log::LogWriter;
use crate::heap::log::section_stability::Then;
use crate::heap::log::section_thread::open_section;
pub use crate::heap::log::section_thread::{has_hooks, log, set_hooks};
use crate::heap::sections::lock::SectionLock;
use crate::heap::sections::run;
use untorn_journal::Result;

/// [`SectionLock::lock`], as most calls of it are. False: nothing was done.
///
/// # Safety
/// The writer is this thread's, that of its hooks.
#[inline(always)]
pub unsafe fn lock_at_once(writer: *mut LogWriter, lock: &SectionLock) -> bool {
    // SAFETY: the caller's promise.
    unsafe { lock.lock_at_once(writer) }
}

/// [`SectionLock::unlock`], as most calls of it are. False: nothing was done.
///
/// # Safety
/// As for [`lock_at_once`].
#[inline(always)]
pub unsafe fn unlock_at_once(writer: *mut LogWriter, lock: &SectionLock) -> bool {
    // SAFETY: the caller's promise.
    unsafe { lock.unlock_at_once(writer) }
}

/// Begins a section without a lock, or deepens the thread's own.
pub fn begin(heap: WeakHeap) -> Result<()> {
    run::begin(heap)
}

/// Ends it.
pub fn end(heap: WeakHeap) -> Result<()> {
    run::release(heap, None)
}

/// As [`crate::heap::Section::abort`].
///
/// # Safety
/// As there.
pub unsafe fn abort(heap: WeakHeap) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { run::abort(heap) }
}

/// As [`crate::heap::Heap::on_stable`].
pub fn on_stable(heap: WeakHeap, then: Then) -> Result<()> {
    run::on_stable(heap, then)
}

/// Whether this thread is in a section, of any heap.
pub fn is_inside() -> bool {
    open_section().is_some()
}
