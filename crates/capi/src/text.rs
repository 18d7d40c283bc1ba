//! Strings that the library hands to its caller, and the function that frees them.

use std::ffi::{c_char, c_void};

use crate::error::untorn_error::UNTORN_E_NO_MEMORY;
use crate::error::{Failure, Result};

/// Copies a text into memory of the C library's, ended by NUL. The caller of the exported function frees
/// the copy with untorn_free().
pub(crate) fn to_caller(text: &[u8]) -> Result<*mut c_char> {
    // SAFETY: takes a number; a text with its NUL is not larger than memory.
    let copy = unsafe { libc::malloc(text.len() + 1) }.cast::<u8>();
    if copy.is_null() {
        let message = format!("no memory for a text of {} bytes", text.len());
        return Err(Failure { kind: UNTORN_E_NO_MEMORY, errno: libc::ENOMEM, message });
    }
    // SAFETY: allocated just now with so many bytes, and not a part of `text`.
    unsafe {
        copy.copy_from_nonoverlapping(text.as_ptr(), text.len());
        copy.add(text.len()).write(0);
    }
    Ok(copy.cast())
}

/// Frees what a function of this library returned to be freed: the strings of untorn_path(),
/// untorn_store_path(), untorn_store_status_json(), untorn_heap_check(), untorn_heap_check_file() and
/// untorn_heap_dump_file(). NULL does nothing. Memory in a heap is freed by
/// untorn_heap_free(), and handles are closed by the functions for their kind.
///
/// # Safety
/// `memory` is NULL, or was returned by such a function and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_free(memory: *mut c_void) {
    // SAFETY: the caller's promise; `to_caller` allocates with `malloc`.
    unsafe { libc::free(memory) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn texts_are_copied_whole_and_ended_by_nul() {
        for text in [&b""[..], b"hello"] {
            let copy = to_caller(text).unwrap();
            // SAFETY: not NULL, and ended by NUL.
            assert_eq!(unsafe { CStr::from_ptr(copy) }.to_bytes(), text);
            // SAFETY: returned by `to_caller`, and freed once.
            unsafe { untorn_free(copy.cast()) };
        }
    }
}
