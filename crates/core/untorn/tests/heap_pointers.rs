//! Pointers that lead out of a heap are found: exactly if the program's memory is at hand, and as a guess otherwise.

use std::alloc::Layout;
use untorn::heap::{Heap, HeapOptions};
use untorn::offline::{check_heap, check_heap_pointers};

const WORDS: usize = 6;
static TARGET: u64 = 7;

fn store(words: *mut u64, n: usize, value: u64) {
    // SAFETY: the callers allocated this many words.
    unsafe { words.add(n).write(value) };
}

#[test]
fn a_commit_in_debug_mode_names_a_pointer_out_of_the_heap() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("heap");
    let heap = HeapOptions::new().create(true).debug_pointers(true).open(&path).expect("a heap");
    let layout = Layout::array::<u64>(WORDS).expect("a layout");
    let block = heap.allocate(layout).expect("a block").cast::<u64>();
    let words = block.as_ptr();
    (0..WORDS).for_each(|n| store(words, n, 0));
    heap.set_root("words", Some(block.cast::<[u64; WORDS]>())).expect("a root");
    // A pointer into the heap, one behind its end, and numbers: none of them leads out.
    store(words, 0, words as u64);
    store(words, 1, heap.memory().0.as_ptr() as u64 + heap.memory().1 as u64);
    store(words, 2, u64::from(u32::MAX));
    store(words, 3, u64::MAX);
    heap.commit().expect("nothing leads out");
    let on_stack = 0u64;
    let boxed = Box::new(0u64);
    for (target, name) in [
        (&raw const TARGET as u64, std::env::current_exe().expect("this program").display().to_string()),
        (&raw const on_stack as u64, String::new()),
        (&raw const *boxed as u64, String::new()),
    ] {
        store(words, 4, target);
        let told = heap.commit().expect_err("a pointer out of the heap").to_string();
        let place = format!("of 48 bytes at {:#x} has at offset 32 the address {target:#x}", words as u64);
        assert!(told.contains(&place) && told.contains(&name), "{told}");
        let found = heap.find_pointers().expect("a look");
        assert_eq!((found.count, found.first[0].offset, found.first[0].value), (1, 32, target));
        assert!(heap.commit_async().is_err());
    }
    // SAFETY: blocks that were allocated since are not used.
    unsafe { heap.rollback() }.expect("a rollback");
    // Blocks that no root reaches do not matter.
    let lost = heap.allocate(layout).expect("a block").cast::<u64>();
    store(lost.as_ptr(), 0, &raw const TARGET as u64);
    heap.commit().expect("nothing leads out");
    heap.close().expect("closed");
    assert_eq!(check_heap_pointers(&path, &|_, _| {}).expect("a look").pointers.expect("looked for").count, 0);

    let heap = Heap::open(&path).expect("the heap");
    let values = [0x5555_5555_8010, 0x7fff_f7dd_0000, 0x1234_5678_9abc, 12];
    values.iter().enumerate().for_each(|(n, value)| store(words, n + 2, *value));
    heap.commit().expect("not in debug mode");
    heap.close().expect("closed");
    let report = check_heap_pointers(&path, &|_, _| {}).expect("a look");
    let found = report.pointers.expect("looked for");
    let offsets: Vec<_> = found.first.iter().map(|pointer| (pointer.offset, pointer.value)).collect();
    assert_eq!(offsets, [(16, 0x5555_5555_8010), (24, 0x7fff_f7dd_0000)]);
    assert!(check_heap(&path, &|_, _| {}).expect("a look").pointers.is_none());
}
