//! Live heaps: working memory that outlives its process and is continued by the next one.
//!
//! The heap's file has a stamp that names the memory from which its last commit, a *cut*, came. An opening continues
//! from that memory if the memory is of this boot, of this file and of this cut, and if no change in it was half done.
//! Memory that survives a power cut may be of another boot. Otherwise the heap is at its last cut, as any heap is at its
//! last commit.

pub(super) mod cuts;
pub(super) mod lost_memory;
pub(crate) mod memory_file;
pub(crate) mod outlook;
pub(super) mod own_pages;

use crate::engine::handles::file::File;
use crate::engine::handles::map::Map;
use crate::engine::options::FailureClass;
use crate::heap::image::check::{Checker, ChunkSet, HeapImage, HeapImageMut};
use crate::heap::image::free_in_image::is_inside;
use crate::heap::image::layout::{CHUNK_BYTES, Header, SEGMENT_BYTES, STAMP_AT, Stamp};
use crate::heap::live::cuts::StopTimes;
use crate::heap::live::memory_file::{Identity, class_of};
use crate::heap::log::flushing::Flushing;
use crate::heap::log::live_head::{LiveHead, Owner, Place, START_BYTES, medium_in};
use crate::heap::log::section_log::SectionLogs;
use crate::heap::log::section_recovery::{self, Recovery};
use crate::invariant;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn_journal::directories::store_dir::STORE_DIR;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Errno, FileHandle, FoundMemory, Invariant, LiveMedium, LiveMemory, holds, live_memory_top};

/// The state in which a live heap was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveStart {
    /// No process had left working memory: the heap is at its last commit.
    New,
    /// Everything that the process before had stored.
    WentOn,
    /// The last cut; the text says why the heap could not continue from the memory.
    LastCut(String),
}

/// The working memory of a live heap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveReport {
    /// The file in memory.
    pub memory: PathBuf,
    /// The failures that the memory survives: [`FailureClass::Process`], or [`FailureClass::Memory`] if it is on
    /// byte-addressable memory.
    pub class: FailureClass,
    /// Whether lines of the memory are flushed, because the caches are lost with the power. Then a power cut spares what
    /// sections and guards of [`crate::heap::Heap::mutate`] have changed. Otherwise memory of class `memory` keeps every
    /// store.
    pub flushes: bool,
    /// How the heap began.
    pub start: LiveStart,
    /// Sections that had not ended when the process did, and were undone.
    pub undone: usize,
    /// Sections that had ended, and were undone because they had seen changes of an unfinished one.
    pub cascaded: usize,
    /// The times for which cuts of this opening stopped the program's threads.
    pub stops: StopTimes,
}

/// The working memory of an open live heap.
pub(crate) struct Working {
    memory: Arc<LiveMemory>,
    pub head: LiveHead,
    /// The medium that this opening has chosen.
    medium: LiveMedium,
    uid: u32,
    start: LiveStart,
    /// Blocks that undone sections had allocated, and blocks that completed sections had freed.
    unfreed: Vec<usize>,
    /// The number of sections that had not ended, and of those that were undone with them.
    undone: (usize, usize),
    stops: Mutex<StopTimes>,
    copied_pages: AtomicU64,
}

/// The state of the working memory that a heap's file names.
pub(crate) enum FoundLive {
    /// The file names no memory.
    Nothing,
    /// Memory from which the heap continues.
    Resumable(Resumable),
    /// The heap is at its last cut; the text says why.
    LastCut(String),
}

/// Live memory from which an opening continues.
pub(crate) struct Resumable {
    pub working: Working,
    /// The size of the heap.
    pub bytes: u64,
    /// The heap's address space, which an opening may have enlarged without a commit.
    pub address_space: u64,
}

/// The owner that live memory must have to be that of a heap's file now.
fn owner(file: &File, of: &Identity, incarnation: [u8; 16]) -> Result<Owner> {
    let boot = file.store.storage.boot_id().context("read the boot id for", file.path())?;
    Ok(Owner { boot, incarnation, device: of.device, inode: of.inode })
}

/// Notes in the memory where its file is, for a process that rescues the memory.
fn note_place(head: &LiveHead, file: &File) {
    // Without a path the memory cannot be rescued, but everything else works.
    let Ok(store) = std::fs::canonicalize(&file.store.path) else { return };
    let name = file.store.store_dir.standalone.is_none().then(|| file.path());
    let place = Place { store, name };
    head.set_place(&place, FileHandle::of(&place.path()));
}

/// Live memory in which unfinished changes are undone: the memory itself, during an opening, or a copy.
pub(crate) trait Mendable: HeapImageMut {
    fn name(&self) -> &Path;

    /// The address of the head, valid while this value exists and nobody else changes the head.
    fn own(&self) -> NonNull<u8>;
}

impl HeapImage for LiveMemory {
    fn bytes(&self) -> Result<u64> {
        self.body_bytes().context("look at", self.path())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buf, offset).context("read", self.path())
    }
}

impl HeapImageMut for LiveMemory {
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_at(bytes, offset).context("write to", self.path())
    }
}

impl Mendable for LiveMemory {
    fn name(&self) -> &Path {
        self.path()
    }

    fn own(&self) -> NonNull<u8> {
        self.head()
    }
}

/// The bytes of the heap in live memory; the memory may be longer.
struct Body<'a>(&'a dyn HeapImage, u64);

impl HeapImage for Body<'_> {
    fn bytes(&self) -> Result<u64> {
        Ok(self.1)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(buf, offset)
    }
}

/// Says why a heap cannot continue from live memory that cannot be opened.
///
/// # Errors
/// The memory may exist, but this user has no access to it.
pub(crate) fn not_there(e: std::io::Error, memory: &Path, uid: u32, file: impl FnOnce() -> PathBuf) -> Result<String> {
    match e.kind() {
        ErrorKind::NotFound => {
            Ok("this memory no longer exists: the machine was restarted, or the file was removed".to_owned())
        }
        _ if e.kind() == ErrorKind::InvalidData || Errno::from_io_error(&e) == Some(Errno::LOOP) => {
            Ok("it is not live memory of the user who made the heap".to_owned())
        }
        ErrorKind::PermissionDenied => {
            let detail = format!(
                "its working memory, {}, belongs to user {uid}. Open the heap as that user or as root; if that user \
                 removes the memory file instead, the heap goes back to its last cut",
                memory.display()
            );
            Err(Error::Untrusted { path: file(), detail })
        }
        _ => Err(Error::io("open", memory, e)),
    }
}

/// Looks for the memory that a heap's file names, and undoes the unfinished changes in it, if that is possible.
///
/// # Errors
/// The memory may exist, but this user has no access to it.
pub(crate) fn find(file: &File, start: &[u8; START_BYTES]) -> Result<FoundLive> {
    let of = Identity::of(file)?;
    let Some(stamp) = Stamp::read(start) else {
        let boot = owner(file, &of, [0; 16])?.boot;
        let paths = of.paths(file.store.storage.effective_user());
        paths.iter().for_each(|path| memory_file::remove_left(path, &of, &boot));
        return Ok(FoundLive::Nothing);
    };
    let owner = owner(file, &of, stamp.incarnation)?;
    let (mut why, mut missing) = (None, None);
    for path in of.paths(stamp.uid) {
        let mut memory = match LiveMemory::open(&path, stamp.uid) {
            Ok(memory) => memory,
            Err(e) => {
                let is_missing = e.kind() == ErrorKind::NotFound;
                let told = not_there(e, &path, stamp.uid, || file.path())?;
                *(if is_missing { &mut missing } else { &mut why }) = Some(format!("{}: {told}", path.display()));
                continue;
            }
        };
        match mend(&mut memory, &owner, &stamp)? {
            Ok(mended) => return Ok(FoundLive::Resumable(resumable(file, owner, memory, stamp.uid, mended))),
            Err(problem) => {
                // SAFETY: mapped by the memory, for ever.
                if !unsafe { LiveHead::at(memory.head()) }.is_elsewhere(&owner) {
                    let _ = memory.remove();
                }
                why = Some(format!("{}: {problem}", path.display()));
            }
        }
    }
    // A memory that is there says more than one that is not.
    Ok(FoundLive::LastCut(why.or(missing).unwrap_or_default()))
}

/// Memory from which a heap continues, after its unfinished changes were undone.
fn resumable(file: &File, owner: Owner, memory: LiveMemory, uid: u32, mended: Mended) -> Resumable {
    let Mended { recovery, header, bytes } = mended;
    if recovery.incomplete + recovery.cascaded > 0 {
        tracing::info!(
            id = "untorn.heap.undone",
            memory = %memory.path().display(),
            incomplete = recovery.incomplete,
            cascaded = recovery.cascaded,
            "undid sections that had not ended, and sections that had seen their changes"
        );
    }
    // SAFETY: mapped by the memory, for ever.
    let head = unsafe { LiveHead::at(memory.head()) };
    // The device may have another number in this boot.
    head.set_owner(owner);
    note_place(&head, file);
    let undone = (recovery.incomplete, recovery.cascaded);
    let working = Working { unfreed: recovery.free, undone, ..Working::of(memory, head, uid, LiveStart::WentOn) };
    Resumable { working, bytes, address_space: header.address_space }
}

/// A heap in live memory after its unfinished changes were undone; only blocks are still to be freed.
pub(crate) struct Mended {
    pub recovery: Recovery,
    pub header: Header,
    /// The size of the heap.
    pub bytes: u64,
}

/// Undoes the unfinished changes in live memory, if it is the memory that the stamp of the heap's file names. It can be
/// repeated, with the same result, until the logs of sections are settled. Otherwise returns why a heap cannot continue
/// from the memory.
pub(crate) fn mend(
    memory: &mut dyn Mendable,
    owner: &Owner,
    stamp: &Stamp,
) -> Result<std::result::Result<Mended, String>> {
    // SAFETY: as long as the memory is there, which is longer than this is used.
    let head = unsafe { LiveHead::at(memory.own()) };
    if let Some(problem) = head.problem(owner, stamp, memory.bytes()?) {
        return Ok(Err(problem.to_owned()));
    }
    head.undo(|bytes, offset| memory.write(bytes, offset))?;
    head.flushing().sync(invariant::LIVE_MENDED_DURABLE).context("flush", memory.name())?;
    head.forget_saved();
    let Some(recovery) = undo_sections(memory)? else {
        return Ok(Err("the logs of its sections are invalid".to_owned()));
    };
    Ok(heap_in(memory)?.map(|(header, bytes)| Mended { recovery, header, bytes }))
}

/// Restores the bytes that unfinished sections had changed. Their blocks are still to be freed. None: the logs make no
/// sense.
fn undo_sections(memory: &mut dyn Mendable) -> Result<Option<Recovery>> {
    let bytes = memory.bytes()?;
    let mut header = [0; size_of::<Header>()];
    if bytes < header.len() as u64 {
        return Ok(Some(Recovery::default()));
    }
    memory.read(&mut header, 0)?;
    // A wrong header is reported by a later check.
    let Ok(header) = Header::read(&header, memory.name()) else { return Ok(Some(Recovery::default())) };
    let base = header.address as usize;
    // SAFETY: there as long as the memory is; nobody else has it.
    let recovered = unsafe {
        let logs = SectionLogs::at(memory.own());
        section_recovery::recover(&logs, base..base.saturating_add(bytes as usize))
    };
    let Some(recovery) = recovered else { return Ok(None) };
    recovery.restore.iter().try_for_each(|old| restore(memory, &old.bytes, old.address - base))?;
    // SAFETY: as above.
    let flushing = unsafe { Flushing::at(memory.own()) };
    flushing.sync(invariant::LIVE_MENDED_DURABLE).context("flush", memory.name())?;
    Ok(Some(recovery))
}

/// Restores bytes of the program. A recovery that was interrupted may have freed their block: where there are metadata now,
/// none of them belong.
fn restore(memory: &mut dyn Mendable, bytes: &[u8], offset: usize) -> Result<()> {
    let (mut at, end) = (offset, offset + bytes.len());
    while at < end {
        let (segment, within) = (at / SEGMENT_BYTES, at % SEGMENT_BYTES);
        let is_first = within < CHUNK_BYTES;
        let part = at..end.min(segment * SEGMENT_BYTES + if is_first { CHUNK_BYTES } else { SEGMENT_BYTES });
        if !is_first || is_inside(&*memory, segment)? {
            memory.write(&bytes[part.start - offset..part.end - offset], part.start as u64)?;
        }
        at = part.end;
    }
    Ok(())
}

/// The header and size of the heap in live memory, or the reason why there is no heap.
fn heap_in(memory: &dyn Mendable) -> Result<std::result::Result<(Header, u64), String>> {
    let body = memory.bytes()?;
    let mut bytes = [0; size_of::<Header>()];
    if body < SEGMENT_BYTES as u64 {
        return Ok(Err("it is too short".to_owned()));
    }
    memory.read(&mut bytes, 0)?;
    let Ok(header) = Header::read(&bytes, memory.name()) else { return Ok(Err("it contains no heap".to_owned())) };
    let bytes = header.segments.saturating_mul(SEGMENT_BYTES as u64);
    if let Some(problem) = header.problem(bytes) {
        return Ok(Err(problem));
    }
    if body < bytes {
        return Ok(Err(format!("it has only {body} bytes, but the heap has {bytes}")));
    }
    if !holds(invariant::LIVE_CHECKED) {
        return Ok(Ok((header, bytes)));
    }
    let image = Body(memory, bytes);
    let all = (0..header.segments as usize).map(|segment| (segment, ChunkSet::ALL)).collect();
    let mut problems = Checker::problems_of(&image, &header, &all)?;
    problems.extend(Checker::problems_of_roots(&image, &header)?);
    Ok(problems.into_iter().next().map_or(Ok((header, bytes)), Err))
}

impl Working {
    fn of(memory: LiveMemory, head: LiveHead, uid: u32, start: LiveStart) -> Working {
        Working {
            memory: Arc::new(memory),
            head,
            medium: head.medium(),
            uid,
            start,
            unfreed: Vec::new(),
            undone: (0, 0),
            stops: Mutex::default(),
            copied_pages: AtomicU64::new(0),
        }
    }

    /// Makes new memory for a heap's file, which does not name it yet. `wanted`: the class that the program requires.
    pub(crate) fn create(file: &File, start: LiveStart, wanted: Option<FailureClass>) -> Result<Working> {
        let mut incarnation = [0; 16];
        while incarnation == [0; 16] {
            file.random(&mut incarnation)?;
        }
        let of = Identity::of(file)?;
        let owner = owner(file, &of, incarnation)?;
        let uid = file.store.storage.effective_user();
        let (medium, path) = memory_file::choose(file, &of, wanted, None)?;
        let memory = LiveMemory::create(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::Unsupported {
                path: file.path(),
                detail: format!(
                    "its working memory would be in {}, but the directory above that does not exist. Mount a tmpfs \
                     there, or set UNTORN_LIVE_DIR to a directory in a tmpfs",
                    path.parent().unwrap_or(&path).display()
                ),
            },
            _ => Error::io("make the live memory", &path, e),
        })?;
        // SAFETY: mapped by the memory, for ever.
        let head = unsafe { LiveHead::at(memory.head()) };
        head.init(owner, medium);
        memory.set_medium(medium);
        note_place(&head, file);
        Ok(Working::of(memory, head, uid, start))
    }

    /// Chooses the medium of memory from which a live opening continues: the hardware, or the program's choice, may be
    /// another one now. [`Working::settle_sections`] records it.
    pub(crate) fn choose_medium(&mut self, file: &File, wanted: Option<FailureClass>) -> Result<()> {
        let (medium, _) = memory_file::choose(file, &Identity::of(file)?, wanted, Some(self.memory.path()))?;
        self.memory.set_medium(medium);
        self.medium = medium;
        // A killed process has left stores that it did not flush.
        self.head.flushing().sync(invariant::LIVE_MENDED_DURABLE).context("flush", self.memory.path())
    }

    /// Makes everything durable that is in the memory, if that needs a flush.
    pub(crate) fn flush_all(&self, needed: Invariant) -> Result<()> {
        self.head.flushing().sync(needed).context("flush", self.memory.path())
    }

    /// Makes everything durable that is in the memory, and its length, if it survives a power cut.
    pub(crate) fn sync_lasting(&self, needed: Invariant) -> Result<()> {
        if self.medium.survives_power() && holds(needed) { self.sync() } else { Ok(()) }
    }

    /// Makes everything durable that is in the memory.
    fn sync(&self) -> Result<()> {
        self.memory.sync().context("flush", self.memory.path())
    }

    /// Makes new memory durable, if it survives a power cut, before the heap's file names it.
    pub(crate) fn make_durable(&self) -> Result<()> {
        if self.head.medium().survives_power() {
            self.sync()?;
            self.memory.sync_names().context("flush the directory of", self.memory.path())?;
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> &Arc<LiveMemory> {
        &self.memory
    }

    /// Takes the blocks to be freed before anybody uses the heap; [`Working::settle_sections`] follows.
    pub(crate) fn take_unfreed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.unfreed)
    }

    /// Empties the logs of sections, once everything that they require is done. The memory is of the chosen medium from
    /// now on. `commit` commits the heap first, if the memory has survived power cuts and will not any more: no section
    /// is lost that had survived one.
    pub(crate) fn settle_sections(&self, commit: impl FnOnce() -> Result<()>) -> Result<()> {
        self.logs().settle_all();
        if self.head.medium().survives_power() && !self.medium.survives_power() {
            commit()?;
        }
        if self.head.medium() != self.medium && self.medium.survives_power() {
            self.sync()?;
        }
        self.head.flushing().set_medium(self.medium);
        Ok(())
    }

    pub(crate) fn logs(&self) -> SectionLogs {
        // SAFETY: mapped by the memory, for ever.
        unsafe { SectionLogs::at(self.memory.head()) }
    }

    /// Notes how long the threads stood, for a cut or for an attempt that was repeated.
    pub(crate) fn note_stop(&self, took: Duration, is_cut: bool) {
        let mut stops = self.stops.lock();
        let (count, longest) = (stops.count + u64::from(is_cut), stops.longest.max(took));
        let last = if is_cut { took } else { stops.last };
        *stops = StopTimes { count, last, longest };
    }

    /// At most the number of pages that the last cut was allowed to copy while the threads stood.
    pub(crate) fn copied_pages(&self) -> u64 {
        self.copied_pages.load(Relaxed)
    }

    pub(crate) fn note_copied_pages(&self, pages: u64) {
        self.copied_pages.store(pages, Relaxed);
    }

    pub(crate) fn report(&self) -> LiveReport {
        let (undone, cascaded) = self.undone;
        let (memory, start) = (self.memory.path().to_owned(), self.start.clone());
        let medium = self.medium;
        let (class, flushes) = (class_of(medium), medium.is_flushed());
        LiveReport { memory, class, flushes, start, undone, cascaded, stops: *self.stops.lock() }
    }

    /// Makes the next commit a cut of this memory; returns the cut's number.
    pub(crate) fn begin_cut(&self, map: &Map) -> Result<u64> {
        let stamp = self.head.next_stamp(self.uid);
        set_stamp(map, stamp)?;
        Ok(stamp.cut)
    }

    /// Stamps the memory as the last cut would have stamped it.
    pub(crate) fn go_on(&self, map: &Map) -> Result<()> {
        set_stamp(map, self.head.last_stamp(self.uid))
    }

    /// Notes that the file names this memory, and that the memory is complete.
    pub(crate) fn is_named(&self, cut: u64) {
        self.head.note_durable(cut);
        self.head.set_ready();
    }

    /// Removes the memory, after the last file has stopped naming it.
    pub(crate) fn remove(&self) -> Result<()> {
        self.memory.remove().context("remove", self.memory.path())
    }
}

/// Sets the stamp of the next commit, which names this memory or none.
pub(crate) fn set_stamp(map: &Map, stamp: Stamp) -> Result<()> {
    let page = own_pages::header_page(0);
    own_pages::unlock(map, page.clone())?;
    let at = map.as_mut_ptr().wrapping_add(STAMP_AT);
    // SAFETY: in the header of a heap, which is mapped; the caller has the heap to itself.
    unsafe { at.cast::<Stamp>().write(stamp) };
    own_pages::lock(map, page);
    // The tracker `explicit` does not see the store by itself.
    map.note_store(at, size_of::<Stamp>())
}

/// A file that has live memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LiveMemoryFound {
    /// The path that was asked for, or the file's name in the store.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// The memory.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub memory: PathBuf,
    /// Bytes that the memory takes.
    pub bytes: u64,
    /// The failures that the memory survives: [`FailureClass::Process`] or [`FailureClass::Memory`]. None: this user cannot
    /// read it, or it is of another version.
    pub class: Option<FailureClass>,
}

/// The live memory of a file, made by the file's owner or by this user, with any contents.
fn memory_of(path: &Path) -> Option<LiveMemoryFound> {
    let meta = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let users = [rustix::process::geteuid().as_raw(), meta.uid()];
    let of = Identity::at(path, &meta);
    let found = users
        .into_iter()
        .flat_map(|uid| of.paths(uid))
        .find_map(|path| Some((std::fs::symlink_metadata(&path).ok()?.blocks() * 512, path)));
    found.map(|(bytes, memory)| {
        let class = FoundMemory::open(&memory).ok().and_then(|found| medium_in(&found)).map(class_of);
        LiveMemoryFound { path: path.to_owned(), memory, bytes, class }
    })
}

/// The live memory of a file, or of the files in a directory.
pub(crate) fn memories(path: &Path) -> Vec<LiveMemoryFound> {
    if !path.is_dir() {
        return memory_of(path).into_iter().collect();
    }
    let has_some = |dir: &std::fs::DirEntry| {
        let is_users = dir.file_name().as_encoded_bytes().starts_with(b"untorn-");
        // A directory that cannot be listed may have live memory.
        is_users && std::fs::read_dir(dir.path()).map_or(true, |mut names| names.next().is_some())
    };
    let tops = std::fs::read_dir(live_memory_top()).ok();
    // Most machines have no live memory, so the tree need not be walked.
    if !tops.is_some_and(|dirs| dirs.flatten().any(|dir| has_some(&dir))) {
        return Vec::new();
    }
    let (mut found, mut dirs) = (Vec::new(), vec![path.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            // Untorn's own files are not heaps. An earlier file with the same inode number may have been one.
            let is_own = entry.file_name().as_encoded_bytes().ends_with(STORE_DIR.as_bytes());
            match entry.file_type() {
                _ if is_own => {}
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => found.extend(memory_of(&entry.path())),
                _ => {}
            }
        }
    }
    found.iter_mut().for_each(|one| one.path = one.path.strip_prefix(path).unwrap_or(&one.path).to_owned());
    found
}

/// Removes live memory that belongs to no heap.
pub(crate) fn forget(found: &LiveMemoryFound) -> Result<()> {
    std::fs::remove_file(&found.memory).context("remove", &found.memory)
}
