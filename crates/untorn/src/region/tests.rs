//! A mapping that fails where no kernel does so on request.

use super::*;
use crate::{MapOptions, StoreOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Tells which pages were stored to, and then fails, once.
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
    fn tracker(&self) -> Tracker {
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

/// A mapped file of two pages of zeros, its tracker the best there is here.
fn mapped(dir: &std::path::Path) -> (crate::File, crate::Map) {
    std::fs::write(dir.join("f"), [0; 8192]).unwrap();
    let file = StoreOptions::default().background(false).open(dir).unwrap().open_file("f").unwrap();
    let map = file.map_with(&MapOptions::new()).unwrap();
    (file, map)
}

/// The file's mapping fails once, the next time that it is asked for changed pages.
fn fail_next(file: &crate::File, panics: bool) {
    let mut state = file.shared.write();
    let region = state.region.take().unwrap();
    let failing = Failing { mapping: region.mapping, fails: AtomicBool::new(true), panics };
    state.region = Some(Region { mapping: Box::new(failing), ..region });
}

#[test]
fn pages_that_were_told_before_an_error_are_not_forgotten() {
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
