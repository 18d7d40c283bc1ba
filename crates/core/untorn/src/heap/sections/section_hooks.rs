//! The interface of sections for compiled hooks and other languages. It is not part of the library's stable interface
//! for Rust programs.

pub use crate::engine::region::{MarkTable, set_mark_table};
use crate::heap::alloc::registry::WeakHeap;
pub use crate::heap::log::section_log::LogWriter;
use crate::heap::log::section_stability::Then;
use crate::heap::log::section_thread::open_section;
pub use crate::heap::log::section_thread::{has_hooks, log, set_hooks};
use crate::heap::sections::lock::SectionLock;
use crate::heap::sections::run;
use untorn_journal::Result;

/// Takes the lock by the fast path of [`SectionLock::lock`]. False: nothing was done.
///
/// # Safety
/// The writer is that of this thread's hooks.
#[inline(always)]
pub unsafe fn lock_at_once(writer: *mut LogWriter, lock: &SectionLock) -> bool {
    // SAFETY: the caller's promise.
    unsafe { lock.lock_at_once(writer) }
}

/// Gives the lock back by the fast path of [`SectionLock::unlock`]. False: nothing was done.
///
/// # Safety
/// The promise of [`lock_at_once`].
#[inline(always)]
pub unsafe fn unlock_at_once(writer: *mut LogWriter, lock: &SectionLock) -> bool {
    // SAFETY: the caller's promise.
    unsafe { lock.unlock_at_once(writer) }
}

/// Begins a section without a lock, or a nested one within the thread's own.
pub fn begin(heap: WeakHeap) -> Result<()> {
    run::begin(heap)
}

/// Ends a section of [`begin`].
pub fn end(heap: WeakHeap) -> Result<()> {
    run::release(heap, None)
}

/// Like [`crate::heap::Section::abort`].
///
/// # Safety
/// The promise there.
pub unsafe fn abort(heap: WeakHeap) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { run::abort(heap) }
}

/// Like [`crate::heap::Heap::on_stable`].
pub fn on_stable(heap: WeakHeap, then: Then) -> Result<()> {
    run::on_stable(heap, then)
}

/// Whether this thread is in a section, of any heap.
pub fn is_inside() -> bool {
    open_section().is_some()
}
