//! Freed space goes back to the file system, and later allocations there have the right contents, with all kinds of
//! events in between.

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapVec, Storable};
use untorn::offline::check_heap;

/// Bytes that the file takes on the disk.
fn on_disk(path: &Path) -> u64 {
    std::fs::metadata(path).expect("stat").blocks() * 512
}

fn allocate(heap: &Heap, bytes: usize, byte: u8) -> NonNull<u8> {
    let block = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("allocate");
    // SAFETY: an allocation of this many bytes.
    unsafe { block.write_bytes(byte, bytes) };
    block
}

fn free(heap: &Heap, block: NonNull<u8>) {
    // SAFETY: the tests do not use the block any more.
    unsafe { heap.free(block).expect("free") };
}

#[track_caller]
fn holds(block: NonNull<u8>, bytes: usize, byte: u8) {
    // SAFETY: an allocation of this many bytes.
    let found = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
    if let Some(at) = found.iter().position(|found| *found != byte) {
        panic!("byte {at} of {bytes} is {}, not {byte}", found[at]);
    }
}

const MIB: usize = 1 << 20;

/// Small blocks, chunks and segments: once they are freed and the commit is in the data file, the file is as small as
/// before.
#[test]
fn freed_space_goes_back_to_the_file_system() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let checkpoint = || heap.file().store().checkpoint().expect("checkpoint");
    let kept = allocate(&heap, 1000, 7);
    heap.commit().expect("commit");
    checkpoint();
    let empty = on_disk(&path);
    for (what, bytes, count) in
        [("blocks", 1000, 16 * 1024), ("chunks", 300_000, 50), ("a segment and a half", 6 * MIB, 3)]
    {
        let blocks: Vec<_> = (0..count).map(|_| allocate(&heap, bytes, 1)).collect();
        heap.commit().expect("commit");
        checkpoint();
        let full = on_disk(&path);
        assert!(full >= empty + (bytes * count) as u64, "{what}: {full} bytes on the disk");
        blocks.iter().for_each(|block| free(&heap, *block));
        checkpoint();
        assert_eq!(on_disk(&path), full, "{what}: nothing is given back before the commit");
        heap.commit().expect("commit");
        checkpoint();
        // A class keeps a chunk, and segments keep their metadata.
        let segments = heap.memory().1 / (4 * MIB);
        let (after, most) = (on_disk(&path), empty + (2 * 65536 + segments * 65536) as u64);
        assert!(after <= most, "{what}: {after} bytes on the disk, {empty} at first, {full} with it");
        assert!(full > 4 * most, "{what}: too little to be told from what stays");
    }
    holds(kept, 1000, 7);
    heap.close().expect("close");
}

/// A new allocation in freed space is written over the zeros, not under them: in the same commit, after a rollback,
/// after a restart, and with checkpoints at any time.
#[test]
fn a_later_allocation_supersedes_the_zeros() {
    for bytes in [60_000, 100_000, 700_000, 5 * MIB] {
        let dir = directory();
        let path = dir.path().join("heap");
        let heap = Heap::open_or_create(&path).expect("create");
        // Small blocks fill chunks, of which a class keeps one.
        let bytes = if bytes < 65536 { 30_000 } else { bytes };
        let first: Vec<_> = (1..7).map(|byte| allocate(&heap, bytes, byte)).collect();
        heap.set_root("first", Some(first[0])).expect("root");
        heap.commit().expect("commit");
        heap.file().store().checkpoint().expect("checkpoint");

        // Freed, allocated again, and half written: the unwritten half may have any contents, the rest must be right.
        first.iter().for_each(|block| free(&heap, *block));
        let again: Vec<_> = (11..17).map(|byte| allocate(&heap, bytes, byte)).collect();
        assert!(again.iter().any(|block| first.contains(block)), "{bytes}: nothing is used again");
        // SAFETY: nothing that was allocated since is used.
        unsafe { heap.rollback() }.expect("rollback");
        first.iter().zip(1..).for_each(|(block, byte)| holds(*block, bytes, byte));

        // The same, committed.
        first.iter().for_each(|block| free(&heap, *block));
        let again: Vec<_> = (11..17).map(|byte| allocate(&heap, bytes, byte)).collect();
        again.iter().for_each(|block| assert!(heap.size_of(*block).is_ok()));
        heap.set_root("first", Some(again[0])).expect("root");
        heap.commit().expect("commit");
        again.iter().zip(11..).for_each(|(block, byte)| holds(*block, bytes, byte));
        // SAFETY: no other thread uses the heap.
        unsafe { heap.reclaim() }.expect("quiesce");
        again.iter().zip(11..).for_each(|(block, byte)| holds(*block, bytes, byte));

        // Freed in one commit, and allocated in the next, and in the one after that.
        again.iter().for_each(|block| free(&heap, *block));
        heap.commit().expect("commit");
        let third: Vec<_> = (21..27).map(|byte| allocate(&heap, bytes, byte)).collect();
        heap.commit().expect("commit");
        heap.set_root("first", Some(third[0])).expect("root");
        heap.commit().expect("commit");
        heap.close().expect("close");
        let heap = Heap::open(&path).expect("open");
        third.iter().zip(21..).for_each(|(block, byte)| holds(*block, bytes, byte));
        heap.close().expect("close");
    }
}

const CHILD: &str = "UNTORN_TEST_HEAP";
const STEPS: usize = 400;
const SLOTS: usize = 24;

/// A table of blocks, each filled with a byte. The result of a run of steps depends only on the number of steps.
#[derive(Clone, Copy, Default, Storable)]
#[repr(C)]
struct Slot {
    block: usize,
    bytes: usize,
    byte: u8,
}

#[allow(clippy::mut_from_ref, reason = "one thread uses it")]
fn slots(heap: &Heap) -> &mut HeapVec<'_, Slot> {
    let root = heap.root_or("slots", |alloc| {
        let mut slots = HeapVec::new_in(alloc);
        slots.resize(SLOTS, Slot::default());
        slots
    });
    // SAFETY: one thread uses it, and not after the heap is closed.
    unsafe { &mut *root.expect("root").as_ptr() }
}

/// One step: frees a few blocks and allocates others, of sizes that free chunks and segments.
fn step(rng: &mut Rng) -> Vec<(usize, usize, u8)> {
    (0..rng.usize(1..5))
        .map(|_| {
            let bytes = match rng.u32(..20) {
                0..8 => rng.usize(20_000..33_000),
                8..16 => rng.usize(65_000..300_000),
                16..18 => 0,
                _ => rng.usize(4 * MIB..6 * MIB),
            };
            (rng.usize(..SLOTS), bytes, rng.u8(..))
        })
        .collect()
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let rng = &mut Rng::with_seed(seed());
    let heap = Heap::open_or_create(path).expect("create");
    for n in 0..STEPS {
        for (slot, bytes, byte) in step(rng) {
            let slot = &mut slots(&heap)[slot];
            if let Some(old) = NonNull::new(slot.block as *mut u8) {
                free(&heap, old);
            }
            let block = if bytes > 0 { allocate(&heap, bytes, byte).as_ptr() as usize } else { 0 };
            *slot = Slot { block, bytes, byte };
        }
        heap.commit().expect("commit");
        if n % 7 == 0 {
            heap.file().store().checkpoint().expect("checkpoint");
        }
        println!("step {n}");
    }
}

/// Killed at any moment, the heap has the complete state after some step, and can allocate.
#[test]
fn reuse_across_a_crash() {
    let seed = seed();
    for stop in [3, 40, 90] {
        let dir = directory();
        let path = dir.path().join("heap");
        // Made here, so that its address does not collide with other tests' heaps.
        Heap::open_or_create(&path).expect("create").close().expect("close");
        let mut child = untorn_testkit::again!("child");
        let child = child.env(CHILD, &path).env("UNTORN_TEST_SEED", seed.to_string()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("spawn");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with(&format!("step {stop}"))), "the child ended early");
        child.kill().expect("kill");
        child.wait().expect("wait");
        let last = lines.filter_map(|line| line.strip_prefix("step ")?.parse().ok()).last().unwrap_or(stop);

        assert!(check_heap(&path, &|_, _| {}).expect("check").is_sound());
        let heap = Heap::open(&path).expect("open");
        let found: Vec<(usize, u8)> = slots(&heap).iter().map(|slot| (slot.bytes, slot.byte)).collect();
        let (mut model, rng) = (vec![(0, 0); SLOTS], &mut Rng::with_seed(seed));
        let mut same = Vec::new();
        for n in 0..STEPS {
            step(rng).into_iter().for_each(|(slot, bytes, byte)| model[slot] = (bytes, byte));
            if model == found {
                same.push(n);
            }
        }
        assert!(same.iter().any(|n| (last..=last + 1).contains(n)), "seed {seed}: after step {last}, found {same:?}");
        let mut ends = BTreeMap::new();
        for slot in slots(&heap).iter().filter(|slot| slot.block != 0) {
            holds(NonNull::new(slot.block as *mut u8).expect("an address"), slot.bytes, slot.byte);
            ends.insert(slot.block, slot.block + slot.bytes);
        }
        for _ in 0..50 {
            let new = allocate(&heap, 200_000, 0xff).as_ptr() as usize;
            let before = ends.range(..new + 200_000).next_back();
            assert!(before.is_none_or(|(_, end)| *end <= new), "given out twice");
        }
        heap.commit().expect("commit");
        for slot in slots(&heap).iter().filter(|slot| slot.block != 0) {
            holds(NonNull::new(slot.block as *mut u8).expect("an address"), slot.bytes, slot.byte);
        }
        heap.close().expect("close");
    }
}
