//! Heaps with the tracker `explicit`: the program declares its stores, and the heap declares its own.

mod common;

use common::*;
use std::alloc::Layout;
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapOptions, HeapVec};
use untorn::{Error, TrackerKind};

fn open(path: &std::path::Path) -> Heap {
    HeapOptions::new().create(true).tracker(TrackerKind::Explicit).open(path).expect("open")
}

/// An object of a list.
#[repr(C)]
struct Node {
    value: u64,
    next: *mut Node,
}

fn push(heap: &Heap, head: &mut *mut Node, value: u64) {
    let _together = heap.mutate();
    let node = heap.allocate(Layout::new::<Node>()).expect("memory").cast::<Node>();
    // SAFETY: allocated just now with this layout.
    unsafe { node.write(Node { value, next: *head }) };
    heap.mark_dirty(node.as_ptr().cast(), size_of::<Node>()).expect("a node");
    *head = node.as_ptr();
    heap.mark_dirty_value(head).expect("the head");
}

fn values(head: *mut Node) -> Vec<u64> {
    let (mut values, mut at) = (Vec::new(), head);
    // SAFETY: nodes of the list, which this thread alone uses.
    while let Some(node) = unsafe { at.as_ref() } {
        values.push(node.value);
        at = node.next;
    }
    values
}

#[allow(clippy::mut_from_ref, reason = "one thread uses the heap")]
fn head_of(heap: &Heap) -> &mut *mut Node {
    let place = match heap.root::<u64>("list").expect("a root") {
        Some(place) => place,
        None => heap.root_or("list", |_| 0u64).expect("a root"),
    };
    // SAFETY: eight bytes of the heap, which this thread alone uses.
    unsafe { &mut *place.as_ptr().cast() }
}

#[test]
fn a_heap_that_is_told_is_whole_after_each_opening() {
    let dir = directory();
    let path = dir.path().join("heap");
    let mut wanted = Vec::new();
    for round in 0..6u64 {
        let heap = open(&path);
        let head = head_of(&heap);
        assert_eq!(values(*head), wanted, "round {round}");
        for n in 0..3000 {
            push(&heap, head, round * 10_000 + n);
            wanted.insert(0, round * 10_000 + n);
        }
        heap.commit().expect("commit");
        // A rollback, in memory and in the allocator's state.
        (0..50).for_each(|n| push(&heap, head, n));
        // SAFETY: nothing that was made since the commit is used.
        unsafe { heap.rollback().expect("rollback") };
        let head = head_of(&heap);
        assert_eq!(values(*head), wanted, "round {round}, rolled back");
        // Some nodes are freed.
        let freed = 1000;
        {
            let _together = heap.mutate();
            for _ in 0..freed {
                // SAFETY: the first node of the list, which nothing else knows.
                unsafe {
                    let first = NonNull::new(*head).expect("a node");
                    *head = first.as_ref().next;
                    heap.free(first.cast()).expect("free");
                }
            }
            heap.mark_dirty_value(head).expect("the head");
        }
        wanted.drain(..freed);
        heap.commit().expect("commit");
        // Never committed.
        (0..50).for_each(|n| push(&heap, head, n));
        heap.close().expect("close");
        let report = untorn::offline::check_heap(&path, &|_, _| {}).expect("check");
        assert_eq!(report.problems, [""; 0], "round {round}");
        assert_eq!(report.leaks.expect("looked for").count, 0, "round {round}");
    }
}

#[test]
fn large_and_small_allocations_and_roots_are_the_heaps_own() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = open(&path);
    let mut blocks: Vec<(String, NonNull<u8>, usize)> = Vec::new();
    for (n, bytes) in [1, 100, 40_000, 100_000, 5 << 20, 9 << 20, 300].into_iter().enumerate() {
        let block = heap.allocate(Layout::from_size_align(bytes, 8).expect("a layout")).expect("memory");
        // SAFETY: allocated just now with this many bytes.
        unsafe { block.write_bytes(n as u8 + 1, bytes) };
        heap.mark_dirty(block.as_ptr(), bytes).expect("a block");
        heap.set_root(&format!("block {n}"), Some(block)).expect("a root");
        blocks.push((format!("block {n}"), block, bytes));
    }
    let numbers = heap.root_or("numbers", |alloc| {
        let mut numbers = HeapVec::<u64>::new_in(alloc);
        numbers.extend(0..1000);
        numbers
    });
    numbers.expect("a root");
    heap.commit().expect("commit");
    // Freeing changes the table of roots, descriptors and segments.
    for nth in [4, 2] {
        let (name, block, _) = blocks.remove(nth);
        heap.set_root::<u8>(&name, None).expect("a root");
        // SAFETY: nothing uses it any more.
        unsafe { heap.free(block).expect("free") };
    }
    heap.commit().expect("commit");
    heap.close().expect("close");
    let report = untorn::offline::check_heap(&path, &|_, _| {}).expect("check");
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.leaks.expect("looked for").count, 0);
    let heap = open(&path);
    for (name, place, bytes) in &blocks {
        assert_eq!(heap.root::<u8>(name).expect("a root"), Some(*place));
        // SAFETY: an allocation of this many bytes.
        let found = unsafe { std::slice::from_raw_parts(place.as_ptr(), *bytes) };
        let filler = name.as_bytes()[6] - b'0' + 1;
        assert!(found.iter().all(|byte| *byte == filler), "{name}");
    }
    let numbers = heap.root::<HeapVec<u64>>("numbers").expect("a root").expect("it is there");
    // SAFETY: the root has this type, and nobody else uses it.
    assert!(unsafe { numbers.as_ref() }.iter().copied().eq(0..1000));
    heap.close().expect("close");
}

#[test]
fn what_is_not_in_the_heap_is_refused() {
    let dir = directory();
    let heap = open(&dir.path().join("heap"));
    let (base, len) = heap.memory();
    let base = base.as_ptr().cast_const();
    for (address, bytes) in [
        (std::ptr::null(), 0),
        (std::ptr::null(), 8),
        (base.wrapping_sub(1), 1),
        (base, len + 1),
        (base.wrapping_add(len), 1),
        (base.wrapping_add(8), usize::MAX),
    ] {
        refused(heap.mark_dirty(address, bytes), &["invalid"]);
    }
    heap.mark_dirty(base.wrapping_add(len), 0).expect("nothing");
    let weak = heap.downgrade();
    heap.close().expect("close");
    assert!(matches!(weak.mark_dirty(base, 1), Err(Error::Closed)));
    // Other trackers find stores by themselves.
    let heap = HeapOptions::new().create(true).open(dir.path().join("heap")).expect("open");
    heap.mark_dirty(base, 1).expect("a heap with another tracker");
    refused(heap.mark_dirty(std::ptr::null(), 1), &["invalid"]);
}

#[test]
fn a_store_to_the_heap_that_nobody_told_of_is_found() {
    let dir = directory();
    let options = HeapOptions::new().create(true).tracker(TrackerKind::Explicit).debug_unmarked(true);
    let heap = options.open(dir.path().join("heap")).expect("open");
    let head = head_of(&heap);
    // The heap declares all of its own stores.
    let mut blocks = Vec::new();
    for round in 0..40usize {
        (0..100).for_each(|n| push(&heap, head, n));
        let block = heap.allocate(Layout::from_size_align(1 << (round % 23), 8).expect("a layout")).expect("memory");
        blocks.push(block);
        if round % 3 == 0 {
            let block = blocks.swap_remove(round / 2 % blocks.len());
            // SAFETY: nothing uses it any more.
            unsafe { heap.free(block).expect("free") };
        }
        heap.set_root(&format!("root {}", round % 7), blocks.first().copied()).expect("a root");
        if round == 20 {
            // SAFETY: blocks that were made since the commit are not used.
            unsafe { heap.rollback().expect("rollback") };
            blocks.clear();
        }
        heap.commit().expect("all of it was told of");
    }
    // SAFETY: a node of the list.
    unsafe { (**head).value = 1 << 40 };
    let message = refused(heap.commit(), &["invalid"]).to_string();
    assert!(message.contains("did not mark them dirty"), "{message}");
    // SAFETY: as above.
    heap.mark_dirty_value(unsafe { &(**head).value }).expect("a value");
    heap.commit().expect("commit");
}

/// Threads change one list each under guards, while another thread commits all the time: every commit is consistent.
#[test]
fn commits_among_threads_are_whole() {
    let dir = directory();
    let (path, copy) = (dir.path().join("heap"), dir.path().join("copy"));
    let heap = open(&path);
    let pair = heap.root_or("pair", |_| [0u64; 64]).expect("a root");
    heap.commit().expect("commit");
    let address = pair.as_ptr() as usize;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (heap, stop) = (&heap, &stop);
            scope.spawn(move || {
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    let _together = heap.mutate();
                    for word in [thread, thread + 30] {
                        let at = (address as *mut u64).wrapping_add(word);
                        // SAFETY: a word of the root that is this thread's own.
                        unsafe { at.write_volatile(n) };
                        heap.mark_dirty(at.cast(), 8).expect("a word");
                    }
                }
            });
        }
        for _ in 0..10 {
            heap.commit().expect("commit");
            heap.file().store().checkpoint().expect("checkpoint");
            std::fs::copy(&path, &copy).expect("copy");
            let found = std::fs::read(&copy).expect("read");
            let at = address - heap.memory().0.as_ptr() as usize;
            let word = |n: usize| u64::from_le_bytes(found[at + n * 8..][..8].try_into().expect("8 bytes"));
            (0..3).for_each(|thread| assert_eq!(word(thread), word(thread + 30), "thread {thread}"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    heap.close().expect("close");
}
