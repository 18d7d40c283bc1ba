//! Descriptors do not survive `fork`.
//!
//! An open-file-description lock lives as long as any copy of its descriptor, so a forked child that outlives the owner
//! would keep a store busy for ever. So a table lists every descriptor of ours, and the child closes them all before
//! `fork` returns in it. The table has no lock, because the child could inherit it locked, and allocates only while
//! registering.

use crate::descriptors::descriptor_identity::Identity;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 1024;
const FREE: RawFd = -1;
/// A slot that is taken, and whose descriptor is about to be written.
const TAKEN: RawFd = -2;

/// A descriptor of ours and the identity of its file: the program may close it and reuse the number.
#[derive(Debug)]
pub(crate) struct Slot {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Slot {
    const fn new() -> Slot {
        Slot { fd: AtomicI32::new(FREE), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    /// Frees the slot, before the descriptor is closed.
    pub(crate) fn free(&self) {
        self.fd.store(FREE, SeqCst);
    }

    /// Whether this number still belongs to the listed file. Async-signal-safe.
    fn is_of(&self, fd: RawFd) -> bool {
        Identity { device: self.device.load(SeqCst), inode: self.inode.load(SeqCst) }.is_of(fd)
    }
}

struct Chunk {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Chunk>,
}

static FIRST: Chunk = Chunk::new();
static GENERATION: AtomicU64 = AtomicU64::new(1);
static INSTALL: Once = Once::new();

impl Chunk {
    const fn new() -> Chunk {
        Chunk { slots: [const { Slot::new() }; SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&'static self) -> Option<&'static Chunk> {
        // SAFETY: chunks are leaked boxes, never freed; null is the end.
        unsafe { self.next.load(SeqCst).as_ref() }
    }

    fn next_or_new(&'static self) -> &'static Chunk {
        self.next().unwrap_or_else(|| self.add())
    }

    /// Kept out of its caller, which would get the stack for a chunk, and touch ten new pages of it.
    #[cold]
    #[inline(never)]
    fn add(&'static self) -> &'static Chunk {
        let fresh = Box::into_raw(Box::new(Chunk::new()));
        match self.next.compare_exchange(ptr::null_mut(), fresh, SeqCst, SeqCst) {
            Ok(_) => {}
            // SAFETY: `fresh` was made above and nobody else has seen it.
            Err(_) => drop(unsafe { Box::from_raw(fresh) }),
        }
        self.next().expect("just linked")
    }
}

/// Number of this process among forked ones. It changes in a child; a handle with another number belongs to the parent.
#[inline]
pub fn process_generation() -> u64 {
    GENERATION.load(SeqCst)
}

/// Lists a descriptor that forked children must close, until its slot is freed.
pub(crate) fn register(fd: RawFd, identity: Identity) -> &'static Slot {
    INSTALL.call_once(|| {
        // SAFETY: `in_child` only touches atomics and makes system calls, all of which are async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut chunk = &FIRST;
    loop {
        for slot in &chunk.slots {
            if slot.fd.load(SeqCst) == FREE && slot.fd.compare_exchange(FREE, TAKEN, SeqCst, SeqCst).is_ok() {
                slot.device.store(identity.device, SeqCst);
                slot.inode.store(identity.inode, SeqCst);
                slot.fd.store(fd, SeqCst);
                return slot;
            }
        }
        chunk = chunk.next_or_new();
    }
}

/// Whether a descriptor is one of ours, which the program did not open.
pub fn is_own_descriptor(fd: RawFd) -> bool {
    let mut chunk = Some(&FIRST);
    while let Some(c) = chunk {
        if c.slots.iter().any(|slot| slot.fd.load(SeqCst) == fd && slot.is_of(fd)) {
            return true;
        }
        chunk = c.next();
    }
    false
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, SeqCst);
    let mut chunk = Some(&FIRST);
    while let Some(c) = chunk {
        for slot in &c.slots {
            let fd = slot.fd.swap(FREE, SeqCst);
            if fd >= 0 && slot.is_of(fd) {
                // SAFETY: the descriptor is ours; its owner sees the new generation and leaves it alone.
                unsafe { libc::close(fd) };
            }
        }
        chunk = c.next();
    }
}
