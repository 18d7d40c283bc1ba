//! Heaps and threads: stores without a guard, roots, allocation, and threads that wait for a commit.

mod common;

use common::*;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions};
use untorn::{Error, TrackerKind};

/// Counters on pages of their own.
const COUNTERS: usize = 2048;
const PAGE_BYTES: usize = 4096;
const DIRTY_MAX: u64 = 64 << 10;

fn counters(heap: &Heap) -> Vec<&AtomicU64> {
    let layout = Layout::from_size_align(COUNTERS * PAGE_BYTES, PAGE_BYTES).expect("a layout");
    let first = heap.allocate(layout).expect("allocate");
    // SAFETY: this many bytes were allocated.
    unsafe { first.write_bytes(0, layout.size()) };
    // SAFETY: within the allocation, which nobody frees; a counter is only used as one.
    (0..COUNTERS).map(|n| unsafe { first.add(n * PAGE_BYTES).cast::<AtomicU64>().as_ref() }).collect()
}

fn private_bytes(heap: &Heap) -> u64 {
    heap.file().store().status().maps[0].private_bytes
}

/// Runs threads that count while another one commits, with more changes than `dirty_max`.
fn count(heap: &Heap, guards: bool) {
    const INCREMENTS: usize = 10_000;
    let seed = seed();
    let counters = counters(heap);
    heap.commit().expect("commit");
    let running = AtomicU64::new(2);
    let counted = std::thread::scope(|scope| {
        let threads = [1, 2].map(|thread| {
            let (counters, running) = (&counters, &running);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed ^ thread);
                let mut counted = vec![0; COUNTERS];
                for _ in 0..INCREMENTS {
                    // Slowly: a page is dropped only if nobody stored to it since the commit.
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(15) {
                        std::hint::spin_loop();
                    }
                    let n = rng.usize(..COUNTERS);
                    let _guard = guards.then(|| heap.mutate());
                    counters[n].fetch_add(1, SeqCst);
                    counted[n] += 1;
                }
                running.fetch_sub(1, SeqCst);
                counted
            })
        });
        while running.load(SeqCst) > 0 {
            heap.commit().expect("commit");
        }
        threads.map(|thread| thread.join().expect("a thread"))
    });
    let lost = (0..COUNTERS).filter(|n| counters[*n].load(SeqCst) != counted[0][*n] + counted[1][*n]).count();
    assert_eq!(lost, 0, "counters that lost increments, of {COUNTERS}");
}

/// Without the promise, nothing is dropped from memory, because any thread may be storing there.
#[test]
fn a_store_without_a_guard_is_never_undone() {
    for tracker in [TrackerKind::Scan, TrackerKind::PageMap] {
        let dir = directory();
        let options = HeapOptions::new().create(true).dirty_max(DIRTY_MAX).tracker(tracker);
        let heap = match options.open(dir.path().join("heap")) {
            Err(Error::Unsupported { .. }) => continue,
            heap => heap.expect("create"),
        };
        count(&heap, false);
    }
}

/// With the promise, memory is dropped, and no store under a guard is lost.
#[test]
fn a_store_under_a_guard_is_never_undone() {
    for tracker in [TrackerKind::Scan, TrackerKind::PageMap] {
        let dir = directory();
        // SAFETY: each store below is under a guard, or in the thread that commits.
        let options = unsafe { HeapOptions::new().create(true).quiet(true) }.dirty_max(DIRTY_MAX).tracker(tracker);
        let heap = match options.open(dir.path().join("heap")) {
            Err(Error::Unsupported { .. }) => continue,
            heap => heap.expect("create"),
        };
        count(&heap, true);
        heap.commit().expect("commit");
        assert!(private_bytes(&heap) <= 2 * DIRTY_MAX, "{tracker}: {} bytes are private", private_bytes(&heap));
    }
}

/// Asynchronous commits drop memory, too.
#[test]
fn asynchronous_commits_keep_to_dirty_max() {
    let dir = directory();
    // SAFETY: one thread uses the heap.
    let options = unsafe { HeapOptions::new().create(true).quiet(true) }.dirty_max(DIRTY_MAX);
    let heap = options.open(dir.path().join("heap")).expect("create");
    let counters = counters(&heap);
    for _ in 0..5 {
        for lot in counters.chunks(8) {
            lot.iter().for_each(|counter| _ = counter.fetch_add(1, SeqCst));
            drop(heap.commit_async().expect("commit"));
        }
        assert!(private_bytes(&heap) <= 3 * DIRTY_MAX, "{} bytes are private", private_bytes(&heap));
    }
    assert!(counters.iter().all(|counter| counter.load(SeqCst) == 5));
}

/// With `debug_guards`, an allocation or a free without a guard is refused, and so is the next commit.
#[test]
fn debug_guards_finds_who_has_none() {
    let dir = directory();
    let heap = HeapOptions::new().create(true).debug_guards(true).open(dir.path().join("heap")).expect("create");
    let layout = Layout::from_size_align(100, 8).expect("a layout");
    let block = {
        let _guard = heap.mutate();
        heap.allocate(layout).expect("under a guard")
    };
    heap.commit().expect("commit");
    refused(heap.allocate(layout), &["invalid"]);
    let e = refused(heap.commit(), &["invalid"]);
    assert!(e.to_string().contains("without a mutation guard"), "{e}");
    heap.commit().expect("the next one");
    // SAFETY: nobody uses it.
    refused(unsafe { heap.free(block) }, &["invalid"]);
    refused(heap.commit_async(), &["invalid"]);
    let _guard = heap.mutate();
    // SAFETY: as above.
    unsafe { heap.free(block) }.expect("under a guard");
}

/// Two threads set roots, and both create the same one: no root is lost, and there is one object.
#[test]
fn roots_that_threads_set_at_once() {
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let arrived = AtomicU64::new(0);
    // As close together as possible.
    let meet = |nth: u64| {
        arrived.fetch_add(1, SeqCst);
        while arrived.load(SeqCst) < 2 * nth {
            std::thread::yield_now();
        }
    };
    let both: [AtomicU64; 2] = Default::default();
    let work = |thread: u64| {
        for round in 0..3000 {
            let name = format!("of {thread}");
            meet(3 * round + 1);
            heap.root_or(&name, |_| thread).expect("a root of its own");
            let found = heap.root_or("of both", |_| thread).expect("a root of both");
            both[thread as usize].store(found.as_ptr() as u64, SeqCst);
            meet(3 * round + 2);
            let root = heap.root::<u64>(&name).expect("look").unwrap_or_else(|| panic!("the root {name} is lost"));
            // SAFETY: the number that this thread has made.
            assert_eq!(unsafe { root.read() }, thread);
            assert_eq!(both[0].load(SeqCst), both[1].load(SeqCst), "round {round}: two objects for one name");
            meet(3 * round + 3);
            heap.set_root::<u64>(&name, None).expect("remove");
            heap.set_root::<u64>("of both", None).expect("remove");
        }
    };
    let failed = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| {
            let work = &work;
            let arrived = &arrived;
            scope.spawn(move || {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(thread)));
                // If this thread panics, the other one must not wait for ever.
                arrived.fetch_add(if done.is_err() { 1 << 32 } else { 0 }, SeqCst);
                done.is_err()
            })
        });
        threads.into_iter().any(|thread| thread.join().expect("caught above"))
    });
    assert!(!failed);
}

/// Threads allocate, pass blocks to each other, and free, while others commit and roll back.
#[test]
fn blocks_that_threads_pass_on() {
    const BLOCKS: usize = 64;
    let seed = seed();
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    // Each place has a block with the block's own number and size in it, or nothing.
    let places: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let fill = |block: NonNull<u8>, bytes: usize| {
        let word = block.as_ptr() as u64 ^ bytes as u64;
        // SAFETY: at least this many bytes.
        unsafe {
            block.cast::<u64>().write(word);
            block.cast::<u64>().add(1).write(bytes as u64);
            block.add(bytes - 1).write(word as u8);
        }
    };
    let check = |block: NonNull<u8>| {
        // SAFETY: filled above, and this thread's now.
        unsafe {
            let (word, bytes) = (block.cast::<u64>().read(), block.cast::<u64>().add(1).read());
            assert_eq!(word, block.as_ptr() as u64 ^ bytes, "seed {seed}: a block was given out twice");
            if bytes != 17 {
                assert_eq!(block.add(bytes as usize - 1).read(), word as u8);
            }
        }
    };
    let running = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (heap, places, running) = (&heap, &places, &running);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed + thread);
                for _ in 0..8000 {
                    let _guard = heap.mutate();
                    let bytes = match rng.u32(..200) {
                        0 => rng.usize(70_000..400_000),
                        1..20 => rng.usize(2000..33_000),
                        _ => rng.usize(24..400),
                    };
                    let new = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("allocate");
                    fill(new, bytes);
                    let old = places[rng.usize(..BLOCKS)].swap(new.as_ptr() as u64, SeqCst);
                    if let Some(old) = NonNull::new(old as *mut u8) {
                        check(old);
                        heap.size_of(old).expect("size");
                        // SAFETY: taken out of its place.
                        unsafe { heap.free(old) }.expect("free");
                    }
                }
                running.fetch_sub(1, SeqCst);
            });
        }
        while running.load(SeqCst) > 0 {
            heap.commit().expect("commit");
        }
    });
    heap.commit().expect("commit");
    let report = heap.check(&|_, _| {}).expect("check");
    assert!(report.is_sound(), "{:?}", report.problems);
    let used: u64 = report.classes.iter().map(|class| class.used).sum();
    let held = places.iter().filter(|place| place.load(SeqCst) != 0).count() as u64;
    assert_eq!(used + report.large.count, held, "seed {seed}: blocks that nobody has");
    // After the rollback the blocks are allocated again, whichever thread had freed them.
    let all: Vec<u64> = places.iter().map(|place| place.load(SeqCst)).filter(|block| *block != 0).collect();
    std::thread::scope(|scope| {
        for half in all.chunks(all.len().div_ceil(2)) {
            let heap = &heap;
            scope.spawn(move || {
                for block in half {
                    // SAFETY: nobody uses it.
                    unsafe { heap.free(NonNull::new(*block as *mut u8).expect("a block")) }.expect("free");
                    heap.allocate(Layout::from_size_align(50, 8).expect("a layout")).expect("allocate");
                }
            });
        }
    });
    // SAFETY: no block is used that was allocated since.
    unsafe { heap.rollback() }.expect("rollback");
    for block in all {
        check(NonNull::new(block as *mut u8).expect("a block"));
        heap.size_of(NonNull::new(block as *mut u8).expect("a block")).expect("size");
    }
    assert!(heap.check(&|_, _| {}).expect("check").is_sound());
}

/// A thread ends in the middle of a change: commits do not wait for it, and they are refused, because the change may be
/// half done.
#[test]
fn a_thread_that_ends_with_a_guard_spoils_the_commit() {
    let dir = directory();
    let heaps = ["one", "other"].map(|name| HeapOptions::new().create(true).open(dir.path().join(name)).unwrap());
    let counters = heaps.each_ref().map(|heap| counters(heap)[0]);
    for heap in &heaps {
        heap.commit().unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than one guard, and one of them twice.
            for heap in [&heaps[0], &heaps[1], &heaps[0]] {
                std::mem::forget(heap.mutate());
            }
            counters.iter().for_each(|counter| counter.store(1, SeqCst));
        });
    });
    for (heap, counter) in heaps.iter().zip(counters) {
        let refused = heap.commit().unwrap_err().to_string();
        assert!(refused.starts_with("a thread ended while it held a mutation guard"), "{refused}");
        assert!(heap.commit_async().is_err() && counter.load(SeqCst) == 1, "nothing was taken back by itself");
        // SAFETY: nobody uses the changed data.
        unsafe { heap.rollback() }.unwrap();
        assert_eq!(counter.load(SeqCst), 0);
        drop(heap.mutate());
        counter.store(2, SeqCst);
        heap.commit().unwrap();
    }
    for heap in heaps {
        heap.close().unwrap();
    }
}
