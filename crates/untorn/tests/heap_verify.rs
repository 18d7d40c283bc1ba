//! A commit looks at the heap's header and at metadata that was stored to: what a wild store left there is refused.

use std::alloc::Layout;
use std::path::Path;
use std::ptr::NonNull;
use untorn::heap::Heap;
use untorn::offline::check_heap;
use untorn::{Error, Result};

const CHUNK: usize = 64 << 10;
const SEGMENT: usize = 4 << 20;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 16).expect("a layout")
}

/// Two segments with small blocks, and a huge allocation of several segments.
fn heap(path: &Path) -> (Heap, NonNull<u8>) {
    let heap = Heap::open_or_create(path).expect("a heap");
    for _ in 0..80 {
        heap.allocate(layout(100_000)).expect("a block");
    }
    let huge = heap.allocate(layout(3 * SEGMENT)).expect("a huge allocation");
    heap.allocate(layout(100)).expect("a block");
    heap.set_root("huge", Some(huge.cast::<u64>())).expect("a root");
    heap.commit().expect("a commit");
    (heap, huge)
}

fn store(heap: &Heap, offset: usize, byte: u8) {
    // SAFETY: mapped, as the callers' offsets lie in the heap. That nobody may store there is what is tested.
    unsafe { heap.memory().0.add(offset).write(byte) };
}

fn is_refused(result: Result<()>, what: &str) {
    match result {
        Err(e @ Error::Corrupt { .. }) => {
            let told = e.to_string();
            assert!(told.contains(what) && told.contains("roll the heap back"), "{told}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn a_store_to_the_header_or_to_metadata_is_not_committed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("heap");
    let (heap, _) = heap(&path);
    let header = "stored to the heap's header";
    let metadata = "stored to the heap's metadata";
    // Magic, address, segments, checksum; a descriptor in each segment, a descriptor's unused part, a bitmap.
    let places = [
        (0, header),
        (16, header),
        (34, header),
        (40, header),
        (4096 + 64 * 3, metadata),
        (4096 + 64 * 3 + 40, metadata),
        (SEGMENT + 4096 + 64 * 5 + 5, metadata),
        (8192 + 512 * 3 + 511, metadata),
    ];
    for (offset, what) in places {
        let block = heap.allocate(layout(50)).expect("a block");
        store(&heap, offset, 0xa5);
        is_refused(heap.commit(), what);
        is_refused(heap.commit_async().and_then(|ticket| ticket.wait()), what);
        // SAFETY: what was allocated since is not used.
        unsafe { heap.rollback() }.expect("a rollback");
        assert!(heap.size_of(block).is_err());
        let kept = heap.allocate(layout(40)).expect("a block");
        heap.commit().expect("the heap is as before");
        // SAFETY: allocated just now.
        unsafe { heap.free(kept) }.expect("freed");
        heap.commit().expect("a commit");
    }
    heap.close().expect("closed");
    let report = check_heap(&path, &|_, _| {}).expect("a heap");
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Segments inside of a huge allocation have no metadata: a program may store anything there, also right after it
/// has opened the heap.
#[test]
fn a_huge_allocation_may_hold_anything() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("heap");
    let (heap, huge) = heap(&path);
    let first = huge.as_ptr() as usize - heap.memory().0.as_ptr() as usize;
    assert_eq!(first % SEGMENT, CHUNK);
    let fill = |heap: &Heap, byte: u8| {
        for offset in (SEGMENT - CHUNK..2 * SEGMENT).step_by(512) {
            store(heap, first + offset, byte);
        }
        heap.commit().expect("a commit");
    };
    fill(&heap, 0xa5);
    heap.close().expect("closed");
    let heap = Heap::open(&path).expect("the heap");
    fill(&heap, 0x5a);
}
