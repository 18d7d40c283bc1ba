//! gdbm with `gdbm_sync` after each operation.
//!
//! `GDBM_SYNC` alone flushes only operations that change the file's directory or header. With `gdbm_sync` all are
//! durable, but a crash in the middle of an operation may damage the file.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;

type Any = *mut c_void;

/// `datum`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Datum {
    bytes: *mut u8,
    len: c_int,
}

impl Datum {
    fn of(bytes: &[u8]) -> Datum {
        Datum { bytes: bytes.as_ptr().cast_mut(), len: bytes.len() as c_int }
    }
}

functions!(Functions {
    fn gdbm_open(*const c_char, c_int, c_int, c_int, *const c_void) -> Any;
    fn gdbm_close(Any) -> c_int;
    fn gdbm_store(Any, Datum, Datum, c_int) -> c_int;
    fn gdbm_delete(Any, Datum) -> c_int;
    fn gdbm_fetch(Any, Datum) -> Datum;
    fn gdbm_firstkey(Any) -> Datum;
    fn gdbm_nextkey(Any, Datum) -> Datum;
    fn gdbm_sync(Any) -> c_int;
    fn gdbm_db_strerror(Any) -> *const c_char;
    fn free(*mut c_void);
});

/// `GDBM_WRCREAT`.
const MODE: c_int = 2;
const REPLACE: c_int = 1;

pub struct Gdbm {
    f: Functions,
}

impl Gdbm {
    pub fn load() -> Result<Gdbm> {
        Ok(Gdbm { f: Functions::of(load(&["libgdbm.so.6"], "libgdbm6")?, "")? })
    }
}

pub struct GdbmStore {
    gdbm: Rc<Gdbm>,
    db: Any,
}

impl GdbmStore {
    pub fn open(gdbm: &Rc<Gdbm>, dir: &Path) -> Result<GdbmStore> {
        let path = c_path(&dir.join("db"))?;
        // SAFETY: a string; no function for fatal errors.
        let db = unsafe { (gdbm.f.gdbm_open)(path.as_ptr(), 0, MODE, 0o666, null_mut()) };
        if db.is_null() {
            bail!("cannot open {}", path.to_string_lossy());
        }
        Ok(GdbmStore { gdbm: gdbm.clone(), db })
    }

    fn check(&self, result: c_int) -> Result<()> {
        if result != 0 {
            // SAFETY: a constant string.
            bail!("{}", unsafe { c_text((self.gdbm.f.gdbm_db_strerror)(self.db)) });
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // SAFETY: an open database.
        self.check(unsafe { (self.gdbm.f.gdbm_sync)(self.db) })
    }

    /// The taste of a key's value.
    fn fetch(&self, key: Datum) -> Option<u64> {
        // SAFETY: an open database; the returned value is ours to free.
        unsafe {
            let value = (self.gdbm.f.gdbm_fetch)(self.db, key);
            if value.bytes.is_null() {
                return None;
            }
            let tasted = taste(std::slice::from_raw_parts(value.bytes, value.len as usize));
            (self.gdbm.f.free)(value.bytes.cast());
            Some(tasted)
        }
    }
}

impl Drop for GdbmStore {
    fn drop(&mut self) {
        // SAFETY: ours, and open.
        unsafe { (self.gdbm.f.gdbm_close)(self.db) };
    }
}

impl Store for GdbmStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        for Entry { key, value } in entries {
            // SAFETY: an open database, and bytes as long as we say.
            self.check(unsafe { (self.gdbm.f.gdbm_store)(self.db, Datum::of(*key), Datum::of(value), REPLACE) })?;
        }
        self.sync()
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        // SAFETY: an open database and a whole key.
        self.check(unsafe { (self.gdbm.f.gdbm_delete)(self.db, Datum::of(key)) })?;
        self.sync()
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        Ok(keys.iter().filter_map(|key| self.fetch(Datum::of(key))).sum())
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        // SAFETY: an open database; keys are ours to free.
        unsafe {
            let mut key = (self.gdbm.f.gdbm_firstkey)(self.db);
            while !key.bytes.is_null() {
                scan.count += 1;
                scan.sum += self.fetch(key).unwrap_or(0);
                let next = (self.gdbm.f.gdbm_nextkey)(self.db, key);
                (self.gdbm.f.free)(key.bytes.cast());
                key = next;
            }
        }
        Ok(scan)
    }
}
