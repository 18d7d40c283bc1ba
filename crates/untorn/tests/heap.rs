//! Heaps: allocation, restart, roll-back, roots, guards, damage.

mod common;

use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use untorn::{Heap, HeapOptions, HeapVec, InHeap, RootOptions, Store};

type Words = hashbrown::HashMap<u64, HeapVec<u8>, std::hash::BuildHasherDefault<std::hash::DefaultHasher>, InHeap>;

/// The root that the tests use.
fn words(heap: &Heap) -> &'static mut Words {
    let root =
        heap.root_or("words", |alloc| Words::with_capacity_and_hasher_in(1, Default::default(), alloc)).expect("root");
    // SAFETY: the tests use it from one thread, and not after the heap is closed.
    unsafe { &mut *root.as_ptr() }
}

fn value(heap: &Heap, bytes: &[u8]) -> HeapVec<u8> {
    let mut value = HeapVec::new_in(heap.allocator());
    value.extend_from_slice(bytes);
    value
}

#[test]
fn collections_survive_a_restart_and_forget_what_was_not_committed() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::create(&path).expect("create");
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
    heap.rollback().expect("rollback");
    assert_eq!(words(&heap)[&999], b"999");
    words(&heap).insert(1, value(&heap, b"one"));
    heap.commit().expect("commit");
    heap.close().expect("close");
    assert_eq!(words(&Heap::open(&path).expect("open"))[&1], b"one");
}

/// Random allocations against a model that knows every block, with roll-backs and restarts.
#[test]
fn blocks_never_overlap_and_keep_their_contents() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let mut heap = Heap::create(&path).expect("create");
    type Model = BTreeMap<usize, (usize, u8)>;
    let (mut model, mut committed): (Model, Model) = (BTreeMap::new(), BTreeMap::new());
    let fill = |address: usize, bytes: usize, byte: u8| {
        // SAFETY: an allocation of so many bytes.
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
                // Of large ones a part, for the sake of time.
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
                heap.rollback().expect("rollback");
                model.clone_from(&committed);
                check(&model);
            }
            98 => {
                heap.quiesce().expect("quiesce");
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
    let store = Store::open(dir.path()).expect("store");
    let heap = HeapOptions::new().open_in(&store, "heap").expect("heap");
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
    let other = store.create("other").expect("file");
    other.write_at(b"with it", 0).expect("write");
    let syncs = store.status().syncs;
    heap.allocate(layout).expect("allocate");
    heap.commit_with(&[&other]).expect("commit");
    assert!(store.status().syncs <= syncs + 2, "one flush, and one for the new file's attribute");
}

#[test]
fn roots_know_what_they_point_to() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::create(&path).expect("create");
    let number = heap.root_or("number", |_| 42u64).expect("root");
    // SAFETY: as the type says.
    assert_eq!(unsafe { *number.as_ptr() }, 42);
    assert_eq!(heap.root::<u64>("other").expect("root"), None);
    let e = refused(heap.root::<i64>("number"), &["invalid"]);
    assert!(e.to_string().contains("u64") && e.to_string().contains("i64"), "{e}");
    refused(heap.root_with::<u64>("number", RootOptions::new().version(2)), &["invalid"]);
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

#[test]
fn a_commit_waits_for_those_that_change_the_heap() {
    let dir = directory();
    let heap = Heap::create(dir.path().join("heap")).expect("create");
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
                    // SAFETY: two words of the root; what they hold is of no interest but to be the same in a commit,
                    // and the threads store the same values.
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
    let heap = Heap::create(&path).expect("create");
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

/// Damaged metadata: errors, nothing worse.
#[test]
fn a_damaged_heap_is_an_error() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::create(&path).expect("create");
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
            // SAFETY: nobody uses what is there.
            let _ = unsafe { heap.free(*block) };
        }
        for bytes in [10, 1000, 100_000] {
            let _ = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout"));
        }
        heap.close().expect("close");
    }
}

/// Clones that go at the same moment in several threads: the heap is closed, and can be opened again.
#[test]
fn the_last_clone_closes_whichever_thread_has_it() {
    let dir = directory();
    let path = dir.path().join("heap");
    for _ in 0..400 {
        let heap = Heap::create(&path).expect("create");
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
