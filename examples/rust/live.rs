//! A counter in a live heap, which is never committed: `live HEAP` counts to a random place and crashes; the next run
//! goes on from there. `live HEAP end` prints the number and closes the heap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use untorn::heap::{HeapOptions, LiveStart, Storable};

#[derive(Storable)]
struct Counter {
    number: AtomicU64,
}

fn main() -> untorn::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let heap = HeapOptions::new().create(true).live(true).open(arguments.next().unwrap_or("live.heap".into()))?;
    let counter = heap.root_or("counter", |_| Counter { number: AtomicU64::new(0) })?;
    // SAFETY: the root stays where it is while the heap is open.
    let number = unsafe { &counter.as_ref().number };
    match heap.live().map(|live| live.start) {
        Some(LiveStart::WentOn) => println!("goes on from {}", number.load(Ordering::Relaxed)),
        Some(LiveStart::LastCut(why)) => println!("back to the last cut, {}: {why}", number.load(Ordering::Relaxed)),
        _ => println!("begins with {}", number.load(Ordering::Relaxed)),
    }
    if arguments.next().is_some() {
        return heap.close();
    }
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        number.fetch_add(1, Ordering::Relaxed);
    }
    println!("crash at {}", number.load(Ordering::Relaxed));
    std::process::abort()
}
