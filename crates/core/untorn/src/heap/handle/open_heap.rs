//! The handle of an open heap.

use crate::engine::commit::capture::Threads;
use crate::engine::commit::ticket::Ticket;
use crate::engine::handles::file::File;
use crate::engine::waiting::completion::Completion;
use crate::engine::waiting::concurrency::MutexGuard;
use crate::heap::alloc::body::{Body, segments_of};
use crate::heap::alloc::guard::{Mutating, Quiet};
use crate::heap::alloc::registry::{self, Live, LockedSlot, WeakHeap};
use crate::heap::collections::in_heap::InHeap;
use crate::heap::image::check::Checker;
use crate::heap::image::layout::Stamp;
use crate::heap::image::report::HeapReport;
use crate::heap::live::cuts::{Cutter, Within};
use crate::heap::live::own_pages;
use crate::heap::live::{self, LiveReport, Working};
use crate::heap::log::section_thread::section_of;
use crate::heap::log::sections::Closed;
use crate::invariant;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};
use untorn_journal::{Error, Result};
use untorn_os::holds;

/// The part of an open heap that its handles share.
struct Shared {
    base: usize,
    /// Dropped before the body: once the address is free, another opening may use it.
    registration: Registration,
    body: Arc<Body>,
    /// Held to read or set roots. A thread that holds it may hold the guard, and does not wait for a guard.
    roots: ReentrantMutex<()>,
}

/// A heap's entry in the registry, removed when the heap closes.
struct Registration(WeakHeap);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The step that follows a commit of a live heap.
#[derive(Clone, Copy)]
enum Next {
    /// A cut; the heap stays open.
    Cut,
    /// The last commit of this working memory; the heap closes.
    End,
}

/// Why a commit that waits for sections is refused.
pub(crate) const ABANDONED_SECTION: &str = "a thread ended within a section, and its changes are half done. This \
     commit was not made. Either roll back, which undoes all changes since the last commit; or end the process without \
     `close`: then the next opening undoes the section and keeps all other changes";

/// A rollback waits this long for threads in sections, which may wait for a thread that ended.
const ABANDONED_PATIENCE: Duration = Duration::from_secs(10);

/// A commit that was queued.
struct Submitted {
    completion: Arc<Completion>,
    /// Whether a store by another thread was found during the commit.
    raced: Result<()>,
    /// The number of the cut, for a live heap.
    cut: Option<u64>,
}

/// While it lives, no thread changes the heap or allocates in it.
pub(crate) struct Quiescent<'a> {
    // Dropped in this order: a thread that waits for the guard finds the other locks free.
    pub(crate) live: MutexGuard<'a, Option<Live>>,
    pub(crate) slots: Vec<LockedSlot<'a>>,
    _quiet: Quiet<'a>,
    _closed: Option<Closed<'a>>,
}

/// An open heap. It is cheap to clone; it closes, and discards uncommitted changes, when the last clone is dropped.
#[derive(Clone)]
pub struct Heap {
    /// Dropped first, before the heap that its thread uses.
    cutter: Option<Arc<Cutter>>,
    shared: Arc<Shared>,
}

impl Heap {
    pub(crate) fn new(base: usize, segments: usize, segments_most: usize, body: Body) -> Heap {
        let body = Arc::new(body);
        let registration = Registration(registry::insert(base, segments, segments_most, body.clone()));
        Heap { cutter: None, shared: Arc::new(Shared { base, registration, body, roots: ReentrantMutex::new(()) }) }
    }

    /// Starts a thread that commits every `every`, and before a commit would take longer than `within`.
    pub(crate) fn cut_every(mut self, every: Duration, within: Option<Duration>) -> Result<Heap> {
        let path = self.file().path();
        let heap = Heap { cutter: None, shared: self.shared.clone() };
        let guard = &self.shared.registration.0.entry.guard;
        let opening = self.shared.registration.0.opening();
        let would_wait = move || guard.is_held() || section_of(opening).is_some();
        let (body, cut) = (self.shared.body.clone(), heap.clone());
        let failed = move |e: &Error| body.map.note(e);
        let (stored, cut) = (move || heap.stored_bytes(), move || cut.commit());
        let head = self.shared.body.working.as_ref().map(|working| working.head);
        let head = head.ok_or_else(|| Error::invalid("only live heaps have cuts"))?;
        let cutter = Cutter::start(every, within.map(Within::new), head, would_wait, stored, cut, failed);
        let cutter = cutter.map_err(|e| Error::io("start a thread for", path, e))?;
        self.cutter = Some(Arc::new(cutter));
        Ok(self)
    }

    /// The bytes of the pages that were stored to since the last commit.
    fn stored_bytes(&self) -> Result<u64> {
        Ok(self.shared.body.map.stored_pages()?.iter().map(|pages| pages.end - pages.start).sum())
    }

    /// The working memory of a live heap, and how the heap began. None: the heap was not opened live.
    pub fn live(&self) -> Option<LiveReport> {
        self.shared.body.working.as_ref().map(Working::report)
    }

    /// An allocator for collections in this heap, which must be dropped before this handle. A copy of the allocator may
    /// be stored in the heap.
    pub fn allocator(&self) -> InHeap<'_> {
        InHeap::new(self.shared.base)
    }

    /// Allocates memory in the heap, with arbitrary contents. It stays allocated until [`Heap::free`], also after a
    /// restart.
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<u8>> {
        self.shared.registration.0.allocate(layout)
    }

    /// A weak handle, which does not keep the heap open.
    pub fn downgrade(&self) -> WeakHeap {
        self.shared.registration.0
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`]: not an allocation of this heap, or already freed.
    ///
    /// # Safety
    /// Nobody uses the allocation any more.
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.shared.registration.0.free(address) }
    }

    /// The bytes of an allocation, which may be more than were asked for.
    pub fn size_of(&self, address: NonNull<u8>) -> Result<usize> {
        self.shared.registration.0.size_of(address)
    }

    /// Marks `len` bytes at `address`, which is in the heap, as changed. With [`crate::TrackerKind::Explicit`] a commit has
    /// the ranges that were marked since the last one and the heap's own changes, and nothing else; see
    /// [`crate::Map::mark_dirty`]. With every other tracker the heap finds stores by itself, and this does nothing.
    ///
    /// If several threads use the heap, make the store and this call under one guard of [`Heap::mutate`].
    ///
    /// # Errors
    /// [`Error::Invalid`]: some of the bytes are not in the heap; nothing was marked. [`Error::Closed`],
    /// [`Error::Forked`].
    #[inline]
    pub fn mark_dirty(&self, address: *const u8, len: usize) -> Result<()> {
        self.shared.registration.0.mark_dirty(address, len)
    }

    /// Marks an object in the heap as changed; see [`Heap::mark_dirty`].
    ///
    /// # Errors
    /// Those of [`Heap::mark_dirty`].
    pub fn mark_dirty_value<T: ?Sized>(&self, value: &T) -> Result<()> {
        self.mark_dirty(std::ptr::from_ref(value).cast(), size_of_val(value))
    }

    /// Takes a guard: while it lives, no commit takes place. For changes that belong together when several threads
    /// change the heap. A thread that has the guard may take it again.
    pub fn mutate(&self) -> Mutating<'_> {
        self.shared.registration.0.entry.guard.mutate()
    }

    /// Takes a guard: while it lives, no commit takes place. For steps each of which leaves the heap consistent, such
    /// as those of lock-free structures. If the process ends meanwhile, a live heap loses nothing; within
    /// [`Heap::mutate`] it would go back to its last cut. The two guards may be nested in either order.
    pub fn hold_cuts(&self) -> Mutating<'_> {
        self.shared.registration.0.entry.guard.hold()
    }

    /// Commits all changes of the heap: after any crash all of them are there, or none. Waits until no thread holds a
    /// guard of [`Heap::mutate`], and copies the changes. Then threads may change the heap again, while the copy is
    /// compared, written and flushed.
    ///
    /// # Errors
    /// Those of [`crate::Map::msync`]. [`Error::Invalid`]: this thread holds such a guard itself, or a thread has ended
    /// with one since the last rollback.
    pub fn commit(&self) -> Result<()> {
        self.syncv(&[])
    }

    /// Commits the heap and ordinary files of the same store as one commit, like [`crate::Store::syncv`].
    pub fn syncv(&self, files: &[&File]) -> Result<()> {
        let Submitted { completion, raced, cut } = self.submit(files, Next::Cut)?;
        // The commit takes place even if a race was found in memory.
        self.shared.body.file.store.finish(&completion)?;
        if let (Some(working), Some(cut)) = (&self.shared.body.working, cut) {
            working.head.note_durable(cut);
        }
        self.reclaim_quiet(&completion);
        raced
    }

    /// Commits without waiting for the disk: the commit has all changes made before the call. If more has changed than
    /// [`crate::heap::HeapOptions::dirty_max`], it waits for the commit.
    pub fn commit_async(&self) -> Result<Ticket> {
        let body = &self.shared.body;
        body.file.store.shorten_queue()?;
        let Submitted { completion, raced, .. } = self.submit(&[], Next::Cut)?;
        body.file.store.commits.wakeup.wake();
        self.reclaim_quiet(&completion);
        raced?;
        Ok(body.file.store.ticket(completion))
    }

    fn submit(&self, files: &[&File], next: Next) -> Result<Submitted> {
        let body = &self.shared.body;
        self.check_no_guard()?;
        if self.shared.registration.0.entry.unguarded.swap(false, Acquire) {
            return Err(Error::invalid(
                "a thread allocated or freed without a mutation guard since the last commit, which `debug_guards` \
                 forbids; this commit was not made",
            ));
        }
        {
            // A rollback has to wait for this.
            let _held = self.hold_cuts();
            self.shared.registration.0.give_back(body)?;
        }
        if let Some(working) = self.stops_threads().filter(|_| files.is_empty() && matches!(next, Next::Cut)) {
            let (completion, cut) = self.submit_stopped(working)?;
            return Ok(Submitted { completion, raced: Ok(()), cut: Some(cut) });
        }
        let mut all = vec![&body.file];
        all.extend(files);
        let quiescent = self.quiesce()?;
        self.check_not_abandoned()?;
        let cut = match (&body.working, next) {
            (None, _) => None,
            (Some(working), Next::Cut) => Some(working.begin_cut(&body.map)?),
            (Some(_), Next::End) => {
                live::set_stamp(&body.map, Stamp::NONE)?;
                None
            }
        };
        let looked = self.verify(&quiescent)?;
        let mut quiescent = Some(quiescent);
        let mut copied = || {
            if !body.debug_races {
                quiescent = None;
            }
        };
        let looked = looked.then_some(body.file.shared.id);
        let threads = Threads::Stopped { looked, copied: &mut copied };
        let completion = body.file.store().submit_captured(&all, threads)?;
        let raced = if body.debug_races { body.map.check_races() } else { Ok(()) };
        Ok(Submitted { completion, raced, cut })
    }

    /// Drops memory that equals the file, if there is much of it and the program has promised to be quiet.
    fn reclaim_quiet(&self, completion: &Completion) {
        let body = &self.shared.body;
        let (wanted, _) = body.map.wants_reclaim();
        if !wanted || !body.quiet {
            return;
        }
        let drop_clean = || {
            let _quiescent = self.quiesce()?;
            let dropped = body.map.drop_clean_pages();
            own_pages::lock_all(&body.map);
            dropped
        };
        let reclaimed = drop_clean().and_then(|()| match body.map.wants_reclaim() {
            (true, _) => {
                body.file.store.finish(completion)?;
                body.file.store.checkpoint()?;
                drop_clean()
            }
            _ => Ok(()),
        });
        // The commit has happened, so a failure to drop pages is logged only.
        let _ = reclaimed.inspect_err(|e| body.map.note(e));
    }

    /// Rolls the heap back to the last commit.
    ///
    /// # Safety
    /// Nothing that was allocated or changed since the last commit is used any more: no collection whose memory was
    /// allocated since then, and no reference to data changed since then.
    pub unsafe fn rollback(&self) -> Result<()> {
        self.roll_back()
    }

    /// Like [`Heap::rollback`]; the caller keeps the promise of its safety section.
    pub(crate) fn roll_back(&self) -> Result<()> {
        let mut quiescent = self.quiesce_to_roll_back()?;
        let body = &self.shared.body;
        if let Some(working) = &body.working {
            working.head.begin_change();
        }
        let done = own_pages::unlock_all(&body.map).and_then(|()| body.map.rollback());
        let done = done.and_then(|()| match &body.working {
            Some(working) => working.sync_lasting(invariant::LIVE_CHANGE_SYNCED),
            None => Ok(()),
        });
        own_pages::lock_all(&body.map);
        let entry = self.shared.registration.0.entry;
        if body.working.is_some() {
            entry.sections.next_era();
            entry.section_lock.reset();
        }
        let Quiescent { live, slots, .. } = &mut quiescent;
        if let Some(live) = &mut **live
            && holds(invariant::HEAP_FORGETS)
        {
            live.space.forget(segments_of(&body.map));
            slots.iter_mut().flat_map(|slot| slot.as_mut()).for_each(|slot| slot.arena.forget());
        }
        if done.is_ok() {
            entry.guard.forgive();
            if let Some(working) = &body.working {
                entry.sections.forget();
                working.head.forgive();
            }
        }
        done
    }

    /// Drops memory that equals the file.
    ///
    /// # Safety
    /// During the call, no thread stores to the heap without a guard of [`Heap::mutate`]: such a store could be lost.
    pub unsafe fn reclaim(&self) -> Result<()> {
        let _quiescent = self.quiesce()?;
        let reclaimed = self.shared.body.map.reclaim();
        own_pages::lock_all(&self.shared.body.map);
        reclaimed
    }

    /// Checks every chunk, block and root, then follows pointers from the roots: allocations that they do not reach
    /// have leaked. It sees uncommitted changes, too. `progress` gets bytes done and bytes in all, first for the
    /// metadata and then for the data in use. Nobody can change the heap meanwhile.
    pub fn check(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        let _quiescent = self.quiesce()?;
        Ok(self.check_all(progress)?.report)
    }

    /// Frees all allocations that no root reaches, durably with the next commit; the report lists them. A pointer
    /// counts if its eight bytes are at any place in reached memory. Pointers that only the program has, or that are
    /// stored in disguise (as a difference, or with tag bits), do not count.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the heap is damaged. Nothing was freed then.
    ///
    /// # Safety
    /// No allocation that the roots do not reach is used any more.
    pub unsafe fn collect(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        self.free_leaks(progress)
    }

    /// Frees all allocations that no root reaches; the caller knows that the program has no pointer to them.
    pub(crate) fn free_leaks(&self, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
        let mut quiescent = self.quiesce()?;
        let checker = self.check_all(progress)?;
        let body = &*self.shared.body;
        if let Some(problem) = checker.report.problems.first() {
            return Err(body.corrupt(problem.clone()));
        }
        let Quiescent { live, slots, .. } = &mut quiescent;
        let live = live.as_mut().ok_or(Error::Closed)?;
        for (offset, _) in checker.leaked() {
            let address = (self.shared.base + offset as usize) as *mut u8;
            live.free_quiescent(slots, address, body).map_err(|e| body.refused(e))?;
        }
        Ok(checker.report)
    }

    pub(crate) fn check_all(&self, progress: &dyn Fn(u64, u64)) -> Result<Checker<'_>> {
        let file = &self.shared.body.file;
        let mut checker = Checker::new(file, &file.path(), progress)?;
        checker.find_leaks(progress)?;
        Ok(checker)
    }

    fn check_no_guard(&self) -> Result<()> {
        // In a forked child the locks may be held for ever.
        self.shared.body.file.store.life.check_fork()?;
        if section_of(self.shared.registration.0.opening()).is_some() {
            return Err(Error::invalid(
                "this thread is in a section of the heap; end the section before you commit or roll back",
            ));
        }
        if self.shared.registration.0.entry.guard.is_held() {
            return Err(Error::invalid(
                "this thread holds a mutation guard of the heap; drop the guard before you commit or roll \
                 back"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    pub(crate) fn quiesce(&self) -> Result<Quiescent<'_>> {
        let sections = &self.shared.registration.0.entry.sections;
        self.quiesce_while(|| !sections.is_abandoned(), ABANDONED_SECTION)
    }

    /// Like [`Heap::still`], but also works if a thread ended within a section. Other threads may wait for its locks
    /// for ever.
    fn quiesce_to_roll_back(&self) -> Result<Quiescent<'_>> {
        let sections = &self.shared.registration.0.entry.sections;
        let begun = Instant::now();
        self.quiesce_while(
            || !sections.is_abandoned() || begun.elapsed() < ABANDONED_PATIENCE,
            "a thread ended within a section, and other threads have been in sections for more than 10 seconds: they \
             may wait for its locks. Nothing was rolled back; end the process without `close`, and the next opening \
             undoes the section",
        )
    }

    fn quiesce_while(&self, waits: impl Fn() -> bool, otherwise: &str) -> Result<Quiescent<'_>> {
        self.check_no_guard()?;
        let entry = self.shared.registration.0.entry;
        let (quiet, closed) = loop {
            // In this order, and in a loop: a thread in a section may take a guard, and a thread with a guard may begin
            // a section.
            let Some(closed) = entry.sections.close(&waits) else { return Err(Error::invalid(otherwise)) };
            let quiet = entry.guard.quiet();
            if entry.sections.is_idle() {
                break (quiet, Some(closed));
            }
        };
        Ok(self.lock_allocator(quiet, closed))
    }

    fn lock_allocator<'h>(&'h self, quiet: Quiet<'h>, closed: Option<Closed<'h>>) -> Quiescent<'h> {
        let entry = self.shared.registration.0.entry;
        let slots = entry.lock_slots();
        Quiescent { live: entry.live.lock(), slots, _quiet: quiet, _closed: closed }
    }

    /// Like [`Heap::still`], but threads may be in sections. None: threads held guards for longer than `most`.
    pub(crate) fn quiesce_for(&self, most: Duration) -> Result<Option<Quiescent<'_>>> {
        let quiet = self.shared.registration.0.entry.guard.quiet_for(most);
        quiet.map(|quiet| self.check_not_abandoned().map(|()| self.lock_allocator(quiet, None))).transpose()
    }

    fn check_not_abandoned(&self) -> Result<()> {
        match self.shared.registration.0.entry.guard.is_abandoned() {
            true => Err(Error::invalid(
                "a thread ended while it held a mutation guard: its change may be half done. This commit was not made; \
                 roll back, which undoes all changes since the last commit",
            )),
            false => Ok(()),
        }
    }

    /// Locks the roots. A thread that holds this lock waits for no guard.
    pub(crate) fn lock_roots(&self) -> ReentrantMutexGuard<'_, ()> {
        self.shared.roots.lock()
    }

    pub(crate) fn body(&self) -> &Body {
        &self.shared.body
    }

    /// The heap's file, to read it and to ask for its name. While the heap is open, no handle of the file can change,
    /// commit or roll back: that would change the heap's memory behind the program's references.
    #[expect(clippy::misnamed_getters, reason = "its own handle is nobody else's")]
    pub fn file(&self) -> &File {
        &self.shared.body.view
    }

    /// Makes bytes of a live heap durable that were stored outside of sections and guards of [`Heap::mutate`], if its memory
    /// is of class `memory` and needs flushes ([`LiveReport::flushes`]). Does nothing otherwise.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the bytes are not in the heap.
    pub fn flush(&self, address: *const u8, len: usize) -> Result<()> {
        let (base, bytes) = self.memory();
        let offset = (address as usize).wrapping_sub(base.as_ptr() as usize);
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(Error::invalid(format!("{len} bytes at address {address:p} are not in the heap")));
        }
        if let Some(working) = &self.shared.body.working {
            let flushing = working.head.flushing();
            // SAFETY: bytes of the heap, which stays mapped as long as this handle lives.
            unsafe { flushing.flush(invariant::LIVE_FLUSHED_ON_DEMAND, address as usize, len) };
            flushing.fence();
        }
        Ok(())
    }

    /// The address of the mapping, and the heap's length in bytes.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        let base = NonNull::new(self.shared.base as *mut u8).expect("an address");
        (base, self.shared.body.map.len() as usize)
    }

    /// Closes the heap, if this is its last clone. **Uncommitted changes are discarded.** Pointers into the heap become
    /// invalid.
    ///
    /// **A live heap** makes its last cut, and its working memory is removed. After an error the memory stays, and the
    /// next opening continues from it.
    pub fn close(mut self) -> Result<()> {
        if self.shared.body.working.is_some() {
            self.check_no_guard()?;
        }
        self.cutter = None;
        let last = match Arc::strong_count(&self.shared) {
            1 if self.shared.body.working.is_some() => self.cut_last(),
            _ => Ok(()),
        };
        let Some(Shared { registration, body, .. }) = Arc::into_inner(self.shared) else { return Ok(()) };
        drop(registration);
        match Arc::into_inner(body) {
            Some(Body { map, view, file, mark, .. }) => {
                map.unmap()?;
                drop(mark);
                view.close()?;
                last.and(file.close())
            }
            // In a forked child the registry's entry is the parent's, and keeps the body alive.
            None => Err(Error::Forked),
        }
    }
}

impl Heap {
    /// Commits for the last time: the file names no live memory any more, and the memory is removed.
    fn cut_last(&self) -> Result<()> {
        let Submitted { completion, raced, .. } = self.submit(&[], Next::End)?;
        self.shared.body.file.store.finish(&completion)?;
        raced?;
        self.shared.body.working.as_ref().map_or(Ok(()), Working::remove)
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("base", &format_args!("{:#x}", self.shared.base)).finish_non_exhaustive()
    }
}
