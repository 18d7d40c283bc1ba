//! A lock-free queue in a live heap: what was put in stays, however the program ends.
//! `live_queue HEAP THREADS [CUT_EVERY_MS]`; runs until it is killed, or its standard input ends.

use std::alloc::Layout;
use std::io::Read;
use std::process::ExitCode;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use untorn::heap::{Heap, HeapOptions, LiveStart, Storable};

const THREADS: usize = 8;

/// The queue of Michael and Scott. Links are addresses in the heap, which is always at the same place.
#[derive(Storable)]
#[repr(C)]
struct Queue {
    /// The oldest node that was not freed. Up to `head`, items are taken.
    oldest: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
    /// The last number that was taken, of each thread.
    taken: [AtomicU64; THREADS],
}

#[derive(Storable)]
#[repr(C)]
struct Node {
    next: AtomicU64,
    thread: u64,
    number: u64,
}

/// A node that is in the heap as long as the program runs.
fn node(address: u64) -> &'static Node {
    // SAFETY: nodes are freed before the threads begin, and by nobody else.
    unsafe { &*with_exposed_provenance::<Node>(address as usize) }
}

fn new_node(heap: &Heap, thread: u64, number: u64) -> untorn::Result<u64> {
    let place = heap.allocate(Layout::new::<Node>())?.cast::<Node>();
    // SAFETY: allocated just now with this layout.
    unsafe { place.write(Node { next: AtomicU64::new(0), thread, number }) };
    Ok(place.as_ptr().expose_provenance() as u64)
}

impl Queue {
    fn put(&self, new: u64) {
        loop {
            let tail = self.tail.load(Acquire);
            let next = node(tail).next.load(Acquire);
            if next != 0 {
                let _ = self.tail.compare_exchange(tail, next, SeqCst, Relaxed);
            } else if node(tail).next.compare_exchange(0, new, SeqCst, Relaxed).is_ok() {
                let _ = self.tail.compare_exchange(tail, new, SeqCst, Relaxed);
                return;
            }
        }
    }

    /// For one thread. False: the queue is empty.
    fn take(&self) -> bool {
        let head = self.head.load(Relaxed);
        let next = node(head).next.load(Acquire);
        if next == 0 {
            return false;
        }
        let Node { thread, number, .. } = node(next);
        assert_eq!(self.taken[*thread as usize].load(Relaxed) + 1, *number, "the order of thread {thread}");
        self.taken[*thread as usize].store(*number, Release);
        self.head.store(next, Release);
        true
    }

    /// Before the threads begin: the last number of each, in the queue or taken. Frees what was taken.
    fn recover(&self, heap: &Heap) -> untorn::Result<[u64; THREADS]> {
        let mut last = [0; THREADS];
        last.iter_mut().zip(&self.taken).for_each(|(last, taken)| *last = taken.load(Relaxed));
        let mut at = self.head.load(Relaxed);
        let mut is_first = true;
        while let next @ 1.. = node(at).next.load(Relaxed) {
            let Node { thread, number, .. } = node(next);
            // The program may have ended between the two stores of `take`.
            if is_first && last[*thread as usize] == *number {
                self.head.store(next, Relaxed);
            } else {
                assert_eq!(last[*thread as usize] + 1, *number, "the order of thread {thread}");
                last[*thread as usize] = *number;
            }
            (at, is_first) = (next, false);
        }
        self.tail.store(at, Relaxed);
        let mut oldest = self.oldest.load(Relaxed);
        while oldest != self.head.load(Relaxed) {
            let next = node(oldest).next.load(Relaxed);
            self.oldest.store(next, Relaxed);
            let place = std::ptr::NonNull::from(node(oldest)).cast();
            // SAFETY: nothing leads to the node any more. Freed after that: a program that ends here leaks it.
            unsafe { heap.free(place)? };
            oldest = next;
        }
        Ok(last)
    }
}

fn run() -> untorn::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "live_queue HEAP THREADS [CUT_EVERY_MS]";
    let (path, threads) = (args.next().expect(usage), args.next().and_then(|n| n.parse().ok()).expect(usage));
    assert!((1..=THREADS).contains(&threads), "1 to {THREADS} threads");
    let mut options = HeapOptions::new().create(true).live(true);
    if let Some(every) = args.next().and_then(|n| n.parse().ok()) {
        options = options.cut_every(Duration::from_millis(every));
    }
    let heap = options.open(path)?;
    match heap.live().expect("a live heap").start {
        LiveStart::New => println!("begun new"),
        LiveStart::WentOn => println!("begun went-on"),
        LiveStart::LastCut(why) => println!("begun last-cut {why}"),
    }
    let first = match heap.root::<Queue>("queue")? {
        Some(_) => 0,
        None => new_node(&heap, 0, 0)?,
    };
    let links = || [(); 3].map(|()| AtomicU64::new(first));
    let queue = heap.root_or("queue", |_| {
        let [oldest, head, tail] = links();
        Queue { oldest, head, tail, taken: [const { AtomicU64::new(0) }; THREADS] }
    })?;
    // SAFETY: a root of this type, of atomics.
    let queue = unsafe { queue.as_ref() };
    let last = {
        // A cut shows the queue before this or after it.
        let _held = heap.hold_cuts();
        queue.recover(&heap)?
    };
    (0..THREADS).for_each(|thread| println!("has {thread} {}", last[thread]));
    println!("ready");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (thread, last) in last.iter().take(threads).enumerate() {
            let (heap, stop) = (&heap, &stop);
            scope.spawn(move || {
                for number in last + 1.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    {
                        let _held = heap.hold_cuts();
                        queue.put(new_node(heap, thread as u64, number).expect("room for a node"));
                    }
                    println!("put {thread} {number}");
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let _held = heap.hold_cuts();
                queue.take();
            }
        });
        let _ = std::io::stdin().read(&mut [0]);
        stop.store(true, Relaxed);
    });
    heap.close()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
