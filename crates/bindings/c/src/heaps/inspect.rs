//! Exported functions: the contents of a persistent heap, and checks of its soundness.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use untorn::heap::HeapReport;
use untorn::offline;

use crate::boundary::arguments;
use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::text::to_caller;
use crate::heaps::heap::{untorn_heap, with_heap};

/// For untorn_heap_check_file(): also look for values that may be pointers out of the heap.
pub const UNTORN_CHECK_POINTERS: u32 = 1;

fn json(found: &HeapReport) -> Result<*mut c_char> {
    let mut value = serde_json::to_value(found).map_err(|e| Failure {
        kind: crate::boundary::error::untorn_error::UNTORN_E_IO,
        errno: libc::EIO,
        message: e.to_string(),
    })?;
    value["sound"] = found.is_sound().into();
    to_caller(value.to_string().as_bytes())
}

/// Writes the report to the caller's pointer; returns whether the heap is sound.
///
/// # Safety
/// `report` is NULL or writable.
unsafe fn answer(found: &HeapReport, report: *mut *mut c_char) -> Result<c_int> {
    if !report.is_null() {
        // SAFETY: the caller's promise.
        unsafe { report.write(json(found)?) };
    }
    Ok(c_int::from(found.is_sound()))
}

/// Checks an open heap: every chunk, block and root, and all memory that the roots reach, uncommitted changes
/// included. No thread may change the heap during the call. If `report` is not NULL, `*report` is a description in
/// JSON, with damage (`problems`) and allocations that no root reaches (`leaks`); free it with untorn_free(). Returns
/// 1: sound; 0: damaged; -1: EINVAL (this thread is between untorn_heap_begin() and untorn_heap_end()), EBADF, EIO.
///
/// # Safety
/// `report` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_check(heap: *mut untorn_heap, report: *mut *mut c_char) -> c_int {
    guard(-1, || {
        if !report.is_null() {
            // SAFETY: the caller's promise.
            unsafe { report.write(null_mut()) };
        }
        // SAFETY: the caller's promise.
        with_heap(heap, |heap| unsafe { answer(&heap.check(&|_, _| {})?, report) })
    })
}

/// Checks a heap that no program has open, in the state that recovery would give it, without changing a byte. `flags`
/// is 0 or UNTORN_CHECK_POINTERS. Otherwise like untorn_heap_check(), with the members `pointers` of the report.
/// Returns 1: sound; 0: damaged; -1: EBUSY, EMEDIUMTYPE (not a heap), ENOENT, EINVAL, EIO.
///
/// # Safety
/// `path` is a string; `report` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_check_file(path: *const c_char, flags: u32, report: *mut *mut c_char) -> c_int {
    guard(-1, || {
        if !report.is_null() {
            // SAFETY: the caller's promise.
            unsafe { report.write(null_mut()) };
        }
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path") }?;
        let look = match flags {
            0 => offline::check_heap,
            UNTORN_CHECK_POINTERS => offline::check_heap_pointers,
            _ => return Err(Failure::invalid(format!("unknown bits in the flags {flags:#x}"))),
        };
        // SAFETY: the caller's promise.
        unsafe { answer(&look(path, &|_, _| {})?, report) }
    })
}

/// Describes a heap that no program has open, in JSON: sizes, blocks, roots with their types. Reads only the
/// heap's metadata, and changes nothing. Free the result with untorn_free(). NULL with an error as
/// untorn_heap_check_file().
///
/// # Safety
/// `path` is a string.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_dump_file(path: *const c_char) -> *mut c_char {
    guard(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path") }?;
        json(&offline::dump_heap(path, &|_, _| {})?)
    })
}
