//! Very many small objects, freed in random order, by one thread and by several. The tests print how long that takes,
//! and check that all space comes back. To run them by hand:
//!
//! ```text
//! UNTORN_HEAP_OBJECTS=20000000 cargo test -p untorn --test heap_many -- --nocapture --test-threads=1
//! ```

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use untorn::heap::Heap;

fn objects() -> usize {
    std::env::var("UNTORN_HEAP_OBJECTS").map_or(100_000, |text| text.parse().expect("a number"))
}

/// Processor time of this process, independent of other programs.
fn processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for one.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0, "clock_gettime");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn timed<T>(what: &str, count: usize, work: impl FnOnce() -> T) -> T {
    let (start, processor_start) = (Instant::now(), processor());
    let done = work();
    let (time, processor) = (start.elapsed().as_secs_f64(), processor() - processor_start);
    let each = processor.as_nanos() as f64 / count as f64;
    println!("{what:<44} {time:>8.2} s {:>8.2} s of processor, {each:>7.0} ns each", processor.as_secs_f64());
    done
}

/// Allocates 24 to 96 bytes.
fn allocate(heap: &Heap, rng: &mut Rng) -> NonNull<u8> {
    heap.allocate(Layout::from_size_align(rng.usize(24..=96), 8).expect("a layout")).expect("allocate")
}

fn free(heap: &Heap, blocks: &[NonNull<u8>]) {
    for block in blocks {
        // SAFETY: nobody uses it.
        unsafe { heap.free(*block).expect("free") };
    }
}

/// The number of a heap's slots for threads that allocate at once.
const SLOTS: u64 = 16;

/// Everything is free except for the chunk that each class keeps in each slot.
#[track_caller]
fn all_came_back(heap: &Heap, slots: u64) {
    let report = heap.check(&|_, _| {}).expect("check");
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.classes.iter().map(|class| class.used).sum::<u64>(), 0);
    assert!(report.classes.iter().all(|class| class.chunks <= slots), "{:?}", report.classes);
}

#[test]
fn many_objects_in_random_order() {
    let (count, rng) = (objects(), &mut Rng::with_seed(seed()));
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    println!("{count} objects of 24 to 96 bytes, one thread");
    let mut blocks: Vec<_> = timed("allocate, and store to each", count, || {
        (0..count)
            .map(|_| {
                let block = allocate(&heap, rng);
                // SAFETY: 24 bytes at least.
                unsafe { block.write_bytes(1, 24) };
                block
            })
            .collect()
    });
    rng.shuffle(&mut blocks);
    // A list through all of them, in random order.
    for pair in blocks.windows(2) {
        // SAFETY: as above.
        unsafe { pair[0].cast::<NonNull<u8>>().write(pair[1]) };
    }
    heap.set_root("list", Some(blocks[0])).expect("root");
    timed("commit", count, || heap.commit().expect("commit"));
    let report = timed("check, of one list in random order", count, || heap.check(&|_, _| {}).expect("check"));
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.leaks.expect("looked for").count, 0);
    heap.set_root::<u8>("list", None).expect("root");
    let half = count / 2;
    timed("free half of them in random order", half, || free(&heap, &blocks[..half]));
    let more: Vec<_> = timed("allocate as many again", half, || (0..half).map(|_| allocate(&heap, rng)).collect());
    timed("free all in random order", count, || {
        free(&heap, &more);
        free(&heap, &blocks[half..]);
    });
    timed("commit", count, || heap.commit().expect("commit"));
    println!("the heap has {} MiB", heap.memory().1 >> 20);
    all_came_back(&heap, 1);
}

#[test]
fn many_objects_from_many_threads() {
    const THREADS: usize = 8;
    let (count, seed) = (objects() / THREADS, seed());
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    println!("{count} objects in each of {THREADS} threads");
    let all: Vec<Vec<usize>> = timed("allocate and free, half of it for others", 2 * count * THREADS, || {
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let rng = &mut Rng::with_seed(seed + thread as u64);
                let mut blocks: Vec<_> = (0..count).map(|_| allocate(&heap, rng)).collect();
                rng.shuffle(&mut blocks);
                free(&heap, &blocks[..count / 2]);
                blocks[count / 2..].iter().map(|block| block.as_ptr() as usize).collect()
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
        })
    });
    // Freed by other threads than those that allocated.
    std::thread::scope(|scope| {
        for blocks in &all {
            let heap = &heap;
            scope.spawn(move || {
                let blocks: Vec<_> = blocks.iter().filter_map(|at| NonNull::new(*at as *mut u8)).collect();
                free(heap, &blocks);
            });
        }
    });
    heap.commit().expect("commit");
    all_came_back(&heap, SLOTS);
}

/// Large blocks among many small ones: the search for room takes no longer, however many small ones there are.
#[test]
fn large_allocations_among_many_free_chunks() {
    let (count, rng) = (objects() / 500, &mut Rng::with_seed(seed()));
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let large = |bytes| heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("allocate");
    println!("{count} large allocations");
    let all: Vec<_> = timed("allocate 40 kB each", count, || (0..count).map(|_| large(40_000)).collect());
    let (gone, kept): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    let blocks = |some: Vec<(usize, &NonNull<u8>)>| some.into_iter().map(|(_, block)| *block).collect::<Vec<_>>();
    timed("free every second one", gone.len(), || free(&heap, &blocks(gone)));
    let mut more: Vec<_> = timed("allocate 100 kB each", count, || (0..count).map(|_| large(100_000)).collect());
    more.extend(blocks(kept));
    rng.shuffle(&mut more);
    timed("free all in random order", more.len(), || free(&heap, &more));
    heap.commit().expect("commit");
    all_came_back(&heap, 1);
}
