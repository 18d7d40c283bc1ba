//! Contents of files: reads and writes of programs.

pub(crate) mod holes;
pub(crate) mod places;
pub(crate) mod plain_contents;

use crate::contents::holes::Holes;
use crate::contents::places::{Source, read_all, read_extent};
use crate::interface::file_tree::{Change, Errno, Ino, KernelCache, Result};
use crate::tree::core::{Core, refused};
use crate::tree::store_tree::{CommitMode, Held, StoreTree};
use std::sync::atomic::Ordering::Relaxed;

/// The largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes that are recovered from the kernel's cache at a time.
const PIECE: usize = 64 << 10;

/// Zeros that are written at a time.
const ZEROS: u64 = 1 << 20;

/// The size that a change sets, if it sets one.
pub(crate) fn size_of_change(change: &Change) -> Result<Option<u64>> {
    match change.size {
        Some(size) if size > SIZE_MAX => Err(Errno(libc::EFBIG)),
        size => Ok(size),
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno(libc::EFBIG))
}

impl StoreTree {
    pub(crate) fn read_contents(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (len, source) = {
            let mut core = self.core()?;
            let inode = core.inode(ino)?;
            if !inode.is_file() {
                return Err(Errno(libc::EISDIR));
            }
            // The tree lacks the bytes that a program wrote last. The kernel must not take the older bytes for those.
            if inode.lost.overlaps(&(offset..offset.saturating_add(buf.len() as u64))) {
                return Err(Errno(libc::EIO));
            }
            let len = inode.size().saturating_sub(offset).min(buf.len() as u64) as usize;
            (len, core.source(ino, offset, &mut buf[..len])?)
        };
        let buf = &mut buf[..len];
        let done = match source {
            Source::Read(done) => done,
            Source::Object(object) => read_all(&object, buf, offset)?,
            Source::Pack { file, extent, moves } => {
                let done = read_extent(&file, extent, buf, offset)?;
                let mut core = self.core()?;
                // Another file's bytes may be in the extent by now.
                if core.pack.moves() == moves { done } else { core.read_bytes(ino, offset, buf)? }
            }
        };
        // There may be fewer bytes than the file is long: the rest is a hole.
        buf[done..].fill(0);
        Ok(len)
    }

    /// Notes that the file has uncommitted contents from now on; `first` is the first byte that changes.
    fn begin_change(core: &mut Core, ino: Ino, first: u64) -> Result<&mut crate::table::inode::Uncommitted> {
        let (now, elapsed) = (core.clock.now(), core.clock.elapsed());
        core.changed.insert(ino);
        let inode = core.inode_mut(ino)?;
        let is_open = inode.openings > 0;
        let u = inode.change(elapsed);
        u.kept = u.kept.min(first);
        (u.mtime, u.ctime) = (now, now);
        if !is_open {
            u.since = elapsed;
        }
        Ok(u)
    }

    /// Ends a change of contents: `--commit=write` commits it before the reply.
    fn changed(&self, mut core: Held<'_>, ino: Ino) -> Result<()> {
        if self.mode == CommitMode::Write {
            let inode = core.inode(ino)?;
            if inode.is_poisoned() {
                return Err(Errno(libc::EIO));
            }
            if inode.txn.is_some() {
                return Ok(());
            }
            core.commit_waited(&[ino])?;
            return self.wait_to_tell(core);
        }
        self.relieve(&mut core)
    }

    /// Writes to a file. If the write fails and `is_late`, no program learns which write failed, so its range is noted
    /// as lost.
    pub(crate) fn write_contents(&self, ino: Ino, offset: u64, data: &[u8], is_late: bool) -> Result<()> {
        let mut core = self.core()?;
        if !core.inode(ino)?.is_file() {
            return Err(Errno(libc::EINVAL));
        }
        let end = end_of(offset, data.len() as u64);
        let staged = end.and_then(|end| self.limits.size(end)).and_then(|()| Self::stage(&mut core, ino, offset, data));
        if let Err(e) = staged {
            if is_late && !data.is_empty() {
                tracing::warn!(
                    id = "untorn.tree.write_failed",
                    ino,
                    offset,
                    errno = e.0,
                    "a write failed: the file cannot be committed until it is written anew"
                );
                core.inode_mut(ino)?.lose(offset..offset.saturating_add(data.len() as u64));
                core.changed.insert(ino);
                self.any_poisoned.store(true, Relaxed);
            }
            return Err(e);
        }
        self.changed(core, ino)
    }

    /// Prepares a poisoned file for a program that opens it for writing while no other program has it open so.
    ///
    /// The file goes back to its last commit, because nobody knows which contents it should have.
    pub(crate) fn restore(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        if !self.any_poisoned.load(Relaxed) {
            return Ok(());
        }
        // A second caller must wait, so that it does not find the discarded contents in the kernel's cache.
        let _turn = self.restoring.try_lock().unwrap_or_else(|| {
            cache.begin_waiting();
            self.restoring.lock()
        });
        let is_due = |core: &Core| {
            let is_due =
                |inode: &crate::table::inode::Inode| inode.is_poisoned() && inode.writers == 0 && inode.txn.is_none();
            core.inodes.get(&ino).is_some_and(is_due)
        };
        if !is_due(&*self.core()?) {
            return Ok(());
        }
        if let Err(e) = self.bring_back(ino, cache)
            && e != Errno(libc::EIO)
        {
            // The kernel has all of the lost data, and there is only no room for it now: the file stays as it is.
            return Ok(());
        }
        let size = {
            let mut core = self.changing()?;
            if !is_due(&core) {
                return Ok(());
            }
            core.roll_back(ino)?;
            core.inode(ino)?.size()
        };
        tracing::warn!(
            id = "untorn.tree.rolled_back",
            ino,
            "rolled a file back to its last commit, because a write of it had failed and a program opens it again"
        );
        cache.rolled_back(ino, size);
        Ok(())
    }

    /// Recovers the data of a file's failed writes, if the kernel has all of it still.
    ///
    /// # Errors
    /// `EIO` if the kernel has not, or the failed writes are not known; else the reason why the data cannot be written
    /// now, either.
    pub(crate) fn bring_back(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let (range, failures) = {
                let core = self.changing()?;
                let inode = core.inode(ino)?;
                let Some(lost) = inode.lost.first() else { return Ok(()) };
                if inode.poisoned || inode.is_gone {
                    return Err(Errno(libc::EIO));
                }
                (lost.start..lost.end.min(lost.start + PIECE as u64), inode.failures)
            };
            let bytes = &mut piece[..(range.end - range.start) as usize];
            let found = cache.cached(ino, range.start, bytes);
            let mut core = self.changing()?;
            let inode = core.inode_mut(ino)?;
            if inode.failures != failures {
                continue;
            }
            if let Err(e) = found {
                inode.is_gone = e == Errno(libc::EIO);
                tracing::warn!(
                    id = "untorn.tree.kernel_lost_data",
                    ino,
                    errno = e.0,
                    "the kernel no longer has the data of a failed write"
                );
                return Err(Errno(libc::EIO));
            }
            // A program may have written a part of the range meanwhile; its bytes are newer.
            let lost: Vec<_> =
                inode.lost.overlapping(&range).map(|r| r.start.max(range.start)..r.end.min(range.end)).collect();
            for part in lost {
                let of = (part.start - range.start) as usize..(part.end - range.start) as usize;
                Self::stage(&mut core, ino, part.start, &bytes[of])?;
            }
        }
    }

    fn stage(core: &mut Core, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        core.check()?;
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        core.write_bytes(ino, offset, data)?;
        let u = Self::begin_change(core, ino, offset)?;
        u.size = u.size.max(end);
        core.inode_mut(ino)?.regain(offset..end);
        debug_assert!(
            core.changed.contains(&ino) && !core.inode(ino)?.lost.overlaps(&(offset..end)),
            "inode {ino} was written at {offset}..{end}, and has lost {:?}",
            core.inode(ino)?.lost
        );
        core.note_data(ino, offset, data);
        Ok(())
    }

    pub(crate) fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        let mut core = self.changing()?;
        let inode = core.inode(ino)?;
        if !inode.is_file() {
            return Err(Errno(if inode.is_dir() { libc::EISDIR } else { libc::EINVAL }));
        }
        let old = inode.size();
        if size == old && size > 0 && inode.uncommitted.is_none() {
            if inode.is_poisoned() {
                core.inode_mut(ino)?.regain(size..u64::MAX);
            }
            return Ok(());
        }
        if size > old {
            drop(core);
            self.limits.size(size)?;
            self.check_room()?;
            core = self.changing()?;
        }
        if core.cut_bytes(ino, size)? {
            core.note_length(ino, size);
        }
        let u = Self::begin_change(&mut core, ino, size.min(old))?;
        u.size = size;
        let inode = core.inode_mut(ino)?;
        inode.regain(size..u64::MAX);
        if size == 0 {
            inode.cure();
        }
        debug_assert!(
            inode.size() == size && !inode.lost.overlaps(&(size..u64::MAX)),
            "inode {ino} is cut to {size}, has {} bytes, and has lost {:?}",
            inode.size(),
            inode.lost
        );
        self.changed(core, ino)
    }

    pub(crate) fn allocate_contents(&self, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()> {
        use libc::{FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE as PUNCH, FALLOC_FL_ZERO_RANGE as ZERO};
        let (punches, zeroes, keeps) = (mode & PUNCH != 0, mode & ZERO != 0, mode & KEEP != 0);
        if mode & !(KEEP | PUNCH | ZERO) != 0 || punches && (zeroes || !keeps) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if len == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let end = end_of(offset, len)?;
        if !self.core()?.inode(ino)?.is_file() {
            return Err(Errno(libc::ENODEV));
        }
        if !punches {
            self.limits.size(end)?;
        }
        self.limits.change(ino)?;
        match (punches, zeroes) {
            (true, _) => {}
            (_, true) => self.check_room()?,
            _ => self.keep_room(ino, offset, len, keeps)?,
        }
        let mut core = self.changing()?;
        let old = core.inode(ino)?.size();
        let size = if keeps { old } else { old.max(end) };
        if punches || zeroes {
            let zeroed = core.zero_bytes(ino, offset, len)?;
            core.inode_mut(ino)?.regain(offset..end);
            if zeroed > 0 {
                Self::begin_change(&mut core, ino, offset)?;
                core.note_zeros(ino, offset, zeroed);
            }
        }
        if size != old {
            Self::begin_change(&mut core, ino, old)?.size = size;
        }
        self.changed(core, ino)
    }

    /// Reserves room for a range of a file.
    ///
    /// A larger file's object gets the room in the file system below now. A small file gets zero bytes, unless its size
    /// must stay; its commit uses the room that is kept free for commits.
    fn keep_room(&self, ino: Ino, offset: u64, len: u64, keeps_size: bool) -> Result<()> {
        let end = offset + len;
        let mut core = self.changing()?;
        let there = core.bytes_len(ino)?;
        if core.stays_small(ino, there, end.saturating_sub(there) as usize)?.is_some() {
            self.check_room()?;
            return if keeps_size { Ok(()) } else { Self::write_zeros(&mut core, ino, there, end) };
        }
        let taken = Holes::of(&mut core, ino)?.map_or(0, |holes| holes.blocks(end) * 512);
        self.check_room_for(len.min(end.saturating_sub(taken)))?;
        let object = core.object_for_writing(ino)?;
        let old = core.inode(ino)?.size();
        Self::begin_change(&mut core, ino, old)?;
        drop(core);
        let mut kept = refused(object.keep_room(offset, len))?;
        if kept.is_none() {
            // The commit that makes the object is on its way.
            self.wait(self.core()?)?;
            kept = refused(object.keep_room(offset, len))?;
        }
        let lost = kept.ok_or(Errno(libc::EIO))?;
        // In these ranges a truncation or hole that is not applied yet will give the room back when it reaches the data
        // file. Written zeros keep the room.
        for range in lost {
            if keeps_size && range.end > old {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            let mut at = range.start;
            while at < range.end {
                let to = range.end.min(at + ZEROS);
                Self::write_zeros(&mut *self.changing()?, ino, at, to)?;
                at = to;
            }
        }
        Ok(())
    }

    fn write_zeros(core: &mut Core, ino: Ino, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        Self::stage(core, ino, from, &vec![0; (to - from) as usize])
    }

    pub(crate) fn seek_contents(&self, ino: Ino, offset: u64, whence: i32) -> Result<u64> {
        self.core()?.seek(ino, offset, whence)
    }
}
