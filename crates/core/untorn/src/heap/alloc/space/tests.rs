//! The allocator over plain memory: its allocations, and its errors when its metadata was overwritten.

use super::*;
use crate::heap::alloc::chunk_table::UNCOUNTED;
use crate::heap::alloc::in_memory::{Memory, Work};
use fastrand::Rng;

/// Overwrites a descriptor.
fn put(memory: &Memory, number: Number, what: Use, bytes: u64) {
    let (segment, index) = split(number);
    let at = segment * SEGMENT_BYTES + DESCRIPTORS_AT + index * size_of::<Descriptor>();
    // SAFETY: no allocator is at work.
    let line = unsafe { memory.bytes() }[at..].as_mut_ptr().cast::<Descriptor>();
    // SAFETY: inside the memory.
    unsafe { line.write_unaligned(Descriptor::new(what, bytes)) };
}

#[track_caller]
fn corrupt<T>(result: Result<T>) {
    match result {
        Err(Refused::Corrupt(_)) => {}
        Err(other) => panic!("not corrupt, but {other:?}"),
        Ok(_) => panic!("taken for sound"),
    }
}

#[track_caller]
fn not_allocated<T>(result: Result<T>) {
    match result {
        Err(Refused::NotAllocated) => {}
        Err(other) => panic!("allocated, and {other:?}"),
        Ok(_) => panic!("allocated"),
    }
}

const LARGE: usize = 3 * CHUNK_BYTES;
const HUGE: usize = 9 << 20;

/// Allocates all kinds of sizes and frees them in random order, forgetting in between; the checker finds exactly the
/// allocations in use.
#[test]
fn nothing_is_given_out_twice_and_everything_comes_back() {
    for seed in 0..6 {
        let rng = &mut Rng::with_seed(seed);
        let memory = Memory::new(64);
        let mut work = Work::new(&memory);
        let mut forgotten = 0;
        for step in 0..6000 {
            match rng.u32(..100) {
                // The heap fills up first, then empties.
                n if n < if step < 3000 { 60 } else { 30 } => {
                    let bytes = match rng.u32(..100) {
                        0..60 => rng.usize(1..3000),
                        60..90 => rng.usize(8000..33_000),
                        90..99 => rng.usize(33_000..1_000_000),
                        _ => rng.usize(4_000_000..9_000_000),
                    };
                    match work.allocate(bytes) {
                        Ok(_) | Err(Refused::Grow(_)) => {}
                        Err(e) => panic!("seed {seed}, step {step}: {e:?}"),
                    }
                }
                98 if seed > 1 => work.turn(),
                97 if seed > 2 => work.give_back(),
                99 => {
                    if seed == 0 {
                        continue;
                    }
                    forgotten += 1;
                    work.forget();
                }
                _ => {
                    let Some(at) = work.given.keys().nth(rng.usize(..work.given.len().max(1))).copied() else {
                        continue;
                    };
                    work.free(at).unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e:?}"));
                    not_allocated(work.free(at));
                }
            }
        }
        let report = memory.check().expect("look");
        assert!(report.is_sound(), "seed {seed}: {:?}", report.problems);
        let used: u64 = report.classes.iter().map(|class| class.used).sum();
        assert_eq!(used + report.large.count + report.huge.count, work.given.len() as u64, "seed {seed}");
        for at in work.given.keys().copied().collect::<Vec<_>>() {
            work.free(at).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        }
        let report = memory.check().expect("look");
        // A class keeps one chunk, and may keep another each time it has forgotten the first.
        let most = report.classes.iter().map(|class| class.chunks).max();
        assert!(most.is_some_and(|most| most <= 2 + forgotten), "seed {seed}: {most:?} of {forgotten}");
        let kept: u64 = report.classes.iter().map(|class| class.chunks).sum();
        let all = report.heap_bytes - report.metadata_bytes - kept * CHUNK_BYTES as u64;
        assert_eq!(report.free_bytes, all, "seed {seed}: everything came back");
    }
}

/// After a rollback and after opening, no call reads more than a few segments, however large the heap is.
#[test]
fn no_call_reads_the_whole_heap() {
    const SEGMENTS: usize = 300;
    let memory = Memory::new(SEGMENTS + 20);
    let mut work = Work::new(&memory);
    let mut all = Vec::new();
    while memory.segments() < SEGMENTS {
        all.push(work.allocate(2 * LARGE).expect("allocate"));
    }
    let small = work.allocate(100).expect("allocate");
    for round in 0..40 {
        work.forget();
        let mut read = work.space.unread;
        let mut none_read = |work: &Work<'_>, most: usize| {
            let unread = work.space.unread;
            assert!(read <= unread + most, "{} segments were read", read - unread);
            read = unread;
        };
        work.free(all[round * 7]).expect("free");
        none_read(&work, 1);
        assert_eq!(work.size_of(small).expect("size"), 112);
        none_read(&work, 1);
        let at = work.allocate(2 * LARGE).expect("allocate");
        none_read(&work, LOOKS_MOST);
        all[round * 7] = at;
        let other = work.allocate(100).expect("allocate");
        none_read(&work, LOOKS_MOST);
        work.free(other).expect("free");
        let large = work.allocate(HUGE).expect("allocate");
        none_read(&work, LOOKS_MOST_HUGE);
        work.free(large).expect("free");
        work.give_back();
        none_read(&work, LOOKS_MOST);
    }
    assert!(memory.segments() < SEGMENTS + 12, "the heap grew to {} segments", memory.segments());
    assert!(memory.check().expect("look").is_sound());
}

/// After a rollback and after opening, a call counts the free blocks only of the chunks that it needs, not of all that
/// it read.
#[test]
fn a_chunk_is_counted_when_it_is_needed() {
    let memory = Memory::new(1);
    let mut work = Work::new(&memory);
    let blocks: Vec<usize> = (0..126).map(|_| work.allocate(32768).expect("allocate")).collect();
    work.forget();
    work.free(blocks[40]).expect("free");
    let counted = |work: &Work<'_>| {
        // SAFETY: no allocator is at work.
        let of = |number| unsafe { work.space.table.chunk(number) }.free;
        let free = (1..CHUNKS as Number).map(of);
        free.filter(|free| *free != UNCOUNTED).count()
    };
    assert_eq!(counted(&work), 1);
    assert_eq!(work.size_of(blocks[3]).expect("size"), 32768);
    assert_eq!(counted(&work), 1);
    assert_eq!(work.allocate(32768).expect("allocate"), blocks[40]);
    assert_eq!(counted(&work), 1);
    assert!(matches!(work.allocate(32768), Err(Refused::Grow(_))));
    assert_eq!(counted(&work), CHUNKS - 1, "before the heap grows, all");
}

/// An empty end of the heap is given back, and reads as zeros when the heap grows again.
#[test]
fn an_empty_end_is_given_back() {
    let memory = Memory::new(64);
    let mut work = Work::new(&memory);
    let small = work.allocate(100).expect("allocate");
    let huge: Vec<usize> = (0..6).map(|_| work.allocate(HUGE).expect("allocate")).collect();
    let last = work.allocate(LARGE).expect("allocate");
    for at in &huge {
        work.free(*at).expect("free");
    }
    work.give_back();
    let before = memory.segments();
    assert!(before >= 18 || last < SEGMENT_BYTES, "{before} segments");
    work.free(last).expect("free");
    work.give_back();
    assert!(memory.segments() <= 3, "{} segments", memory.segments());
    assert!(memory.check().expect("look").is_sound());
    let again = work.allocate(HUGE).expect("allocate");
    work.size_of(again).expect("size");
    work.size_of(small).expect("size");
    work.forget();
    work.size_of(again).expect("size");
    assert!(memory.check().expect("look").is_sound());
}

/// A thread without room takes another thread's chunk before the heap grows.
#[test]
fn threads_share_what_room_there_is() {
    let memory = Memory::new(1);
    let mut work = Work::new(&memory);
    let blocks: Vec<usize> = (0..126).map(|_| work.allocate(32768).expect("allocate")).collect();
    work.free(blocks[17]).expect("free");
    work.turn();
    assert_eq!(work.allocate(32768).expect("allocate"), blocks[17]);
    assert!(matches!(work.allocate(32768), Err(Refused::Grow(_))));
}

#[test]
fn free_chunks_are_found_where_they_fit_best() {
    let memory = Memory::new(4);
    let mut work = Work::new(&memory);
    // 21 to a segment, so the first segment has no chunk left over.
    let all: Vec<usize> = (0..25).map(|_| work.allocate(LARGE).expect("allocate")).collect();
    for n in [3, 8, 9] {
        work.free(all[n]).expect("free");
    }
    assert_eq!(work.allocate(2 * LARGE).expect("allocate"), all[8], "two in a row");
    assert_eq!(work.allocate(LARGE).expect("allocate"), all[3]);
    assert_eq!(work.allocate(LARGE).expect("allocate"), all[24] + LARGE);
    work.free(all[5]).expect("free");
    assert_eq!(work.allocate(100).expect("allocate"), all[5], "one chunk, where least is lost");
    assert_eq!(work.allocate(2 * CHUNK_BYTES).expect("allocate"), all[5] + CHUNK_BYTES);
}

#[test]
fn what_makes_no_sense_is_so_every_time() {
    for (what, bytes) in [
        (Use::Huge(2), 5 << 20),
        (Use::Huge(1 << 20), 5 << 20),
        (Use::Rest, 0),
        (Use::Large(2), LARGE as u64),
        (Use::Large(2), CHUNK_BYTES as u64),
        (Use::Large(63), CHUNK_BYTES as u64),
    ] {
        let memory = Memory::new(4);
        memory.set_segments(1);
        put(&memory, 1, what, bytes);
        let mut work = Work::new(&memory);
        for _ in 0..3 {
            corrupt(work.allocate(10));
            corrupt(work.allocate(LARGE));
            corrupt(work.allocate(HUGE));
            corrupt(work.free(CHUNK_BYTES));
        }
        assert!(!memory.check().expect("look").is_sound(), "{what:?}");
    }
}

/// Bits behind a chunk's last block are ignored.
#[test]
fn bits_of_blocks_that_there_are_not() {
    let memory = Memory::new(1);
    let class = class_of(48, 1).expect("a class");
    assert_eq!(blocks(class), 1365, "the last word has bits to spare");
    put(&memory, 1, Use::Blocks(class), 0);
    // SAFETY: no allocator is at work.
    let bitmap = &mut unsafe { memory.bytes() }[BITMAPS_AT + BITMAP_WORDS * 8..][..BITMAP_WORDS * 8];
    bitmap.fill(0xff);
    bitmap[0] = 0xf7;
    let mut work = Work::new(&memory);
    assert_eq!(work.allocate(48).expect("the one that is free"), CHUNK_BYTES + 3 * 48);
    assert_eq!(work.allocate(48).expect("another chunk"), 2 * CHUNK_BYTES);
    assert!(!memory.check().expect("look").is_sound());
}

/// Data of a huge allocation may look like metadata.
#[test]
fn what_is_inside_of_a_huge_allocation_is_none() {
    let memory = Memory::new(8);
    let mut work = Work::new(&memory);
    let small = work.allocate(1000).expect("allocate");
    let huge = work.allocate(HUGE).expect("allocate");
    // SAFETY: no slice of it is about.
    let bytes = unsafe { memory.bytes() };
    let inside = (huge / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
    bytes.copy_within(DESCRIPTORS_AT..ROOTS_AT, inside + DESCRIPTORS_AT);
    for forget in [false, true] {
        if forget {
            work.forget();
        }
        not_allocated(work.size_of(inside + small));
        not_allocated(work.free(inside + small));
        not_allocated(work.size_of(inside));
        assert_eq!(work.size_of(small).expect("size"), 1024);
        assert_eq!(work.size_of(huge).expect("size"), 3 * SEGMENT_BYTES - CHUNK_BYTES);
    }
    work.free(huge).expect("free");
    assert!(memory.check().expect("look").is_sound());
}

/// Stores over metadata while the heap is open.
#[test]
fn what_was_overwritten_is_not_believed() {
    let memory = Memory::new(8);
    let mut work = Work::new(&memory);
    let blocks: Vec<usize> = (0..5).map(|_| work.allocate(30_000).expect("allocate")).collect();
    let (large, huge) = (work.allocate(LARGE).expect("allocate"), work.allocate(HUGE).expect("allocate"));
    let other = work.allocate(HUGE).expect("allocate");
    let number = |at: usize| (at / CHUNK_BYTES) as Number;
    let class = class_of(30_000, 1).expect("a class");
    for (at, wrong, right) in [
        (blocks[4], (Use::Blocks(0), 0), (Use::Blocks(class), 0)),
        (blocks[4], (Use::Free, 0), (Use::Blocks(class), 0)),
        (blocks[4], (Use::Large(1), 10), (Use::Blocks(class), 0)),
        (large, (Use::Large(4), LARGE as u64), (Use::Large(3), LARGE as u64)),
        (large, (Use::Blocks(0), 0), (Use::Large(3), LARGE as u64)),
        (huge, (Use::Huge(4), HUGE as u64), (Use::Huge(3), HUGE as u64)),
        (huge, (Use::Huge(2), 10), (Use::Huge(3), HUGE as u64)),
        (other, (Use::Huge(1 << 30), HUGE as u64), (Use::Huge(3), HUGE as u64)),
    ] {
        put(&memory, number(at), wrong.0, wrong.1);
        corrupt(work.free(at));
        put(&memory, number(at), right.0, right.1);
        work.size_of(at).expect("right again");
    }
    put(&memory, number(large) + 1, Use::Free, 0);
    corrupt(work.free(large));

    // A block that is freed twice, because its bit was set again: the other block in its chunk stays.
    work.free(blocks[0]).expect("free");
    // SAFETY: no slice of it is about.
    let bytes = unsafe { memory.bytes() };
    bytes[BITMAPS_AT + number(blocks[0]) as usize * BITMAP_WORDS * 8] |= 1;
    work.free(blocks[0]).expect("free");
    assert_eq!(work.size_of(blocks[1]).expect("still there"), 32768);

    // Headers with a valid checksum and wrong contents, and one with a wrong checksum.
    for segments in [1, 2, 1 << 40] {
        // SAFETY: as above.
        let header = unsafe { &mut *memory.bytes().as_mut_ptr().cast::<Header>() };
        let good = *header;
        *header = if segments == 1 { Header { address: 0, ..good } } else { Header { segments, ..good }.summed() };
        corrupt(work.allocate(20 << 20));
        *header = good;
    }
    assert!(work.allocate(100).is_ok());
}

#[test]
fn the_longest_run() {
    for (bits, run) in [(0, 0), (1, 1), (ALL_FREE, 63), (0b1011_0111, 3), (u64::MAX << 60, 4)] {
        assert_eq!(longest_run(bits), run, "{bits:b}");
    }
    assert_eq!((run_of(1), run_of(63)), (1, u64::MAX >> 1));
}
