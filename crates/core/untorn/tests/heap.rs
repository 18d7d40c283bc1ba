//! Heaps: allocation, restart, roll-back, roots, guards, damage.

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use untorn::Store;
use untorn::heap::{Heap, HeapMap, HeapOptions, HeapVec, InHeap, RootInfo, RootOptions, RootShape};

type Words<'h> = HeapMap<'h, u64, HeapVec<'h, u8>>;

/// The root that the tests use.
#[allow(clippy::mut_from_ref, reason = "the tests use it from one thread")]
fn words(heap: &Heap) -> &mut Words<'_> {
    let root = heap.root_or("words", Words::new_in).expect("root");
    // SAFETY: the tests use it from one thread.
    unsafe { &mut *root.as_ptr() }
}

fn value<'h>(heap: &'h Heap, bytes: &[u8]) -> HeapVec<'h, u8> {
    let mut value = HeapVec::new_in(heap.allocator());
    value.extend_from_slice(bytes);
    value
}

#[test]
fn collections_survive_a_restart_and_forget_what_was_not_committed() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    for n in 0..1000 {
        words(&heap).insert(n, value(&heap, &n.to_string().into_bytes()));
    }
    heap.commit().expect("commit");
    words(&heap).insert(7, value(&heap, b"not committed"));
    words(&heap).remove(&8);
    drop(heap);
    let heap = Heap::open(&path).expect("open");
    assert_eq!(words(&heap).len(), 1000);
    for n in 0..1000 {
        assert_eq!(words(&heap)[&n], n.to_string().as_bytes());
    }
    words(&heap).clear();
    // SAFETY: nothing that was allocated since is used.
    unsafe { heap.rollback() }.expect("rollback");
    assert_eq!(words(&heap)[&999], b"999");
    words(&heap).insert(1, value(&heap, b"one"));
    heap.commit().expect("commit");
    heap.close().expect("close");
    assert_eq!(words(&Heap::open(&path).expect("open"))[&1], b"one");
}

/// Random allocations against a model that records every block, with rollbacks and restarts.
#[test]
fn blocks_never_overlap_and_keep_their_contents() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let mut heap = Heap::open_or_create(&path).expect("create");
    type Model = BTreeMap<usize, (usize, u8)>;
    let (mut model, mut committed): (Model, Model) = (BTreeMap::new(), BTreeMap::new());
    let fill = |address: usize, bytes: usize, byte: u8| {
        // SAFETY: an allocation of this many bytes.
        unsafe { std::ptr::write_bytes(address as *mut u8, byte, bytes) };
    };
    let check = |model: &Model| {
        let mut end = 0;
        for (address, (bytes, byte)) in model {
            assert!(*address >= end, "seed {seed}: two blocks overlap at {address:#x}");
            end = address + bytes;
            // SAFETY: as above.
            let all = unsafe { std::slice::from_raw_parts(*address as *const u8, *bytes) };
            assert!(all.iter().all(|b| b == byte), "seed {seed}: a block of {bytes} bytes has lost its contents");
        }
    };
    for step in 0..3000 {
        match rng.u32(..100) {
            0..55 => {
                let bytes = match rng.u32(..100) {
                    0..80 => rng.usize(1..600),
                    80..95 => rng.usize(600..33_000),
                    95..99 => rng.usize(33_000..400_000),
                    _ => rng.usize(400_000..9_000_000),
                };
                let align = 1 << rng.u32(..if bytes > 4096 { 13 } else { 8 });
                let layout = Layout::from_size_align(bytes, align).expect("a layout");
                let block = heap.allocate(layout).expect("allocate").as_ptr() as usize;
                assert!(block.is_multiple_of(align), "alignment {align} of {block:#x}");
                assert!(heap.size_of(NonNull::new(block as *mut u8).unwrap()).expect("size") >= bytes);
                let byte = rng.u8(..);
                // Only a part of large ones, to save time.
                let bytes = bytes.min(100_000);
                fill(block, bytes, byte);
                assert!(model.insert(block, (bytes, byte)).is_none(), "seed {seed}: a block was given out twice");
            }
            55..95 => {
                let Some(address) = model.keys().nth(rng.usize(..model.len().max(1))).copied() else { continue };
                model.remove(&address);
                let address = NonNull::new(address as *mut u8).unwrap();
                // SAFETY: nobody uses it.
                unsafe { heap.free(address).expect("free") };
                // SAFETY: it is refused.
                refused(unsafe { heap.free(address) }, &["invalid"]);
            }
            95..97 => {
                heap.commit().expect("commit");
                committed.clone_from(&model);
            }
            97 => {
                // SAFETY: nothing that was allocated since is used.
                unsafe { heap.rollback() }.expect("rollback");
                model.clone_from(&committed);
                check(&model);
            }
            98 => {
                // SAFETY: no other thread uses the heap.
                unsafe { heap.reclaim() }.expect("quiesce");
            }
            _ => {
                heap.close().expect("close");
                heap = Heap::open(&path).expect("open");
                model.clone_from(&committed);
            }
        }
        if step % 200 == 0 {
            check(&model);
        }
    }
    check(&model);
    let (_, bytes) = heap.memory();
    println!("seed {seed}: {} blocks in {bytes} bytes", model.len());
}

#[test]
fn an_operation_changes_few_lines() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).expect("store");
    let heap = HeapOptions::new().create(true).open_in(&store, "heap").expect("heap");
    let layout = Layout::from_size_align(100, 8).expect("a layout");
    let blocks: Vec<_> = (0..100).map(|_| heap.allocate(layout).expect("allocate")).collect();
    heap.commit().expect("commit");
    let commits = 40;
    let before = store.status().journal_bytes_written;
    for block in &blocks[..commits] {
        // SAFETY: nobody uses it.
        unsafe { heap.free(*block).expect("free") };
        heap.commit().expect("commit");
        heap.allocate(layout).expect("allocate");
        heap.commit().expect("commit");
    }
    let each = (store.status().journal_bytes_written - before) / (2 * commits as u64);
    assert_eq!(each, 4096, "one block of journal for each");
    // A heap and ordinary files commit together.
    let other = store.open_or_create_file("other").expect("file");
    other.write_all_at(b"with it", 0).expect("write");
    let syncs = store.status().syncs;
    heap.allocate(layout).expect("allocate");
    heap.syncv(&[&other]).expect("commit");
    assert!(store.status().syncs <= syncs + 2, "one flush, and one for the new file's attribute");
}

#[test]
fn a_commit_of_a_heap_finds_the_stores_to_a_mapped_file_beside_it() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).expect("open");
    let heap = HeapOptions::new().create(true).open_in(&store, "heap").expect("create");
    let other = store.open_or_create_file("other").expect("create");
    other.set_len(8192).expect("size");
    let map = other.map().expect("map");
    map.msync().expect("msync");
    for round in 1..=3 {
        // SAFETY: inside the map, and nobody else is here.
        unsafe { map.as_mut_ptr().add(5000).write_volatile(round) };
        words(&heap).insert(1, value(&heap, &[round]));
        heap.syncv(&[&other]).expect("commit");
        store.checkpoint().expect("checkpoint");
        assert_eq!(plain(dir.path().join("other"))[5000], round);
    }
}

#[test]
fn roots_know_what_they_point_to() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let number = heap.root_or("number", |_| 42u64).expect("root");
    // SAFETY: as the type says.
    assert_eq!(unsafe { *number.as_ptr() }, 42);
    assert_eq!(heap.root::<u64>("other").expect("root"), None);
    let e = refused(heap.root::<i64>("number"), &["layout-changed"]);
    assert!(e.to_string().contains("u64") && e.to_string().contains("i64"), "{e}");
    refused(heap.root_with::<u64>("number", RootOptions::new().version(2)), &["layout-changed"]);
    let old = heap.root_info("number").expect("info").expect("a root");
    assert_eq!((old.size, old.version, old.address.cast()), (8, 0, number));
    heap.set_root_with("number", Some(number), RootOptions::new().version(2)).expect("set");
    assert_eq!(heap.root_with("number", RootOptions::new().version(2)).expect("root"), Some(number));
    assert_eq!(heap.roots().len(), 1);
    heap.set_root::<u64>("number", None).expect("remove");
    assert_eq!(heap.roots().len(), 0);
    refused(heap.root::<u64>(""), &["invalid"]);
    refused(heap.root::<u64>(&"x".repeat(48)), &["invalid"]);
    refused(heap.set_root("out", Some(NonNull::from(&seed()))), &["invalid"]);
}

/// The layout of a root changes: after a crash, all of the change is there, or none. The steps are those of the example
/// at `Heap::root_info`.
#[test]
fn a_migration_is_one_commit() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let old = heap.root_or("numbers", HeapVec::<u32>::new_in).expect("root");
    // SAFETY: this thread alone uses the roots.
    unsafe { &mut *old.as_ptr() }.extend(0..1000);
    heap.commit().expect("commit");
    let migrate = |heap: &Heap| {
        let info = heap.root_info("numbers").expect("info").expect("a root");
        assert_eq!((info.version, info.size), (0, size_of::<HeapVec<u32>>() as u64));
        refused(heap.root::<HeapVec<u64>>("numbers"), &["layout-changed"]);
        // SAFETY: the type that version 0 has there.
        let old = unsafe { info.address.cast::<HeapVec<u32>>().read() };
        let mut new = HeapVec::new_in(heap.allocator());
        new.extend(old.iter().map(|number| u64::from(*number) << 32));
        let place = heap.allocate(Layout::new::<HeapVec<u64>>()).expect("allocate").cast();
        // SAFETY: allocated just now with this layout.
        unsafe { place.write(new) };
        heap.set_root_with("numbers", Some(place), RootOptions::new().version(1)).expect("set");
        drop(old);
        // SAFETY: the old vector has just been dropped.
        unsafe { heap.free(info.address).expect("free") };
    };
    // Without a commit, the next program finds the old vector.
    migrate(&heap);
    drop(heap);
    let heap = Heap::open(&path).expect("open");
    migrate(&heap);
    heap.commit().expect("commit");
    drop(heap);
    let heap = Heap::open(&path).expect("open");
    refused(heap.root::<HeapVec<u32>>("numbers"), &["layout-changed"]);
    let new = heap.root_with::<HeapVec<u64>>("numbers", RootOptions::new().version(1)).expect("root").expect("a root");
    // SAFETY: as above.
    assert!(unsafe { new.as_ref() }.iter().copied().eq((0..1000).map(|number| number << 32)));
    let report = heap.check(&|_, _| {}).expect("check");
    assert!(report.is_sound());
    let used: u64 = report.classes.iter().map(|class| class.used).sum();
    assert_eq!(used, 2, "the vector and what is in it: the old ones are freed");
}

#[test]
fn a_commit_waits_for_those_that_change_the_heap() {
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let pair = heap.root_or("pair", |_| [0u64; 2]).expect("root").as_ptr() as usize;
    heap.commit().expect("commit");
    {
        let _outer = heap.mutate();
        let _inner = heap.mutate();
        refused(heap.commit(), &["invalid"]);
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for n in 0..2000 {
                    let _guard = heap.mutate();
                    // SAFETY: two words of the root; the test only needs them to be equal in a commit, and the threads
                    // store the same values.
                    unsafe {
                        (pair as *mut u64).write_volatile(n);
                        (pair as *mut u64).add(1).write_volatile(n);
                    }
                }
            });
        }
        for _ in 0..50 {
            heap.commit().expect("commit");
        }
    });
}

#[test]
fn what_is_no_heap_is_refused() {
    let dir = directory();
    let path = dir.path().join("heap");
    refused(Heap::open(&path), &["io"]);
    std::fs::write(&path, b"something else").expect("write");
    refused(Heap::open(&path), &["foreign"]);
    std::fs::remove_file(&path).expect("remove");
    let heap = Heap::open_or_create(&path).expect("create");
    refused(Heap::open(&path), &["busy"]);
    heap.close().expect("close");
    let good = plain(&path);
    // A copy of a heap has the same address.
    let copy = dir.path().join("copy");
    std::fs::write(&copy, &good).expect("write");
    let heap = Heap::open(&path).expect("open");
    let e = refused(Heap::open(&copy), &["invalid"]);
    assert!(e.to_string().contains("copy of it"), "{e}");
    heap.close().expect("close");
    for (at, kind) in
        [(0, "foreign"), (8, "newer-version"), (12, "corrupt"), (18, "corrupt"), (30, "corrupt"), (33, "corrupt")]
    {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&copy, &bad).expect("write");
        refused(Heap::open(&copy), &[kind]);
    }
    std::fs::write(&copy, &good[..good.len() - 1]).expect("write");
    refused(Heap::open(&copy), &["corrupt"]);
}

/// Damaged metadata leads to errors, and to nothing worse.
#[test]
fn a_damaged_heap_is_an_error() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let mut blocks = Vec::new();
    for (bytes, n) in [(10, 20), (100, 20), (1000, 20), (30_000, 5), (100_000, 3), (5_000_000, 1), (200, 20)] {
        let layout = Layout::from_size_align(bytes, 8).expect("a layout");
        blocks.extend((0..n).map(|_| heap.allocate(layout).expect("allocate")));
    }
    heap.commit().expect("commit");
    heap.close().expect("close");
    let good = plain(&path);
    for round in 0..60 {
        let mut bad = good.clone();
        for _ in 0..rng.usize(1..20) {
            let at = 4096 + rng.usize(..40_000 - 4096);
            bad[at] = if round % 2 == 0 { rng.u8(..) } else { bad[at] ^ (1 << rng.u32(..8)) };
        }
        std::fs::write(&path, &bad).expect("write");
        let heap = Heap::open(&path).expect("open");
        for block in &blocks {
            // SAFETY: nobody uses the block.
            let _ = unsafe { heap.free(*block) };
        }
        for bytes in [10, 1000, 100_000] {
            let _ = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout"));
        }
        heap.close().expect("close");
    }
}

/// Several threads drop their clones at the same moment: the heap is closed, and can be opened again.
#[test]
fn the_last_clone_closes_whichever_thread_has_it() {
    let dir = directory();
    let path = dir.path().join("heap");
    for _ in 0..400 {
        let heap = Heap::open_or_create(&path).expect("create");
        let ready = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for heap in [heap.clone(), heap] {
                scope.spawn(|| {
                    let heap = heap;
                    ready.fetch_add(1, SeqCst);
                    while ready.load(SeqCst) < 2 {
                        std::hint::spin_loop();
                    }
                    drop(heap);
                });
            }
        });
    }
    Heap::open(&path).expect("open").close().expect("close");
}

/// Handles in a heap, or of a closed heap, may outlive it in another thread. They return errors, and do not take the
/// next heap at that address for the old one.
#[test]
fn a_heap_that_another_thread_closes_is_an_error() {
    let dir = directory();
    let path = dir.path().join("heap");
    let layout = Layout::from_size_align(100, 8).expect("a layout");
    for round in 0..30 {
        let heap = Heap::open_or_create(&path).expect("create");
        // SAFETY: nothing that it allocates is used.
        let (weak, alloc) = (heap.downgrade(), unsafe { heap.allocator().unbound() });
        let made = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok(block) = weak.allocate(layout) {
                        made.fetch_add(1, SeqCst);
                        // SAFETY: nobody uses it.
                        match unsafe { weak.free(block) } {
                            Ok(()) => {}
                            Err(e) => assert_eq!(e.kind(), "closed"),
                        }
                    }
                    refused(weak.allocate(layout), &["closed"]);
                    refused(weak.begin_mutation(), &["closed"]);
                    assert!(allocator_api2::alloc::Allocator::allocate(&alloc, layout).is_err());
                });
            }
            while made.load(SeqCst) < 20 * (round + 1) {
                std::hint::spin_loop();
            }
            heap.close().expect("close");
        });
        // Another opening in the same registry entry, at the same address.
        let heap = Heap::open(&path).expect("open");
        refused(weak.allocate(layout), &["closed"]);
        refused(weak.begin_mutation(), &["closed"]);
        refused(weak.end_mutation().map(drop), &["closed"]);
        assert!(allocator_api2::alloc::Allocator::allocate(&alloc, layout).is_ok());
        heap.commit().expect("commit");
    }
}

/// A change that a thread never ends keeps its own heap from being committed, but no other heap.
#[test]
fn a_change_that_never_ends_is_its_own_heaps_affair() {
    let dir = directory();
    for n in 0..3 {
        let heap = Heap::open_or_create(dir.path().join(n.to_string())).expect("create");
        heap.commit().expect("commit");
        heap.downgrade().begin_mutation().expect("begin");
        refused(heap.commit(), &["invalid"]);
    }
    // Guards of several heaps in one thread.
    let (a, b) = (
        Heap::open_or_create(dir.path().join("a")).expect("a"),
        Heap::open_or_create(dir.path().join("b")).expect("b"),
    );
    {
        let _a = a.mutate();
        let _b = b.mutate();
        let _a_again = a.mutate();
        refused(a.commit(), &["invalid"]);
        refused(b.commit(), &["invalid"]);
    }
    assert!(!a.downgrade().end_mutation().expect("end"));
    a.commit().expect("commit");
    b.commit().expect("commit");
}

#[test]
fn a_root_of_an_older_program_is_migrated_in_one_commit() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    heap.root_or("count", |_| 7u32).expect("root");
    heap.commit().expect("commit");
    let second = RootOptions::new().version(2);
    let fails = |_, alloc| {
        HeapVec::<u8>::with_capacity_in(1000, alloc).leak();
        Err(untorn::Error::Closed)
    };
    // SAFETY: nothing else in the heap is used meanwhile; this holds for the calls below, too.
    let failed = unsafe { heap.migrate_root::<u64>("count", second, fails) };
    refused(failed, &["closed"]);
    assert_eq!(heap.stats().expect("stats").allocations, 1, "rolled back");
    // The migration is committed even if the program ends without a commit of its own.
    for heap in [heap.clone(), heap] {
        let count = {
            let migrate = |old: RootInfo, _: InHeap<'_>| {
                assert_eq!((old.type_name.as_str(), old.size, old.version), ("u32", 4, 0));
                // SAFETY: version 0 has put this type there.
                Ok(u64::from(unsafe { old.address.cast::<u32>().read() }) * 10)
            };
            // SAFETY: as above.
            unsafe { heap.migrate_root("count", second, migrate) }
        };
        // SAFETY: as the type says.
        assert_eq!(unsafe { count.expect("migrate").expect("a root").read() }, 70);
    }
    let heap = Heap::open(&path).expect("open");
    assert!(heap.root_with::<u64>("count", second).expect("root").is_some());
    let none = {
        // SAFETY: as above.
        unsafe { heap.migrate_root::<u64>("none", second, |_, _| unreachable!("there is none")) }
    };
    assert_eq!(none.expect("migrate"), None);
}

#[test]
fn stats_count_what_was_allocated() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let mut blocks = Vec::new();
    for _ in 0..300 {
        let bytes = match rng.u32(..100) {
            0..80 => rng.usize(1..3000),
            80..98 => rng.usize(3000..200_000),
            _ => 5_000_000,
        };
        blocks.push(heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("allocate"));
        if rng.u32(..3) == 0 {
            // SAFETY: nobody uses it.
            unsafe { heap.free(blocks.swap_remove(rng.usize(..blocks.len()))).expect("free") };
        }
    }
    heap.root_or("root", |_| 0u64).expect("root");
    let stats = heap.stats().expect("stats");
    let used: usize = blocks.iter().map(|block| heap.size_of(*block).expect("size")).sum();
    assert_eq!((stats.allocations, stats.used_bytes), (blocks.len() as u64 + 1, used as u64 + 16), "seed {seed}");
    assert_eq!((stats.heap_bytes, stats.roots), (heap.memory().1 as u64, 1));
    assert!(stats.used_bytes + stats.free_bytes < stats.heap_bytes && stats.private_bytes > 0, "{stats:?}");
    assert_eq!(stats.address_space_bytes, 64 << 30);
    // All of the space comes back.
    for block in blocks {
        // SAFETY: nobody uses it.
        unsafe { heap.free(block).expect("free") };
    }
    let empty = heap.stats().expect("stats");
    assert_eq!((empty.allocations, empty.used_bytes), (1, 16));
    assert!(empty.free_bytes > stats.free_bytes && empty.heap_bytes == stats.heap_bytes);
}

/// Stores without a guard while commits run: the debug mode finds one, and reports its address.
#[test]
fn a_store_during_a_commit_is_reported_with_its_address() {
    let dir = directory();
    let heap = HeapOptions::new().create(true).debug_races(true).open(dir.path().join("heap")).expect("create");
    let layout = Layout::from_size_align(4096, 4096).expect("a layout");
    let address = heap.allocate(layout).expect("allocate").as_ptr() as usize + 77;
    // So large that the other thread gets to run while it is copied, also if there is one processor.
    let large = Layout::from_size_align(16 << 20, 4096).expect("a layout");
    let behind = heap.allocate(large).expect("allocate");
    heap.commit().expect("commit");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let reported = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0u8..=255).cycle() {
                // SAFETY: an allocation of the heap, which outlives the thread.
                unsafe { (address as *mut u8).write_volatile(n) };
                if stop.load(SeqCst) {
                    break;
                }
            }
        });
        // SAFETY: as above.
        let stored = || unsafe { (address as *const u8).read_volatile() };
        let end = Instant::now() + Duration::from_secs(120);
        let reported = (0u8..=255).cycle().take_while(|_| Instant::now() < end).find_map(|n| {
            // SAFETY: an allocation of this size, which only this thread uses.
            unsafe { behind.as_ptr().write_bytes(n, large.size()) };
            // Waits until there is something to commit.
            let before = stored();
            while stored() == before {
                std::thread::yield_now();
            }
            heap.commit().err()
        });
        stop.store(true, SeqCst);
        reported
    });
    match reported {
        Some(untorn::Error::RacingStore { address: at, .. }) => assert_eq!(at, address),
        other => panic!("{other:?}"),
    }
    // Under the guard no store is reported. Threads that take the guard in turns without end do not starve the commits.
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    let _guard = heap.mutate();
                    // SAFETY: as above.
                    unsafe { (*(address as *const std::sync::atomic::AtomicU8)).fetch_add(1, SeqCst) };
                }
            });
        }
        for _ in 0..100 {
            heap.commit().expect("commit");
        }
        done.store(true, SeqCst);
    });
}

#[test]
fn several_heaps_lie_where_the_program_says() {
    // A heap of another test may be at one of these addresses.
    if !untorn_testkit::is_alone!("several_heaps_lie_where_the_program_says") {
        return;
    }
    let dir = directory();
    let base = 18 << 40;
    let place = |n: usize| base + n * (64 << 30);
    let at = |n: usize| HeapOptions::new().create(true).address(place(n));
    let heaps: Vec<Heap> = (0..3).map(|n| at(n).open(dir.path().join(format!("heap{n}"))).expect("open")).collect();
    for (n, heap) in heaps.iter().enumerate() {
        assert_eq!(heap.memory().0.as_ptr() as usize, place(n));
    }
    // Addresses that are taken, partly taken, or not for heaps.
    refused(at(1).open(dir.path().join("other")), &["invalid"]);
    refused(at(1).address(base + (4 << 20)).open(dir.path().join("other")), &["invalid"]);
    for wrong in [4096, base + 4096, 31 << 40, usize::MAX] {
        refused(HeapOptions::new().create(true).address(wrong).open(dir.path().join("other")), &["invalid"]);
    }
    drop(heaps);
    // From then on the address is the heap's own.
    refused(HeapOptions::new().create(true).address(base + (1 << 40)).open(dir.path().join("heap2")), &["invalid"]);
    let again = HeapOptions::new().create(true).address(place(2)).open(dir.path().join("heap2")).expect("open");
    assert_eq!(again.memory().0.as_ptr() as usize, place(2));
}

/// If two types' names differ only in the checksum of their members, the message says so in words.
#[test]
fn members_that_changed_are_told_in_words() {
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("open");
    let shape = |type_name| RootShape { type_name, layout: Layout::new::<u64>(), version: 0 };
    let place = heap.allocate(Layout::new::<u64>()).expect("allocate");
    heap.put_root("people", Some(place), &shape("map<string, person> [layout 68718cbc391e340d]")).expect("set");
    let found = heap.find_root("people", &shape("map<string, person> [layout 66cb9f7ed9da685d]"));
    let text = refused(found, &["layout-changed"]).to_string();
    assert!(text.contains("the members of map<string, person>, or of a type in it, have changed"), "{text}");
    assert!(!text.contains("[layout"), "{text}");
}

#[test]
fn heaps_that_one_process_made_can_be_open_together() {
    let dir = directory();
    let path = |n: usize| dir.path().join(format!("heap{n}"));
    for n in 0..60 {
        Heap::open_or_create(path(n)).expect("create").close().expect("close");
    }
    let all: Vec<Heap> = (0..60).map(|n| Heap::open(path(n)).expect("open, at its own place")).collect();
    assert_eq!(all.len(), 60);
}
