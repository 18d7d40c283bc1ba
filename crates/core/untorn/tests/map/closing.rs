//! Maps that end before or after their file, their store or their transaction.

use crate::common::mapping::*;
use crate::common::*;
use untorn::MapOptions;

#[test]
fn a_map_that_cannot_be_read_when_it_ends_leaves_no_part_of_its_stores() {
    with_trackers(|tracker| {
        let dir = directory();
        let pages = 600;
        let (store, file) = store_of(dir.path(), pages);
        let before = plain(dir.path().join("f"));
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        fill(&map, 0..pages * PAGE, b'N');
        let after = loaded(&map, 0..pages * PAGE);
        // SAFETY: the map's last page.
        unsafe {
            let last = map.as_mut_ptr().add((pages - 1) * PAGE).cast();
            assert_eq!(libc::mprotect(last, PAGE, libc::PROT_NONE), 0);
        }
        refused(map.unmap(), &["conflict"]);
        // All of it, or nothing.
        let all = file.commit().is_ok();
        let disk = committed(dir.path(), &store);
        assert!(disk == before || (all && disk == after), "a part of the stores was committed");
        file.rollback().expect("rollback");
        assert!(store.status().maps.is_empty(), "the memory is given back");
        file.write_all_at(b"after", 0).expect("write");
        file.commit().expect("commit");
        assert_eq!(&committed(dir.path(), &store)[..6], b"after\0");
    });
}

#[test]
fn memory_stays_when_the_store_is_closed_before_its_transaction() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 4);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        let mut txn = store.begin();
        txn.add(&file).expect("add");
        fill(&map, 3 * PAGE..3 * PAGE + 1, b'X');
        store.close().expect("close");
        drop(txn);
        // SAFETY: inside the map.
        let found = unsafe { map.as_ptr().add(3 * PAGE + 1).read() };
        assert_eq!(found, 3, "bytes that nobody changed");
    });
}

#[test]
fn the_map_of_an_unlinked_file_ends_where_its_memory_ends() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 8);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        map.resize(PAGE as u64).expect("shrink");
        map.msync().expect("msync");
        let mut txn = store.begin();
        txn.unlink("f").expect("unlink");
        txn.commit().expect("commit");
        assert!(map.len() <= PAGE as u64, "{} bytes", map.len());
        // Stores stay in memory as long as the map exists.
        fill(&map, 0..1, b'X');
        let _ = map.reclaim();
        // SAFETY: inside the map.
        assert_eq!(unsafe { map.as_ptr().read() }, b'X');
    });
}
