//! The flushes of a pool of libpmemobj, which take the time of slow memory.
//!
//! An open pool has pointers to the functions of libpmem that flush, in its first pages. Each is replaced by one that calls
//! it and then waits for the flushed lines.

use super::delay::{lines_of, take_time_of};
use crate::measuring::library::{functions, load};
use anyhow::{Result, ensure};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The words of a pool that may be such pointers.
const WORDS: usize = 8192 / size_of::<usize>();
/// The flag of a copy that is not flushed (`PMEM_F_MEM_NOFLUSH` of libpmem.h).
const NO_FLUSH: c_uint = 1 << 5;

functions! {
    Flushes {
        fn persist(*const c_void, usize);
        fn flush(*const c_void, usize);
        fn memcpy(*mut c_void, *const c_void, usize, c_uint) -> *mut c_void;
        fn memmove(*mut c_void, *const c_void, usize, c_uint) -> *mut c_void;
        fn memset(*mut c_void, c_int, usize, c_uint) -> *mut c_void;
    }
}

static OF_LIBRARY: OnceLock<Flushes> = OnceLock::new();

fn of_library() -> &'static Flushes {
    OF_LIBRARY.get().expect("loaded before a pool was changed")
}

fn wait(at: *const c_void, bytes: usize, flags: c_uint) {
    if flags & NO_FLUSH == 0 {
        take_time_of(lines_of(at as usize, bytes));
    }
}

unsafe extern "C" fn persist(at: *const c_void, bytes: usize) {
    // SAFETY: the caller's arguments.
    unsafe { (of_library().persist)(at, bytes) };
    wait(at, bytes, 0);
}

unsafe extern "C" fn flush(at: *const c_void, bytes: usize) {
    // SAFETY: the caller's arguments.
    unsafe { (of_library().flush)(at, bytes) };
    wait(at, bytes, 0);
}

unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let done = unsafe { (of_library().memcpy)(to, from, bytes, flags) };
    wait(to, bytes, flags);
    done
}

unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, bytes: usize, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let done = unsafe { (of_library().memmove)(to, from, bytes, flags) };
    wait(to, bytes, flags);
    done
}

unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, bytes: usize, flags: c_uint) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let done = unsafe { (of_library().memset)(to, byte, bytes, flags) };
    wait(to, bytes, flags);
    done
}

/// Lets the flushes of an open pool take the time of slow memory. The pool must not be in use.
///
/// # Safety
/// `pool` is an open pool, which begins with more than so many words.
pub unsafe fn slow_down(pool: NonNull<c_void>) -> Result<()> {
    let theirs = Flushes::of(load(&["libpmem.so.1"], "libpmem1")?, "pmem_")?;
    let theirs = OF_LIBRARY.get_or_init(|| theirs);
    let pairs = [
        (theirs.persist as usize, persist as unsafe extern "C" fn(_, _) as usize),
        (theirs.flush as usize, flush as unsafe extern "C" fn(_, _) as usize),
        (theirs.memcpy as usize, memcpy as unsafe extern "C" fn(_, _, _, _) -> _ as usize),
        (theirs.memmove as usize, memmove as unsafe extern "C" fn(_, _, _, _) -> _ as usize),
        (theirs.memset as usize, memset as unsafe extern "C" fn(_, _, _, _) -> _ as usize),
    ];
    let words = pool.cast::<usize>();
    for (of_library, ours) in pairs {
        let mut found = 0;
        for nth in 0..WORDS {
            // SAFETY: the caller's promise; the pool is aligned to pages.
            unsafe {
                let word = words.add(nth);
                if word.read() == of_library {
                    word.write(ours);
                    found += 1;
                }
            }
        }
        ensure!(found == 1, "the flushes of this version of libpmemobj are elsewhere, so they cannot be slowed down");
    }
    Ok(())
}
