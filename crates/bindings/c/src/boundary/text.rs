//! Strings that the library hands to its caller, and the function that frees them.

use std::ffi::{c_char, c_void};

use crate::boundary::error::untorn_error::UNTORN_E_NO_MEMORY;
use crate::boundary::error::{Failure, Result};

/// Copies a text into memory of the C library, ended by NUL. The caller of the exported function frees the copy with
/// untorn_free().
pub(crate) fn to_caller(text: &[u8]) -> Result<*mut c_char> {
    let copy = memory(text.len() + 1)?;
    // SAFETY: allocated just now with so many bytes, and not a part of `text`.
    unsafe {
        copy.copy_from_nonoverlapping(text.as_ptr(), text.len());
        copy.add(text.len()).write(0);
    }
    Ok(copy.cast())
}

/// Allocates memory of the C library, not initialised, aligned for everything.
fn memory(bytes: usize) -> Result<*mut u8> {
    // SAFETY: takes a number.
    let memory = unsafe { libc::malloc(bytes) }.cast::<u8>();
    if memory.is_null() {
        let message = format!("no memory for a result of {bytes} bytes");
        return Err(Failure { kind: UNTORN_E_NO_MEMORY, errno: libc::ENOMEM, message });
    }
    Ok(memory)
}

/// A block that the caller frees with one call: room for structs that point to each other, and texts behind them.
pub(crate) struct Block(Vec<u8>);

impl Block {
    /// Begins with so many bytes of zeros, for the structs.
    pub(crate) fn new(bytes: usize) -> Block {
        Block(vec![0; bytes])
    }

    /// Adds a text and a NUL; returns the offset of the text.
    pub(crate) fn text(&mut self, text: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(text);
        self.0.push(0);
        at
    }

    /// Copies the block into memory of the C library, aligned for every struct.
    pub(crate) fn to_caller(&self) -> Result<*mut u8> {
        let copy = memory(self.0.len().max(1))?;
        // SAFETY: allocated just now with so many bytes.
        unsafe { copy.copy_from_nonoverlapping(self.0.as_ptr(), self.0.len()) };
        Ok(copy)
    }
}

/// Frees memory that a function of this library has returned to be freed: the strings of untorn_path(),
/// untorn_store_path(), untorn_store_status_json(), untorn_heap_check(), untorn_heap_check_file() and
/// untorn_heap_dump_file(), and the results of untorn_reader_read(), untorn_snapshot_list() and untorn_follow_next().
/// NULL does nothing. Memory in a heap is freed by untorn_heap_free(), and handles are closed by the functions for
/// their kind.
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
