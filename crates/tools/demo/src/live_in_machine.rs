//! A live heap inside a machine whose kernel panics, or that loses its power: it is verified at the start, and changed
//! until the machine ends.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn::heap::{Heap, HeapOptions, LiveStart, SectionLock, Storable};
use untorn_terminal::{Failure, say};

/// A whole table holds the number of its last update in each place.
const PLACES: usize = 512;
/// Other threads run after so many places, so that most machines end within an update.
const PLACES_PER_TURN: usize = 32;
const CUT_EVERY: Duration = Duration::from_secs(1);

type Table = [AtomicU64; PLACES];

#[derive(Storable)]
#[repr(C)]
struct Tables {
    /// Updated in sections.
    sections: Table,
    /// Updated by the same stores outside of sections, which an end of the machine may tear.
    bare: Table,
}

/// Verifies a live heap, then updates it for ever. Lines on standard output are those of
/// [`update_until_the_end`](crate::update_until_the_end), with the name `NAME` for sections and `NAME-bare` for stores
/// outside of them. An acknowledged section has ended; it is in no cut yet. The first line tells how the heap began:
///
/// ```text
/// STARTED NAME new.                   (or `went-on`, or `last-cut WHY`)
/// ```
pub fn change_until_the_end(path: &Path, name: &str) -> Result<Infallible, Failure> {
    let heap = HeapOptions::new().create(true).live(true).cut_every(CUT_EVERY).open(path)?;
    let live = heap.live().expect("the heap is live");
    match live.start {
        LiveStart::New => say!("STARTED {name} new."),
        LiveStart::WentOn => say!("STARTED {name} went-on."),
        LiveStart::LastCut(why) => say!("STARTED {name} last-cut {why}."),
    }
    let is_new = heap.root::<Tables>("tables")?.is_none();
    let zeros = || [const { AtomicU64::new(0) }; PLACES];
    let mut tables = heap.root_or("tables", |_| Tables { sections: zeros(), bare: zeros() })?;
    // SAFETY: a root of this type; this thread alone uses it.
    let tables = unsafe { tables.as_mut() };
    if is_new {
        heap.commit()?;
        say!("BUILT {name} 0.");
    }
    let bare = format!("{name}-bare");
    let mut numbers = [number(name, &tables.sections), number(&bare, &tables.bare)];
    say!("READY.");
    let lock = SectionLock::new();
    loop {
        numbers = numbers.map(|number| number + 1);
        update_in_section(&heap, &lock, &mut tables.sections, numbers[0])?;
        say!("ACK {name} {}.", numbers[0]);
        for (n, place) in tables.bare.iter_mut().enumerate() {
            place.store(numbers[1], Relaxed);
            take_turns(n);
        }
        say!("ACK {bare} {}.", numbers[1]);
    }
}

/// Tells of the state of a table. Returns the number of its last update, if it is whole.
fn number(name: &str, table: &Table) -> u64 {
    let first = table[0].load(Relaxed);
    match table.iter().position(|place| place.load(Relaxed) != first) {
        None => say!("FOUND {name} {first}."),
        Some(at) => say!("TORN {name} place 0 has {first}, and place {at} has {}.", table[at].load(Relaxed)),
    }
    first
}

fn update_in_section(heap: &Heap, lock: &SectionLock, table: &mut Table, number: u64) -> Result<(), Failure> {
    let section = heap.section_with(lock)?;
    for (n, place) in table.iter_mut().enumerate() {
        section.modify(place)?.store(number, Relaxed);
        take_turns(n);
    }
    Ok(())
}

fn take_turns(place: usize) {
    if place.is_multiple_of(PLACES_PER_TURN) {
        std::thread::yield_now();
    }
}
