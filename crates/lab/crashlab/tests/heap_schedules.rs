//! Two threads that change a heap, and one that commits it, under a scheduler that runs one thread at a time and tries
//! interleavings, at random and by priorities (PCT). At the end, and at a moment in the middle, the power is cut: the
//! heap must be sound, each block reached, and none allocated twice.
//!
//! A failing schedule prints its seed and itself; `SHUTTLE_RANDOM_SEED` runs it again. `UNTORN_SHUTTLE_SECONDS` gives
//! each scheduler more time than its three seconds.

mod hooked;

use hooked::Hooked;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{Config, Runner, thread};
use std::alloc::Layout;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn::__private::OpenStoreOn;
use untorn::heap::{Heap, HeapOptions};
use untorn::{Store, StoreOptions};
use untorn_crashlab::{Options, SimDisk};
use untorn_journal::directories::store_dir::StoreDir;

const SEED: u64 = 0x4ea9;
const BATCH: usize = 20;
/// The schedules that are tried whatever the time.
const LEAST: usize = 40;
const PCT_DEPTH: usize = 3;
const PLACES: usize = 6;
const STEPS: usize = 5;

/// Blocks that the threads pass to each other.
type Table = [u64; PLACES];

struct SeedOfFailure(&'static str, u64);

impl Drop for SeedOfFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed {}, in the schedules of SHUTTLE_RANDOM_SEED={}", self.0, self.1);
        }
    }
}

fn open(disk: &SimDisk) -> (Store, Heap) {
    // Every call of the storage is a point where another thread may run, like an access to an atomic.
    let point = AtomicU64::new(0);
    let storage = Arc::new(Hooked::over(disk.spawn(), Arc::new(move |_| _ = point.load(SeqCst))));
    let options = StoreOptions::new().create(true).sizes(48 << 10, 16 << 10, 8 << 10);
    let store = options.open_on(storage, StoreDir::of_directory(), PathBuf::new()).expect("a store");
    let heap = HeapOptions::new().create(true).address_space(32 << 20).open_in(&store, "heap").expect("a heap");
    (store, heap)
}

fn table(heap: &Heap) -> *mut Table {
    heap.root_or::<Table>("table", |_| [0; PLACES]).expect("a root").as_ptr()
}

/// The words at both ends of a block.
fn words(block: u64, bytes: u64) -> (u64, u64) {
    (block ^ bytes.rotate_left(32), bytes)
}

fn check(block: u64) {
    let at = block as *const u64;
    // SAFETY: a block that a thread filled and nobody has freed, if the heap is right; its first page is mapped in any
    // case.
    let (word, bytes) = unsafe { (at.read(), at.add(1).read()) };
    assert_eq!((word, bytes), words(block, bytes), "the block at {block:#x} is somebody else's, too");
}

/// Each step frees the block in a place, and puts another block there, in one change.
fn change(heap: &Heap, table: usize) {
    let table = table as *mut Table;
    for _ in 0..STEPS {
        let sizes = [24, 24, 40, 3000, 32_000, 70_000];
        let (place, bytes) = (thread_rng().gen_range(0..PLACES), sizes[thread_rng().gen_range(0..sizes.len())]);
        let _guard = heap.mutate();
        let block = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("a block");
        let (word, len) = words(block.as_ptr() as u64, bytes as u64);
        // SAFETY: this many bytes were allocated; only one thread at a time takes a place, as the scheduler does not
        // switch here.
        let old = unsafe {
            block.cast::<u64>().write(word);
            block.cast::<u64>().add(1).write(len);
            std::mem::replace(&mut (*table)[place], block.as_ptr() as u64)
        };
        if let Some(old) = NonNull::new(old as *mut u8) {
            check(old.as_ptr() as u64);
            // SAFETY: taken out of its place.
            unsafe { heap.free(old) }.expect("a block that was given out");
        }
    }
}

fn check_heap(heap: &Heap) {
    let report = heap.check(&|_, _| {}).expect("a heap that can be read");
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.leaks.expect("looked for").count, 0, "blocks that no place has");
    if heap.root::<Table>("table").expect("a root").is_some() {
        let table = table(heap);
        // SAFETY: no thread changes it.
        unsafe { *table }.into_iter().filter(|block| *block != 0).for_each(check);
    }
}

fn scenario() {
    let seed: u64 = thread_rng().r#gen();
    let disk = SimDisk::new(Options { memory: true, seed, ..Options::default() });
    let (store, heap) = open(&disk);
    let address = table(&heap) as usize;
    heap.commit().expect("a commit");
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let heap = heap.clone();
            thread::spawn(move || change(&heap, address))
        })
        .collect();
    let mut midst = None;
    for n in 0..4 {
        match n {
            2 => drop(heap.commit_async().expect("a commit")),
            _ => heap.commit().expect("a commit"),
        }
        if midst.is_none() && thread_rng().gen_range(0..2) == 0 {
            midst = Some(disk.fork());
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a thread that ends well"));
    check_heap(&heap);
    if thread_rng().gen_range(0..2) == 0 {
        change(&heap, address);
        // SAFETY: blocks that were allocated since the last commit are not used.
        unsafe { heap.rollback() }.expect("a rollback");
        check_heap(&heap);
        change(&heap, address);
    }
    heap.commit().expect("a commit");
    check_heap(&heap);
    let end = disk.fork();
    disk.kill();
    drop((heap, store));
    for disk in midst.into_iter().chain([end]) {
        let (store, heap) = open(&disk);
        check_heap(&heap);
        heap.close().expect("closed");
        store.close().expect("closed");
    }
}

#[test]
fn threads_change_a_heap_that_is_committed() {
    let seconds = std::env::var("UNTORN_SHUTTLE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let run = |how: &'static str, scheduler: fn(u64) -> Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 512 << 10;
        config.silence_warnings = true;
        config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
        let (start, mut seed, mut schedules) = (Instant::now(), SEED, 0);
        while schedules < LEAST || start.elapsed() < Duration::from_secs(seconds) {
            let _seed = SeedOfFailure(how, seed);
            schedules += Runner::new(scheduler(seed), config.clone()).run(scenario);
            seed += 1;
        }
        println!("{schedules} schedules {how}, seeds {SEED:#x} to {:#x}", seed - 1);
    };
    run("by chance", |seed| Box::new(RandomScheduler::new_from_seed(seed, BATCH)));
    run("by priorities", |seed| Box::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, BATCH)));
}
