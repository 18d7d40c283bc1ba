//! A copy of live memory as of a moment at which nobody stores to it. Changes to the copy do not reach the original.
//!
//! The head is copied; most of it is a hole. Of the body, only pages that are written to are copied.

use crate::live::live_memory::open_of;
use crate::live::shared_mapping::LIVE_HEAD_BYTES;
use crate::mapping::still_copy::Scratch;
use rustix::fs::{self, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;

/// A copy of live memory.
pub struct LiveCopy {
    path: PathBuf,
    file: File,
    head: Scratch,
    body_bytes: u64,
    /// Pages of the body that were written to, by page number.
    written: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl LiveCopy {
    /// Copies the memory file of this name, which this user must own. `InvalidData` if the file is no live memory.
    pub fn of(path: &Path, uid: u32) -> io::Result<LiveCopy> {
        let (file, stat) = open_of(path, uid, OFlags::RDONLY)?;
        let head = Scratch::new(LIVE_HEAD_BYTES)?;
        let body_bytes = stat.st_size as u64 - LIVE_HEAD_BYTES as u64;
        let copy = LiveCopy { path: path.to_owned(), file: file.into(), head, body_bytes, written: BTreeMap::new() };
        copy.copy_head()?;
        Ok(copy)
    }

    /// Copies the parts of the head that are not holes.
    fn copy_head(&self) -> io::Result<()> {
        let (mut at, end) = (0, LIVE_HEAD_BYTES as u64);
        loop {
            let from = match fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(from) if from < end => from,
                // Only a hole is left.
                Ok(_) | Err(Errno::NXIO) => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            at = fs::seek(&self.file, SeekFrom::Hole(from))?.min(end);
            // SAFETY: within the copy of the head, which nobody refers to yet.
            let into = unsafe {
                std::slice::from_raw_parts_mut(self.head.address().as_ptr().add(from as usize), (at - from) as usize)
            };
            self.file.read_exact_at(into, from)?;
        }
    }

    /// The name of the memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Address of the copy of the head, valid as long as this value lives.
    pub fn head(&self) -> NonNull<u8> {
        self.head.address()
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Reads bytes of the body; `UnexpectedEof` beyond its end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.body_bytes);
        let end = end.ok_or(ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(buf, LIVE_HEAD_BYTES as u64 + offset)?;
        let pages = offset / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64);
        for (number, page) in self.written.range(pages) {
            let first = number * PAGE_BYTES as u64;
            let (from, to) = (offset.max(first), end.min(first + PAGE_BYTES as u64));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - first) as usize..(to - first) as usize]);
        }
        Ok(())
    }

    /// Changes bytes of the body in this copy only; `UnexpectedEof` beyond its end.
    pub fn write_at(&mut self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.body_bytes) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while !bytes.is_empty() {
            let (number, at) = (offset / PAGE_BYTES as u64, (offset % PAGE_BYTES as u64) as usize);
            if !self.written.contains_key(&number) {
                let first = number * PAGE_BYTES as u64;
                let mut page = Box::new([0; PAGE_BYTES]);
                let there = (self.body_bytes - first).min(PAGE_BYTES as u64) as usize;
                self.file.read_exact_at(&mut page[..there], LIVE_HEAD_BYTES as u64 + first)?;
                self.written.insert(number, page);
            }
            let n = bytes.len().min(PAGE_BYTES - at);
            self.written.get_mut(&number).expect("read just now")[at..at + n].copy_from_slice(&bytes[..n]);
            (bytes, offset) = (&bytes[n..], offset + n as u64);
        }
        Ok(())
    }
}
