//! Exported functions: named roots of persistent heaps.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};

use untorn::heap::{RootInfo, RootShape};

use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::versioned::{self, Versioned};
use crate::heaps::heap::{untorn_heap, with_heap};

/// Bytes of `untorn_heap_root_info.name`, NUL included.
pub const UNTORN_ROOT_NAME_BYTES: usize = 48;
/// Bytes of `untorn_heap_root_info.type_name`, NUL included.
pub const UNTORN_ROOT_TYPE_BYTES: usize = 112;

/// A root: its name, its address, and the type that was recorded when the root was set.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_heap_root_info {
    /// Set it to sizeof(untorn_heap_root_info) before the call; the call fills that many bytes.
    pub size: usize,
    /// The address that the root points to.
    pub address: *mut c_void,
    /// The type's size in bytes.
    pub bytes: u64,
    /// The type's alignment.
    pub align: u32,
    /// The program's own number for the type's layout.
    pub version: u32,
    /// The root's name.
    pub name: [c_char; UNTORN_ROOT_NAME_BYTES],
    /// The type's name, cut off if it is too long.
    pub type_name: [c_char; UNTORN_ROOT_TYPE_BYTES],
}

const _: () = assert!(
    size_of::<untorn_heap_root_info>() == 32 + UNTORN_ROOT_NAME_BYTES + UNTORN_ROOT_TYPE_BYTES,
    "no padding; members may only be added"
);

// SAFETY: numbers, bytes and a pointer.
unsafe impl Versioned for untorn_heap_root_info {
    const NAME: &'static str = "untorn_heap_root_info";
    const SIZE_MIN: usize = 192;
}

/// A caller's string in UTF-8.
///
/// # Safety
/// NULL or a string that stays unchanged during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

pub(crate) fn shape(type_name: &str, bytes: usize, align: usize, version: u32) -> Result<RootShape<'_>> {
    let layout =
        Layout::from_size_align(bytes, align).map_err(|_| Failure::invalid("no type has this size and alignment"))?;
    Ok(RootShape { type_name, layout, version })
}

/// Finds a root by its name: `*found` is the address that the root points to, or NULL. The type's name, size,
/// alignment and version must be those that the root was set with. Otherwise the call fails with
/// UNTORN_E_LAYOUT_CHANGED, and untorn_heap_get_root_info() tells the old type. A program then migrates in
/// one commit: build the new object from the old one, set the root, commit. Returns 1: found; 0: there is no
/// such root; -1: EINVAL, EUCLEAN, EFAULT, EBADF.
///
/// # Safety
/// `name` and `type` are strings; `found` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_root(
    heap: *const untorn_heap,
    name: *const c_char,
    type_: *const c_char,
    bytes: usize,
    align: usize,
    version: u32,
    found: *mut *mut c_void,
) -> c_int {
    guard(-1, || {
        if found.is_null() {
            return Err(Failure::null("where the root's address goes"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { found.write(null_mut()) };
        // SAFETY: the caller's promise.
        let (name, type_name) = unsafe { (text(name, "the root's name")?, text(type_, "the type's name")?) };
        with_heap(heap, |heap| {
            let Some(at) = heap.find_root(name, &shape(type_name, bytes, align, version)?)? else { return Ok(0) };
            // SAFETY: as above.
            unsafe { found.write(at.as_ptr().cast()) };
            Ok(1)
        })
    })
}

/// Sets the root of a name (1 to 47 bytes) to an address; `address` NULL removes the root. The object that
/// the root pointed to before is not freed. Returns 0, or -1: EINVAL (address outside of the heap, too many
/// roots, no name), EBADF.
///
/// # Safety
/// `name` and `type` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_set_root(
    heap: *mut untorn_heap,
    name: *const c_char,
    address: *mut c_void,
    type_: *const c_char,
    bytes: usize,
    align: usize,
    version: u32,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let (name, type_name) = unsafe { (text(name, "the root's name")?, text(type_, "the type's name")?) };
        with_heap(heap, |heap| {
            heap.put_root(name, NonNull::new(address.cast()), &shape(type_name, bytes, align, version)?)?;
            Ok(0)
        })
    })
}

/// Calls `function` with `context` while other threads that find or set roots of the heap wait, and commits wait,
/// too. So finding a root and acting on the result are one step, such as making the root if there is none. The
/// function may make any call except commits, rollbacks and closing the heap. It must return, and must not wait for a
/// thread that may use the heap's roots. Returns the result of the function, or -1: EFAULT (no function), EBADF.
///
/// # Safety
/// `function` may be called with `context`, throws nothing, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_with_roots(
    heap: *mut untorn_heap,
    function: Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>,
    context: *mut c_void,
) -> c_int {
    guard(-1, || {
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        // SAFETY: the caller's promise.
        with_heap(heap, |heap| Ok(heap.with_roots(|| unsafe { function(context) })?))
    })
}

fn convert(root: &RootInfo) -> untorn_heap_root_info {
    fn fixed<const N: usize>(text: &str) -> [c_char; N] {
        let mut bytes = [0; N];
        // The last byte stays NUL for a text of any length.
        for (to, &from) in bytes[..N - 1].iter_mut().zip(text.as_bytes()) {
            *to = from as c_char;
        }
        bytes
    }
    untorn_heap_root_info {
        size: size_of::<untorn_heap_root_info>(),
        address: root.address.as_ptr().cast(),
        bytes: root.size,
        align: root.align,
        version: root.version,
        name: fixed(&root.name),
        type_name: fixed(&root.type_name),
    }
}

/// Describes a root of any type, for programs whose layout has changed. The caller has set the member `size`
/// of `info`. Returns 1: `info` is filled; 0: there is no such root; -1: EINVAL, EUCLEAN (the root points
/// out of the heap), EFAULT, EBADF.
///
/// # Safety
/// `name` is a string; `info` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_get_root_info(
    heap: *const untorn_heap,
    name: *const c_char,
    info: *mut untorn_heap_root_info,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(info) }?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "the root's name") }?;
        with_heap(heap, |heap| {
            let Some(found) = heap.root_info(name)? else { return Ok(0) };
            // SAFETY: the caller's promise; there is no padding.
            unsafe { versioned::write(&convert(&found), info, size) };
            Ok(1)
        })
    })
}

/// Describes the root number `n`. To list all roots, call with 0, 1, 2 … while no root is set
/// (untorn_heap_with_roots()). The order is unspecified. Returns 1: `info` is filled; 0: `n` is not less than the
/// number of roots; -1: EINVAL, EFAULT, EBADF.
///
/// # Safety
/// `info` is NULL or as large as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_heap_nth_root_info(
    heap: *const untorn_heap,
    n: usize,
    info: *mut untorn_heap_root_info,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let size = unsafe { versioned::checked_size(info) }?;
        with_heap(heap, |heap| {
            let roots = heap.roots();
            let Some(found) = roots.get(n) else { return Ok(0) };
            // SAFETY: the caller's promise; there is no padding.
            unsafe { versioned::write(&convert(found), info, size) };
            Ok(1)
        })
    })
}
