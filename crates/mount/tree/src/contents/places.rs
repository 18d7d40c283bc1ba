//! Finds the place of each file's bytes: the pack for small files, an object of its own for any other.
//!
//! Uncommitted bytes of a small file are in memory, those of another file are staged in its object.

use crate::interface::file_tree::{Ino, Result};
use crate::small_files::draft::Draft;
use crate::small_files::pack_room::Extent;
use crate::table::inode::{Inode, Place};
use crate::tree::core::{Core, errno, refused};
use std::sync::Arc;
use untorn::File;

/// Source of a read.
pub(crate) enum Source {
    /// The bytes were read already; their number.
    Read(usize),
    /// The bytes must be read from the object, without the lock.
    Object(Arc<File>),
    /// The bytes must be read from the pack, without the lock, and, if extents were moved meanwhile, again with it.
    Pack { file: Arc<File>, extent: Extent, moves: u64 },
}

/// Reads until the end of the file, or of the buffer.
pub(crate) fn read_all(file: &File, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match refused(file.read_at(&mut buf[done..], offset + done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Reads bytes of an extent, and none beyond its end.
pub(crate) fn read_extent(file: &File, extent: Extent, buf: &mut [u8], offset: u64) -> Result<usize> {
    let len = (extent.len() as u64).saturating_sub(offset).min(buf.len() as u64) as usize;
    if len == 0 { Ok(0) } else { read_all(file, &mut buf[..len], extent.offset + offset) }
}

// Reading.
impl Core {
    fn place(&self, ino: Ino) -> Result<Place> {
        Ok(self.inode(ino)?.place())
    }

    /// Finds the source of bytes; bytes in memory are read at once.
    pub fn source(&mut self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<Source> {
        Ok(match self.place(ino)? {
            Place::Nowhere => Source::Read(0),
            Place::Draft => {
                let draft = self.inode(ino)?.draft.as_ref().map_or(&[][..], |draft| draft.bytes());
                let from = &draft[draft.len().min(usize::try_from(offset).unwrap_or(usize::MAX))..];
                let len = from.len().min(buf.len());
                buf[..len].copy_from_slice(&from[..len]);
                Source::Read(len)
            }
            Place::Pack(extent) => Source::Pack { file: self.pack.file().clone(), extent, moves: self.pack.moves() },
            Place::Object => self.object(ino)?.map_or(Source::Read(0), Source::Object),
        })
    }

    /// Reads bytes with the lock held; fewer than asked for if the rest is a hole.
    pub fn read_bytes(&mut self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.source(ino, offset, buf)? {
            Source::Read(done) => Ok(done),
            Source::Object(object) => read_all(&object, buf, offset),
            Source::Pack { file, extent, .. } => read_extent(&file, extent, buf, offset),
        }
    }

    /// Number of bytes that are stored; the file may be longer.
    pub fn bytes_len(&mut self, ino: Ino) -> Result<u64> {
        Ok(match self.place(ino)? {
            Place::Nowhere => 0,
            Place::Draft => self.inode(ino)?.draft.as_ref().map_or(0, |draft| draft.bytes().len() as u64),
            Place::Pack(extent) => extent.len() as u64,
            Place::Object => match self.object(ino)? {
                Some(object) => refused(object.len())?,
                None => 0,
            },
        })
    }
}

// Uncommitted changes.
impl Core {
    /// Writes bytes of a file, uncommitted.
    pub fn write_bytes(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        if let Some(at) = self.stays_small(ino, offset, data.len())? {
            let covers_the_rest = offset + data.len() as u64 >= self.bytes_len(ino)?;
            self.draft(ino, if covers_the_rest { offset } else { u64::MAX })?.write(at, data);
            return Ok(());
        }
        refused(self.object_for_writing(ino)?.write_all_at(data, offset))
    }

    /// Sets a range to zeros, as far as bytes are stored; returns the length of that part.
    pub fn zero_bytes(&mut self, ino: Ino, offset: u64, len: u64) -> Result<u64> {
        let len = self.bytes_len(ino)?.saturating_sub(offset).min(len);
        if len == 0 {
            return Ok(0);
        }
        match self.place(ino)? {
            Place::Object => refused(self.object_for_writing(ino)?.zero(offset, len))?,
            _ => self.draft(ino, u64::MAX)?.zero(offset as usize..(offset + len) as usize),
        }
        Ok(len)
    }

    /// Removes the bytes from `len` on; returns whether there were any.
    pub fn cut_bytes(&mut self, ino: Ino, len: u64) -> Result<bool> {
        if self.bytes_len(ino)? <= len {
            return Ok(false);
        }
        match self.place(ino)? {
            Place::Object => refused(self.object_for_writing(ino)?.set_len(len))?,
            _ => self.draft(ino, len)?.cut(len as usize),
        }
        Ok(true)
    }

    /// Position of a write in the draft, if the file stays small; `None` if the write needs an object.
    pub fn stays_small(&self, ino: Ino, offset: u64, len: usize) -> Result<Option<usize>> {
        let Some(end) = usize::try_from(offset).ok().and_then(|at| at.checked_add(len)) else { return Ok(None) };
        let more = match self.place(ino)? {
            Place::Object => return Ok(None),
            Place::Nowhere => end,
            Place::Pack(extent) => end.max(extent.len()),
            Place::Draft => end.saturating_sub(self.inode(ino)?.draft.as_ref().map_or(0, |draft| draft.bytes().len())),
        };
        Ok((end <= self.small_max && self.drafts.have_room(more)).then_some(offset as usize))
    }

    /// The draft of a small file; a new one is made of the first `of` bytes.
    fn draft(&mut self, ino: Ino, of: u64) -> Result<&mut Draft> {
        let Place::Pack(extent) = self.place(ino)? else {
            let all = self.drafts.clone();
            debug_assert!(
                self.place(ino)? != Place::Object,
                "a draft of inode {ino}, which has its bytes in an object"
            );
            return Ok(self.inode_mut(ino)?.draft.get_or_insert_with(|| Box::new(Draft::new(&all, Vec::new()))));
        };
        // Bytes that will be cut off or overwritten need not be read.
        let bytes = match extent.with_first(of) {
            Some(extent) => refused(self.pack.read(extent))?,
            None => Vec::new(),
        };
        let draft = Draft::new(&self.drafts, bytes);
        Ok(self.inode_mut(ino)?.draft.insert(Box::new(draft)))
    }

    /// The object with the bytes of a file, opened; `None` if they are not in one.
    pub fn object(&mut self, ino: Ino) -> Result<Option<Arc<File>>> {
        let inode = self.inode(ino)?;
        if inode.place() != Place::Object {
            return Ok(None);
        }
        if inode.object.is_some() {
            return Ok(inode.object.clone());
        }
        self.open_object(ino).map(Some)
    }

    /// The object of a file, with all its bytes from now on; made if need be.
    pub fn object_for_writing(&mut self, ino: Ino) -> Result<Arc<File>> {
        if let Some(object) = self.object(ino)? {
            return Ok(object);
        }
        let mut bytes = vec![0; self.bytes_len(ino)? as usize];
        self.read_bytes(ino, 0, &mut bytes)?;
        let inode = self.inode(ino)?;
        let object = match (&inode.object, inode.row.object) {
            (Some(object), _) => object.clone(),
            // The object was made for contents that were given up later.
            (None, true) => self.open_object(ino)?,
            (None, false) => self.make_object(ino)?,
        };
        if let Err(e) = object.write_all_at(&bytes, 0) {
            // The uncommitted bytes stay in memory.
            object.rollback().map_err(errno)?;
            return Err(errno(e));
        }
        let inode = self.inode_mut(ino)?;
        (inode.draft, inode.is_grown) = (None, inode.row.extent.is_some());
        debug_assert_eq!(inode.place(), Place::Object, "the bytes of inode {ino} were written to its object");
        Ok(object)
    }

    /// Frees the bytes of an inode that is gone.
    pub fn doom_bytes(&mut self, ino: Ino, of: &Inode) {
        debug_assert!(!self.inodes.contains_key(&ino), "the bytes of inode {ino} are freed, and it is there");
        if let Some(extent) = of.row.extent {
            self.pack.free(extent);
        }
        if of.row.object {
            self.doomed.insert(ino);
        }
    }

    /// Gives up the uncommitted bytes of a file.
    pub fn give_up_bytes(&mut self, ino: Ino) -> untorn::Result<()> {
        let Some(inode) = self.inodes.get_mut(&ino) else { return Ok(()) };
        (inode.cut, inode.staged) = Default::default();
        if let Some(object) = &inode.object {
            object.rollback()?;
        }
        (inode.draft, inode.is_grown) = (None, false);
        debug_assert!(
            inode.place() != Place::Draft && inode.staged.is_empty(),
            "inode {ino} keeps uncommitted bytes at {:?}",
            inode.place()
        );
        Ok(())
    }
}
