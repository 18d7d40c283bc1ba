//! Finds the calling thread's sections: those that it is in, and those in one heap.

use super::log_writer::{WRITER, has_hooks, writer};
use super::{SectionHeap, ThreadSections};
use crate::heap::log::section_log::LogWriter;
use std::cell::RefCell;
use std::ptr::{NonNull, null_mut};
use untorn_journal::Error;
use untorn_os::process_generation;

thread_local! {
    static ALL: All = const { All(RefCell::new(Vec::new())) };
}

/// A thread's state in all heaps, dropped when the thread ends.
struct All(RefCell<Vec<*mut ThreadSections>>);

impl Drop for All {
    fn drop(&mut self) {
        set_current(null_mut());
        for one in self.0.take() {
            // SAFETY: made by `Box::into_raw`, and nobody else uses it any more.
            let one = unsafe { Box::from_raw(one) };
            one.thread_ends();
        }
    }
}

/// The thread's state in the heap in which it had its last section.
///
/// # Safety
/// The writer is this thread's. The caller stops using the result before it asks for another one.
#[inline]
pub(crate) unsafe fn current_of<'t>(writer: *mut LogWriter) -> Option<&'t mut ThreadSections> {
    // SAFETY: the caller's promise, and a box of this thread's, which it frees when it ends.
    unsafe { (*writer).section.cast::<ThreadSections>().as_mut() }
}

#[inline]
fn current<'t>() -> Option<&'t mut ThreadSections> {
    // Do not make a writer for a thread without sections: it would leak when the thread ends.
    let known = NonNull::new(WRITER.get())?;
    // SAFETY: this thread's; each caller stops using it before it calls another one.
    unsafe { current_of(known.as_ptr()) }
}

pub(crate) fn set_current(section: *mut ThreadSections) {
    if section.is_null() && WRITER.get().is_null() {
        return;
    }
    // SAFETY: this thread's own, for ever.
    unsafe { (*writer()).section = section.cast() };
}

/// The section that this thread is in, in any heap.
#[inline]
pub(crate) fn open_section<'t>() -> Option<&'t mut ThreadSections> {
    let section = current();
    // A forked child has no section: the state that it sees is the parent's.
    section.filter(|section| section.depth > 0 && section.process == process_generation())
}

/// Logs bytes that are about to be changed. Bytes out of the heap of the thread's section are ignored.
///
/// # Safety
/// They can be read, and no other thread changes them.
pub unsafe fn log(address: usize, len: usize) {
    if let Some(section) = open_section() {
        let heap = section.heap().addresses.clone();
        let (start, end) = (address.max(heap.start), address.saturating_add(len).min(heap.end));
        if start < end {
            // SAFETY: the caller's promise.
            unsafe { section.log_bytes(start, end - start, !has_hooks()) };
        }
    }
}

/// The section that this thread is in, if it is in this opening of a heap.
#[inline]
pub(crate) fn section_of<'t>(opening: u64) -> Option<&'t mut ThreadSections> {
    open_section().filter(|section| section.heap.opening == opening)
}

/// The thread's state in the heap in which it had its last section, if that is this opening.
#[inline]
pub(crate) fn last_sections<'t>(opening: u64) -> Option<&'t mut ThreadSections> {
    current().filter(|last| last.heap.opening == opening && last.process == process_generation())
}

/// The thread's state in a heap, whichever heap it used last.
pub(crate) fn known_sections<'t>(opening: u64) -> Option<&'t mut ThreadSections> {
    let known = ALL.try_with(|all| {
        // SAFETY: boxes of this thread's.
        all.0.borrow().iter().copied().find(|one| unsafe { &**one }.is_of(opening))
    });
    // While the thread ends, the list is gone.
    match known {
        // SAFETY: as in `current`.
        Ok(known) => known.map(|known| unsafe { &mut *known }),
        Err(_) => last_sections(opening),
    }
}

/// The state of this thread in a heap; creates it for the thread's first section there.
///
/// # Errors
/// The thread is in a section of another heap, or it is ending.
pub(crate) fn sections_in<'t>(heap: &SectionHeap) -> Result<&'t mut ThreadSections, Error> {
    if let Some(current) = current() {
        if current.heap.opening == heap.opening && current.process == process_generation() {
            return Ok(current);
        }
        if current.depth > 0 && current.heap.sections.are_of(current.heap.opening) {
            return Err(Error::invalid("this thread is in a section of another heap; end that one first"));
        }
    }
    let found = ALL.try_with(|all| {
        let mut all = all.0.borrow_mut();
        all.retain(|one| {
            // SAFETY: a box of this thread's.
            let gone = unsafe { &**one }.is_gone();
            if gone {
                // SAFETY: made by `Box::into_raw`, and nobody else uses it.
                drop(unsafe { Box::from_raw(*one) });
            }
            !gone
        });
        // SAFETY: a box of this thread's.
        let known = all.iter().copied().find(|one| unsafe { &**one }.heap.opening == heap.opening);
        known.unwrap_or_else(|| {
            let made = Box::into_raw(Box::new(ThreadSections::new(heap.clone())));
            all.push(made);
            made
        })
    });
    let Ok(found) = found else {
        // Callers that lock a pthread lock do not look at errors, so this is logged.
        tracing::warn!(
            id = "untorn.section.thread_ends",
            "a thread that is ending cannot begin a section: its changes under a lock are not all-or-nothing"
        );
        return Err(Error::invalid("a thread that is ending can begin no section"));
    };
    set_current(found);
    // SAFETY: as in `current`.
    let found = unsafe { &mut *found };
    // The writer was set up for the log of another heap.
    found.ready = false;
    Ok(found)
}
