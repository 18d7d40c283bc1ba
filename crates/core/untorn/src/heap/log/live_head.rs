//! The head of a live heap's memory: its owner, and the changes that were going on when its process ended.
//!
//! **A kill stops each thread at an instruction: all stores before it are in the memory, and none after it.** So the
//! stores here need no flush and no processor barrier. They only need a compiler barrier that keeps them in program
//! order. So it is after a power cut, on byte-addressable memory to which the hardware writes the caches. Where it does
//! not, each step is flushed before the next one (`flushing.rs`).
//!
//! The allocator saves the old bytes before it overwrites them. A bit of a block is in one word and needs nothing. But
//! if a chunk changes its use, the heap its size, or a root its target, several lines change. One thread at a time does
//! that, under the lock of the space.

use super::flushing::{Flushing, MEDIUM_AT};
use super::section_log::PLACES_AT;
use crate::heap::image::layout::{Header, STAMP_AT, Stamp};
use crate::invariant;
use std::ffi::OsStr;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};
use untorn_os::{FileHandle, FoundMemory, Linux, LiveMedium, Storage, can_flush_lines, holds, wake_shared};

const MAGIC: [u8; 8] = *b"UNTORNLV";
const VERSION: u64 = 6;
/// The bytes that a record of the log holds.
const LINE_BYTES: usize = 64;
/// More records than the largest change of chunks within a segment needs.
const RECORDS: usize = 512;

const _: () = assert!(size_of::<Head>() <= MEDIUM_AT && MEDIUM_AT < PLACES_AT);

/// The owner of the memory: a heap's file, in one boot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub boot: [u8; 16],
    /// The incarnation in the stamp of the heap's file.
    pub incarnation: [u8; 16],
    pub device: u64,
    pub inode: u64,
}

/// Old bytes of the heap, saved before a change.
#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    offset: u64,
    len: u64,
    old: [u8; LINE_BYTES],
}

#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: u64,
    owner: Owner,
    /// 1: the body is complete.
    ready: AtomicU64,
    /// The last cut that was begun, whether or not it succeeded.
    cut: AtomicU64,
    /// The last cut that is known to be in the file.
    durable: AtomicU64,
    /// The number of guards held over changes, and of other changes in several steps.
    changing: AtomicU64,
    /// 1: a change of the allocator had no room in the log.
    unlogged: AtomicU64,
    /// The number of records in use.
    used: AtomicU64,
    records: [Record; RECORDS],
    /// The last cut that another process asked for, and the last request that was fulfilled.
    asked: AtomicU32,
    answered: AtomicU32,
    /// The place of the heap's file: the path of its store, and its name there; the name is empty if the file is
    /// standalone.
    store: [u8; PATH_BYTES],
    name: [u8; PATH_BYTES],
    /// A handle of that file, valid wherever the file is moved.
    handle: FileHandle,
}

/// More than the longest path.
const PATH_BYTES: usize = 4096;

/// The place of a live heap's file.
#[derive(Clone)]
pub(crate) struct Place {
    /// The path of its store.
    pub store: PathBuf,
    /// Its name in the store. None: the file is standalone, and has the path of the store.
    pub name: Option<PathBuf>,
}

impl Place {
    pub(crate) fn path(&self) -> PathBuf {
        self.name.as_ref().map_or(self.store.clone(), |name| self.store.join(name))
    }
}

/// The heap's file, as recorded in a live memory.
pub(crate) struct Whose {
    /// None: the memory is of another boot, in which the device had another number perhaps.
    device: Option<u64>,
    inode: u64,
    /// The file's place when the heap was opened last.
    pub place: Place,
    handle: FileHandle,
}

/// The contents of the head of a memory file.
pub(crate) enum Said {
    /// The memory of this heap's file.
    Of(Whose),
    /// Nothing yet: a program is making the memory, or was killed while it did. There is no data.
    Unfinished,
    /// Nothing usable; the text says why.
    Nothing(&'static str),
}

/// The medium of a memory file. None: it is no live memory of this version.
pub(crate) fn medium_in(memory: &FoundMemory) -> Option<LiveMedium> {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        memory.read_at(&mut bytes, at as u64).ok().map(|()| u64::from_ne_bytes(bytes))
    };
    let is_one =
        number(offset_of!(Head, magic))? == u64::from_ne_bytes(MAGIC) && number(offset_of!(Head, version))? == VERSION;
    LiveMedium::of_number(number(MEDIUM_AT)?).filter(|_| is_one)
}

/// Whether a memory file is that of a heap on another device in this boot.
pub(crate) fn is_of_another_device(memory: &FoundMemory, boot: &[u8; 16], device: u64) -> bool {
    let (mut its_boot, mut its_device) = ([0; 16], [0; 8]);
    let owner = offset_of!(Head, owner) as u64;
    let read = memory
        .read_at(&mut its_boot, owner + offset_of!(Owner, boot) as u64)
        .and_then(|()| memory.read_at(&mut its_device, owner + offset_of!(Owner, device) as u64));
    read.is_ok() && its_boot == *boot && u64::from_ne_bytes(its_device) != device
}

impl Said {
    pub(crate) fn read(memory: &FoundMemory) -> io::Result<Said> {
        match Said::read_head(memory) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Said::Unfinished),
            done => done,
        }
    }

    fn read_head(memory: &FoundMemory) -> io::Result<Said> {
        let number = |at: usize| -> io::Result<u64> {
            let mut bytes = [0; 8];
            memory.read_at(&mut bytes, at as u64)?;
            Ok(u64::from_ne_bytes(bytes))
        };
        let path = |at: usize| -> io::Result<PathBuf> {
            let mut bytes = [0; PATH_BYTES];
            memory.read_at(&mut bytes, at as u64)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Ok(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
        };
        let mut magic = [0; 8];
        memory.read_at(&mut magic, offset_of!(Head, magic) as u64)?;
        match magic {
            MAGIC => {}
            // The magic number is the last of the first fields to be written.
            _ if magic == [0; 8] => return Ok(Said::Unfinished),
            _ => return Ok(Said::Nothing("it is no live memory")),
        }
        if number(offset_of!(Head, version))? != VERSION {
            return Ok(Said::Nothing("it is of another version of Untorn"));
        }
        if number(offset_of!(Head, ready))? != 1 {
            return Ok(Said::Unfinished);
        }
        let (store, name) = (path(offset_of!(Head, store))?, path(offset_of!(Head, name))?);
        if store.as_os_str().is_empty() {
            return Ok(Said::Nothing("it does not name its heap; open the heap, which also commits this memory"));
        }
        let owner = offset_of!(Head, owner);
        let (mut handle, mut boot) = (FileHandle::NONE, [0; 16]);
        memory.read_at(handle.as_bytes_mut(), offset_of!(Head, handle) as u64)?;
        memory.read_at(&mut boot, (owner + offset_of!(Owner, boot)) as u64)?;
        let is_of_this_boot = Linux::open(Path::new("/")).and_then(|root| root.boot_id()).is_ok_and(|now| now == boot);
        let device = number(owner + offset_of!(Owner, device))?;
        Ok(Said::Of(Whose {
            device: Some(device).filter(|_| is_of_this_boot),
            inode: number(owner + offset_of!(Owner, inode))?,
            place: Place { store, name: Some(name).filter(|name| !name.as_os_str().is_empty()) },
            handle,
        }))
    }
}

impl Whose {
    /// Whether the file was removed, if that is known.
    pub(crate) fn is_removed(&self, path: &Path) -> Option<bool> {
        // The handle names a mount of its boot.
        self.device.and_then(|_| self.handle.is_removed(path))
    }

    /// Whether the file at this path is the heap's. The numbers alone do not prove it: another disk may have the same
    /// device number, and a file there the same inode number.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let has_numbers = std::fs::symlink_metadata(path)
            .is_ok_and(|meta| meta.ino() == self.inode && self.device.is_none_or(|device| device == meta.dev()));
        has_numbers && !self.handle.differs(&FileHandle::of(path))
    }
}

/// The head of a live heap's memory. It stays mapped for ever, even after the heap is closed.
#[derive(Clone, Copy)]
pub(crate) struct LiveHead(NonNull<Head>);

// SAFETY: the fields that change are atomics, and the log, which is used under one lock.
unsafe impl Send for LiveHead {}
// SAFETY: as above.
unsafe impl Sync for LiveHead {}

impl LiveHead {
    /// # Safety
    /// The bytes of a head are mapped there for ever.
    pub(crate) unsafe fn at(address: NonNull<u8>) -> LiveHead {
        LiveHead(address.cast())
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped, and any bytes are a head; the only fields that change are atomics, and records that nobody
        // borrows.
        unsafe { self.0.as_ref() }
    }

    /// Sets the owner and the medium of new memory, which is not complete yet.
    pub(crate) fn init(&self, owner: Owner, medium: LiveMedium) {
        self.flushing().set_medium(medium);
        self.set_owner(owner);
        // SAFETY: mapped, zeros, and nobody else has it.
        unsafe {
            (&raw mut (*self.0.as_ptr()).version).write(VERSION);
            (&raw mut (*self.0.as_ptr()).magic).write(MAGIC);
        }
    }

    /// Sets the owner: new memory, or memory of another boot from which the heap continues.
    pub(crate) fn set_owner(&self, owner: Owner) {
        // SAFETY: mapped, and nobody else has it.
        unsafe { (&raw mut (*self.0.as_ptr()).owner).write(owner) };
    }

    /// How the memory becomes durable.
    #[inline]
    pub(crate) fn flushing(&self) -> Flushing {
        // SAFETY: mapped for ever.
        unsafe { Flushing::at(self.0.cast()) }
    }

    /// The medium of the memory.
    pub(crate) fn medium(&self) -> LiveMedium {
        self.flushing().known_medium().unwrap_or(LiveMedium::Ordinary)
    }

    /// Whether the memory is that of a file on another device, in this boot.
    pub(crate) fn is_elsewhere(&self, owner: &Owner) -> bool {
        let own = &self.head().owner;
        own.boot == owner.boot && own.device != owner.device
    }

    /// Records the place of the heap's file, as far as it is known.
    pub(crate) fn set_place(&self, place: &Place, handle: FileHandle) {
        let put = |into: *mut [u8; PATH_BYTES], path: &Path| {
            let mut bytes = [0; PATH_BYTES];
            let path = path.as_os_str().as_bytes();
            if path.len() < PATH_BYTES {
                bytes[..path.len()].copy_from_slice(path);
            }
            // SAFETY: mapped, and nobody else writes it.
            unsafe { into.write(bytes) };
        };
        // SAFETY: fields of the head, which is mapped.
        unsafe {
            put(&raw mut (*self.0.as_ptr()).store, &place.store);
            put(&raw mut (*self.0.as_ptr()).name, place.name.as_deref().unwrap_or(Path::new("")));
            (&raw mut (*self.0.as_ptr()).handle).write(handle);
        }
    }

    /// Asks the process that has the heap for a cut; returns the request's number.
    pub(crate) fn ask(&self) -> u32 {
        let number = self.head().asked.fetch_add(1, AcqRel).wrapping_add(1);
        wake_shared(&self.head().asked);
        number
    }

    /// The number of the last request for a cut. A thread that waits for it to change is woken.
    pub(crate) fn asked(&self) -> &AtomicU32 {
        &self.head().asked
    }

    /// The number of the last request that was fulfilled.
    pub(crate) fn answered(&self) -> &AtomicU32 {
        &self.head().answered
    }

    /// Notes that a request for a cut is fulfilled.
    pub(crate) fn answer(&self, number: u32) {
        self.head().answered.store(number, Release);
        wake_shared(&self.head().answered);
    }

    /// The stamp for the next cut.
    pub(crate) fn next_stamp(&self, uid: u32) -> Stamp {
        let cut = self.head().cut.fetch_add(1, AcqRel).wrapping_add(1);
        self.flushing().persist(invariant::LIVE_CUT_DURABLE, &self.head().cut);
        Stamp::new(self.head().owner.incarnation, cut, uid)
    }

    /// The stamp of the last cut.
    pub(crate) fn last_stamp(&self, uid: u32) -> Stamp {
        Stamp::new(self.head().owner.incarnation, self.head().cut.load(Acquire), uid)
    }

    /// Notes that a cut is in the file.
    pub(crate) fn note_durable(&self, cut: u64) {
        self.head().durable.fetch_max(cut, AcqRel);
        self.flushing().persist(invariant::LIVE_CUT_DURABLE, &self.head().durable);
    }

    /// Notes that the body is complete, and that the file names this memory.
    pub(crate) fn set_ready(&self) {
        self.head().ready.store(1, Release);
        self.flushing().persist(invariant::LIVE_READY_DURABLE, &self.head().ready);
    }

    /// Begins a change that is valid only when it is complete.
    #[inline]
    pub(crate) fn begin_change(&self) {
        self.head().changing.fetch_add(1, AcqRel);
        self.flushing().persist(invariant::LIVE_CHANGING_DURABLE, &self.head().changing);
        compiler_fence(SeqCst);
    }

    /// Ends a change. Nobody knows which lines it has changed, so memory that needs flushes is flushed as a whole.
    #[inline]
    pub(crate) fn end_change(&self) {
        compiler_fence(SeqCst);
        self.flushing().sync_or_note(invariant::LIVE_CHANGE_SYNCED);
        self.head().changing.fetch_sub(1, AcqRel);
        self.flushing().persist(invariant::LIVE_CHANGE_ENDED, &self.head().changing);
    }

    /// Whether a change is going on that is valid only when it is complete.
    pub(crate) fn is_changing(&self) -> bool {
        self.head().changing.load(SeqCst) != 0
    }

    /// Forgets all changes in progress: the heap is at its last cut.
    pub(crate) fn forgive(&self) {
        compiler_fence(SeqCst);
        self.head().changing.store(0, Release);
        self.flushing().persist(invariant::LIVE_CHANGE_ENDED, &self.head().changing);
    }

    /// Saves bytes of the heap that the caller is about to change, until [`LiveHead::settle`]. They are durable before
    /// they count, and count durably before the change, if the memory needs flushes.
    pub(crate) fn save(&self, offset: usize, bytes: &[u8]) {
        if !holds(invariant::LIVE_UNDONE) {
            return;
        }
        let flushing = self.flushing();
        let mut used = self.head().used.load(Relaxed) as usize;
        for (n, line) in bytes.chunks(LINE_BYTES).enumerate() {
            if used >= RECORDS {
                self.head().unlogged.store(1, Release);
                flushing.persist(invariant::LIVE_SAVED_DURABLE, &self.head().unlogged);
                break;
            }
            let mut record =
                Record { offset: (offset + n * LINE_BYTES) as u64, len: line.len() as u64, old: [0; LINE_BYTES] };
            record.old[..line.len()].copy_from_slice(line);
            // SAFETY: a record that is not in use; the caller has the lock that protects the log.
            let at = unsafe { &raw mut (*self.0.as_ptr()).records[used] };
            // SAFETY: as above.
            unsafe {
                at.write(record);
                flushing.flush(invariant::LIVE_SAVED_DURABLE, at as usize, size_of::<Record>());
            }
            used += 1;
        }
        flushing.fence();
        compiler_fence(SeqCst);
        self.head().used.store(used as u64, Release);
        flushing.persist(invariant::LIVE_SAVED_DURABLE, &self.head().used);
        compiler_fence(SeqCst);
    }

    /// Declares the changes complete, and empties the log. `base` is the address of the heap, whose changed lines are
    /// durable first, if the memory needs flushes.
    #[inline]
    pub(crate) fn settle(&self, base: usize) {
        compiler_fence(SeqCst);
        if self.flushing().is_on() {
            self.settle_durably(base);
        } else {
            self.empty();
        }
    }

    fn empty(&self) {
        self.head().used.store(0, Release);
        self.head().unlogged.store(0, Release);
    }

    #[cold]
    fn settle_durably(&self, base: usize) {
        let (flushing, used) = (self.flushing(), self.head().used.load(Relaxed) as usize);
        if used == 0 && self.head().unlogged.load(Relaxed) == 0 {
            return;
        }
        if self.head().unlogged.load(Relaxed) != 0 {
            flushing.sync_or_note(invariant::LIVE_SETTLED_DURABLE);
        }
        for n in 0..used.min(RECORDS) {
            // SAFETY: a record in use; the caller has the lock.
            let record = unsafe { (&raw const (*self.0.as_ptr()).records[n]).read() };
            // SAFETY: bytes of the heap that were saved, and are mapped.
            unsafe {
                flushing.flush(invariant::LIVE_SETTLED_DURABLE, base + record.offset as usize, record.len as usize);
            }
        }
        flushing.fence();
        self.empty();
        // On one line.
        flushing.persist(invariant::LIVE_SETTLE_DURABLE, &self.head().used);
    }

    /// Whether all saved bytes lie in a heap of this size.
    fn is_within(&self, bytes: u64) -> bool {
        let used = (self.head().used.load(Acquire) as usize).min(RECORDS);
        // SAFETY: records in use, which nobody changes.
        let record = |n: usize| unsafe { (&raw const (*self.0.as_ptr()).records[n]).read() };
        (0..used).map(record).all(|record| record.offset.checked_add(record.len).is_some_and(|end| end <= bytes))
    }

    /// Why a heap cannot continue from this memory; `bytes` is its size, `stamp` that of the file. None: it can.
    pub(crate) fn problem(&self, owner: &Owner, stamp: &Stamp, bytes: u64) -> Option<&'static str> {
        let head = self.head();
        let Some(medium) = self.flushing().known_medium().filter(|_| head.magic == MAGIC && head.version == VERSION)
        else {
            return Some("it is not live memory of this version of Untorn");
        };
        let is_of_other_boot = head.owner.boot != owner.boot;
        if is_of_other_boot && !medium.survives_power() && holds(invariant::LIVE_OF_THIS_BOOT) {
            return Some("it is from another boot of the machine");
        }
        if medium.is_flushed() && !can_flush_lines() {
            return Some("it needs flushes of lines, which this processor does not have");
        }
        if is_of_other_boot && self.flushing().has_failed() {
            return Some("a flush of it had failed before the machine went down");
        }
        // A device may have another number in another boot. The path of such memory names the file system.
        let is_on_device = head.owner.device == owner.device || is_of_other_boot && medium.survives_power();
        if !(is_on_device && head.owner.inode == owner.inode) && holds(invariant::LIVE_OF_THIS_FILE) {
            return Some("it was made for another file");
        }
        if holds(invariant::LIVE_OF_THIS_CUT) {
            if head.owner.incarnation != stamp.incarnation {
                return Some("the heap was committed without this memory later");
            }
            if stamp.cut < head.durable.load(Acquire) || stamp.cut > head.cut.load(Acquire) {
                return Some("the heap's file was restored from a copy of another time");
            }
        }
        if head.ready.load(Acquire) != 1 && holds(invariant::LIVE_WHEN_READY) {
            return Some("its process ended while it made this memory");
        }
        if head.changing.load(Acquire) != 0 && holds(invariant::LIVE_NOT_IN_A_CHANGE) {
            return Some("its process ended while it held a mutation guard, so a change may be half done");
        }
        if !self.is_within(bytes) {
            return Some("the allocator's records of its unfinished change are invalid");
        }
        if head.unlogged.load(Acquire) != 0 || head.used.load(Acquire) > RECORDS as u64 {
            return Some("its process ended during a very large allocation, which is half done");
        }
        None
    }

    /// Undoes the unfinished change of the allocator: `store` writes bytes back at an offset of the heap. It can be
    /// repeated from the start.
    pub(crate) fn undo<E>(&self, mut store: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        for n in (0..self.head().used.load(Acquire) as usize).rev() {
            // SAFETY: a record in use, which nobody changes.
            let record = unsafe { (&raw const (*self.0.as_ptr()).records[n]).read() };
            store(&record.old[..(record.len as usize).min(LINE_BYTES)], record.offset)?;
        }
        Ok(())
    }

    /// Empties the log, after [`LiveHead::undo`] has restored the heap, durably if it needs that.
    pub(crate) fn forget_saved(&self) {
        self.empty();
        self.flushing().persist(invariant::LIVE_SETTLE_DURABLE, &self.head().used);
    }
}

/// The first bytes of a heap's file, which have its header and its stamp.
pub(crate) const START_BYTES: usize = STAMP_AT + size_of::<Stamp>();

const _: () = assert!(size_of::<Header>() <= START_BYTES);
