//! libpmemobj (PMDK): an undo log in a pool, which is a mapped file.

use super::protocol::{Change, Protocol, Shape};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail, ensure};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;

#[repr(C)]
#[derive(Clone, Copy)]
struct Oid {
    pool: u64,
    offset: u64,
}

functions! {
    Functions {
        fn create(*const c_char, *const c_char, usize, u32) -> *mut c_void;
        fn root(*mut c_void, usize) -> Oid;
        fn direct(Oid) -> *mut u8;
        fn tx_add_range_direct(*const u8, usize) -> c_int;
        fn tx_commit();
        fn tx_end() -> c_int;
        fn errormsg() -> *const c_char;
        fn close(*mut c_void);
    }
}

/// `pmemobj_tx_begin` with a place to jump to, and locks, of which there are none here.
type Begin = unsafe extern "C" fn(*mut c_void, *mut c_void, ...) -> c_int;

/// The end of the locks.
const NO_MORE: c_int = 0;

pub struct Pool {
    functions: Functions,
    begin: Begin,
    pool: NonNull<c_void>,
    /// The files, one after the other.
    memory: NonNull<u8>,
    shape: Shape,
}

// SAFETY: the library's pools are for any number of threads; the caller keeps them from changing one file at a time.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn open(dir: &Path, shape: Shape) -> Result<Pool> {
        let library = load(&["libpmemobj.so.1"], "libpmemobj1")?;
        let functions = Functions::of(library, "pmemobj_")?;
        // SAFETY: the declaration is that of the library's header.
        let begin: Begin = *unsafe { library.get(b"pmemobj_tx_begin") }?;
        let bytes = shape.files * shape.file_bytes as usize;
        let path = c_path(&dir.join("pool"))?;
        // SAFETY: C strings; the layout may be any text.
        let pool = unsafe { (functions.create)(path.as_ptr(), c"files".as_ptr(), bytes + (64 << 20), 0o600) };
        let Some(pool) = NonNull::new(pool) else {
            // SAFETY: the library's text of this thread's last error.
            bail!("pmemobj_create: {}", unsafe { c_text((functions.errormsg)()) });
        };
        // SAFETY: an open pool.
        let root = unsafe { (functions.root)(pool.as_ptr(), bytes) };
        // SAFETY: an object of the pool, or its null.
        let memory = NonNull::new(unsafe { (functions.direct)(root) });
        let Some(memory) = memory.filter(|_| root.offset != 0) else { bail!("pmemobj_root failed") };
        Ok(Pool { functions, begin, pool, memory, shape })
    }

    /// The pool's first byte.
    pub fn address(&self) -> NonNull<c_void> {
        self.pool
    }

    fn place(&self, file: usize, at: u64) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(file * self.shape.file_bytes as usize + at as usize)
    }
}

impl Protocol for Pool {
    fn transact(&self, changes: &[Change<'_>]) -> Result<()> {
        // SAFETY: an open pool; without a place to jump to, an abort returns an error.
        let begun = unsafe { (self.begin)(self.pool.as_ptr(), std::ptr::null_mut(), NO_MORE) };
        ensure!(begun == 0, "pmemobj_tx_begin failed");
        let mut added = 0;
        for Change { file, at, bytes } in changes.iter().filter(|change| !change.bytes.is_empty()) {
            let place = self.place(*file, *at);
            // SAFETY: within the root object; a transaction of this thread is open.
            added |= unsafe { (self.functions.tx_add_range_direct)(place, bytes.len()) };
            if added == 0 {
                // SAFETY: within the object; no other thread uses this file at the moment.
                unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
        }
        if added == 0 {
            // SAFETY: the transaction is still open; a failed addition would have aborted it.
            unsafe { (self.functions.tx_commit)() };
        }
        // SAFETY: each begin has its end.
        let ended = unsafe { (self.functions.tx_end)() };
        ensure!(added == 0 && ended == 0, "a transaction of libpmemobj failed");
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn read(&self, file: usize) -> Result<Vec<u8>> {
        // SAFETY: within the root object; tests read when no thread writes.
        Ok(unsafe { std::slice::from_raw_parts(self.place(file, 0), self.shape.file_bytes as usize) }.to_vec())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: open, and used by nobody any more.
        unsafe { (self.functions.close)(self.pool.as_ptr()) };
    }
}
