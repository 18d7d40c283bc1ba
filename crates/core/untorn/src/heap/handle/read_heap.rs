//! Reads a heap that another process may have open: a copy as of one commit, at the heap's own address.

use super::root::{RootInfo, RootOptions, RootShape, found_of, info};
use crate::heap::alloc::registry;
use crate::heap::collections::storable::Storable;
use crate::heap::image::layout::{Header, ROOTS, ROOTS_AT, RootEntry};
use crate::reader::Reader;
use crate::reader::read_map::ReadCopy;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use untorn_journal::{Context, Error, Result};
use untorn_os::{ReadMapping, read_full_at};

/// A read-only copy of a heap as of its last commit, whether another process has the heap open or not.
///
/// The copy does not change until [`ReadHeap::refresh`] brings it to a newer commit, for a live heap to its last cut.
/// Stores to the copy stay in this process. Nothing can be allocated in it: a clone of a collection in it would
/// allocate there, and ends the program. Copy into a collection of the program instead.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("numbers");
/// use untorn::heap::{Heap, HeapVec};
/// # {
/// let heap = Heap::open_or_create(&path)?;
/// let numbers = heap.root_or("numbers", |alloc| HeapVec::<u64>::new_in(alloc))?;
/// // SAFETY: this thread alone uses the root.
/// unsafe { &mut *numbers.as_ptr() }.push(7);
/// heap.commit()?;
/// heap.close()?;
/// # }
///
/// let reader = untorn::Reader::open(&path)?;
/// let mut heap = reader.heap("numbers")?;
/// let numbers = heap.root::<HeapVec<u64>>("numbers")?.expect("a root");
/// assert_eq!(numbers[0], 7);
/// heap.refresh()?;
/// # Ok::<(), untorn::Error>(())
/// ```
pub struct ReadHeap {
    reader: Reader,
    path: PathBuf,
    lsn: u64,
    memory: ReadMapping,
    /// The bytes of address space of the mapping.
    space: u64,
}

impl Reader {
    /// Opens a heap as of the last durable commit.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Foreign`]: it is no heap. [`Error::Invalid`]: something else is at its address,
    /// such as the heap itself, or another copy of it. Those of [`Reader::read`].
    pub fn heap(&self, path: impl AsRef<Path>) -> Result<ReadHeap> {
        let path = path.as_ref();
        let copy = ReadCopy::take(self, path)?;
        let (header, len) = header_of(&copy, path)?;
        let address = header.address as usize;
        let taken = |what: &str| {
            Error::invalid(format!(
                "{}: the heap is always at {address:#x}, but in this process {what} is at that address",
                path.display()
            ))
        };
        if registry::is_open(address) {
            return Err(taken("the heap itself, or a copy of it,"));
        }
        let memory = ReadMapping::reserve(Some(address), header.address_space as usize);
        let mut memory = memory.map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => taken("something else, perhaps another copy for reading,"),
            _ => Error::io("map", path, e),
        })?;
        copy.file.show_in(&mut memory, len).context("map", path)?;
        Ok(ReadHeap { reader: self.clone(), path: path.to_owned(), lsn: copy.lsn, memory, space: header.address_space })
    }
}

fn header_of(copy: &ReadCopy, path: &Path) -> Result<(Header, usize)> {
    let mut bytes = [0; size_of::<Header>()];
    read_full_at(&*copy.file, &mut bytes, 0).context("read", path)?;
    let header = Header::read(&bytes, path)?;
    match header.problem(copy.len) {
        Some(problem) => Err(Error::corrupt_heap(path, problem)),
        None => Ok((header, copy.bytes(path)?)),
    }
}

impl ReadHeap {
    /// The commit that the copy shows.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// The address of the copy, and its length in bytes.
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.address(), self.memory.bytes().len())
    }

    /// Moves to the last durable commit, at the same address. False: the copy shows that commit already. After an error
    /// the copy is unchanged.
    ///
    /// # Errors
    /// [`Error::Conflict`]: another heap has this name now. Those of [`Reader::heap`].
    pub fn refresh(&mut self) -> Result<bool> {
        if !self.reader.has_changed(self.lsn)? {
            return Ok(false);
        }
        let copy = ReadCopy::take(&self.reader, &self.path)?;
        let (header, len) = header_of(&copy, &self.path)?;
        let conflict = |detail: &str| Err(Error::Conflict { path: self.path.clone(), detail: detail.to_owned() });
        if header.address != self.header().address {
            return conflict("another heap has its name now; open that one");
        }
        if len as u64 > self.space {
            return conflict(
                "the heap has grown beyond the address space that it had when this copy was opened; open it again",
            );
        }
        copy.file.show_in(&mut self.memory, len).context("map", &self.path)?;
        self.lsn = copy.lsn;
        Ok(true)
    }

    fn header(&self) -> &Header {
        // SAFETY: a heap has more bytes than a header, any bytes are one, and they are aligned to a page.
        unsafe { self.memory.address().cast().as_ref() }
    }

    fn entries(&self) -> &[RootEntry] {
        // SAFETY: the roots are in the first segment, and any bytes are an entry.
        unsafe { std::slice::from_raw_parts(self.memory.address().as_ptr().add(ROOTS_AT).cast(), ROOTS) }
    }

    /// All roots.
    pub fn roots(&self) -> Vec<RootInfo> {
        self.entries().iter().filter(|entry| entry.name[0] != 0).filter_map(info).collect()
    }

    /// The object of a root. `None`: there is no root of that name.
    ///
    /// # Errors
    /// [`Error::LayoutChanged`] if it was set with another type, size, alignment or version.
    pub fn root<T: Storable + Sync>(&self, name: &str) -> Result<Option<&T>> {
        self.root_with(name, RootOptions::new())
    }

    /// The object of a root whose layout has a version.
    pub fn root_with<T: Storable + Sync>(&self, name: &str, options: RootOptions) -> Result<Option<&T>> {
        let found = self.find_root(name, &RootShape::of::<T>(options))?;
        // SAFETY: a root of this type; nobody changes the copy as long as there are references.
        Ok(found.map(|at| unsafe { at.cast().as_ref() }))
    }

    /// Finds a root of a type that is known only by its shape.
    pub fn find_root(&self, name: &str, wanted: &RootShape<'_>) -> Result<Option<NonNull<u8>>> {
        let entry = self.entries().iter().find(|entry| entry.is_named(name));
        entry.map_or(Ok(None), |entry| found_of(entry, name, wanted, self.memory(), || self.path.clone()))
    }
}

impl std::fmt::Debug for ReadHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadHeap").field("path", &self.path).field("lsn", &self.lsn).finish_non_exhaustive()
    }
}
