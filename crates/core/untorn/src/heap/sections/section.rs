//! Sections of a live heap: changes of which a process that ends leaves all or none.

use crate::heap::handle::open_heap::Heap;
use crate::heap::log::section_mark::{MarkedLock, Mode};
use crate::heap::log::section_thread::writer;
use crate::heap::sections::run;
use std::marker::PhantomData;
use untorn_journal::{Error, Result};

/// A section of a live heap, from [`Heap::section`] or [`Heap::section_with`] on until it is dropped: after the process was
/// killed, all of its changes are there, or none.
///
/// Changes are those of bytes that [`Section::modify`] was told of before. What the section allocates is free again if the
/// section is undone. What it frees, also by dropping collections, stays allocated until the section can not be undone any
/// more.
///
/// A section within a section is a part of the outermost one: what was done is all or nothing from the first lock that the
/// thread took to the last that it gives back. If others take a lock that the section gave back before its end, their sections
/// are undone with it, if it comes to that. A cut has nothing of a section that has not ended. A panic ends a section as
/// dropping does, with what was changed by then.
pub struct Section<'h> {
    heap: &'h Heap,
    /// To be given back. None: a section within one.
    lock: Option<&'h MarkedLock>,
    /// It has the lock of the heap, or is within one that has.
    own: bool,
    /// It ends in the thread that began it.
    thread: PhantomData<*const ()>,
}

impl Heap {
    /// Begins a section under the heap's own lock: waits until no other thread has one of these. Sections on different locks are
    /// of [`Heap::section_with`].
    ///
    /// # Errors
    /// [`Error::Invalid`]: the heap was not opened live, or this thread is in a section of another heap. [`Error::Forked`].
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

    /// Calls something once nothing that this thread has done in sections of the heap so far, and in the section that it is in,
    /// can be undone any more by the end of the process. That is when the section ends, or later, if it has seen what others did
    /// that have not ended. Output that tells of the section waits for this. It is called by whichever thread finds that out.
    ///
    /// What takes the heap back to its last cut takes this back, too: a process that ends while any thread holds a guard of
    /// [`Heap::mutate`], or is in a section that has no log or has changed more than its log holds. Programs that have such wait
    /// for the ticket of a cut.
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

    /// Says that the section is about to change a value in the heap, and returns it. What the value points to is not a part of
    /// it: before a vector is pushed to, the vector is told of; before an element is changed, the element.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the value is not in the heap. [`Error::NoSpace`]: the section has changed more than its log holds
    /// (almost 1 MiB). Nothing was noted, and the section goes on; the value must not be changed.
    pub fn modify<'t, T: ?Sized>(&self, value: &'t mut T) -> Result<&'t mut T> {
        self.log(std::ptr::from_mut(value).cast(), size_of_val(value))?;
        Ok(value)
    }

    fn log(&self, at: *mut u8, len: usize) -> Result<()> {
        let (base, bytes) = self.heap.memory();
        let offset = (at as usize).wrapping_sub(base.as_ptr() as usize);
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(Error::invalid(format!(
                "{len} bytes at address {at:p} are not in the heap; nothing was noted"
            )));
        }
        let section = run::current(self.heap.downgrade())?;
        if !section.can_log(len) {
            return Err(Error::NoSpace {
                detail: format!(
                    "the log of a section has no room for {len} more bytes; nothing was noted. Make smaller sections, or \
                     change so much under `mutate`"
                ),
            });
        }
        // SAFETY: in the heap, and the caller has them exclusively.
        unsafe { section.log_bytes(at.expose_provenance(), len) };
        Ok(())
    }

    /// Takes back everything that the thread's section, with those around this one, has changed so far. The section goes on.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the section has given a lock back, or has changed more than its log holds. Nothing was done.
    ///
    /// # Safety
    /// What is taken back is not used any more: references to what was changed, and collections whose memory the section has
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
            tracing::warn!(error = %e, "ending a section");
        }
    }
}
