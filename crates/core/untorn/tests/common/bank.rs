//! A bank in a heap, for tests of sections.

use fastrand::Rng;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use untorn::heap::{Heap, HeapVec, Storable};

/// The most threads that use a bank.
pub const THREADS: usize = 3;
/// The number of transfers after which the history is cleared.
pub const HISTORY_MOST: usize = 300;

/// Accounts whose sum is 0, and a history of the transfers.
#[derive(Storable)]
#[repr(C)]
pub struct Bank<'h> {
    pub accounts: [i64; 100],
    pub done: [u64; THREADS],
    /// Thread and number of the latest transfers, in order.
    pub history: HeapVec<'h, (u64, u64)>,
    /// The number of transfers that were cleared from the history.
    pub forgotten: u64,
}

pub fn bank_in(heap: &Heap) -> NonNull<Bank<'_>> {
    let bank = heap.root_or("bank", |alloc| Bank {
        accounts: [0; 100],
        done: [0; THREADS],
        history: HeapVec::new_in(alloc),
        forgotten: 0,
    });
    bank.unwrap()
}

/// One transfer, as one section.
pub fn transfer(heap: &Heap, bank: NonNull<Bank<'_>>, thread: usize, rng: &mut Rng) -> u64 {
    let section = heap.section().unwrap();
    // SAFETY: one section at a time uses it.
    let bank = unsafe { &mut *bank.as_ptr() };
    let (from, to, cents) = (rng.usize(..100), rng.usize(..100), rng.i64(1..1000));
    *section.modify(&mut bank.accounts[from]).unwrap() -= cents;
    {
        // A nested section.
        let _within = heap.section().unwrap();
        *section.modify(&mut bank.accounts[to]).unwrap() += cents;
    }
    let done = section.modify(&mut bank.done[thread]).unwrap();
    *done += 1;
    let history = section.modify(&mut bank.history).unwrap();
    if history.len() == HISTORY_MOST {
        *section.modify(&mut bank.forgotten).unwrap() += HISTORY_MOST as u64;
        *history = HeapVec::new_in(heap.allocator());
    }
    history.push((thread as u64, *done));
    *done
}

/// Tells each transfer of all threads, until the process is killed.
pub fn run_bank(heap: &Heap) {
    let bank = bank_in(heap).as_ptr().expose_provenance();
    println!("\nready");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let rng = &mut Rng::new();
                let bank = NonNull::new(with_exposed_provenance_mut::<Bank<'_>>(bank)).expect("an address");
                loop {
                    let done = transfer(heap, bank, thread, rng);
                    println!("did {thread} {done}");
                }
            });
        }
    });
}

impl Bank<'_> {
    /// Describes an inconsistency, if there is one.
    pub fn problem(&self) -> Option<String> {
        let sum = self.accounts.iter().sum::<i64>();
        if sum != 0 {
            return Some(format!("the sum of all accounts is {sum}"));
        }
        if self.done.iter().sum::<u64>() != self.forgotten + self.history.len() as u64 {
            return Some(format!(
                "{:?} done, {} in the history, {} forgotten",
                self.done,
                self.history.len(),
                self.forgotten
            ));
        }
        let mut next = self.done;
        for (thread, number) in self.history.iter().rev() {
            match next.get_mut(*thread as usize) {
                Some(next) if *next == *number => *next -= 1,
                _ => return Some(format!("transfer {number} of thread {thread} is not in order: {:?}", self.history)),
            }
        }
        None
    }
}
