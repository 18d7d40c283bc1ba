//! Calls of threads on a heap: each thread allocates in its slot, frees in the slot that owns the chunk, and marks
//! bytes as changed.

use super::{Live, LiveSlot, SLOTS, WeakHeap};
use crate::heap::alloc::arena::Arena;
use crate::heap::alloc::body::Body;
use crate::heap::alloc::chunk_table::NOBODY;
use crate::heap::alloc::metadata::Refused;
use crate::heap::alloc::space::{Space, size_of_use};
use crate::heap::alloc::thread_local::slot_of_this_thread;
use crate::heap::image::layout::{SIZES, class_of};
use crate::heap::log::section_thread::section_of;
use crate::invariant;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};
use untorn_journal::{Error, Result};
use untorn_os::holds;

impl WeakHeap {
    /// Runs `work` with a slot, under its lock.
    #[inline]
    fn with_slot<R>(self, slot: usize, work: impl FnOnce(&mut LiveSlot) -> Result<R>) -> Result<R> {
        match &mut *self.entry.slots[slot].0.lock() {
            Some(live) if live.opening == self.opening => work(live),
            _ => Err(Error::Closed),
        }
    }

    /// Runs `work` with the space behind the slots, under its lock.
    fn with_space<R>(self, work: impl FnOnce(&mut Space, &Body) -> std::result::Result<R, Refused>) -> Result<R> {
        let mut live = self.lock_live()?;
        let Some(Live { space, body, .. }) = &mut *live else { return Err(Error::Closed) };
        work(space, body).map_err(|e| body.refused(e))
    }

    #[inline]
    fn check_guarded(self, slot: &LiveSlot) -> Result<()> {
        if !slot.debug_guards || self.entry.guard.is_held() {
            return Ok(());
        }
        self.entry.unguarded.store(true, Release);
        Err(Error::invalid("a thread allocated or freed without a mutation guard, which `debug_guards` forbids"))
    }

    /// Like [`crate::heap::Heap::allocate`].
    pub fn allocate(self, layout: Layout) -> Result<NonNull<u8>> {
        self.check_fork()?;
        let class = class_of(layout.size().max(1), layout.align());
        let mine = slot_of_this_thread() % SLOTS;
        let address = self.with_slot(mine, |slot| {
            self.check_guarded(slot)?;
            match class.filter(|_| layout.align() <= 4096) {
                Some(class) => match slot.arena.take(class) {
                    Some(block) => Ok(Some(block)),
                    None => self.refill(mine, &mut slot.arena, class).map(Some),
                },
                None => Ok(None),
            }
        })?;
        let address = match address {
            Some(address) => address,
            None => self.with_space(|space, ground| {
                if layout.align() > 4096 {
                    return Err(Refused::Absurd);
                }
                space.allocate_chunks(layout.size(), ground)
            })?,
        };
        if let Some(section) = section_of(self.opening) {
            let bytes = class.map_or(layout.size(), |class| SIZES[class] as usize);
            section.allocated(address as usize, bytes);
        }
        Ok(NonNull::new(address).expect("inside the heap"))
    }

    /// Like [`WeakHeap::allocate`], for a collection that fills the block at once: with the tracker `explicit`, the whole
    /// block is added to the dirty ranges.
    pub fn allocate_marked(self, layout: Layout) -> Result<NonNull<u8>> {
        let block = self.allocate(layout)?;
        self.mark_dirty(block.as_ptr(), layout.size())?;
        Ok(block)
    }

    /// Allocates a block for a slot whose arena has none.
    #[cold]
    fn refill(self, mine: usize, arena: &mut Arena, class: usize) -> Result<*mut u8> {
        // Busy slots are skipped: waiting for one here could deadlock.
        let mut steal = |arena: &mut Arena| {
            let others = (1..SLOTS).map(|n| (mine + n) % SLOTS).filter_map(|n| self.entry.slots[n].0.try_lock());
            for mut other in others {
                if let Some(other) = &mut *other
                    && other.opening == self.opening
                    && let Some(number) = other.arena.roomy(class)
                {
                    arena.adopt(&mut other.arena, number, class);
                    return true;
                }
            }
            false
        };
        self.with_space(|space, ground| space.allocate_block(arena, class, &mut steal, ground))
    }

    /// Like [`crate::heap::Heap::free`].
    ///
    /// # Safety
    /// Nobody uses the allocation any more.
    pub unsafe fn free(self, address: NonNull<u8>) -> Result<()> {
        self.check_fork()?;
        if section_of(self.opening).is_some() && holds(invariant::SECTION_FREES_LAST) {
            // An address that is not allocated is refused now, not when the section ends.
            self.size_of(address)?;
            let address = address.as_ptr().expose_provenance();
            return match section_of(self.opening).is_some_and(|section| section.frees(address)) {
                true => Ok(()),
                false => self.with_space(|_, _| Err(Refused::NotAllocated)),
            };
        }
        let address = address.as_ptr();
        let mut slot = slot_of_this_thread() % SLOTS;
        loop {
            // The owner of the chunk may change until its lock is held.
            let next = self.with_slot(slot, |slot| {
                self.check_guarded(slot)?;
                let owner = slot.arena.owner_of(address);
                if owner == slot.arena.id {
                    let freed = slot.arena.free_at(address);
                    let empty = freed.or_else(|e| self.with_space(|_, _| Err(e)))?;
                    if let Some((number, class)) = empty {
                        self.with_space(|space, _| {
                            space.take_back(&mut slot.arena, number, class);
                            Ok(())
                        })?;
                    }
                    return Ok(None);
                }
                if owner != NOBODY {
                    return Ok(Some(usize::from(owner)));
                }
                self.with_space(|space, ground| match slot.arena.owner_of(address) {
                    NOBODY => space.free(&mut slot.arena, address, ground).map(|()| None),
                    owner => Ok(Some(usize::from(owner))),
                })
            })?;
            match next {
                None => return Ok(()),
                Some(owner) => slot = owner,
            }
        }
    }

    /// Like [`crate::heap::Heap::mark_dirty`].
    ///
    /// A commit holds the locks of all slots while it copies, so it has all ranges that a thread marked before.
    #[inline]
    pub fn mark_dirty(self, address: *const u8, len: usize) -> Result<()> {
        self.check_fork()?;
        self.with_slot(slot_of_this_thread() % SLOTS, |slot| {
            match slot.marked.mark_dirty(slot.base, address as usize, len) {
                true => Ok(()),
                false => Err(not_in_the_heap(address, len)),
            }
        })
    }

    /// Like [`WeakHeap::mark_dirty`], but does nothing if the heap's tracker is not `explicit`, or the bytes are not in the
    /// heap.
    #[inline]
    pub(crate) fn tell(self, address: *const u8, len: usize) {
        if self.entry.is_explicit.load(Relaxed) {
            _ = self.with_slot(slot_of_this_thread() % SLOTS, |slot| {
                slot.marked.mark_dirty(slot.base, address as usize, len);
                Ok(())
            });
        }
    }

    /// Like [`crate::heap::Heap::size_of`].
    pub fn size_of(self, address: NonNull<u8>) -> Result<usize> {
        self.check_fork()?;
        let address = address.as_ptr();
        let mut slot = slot_of_this_thread() % SLOTS;
        loop {
            let next = self.with_slot(slot, |slot| {
                let owner = slot.arena.owner_of(address);
                if owner == slot.arena.id {
                    let found = slot.arena.find(address).map(|found| Ok(size_of_use(found.1)));
                    return found.or_else(|e| self.with_space(|_, _| Err(e)));
                }
                if owner != NOBODY {
                    return Ok(Err(usize::from(owner)));
                }
                self.with_space(|space, _| match slot.arena.owner_of(address) {
                    NOBODY => space.size_of(address).map(Ok),
                    owner => Ok(Err(usize::from(owner))),
                })
            })?;
            match next {
                Ok(bytes) => return Ok(bytes),
                Err(owner) => slot = owner,
            }
        }
    }

    /// Gives free chunks, and an empty end of the heap, back to the file system; the next commit makes that durable.
    /// The caller holds the guard.
    pub(crate) fn give_back(self, body: &Body) -> Result<()> {
        self.check_fork()?;
        loop {
            let room = body.map.pieces_left();
            let runs = self.with_space(|space, _| Ok(space.take_freed(room)))?;
            if runs.is_empty() {
                break;
            }
            let mut done = Ok(());
            for run in runs {
                if done.is_ok() {
                    done = body.release_chunks(run.clone());
                }
                let given = done.is_ok();
                self.with_space(|space, _| {
                    space.given_back(run, given);
                    Ok(())
                })?;
            }
            done?;
        }
        self.with_space(|space, ground| space.trim(ground))
    }

    /// Sets the number of bytes that the heap may grow to; the addresses are reserved already.
    pub(crate) fn set_address_space(self, bytes: u64) -> Result<()> {
        self.with_space(|space, ground| space.set_address_space(bytes, ground))
    }
}

#[cold]
fn not_in_the_heap(address: *const u8, len: usize) -> Error {
    Error::invalid(format!(
        "{len} bytes at address {address:p} are not in the heap; nothing was marked. Mark only bytes that are in the heap now"
    ))
}
