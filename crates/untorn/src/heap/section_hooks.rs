//! What compiled hooks and other languages need of sections. No part of the library's promise to Rust programs.

use super::registry::WeakHeap;
use super::section_lock::SectionLock;
pub use super::section_log::LogWriter;
use super::section_run;
use super::section_stability::Then;
use super::section_thread::open_section;
pub use super::section_thread::{has_hooks, log, set_hooks};
pub use crate::region::{ToldTable, set_told_table};
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
    section_run::begin(heap)
}

/// Ends it.
pub fn end(heap: WeakHeap) -> Result<()> {
    section_run::release(heap, None)
}

/// As [`super::Section::abort`].
///
/// # Safety
/// As there.
pub unsafe fn abort(heap: WeakHeap) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { section_run::abort(heap) }
}

/// As [`super::Heap::on_stable`].
pub fn on_stable(heap: WeakHeap, then: Then) -> Result<()> {
    section_run::on_stable(heap, then)
}

/// Whether this thread is in a section, of any heap.
pub fn is_inside() -> bool {
    open_section().is_some()
}
