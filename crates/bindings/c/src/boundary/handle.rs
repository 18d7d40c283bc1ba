//! Handles: numbers in the shape of pointers.
//!
//! C code closes handles twice, uses closed ones, mixes kinds up, and races with itself. If a handle
//! were an address, each of these mistakes would be undefined behaviour inside the library. So a handle
//! is a token (kind, process, slot, generation) that is looked up in a table and never followed:
//!
//! ```text
//! bit 63        48 47          25 24           5 4    0
//!     [ process  ] [ generation ] [    slot    ] [kind]
//! ```
//!
//! *Kind* is odd, so that a token is never a plausible aligned address and never NULL. *Generation*
//! counts the uses of a slot; a slot whose generations run out is not used again. *Process* counts forks:
//! a forked child starts with empty tables, because a thread that the child does not have may have locked
//! the parent's tables. The child recognises its parent's tokens by the smaller number.
//!
//! A lookup costs a read lock on one of several shards and one reference count.
//!
//! This module knows no concrete types. Each module that exports functions on a kind of handle
//! implements [`Handle`] for the type behind that kind, and owns the static [`Handles`] of that kind.

use parking_lot::RwLock;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use crate::boundary::error::untorn_error::UNTORN_E_IO;
use crate::boundary::error::{Failure, Result};

const KIND_BITS: u32 = 5;
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 23;
const PROCESS_BITS: u32 = 16;
const _: () = assert!(KIND_BITS + SLOT_BITS + GENERATION_BITS + PROCESS_BITS == usize::BITS, "64-bit only");

/// Shards of a table; a power of two. Slot numbers carry the shard in their low bits.
const SHARDS: usize = 16;

/// A token taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    kind: usize,
    slot: usize,
    generation: usize,
    process: usize,
}

impl Token {
    fn pack(self) -> usize {
        let above = (self.process << GENERATION_BITS | self.generation) << SLOT_BITS;
        (above | self.slot) << KIND_BITS | self.kind
    }

    fn unpack(bits: usize) -> Token {
        let field = |from: u32, bits_wide: u32| bits >> from & ((1 << bits_wide) - 1);
        Token {
            kind: field(0, KIND_BITS),
            slot: field(KIND_BITS, SLOT_BITS),
            generation: field(KIND_BITS + SLOT_BITS, GENERATION_BITS),
            process: field(KIND_BITS + SLOT_BITS + GENERATION_BITS, PROCESS_BITS),
        }
    }
}

/// A kind of handle, as it stands in a token: odd, and different for each kind.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Kind {
    Store = 0b00001,
    File = 0b00011,
    Txn = 0b00101,
    Ticket = 0b00111,
    Map = 0b01001,
    Heap = 0b01011,
    Gate = 0b01101,
    Output = 0b01111,
    Reader = 0b10001,
    Snapshot = 0b10011,
    SnapshotFile = 0b10101,
    Follow = 0b10111,
    ReadMap = 0b11001,
    ReadHeap = 0b11011,
    MountTxn = 0b11101,
}

impl Kind {
    /// The kinds of handles of stores that are open for reading only.
    const READING: [Kind; 6] =
        [Kind::Reader, Kind::Snapshot, Kind::SnapshotFile, Kind::Follow, Kind::ReadMap, Kind::ReadHeap];

    /// The read-only kind with this number, if `self` is a kind that allows changes.
    fn mistaken(self, number: usize) -> Option<Kind> {
        let of = |number: usize| Kind::READING.into_iter().find(|kind| *kind as usize == number);
        of(number).filter(|_| of(self as usize).is_none())
    }

    /// The kind's name, for messages.
    fn name(self) -> &'static str {
        match self {
            Kind::Store => "store",
            Kind::File => "file",
            Kind::Txn => "transaction",
            Kind::Ticket => "ticket",
            Kind::Map => "map",
            Kind::Heap => "heap",
            Kind::Gate => "gate",
            Kind::Output => "output",
            Kind::Reader => "reader",
            Kind::Snapshot => "snapshot",
            Kind::SnapshotFile => "snapshot file",
            Kind::Follow => "follow",
            Kind::ReadMap => "read map",
            Kind::ReadHeap => "read heap",
            Kind::MountTxn => "transaction of a mount",
        }
    }
}

/// A type that C can hold a handle of.
pub(crate) trait Handle: Send + Sync + Sized + 'static {
    /// No other type has this kind.
    const KIND: Kind;
    /// The handles of this kind: always the same static.
    fn handles() -> &'static Handles<Self>;
}

/// All handles of one kind, in a table for each process.
pub(crate) struct Handles<T> {
    /// NULL, or a leaked box.
    current: AtomicPtr<Table<T>>,
}

impl<T: Handle> Handles<T> {
    pub(crate) const fn new() -> Handles<T> {
        Handles { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's table; a forked child gets an empty one at its first call.
    fn of_this_process(&self) -> &'static Table<T> {
        let process = untorn_os::process_generation();
        let current = self.current.load(Acquire);
        // SAFETY: only leaked boxes are ever stored there; NULL becomes None.
        if let Some(table) = unsafe { current.as_ref() }
            && table.process == process
        {
            return table;
        }
        // The parent's table is left as it is, forever: its locks may be held by threads that do not
        // exist in the child, and its values are the parent's to close.
        let fresh = Box::into_raw(Box::new(Table::new(process)));
        let winner = match self.current.compare_exchange(current, fresh, AcqRel, Acquire) {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: `fresh` was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        };
        // SAFETY: either `fresh`, or the table that another thread of this process leaked in its place.
        unsafe { &*winner }
    }
}

/// The open handles of one kind in one process.
struct Table<T> {
    /// The process, as a count of forks.
    process: u64,
    shards: [RwLock<Slots<T>>; SHARDS],
    /// Spreads new handles over the shards.
    next: AtomicUsize,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    /// Indices of slots that can be used again.
    free: Vec<usize>,
}

struct Slot<T> {
    generation: usize,
    value: Option<Arc<T>>,
}

impl<T> Slots<T> {
    /// The index of a slot without a value. None: this shard is full.
    fn unused(&mut self) -> Option<usize> {
        if self.free.is_empty() && self.all.len() < (1 << SLOT_BITS) / SHARDS {
            self.all.push(Slot { generation: 0, value: None });
            return Some(self.all.len() - 1);
        }
        self.free.pop()
    }
}

impl<T> Table<T> {
    fn new(process: u64) -> Table<T> {
        let shard = || RwLock::new(Slots { all: Vec::new(), free: Vec::new() });
        Table { process, shards: std::array::from_fn(|_| shard()), next: AtomicUsize::new(0) }
    }

    /// The slot number and generation of a new entry. None: too many handles are open.
    fn insert(&self, value: T) -> Option<(usize, usize)> {
        let first = self.next.fetch_add(1, Relaxed);
        for shard in (0..SHARDS).map(|n| first.wrapping_add(n) % SHARDS) {
            let mut slots = self.shards[shard].write();
            if let Some(index) = slots.unused() {
                let slot = &mut slots.all[index];
                slot.value = Some(Arc::new(value));
                return Some((index * SHARDS + shard, slot.generation));
            }
        }
        None
    }

    fn get(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let slots = self.shards[slot % SHARDS].read();
        let slot = slots.all.get(slot / SHARDS).filter(|slot| slot.generation == generation)?;
        slot.value.clone()
    }

    /// Removes an entry. The caller drops it, outside of the shard's lock: that may take a while.
    fn take(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let mut slots = self.shards[slot % SHARDS].write();
        let index = slot / SHARDS;
        let slot = slots.all.get_mut(index).filter(|slot| slot.generation == generation)?;
        let value = slot.value.take()?;
        slot.generation += 1;
        if slot.generation < 1 << GENERATION_BITS {
            slots.free.push(index);
        }
        Some(value)
    }
}

/// Makes a handle. `R` is only the opaque type by which C knows the handle.
pub(crate) fn insert<T: Handle, R>(value: T) -> Result<*mut R> {
    let table = T::handles().of_this_process();
    let Some((slot, generation)) = table.insert(value) else {
        let message = format!("too many open {} handles", T::KIND.name());
        return Err(Failure { kind: UNTORN_E_IO, errno: libc::EMFILE, message });
    };
    let token = Token { kind: T::KIND as usize, slot, generation, process: truncated(table.process) };
    Ok(ptr::without_provenance_mut(token.pack()))
}

/// The value behind an open handle.
pub(crate) fn get<T: Handle, R>(raw: *const R) -> Result<Arc<T>> {
    find(raw.cast(), Table::get)
}

/// Closes a handle and returns the value behind it. If several threads close one handle, one of them gets the value.
pub(crate) fn take<T: Handle, R>(raw: *const R) -> Result<Arc<T>> {
    find(raw.cast(), Table::take)
}

fn find<T: Handle>(
    raw: *const c_void,
    look_up: impl FnOnce(&Table<T>, usize, usize) -> Option<Arc<T>>,
) -> Result<Arc<T>> {
    let bad_handle = || Failure::bad_handle(T::KIND.name());
    let token = Token::unpack(raw.addr());
    let table = T::handles().of_this_process();
    let process = truncated(table.process);
    if token.process == process
        && let Some(reading) = T::KIND.mistaken(token.kind)
    {
        return Err(Failure::reads_only(T::KIND.name(), reading.name()));
    }
    if token.kind != T::KIND as usize || token.process > process || token.process == 0 {
        return Err(bad_handle());
    }
    if token.process < process {
        return Err(Failure::forked());
    }
    look_up(table, token.slot, token.generation).ok_or_else(bad_handle)
}

/// The part of a process generation that fits into a token; never 0, so that small numbers are no tokens.
fn truncated(process: u64) -> usize {
    (process % ((1 << PROCESS_BITS) - 1)) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::error::untorn_error::UNTORN_E_BAD_HANDLE;

    #[test]
    fn tokens_come_apart_as_they_were_put_together() {
        let extremes = [
            Token { kind: 1, slot: 0, generation: 0, process: 1 },
            Token { kind: 31, slot: (1 << 20) - 1, generation: (1 << 23) - 1, process: (1 << 16) - 1 },
            Token { kind: 7, slot: 5, generation: 1 << 22, process: 3 },
        ];
        for token in extremes {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    #[test]
    fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
        let table = Table::new(1);
        let old: Vec<_> = (0..SHARDS).map(|i| table.insert(i).unwrap()).collect();
        for &(slot, generation) in &old {
            assert_eq!(*table.take(slot, generation).unwrap(), slot);
            assert!(table.take(slot, generation).is_none());
        }
        let new: Vec<_> = (0..SHARDS).map(|i| table.insert(100 + i).unwrap()).collect();
        for (&(old_slot, old_generation), &(slot, generation)) in old.iter().zip(&new) {
            assert_eq!((slot, generation), (old_slot, old_generation + 1));
            assert!(table.get(old_slot, old_generation).is_none());
            assert_eq!(*table.get(slot, generation).unwrap(), 100 + slot);
        }
    }

    #[test]
    fn a_slot_whose_generations_run_out_is_not_used_again() {
        let table = Table::new(1);
        let (slot, generation) = table.insert('a').unwrap();
        table.take(slot, generation).unwrap();
        table.shards[slot].write().all[0].generation = (1 << GENERATION_BITS) - 1;
        table.next.store(slot, Relaxed);
        let (last_slot, last_generation) = table.insert('b').unwrap();
        assert_eq!((last_slot, last_generation), (slot, (1 << GENERATION_BITS) - 1));
        table.take(last_slot, last_generation).unwrap();
        table.next.store(slot, Relaxed);
        assert_ne!(table.insert('c').unwrap().0, slot);
    }

    #[test]
    fn a_full_table_says_so_and_recovers() {
        let table = Table::new(1);
        let all: Vec<_> = (0..1 << SLOT_BITS).map(|_| table.insert(()).unwrap()).collect();
        assert!(table.insert(()).is_none());
        let (slot, generation) = all[SHARDS];
        table.take(slot, generation).unwrap();
        assert_eq!(table.insert(()), Some((slot, generation + 1)));
    }

    #[derive(Debug)]
    struct Thing;

    impl Handle for Thing {
        const KIND: Kind = Kind::Store;
        fn handles() -> &'static Handles<Thing> {
            static OPEN: Handles<Thing> = Handles::new();
            &OPEN
        }
    }

    /// Neither made-up numbers nor another kind's tokens are ever followed.
    #[test]
    fn made_up_handles_are_bad_handles() {
        let process = truncated(untorn_os::process_generation());
        let other_kind = Token { kind: Kind::Ticket as usize, slot: 0, generation: 0, process };
        let unused = Token { kind: Kind::Store as usize, slot: 999, generation: 0, process };
        let future = Token { process: process + 1, ..unused };
        let numbers = [0, 1, 8, usize::MAX, isize::MAX as usize, 0x7fff_dead_beef];
        for bits in numbers.into_iter().chain([other_kind, unused, future].map(Token::pack)) {
            let raw: *const c_void = ptr::without_provenance(bits);
            let failure = get::<Thing, _>(raw).expect_err("no such handle");
            assert_eq!((failure.kind, failure.errno), (UNTORN_E_BAD_HANDLE, libc::EBADF), "{bits:#x}");
            assert_eq!(take::<Thing, _>(raw).err().map(|f| f.errno), Some(libc::EBADF), "{bits:#x}");
        }
    }
}
