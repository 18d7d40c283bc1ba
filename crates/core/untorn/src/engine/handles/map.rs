//! Mapped files: ordinary stores, followed by `msync`.

use crate::engine::Engine;
use crate::engine::commit::ticket::Ticket;
use crate::engine::content::Content;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::engine::handles::file::File;
use crate::engine::region::{Marked, Region, UnmarkedCheck};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::{Context, Error, Result};
use untorn_os::{LiveMemory, MapRequest, TrackerKind, memory_limit};

/// Least address space of a mapped file, unless [`MapOptions::address_space`] sets it: the reservation is this much or
/// four times the file's size, whichever is larger.
const ADDRESS_SPACE_MIN: u64 = 64 << 30;

/// Options for mapping a file.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MapOptions {
    offset: u64,
    len: Option<u64>,
    address_space: Option<u64>,
    address: Option<usize>,
    tracker: Option<TrackerKind>,
    dirty_max: Option<u64>,
    quiet: bool,
    debug_races: bool,
    debug_unmarked: bool,
    populate: bool,
    huge_pages: bool,
    beyond_end: bool,
    in_use: Option<u64>,
}

impl MapOptions {
    /// Maps the whole file, as it grows.
    pub fn new() -> MapOptions {
        MapOptions::default()
    }

    /// Offset in the file at which the map begins. Default: 0.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Bytes that the map covers. Default: to the end of the file, as it grows.
    pub fn len(mut self, len: u64) -> Self {
        self.len = Some(len);
        self
    }

    /// Let the map reach beyond the end of the file, for programs that map a large window first and extend the file
    /// later: bytes beyond the end become accessible when the file grows over them. Default: off.
    pub fn beyond_end(mut self, on: bool) -> Self {
        self.beyond_end = on;
        self
    }

    /// Bytes of address space to reserve: the file cannot outgrow them while it is mapped. They cost no memory.
    /// Default: 64 GiB or four times the file's size, whichever is larger, or less if there is not as much.
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.address_space = Some(bytes);
        self
    }

    /// Address of offset 0 of the file, a multiple of the page size. Mapping fails if the address is in use.
    pub fn address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// The way of finding stores. Default: the best one that works here, which [`Map::tracker`] returns.
    pub fn tracker(mut self, tracker: TrackerKind) -> Self {
        self.tracker = Some(tracker);
        self
    }

    /// Limit for the bytes of pages that the program stores to and that are not dropped. Required for files that are
    /// larger than memory; without it, mapping them is refused. With [`MapOptions::quiet`], a commit that finds more
    /// drops clean pages.
    pub fn dirty_max(mut self, bytes: u64) -> Self {
        self.dirty_max = Some(bytes);
        self
    }

    /// A promise that no thread stores to the file's maps while one of them is being committed with [`Map::msync`].
    /// Then a commit may drop pages whose contents the data file has, so that memory follows actual use. Default: off.
    /// The first map of a file decides.
    pub fn quiet(mut self, on: bool) -> Self {
        self.quiet = on;
        self
    }

    /// For debugging: [`Map::msync`] checks for stores that happened during the commit, and reports the first one as
    /// [`Error::RacingStore`]. Default: off.
    pub fn debug_races(mut self, on: bool) -> Self {
        self.debug_races = on;
        self
    }

    /// For debugging with [`TrackerKind::Explicit`]: a commit checks for bytes that were stored to and not marked, as the
    /// other trackers would find them. If there are any, it is refused with [`Error::Invalid`] before anything is
    /// written; the message names addresses. The check costs as much as the other trackers. No thread may store while a
    /// commit runs; otherwise a store that is about to be marked counts as an error. Default: off, unless the
    /// environment has `UNTORN_DEBUG_UNMARKED=1`; with `UNTORN_DEBUG_UNMARKED=warn`, commits are made, and each place is
    /// printed once to stderr. The first map of a file decides.
    pub fn debug_unmarked(mut self, on: bool) -> Self {
        self.debug_unmarked = on;
        self
    }

    /// Read the file into memory now, so that first accesses do not wait. Default: off.
    pub fn populate(mut self, on: bool) -> Self {
        self.populate = on;
        self
    }

    /// Ask for huge pages, where the kernel and the file system support them: faster for large files that are mostly
    /// read. Default: off.
    pub fn huge_pages(mut self, on: bool) -> Self {
        self.huge_pages = on;
        self
    }

    /// Bytes of the file that the program can use, if these are fewer than the file has.
    pub(crate) fn in_use(mut self, bytes: u64) -> Self {
        self.in_use = Some(bytes);
        self
    }

    /// The limit that the program gave for undropped stored bytes.
    pub(crate) fn dirty_max_given(&self) -> Option<u64> {
        self.dirty_max
    }

    /// Whether the program chose the tracker `explicit`.
    pub(crate) fn is_explicit(&self) -> bool {
        self.tracker == Some(TrackerKind::Explicit)
    }

    /// The way of checking for unreported stores, if the check is on.
    fn unmarked_check(&self) -> Option<UnmarkedCheck> {
        let wanted = std::env::var_os("UNTORN_DEBUG_UNMARKED").filter(|wanted| !wanted.is_empty() && wanted != "0");
        match wanted {
            _ if self.debug_unmarked => Some(UnmarkedCheck::Refuse),
            Some(wanted) if wanted == "warn" => Some(UnmarkedCheck::Warn),
            Some(_) => Some(UnmarkedCheck::Refuse),
            None => None,
        }
    }

    /// End of the range in the file, or `None` if no file can reach it.
    fn end(&self, size: u64) -> Option<u64> {
        self.len.map_or(Some(size.max(self.offset)), |len| self.offset.checked_add(len))
    }
}

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

fn check_same(region: &Region, writable: bool, options: &MapOptions, end: Option<u64>) -> Result<()> {
    let start = region.address() as usize;
    let wrong = match options {
        MapOptions { tracker: Some(t), .. } if *t != region.tracker() => {
            format!("with the tracker {}", region.tracker())
        }
        MapOptions { address: Some(a), .. } if *a != start => format!("at address {start:#x}"),
        MapOptions { address_space: Some(n), .. } if *n > region.address_space() => {
            format!("with {} bytes of address space", region.address_space())
        }
        _ if end.is_none_or(|end| end > region.address_space()) => {
            format!("with {} bytes of address space, too few for this range", region.address_space())
        }
        _ if writable && !region.writable => "for reading only, because the file could not be written then".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("the file is mapped already {wrong}; unmap it first, or map it the same way")))
}

/// Contents of live memory when it is mapped.
#[derive(Clone, Copy)]
pub(crate) enum LiveInit {
    /// None: it is filled with the content of the file.
    Nothing,
    /// This many bytes, which are the state that a commit would give to the file.
    Bytes(u64),
}

fn new_region(state: &FileState, options: &MapOptions, live: Option<(&LiveMemory, LiveInit)>) -> Result<Region> {
    let content = &state.content;
    let Some(data) = content.data.clone().filter(|_| state.life == Life::Named) else {
        return Err(not_made_yet(state.path()));
    };
    check_memory(state, options)?;
    let is_explicit = options.tracker == Some(TrackerKind::Explicit);
    let check = if is_explicit { options.unmarked_check() } else { None };
    let size = content.size_max();
    let least = options.end(size).unwrap_or(u64::MAX).max(size);
    let wanted = options.address_space.unwrap_or(size.saturating_mul(4).max(ADDRESS_SPACE_MIN)).max(least);
    let mut request = MapRequest {
        address_space: wanted,
        address: options.address,
        read_only: !state.writable,
        tracker: options.tracker.filter(|_| check.is_none()),
        huge_pages: options.huge_pages,
    };
    if let Some((memory, kept)) = live {
        return live_region(state, data, &request, memory, kept);
    }
    let mut mapping = data.map(&request);
    // Valgrind returns EINVAL.
    let no_room = |e: &std::io::Error| matches!(Errno::from_io_error(e), Some(Errno::NOMEM | Errno::INVAL));
    while options.address_space.is_none() && request.address_space > least && mapping.as_ref().is_err_and(no_room) {
        request.address_space = (request.address_space / 2).max(least);
        mapping = data.map(&request);
    }
    let mapping = mapping.map_err(|e| cannot_map(state, options.address, e))?;
    let mut region = Region::new(mapping, data, content, state.writable, is_explicit).map_err(|e| match e {
        // The error of strict overcommit for a writable private mapping.
        Error::Io { source, .. } if Errno::from_io_error(&source) == Some(Errno::NOMEM) => no_memory(
            content,
            format!(
                "the system refuses a private mapping of {size} bytes (strict overcommit, vm.overcommit_memory=2, or a \
                 limit, `ulimit -v`)"
            ),
        ),
        e => e,
    })?;
    region.quiet = options.quiet;
    if let Some(how) = check {
        region.check_from_now_on(how);
    }
    Ok(region)
}

/// The error for a file that an uncommitted transaction creates.
pub(crate) fn not_made_yet(path: &Path) -> Error {
    Error::invalid(format!("{} does not exist yet: commit the transaction that makes it, then map it", path.display()))
}

/// The error for a mapping that failed.
fn cannot_map(state: &FileState, address: Option<usize>, e: std::io::Error) -> Error {
    let content = &state.content;
    match Errno::from_io_error(&e) {
        Some(Errno::NOMEM) => {
            no_memory(content, "no room in the address space for its mapping (is there a limit, `ulimit -v`?)".into())
        }
        Some(Errno::OPNOTSUPP) => Error::Unsupported {
            path: content.path.clone(),
            detail: "the tracker `scan` needs Linux 6.7 or newer and a permitted userfaultfd; the tracker `pagemap` \
                     works everywhere"
                .into(),
        },
        Some(Errno::ACCESS) => Error::Unsupported {
            path: content.path.clone(),
            detail: "finding stores to a mapping needs /proc/self/pagemap, which the kernel denies to a process that \
                     has changed its user: call prctl(PR_SET_DUMPABLE, 1) after the change"
                .into(),
        },
        Some(Errno::EXIST) => Error::invalid(format!(
            "{}: something else is mapped at address {:#x}",
            state.path().display(),
            address.unwrap_or_default()
        )),
        _ => Error::io("map", &content.path, e),
    }
}

/// Maps a file in memory that outlives the process.
fn live_region(
    state: &FileState,
    data: Arc<dyn untorn_os::File>,
    request: &MapRequest,
    memory: &LiveMemory,
    kept: LiveInit,
) -> Result<Region> {
    if !state.writable {
        return Err(Error::invalid(format!(
            "{}: a live heap needs a file that can be written; this file, or its file system, is read-only",
            state.path().display()
        )));
    }
    let bytes = match kept {
        LiveInit::Nothing => 0,
        LiveInit::Bytes(bytes) => bytes,
    };
    let mapping = memory.map(data.clone(), request, bytes).map_err(|e| cannot_map(state, request.address, e))?;
    match kept {
        LiveInit::Nothing => Region::new_live(mapping, data, &state.content),
        LiveInit::Bytes(bytes) => Ok(Region::resumed(mapping, data, bytes)),
    }
}

fn no_memory(content: &Content, detail: String) -> Error {
    Error::NoMemory { path: content.path.clone(), detail }
}

/// Checks that the stored pages will fit in memory, which they take until they are dropped. A program that could store
/// to more pages than fit must state a limit, because running out of memory kills the program without naming a limit.
fn check_memory(state: &FileState, options: &MapOptions) -> Result<()> {
    if !state.writable {
        return Ok(());
    }
    let Some(limit) = memory_limit() else { return Ok(()) };
    let (most, what) = match options.dirty_max {
        Some(most) => (most, "`dirty_max`".to_owned()),
        None => match options.in_use {
            Some(bytes) => (bytes, "the part of the file in use".to_owned()),
            None => (state.content.size(), "the file".to_owned()),
        },
    };
    if most <= limit.bytes {
        return Ok(());
    }
    Err(no_memory(
        &state.content,
        format!(
            "{what} has {most} bytes, but {} allows only {} bytes of memory and swap; set a `dirty_max` below this \
             limit, and commit before the changed pages exceed it",
            limit.of, limit.bytes
        ),
    ))
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
        tracing::warn!(file = %self.file.path().display(), error = %e, "after a commit");
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
            tracing::error!(file = %self.file.path().display(), error = %e, "what was stored to a mapping waits");
        }
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("address", &self.address).field("offset", &self.offset).finish_non_exhaustive()
    }
}
