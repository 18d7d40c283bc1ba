//! Mapped files for tests: stores of numbered pages, and memory as a program sees it.

use super::{directory, plain, skipped};
use std::ffi::c_void;
use std::fs;
use std::ops::Range;
use std::path::Path;
use tempfile::TempDir;
use untorn::{Error, File, Map, MapOptions, Store, StoreOptions, TrackerKind};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Runs a test with each tracker that works here.
pub fn with_trackers(test: impl Fn(TrackerKind)) {
    for tracker in [TrackerKind::Scan, TrackerKind::PageMap, TrackerKind::Explicit] {
        let dir = directory();
        let file = File::open_or_create(dir.path().join("probe")).expect("create");
        match file.map_with(&MapOptions::new().tracker(tracker)) {
            Ok(_) => test(tracker),
            Err(Error::Unsupported { detail, .. }) => skipped(&format!("tracker {tracker}: {detail}")),
            Err(e) => panic!("{e}"),
        }
    }
}

/// A map with this tracker.
pub fn options(tracker: TrackerKind) -> MapOptions {
    MapOptions::new().tracker(tracker)
}

/// A store with one file of this many pages, each filled with its number.
pub fn store_of(dir: &Path, pages: usize) -> (Store, File) {
    let contents: Vec<u8> = (0..pages * PAGE).map(|i| (i / PAGE) as u8).collect();
    fs::write(dir.join("f"), &contents).expect("write");
    let store = StoreOptions::new().create(true).background(false).open(dir).expect("open");
    let file = store.open_file("f").expect("file");
    (store, file)
}

/// A new directory with such a store.
pub fn new_store_of(pages: usize) -> (TempDir, Store, File) {
    let dir = directory();
    let (store, file) = store_of(dir.path(), pages);
    (dir, store, file)
}

/// A store with one mapped file of this many pages, each filled with its number.
pub fn mapped(dir: &Path, pages: usize, options: &MapOptions) -> (Store, File, Map) {
    let (store, file) = store_of(dir, pages);
    let map = file.map_with(options).expect("map");
    (store, file, map)
}

/// Stores as a program does, and marks the bytes, which only the tracker `explicit` needs.
pub fn poke(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len() as usize);
    // SAFETY: inside the map, and no other thread is here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) }
    tell(map, offset, bytes.len());
}

/// Stores as a program does, at most up to the end of the map's last page, which may lie behind the end of the file.
pub fn poke_last_page(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len().next_multiple_of(PAGE as u64) as usize);
    // SAFETY: inside the map's last page, and no other thread is here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) }
    tell(map, offset, bytes.len());
}

/// Fills a range with one byte as a program does, at most up to the end of the map's last page.
pub fn fill(map: &Map, range: Range<usize>, byte: u8) {
    assert!(range.end <= map.len().next_multiple_of(PAGE as u64) as usize);
    // SAFETY: inside the map's last page, and no other thread is here.
    unsafe { std::ptr::write_bytes(map.as_mut_ptr().add(range.start), byte, range.len()) }
    tell(map, range.start, range.len());
}

/// Marks these bytes, which fails in a forked child, if the tracker is `explicit`: another one must find them itself.
pub fn tell(map: &Map, offset: usize, len: usize) {
    if !matches!(map.tracker(), Ok(TrackerKind::Explicit)) {
        return;
    }
    match map.mark_dirty(map.as_ptr().wrapping_add(offset), len) {
        Ok(()) | Err(Error::Forked) => {}
        Err(e) => panic!("{e}"),
    }
}

/// Bytes of the mapped memory.
pub fn peek(map: &Map, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= map.len() as usize);
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(map.as_ptr().add(offset), len).to_vec() }
}

/// Bytes that [`Map::load`] returns.
pub fn loaded(map: &Map, range: Range<usize>) -> Vec<u8> {
    let mut buf = vec![0; range.len()];
    map.load(&mut buf, range.start as u64).expect("load");
    buf
}

/// Bytes that [`Map::load`] returns, by offset and length.
pub fn bytes(map: &Map, offset: u64, len: usize) -> Vec<u8> {
    loaded(map, offset as usize..offset as usize + len)
}

/// The address of a byte, for system calls.
pub fn at(map: &Map, offset: usize) -> *mut c_void {
    map.as_mut_ptr().wrapping_add(offset).cast()
}

/// The contents of the data file after all commits so far.
pub fn committed(dir: &Path, store: &Store) -> Vec<u8> {
    store.checkpoint().expect("checkpoint");
    plain(dir.join("f"))
}

/// Commits, checkpoints, and compares some bytes with the plain file.
pub fn assert_committed(dir: &Path, store: &Store, map: &Map, offset: usize, bytes: &[u8]) {
    map.msync().expect("msync");
    store.checkpoint().expect("checkpoint");
    assert_eq!(&plain(dir.join("f"))[offset..offset + bytes.len()], bytes);
    assert_eq!(peek(map, offset, bytes.len()), bytes);
}

/// Removes the write protection of a heap's own pages, as a program's `mprotect` might.
pub fn unprotect(heap: &untorn::heap::Heap) {
    // SAFETY: pages of the heap; the call only makes more of them writable.
    let done = unsafe { libc::mprotect(heap.memory().0.as_ptr().cast(), 64 << 10, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(done, 0);
}
