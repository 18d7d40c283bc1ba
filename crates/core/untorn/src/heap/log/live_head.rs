//! The head of a live heap's memory: whose it is, and what was going on in it when its process ended.
//!
//! **A process that is killed stops each thread at an instruction; stores before it are there, and nothing behind it is.**
//! So what is written here in the order of the program needs no flush and no barrier of the processor, only one that keeps
//! the compiler from changing the order.
//!
//! The allocator stores what it is about to overwrite before it does: bits of blocks are a word each and need nothing, but
//! where a chunk changes its use, the heap its size, or a root its object, several lines change. One thread at a time does
//! that, under the lock of the space.

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
use untorn_os::{FileHandle, FoundMemory, holds, wake_shared};

const MAGIC: [u8; 8] = *b"UNTORNLV";
const VERSION: u64 = 4;
/// Bytes that a record of the log holds.
const LINE_BYTES: usize = 64;
/// More than the largest change of chunks within a segment has.
const RECORDS: usize = 512;

const _: () = assert!(size_of::<Head>() <= PLACES_AT);

/// Whose memory it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub boot: [u8; 16],
    /// As in the stamp of the heap's file.
    pub incarnation: [u8; 16],
    pub device: u64,
    pub inode: u64,
}

/// Bytes as they were.
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
    /// 1: the body is whole.
    ready: AtomicU64,
    /// The last cut that was begun, or tried.
    cut: AtomicU64,
    /// The last one that is known to be in the file.
    durable: AtomicU64,
    /// Guards that are held over changes, and what else changes the heap in many steps.
    changing: AtomicU64,
    /// Changes of the allocator that had no room in the log.
    unlogged: AtomicU64,
    /// Records in use.
    used: AtomicU64,
    records: [Record; RECORDS],
    /// Cuts that somebody outside has asked for, and up to which one they were made.
    asked: AtomicU32,
    answered: AtomicU32,
    /// Where the heap's file is: the path of its store, and its name there; empty, if it has a store of its own.
    store: [u8; PATH_BYTES],
    name: [u8; PATH_BYTES],
    /// That file, wherever it is moved.
    handle: FileHandle,
}

/// More than a path has.
const PATH_BYTES: usize = 4096;

/// Where a live heap's file is.
#[derive(Clone)]
pub(crate) struct Place {
    /// The path of its store.
    pub store: PathBuf,
    /// Its name in there. None: it has a store of its own, which has its path.
    pub name: Option<PathBuf>,
}

impl Place {
    pub(crate) fn path(&self) -> PathBuf {
        self.name.as_ref().map_or(self.store.clone(), |name| self.store.join(name))
    }
}

/// What a memory says of its heap's file.
pub(crate) struct Whose {
    device: u64,
    inode: u64,
    /// Where it was when the heap was opened last.
    pub place: Place,
    pub handle: FileHandle,
}

/// What the head of a file in memory says.
pub(crate) enum Said {
    /// Whose it is.
    Of(Whose),
    /// Nothing yet: a program is making the memory, or was killed while it did. It has no data.
    Unfinished,
    /// Nothing that could be used, and why.
    Nothing(&'static str),
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
            // It comes last of what is written at first.
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
            return Ok(Said::Nothing("it does not say where its heap is; open the heap, which commits it"));
        }
        let owner = offset_of!(Head, owner);
        let mut handle = FileHandle::NONE;
        memory.read_at(handle.as_bytes_mut(), offset_of!(Head, handle) as u64)?;
        Ok(Said::Of(Whose {
            device: number(owner + offset_of!(Owner, device))?,
            inode: number(owner + offset_of!(Owner, inode))?,
            place: Place { store, name: Some(name).filter(|name| !name.as_os_str().is_empty()) },
            handle,
        }))
    }
}

impl Whose {
    /// Whether its file has this path. Another disk may have the same device number, and a file there the same number.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let has_numbers =
            std::fs::symlink_metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode));
        has_numbers && !self.handle.differs(&FileHandle::of(path))
    }
}

/// The head of the memory of a live heap, which is mapped for ever; when the heap is closed, it is nobody's.
#[derive(Clone, Copy)]
pub(crate) struct LiveHead(NonNull<Head>);

// SAFETY: what changes in it are atomics, and the log, which is used under one lock.
unsafe impl Send for LiveHead {}
// SAFETY: as above.
unsafe impl Sync for LiveHead {}

impl LiveHead {
    /// # Safety
    /// So many bytes as a head has are mapped there for ever.
    pub(crate) unsafe fn at(address: NonNull<u8>) -> LiveHead {
        LiveHead(address.cast())
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped, and any bytes are a head; what changes are atomics, and records that nobody borrows.
        unsafe { self.0.as_ref() }
    }

    /// Makes new memory somebody's, which is not whole yet.
    pub(crate) fn init(&self, owner: Owner) {
        // SAFETY: mapped, zeros, and nobody else has it.
        unsafe {
            (&raw mut (*self.0.as_ptr()).owner).write(owner);
            (&raw mut (*self.0.as_ptr()).version).write(VERSION);
            (&raw mut (*self.0.as_ptr()).magic).write(MAGIC);
        }
    }

    /// Where the heap's file is, as far as that can be said.
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

    /// Asks the process that has the heap for a cut; its number.
    pub(crate) fn ask(&self) -> u32 {
        let number = self.head().asked.fetch_add(1, AcqRel).wrapping_add(1);
        wake_shared(&self.head().asked);
        number
    }

    /// Cuts that were asked for; whoever waits for the number to change is woken.
    pub(crate) fn asked(&self) -> &AtomicU32 {
        &self.head().asked
    }

    /// Up to here what was asked for was done.
    pub(crate) fn answered(&self) -> &AtomicU32 {
        &self.head().answered
    }

    /// A cut was made that was asked for.
    pub(crate) fn answer(&self, number: u32) {
        self.head().answered.store(number, Release);
        wake_shared(&self.head().answered);
    }

    /// The stamp for the next cut.
    pub(crate) fn next_stamp(&self, uid: u32) -> Stamp {
        let cut = self.head().cut.fetch_add(1, AcqRel).wrapping_add(1);
        Stamp::new(self.head().owner.incarnation, cut, uid)
    }

    /// The stamp of the last cut.
    pub(crate) fn last_stamp(&self, uid: u32) -> Stamp {
        Stamp::new(self.head().owner.incarnation, self.head().cut.load(Acquire), uid)
    }

    /// A cut is in the file.
    pub(crate) fn note_durable(&self, cut: u64) {
        self.head().durable.fetch_max(cut, AcqRel);
    }

    /// The body is whole, and the file knows of this memory.
    pub(crate) fn set_ready(&self) {
        self.head().ready.store(1, Release);
    }

    /// Something begins that is only good when it is done.
    #[inline]
    pub(crate) fn begin_change(&self) {
        self.head().changing.fetch_add(1, AcqRel);
        compiler_fence(SeqCst);
    }

    #[inline]
    pub(crate) fn end_change(&self) {
        compiler_fence(SeqCst);
        self.head().changing.fetch_sub(1, AcqRel);
    }

    /// Whether something is going on that is only good when it is done.
    pub(crate) fn is_changing(&self) -> bool {
        self.head().changing.load(SeqCst) != 0
    }

    /// Nothing is being changed any more: the heap is as it was at its last cut.
    pub(crate) fn forgive(&self) {
        compiler_fence(SeqCst);
        self.head().changing.store(0, Release);
    }

    /// Remembers bytes of the heap, which the caller is about to change, until [`LiveHead::settle`].
    pub(crate) fn save(&self, offset: usize, bytes: &[u8]) {
        if !holds(invariant::LIVE_UNDONE) {
            return;
        }
        for (n, line) in bytes.chunks(LINE_BYTES).enumerate() {
            let used = self.head().used.load(Relaxed) as usize;
            if used >= RECORDS {
                self.head().unlogged.store(1, Release);
            } else {
                let mut record =
                    Record { offset: (offset + n * LINE_BYTES) as u64, len: line.len() as u64, old: [0; LINE_BYTES] };
                record.old[..line.len()].copy_from_slice(line);
                // SAFETY: a record that is not in use; the caller has the lock under which the log is.
                unsafe { (&raw mut (*self.0.as_ptr()).records[used]).write(record) };
                compiler_fence(SeqCst);
                self.head().used.store(used as u64 + 1, Release);
            }
        }
        compiler_fence(SeqCst);
    }

    /// What was changed is as it should be.
    #[inline]
    pub(crate) fn settle(&self) {
        compiler_fence(SeqCst);
        self.head().used.store(0, Release);
        self.head().unlogged.store(0, Release);
    }

    /// Whether what the allocator has kept lies in a heap of so many bytes.
    fn is_within(&self, bytes: u64) -> bool {
        let used = (self.head().used.load(Acquire) as usize).min(RECORDS);
        // SAFETY: records in use, which nobody changes.
        let record = |n: usize| unsafe { (&raw const (*self.0.as_ptr()).records[n]).read() };
        (0..used).map(record).all(|record| record.offset.checked_add(record.len).is_some_and(|end| end <= bytes))
    }

    /// Why a heap cannot go on from this memory, which has so many bytes, and whose file has this stamp.
    pub(crate) fn problem(&self, owner: &Owner, stamp: &Stamp, bytes: u64) -> Option<&'static str> {
        let head = self.head();
        if head.magic != MAGIC || head.version != VERSION {
            return Some("it is no live memory of this version of Untorn's");
        }
        if head.owner.boot != owner.boot && holds(invariant::LIVE_OF_THIS_BOOT) {
            return Some("it is of another boot of the machine");
        }
        if (head.owner.device, head.owner.inode) != (owner.device, owner.inode) && holds(invariant::LIVE_OF_THIS_FILE) {
            return Some("it was made for another file");
        }
        if holds(invariant::LIVE_OF_THIS_CUT) {
            if head.owner.incarnation != stamp.incarnation {
                return Some("the heap was committed without it since");
            }
            if stamp.cut < head.durable.load(Acquire) || stamp.cut > head.cut.load(Acquire) {
                return Some("the heap's file is of another time: it was brought back from a copy");
            }
        }
        if head.ready.load(Acquire) != 1 && holds(invariant::LIVE_WHEN_READY) {
            return Some("its process ended while it made it");
        }
        if head.changing.load(Acquire) != 0 && holds(invariant::LIVE_NOT_IN_A_CHANGE) {
            return Some("its process ended within a change under a guard, which is half done");
        }
        if !self.is_within(bytes) {
            return Some("what the allocator had begun makes no sense");
        }
        if head.unlogged.load(Acquire) != 0 || head.used.load(Acquire) > RECORDS as u64 {
            return Some("its process ended within a very large allocation, which is half done");
        }
        None
    }

    /// Undoes what the allocator had begun: `store` brings bytes back to an offset of the heap. Whole when it is done
    /// again from the start.
    pub(crate) fn undo<E>(&self, mut store: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        for n in (0..self.head().used.load(Acquire) as usize).rev() {
            // SAFETY: a record in use, which nobody changes.
            let record = unsafe { (&raw const (*self.0.as_ptr()).records[n]).read() };
            store(&record.old[..(record.len as usize).min(LINE_BYTES)], record.offset)?;
        }
        self.settle();
        Ok(())
    }
}

/// Bytes of a heap's file that tell of it, and of its live memory.
pub(crate) const START_BYTES: usize = STAMP_AT + size_of::<Stamp>();

const _: () = assert!(size_of::<Header>() <= START_BYTES);
