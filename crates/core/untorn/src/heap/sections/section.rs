//! Sections of a live heap: groups of changes that a process leaves completely or not at all when it ends.

use crate::heap::handle::open_heap::Heap;
use crate::heap::log::section_mark::{MarkedLock, Mode};
use crate::heap::log::section_thread::writer;
use crate::heap::sections::run;
use std::marker::PhantomData;
use untorn_journal::{Error, Result};

/// A section of a live heap, which lasts from [`Heap::section`] or [`Heap::section_with`] until it is dropped. If the
/// process is killed, all of the section's changes are there, or none.
///
/// Its changes are those of bytes that were declared by [`Section::modify`] first. Blocks that the section allocates
/// are free again if the section is undone. Blocks that it frees, also by dropping collections, stay allocated until
/// the section cannot be undone any more.
///
/// A section within a section is a part of the outermost one: everything from the first lock that the thread takes to
/// the last that it gives back is all or nothing. If another thread takes a lock that the section gave back before its
/// end, and the section is undone, the section of that thread is undone with it. A cut has no changes of a section that
/// has not ended. A panic ends a section as dropping does, with the changes made by then.
pub struct Section<'h> {
    heap: &'h Heap,
    /// The lock to give back. None: a nested section.
    lock: Option<&'h MarkedLock>,
    /// The section has the lock of the heap, or is nested in one that has it.
    own: bool,
    /// Keeps the section in the thread that began it.
    thread: PhantomData<*const ()>,
}

impl Heap {
    /// Begins a section under the heap's own lock: waits until no other thread has such a section.
    /// [`Heap::section_with`] is for sections on different locks.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the heap was not opened live, or this thread is in a section of another heap.
    /// [`Error::Forked`].
    pub fn section(&self) -> Result<Section<'_>> {
        let heap = self.downgrade();
        let lock = &heap.entry.section_lock;
        let has_it = run::current(heap).is_ok_and(|section| *section.own_lock() > 0);
        match has_it {
            true => run::begin(heap)?,
            false => run::lock(heap, lock, Mode::Exclusive)?,
        }
        *run::current(heap)?.own_lock() += 1;
        let lock = (!has_it).then_some(lock);
        Ok(Section { heap: self, lock, own: true, thread: PhantomData })
    }

    /// Calls `then` once the end of the process can no longer undo anything that this thread has done so far in
    /// sections of the heap, including its present section. That is when the section ends, or later, if the section has
    /// seen changes of sections that have not ended. Output that tells of the section waits for this call. Any thread
    /// may make the call.
    ///
    /// Anything that takes the heap back to its last cut undoes these sections, too: a process that ends while any
    /// thread holds a guard of [`Heap::mutate`], or is in a section that has no log or has changed more than its log
    /// holds. Programs with such threads wait for the ticket of a cut instead.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the heap was not opened live. [`Error::Closed`], [`Error::Forked`].
    pub fn on_stable(&self, then: impl FnOnce() + Send + 'static) -> Result<()> {
        run::on_stable(self.downgrade(), Box::new(then))
    }
}

impl<'h> Section<'h> {
    pub(crate) fn of(heap: &'h Heap, lock: Option<&'h MarkedLock>) -> Section<'h> {
        Section { heap, lock, own: false, thread: PhantomData }
    }

    /// Declares that the section is about to change a value in the heap, and returns the value. Data that the value
    /// points to is not part of it: declare a vector before you push to it, and an element before you change it.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the value is not in the heap. [`Error::NoSpace`]: the section has changed more than its log
    /// holds (almost 1 MiB). Nothing was noted, and the section goes on; the value must not be changed.
    pub fn modify<'t, T: ?Sized>(&self, value: &'t mut T) -> Result<&'t mut T> {
        self.log(std::ptr::from_mut(value).cast(), size_of_val(value))?;
        Ok(value)
    }

    fn log(&self, at: *mut u8, len: usize) -> Result<()> {
        let (base, bytes) = self.heap.memory();
        let offset = (at as usize).wrapping_sub(base.as_ptr() as usize);
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(Error::invalid(format!(
                "{len} bytes at address {at:p} are not in the heap; nothing was logged"
            )));
        }
        let section = run::current(self.heap.downgrade())?;
        if !section.can_log(len) {
            return Err(Error::NoSpace {
                detail: format!(
                    "the log of a section has no room for {len} more bytes; nothing was logged. Make smaller sections, \
                     or make such large changes under `mutate`"
                ),
            });
        }
        // SAFETY: in the heap, and the caller has exclusive access.
        unsafe { section.log_bytes(at.expose_provenance(), len, true) };
        Ok(())
    }

    /// Undoes all changes of the thread's section so far, including those of the sections around this one. The section
    /// goes on.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the section has given a lock back, or has changed more than its log holds. Nothing was done.
    ///
    /// # Safety
    /// The undone state is not used any more: references to changed data, and collections whose memory the section has
    /// allocated.
    pub unsafe fn abort(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { run::abort(self.heap.downgrade()) }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread's.
        if !self.own && self.lock.is_some_and(|lock| unsafe { run::release_at_once(writer(), lock) }) {
            return;
        }
        let heap = self.heap.downgrade();
        if self.own
            && let Ok(section) = run::current(heap)
        {
            *section.own_lock() -= 1;
        }
        if let Err(e) = run::release(heap, self.lock.map(|lock| (lock, Mode::Exclusive))) {
            tracing::warn!(id = "untorn.section.end_failed", error = %e, "the end of a section failed");
        }
    }
}
