//! Descriptors do not survive `fork`.
//!
//! An open-file-description lock lives as long as any copy of its descriptor: a forked child that
//! outlives the owner would keep a store busy for ever. So every descriptor of ours is listed in a
//! table, and the child closes them all before `fork` returns in it. The table needs no lock (the
//! child could inherit it locked) and allocates only while registering.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 1024;
const FREE: RawFd = -1;

struct Chunk {
    slots: [AtomicI32; SLOTS],
    next: AtomicPtr<Chunk>,
}

static FIRST: Chunk = Chunk::new();
static GENERATION: AtomicU64 = AtomicU64::new(1);
static INSTALL: Once = Once::new();

impl Chunk {
    const fn new() -> Chunk {
        Chunk { slots: [const { AtomicI32::new(FREE) }; SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&'static self) -> Option<&'static Chunk> {
        // SAFETY: chunks are leaked boxes, never freed; null is the end.
        unsafe { self.next.load(SeqCst).as_ref() }
    }

    fn next_or_new(&'static self) -> &'static Chunk {
        self.next().unwrap_or_else(|| {
            let fresh = Box::into_raw(Box::new(Chunk::new()));
            match self.next.compare_exchange(ptr::null_mut(), fresh, SeqCst, SeqCst) {
                Ok(_) => {}
                // SAFETY: `fresh` was made above and nobody else has seen it.
                Err(_) => drop(unsafe { Box::from_raw(fresh) }),
            }
            self.next().expect("just linked")
        })
    }
}

/// Changes in a forked child: a handle made under another generation belongs to the parent.
#[inline]
pub fn process_generation() -> u64 {
    GENERATION.load(SeqCst)
}

/// Lists a descriptor to be closed in forked children; the token unlists it.
pub(crate) fn register(fd: RawFd) -> &'static AtomicI32 {
    INSTALL.call_once(|| {
        // SAFETY: `in_child` only touches atomics and calls close(2), which is async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut chunk = &FIRST;
    loop {
        for slot in &chunk.slots {
            if slot.load(SeqCst) == FREE && slot.compare_exchange(FREE, fd, SeqCst, SeqCst).is_ok() {
                return slot;
            }
        }
        chunk = chunk.next_or_new();
    }
}

/// Whether a descriptor is one of ours, which the program never opened.
pub fn is_own_descriptor(fd: RawFd) -> bool {
    let mut chunk = Some(&FIRST);
    while let Some(c) = chunk {
        if c.slots.iter().any(|slot| slot.load(SeqCst) == fd) {
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
            let fd = slot.swap(FREE, SeqCst);
            if fd != FREE {
                // SAFETY: the descriptor is ours; its owner sees the new generation and leaves it alone.
                unsafe { libc::close(fd) };
            }
        }
        chunk = c.next();
    }
}
