//! Runs sections of a heap: their beginning, and the work after their end.

use crate::heap::alloc::registry::WeakHeap;
use crate::heap::log::section_log::LogWriter;
use crate::heap::log::section_mark::{MarkedLock, Mode};
use crate::heap::log::section_stability::{Complete, Then};
use crate::heap::log::section_thread::{
    Ended, ThreadSections, current_of, known_sections, last_sections, section_of, sections_in, set_current,
};
use crate::heap::log::sections::Sections;
use crate::heap::sections::audit;
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use untorn_journal::{Error, Result};

/// Begins a section, or a nested one within the thread's own; [`release`] ends it.
#[inline]
pub(crate) fn begin(heap: WeakHeap) -> Result<()> {
    match section_of(heap.opening()) {
        Some(section) => {
            section.deepen();
            Ok(())
        }
        None => begin_outermost(heap),
    }
}

fn begin_outermost(heap: WeakHeap) -> Result<()> {
    let sections = match last_sections(heap.opening()) {
        Some(sections) => sections,
        None => sections_in(&heap.section_heap()?)?,
    };
    if !heap.is_open() {
        set_current(null_mut());
        return Err(Error::Closed);
    }
    let has_log = sections.find_log(!audit::is_on()).unwrap_or_else(|e| {
        tracing::warn!(
            id = "untorn.section.no_log",
            error = %e, "no room for the log of a section: a kill within it takes the heap back to its last cut"
        );
        false
    });
    if !has_log {
        heap.begin_mutation()?;
    }
    audit::before(heap);
    sections.begin(|| heap.entry.guard.is_held());
    Ok(())
}

/// This thread's section of a heap.
pub(crate) fn current<'t>(heap: WeakHeap) -> Result<&'t mut ThreadSections> {
    section_of(heap.opening()).ok_or_else(|| Error::invalid("this thread is not in a section of the heap"))
}

/// Takes a lock and begins a section by the fast path: without a look at the registry, and with one look at the
/// thread's state. `is_of` says whether the lock is one of these sections; it is called while the heap cannot be rolled
/// back. False: nothing was done, and [`lock`] does it.
///
/// # Safety
/// The writer is this thread's.
#[inline(always)]
pub(crate) unsafe fn lock_at_once(
    writer: *mut LogWriter,
    is_of: impl Fn(&Sections) -> bool,
    lock: &MarkedLock,
) -> bool {
    // The rare cases are calls at the end of the function, so that the fast path need not keep registers for them.
    #[cold]
    #[inline(never)]
    fn wait(section: &mut ThreadSections, lock: &MarkedLock) {
        lock.lock(Mode::Exclusive);
        section.has_taken(&lock.mark);
    }
    #[cold]
    #[inline(never)]
    fn look(section: &mut ThreadSections, lock: &MarkedLock) {
        section.has_taken(&lock.mark);
    }
    // SAFETY: the caller's promise; nobody else uses the thread's state before this returns.
    let Some(section) = (unsafe { current_of(writer) }) else { return false };
    // SAFETY: the caller's promise.
    let writer = unsafe { &mut *writer };
    if !section.begin_at_once(writer, lock) {
        return false;
    }
    if !is_of(section.heap().sections) {
        section.cancel(writer);
        return false;
    }
    if !lock.try_lock(Mode::Exclusive) {
        wait(section, lock);
    } else if !lock.mark.is_clear() {
        look(section, lock);
    }
    true
}

/// Ends a section that [`lock_at_once`] began with this lock by the fast path, and gives the lock back. False: nothing
/// was done, and [`release`] does it.
///
/// # Safety
/// The writer is this thread's.
#[inline(always)]
pub(crate) unsafe fn release_at_once(writer: *mut LogWriter, lock: &MarkedLock) -> bool {
    // SAFETY: as in `lock_at_once`.
    let Some(section) = (unsafe { current_of(writer) }) else { return false };
    // SAFETY: the caller's promise.
    let writer = unsafe { &mut *writer };
    if !section.end_at_once(writer, lock) {
        return false;
    }
    // SAFETY: the section began with it, and the thread has not given it back since.
    unsafe { lock.unlock(Mode::Exclusive) };
    section.leave();
    true
}

/// Takes a lock, as a section of its own or as a part of one.
pub(crate) fn lock(heap: WeakHeap, lock: &MarkedLock, mode: Mode) -> Result<()> {
    begin(heap)?;
    take(heap, lock, mode)
}

/// Takes a lock in a section, or in a nested one, that was begun for it.
#[inline]
pub(crate) fn take(heap: WeakHeap, lock: &MarkedLock, mode: Mode) -> Result<()> {
    audit::uses(lock);
    lock.lock(mode);
    current(heap)?.has_locked(lock, mode);
    Ok(())
}

/// Like [`take`], if the lock is free; otherwise ends the section, or the part, that was begun for it.
pub(crate) fn try_take(heap: WeakHeap, lock: &MarkedLock, mode: Mode) -> Result<bool> {
    audit::uses(lock);
    let taken = lock.try_lock(mode);
    match taken {
        true => current(heap)?.has_locked(lock, mode),
        false => release(heap, None)?,
    }
    Ok(taken)
}

/// Ends a section, or a part of one, and gives back a lock that the thread has.
pub(crate) fn release(heap: WeakHeap, lock: Option<(&MarkedLock, Mode)>) -> Result<()> {
    let section = current(heap)?;
    // A reader leaves no changes that others could see.
    let mark = lock.filter(|(_, mode)| *mode == Mode::Exclusive).map(|(lock, _)| &lock.mark);
    let unlock = || {
        if let Some((lock, mode)) = lock {
            // SAFETY: the caller has seen that this thread has it.
            unsafe { lock.unlock(mode) };
        }
    };
    if section.depth() > 1 {
        if let Some(mark) = mark {
            section.marks(mark);
        }
        section.rise();
        unlock();
        return Ok(());
    }
    audit::after(heap, section);
    section.persist_changes(|block| {
        let block = NonNull::new(with_exposed_provenance_mut(block))?;
        heap.size_of(block).ok()
    });
    let ended = section.end(mark);
    unlock();
    finish(heap, ended);
    Ok(())
}

/// Frees the blocks that stable sections have freed, and calls their callbacks.
fn finish(heap: WeakHeap, ended: Ended) {
    let Ended { settled, frees, mut then, place, empties } = ended;
    if let Some(place) = place {
        free_all(heap, Some(place), &frees);
        if empties && let Some(sections) = last_sections(heap.opening()) {
            sections.empty_log(place);
        }
    } else {
        free_all(heap, None, &frees);
    }
    for (place, Complete { then: more, frees, unlogged, .. }) in settled.sections {
        free_all(heap, place, &frees);
        if unlogged && let Some(sections) = last_sections(heap.opening()) {
            sections.heap().head.end_change();
        }
        if let Some(place) = place {
            heap.entry.sections.is_done(place);
        }
        then.extend(more);
    }
    match place {
        Some(place) => heap.entry.sections.leave(place),
        None => _ = heap.end_mutation(),
    }
    then.into_iter().for_each(|then| then());
}

fn free_all(heap: WeakHeap, place: Option<u8>, frees: &[(usize, usize)]) {
    let logs = last_sections(heap.opening()).map(|sections| sections.heap().logs);
    for (at, address) in frees {
        // Noted before the free: otherwise a recovery could free the block again after another thread got it.
        if let (Some(place), Some(logs)) = (place.filter(|_| *at != 0), logs) {
            logs.set_freed(place, *at);
        }
        let Some(block) = NonNull::new(with_exposed_provenance_mut(*address)) else { continue };
        // SAFETY: the code that freed the block promised that nobody uses it.
        if let Err(e) = unsafe { heap.free(block) } {
            tracing::warn!(id = "untorn.section.free_failed", error = %e, "a block that a section freed stays allocated");
        }
    }
}

/// Calls `then` once no kill can roll back anything that this thread has done so far in sections of the heap.
pub(crate) fn on_stable(heap: WeakHeap, then: Then) -> Result<()> {
    let now = match known_sections(heap.opening()) {
        Some(sections) => sections.on_stable(then),
        None => {
            heap.section_heap()?;
            Some(then)
        }
    };
    if let Some(then) = now {
        then();
    }
    Ok(())
}

/// Undoes the changes of this thread's section so far.
///
/// # Safety
/// Nobody uses the undone state: references to it, and collections whose memory the section allocated.
pub(crate) unsafe fn abort(heap: WeakHeap) -> Result<()> {
    let section = current(heap)?;
    if section.is_marked() {
        return Err(Error::invalid(
            "the section has already released a lock: other threads may have seen its changes, so it cannot be undone",
        ));
    }
    if section.is_unlogged() || !section.has_log() {
        return Err(Error::invalid("the section has not logged all of its changes, so it cannot be undone"));
    }
    // SAFETY: the caller's promise, and no other thread has seen it, as all locks are held.
    let allocated = unsafe { section.undo() };
    for address in allocated {
        let Some(block) = NonNull::new(with_exposed_provenance_mut(address)) else { continue };
        // SAFETY: the caller's promise.
        if let Err(e) = unsafe { heap.free(block) } {
            tracing::warn!(
                id = "untorn.section.aborted_stays",
                error = %e, "a block of an aborted section stays allocated"
            );
        }
    }
    Ok(())
}
