//! The two files, written with calls of Untorn or plain system calls.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use untorn::{File, FileOptions, Store};
use untorn_terminal::Failure;

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Data,
    Index,
}

/// The operations on files that the demonstration needs.
pub trait Medium {
    /// Reads bytes. Returns fewer than `len` only at the end of the file.
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure>;
    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure>;
    /// Makes everything written so far durable.
    fn commit(&mut self) -> Result<(), Failure>;
    /// Closes the files, and leaves plain files.
    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

pub const NAMES: [&str; 2] = ["records", "index"];

/// `pwrite` and `fdatasync`.
pub struct Plain {
    dir: PathBuf,
    files: [std::fs::File; 2],
}

impl Plain {
    pub fn open(dir: &Path) -> Result<Plain, Failure> {
        Ok(Plain { dir: dir.to_owned(), files: [open_plain(dir, NAMES[0])?, open_plain(dir, NAMES[1])?] })
    }
}

/// Opens a file for reading and writing, and creates it if it is missing.
pub fn open_plain(dir: &Path, name: &str) -> Result<std::fs::File, Failure> {
    let path = dir.join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    file.map_err(|e| Failure::io("open", &path, e))
}

impl Medium for Plain {
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let file = &self.files[which as usize];
        // A torn length must not lead to a request for more bytes than there are.
        let size = file.metadata().map_err(|e| Failure::io("look at", &self.dir, e))?.len();
        let mut bytes = vec![0; len.min(size.saturating_sub(offset) as usize)];
        file.read_exact_at(&mut bytes, offset).map_err(|e| Failure::io("read", &self.dir, e))?;
        Ok(bytes)
    }

    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        self.files[which as usize].write_all_at(bytes, offset).map_err(|e| Failure::io("write", &self.dir, e))
    }

    fn commit(&mut self) -> Result<(), Failure> {
        self.files.iter().try_for_each(|f| f.sync_data()).map_err(|e| Failure::io("flush", &self.dir, e))
    }
}

/// The two files in a store, with one commit of both files.
pub struct Managed {
    store: Store,
    files: [File; 2],
}

impl Managed {
    pub fn open(dir: &Path) -> Result<Managed, Failure> {
        let store = Store::open_or_create(dir)?;
        let options = FileOptions::new().create(true);
        let files = [options.open_in(&store, NAMES[0])?, options.open_in(&store, NAMES[1])?];
        Ok(Managed { store, files })
    }
}

impl Medium for Managed {
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let file = &self.files[which as usize];
        let mut bytes = vec![0; len.min(file.len()?.saturating_sub(offset) as usize)];
        let n = file.read_at(&mut bytes, offset)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        Ok(self.files[which as usize].write_all_at(bytes, offset)?)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        Ok(self.store.syncv(&[&self.files[0], &self.files[1]])?)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.files.into_iter().try_for_each(File::close)?;
        Ok(self.store.close()?)
    }
}

/// Files in memory, with a log of all writes, so that tests can cut them short.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct Memory {
    files: [Vec<u8>; 2],
    pub log: Vec<(Which, Vec<u8>, u64)>,
}

#[cfg(test)]
impl Memory {
    pub fn apply(&mut self, (which, bytes, offset): &(Which, Vec<u8>, u64)) {
        let file = &mut self.files[*which as usize];
        let end = *offset as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[*offset as usize..end].copy_from_slice(bytes);
    }

    pub fn same_contents(&self, other: &Memory) -> bool {
        self.files == other.files
    }
}

#[cfg(test)]
impl Medium for Memory {
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let file = &self.files[which as usize];
        let from = (offset as usize).min(file.len());
        Ok(file[from..(from + len).min(file.len())].to_vec())
    }

    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let write = (which, bytes.to_vec(), offset);
        self.apply(&write);
        self.log.push(write);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
