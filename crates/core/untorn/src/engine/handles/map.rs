//! Mapped files: ordinary stores, followed by `msync`.

use crate::engine::Engine;
use crate::engine::commit::ticket::Ticket;
use crate::engine::files::file_state::{FileState, SharedFile};
use crate::engine::handles::file::File;
use crate::engine::handles::map_options::MapOptions;
use crate::engine::handles::new_mapping::{LiveInit, check_same, new_region};
use crate::engine::region::{Marked, Region};
use std::sync::Arc;
use untorn_journal::{Context, Error, Result};
use untorn_os::{LiveMemory, TrackerKind};

/// A mapped file, or a part of it. All maps of a file are views of one mapping, and so is the file interface: a store
/// through one is visible in the others at once.
///
/// Store through [`Map::as_mut_ptr`] freely; nothing reaches the data file before a commit, and a commit always covers
/// the whole file, all or nothing. **No thread should store while a commit runs**: such a store is in that commit or in
/// the next one, never torn between the journal and the data file.
///
/// Dropping the last map of a file ends its mapping: uncommitted stores remain uncommitted changes of the file, until
/// its last handle is closed.
pub struct Map {
    file: File,
    address: *mut u8,
    offset: u64,
    len: Option<u64>,
    marked: Arc<Marked>,
    unmapped: bool,
}

// SAFETY: the address is only handed out; each use of it is the caller's `unsafe`.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl File {
    /// Maps the whole file.
    pub fn map(&self) -> Result<Map> {
        self.map_with(&MapOptions::default())
    }

    /// Maps the file.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: there is not enough memory or address space; the message names the limit.
    /// [`Error::Unsupported`]: the requested tracker does not work here. [`Error::Invalid`]: the range is beyond the
    /// end of the file, or the file is already mapped with other options.
    pub fn map_with(&self, options: &MapOptions) -> Result<Map> {
        self.map_region(options, None)
    }

    /// Maps the file, which must not be mapped yet, in memory that outlives the process.
    pub(crate) fn map_live(&self, options: &MapOptions, memory: &LiveMemory, kept: LiveInit) -> Result<Map> {
        self.map_region(options, Some((memory, kept)))
    }

    fn map_region(&self, options: &MapOptions, live: Option<(&LiveMemory, LiveInit)>) -> Result<Map> {
        let file = self.try_clone()?;
        let mut state = file.store.changeable(&file.shared)?;
        state.check_alive()?;
        let size = state.content.size();
        let end = options.end(size);
        if !options.beyond_end && (options.offset > size || end.is_none_or(|end| end > size)) {
            return Err(Error::invalid(format!(
                "{}: the range to be mapped is beyond the end of the file, which has {size} bytes; make the file \
                 larger first",
                state.path().display()
            )));
        }
        let fresh = state.region.is_none();
        if fresh {
            let region = new_region(&state, options, live)?;
            state.region = Some(region);
            if let Some((_, LiveInit::Bytes(bytes))) = live {
                state.content.set_size(bytes);
            }
        } else if live.is_some() {
            return Err(Error::invalid(format!("{}: the file is mapped already", state.path().display())));
        }
        let (path, writable) = (state.path().to_owned(), state.writable && self.may_store());
        let region = state.region.as_mut().expect("made above if there was none");
        let fit = check_same(region, writable, options, end).and_then(|()| match options.populate {
            true => region.populate().context("read ahead", &path),
            false => Ok(()),
        });
        if let Err(e) = fit {
            if fresh {
                state.region = None;
            }
            return Err(e);
        }
        debug_assert!(
            end.is_none_or(|end| end <= region.address_space()),
            "a map up to {end:?} in {} bytes of address space",
            region.address_space()
        );
        region.maps += 1;
        region.debug_races |= options.debug_races;
        if let Some(most) = options.dirty_max {
            region.dirty_max = Some(region.dirty_max.map_or(most, |old| old.min(most)));
        }
        let address = region.address().wrapping_add(options.offset as usize);
        let marked = region.marked();
        drop(state);
        Ok(Map { file, address, offset: options.offset, len: options.len, marked, unmapped: false })
    }
}

impl Map {
    /// Address of the beginning of the map. Valid until the map is dropped.
    pub fn as_ptr(&self) -> *const u8 {
        self.address
    }

    /// Address of the beginning of the map, for storing to it; the file must be writable. Valid until the map is
    /// dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.address
    }

    /// Bytes of the map: the requested number, or up to the present end of the file. Never beyond the end.
    pub fn len(&self) -> u64 {
        self.len_in(&self.file.shared.read())
    }

    /// Accessible bytes. For an unlinked file, unapplied changes are gone, and a size among them.
    fn len_in(&self, state: &FileState) -> u64 {
        let end = state.region.as_ref().map_or(0, |region| region.accessible().min(state.content.size()));
        let rest = end.saturating_sub(self.offset);
        self.len.map_or(rest, |len| len.min(rest))
    }

    /// Whether nothing can be accessed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Offset in the file at which the map begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of address space that the file's mapping reserved, from offset 0 on: the file cannot outgrow them while it
    /// is mapped.
    pub fn address_space(&self) -> Result<u64> {
        let (_, shared) = self.usable()?;
        shared.read().region.as_ref().map(Region::address_space).ok_or(Error::Closed)
    }

    /// The map as a slice.
    ///
    /// # Safety
    /// While the slice lives, nobody may change these bytes (also not through [`File`] or another map), shrink the
    /// file, or roll it back.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes are accessible; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address, self.len() as usize) }
    }

    /// The map as a mutable slice.
    ///
    /// # Safety
    /// While the slice lives, nobody else may access these bytes, shrink the file, or roll it back.
    #[allow(clippy::mut_from_ref, reason = "the caller promises to be alone")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        // SAFETY: `len` bytes are accessible; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len() as usize) }
    }

    fn usable(&self) -> Result<(&Engine, &Arc<SharedFile>)> {
        self.file.store.life.check_usable()?;
        Ok((&self.file.store, &self.file.shared))
    }

    fn within(&self, state: &FileState, offset: u64, len: u64) -> Result<u64> {
        let most = self.len_in(state);
        if offset.checked_add(len).is_none_or(|end| end > most) {
            return Err(Error::invalid(format!(
                "{len} bytes at offset {offset} end beyond the map, which has {most} bytes"
            )));
        }
        Ok(self.offset + offset)
    }

    /// Copies bytes out of the map, with checks.
    pub fn load(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (_, shared) = self.usable()?;
        let state = shared.read();
        let at = self.within(&state, offset, buf.len() as u64)?;
        state.region.as_ref().ok_or(Error::Closed)?.read(&state.content, buf, at)
    }

    /// Stores bytes to the map, with checks.
    pub fn store(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.usable()?;
        let mut state = self.file.changing()?;
        let at = self.within(&state, offset, bytes.len() as u64)?;
        state.store_mapped(at, bytes)
    }

    /// Commits all changes of the file, through whichever interface they were made, like [`File::commit`]: durable on
    /// return, all or nothing.
    ///
    /// # Errors
    /// Those of [`File::commit`]; [`Error::Conflict`] if another program changed or truncated the file; with
    /// [`MapOptions::debug_races`], [`Error::RacingStore`].
    pub fn msync(&self) -> Result<()> {
        self.file.commit()?;
        self.after_commit()
    }

    /// Checks for stores during the commit, and drops clean pages, if these options are on.
    fn after_commit(&self) -> Result<()> {
        let (engine, shared) = self.usable()?;
        self.check_races()?;
        let quiet = shared.read().region.as_ref().is_some_and(|r| r.quiet && r.wants_reclaim());
        if quiet {
            // The commit has happened, so a failure to drop pages is not a failure of the commit.
            let _ = self.reclaim_quiet(engine, shared).inspect_err(|e| self.note(e));
        }
        Ok(())
    }

    /// Pages of the file that were stored to and are in no commit yet.
    pub(crate) fn stored_pages(&self) -> Result<Vec<std::ops::Range<u64>>> {
        let (_, shared) = self.usable()?;
        let mut state = shared.write();
        let FileState { region, content, .. } = &mut *state;
        region.as_mut().ok_or(Error::Closed)?.stored(content)
    }

    /// Checks for stores that happened while a commit collected stores, if that option is on.
    pub(crate) fn check_races(&self) -> Result<()> {
        let (_, shared) = self.usable()?;
        let debug = shared.read().region.as_ref().is_some_and(|region| region.debug_races);
        match if debug { shared.write().race().inspect_err(|e| self.note(e)) } else { Ok(None) } {
            Ok(Some(race)) => {
                Err(Error::RacingStore { path: self.file.path(), address: race.address, offset: race.offset })
            }
            _ => Ok(()),
        }
    }

    /// Logs a failure that followed a commit.
    pub(crate) fn note(&self, e: &Error) {
        tracing::warn!(
            id = "untorn.map.after_commit",
            file = %self.file.path().display(), error = %e, "a step after a commit of a mapping failed"
        );
    }

    /// Whether so many pages were stored to that dropping some pays, and whether these are more than `dirty_max`.
    pub(crate) fn wants_reclaim(&self) -> (bool, bool) {
        let state = self.file.shared.read();
        state.region.as_ref().map_or((false, false), |region| (region.wants_reclaim(), region.is_over()))
    }

    /// Number of further pieces that the file's mapping may have.
    pub(crate) fn pieces_left(&self) -> usize {
        self.file.shared.read().region.as_ref().map_or(0, Region::pieces_left)
    }

    /// Drops clean pages, while nobody stores.
    pub(crate) fn drop_clean_pages(&self) -> Result<()> {
        let (engine, shared) = self.usable()?;
        shared.write().drop_clean_pages(engine)
    }

    /// Commits without waiting. The commit has everything stored so far, and the ticket tells when it is durable.
    pub fn msync_async(&self) -> Result<Ticket> {
        self.file.commit_async()
    }

    /// Returns to the last commit: drops later changes, also in memory.
    pub fn rollback(&self) -> Result<()> {
        self.file.rollback()
    }

    /// Makes the file larger or smaller, as an uncommitted change. Memory beyond a smaller end becomes inaccessible; a
    /// larger file has zeros behind its old end.
    pub fn resize(&self, size: u64) -> Result<()> {
        self.file.set_len(size)
    }

    /// Marks the bytes of an object in the map as changed; see [`Map::mark_dirty`].
    ///
    /// # Errors
    /// Those of [`Map::mark_dirty`].
    pub fn mark_dirty_value<T: ?Sized>(&self, value: &T) -> Result<()> {
        self.mark_dirty(std::ptr::from_ref(value).cast(), size_of_val(value))
    }

    /// Marks `len` bytes at `address`, which is in the map, as changed: they are in the next commit.
    ///
    /// With [`TrackerKind::Explicit`], a commit has exactly the bytes that were marked since the last one, and a
    /// rollback undoes these. The other trackers find stores by themselves, except those of a device that writes to
    /// memory, as with registered io_uring buffers and O_DIRECT reads that are on their way during a commit. With them,
    /// the call takes the lock of the file.
    ///
    /// Any thread may mark, before it stores or afterwards. **A store and its mark must be on the same side of a
    /// commit**: if another thread may commit between them, call this after the store.
    ///
    /// # Errors
    /// [`Error::Invalid`]: some of the bytes are not in the map; nothing was marked. [`Error::Closed`],
    /// [`Error::Forked`].
    #[inline]
    pub fn mark_dirty(&self, address: *const u8, len: usize) -> Result<()> {
        self.note_store(address, len)?;
        if self.marked.is_on() { Ok(()) } else { self.mark_pages(address, len) }
    }

    /// Marks pages for a tracker that finds stores by itself.
    #[cold]
    fn mark_pages(&self, address: *const u8, len: usize) -> Result<()> {
        let (_, shared) = self.usable()?;
        let at = self.offset + (address as usize - self.address as usize) as u64;
        shared.write().region.as_mut().ok_or(Error::Closed)?.mark(at..at + len as u64);
        Ok(())
    }

    /// Marks a store of the library's own, which other trackers than [`TrackerKind::Explicit`] find by themselves.
    #[inline]
    pub(crate) fn note_store(&self, address: *const u8, len: usize) -> Result<()> {
        self.file.store.life.check_usable()?;
        let at = (address as usize).wrapping_sub(self.address as usize) as u64;
        let in_window = at.checked_add(len as u64).is_some_and(|end| end <= self.len.unwrap_or(u64::MAX));
        let base = (self.address as usize).wrapping_sub(self.offset as usize);
        match in_window && self.marked.mark_dirty(base, address as usize, len) {
            true => Ok(()),
            false => Err(self.not_in_the_map(address, len)),
        }
    }

    /// The lists in which the program's threads report changes.
    pub(crate) fn marked(&self) -> Arc<Marked> {
        self.marked.clone()
    }

    #[cold]
    fn not_in_the_map(&self, address: *const u8, len: usize) -> Error {
        Error::invalid(format!(
            "{}: {len} bytes at address {address:p} are not in the map, which has {} bytes at {:p}; nothing was \
             marked. Mark only bytes that are in the map now",
            self.file.path().display(),
            self.len(),
            self.address
        ))
    }

    /// Gives memory back: brings the data file up to the last commit, then drops all pages whose contents it has. **No
    /// thread may store to the file's maps during this call**: a store could be lost.
    pub fn reclaim(&self) -> Result<()> {
        let (engine, shared) = self.usable()?;
        self.file.check_not_heap()?;
        shared.read().check_alive()?;
        shared.write().stage_stores(engine)?;
        engine.checkpoint()?;
        // The checkpoint took time: stores during it, which are forbidden, are at least not dropped.
        let mut state = shared.write();
        state.stage_stores(engine)?;
        state.reclaim_pages()
    }

    /// Drops clean pages, and after a checkpoint again if there are still too many.
    fn reclaim_quiet(&self, engine: &Engine, shared: &SharedFile) -> Result<()> {
        shared.write().reclaim_pages()?;
        if shared.read().region.as_ref().is_some_and(|r| r.is_over() || r.wants_reclaim()) {
            engine.checkpoint()?;
            shared.write().reclaim_pages()?;
        }
        Ok(())
    }

    /// The way in which stores are found.
    pub fn tracker(&self) -> Result<TrackerKind> {
        let (_, shared) = self.usable()?;
        shared.read().region.as_ref().map(Region::tracker).ok_or(Error::Closed)
    }

    /// The mapped file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Ends the map. Uncommitted stores remain uncommitted changes of the file; if this was its last handle, they are
    /// discarded. After an error, the memory stays until a commit could read it, or until the file is rolled back or
    /// closed.
    pub fn unmap(mut self) -> Result<()> {
        self.file.store.life.check_fork()?;
        self.unmap_now()
    }

    /// Whether the program may store to the map.
    pub(crate) fn is_writable(&self) -> bool {
        self.file.shared.read().region.as_ref().is_some_and(|region| region.writable) && self.file.may_store()
    }

    fn unmap_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.unmapped, true) {
            return Ok(());
        }
        let mut state = self.file.shared.write();
        let Some(region) = state.region.as_mut() else { return Ok(()) };
        debug_assert!(region.maps > 0, "a map of a mapping without maps, at {:?}", self.address);
        region.maps -= 1;
        if region.maps > 0 {
            return Ok(());
        }
        if region.is_live() {
            // The memory keeps the stores; the next opening of the heap continues from it.
            state.region = None;
            return if state.txn.is_none() { state.discard_changes() } else { Ok(()) };
        }
        // Without other handles, nobody would see the stores.
        let is_seen = state.handles > 1 || state.txn.is_some();
        if is_seen && self.file.store.life.check_usable().is_ok() {
            return state.stage_stores(&**self.file.store);
        }
        state.region = None;
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // In a forked child, a lock may be held by a thread that does not exist there.
        if self.file.store.life.check_fork().is_ok()
            && let Err(e) = self.unmap_now()
        {
            tracing::error!(
                id = "untorn.map.stores_wait",
                file = %self.file.path().display(), error = %e, "stores to a mapping are neither committed nor discarded"
            );
        }
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("address", &self.address).field("offset", &self.offset).finish_non_exhaustive()
    }
}
