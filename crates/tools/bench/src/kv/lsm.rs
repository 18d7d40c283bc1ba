//! LevelDB and RocksDB, with `sync = true`, else with their defaults. Their C interfaces differ only in the prefix.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail};
use std::ffi::{c_char, c_uchar, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;

type Any = *mut c_void;
type Failure = *mut *mut c_char;

functions!(Functions {
    fn options_create() -> Any;
    fn options_set_create_if_missing(Any, c_uchar);
    fn options_destroy(Any);
    fn open(Any, *const c_char, Failure) -> Any;
    fn close(Any);
    fn writeoptions_create() -> Any;
    fn writeoptions_set_sync(Any, c_uchar);
    fn writeoptions_destroy(Any);
    fn readoptions_create() -> Any;
    fn readoptions_destroy(Any);
    fn put(Any, Any, *const u8, usize, *const u8, usize, Failure);
    fn delete(Any, Any, *const u8, usize, Failure);
    fn writebatch_create() -> Any;
    fn writebatch_put(Any, *const u8, usize, *const u8, usize);
    fn writebatch_destroy(Any);
    fn write(Any, Any, Any, Failure);
    fn get(Any, Any, *const u8, usize, *mut usize, Failure) -> *mut u8;
    fn free(*mut c_void);
    fn create_iterator(Any, Any) -> Any;
    fn iter_seek_to_first(Any);
    fn iter_valid(Any) -> c_uchar;
    fn iter_next(Any);
    fn iter_value(Any, *mut usize) -> *const u8;
    fn iter_destroy(Any);
});

/// One of the two libraries.
pub struct Lsm {
    f: Functions,
}

impl Lsm {
    pub fn leveldb() -> Result<Lsm> {
        Ok(Lsm { f: Functions::of(load(&["libleveldb.so.1d", "libleveldb.so.1"], "libleveldb1d")?, "leveldb_")? })
    }

    pub fn rocksdb() -> Result<Lsm> {
        let files = ["librocksdb.so.7.8", "librocksdb.so.8.9", "librocksdb.so.9.10", "librocksdb.so"];
        Ok(Lsm { f: Functions::of(load(&files, "librocksdb7.8")?, "rocksdb_")? })
    }

    /// Makes a call that may fail.
    fn checked<T>(&self, call: impl FnOnce(Failure) -> T) -> Result<T> {
        let mut failure = null_mut();
        let result = call(&mut failure);
        if failure.is_null() {
            return Ok(result);
        }
        // SAFETY: a string that is ours to free.
        let text = unsafe { c_text(failure) };
        // SAFETY: as above; nothing uses it any more.
        unsafe { (self.f.free)(failure.cast()) };
        bail!(text)
    }
}

pub struct LsmStore {
    lsm: Rc<Lsm>,
    db: Any,
    writing: Any,
    reading: Any,
}

impl LsmStore {
    pub fn open(lsm: &Rc<Lsm>, dir: &Path) -> Result<LsmStore> {
        let (f, path) = (&lsm.f, c_path(&dir.join("db"))?);
        // SAFETY: as the header has it; everything made here is destroyed once.
        let (opened, writing, reading) = unsafe {
            let options = (f.options_create)();
            (f.options_set_create_if_missing)(options, 1);
            let opened = lsm.checked(|failure| (f.open)(options, path.as_ptr(), failure));
            (f.options_destroy)(options);
            let writing = (f.writeoptions_create)();
            (f.writeoptions_set_sync)(writing, 1);
            (opened, writing, (f.readoptions_create)())
        };
        let mut store = LsmStore { lsm: lsm.clone(), db: null_mut(), writing, reading };
        store.db = opened?;
        Ok(store)
    }
}

impl Drop for LsmStore {
    fn drop(&mut self) {
        let f = &self.lsm.f;
        // SAFETY: all of them are ours and alive.
        unsafe {
            if !self.db.is_null() {
                (f.close)(self.db);
            }
            (f.writeoptions_destroy)(self.writing);
            (f.readoptions_destroy)(self.reading);
        }
    }
}

impl Store for LsmStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        let f = &self.lsm.f;
        if let [Entry { key, value }] = entries {
            let (key, value) = (*key, *value);
            // SAFETY: an open database, and bytes as long as we say.
            return self.lsm.checked(|failure| unsafe {
                (f.put)(self.db, self.writing, key.as_ptr(), key.len(), value.as_ptr(), value.len(), failure)
            });
        }
        // SAFETY: as above; the batch is destroyed once.
        unsafe {
            let batch = (f.writebatch_create)();
            for Entry { key, value } in entries {
                (f.writebatch_put)(batch, key.as_ptr(), key.len(), value.as_ptr(), value.len());
            }
            let done = self.lsm.checked(|failure| (f.write)(self.db, self.writing, batch, failure));
            (f.writebatch_destroy)(batch);
            done
        }
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        // SAFETY: an open database, and bytes as long as we say.
        self.lsm
            .checked(|failure| unsafe { (self.lsm.f.delete)(self.db, self.writing, key.as_ptr(), key.len(), failure) })
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let f = &self.lsm.f;
        let mut sum = 0;
        for key in keys {
            let mut len = 0;
            // SAFETY: an open database, and bytes as long as we say.
            let value = self.lsm.checked(|failure| unsafe {
                (f.get)(self.db, self.reading, key.as_ptr(), key.len(), &mut len, failure)
            })?;
            if !value.is_null() {
                // SAFETY: so many bytes, which are ours to free.
                unsafe {
                    sum += taste(std::slice::from_raw_parts(value, len));
                    (f.free)(value.cast());
                }
            }
        }
        Ok(sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let f = &self.lsm.f;
        let mut scan = Scan::default();
        // SAFETY: an open database; a value is good until the iterator moves on.
        unsafe {
            let iterator = (f.create_iterator)(self.db, self.reading);
            (f.iter_seek_to_first)(iterator);
            while (f.iter_valid)(iterator) != 0 {
                let mut len = 0;
                let value = (f.iter_value)(iterator, &mut len);
                if !value.is_null() {
                    scan.add(std::slice::from_raw_parts(value, len));
                }
                (f.iter_next)(iterator);
            }
            (f.iter_destroy)(iterator);
        }
        Ok(scan)
    }
}
