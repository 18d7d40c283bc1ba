//! The heap's header and its roots are write-protected. A commit verifies both, and the metadata that was stored to:
//! damage by a stray store is refused.

mod common;

use common::*;
use std::alloc::Layout;
use std::path::Path;
use std::ptr::NonNull;
use untorn::heap::Heap;
use untorn::offline::check_heap;
use untorn::{Error, Result};

const CHUNK: usize = 64 << 10;
const SEGMENT: usize = 4 << 20;
const ROOTS: usize = 4096 + 64 * 64 + 64 * 512;

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
    // SAFETY: mapped, as the callers' offsets lie in the heap. The test is about stores that are forbidden there.
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
    let roots = "stored to the heap's table of roots: root 0";
    // Magic, address, segments, checksum; a descriptor in each segment, a descriptor's unused part, bitmaps; and the
    // name, type, size and pointer of a root.
    let places = [
        (0, header),
        (16, header),
        (34, header),
        (40, header),
        (4096 + 64 * 3, metadata),
        (4096 + 64 * 3 + 40, metadata),
        (SEGMENT + 4096 + 64 * 5 + 5, metadata),
        (8192 + 512 * 3 + 511, metadata),
        (8192 + 512 * 60 + 100, metadata),
        (SEGMENT + 8192 + 512 * 61 + 7, metadata),
        (ROOTS + 47, roots),
        (ROOTS + 50, roots),
        (ROOTS + 152, roots),
        (ROOTS + 183, roots),
    ];
    for (offset, what) in places {
        // Without any other store.
        mapping::unprotect(&heap);
        store(&heap, offset, 0xa5);
        is_refused(heap.commit(), what);
        // SAFETY: nothing was allocated since.
        unsafe { heap.rollback() }.expect("a rollback");
        let block = heap.allocate(layout(50)).expect("a block");
        mapping::unprotect(&heap);
        store(&heap, offset, 0xa5);
        is_refused(heap.commit(), what);
        is_refused(heap.commit_async().and_then(|ticket| ticket.wait()), what);
        // SAFETY: blocks that were allocated since are not used.
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

/// Whether a system call may write a byte at an offset of the heap.
fn kernel_may_store(heap: &Heap, offset: usize) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: two descriptors of this test, and a byte that the kernel checks.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], [0xa5u8].as_ptr().cast(), 1), 1);
        let read = libc::read(pipe[0], heap.memory().0.as_ptr().add(offset).cast(), 1);
        let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        assert!(read == 1 || refused);
        read == 1
    }
}

fn is_locked(heap: &Heap, when: &str) {
    for offset in [0, 8, 40, 127, 128, 4095, ROOTS, ROOTS + 191, CHUNK - 1] {
        assert!(!kernel_may_store(heap, offset), "{when}: offset {offset}");
    }
    // Metadata that each allocation changes, and allocated memory.
    for offset in [8191, CHUNK + 5] {
        // SAFETY: mapped.
        let before = unsafe { heap.memory().0.add(offset).read() };
        assert!(kernel_may_store(heap, offset), "{when}: offset {offset}");
        store(heap, offset, before);
    }
}

/// Header and roots stay protected through everything that maps or changes them: growth, shrinking, rollbacks, dropped
/// memory, huge allocations, new roots.
#[test]
fn header_and_roots_cannot_be_stored_to() {
    if rustix::param::page_size() != 4096 {
        return skipped("pages are larger than the header");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("heap");
    let (heap, huge) = heap(&path);
    is_locked(&heap, "new");
    heap.set_root("other", Some(huge.cast::<u64>())).expect("a root");
    is_locked(&heap, "with a new root");
    // SAFETY: nothing that was allocated since the last commit is used.
    unsafe { heap.rollback() }.expect("a rollback");
    is_locked(&heap, "rolled back");
    assert!(heap.root::<u64>("other").expect("a look").is_none());
    // SAFETY: nobody stores.
    unsafe { heap.reclaim() }.expect("reclaimed");
    is_locked(&heap, "reclaimed");
    let more = heap.allocate(layout(40 * SEGMENT)).expect("a huge allocation");
    is_locked(&heap, "grown");
    heap.commit().expect("a commit");
    // SAFETY: allocated just now.
    unsafe { heap.free(more) }.expect("freed");
    is_locked(&heap, "freed");
    let long = heap.memory().1;
    heap.commit().expect("a commit");
    assert!(heap.memory().1 < long);
    is_locked(&heap, "shrunk");
    heap.commit().expect("a commit");
    heap.close().expect("closed");
    let heap = Heap::open(&path).expect("the heap");
    is_locked(&heap, "opened");
    heap.set_root::<u64>("huge", None).expect("no root");
    heap.commit().expect("a commit");
    heap.close().expect("closed");
    assert!(check_heap(&path, &|_, _| {}).expect("a heap").is_sound());
}

const CHILD: &str = "UNTORN_TEST_WILD";

/// A stray store of the program ends it at that store; its commits are kept.
#[test]
fn a_wild_store_to_the_header_is_a_fault() {
    if rustix::param::page_size() != 4096 {
        return skipped("pages are larger than the header");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("heap");
    let (heap, _) = heap(&path);
    heap.close().expect("closed");
    for offset in [16, ROOTS + 184] {
        let status = untorn_testkit::again!("wild_child")
            .env(CHILD, format!("{offset} {}", path.display()))
            .status()
            .expect("run");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGSEGV), "{status}");
        assert!(check_heap(&path, &|_, _| {}).expect("a heap").is_sound());
    }
}

#[test]
fn wild_child() {
    let Some(at) = std::env::var_os(CHILD) else { return };
    let at = at.into_string().expect("text");
    let (offset, path) = at.split_once(' ').expect("two words");
    let heap = Heap::open(path).expect("the heap");
    store(&heap, offset.parse().expect("a number"), 0xa5);
    heap.commit().expect("a commit");
}

/// Segments inside of a huge allocation have no metadata: a program may store anything there, also right after it has
/// opened the heap.
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
