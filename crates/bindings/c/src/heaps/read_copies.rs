//! Exported functions: in-memory copies of files and heaps of a store that is open for reading only.

use parking_lot::RwLock;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use untorn::heap::ReadHeap;
use untorn::{ReadMap, Reader};

use crate::boundary::arguments;
use crate::boundary::error::{Failure, guard};
use crate::boundary::handle::{self, Handle, Handles, Kind};
use crate::heaps::roots::{shape, text};
use crate::readers::reader::untorn_reader;

/// A copy of a file's bytes in memory, all of one commit. It does not change by itself.
#[allow(non_camel_case_types)]
pub struct untorn_read_map {
    _opaque: (),
}

/// A copy of another process's heap, for reading: as of one commit, at the heap's own address. Stores to it stay in
/// this process. Nothing can be allocated in it.
#[allow(non_camel_case_types)]
pub struct untorn_read_heap {
    _opaque: (),
}

struct OpenMap(RwLock<ReadMap>);

impl Handle for OpenMap {
    const KIND: Kind = Kind::ReadMap;
    fn handles() -> &'static Handles<OpenMap> {
        static OPEN: Handles<OpenMap> = Handles::new();
        &OPEN
    }
}

struct OpenHeap(RwLock<ReadHeap>);

impl Handle for OpenHeap {
    const KIND: Kind = Kind::ReadHeap;
    fn handles() -> &'static Handles<OpenHeap> {
        static OPEN: Handles<OpenHeap> = Handles::new();
        &OPEN
    }
}

/// Maps the file `path` as of the last durable commit. The map is a copy, made while that commit is held. Blocks are
/// shared with the file if the file system supports that and this user may write; otherwise the copy takes memory.
/// Returns a handle, or NULL: ENOENT, EISDIR, EINVAL, ENOMEM, EBADF …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_read_map_open(
    reader: *const untorn_reader,
    path: *const c_char,
) -> *mut untorn_read_map {
    guard(null_mut(), || {
        let reader = handle::get::<Reader, _>(reader)?;
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path")? };
        handle::insert(OpenMap(RwLock::new(reader.map(path)?)))
    })
}

/// Returns the address of the bytes, and stores their number in `*len`, which may be NULL. They are valid until the
/// map is refreshed or closed. NULL: EBADF.
///
/// # Safety
/// `len` is NULL or can be written to.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_read_map_bytes(map: *const untorn_read_map, len: *mut usize) -> *const c_void {
    guard(null_mut::<c_void>(), || {
        let map = handle::get::<OpenMap, _>(map)?;
        let map = map.0.read();
        // SAFETY: NULL, or the caller's promise.
        if let Some(len) = unsafe { len.as_mut() } {
            *len = map.len();
        }
        Ok(map.as_ptr().cast_mut().cast())
    })
}

/// Returns the number of the commit that the map shows, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_map_lsn(map: *const untorn_read_map) -> i64 {
    guard(-1, || Ok(handle::get::<OpenMap, _>(map)?.0.read().lsn().cast_signed()))
}

/// Moves the map to the last durable commit: address and length may change. No thread may use the bytes during the
/// call, nor the old bytes after it. Returns 1: a later commit; 0: it is the same commit; -1 with an error like
/// untorn_read_map_open(): the map is then as before.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_map_refresh(map: *mut untorn_read_map) -> c_int {
    guard(-1, || Ok(handle::get::<OpenMap, _>(map)?.0.write().refresh()?.into()))
}

/// Closes the map; its bytes are no longer valid. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_map_close(map: *mut untorn_read_map) -> c_int {
    guard(-1, || {
        drop(handle::take::<OpenMap, _>(map)?);
        Ok(0)
    })
}

/// Opens the heap `path` as of the last durable commit, at the heap's own address; of a live heap that is the last
/// cut. It is a copy, made while that commit is held. Returns a handle, or NULL: EINVAL (that address is in use in
/// this process, for example by the heap itself), EMEDIUMTYPE (not a heap), EUCLEAN, ENOENT, ENOMEM, EBADF …
///
/// # Safety
/// `path` ends in NUL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_read_heap_open(
    reader: *const untorn_reader,
    path: *const c_char,
) -> *mut untorn_read_heap {
    guard(null_mut(), || {
        let reader = handle::get::<Reader, _>(reader)?;
        // SAFETY: the caller's promise.
        let path = unsafe { arguments::path(path, "the path")? };
        handle::insert(OpenHeap(RwLock::new(reader.heap(path)?)))
    })
}

/// Finds a root of a heap that is open for reading only, like untorn_heap_root(): `*found` is the address that the
/// root points to, or NULL, valid until the heap is refreshed or closed. Returns 1: found; 0: there is no such root;
/// -1: EINVAL (also UNTORN_E_LAYOUT_CHANGED), EUCLEAN, EFAULT, EBADF.
///
/// # Safety
/// `name` and `type` are strings; `found` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_read_heap_root(
    heap: *const untorn_read_heap,
    name: *const c_char,
    type_: *const c_char,
    bytes: usize,
    align: usize,
    version: u32,
    found: *mut *const c_void,
) -> c_int {
    guard(-1, || {
        if found.is_null() {
            return Err(Failure::null("where the root's address goes"));
        }
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { found.write(null_mut()) };
        // SAFETY: the caller's promise.
        let (name, type_name) = unsafe { (text(name, "the root's name")?, text(type_, "the type's name")?) };
        let heap = handle::get::<OpenHeap, _>(heap)?;
        let heap = heap.0.read();
        let Some(at) = heap.find_root(name, &shape(type_name, bytes, align, version)?)? else { return Ok(0) };
        // SAFETY: as above.
        unsafe { found.write(at.as_ptr().cast_const().cast()) };
        Ok(1)
    })
}

/// Returns the number of the commit that the heap shows, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_heap_lsn(heap: *const untorn_read_heap) -> i64 {
    guard(-1, || Ok(handle::get::<OpenHeap, _>(heap)?.0.read().lsn().cast_signed()))
}

/// Moves the heap to the last durable commit, at the same address; look roots up again. No thread may use the heap
/// during the call. Returns 1: a later commit; 0: it is the same commit; -1: EEXIST (another heap has its name now),
/// or an error like untorn_read_heap_open(): the heap is then as before.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_heap_refresh(heap: *mut untorn_read_heap) -> c_int {
    guard(-1, || Ok(handle::get::<OpenHeap, _>(heap)?.0.write().refresh()?.into()))
}

/// Closes the heap; addresses in it are no longer valid. Returns 0, or -1 with EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_read_heap_close(heap: *mut untorn_read_heap) -> c_int {
    guard(-1, || {
        drop(handle::take::<OpenHeap, _>(heap)?);
        Ok(0)
    })
}
