//! Handles: numbers in the shape of pointers.
//!
//! C code closes things twice, uses them afterwards, mixes them up, and races with itself. If a
//! handle were an address, each of these would be undefined behaviour in here. So a handle is a
//! token (kind, process, slot, generation) that is looked up in a table and never followed:
//!
//! ```text
//! bit 63        48 47          24 23           4 3    0
//!     [ process  ] [ generation ] [    slot    ] [kind]
//! ```
//!
//! *Kind* is odd, so that a token is never a plausible aligned address and never NULL. *Generation*
//! counts the uses of a slot; a slot whose generation runs out is retired. *Process* counts forks:
//! a forked child starts with fresh tables, because it may have inherited the old ones locked by a
//! thread that it did not inherit, and knows its parent's tokens by the smaller number.
//!
//! A lookup costs a read lock on one of several shards and one reference count.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::{Failure, Result};
use crate::file::OpenFile;
use crate::map::OpenMap;
use crate::txn::OpenTxn;

const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 24;
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

/// Something that C can hold a handle of.
pub(crate) trait Handle: Send + Sync + Sized + 'static {
    /// Odd, and different for each kind.
    const KIND: usize;
    /// For messages.
    const NAME: &'static str;
    /// Its table.
    fn table(tables: &Tables) -> &Table<Self>;
}

macro_rules! handles {
    ($($field:ident: $type:ty = $kind:literal $name:literal;)*) => {
        /// All tables of one process.
        pub(crate) struct Tables {
            process: u64,
            $($field: Table<$type>,)*
        }

        impl Tables {
            fn new(process: u64) -> Tables {
                Tables { process, $($field: Table::new(),)* }
            }
        }

        $(impl Handle for $type {
            const KIND: usize = $kind;
            const NAME: &'static str = $name;
            fn table(tables: &Tables) -> &Table<Self> {
                &tables.$field
            }
        })*
    };
}

handles! {
    stores: untorn::Store = 0b0001 "store";
    files: OpenFile = 0b0011 "file";
    txns: OpenTxn = 0b0101 "transaction";
    tickets: untorn::Ticket = 0b0111 "ticket";
    heaps: untorn::Heap = 0b1011 "heap";
    maps: OpenMap = 0b1001 "map";
}

/// This process's tables; a forked child gets new ones at its first call.
fn tables() -> &'static Tables {
    static CURRENT: AtomicPtr<Tables> = AtomicPtr::new(ptr::null_mut());
    let process = untorn_os::process_generation();
    let current = CURRENT.load(Acquire);
    // SAFETY: only leaked boxes are ever stored there; NULL becomes None.
    if let Some(tables) = unsafe { current.as_ref() }
        && tables.process == process
    {
        return tables;
    }
    // The parent's tables are left as they are, forever: their locks may be held by threads that do
    // not exist here, and what they own is the parent's to close.
    let fresh = Box::into_raw(Box::new(Tables::new(process)));
    let winner = match CURRENT.compare_exchange(current, fresh, AcqRel, Acquire) {
        Ok(_) => fresh,
        Err(theirs) => {
            // SAFETY: `fresh` was made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            theirs
        }
    };
    // SAFETY: either `fresh`, or what another thread of this process leaked in its place.
    unsafe { &*winner }
}

/// Everything of one kind that is open.
pub(crate) struct Table<T> {
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
    /// The index of a slot without a value; None: this shard is full.
    fn unused(&mut self) -> Option<usize> {
        if self.free.is_empty() && self.all.len() < (1 << SLOT_BITS) / SHARDS {
            self.all.push(Slot { generation: 0, value: None });
            return Some(self.all.len() - 1);
        }
        self.free.pop()
    }
}

impl<T> Table<T> {
    fn new() -> Table<T> {
        let shard = || RwLock::new(Slots { all: Vec::new(), free: Vec::new() });
        Table { shards: std::array::from_fn(|_| shard()), next: AtomicUsize::new(0) }
    }

    /// The slot number and generation of a new entry; None: too many handles are open.
    fn insert(&self, value: T) -> Option<(usize, usize)> {
        let first = self.next.fetch_add(1, Relaxed);
        for shard in (0..SHARDS).map(|n| first.wrapping_add(n) % SHARDS) {
            let mut slots = self.shards[shard].write().unwrap_or_else(PoisonError::into_inner);
            if let Some(index) = slots.unused() {
                let slot = &mut slots.all[index];
                slot.value = Some(Arc::new(value));
                return Some((index * SHARDS + shard, slot.generation));
            }
        }
        None
    }

    fn get(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let slots = self.shards[slot % SHARDS].read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.all.get(slot / SHARDS).filter(|slot| slot.generation == generation)?;
        slot.value.clone()
    }

    /// Removes an entry. The caller drops it, outside of the shard's lock: that may take a while.
    fn take(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let mut slots = self.shards[slot % SHARDS].write().unwrap_or_else(PoisonError::into_inner);
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

/// Makes a handle. `R` is only the opaque type that C knows it by.
pub(crate) fn insert<T: Handle, R>(value: T) -> Result<*mut R> {
    let tables = tables();
    let Some((slot, generation)) = T::table(tables).insert(value) else {
        let message = format!("too many open {} handles", T::NAME);
        return Err(Failure { kind: crate::error::untorn_error::UNTORN_E_IO, errno: libc::EMFILE, message });
    };
    let process = truncated(tables.process);
    Ok(ptr::without_provenance_mut(Token { kind: T::KIND, slot, generation, process }.pack()))
}

/// What an open handle stands for.
pub(crate) fn get<T: Handle, R>(raw: *const R) -> Result<Arc<T>> {
    find(raw.cast(), Table::get)
}

/// The same, and the handle is closed: of several threads that close one handle, one gets it.
pub(crate) fn take<T: Handle, R>(raw: *const R) -> Result<Arc<T>> {
    find(raw.cast(), Table::take)
}

fn find<T: Handle>(
    raw: *const c_void,
    look_up: impl FnOnce(&Table<T>, usize, usize) -> Option<Arc<T>>,
) -> Result<Arc<T>> {
    let token = Token::unpack(raw.addr());
    let tables = tables();
    let process = truncated(tables.process);
    if token.kind != T::KIND || token.process > process || token.process == 0 {
        return Err(Failure::bad_handle(T::NAME));
    }
    if token.process < process {
        return Err(Failure::forked());
    }
    look_up(T::table(tables), token.slot, token.generation).ok_or_else(|| Failure::bad_handle(T::NAME))
}

/// The part of a process generation that fits into a token; never 0, so that small numbers are no tokens.
fn truncated(process: u64) -> usize {
    (process % ((1 << PROCESS_BITS) - 1)) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::untorn_error::*;

    #[test]
    fn tokens_come_apart_as_they_were_put_together() {
        let extremes = [
            Token { kind: 1, slot: 0, generation: 0, process: 1 },
            Token { kind: 15, slot: (1 << 20) - 1, generation: (1 << 24) - 1, process: (1 << 16) - 1 },
            Token { kind: 7, slot: 5, generation: 1 << 23, process: 3 },
        ];
        for token in extremes {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    #[test]
    fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
        let table = Table::new();
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
    fn a_slot_whose_generations_run_out_is_retired() {
        let table = Table::new();
        let (slot, generation) = table.insert('a').unwrap();
        table.take(slot, generation).unwrap();
        table.shards[slot].write().unwrap().all[0].generation = (1 << GENERATION_BITS) - 1;
        table.next.store(slot, Relaxed);
        let (last_slot, last_generation) = table.insert('b').unwrap();
        assert_eq!((last_slot, last_generation), (slot, (1 << GENERATION_BITS) - 1));
        table.take(last_slot, last_generation).unwrap();
        table.next.store(slot, Relaxed);
        assert_ne!(table.insert('c').unwrap().0, slot);
    }

    #[test]
    fn a_full_table_says_so_and_recovers() {
        let table = Table::new();
        let all: Vec<_> = (0..1 << SLOT_BITS).map(|_| table.insert(()).unwrap()).collect();
        assert!(table.insert(()).is_none());
        let (slot, generation) = all[SHARDS];
        table.take(slot, generation).unwrap();
        assert_eq!(table.insert(()), Some((slot, generation + 1)));
    }

    /// Neither made-up numbers nor another kind's tokens are ever followed.
    #[test]
    fn made_up_handles_are_bad_handles() {
        let process = truncated(untorn_os::process_generation());
        let other_kind = Token { kind: <untorn::Ticket as Handle>::KIND, slot: 0, generation: 0, process };
        let unused = Token { kind: <untorn::Store as Handle>::KIND, slot: 999, generation: 0, process };
        let future = Token { process: process + 1, ..unused };
        let numbers = [0, 1, 8, usize::MAX, isize::MAX as usize, 0x7fff_dead_beef];
        for bits in numbers.into_iter().chain([other_kind, unused, future].map(Token::pack)) {
            let raw: *const c_void = ptr::without_provenance(bits);
            let failure = get::<untorn::Store, _>(raw).err().expect("no such handle");
            assert_eq!((failure.kind, failure.errno), (UNTORN_E_BAD_HANDLE, libc::EBADF), "{bits:#x}");
            assert_eq!(take::<untorn::Store, _>(raw).err().map(|f| f.errno), Some(libc::EBADF), "{bits:#x}");
        }
    }
}
