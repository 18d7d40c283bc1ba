//! Costs of the calls of a heap, in nanoseconds, beside the C library's allocator.
//! `cargo run --release -p untorn --example heap_cost -- DIRECTORY [OPERATIONS]`

use allocator_api2::alloc::{Allocator, Global};
use std::alloc::Layout;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use untorn::TrackerKind;
use untorn::heap::{Heap, HeapOptions};

/// Blocks that a thread has at a time: the oldest one is freed when a new one is made.
const LIVE: usize = 1000;

fn main() -> Result<(), untorn::Error> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a directory"));
    let n: usize = arguments.next().map_or(5_000_000, |n| n.parse().expect("a number of operations"));
    let path = dir.join("heap-cost");
    let heap = Heap::open_or_create(&path)?;

    let guard = each(1, n, |n| (0..n).for_each(|_| drop(std::hint::black_box(heap.mutate()))));
    let nested = each(1, n, |n| {
        let _outer = heap.mutate();
        (0..n).for_each(|_| drop(std::hint::black_box(heap.mutate())));
    });
    println!("mutation guard, taken and given back: {guard:.1} ns; inside of another one: {nested:.1} ns");
    for threads in [1, 2, 4] {
        let ours = each(threads, n, |n| churn(&heap.allocator(), n));
        let theirs = each(threads, n, |n| churn(&Global, n));
        println!("{threads} threads: a block made and one freed: {ours:.1} ns in the heap, {theirs:.1} ns by malloc");
    }
    let (least, median) = stand_still(&heap)?;
    println!(
        "a commit of {PAGES} pages keeps threads waiting: {least:.2} ms at least, {median:.2} ms half of the times"
    );
    heap.close()?;
    tell(&path, n)?;
    std::fs::remove_file(&path).expect("the heap's file");
    let _ = std::fs::remove_dir_all(dir.join("heap-cost.untorn"));
    Ok(())
}

/// The cost of marking eight bytes, with the tracker `explicit`: of the same ones again and again, and of others each
/// time.
fn tell(path: &Path, n: usize) -> Result<(), untorn::Error> {
    let heap = HeapOptions::new().create(true).tracker(TrackerKind::Explicit).open(path)?;
    let block = heap.allocate(Layout::from_size_align(PAGES * 4096, 4096).expect("a layout"))?.as_ptr() as usize;
    let mark = |offset: usize| heap.mark_dirty((block + offset) as *const u8, 8).expect("bytes of the heap");
    for threads in [1, 2] {
        let same = each(threads, n, |n| (0..n).for_each(|_| mark(0)));
        let others = each(threads, n, |n| (0..n).for_each(|n| mark(n * 4112 % (PAGES * 4096 - 8))));
        heap.commit()?;
        println!("{threads} threads: 8 bytes marked: {same:.1} ns the same ones, {others:.1} ns others");
    }
    heap.close()
}

/// Pages that a commit finds changed.
const PAGES: usize = 1000;

/// The longest wait for a guard during a commit of many pages, in ms: the least of all commits, and the median.
fn stand_still(heap: &Heap) -> Result<(f64, f64), untorn::Error> {
    let block = heap.allocate(Layout::from_size_align(4 * PAGES * 4096, 4096).expect("a layout"))?.as_ptr();
    heap.commit()?;
    let mut waits = Vec::new();
    for round in 0..40u8 {
        for page in 0..PAGES {
            // SAFETY: within the block.
            unsafe { block.add(4 * page * 4096 + usize::from(round)).write_volatile(round + 1) };
        }
        let (start, done) = (Barrier::new(2), AtomicBool::new(false));
        let (longest, committed) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                start.wait();
                let mut longest = 0.0f64;
                while !done.load(Relaxed) {
                    let began = Instant::now();
                    drop(std::hint::black_box(heap.mutate()));
                    longest = longest.max(began.elapsed().as_secs_f64() * 1e3);
                }
                longest
            });
            start.wait();
            let committed = heap.commit();
            done.store(true, Relaxed);
            (waiting.join().expect("a thread that waited"), committed)
        });
        committed?;
        // The first ones find pages that nothing is known of, and fill buffers.
        if round >= 5 {
            waits.push(longest);
        }
    }
    waits.sort_by(f64::total_cmp);
    Ok((waits[0], waits[waits.len() / 2]))
}

/// Nanoseconds that an operation takes the slowest of so many threads: the least of several runs; of one thread they
/// are so short that most of them are not interrupted.
fn each(threads: usize, operations: usize, work: impl Fn(usize) + Sync) -> f64 {
    let runs = if threads == 1 { 200 } else { 5 };
    let operations = operations / runs / threads;
    let run = || {
        let start = Barrier::new(threads);
        let timed = || {
            start.wait();
            let began = Instant::now();
            work(operations);
            began.elapsed()
        };
        let longest = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
            all.into_iter().map(|thread| thread.join().expect("a thread that worked")).max()
        });
        longest.unwrap_or_default().as_nanos() as f64 / operations as f64
    };
    (0..runs).map(|_| run()).fold(f64::INFINITY, f64::min)
}

/// Blocks of 16 to 271 bytes.
fn churn(memory: &impl Allocator, operations: usize) {
    let layout = |n: usize| Layout::from_size_align(16 + n * 97 % 256, 8).expect("a layout");
    let mut live = vec![None; LIVE];
    for n in 0..operations + LIVE {
        let new = (n < operations).then(|| memory.allocate(layout(n)).expect("memory").cast::<u8>());
        if let Some(old) = std::mem::replace(&mut live[n % LIVE], new) {
            // SAFETY: made LIVE operations ago, and known here alone.
            unsafe { memory.deallocate(old, layout(n - LIVE)) };
        }
    }
}
