//! The memory and the mappings that a heap takes, and its errors if there are not enough.

mod common;

use common::*;
use std::alloc::Layout;
use std::ptr::NonNull;
use untorn::heap::{Heap, HeapOptions};

const MIB: usize = 1 << 20;

fn allocate(heap: &Heap, bytes: usize) -> Result<NonNull<u8>, untorn::Error> {
    heap.allocate(Layout::from_size_align(bytes, 16).expect("a layout"))
}

fn free(heap: &Heap, block: NonNull<u8>) {
    // SAFETY: nobody uses it.
    unsafe { heap.free(block) }.expect("free");
}

/// The bytes of memory and swap of this machine.
fn machine_bytes() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
    };
    of("MemTotal:") + of("SwapTotal:")
}

/// Twice the machine's memory was allocated and freed. With almost nothing in use, the heap opens again, even if the
/// used block is at its end; then the empty end is given back.
#[test]
fn a_heap_that_was_large_opens_again() {
    let dir = directory();
    let path = dir.path().join("heap");
    let large = machine_bytes().next_multiple_of(4 * MIB) * 2;
    let options = HeapOptions::new().create(true).address_space(4 * large as u64);
    let heap = options.clone().dirty_max(MIB as u64).open(&path).expect("create");
    let small = allocate(&heap, 4000).expect("allocate");
    // SAFETY: allocated just now.
    unsafe { small.write_bytes(7, 4000) };
    heap.set_root("small", Some(small)).expect("root");
    let all = allocate(&heap, large).expect("allocate");
    let behind = allocate(&heap, 5 * MIB).expect("allocate");
    heap.commit().expect("commit");
    assert!(heap.memory().1 > large);
    heap.close().expect("close");
    let e = refused(options.open(&path), &["no-memory"]);
    assert!(e.to_string().contains("in use") && e.to_string().contains("dirty_max"), "{e}");

    let heap = options.clone().dirty_max(MIB as u64).open(&path).expect("open");
    free(&heap, all);
    heap.commit().expect("commit");
    assert!(heap.memory().1 > large, "its end is in use");
    heap.close().expect("close");
    let heap = options.open(&path).expect("there is little in use");
    free(&heap, behind);
    heap.commit().expect("commit");
    assert!(heap.memory().1 <= 16 * MIB, "{} bytes are left", heap.memory().1);
    // SAFETY: a block that was allocated and filled above.
    assert_eq!(unsafe { small.read() }, 7);
    heap.close().expect("close");
    assert!(std::fs::metadata(&path).expect("the file").len() <= 16 * MIB as u64);
    let heap = options.open(&path).expect("open");
    assert!(heap.check(&|_, _| {}).expect("check").is_sound());
}

/// An allocation beyond the machine's memory is refused at once; the process is not killed later.
#[test]
fn a_heap_does_not_outgrow_memory() {
    let dir = directory();
    let large = machine_bytes().next_multiple_of(4 * MIB) * 2;
    let options = HeapOptions::new().create(true).address_space(4 * large as u64);
    let heap = options.open(dir.path().join("heap")).expect("create");
    let e = refused(allocate(&heap, large), &["no-memory"]);
    assert!(e.to_string().contains("dirty_max"), "{e}");
    let small = allocate(&heap, 100).expect("what fits is given out");
    heap.commit().expect("commit");
    free(&heap, small);
    heap.commit().expect("commit");
    assert!(heap.check(&|_, _| {}).expect("check").is_sound());
}

/// The heap's end is given back, grown again, rolled back and committed: it never shows old bytes.
#[test]
fn an_end_that_comes_and_goes() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = Heap::open_or_create(&path).expect("create");
    let small = allocate(&heap, 100).expect("allocate");
    heap.set_root("small", Some(small)).expect("root");
    for round in 0..3 {
        let block = allocate(&heap, 60 * MIB).expect("allocate");
        // SAFETY: this many bytes were allocated.
        unsafe { block.add(50 * MIB).write_bytes(9, MIB) };
        heap.commit().expect("commit");
        assert!(heap.memory().1 >= 60 * MIB);
        free(&heap, block);
        if round == 1 {
            // SAFETY: nothing was allocated since.
            unsafe { heap.rollback() }.expect("rollback");
            // SAFETY: after the rollback the block is allocated again.
            assert_eq!(unsafe { block.add(51 * MIB - 1).read() }, 9);
            free(&heap, block);
        }
        heap.commit().expect("commit");
        assert!(heap.memory().1 <= 16 * MIB, "{} bytes", heap.memory().1);
        let again = allocate(&heap, 60 * MIB).expect("allocate");
        // SAFETY: this many bytes were allocated, from a new end.
        assert!((0..60 * MIB).step_by(4096).all(|at| unsafe { again.add(at).read() } == 0), "round {round}");
        // SAFETY: it is not used any more.
        unsafe { heap.rollback() }.expect("rollback");
        assert!(heap.check(&|_, _| {}).expect("check").is_sound());
    }
    heap.close().expect("close");
    let heap = Heap::open(&path).expect("open");
    assert!(heap.check(&|_, _| {}).expect("check").is_sound());
}

/// A directory in memory, if possible: the test makes 35,000 holes in a file.
fn fast_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| directory())
}

/// Frees more allocations than a process may have mappings.
#[test]
fn more_is_freed_than_there_are_mappings() {
    const BLOCKS: usize = 70_000;
    let dir = fast_directory();
    let path = dir.path().join("heap");
    let options = HeapOptions::new().create(true).dirty_max(1 << 30);
    let heap = options.open(&path).expect("create");
    let blocks: Vec<_> = (0..BLOCKS).map(|_| allocate(&heap, 300_000).expect("allocate")).collect();
    heap.commit().expect("commit");
    heap.close().expect("close");
    let heap = options.open(&path).expect("open");
    let (half, rest): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    half.iter().for_each(|(_, block)| free(&heap, **block));
    heap.commit().expect("commit");
    let mappings = std::fs::read_to_string("/proc/self/maps").expect("maps").lines().count();
    assert!(mappings < 20_000, "{mappings} mappings");
    let length = heap.memory().1;
    (0..1000).for_each(|_| _ = allocate(&heap, 300_000).expect("allocate"));
    assert_eq!(heap.memory().1, length, "what was freed is used again");
    // SAFETY: nothing that was allocated since is used.
    unsafe { heap.rollback() }.expect("rollback");
    rest.iter().for_each(|(_, block)| free(&heap, **block));
    heap.commit().expect("commit");
    assert!(heap.memory().1 < 16 * MIB, "{} bytes are left", heap.memory().1);
}

/// With transparent huge pages, each first store would change 512 pages.
#[test]
fn a_heap_has_no_huge_pages() {
    let dir = directory();
    let heap = Heap::open_or_create(dir.path().join("heap")).expect("create");
    let block = allocate(&heap, 64 * MIB).expect("allocate");
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let at = block.as_ptr() as usize + MIB;
    let mut inside = false;
    let flags = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bounds = range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        if let Some((Ok(from), Ok(to))) = bounds {
            inside = (from..to).contains(&at);
        }
        inside && line.starts_with("VmFlags:")
    });
    let flags = flags.expect("the heap's mapping");
    assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
}
