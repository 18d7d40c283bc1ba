//! A heap's file through other handles: it can be read, and only the heap changes it.

mod common;

use common::*;
use untorn::heap::{HeapOptions, HeapVec};
use untorn::{Error, MapOptions, Result, Store};

fn is_refused<T>(result: Result<T>, what: &str) {
    match result {
        Err(e @ Error::Invalid { .. }) => {
            let told = e.to_string();
            assert!(told.contains("is open as a heap") && told.contains("Heap::syncv"), "{what}: {told}");
        }
        Err(e) => panic!("{what}: {e}"),
        Ok(_) => panic!("{what}: it was done"),
    }
}

#[test]
fn no_other_handle_changes_a_heaps_memory() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).expect("a store");
    let heap = HeapOptions::new().create(true).open_in(&store, "heap").expect("a heap");
    let root = heap.root_or("numbers", HeapVec::<u64>::new_in).expect("a root");
    // SAFETY: this thread alone uses it, and not after the heap is closed.
    let numbers = unsafe { &mut *root.as_ptr() };
    numbers.extend([1, 2, 3]);
    heap.commit().expect("a commit");
    numbers.push(4);
    let other = store.open_file("heap").expect("another handle");
    let clone = heap.file().try_clone().expect("a clone");
    let place = numbers.as_ptr() as u64 - heap.memory().0.as_ptr() as u64;
    let mut bytes = [0; 32];
    for (name, file) in [("file", heap.file()), ("clone", &clone), ("other", &other)] {
        is_refused(file.write_at(&[9; 8], place), name);
        is_refused(file.append(&[9; 8]), name);
        is_refused(file.set_len(0), name);
        is_refused(file.zero(place, 8), name);
        is_refused(file.rollback(), name);
        is_refused(file.commit(), name);
        is_refused(file.commit_async(), name);
        is_refused(store.syncv(&[file]), name);
        is_refused(store.syncv_async(&[file]), name);
        is_refused(store.begin().add(file), name);
        let map = file.map_with(&MapOptions::new()).expect("a map to read");
        is_refused(map.store(&[9; 8], place), name);
        is_refused(map.rollback(), name);
        is_refused(map.resize(0), name);
        is_refused(map.msync(), name);
        is_refused(map.reclaim(), name);
        map.load(&mut bytes, place).expect("read");
        assert_eq!(bytes[24..], 4u64.to_le_bytes());
        drop(map);
        file.read_exact_at(&mut bytes, place).expect("read");
        assert_eq!(bytes[..8], 1u64.to_le_bytes());
        assert!(file.len().expect("a size") > 0);
    }
    assert_eq!(numbers.as_slice(), [1, 2, 3, 4]);
    heap.commit().expect("a commit");
    // A transaction undoes the changes of its own files.
    drop(clone);
    heap.close().expect("closed");
    let mut txn = store.begin();
    txn.add(&other).expect("a plain file again");
    match HeapOptions::new().create(true).open_in(&store, "heap") {
        Err(Error::InTransaction { .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(txn);
    let place = other.len().expect("a size") - 1;
    other.write_at(&[1], place).expect("a plain file again");
    other.rollback().expect("a plain file again");
    drop(other);
    let heap = HeapOptions::new().create(true).open_in(&store, "heap").expect("a heap again");
    assert!(heap.check(&|_, _| {}).expect("a look").is_sound());
}
