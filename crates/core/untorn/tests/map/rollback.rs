//! Rolling back stores to mapped memory.

use crate::common::mapping::*;
use crate::common::*;
use untorn::MapOptions;

#[test]
fn rollback_copies_committed_bytes_back() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(4);
        let map = file.map_with(&options(tracker)).unwrap();
        poke(&map, 10, b"committed");
        map.msync().unwrap();
        poke(&map, 10, b"forgotten");
        poke(&map, 2 * PAGE, b"forgotten");
        file.write_all_at(b"forgotten", 3 * PAGE as u64).unwrap();
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 10, 9), b"committed", "committed and not applied");
        assert_eq!(bytes(&map, 2 * PAGE as u64, 9), [2; 9]);
        assert_eq!(bytes(&map, 3 * PAGE as u64, 9), [3; 9]);
        map.msync().unwrap();
        store.checkpoint().unwrap();
        assert_eq!(&plain(dir.path().join("f"))[10..19], b"committed");
        assert_eq!(plain(dir.path().join("f"))[2 * PAGE], 2);
    });
}

#[test]
fn what_a_rollback_brings_back_has_room() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 64);
        file.set_len(10).expect("truncate");
        let small = MapOptions::new().tracker(tracker).address_space(PAGE as u64);
        let map = file.map_with(&small).expect("map");
        map.rollback().expect("rollback");
        assert_eq!(map.len(), 64 * PAGE as u64);
        assert_eq!(loaded(&map, 63 * PAGE..63 * PAGE + 1), [63]);
        fill(&map, 63 * PAGE..63 * PAGE + 1, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[63 * PAGE], b'X');
    });
}

#[test]
fn a_rollback_of_zeros_takes_no_memory() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 2);
        let size = 256u64 << 20;
        file.set_len(size).expect("grow");
        file.write_all_at(b"far", size - 3).expect("write");
        file.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        file.write_all_at(b"committed", 100 << 20).expect("write");
        file.commit().expect("commit");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        for how in ["zero", "truncate"] {
            match how {
                "zero" => file.zero(0, size).expect("zero"),
                _ => {
                    map.resize(0).expect("shrink");
                    map.resize(size).expect("grow");
                }
            }
            map.rollback().expect("rollback");
            assert_eq!(loaded(&map, PAGE..PAGE + 1), [1]);
            assert_eq!(loaded(&map, 100 << 20..(100 << 20) + 10), b"committed\0");
            assert_eq!(loaded(&map, size as usize - 3..size as usize), b"far");
            let private = store.status().maps[0].private_bytes;
            assert!(private < 8 << 20, "{how}: {private} bytes of memory");
        }
        fill(&map, PAGE..PAGE + 1, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[PAGE], b'X');
    });
}
