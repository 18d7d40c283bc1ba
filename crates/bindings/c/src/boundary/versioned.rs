//! Structs that begin with their size in the caller's header, so that later versions can add members.

use std::mem::size_of;

use crate::boundary::error::{Failure, Result};

/// A struct of the header whose first member is `size: usize`.
///
/// # Safety
/// `repr(C)`, and any bits, all zeros among them, are valid for every member.
pub(crate) unsafe trait Versioned: Copy {
    /// The struct's name, for messages.
    const NAME: &'static str;
    /// Bytes of the struct's first version: no caller can have fewer.
    const SIZE_MIN: usize = size_of::<Self>();
}

/// An upper limit for the size of any version: a larger size was never initialised.
const SIZE_MAX: usize = 4096;

fn check_size<T: Versioned>(size: usize) -> Result<()> {
    if !(T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(Failure::invalid(format!("an {} of {size} bytes: set its size before the call", T::NAME)));
    }
    Ok(())
}

/// The size of a caller's struct, checked.
///
/// # Safety
/// `of` is NULL or points to a `size_t`.
pub(crate) unsafe fn checked_size<T: Versioned>(of: *const T) -> Result<usize> {
    if of.is_null() {
        return Err(Failure::null(&format!("the pointer to an {}", T::NAME)));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let size = unsafe { of.cast::<usize>().read() };
    check_size::<T>(size)?;
    Ok(size)
}

/// Sets all members to zero, and the size.
///
/// # Safety
/// `to` is NULL or points to `size` writable bytes.
pub(crate) unsafe fn init<T: Versioned>(to: *mut T, size: usize) -> Result<()> {
    if to.is_null() {
        return Err(Failure::null(&format!("the pointer to an {}", T::NAME)));
    }
    check_size::<T>(size)?;
    // SAFETY: not NULL, and at least as large as its first member; the rest is the caller's promise.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        to.cast::<usize>().write(size);
    }
    Ok(())
}

/// Reads a caller's struct, of any version. None: NULL. Members that only newer versions know must be zero.
///
/// # Safety
/// `from` is NULL or points to as many bytes as its first member says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), checked_size(from)?) };
    let (known, newer) = bytes.split_at(bytes.len().min(size_of::<T>()));
    if newer.iter().any(|&byte| byte != 0) {
        return Err(Failure::invalid(format!(
            "the program has set members of {} that this version of the library does not know",
            T::NAME
        )));
    }
    // SAFETY: zeros, and any other bytes, are valid for every member; `known` is no longer than `T`.
    unsafe {
        let mut read: T = std::mem::zeroed();
        (&raw mut read).cast::<u8>().copy_from_nonoverlapping(known.as_ptr(), known.len());
        Ok(Some(read))
    }
}

/// Fills `size` bytes of a caller's struct, of any version. Members that this version does not know get
/// zeros.
///
/// # Safety
/// `to` points to `size` writable bytes; `from` has no padding.
pub(crate) unsafe fn write<T: Versioned>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise; `from` is `known` bytes long or longer.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        to.cast::<u8>().copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
        to.cast::<usize>().write(size);
    }
}
