//! Threads that change the same blocks of a live heap in byte-addressable memory that needs flushes, with power cuts within
//! their sections, and within the openings that follow.

use super::live_power::{RemovedAtEnd, goes_on, is_flushed, memory_of, open, start_of, store};
use super::opening::failed;
use crate::heaps::PowerCuts;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tempfile::TempDir;
use untorn::heap::{Heap, Section, SectionLock, Storable};

const THREADS: usize = 3;
/// The sections of each thread.
const SECTIONS: u64 = 60;
const LOCKS: usize = 4;
/// The slots that a lock guards.
const SLOTS: usize = 3;

/// A slot: an account, and a block of which each number is the tag.
#[derive(Storable)]
#[repr(C)]
struct Slot {
    cents: i64,
    tag: u64,
    block: u64,
    numbers: u64,
}

#[derive(Storable)]
#[repr(C)]
struct Table {
    slots: [[Slot; SLOTS]; LOCKS],
    /// The last section of each thread.
    own: [[u64; 8]; THREADS],
}

/// The heap, and everything else that all threads use.
struct Shared<'h> {
    heap: &'h Heap,
    /// The address of the table.
    at: usize,
    locks: [SectionLock; LOCKS],
    told: Arc<[AtomicU64; THREADS]>,
}

/// The numbers in a slot's block.
///
/// # Safety
/// The block has so many numbers, which this thread alone uses.
unsafe fn numbers_of<'b>(slot: &Slot) -> &'b mut [u64] {
    match slot.block {
        0 => &mut [],
        // SAFETY: the caller's promise.
        at => unsafe {
            std::slice::from_raw_parts_mut(with_exposed_provenance_mut(at as usize), slot.numbers as usize)
        },
    }
}

/// Changes a slot, whose lock the thread has.
fn change(heap: &Heap, section: &Section<'_>, slot: &mut Slot, tag: u64, rng: &mut Rng) -> Result<(), String> {
    // SAFETY: the slot's block.
    let numbers = unsafe { numbers_of(slot) };
    if rng.u8(..3) > 0 && numbers.len() < 60 && !numbers.is_empty() {
        section.modify(numbers).map_err(failed)?.fill(tag);
        section.modify(&mut slot.tag).map(|own| *own = tag).map_err(failed)?;
        return Ok(());
    }
    let many = match rng.u8(..20) {
        0 => 20_000,
        1 => 9000,
        _ => rng.usize(1..400),
    };
    let old = NonNull::new(with_exposed_provenance_mut::<u8>(slot.block as usize));
    let Ok(block) = heap.allocate(Layout::array::<u64>(many).expect("a layout")) else { return Ok(()) };
    let slot = section.modify(slot).map_err(failed)?;
    (slot.tag, slot.block, slot.numbers) = (tag, block.as_ptr().expose_provenance() as u64, many as u64);
    // SAFETY: allocated just now.
    let numbers = unsafe { numbers_of(slot) };
    numbers.fill(if rng.bool() { tag } else { u64::MAX });
    for part in numbers.chunks_mut(40).filter(|part| part[0] != tag).take(2) {
        section.modify(part).map_err(failed)?.fill(tag);
    }
    numbers.fill(tag);
    // SAFETY: nothing leads to it, once the section has ended.
    old.map_or(Ok(()), |old| unsafe { heap.free(old) }.map_err(failed))
}

/// Sections of a thread.
fn work(shared: &Shared<'_>, thread: usize, seed: u64) -> Result<(), String> {
    let (mut rng, own_lock) = (Rng::with_seed(seed), SectionLock::new());
    let Shared { heap, at, locks, told } = shared;
    for number in 1..=SECTIONS {
        let table = with_exposed_provenance_mut::<Table>(*at);
        // SAFETY: in the table; each slot is used under its lock.
        let slot_at = |lock: usize, nth: usize| unsafe { &mut (*table).slots[lock][nth] };
        let mut two = [rng.usize(..LOCKS), rng.usize(..LOCKS)];
        two.sort_unstable();
        let [one, other] = two;
        let (cents, is_early) = (rng.i64(1..100), rng.bool());
        let slots = [rng.usize(..SLOTS), rng.usize(..SLOTS)];
        let tag = number << 8 | thread as u64;
        let section = heap.section_with(&own_lock).map_err(failed)?;
        let aborts = if is_early { 0 } else { rng.usize(..3).saturating_sub(1) };
        let first = heap.section_with(&locks[one]).map_err(failed)?;
        for nth in 0..=aborts {
            let slot = slot_at(one, slots[0]);
            section.modify(&mut slot.cents).map(|own| *own -= cents).map_err(failed)?;
            change(heap, &section, slot, tag, &mut rng)?;
            if nth < aborts {
                // SAFETY: nothing of it is used.
                unsafe { section.abort() }.map_err(failed)?;
            }
        }
        let kept = Some(first).filter(|_| !is_early);
        {
            let _second = (one != other || kept.is_none()).then(|| heap.section_with(&locks[other]));
            let slot = slot_at(other, slots[1]);
            section.modify(&mut slot.cents).map(|own| *own += cents).map_err(failed)?;
            if rng.bool() {
                change(heap, &section, slot, tag, &mut rng)?;
            }
        }
        // SAFETY: this thread's own.
        section.modify(unsafe { &mut (*table).own[thread][0] }).map(|own| *own = number).map_err(failed)?;
        let told = told.clone();
        heap.on_stable(move || _ = told[thread].fetch_max(number, Relaxed)).map_err(failed)?;
    }
    Ok(())
}

/// Checks a heap that has gone on.
fn check(heap: &Heap, told: &[u64; THREADS]) -> Result<(), String> {
    let table = heap.root::<Table>("table").map_err(failed)?.ok_or("no table")?;
    // SAFETY: nobody else uses it.
    let table = unsafe { table.as_ref() };
    let all: Vec<&Slot> = table.slots.iter().flatten().collect();
    let (mut blocks, own) = (BTreeSet::new(), [0, 1, 2].map(|thread| table.own[thread][0]));
    for slot in all.iter().filter(|slot| slot.block != 0) {
        let block = NonNull::new(with_exposed_provenance_mut::<u8>(slot.block as usize)).ok_or("no block")?;
        let bytes = heap.size_of(block).map_err(|_| format!("the block of tag {:#x} is free", slot.tag))?;
        if !blocks.insert(slot.block) || bytes < slot.numbers as usize * 8 {
            return Err(format!("the block of tag {:#x} is another's, or has only {bytes} bytes", slot.tag));
        }
        // SAFETY: allocated.
        if let Some(wrong) = unsafe { numbers_of(slot) }.iter().find(|number| **number != slot.tag) {
            return Err(format!("{wrong:#x} in a block of tag {:#x}", slot.tag));
        }
    }
    let cents: i64 = all.iter().map(|slot| slot.cents).sum();
    let is_lost = own.iter().zip(told).any(|(own, told)| own < told);
    if cents != 0 || is_lost { Err(format!("{cents} cents, and sections {own:?} of {told:?}")) } else { Ok(()) }
}

/// Power cuts within the sections of threads that allocate, free, abort and see changes of each other.
pub(crate) fn blocks_of_threads_survive_power_cuts() -> Result<(), String> {
    let seeds: u64 = std::env::var("UNTORN_POWER_CUTS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    (0..seeds).try_for_each(|seed| cut_power(seed).map_err(|e| format!("seed {seed}: {e}")))
}

fn cut_power(seed: u64) -> Result<(), String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let (place, path) = (store(dir.path())?, dir.path().join("heap"));
    let heap = open(&place)?;
    if !is_flushed(&heap) {
        return heap.close().map_err(failed);
    }
    let nothing = || Slot { cents: 0, tag: 0, block: 0, numbers: 0 };
    let table = || Table { slots: std::array::from_fn(|_| std::array::from_fn(|_| nothing())), own: [[0; 8]; THREADS] };
    let table = heap.root_or("table", |_| table()).map_err(failed)?;
    heap.commit().map_err(failed)?;
    let (memory, start) = (memory_of(&heap)?, start_of(&heap));
    let _removed = RemovedAtEnd(memory.clone());
    let told: Arc<[AtomicU64; THREADS]> = Arc::default();
    let now = told.clone();
    let cuts = PowerCuts::begin(&memory, seed, 150, move || [0, 1, 2].map(|thread| now[thread].load(Relaxed)))?;
    let locks = [const { SectionLock::new() }; LOCKS];
    let shared = Shared { heap: &heap, at: table.as_ptr().expose_provenance(), locks, told };
    std::thread::scope(|scope| {
        let shared = &shared;
        let all: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(shared, thread, seed * 100 + thread as u64))).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let images = cuts.end()?;
    check(&heap, &[SECTIONS; THREADS])?;
    drop(heap);
    let mut nested = 0;
    for (nth, image) in images.iter().enumerate() {
        image.put(&memory).map_err(|e| e.to_string())?;
        goes_on(&path, &start, 4)?;
        let told = image.moment;
        let cuts = PowerCuts::begin(&memory, seed ^ nth as u64, 12, move || told)?;
        check(&open(&place)?, &told)?;
        for later in &cuts.end()? {
            later.put(&memory).map_err(|e| e.to_string())?;
            goes_on(&path, &start, 4)?;
            check(&open(&place)?, &told)?;
            nested += 1;
        }
    }
    println!("seed {seed}: {} power cuts, and {nested} after them", images.len());
    match images.len() {
        5.. => Ok(()),
        few => Err(format!("only {few} power cuts were tried")),
    }
}
