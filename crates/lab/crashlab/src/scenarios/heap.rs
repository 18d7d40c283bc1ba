//! Scenarios over a heap: small programs that fail at once if an invariant is broken.

use super::opening::{failed, open};
use crate::simulation::Options;
use crate::simulation::SimDisk;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions};
use untorn::{Error, FailureClass, Store, TrackerKind};
use untorn_os::set_read_only;

const CHUNK_BYTES: usize = 64 << 10;
const SEGMENT_BYTES: usize = 4 << 20;

/// A disk with mappings in real memory. Heaps of other scenarios may be open at the same time.
fn disk(seed: u64) -> SimDisk {
    SimDisk::new(Options { memory: true, seed, ..Options::default() })
}

fn heap_in(store: &Store) -> Result<Heap, String> {
    HeapOptions::new().create(true).address_space(64 << 20).open_in(store, "heap").map_err(failed)
}

/// Runs `act` with a heap, and closes it.
fn with_heap<T>(disk: &SimDisk, act: impl FnOnce(&Heap) -> Result<T, String>) -> Result<T, String> {
    let store = open(disk, FailureClass::Power).map_err(failed)?;
    let heap = heap_in(&store)?;
    let done = act(&heap);
    heap.close().and_then(|()| store.close()).map_err(failed)?;
    done
}

fn allocate(heap: &Heap, bytes: usize) -> Result<NonNull<u8>, String> {
    heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).map_err(failed)
}

/// Allocates blocks, which must not overlap each other or those before them.
fn allocate_apart(heap: &Heap, before: &mut Vec<(usize, usize)>, bytes: usize, count: usize) -> Result<(), String> {
    for _ in 0..count {
        let at = allocate(heap, bytes)?.as_ptr() as usize;
        if let Some((other, len)) = before.iter().find(|(other, len)| *other < at + bytes && at < other + len) {
            return Err(format!("a block of {bytes} bytes at {at:#x} lies over one of {len} bytes at {other:#x}"));
        }
        before.push((at, bytes));
    }
    Ok(())
}

fn free(heap: &Heap, (at, _): (usize, usize)) -> Result<(), String> {
    // SAFETY: a block that nobody uses.
    unsafe { heap.free(NonNull::new(at as *mut u8).expect("an address")) }.map_err(failed)
}

fn fill(block: NonNull<u8>, bytes: usize, byte: u8) {
    // SAFETY: a block of this many bytes.
    unsafe { block.write_bytes(byte, bytes) };
}

/// Kills the program before each of its calls; then the heap must open, and allocate memory.
fn killed_anywhere(seed: u64, program: impl FnOnce(&Heap) -> Result<(), String>) -> Result<(), String> {
    let disk = disk(seed);
    disk.record();
    with_heap(&disk, program)?;
    for moment in disk.recorded() {
        let done = with_heap(&moment.killed(), |heap| allocate(heap, 100).map(drop));
        done.map_err(|what| format!("killed before call {}: {what}", moment.call()))?;
    }
    Ok(())
}

pub(crate) fn a_heap_is_made_whole_or_not_at_all() -> Result<(), String> {
    killed_anywhere(101, |_| Ok(()))
}

pub(crate) fn a_heap_grows_whole_or_not_at_all() -> Result<(), String> {
    killed_anywhere(102, |heap| {
        allocate(heap, SEGMENT_BYTES)?;
        heap.commit().map_err(failed)
    })
}

/// With the tracker `explicit`, a heap declares its own changes: blocks, large allocations, growth, roots.
pub(crate) fn a_told_heap_tells_of_itself() -> Result<(), String> {
    let disk = disk(115);
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let told = HeapOptions::new().create(true).address_space(64 << 20).tracker(TrackerKind::Explicit);
    let heap = told.open_in(&store, "heap").map_err(failed)?;
    let sizes = [100, 100_000, 5 << 20, 30];
    for (n, bytes) in sizes.into_iter().enumerate() {
        let block = allocate(&heap, bytes)?;
        heap.set_root(&format!("root {n}"), Some(block)).map_err(failed)?;
    }
    heap.commit().and_then(|()| heap.close()).and_then(|()| store.close()).map_err(failed)?;
    with_heap(&disk, |heap| {
        let report = heap.check(&|_, _| {}).map_err(failed)?;
        let (made, rooted) = (heap.stats().map_err(failed)?.allocations, heap.roots().len());
        match (made as usize, rooted, report.problems.as_slice()) {
            (made, rooted, []) if made == sizes.len() && rooted == sizes.len() => Ok(()),
            other => Err(format!("of {} allocations and roots there are {other:?}", sizes.len())),
        }
    })
}

/// Another thread commits while this one has changed only one of two words.
pub(crate) fn a_commit_of_a_heap_waits_for_a_change() -> Result<(), String> {
    let disk = disk(103);
    let words = with_heap(&disk, |heap| {
        let words = allocate(heap, 16)?.cast::<u64>();
        let set = |at: usize| {
            // SAFETY: two words.
            unsafe { words.add(at).write(1) };
        };
        fill(words.cast(), 16, 0);
        heap.commit().map_err(failed)?;
        std::thread::scope(|scope| {
            let change = heap.mutate();
            set(0);
            let commit = scope.spawn(|| heap.commit());
            // A longer wait would show no more, and the commit must not end before the change does.
            let started = Instant::now();
            while !commit.is_finished() && started.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
            let early = commit.is_finished();
            set(1);
            drop(change);
            match commit.join().expect("a commit does not panic").map_err(failed) {
                Ok(()) if early => Err("half of a change was committed".to_owned()),
                done => done,
            }
        })?;
        Ok(words)
    })?;
    with_heap(&disk, |_| {
        // SAFETY: the heap is where it was.
        match unsafe { words.cast::<[u64; 2]>().read() } {
            [1, 1] => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
}

pub(crate) fn what_was_rolled_back_is_given_out_once() -> Result<(), String> {
    let disk = disk(104);
    let mut blocks = Vec::new();
    with_heap(&disk, |heap| {
        heap.commit().map_err(failed)?;
        allocate(heap, 1000)?;
        // SAFETY: the block is not used.
        unsafe { heap.rollback() }.map_err(failed)?;
        allocate_apart(heap, &mut blocks, 1000, 1)?;
        heap.commit().map_err(failed)
    })?;
    with_heap(&disk, |heap| allocate_apart(heap, &mut blocks, CHUNK_BYTES, 1))
}

pub(crate) fn a_free_chunk_has_one_use() -> Result<(), String> {
    with_heap(&disk(105), |heap| {
        let mut blocks = Vec::new();
        let of_chunk = CHUNK_BYTES / 1024;
        allocate_apart(heap, &mut blocks, 1024, 2 * of_chunk)?;
        let first = blocks.remove(0);
        free(heap, first)?;
        // The second chunk becomes free, and then has blocks of another size.
        blocks.split_off(of_chunk - 1).into_iter().try_for_each(|block| free(heap, block))?;
        allocate_apart(heap, &mut blocks, 100, 1)?;
        allocate_apart(heap, &mut blocks, 1024, of_chunk)?;
        allocate_apart(heap, &mut blocks, 100, 100)
    })
}

/// The bytes of an allocation of several segments do not look like metadata.
fn huge(heap: &Heap) -> Result<(usize, usize), String> {
    let bytes = 2 * SEGMENT_BYTES;
    let block = allocate(heap, bytes)?;
    fill(block, bytes, 0xa5);
    heap.commit().map_err(failed)?;
    Ok((block.as_ptr() as usize, bytes))
}

pub(crate) fn a_huge_allocation_hides_no_metadata() -> Result<(), String> {
    let disk = disk(106);
    let block = with_heap(&disk, huge)?;
    // The metadata is not known any more, and is searched for.
    with_heap(&disk, |heap| allocate_apart(heap, &mut vec![block], 3 * CHUNK_BYTES, 40))
}

pub(crate) fn a_huge_allocation_leaves_no_metadata() -> Result<(), String> {
    let disk = disk(107);
    let block = with_heap(&disk, huge)?;
    with_heap(&disk, |heap| {
        free(heap, block)?;
        heap.commit().map_err(failed)
    })?;
    with_heap(&disk, |heap| allocate_apart(heap, &mut Vec::new(), 3 * CHUNK_BYTES, 60))
}

/// A stray store hits the heap's own bytes: the commit is refused, and after a rollback the heap is as before.
pub(crate) fn what_was_overwritten_is_not_committed() -> Result<(), String> {
    let disk = disk(110);
    // The address in the header; the descriptor of the first chunk of blocks.
    for offset in [18, 4096 + 64] {
        with_heap(&disk, |heap| {
            allocate_apart(heap, &mut Vec::new(), 100, 1)?;
            heap.commit().map_err(failed)?;
            let base = heap.memory().0.as_ptr();
            // SAFETY: pages of the heap; the call only makes more of them writable.
            unsafe { set_read_only(base as usize..base as usize + CHUNK_BYTES, false) }.expect("its protection");
            // SAFETY: mapped. The scenario is about stores that are forbidden there.
            unsafe { base.add(offset).write(0xa5) };
            match heap.commit() {
                // SAFETY: blocks that were allocated since are not used.
                Err(Error::Corrupt { .. }) => unsafe { heap.rollback() }.map_err(failed),
                other => Err(format!("byte {offset} was overwritten, and the commit: {other:?}")),
            }
        })?;
        with_heap(&disk, |heap| allocate_apart(heap, &mut Vec::new(), 100, 1))?;
    }
    Ok(())
}

/// A store against the rules, right before each call of a commit in turn.
pub(crate) fn a_race_is_told_and_the_commit_takes_place() -> Result<(), String> {
    let mut told = false;
    for nth in 0.. {
        let disk = disk(108);
        let store = open(&disk, FailureClass::Power).map_err(failed)?;
        let options = HeapOptions::new().create(true).address_space(64 << 20).debug_races(true);
        let heap = options.open_in(&store, "heap").map_err(failed)?;
        let block = allocate(&heap, 100)?;
        heap.set_root("block", Some(block)).map_err(failed)?;
        fill(block, 100, 1);
        heap.commit().map_err(failed)?;
        fill(block, 100, 2);
        let race = disk.calls() + nth;
        disk.store_at(race, block.as_ptr().wrapping_add(50), b"race");
        match heap.commit() {
            Ok(()) => {}
            Err(Error::RacingStore { .. }) => told = true,
            Err(e) => return Err(failed(e)),
        }
        let (calls, after) = (disk.calls(), disk.fork());
        disk.kill();
        drop((heap, store));
        with_heap(&after, |heap| {
            let block = heap.root::<u8>("block").map_err(failed)?.ok_or("the root is gone")?;
            // SAFETY: a block of 100 bytes.
            match unsafe { block.read() } {
                2 => Ok(()),
                found => Err(format!("a store right before call {nth}, and {found} is there instead of the commit")),
            }
        })?;
        if calls <= race {
            break;
        }
    }
    if told { Ok(()) } else { Err("no race was told".to_owned()) }
}
