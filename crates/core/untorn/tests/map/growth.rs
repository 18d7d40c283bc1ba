//! Files that grow and shrink while they are mapped, and very large ones.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use std::os::unix::fs::FileExt;
use untorn::__private::StoreSteps;
use untorn::MapOptions;

#[test]
fn growing_and_shrinking() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(2);
        let map = file.map_with(&options(tracker)).unwrap();
        map.resize(6000).unwrap();
        assert_eq!(map.len(), 6000);
        // Stores in the last page behind the end are never part of the file.
        poke_last_page(&map, 6100, b"stray");
        map.resize(3 * PAGE as u64 + 10).unwrap();
        assert_eq!(bytes(&map, 6000, 3 * PAGE + 10 - 6000), vec![0; 3 * PAGE + 10 - 6000], "new bytes are zeros");
        poke(&map, 3 * PAGE + 5, b"end");
        map.msync().unwrap();
        store.checkpoint().unwrap();
        let disk = plain(dir.path().join("f"));
        assert_eq!(disk.len(), 3 * PAGE + 10);
        assert_eq!(&disk[3 * PAGE + 5..3 * PAGE + 8], b"end");
        assert!(disk[6000..3 * PAGE + 5].iter().all(|b| *b == 0));

        // Shrunk and extended again before the first commit is applied: the data file is cut, and memory is not.
        map.resize(0).unwrap();
        map.msync().unwrap();
        map.resize(4 * PAGE as u64).unwrap();
        poke(&map, 2 * PAGE, b"again");
        let cut = store.begin_checkpoint().unwrap().unwrap();
        poke(&map, 3 * PAGE, b"more");
        map.msync().unwrap();
        cut.apply().unwrap().truncate_log().unwrap();
        assert_eq!(bytes(&map, 2 * PAGE as u64, 5), b"again");
        assert_eq!(bytes(&map, 0, 100), [0; 100]);
        store.checkpoint().unwrap();
        assert_eq!(&plain(dir.path().join("f"))[2 * PAGE..2 * PAGE + 5], b"again");
        assert_eq!(plain(dir.path().join("f")).len(), 4 * PAGE);

        // Then back to the committed length.
        map.resize(10).unwrap();
        map.rollback().unwrap();
        assert_eq!(map.len(), 4 * PAGE as u64);
        assert_eq!(bytes(&map, 2 * PAGE as u64, 5), b"again");
        map.reclaim().unwrap();
        assert_eq!(bytes(&map, 3 * PAGE as u64, 4), b"more");
    });
}

#[test]
fn a_window_is_mapped_first_and_the_file_grows_into_it() {
    with_trackers(|tracker| {
        let (dir, store, file) = new_store_of(1);
        let window = 1 << 30;
        refused(file.map_with(&options(tracker).len(window)), &["invalid"]);
        let map = file.map_with(&options(tracker).len(window).beyond_end(true).address_space(window)).unwrap();
        assert_eq!(map.len(), PAGE as u64);
        refused(map.store(b"x", PAGE as u64), &["invalid"]);
        file.set_len(3 * PAGE as u64).unwrap();
        assert_eq!(map.len(), 3 * PAGE as u64);
        poke(&map, 2 * PAGE, b"grown");
        map.msync().unwrap();
        // A second map may begin behind the end, but must stay within the reserved addresses.
        let later = file.map_with(&options(tracker).offset(5 * PAGE as u64).len(10).beyond_end(true)).unwrap();
        assert_eq!(later.len(), 0);
        refused(file.map_with(&options(tracker).offset(8).len(window).beyond_end(true)), &["invalid"]);
        refused(file.map_with(&options(tracker).offset(8).len(u64::MAX).beyond_end(true)), &["invalid"]);
        file.set_len(6 * PAGE as u64).unwrap();
        poke(&later, 0, b"later");
        assert_eq!(bytes(&map, 5 * PAGE as u64, 5), b"later");
        map.msync().unwrap();
        drop((map, later));
        refused(file.map_with(&options(tracker).len(u64::MAX).beyond_end(true)), &["no-memory"]);
        store.checkpoint().unwrap();
        let disk = plain(dir.path().join("f"));
        assert_eq!((disk.len(), &disk[2 * PAGE..2 * PAGE + 5]), (6 * PAGE, &b"grown"[..]));
        assert_eq!(&disk[5 * PAGE..5 * PAGE + 5], b"later");
    });
}

#[test]
fn a_store_behind_an_end_that_moved_is_compared_with_zeros() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file) = store_of(dir.path(), 1);
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        fill(&map, 200..201, b'X');
        map.msync().expect("msync");
        // The bytes behind the new end are zero in memory already.
        fill(&map, 0..PAGE, 0);
        map.resize(100).expect("shrink");
        map.resize(PAGE as u64).expect("grow");
        fill(&map, 200..201, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[200], b'X');

        // Then with stores behind the end, which are not part of the file.
        map.resize(100).expect("shrink");
        fill(&map, 0..1, 1);
        fill(&map, 200..201, b'X');
        map.msync().expect("msync");
        fill(&map, 200..201, 0);
        map.resize(PAGE as u64).expect("grow");
        fill(&map, 200..201, b'X');
        map.msync().expect("msync");
        assert_eq!(committed(dir.path(), &store)[200], b'X');
    });
}

#[test]
fn sparse_and_huge() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file, map) = mapped(dir.path(), 1, &MapOptions::new().tracker(tracker));
        drop(map);
        let size = 64u64 << 30;
        file.set_len(size).expect("truncate");
        file.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        let map = file.map_with(&MapOptions::new().tracker(tracker).dirty_max(64 << 20)).expect("map");
        for offset in [0, 40 << 30, size - 5] {
            poke(&map, offset as usize, b"far");
        }
        map.msync().expect("msync");
        map.reclaim().expect("quiesce");
        let status = store.status().maps[0].clone();
        assert_eq!(status.private_bytes, 0);
        assert_eq!(peek(&map, (size - 5) as usize, 3), b"far");
        assert_eq!(peek(&map, 50 << 30, 3), [0; 3]);
        poke(&map, (size - 1) as usize, b"!");
        map.msync().expect("msync");
        drop(map);
        drop(file);
        store.close().expect("close");
        let plain = fs::File::open(dir.path().join("f")).expect("open");
        let mut end = [0; 5];
        plain.read_exact_at(&mut end, size - 5).expect("read");
        assert_eq!(&end, b"far\0!");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&plain.metadata().expect("stat"));
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks: the file stays sparse");
    });
}
