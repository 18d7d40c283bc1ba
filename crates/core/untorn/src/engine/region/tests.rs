//! A mapping that fails at points at which no kernel can be made to fail.

use super::*;
use crate::{MapOptions, StoreOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Reports the pages that were stored to, and then fails, once.
struct Failing {
    mapping: Box<dyn Mapping>,
    fails: AtomicBool,
    panics: bool,
}

impl Mapping for Failing {
    fn leave(&mut self) {}

    fn address(&self) -> *mut u8 {
        self.mapping.address()
    }
    fn address_space(&self) -> u64 {
        self.mapping.address_space()
    }
    fn page_bytes(&self) -> u64 {
        self.mapping.page_bytes()
    }
    fn tracker(&self) -> TrackerKind {
        self.mapping.tracker()
    }
    fn show(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.show(range)
    }
    fn blank(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.blank(range)
    }
    fn hide(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.hide(range)
    }
    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.populate(range)
    }
    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.mapping.changed(within, into)?;
        match self.fails.swap(false, SeqCst) {
            true if self.panics => panic!("on purpose"),
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => Ok(()),
        }
    }
    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.mapping.private(within, into)
    }
    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        self.mapping.copy_out(pieces)
    }
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.mapping.copy_in(offset, bytes)
    }
}

/// Counts stores by calls, and stores to the same page afterwards, like another thread of the program.
struct Stored {
    mapping: Box<dyn Mapping>,
    count: Arc<AtomicUsize>,
    racing: bool,
}

impl Mapping for Stored {
    fn leave(&mut self) {}

    fn address(&self) -> *mut u8 {
        self.mapping.address()
    }
    fn address_space(&self) -> u64 {
        self.mapping.address_space()
    }
    fn page_bytes(&self) -> u64 {
        self.mapping.page_bytes()
    }
    fn tracker(&self) -> TrackerKind {
        self.mapping.tracker()
    }
    fn show(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.show(range)
    }
    fn blank(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.blank(range)
    }
    fn hide(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.hide(range)
    }
    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.populate(range)
    }
    fn changed(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.mapping.changed(within, into)
    }
    fn private(&self, within: Range<u64>, into: &mut Vec<Range<u64>>) -> io::Result<()> {
        self.mapping.private(within, into)
    }
    fn copy_out(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        self.mapping.copy_out(pieces)
    }
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.mapping.copy_in(offset, bytes)?;
        self.count.fetch_add(1, SeqCst);
        if self.racing {
            // SAFETY: inside the page just stored to.
            unsafe { self.mapping.address().add(offset as usize / 4096 * 4096 + 4000).write_volatile(77) };
        }
        Ok(())
    }
}

/// Counts, from now on, stores by calls to the file's mapping.
fn count_stores(file: &crate::File, racing: bool) -> Arc<AtomicUsize> {
    let mut state = file.shared.write();
    let region = state.region.take().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let mapping = Box::new(Stored { mapping: region.mapping, count: count.clone(), racing });
    state.region = Some(Region { mapping, ..region });
    count
}

#[test]
fn a_rollback_costs_what_was_stored_since_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let (file, map) = mapped(dir.path());
    map.resize(200 * 4096).unwrap();
    map.msync().unwrap();
    // SAFETY: inside the map.
    let store = |page: usize| unsafe { map.as_mut_ptr().add(page * 4096 + 5).write_volatile(page as u8 + 1) };
    // With gaps, because many adjacent pages would be mapped again instead.
    (0..200).step_by(2).for_each(store);
    map.rollback().unwrap();
    let count = count_stores(&file, false);
    map.rollback().unwrap();
    assert_eq!(count.load(SeqCst), 0, "nothing was stored");
    store(8);
    map.rollback().unwrap();
    assert_eq!(count.load(SeqCst), 1, "to one page of 100 that were");
    if map.tracker().unwrap() == TrackerKind::Scan {
        assert_eq!(map.stored_pages().unwrap(), [], "a commit has nothing to compare");
    }
    // SAFETY: inside the map.
    assert!(unsafe { map.as_slice() }.iter().all(|b| *b == 0));
}

#[test]
fn a_store_during_a_rollback_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (file, map) = mapped(dir.path());
    map.msync().unwrap();
    let _count = count_stores(&file, true);
    // SAFETY: inside the map.
    unsafe { map.as_mut_ptr().add(5000).write_volatile(1) };
    map.rollback().unwrap();
    map.msync().unwrap();
    file.store().checkpoint().unwrap();
    let plain = std::fs::read(dir.path().join("f")).unwrap();
    assert_eq!((plain[5000], plain[4096 + 4000]), (0, 77));
}

/// A mapped file of two pages of zeros, with the best tracker that works here.
fn mapped(dir: &std::path::Path) -> (crate::File, crate::Map) {
    std::fs::write(dir.join("f"), [0; 8192]).unwrap();
    let file = StoreOptions::new().create(true).background(false).open(dir).unwrap().open_file("f").unwrap();
    let map = file.map_with(&MapOptions::new()).unwrap();
    (file, map)
}

/// Makes the file's mapping fail once, at the next query of changed pages.
fn fail_next(file: &crate::File, panics: bool) {
    let mut state = file.shared.write();
    let region = state.region.take().unwrap();
    let failing = Failing { mapping: region.mapping, fails: AtomicBool::new(true), panics };
    state.region = Some(Region { mapping: Box::new(failing), ..region });
}

#[test]
fn pages_that_were_marked_before_an_error_are_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (file, map) = mapped(dir.path());
    fail_next(&file, false);
    // SAFETY: inside the map.
    unsafe { map.as_mut_ptr().add(5000).write(1) };
    assert!(map.msync().is_err());
    map.msync().unwrap();
    file.store().checkpoint().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap()[5000], 1);
}

#[test]
fn a_panic_leaves_the_memory_that_the_program_points_to() {
    let dir = tempfile::tempdir().unwrap();
    let (file, map) = mapped(dir.path());
    fail_next(&file, true);
    assert!(catch_unwind(AssertUnwindSafe(|| map.msync())).is_err());
    assert!(file.shared.read().region.is_some());
    // SAFETY: inside the map, if it is still there.
    unsafe { map.as_mut_ptr().write(1) };
    map.msync().unwrap();
    file.store().checkpoint().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap()[0], 1);
}
