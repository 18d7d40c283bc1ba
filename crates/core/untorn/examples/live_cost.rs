//! Costs of cuts of a live heap: `cargo run --release -p untorn --example live_cost -- [MIB [LINES [SECONDS]]]`
//! (1024, 10000, 5). A thread stores to so many lines in each tenth of a second, and a cut is made as often. Prints how long
//! cuts stop the thread, what the thread gets done with cuts and without, and how long an opening takes after that.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions};

const EVERY: Duration = Duration::from_millis(100);
const LINE: usize = 64;

/// Stores until it is told to stop, so many lines in each interval; all lines that it has stored to, if it need not wait.
fn store(block: usize, bytes: usize, lines: usize, paced: bool, stop: &AtomicBool) -> u64 {
    let mut random = 88_172_645_463_325_252_u64;
    let mut done = 0;
    while !stop.load(Relaxed) {
        let begun = Instant::now();
        for _ in 0..lines {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = block + (random as usize % (bytes / LINE)) * LINE;
            // SAFETY: within the block, aligned, and used as atomics alone.
            unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(at) }.fetch_add(1, Relaxed);
            done += 1;
        }
        if paced {
            std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
        }
    }
    done
}

/// Stores for so long beside cuts, or without; lines in a second. Tells `stops` how long each cut stopped the thread.
fn run(
    heap: &Heap,
    block: usize,
    (bytes, lines): (usize, usize),
    seconds: u64,
    paced: bool,
    mut stops: Option<&mut Vec<Duration>>,
) -> untorn::Result<f64> {
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let until = Duration::from_secs(seconds);
    let done = std::thread::scope(|scope| {
        let storing = scope.spawn(|| store(block, bytes, lines, paced, &stop));
        let mut cut = Ok(());
        while begun.elapsed() < until && cut.is_ok() {
            let next = Instant::now() + EVERY;
            if let Some(stops) = &mut stops {
                cut = heap.commit();
                stops.push(heap.live().expect("a live heap").stops.last);
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        stop.store(true, Relaxed);
        let done = storing.join().unwrap_or(0);
        cut.map(|()| done)
    })?;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

fn main() -> untorn::Result<()> {
    let mut numbers = std::env::args().skip(1).map_while(|text| text.parse::<usize>().ok());
    let [mib, lines, seconds] = [1024, 10_000, 5].map(|usual| numbers.next().unwrap_or(usual));
    let dir = std::env::current_dir().unwrap_or_default().join(format!("live_cost.{}", std::process::id()));
    let bytes = mib << 20;
    let options = HeapOptions::new().create(true).live(true);
    let heap = options.open(&dir)?;
    let block: NonNull<u8> = heap.allocate(Layout::from_size_align(bytes, 8).expect("a size"))?;
    // SAFETY: allocated just now.
    unsafe { block.as_ptr().write_bytes(1, bytes) };
    heap.set_root("block", Some(block))?;
    heap.commit()?;
    let block = block.as_ptr().expose_provenance();
    let what = (bytes, lines);
    let mut stops = Vec::new();
    run(&heap, block, what, seconds as u64, true, Some(&mut stops))?;
    stops.sort_unstable();
    let longest = heap.live().expect("a live heap").stops.longest;
    println!(
        "{lines} lines in each {EVERY:?}, heap of {mib} MiB: {} cuts stopped the thread, half of them for no more than {:?}, nine \
         in ten for no more than {:?}; the longest stop was {longest:?}",
        stops.len(),
        stops[stops.len() / 2],
        stops[stops.len() * 9 / 10],
    );
    for lines in [20_000 / 64, lines] {
        let small = (lines * LINE * 4, lines);
        let without = run(&heap, block, small, seconds as u64, false, None)?;
        let with = run(&heap, block, small, seconds as u64, false, Some(&mut Vec::new()))?;
        println!("stores to {} KiB, cuts each {EVERY:?}: {:.2} of without cuts", small.0 >> 10, with / without);
    }
    drop(heap);
    let begun = Instant::now();
    let heap = options.open(&dir)?;
    println!("opening again, heap of {mib} MiB: {:?}, {:?}", begun.elapsed(), heap.live().expect("a live heap").start);
    let begun = Instant::now();
    heap.commit()?;
    println!("the first cut after that, which compares all: {:?}", begun.elapsed());
    heap.close()?;
    untorn::offline::eject(&dir, &|_, _| {})?;
    std::fs::remove_file(&dir).map_err(|e| untorn::Error::io("remove", &dir, e))
}
