//! LMDB with its defaults: every transaction is flushed.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;

type Any = *mut c_void;

/// `MDB_val`.
#[repr(C)]
struct Value {
    len: usize,
    bytes: *const u8,
}

impl Value {
    fn of(bytes: &[u8]) -> Value {
        Value { len: bytes.len(), bytes: bytes.as_ptr() }
    }

    const NONE: Value = Value { len: 0, bytes: std::ptr::null() };

    /// # Safety
    /// LMDB filled it, in a transaction that still runs.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }
    }
}

functions!(Functions {
    fn env_create(*mut Any) -> c_int;
    fn env_set_mapsize(Any, usize) -> c_int;
    fn env_open(Any, *const c_char, c_uint, c_uint) -> c_int;
    fn env_close(Any);
    fn txn_begin(Any, Any, c_uint, *mut Any) -> c_int;
    fn txn_commit(Any) -> c_int;
    fn txn_abort(Any);
    fn dbi_open(Any, *const c_char, c_uint, *mut c_uint) -> c_int;
    fn put(Any, c_uint, *mut Value, *mut Value, c_uint) -> c_int;
    fn del(Any, c_uint, *mut Value, *mut Value) -> c_int;
    fn get(Any, c_uint, *mut Value, *mut Value) -> c_int;
    fn cursor_open(Any, c_uint, *mut Any) -> c_int;
    fn cursor_get(Any, *mut Value, *mut Value, c_int) -> c_int;
    fn cursor_close(Any);
    fn strerror(c_int) -> *const c_char;
});

const READ_ONLY: c_uint = 0x20000;
/// Transactions that read do not belong to threads.
const NO_THREAD_SLOTS: c_uint = 0x20_0000;
const NEXT: c_int = 8;
const NOT_FOUND: c_int = -30798;

pub struct Lmdb {
    f: Functions,
}

impl Lmdb {
    pub fn load() -> Result<Lmdb> {
        Ok(Lmdb { f: Functions::of(load(&["liblmdb.so.0"], "liblmdb0")?, "mdb_")? })
    }

    fn check(&self, result: c_int) -> Result<()> {
        if result != 0 {
            // SAFETY: a constant string.
            bail!("{}", unsafe { c_text((self.f.strerror)(result)) });
        }
        Ok(())
    }
}

pub struct LmdbStore {
    lmdb: Rc<Lmdb>,
    env: Any,
    dbi: c_uint,
}

impl LmdbStore {
    pub fn open(lmdb: &Rc<Lmdb>, dir: &Path, map_bytes: usize) -> Result<LmdbStore> {
        LmdbStore::open_with(lmdb, dir, map_bytes, 0)
    }

    /// Opens a store in which a thread can read and write at the same time.
    pub fn open_for_any_thread(lmdb: &Rc<Lmdb>, dir: &Path, map_bytes: usize) -> Result<LmdbStore> {
        LmdbStore::open_with(lmdb, dir, map_bytes, NO_THREAD_SLOTS)
    }

    fn open_with(lmdb: &Rc<Lmdb>, dir: &Path, map_bytes: usize, flags: c_uint) -> Result<LmdbStore> {
        let (f, path) = (&lmdb.f, c_path(dir)?);
        let mut store = LmdbStore { lmdb: lmdb.clone(), env: null_mut(), dbi: 0 };
        // SAFETY: as the header has it; the environment is closed once, also if opening fails.
        unsafe {
            lmdb.check((f.env_create)(&mut store.env))?;
            lmdb.check((f.env_set_mapsize)(store.env, map_bytes))?;
            lmdb.check((f.env_open)(store.env, path.as_ptr(), flags, 0o666))?;
        }
        let mut dbi = 0;
        // SAFETY: a running transaction.
        store.transact(0, |txn| unsafe { lmdb.check((f.dbi_open)(txn, std::ptr::null(), 0, &mut dbi)) })?;
        store.dbi = dbi;
        Ok(store)
    }

    /// Begins to read; the values are those of the last commit until the end.
    pub fn begin_read(&self) -> Result<LmdbRead<'_>> {
        let mut txn = null_mut();
        // SAFETY: an open environment, which outlives the transaction.
        self.lmdb.check(unsafe { (self.lmdb.f.txn_begin)(self.env, null_mut(), READ_ONLY, &mut txn) })?;
        Ok(LmdbRead { store: self, txn })
    }

    /// Stores entries in one transaction, perhaps beside one that reads.
    pub fn put_shared(&self, entries: &[Entry<'_>]) -> Result<()> {
        self.transact(0, |txn| {
            entries.iter().try_for_each(|entry| {
                let (mut key, mut value) = (Value::of(entry.key), Value::of(entry.value));
                // SAFETY: a running transaction; LMDB copies the bytes.
                self.lmdb.check(unsafe { (self.lmdb.f.put)(txn, self.dbi, &mut key, &mut value, 0) })
            })
        })
    }

    fn transact<T>(&self, flags: c_uint, work: impl FnOnce(Any) -> Result<T>) -> Result<T> {
        let f = &self.lmdb.f;
        let mut txn = null_mut();
        // SAFETY: an open environment; the transaction ends here, in one way or the other.
        unsafe {
            self.lmdb.check((f.txn_begin)(self.env, null_mut(), flags, &mut txn))?;
            match work(txn) {
                Ok(result) => self.lmdb.check((f.txn_commit)(txn)).map(|()| result),
                Err(e) => {
                    (f.txn_abort)(txn);
                    Err(e)
                }
            }
        }
    }
}

impl Drop for LmdbStore {
    fn drop(&mut self) {
        // SAFETY: ours, and there is no transaction.
        unsafe { (self.lmdb.f.env_close)(self.env) };
    }
}

/// A transaction that reads.
pub struct LmdbRead<'a> {
    store: &'a LmdbStore,
    txn: Any,
}

impl LmdbRead<'_> {
    /// Copies a value.
    pub fn read(&self, key: &Key, buf: &mut [u8]) -> Result<()> {
        let lmdb = &self.store.lmdb;
        let mut value = Value::NONE;
        // SAFETY: a running transaction, which keeps the value where it is.
        let bytes = unsafe {
            lmdb.check((lmdb.f.get)(self.txn, self.store.dbi, &mut Value::of(key), &mut value))?;
            value.bytes()
        };
        buf[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Drop for LmdbRead<'_> {
    fn drop(&mut self) {
        // SAFETY: a running transaction.
        unsafe { (self.store.lmdb.f.txn_abort)(self.txn) };
    }
}

impl Store for LmdbStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        self.put_shared(entries)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        // SAFETY: a running transaction, and a whole key.
        self.transact(0, |txn| unsafe {
            self.lmdb.check((self.lmdb.f.del)(txn, self.dbi, &mut Value::of(key), null_mut()))
        })
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        self.transact(READ_ONLY, |txn| {
            let mut sum = 0;
            for key in keys {
                let mut value = Value::NONE;
                // SAFETY: a running transaction, which keeps the value where it is.
                match unsafe { (self.lmdb.f.get)(txn, self.dbi, &mut Value::of(key), &mut value) } {
                    NOT_FOUND => {}
                    result => {
                        self.lmdb.check(result)?;
                        // SAFETY: as above.
                        sum += taste(unsafe { value.bytes() });
                    }
                }
            }
            Ok(sum)
        })
    }

    fn scan(&mut self) -> Result<Scan> {
        let f = &self.lmdb.f;
        self.transact(READ_ONLY, |txn| {
            let mut scan = Scan::default();
            let mut cursor = null_mut();
            // SAFETY: a running transaction, in which values stay where they are; the cursor is closed before it ends.
            unsafe {
                self.lmdb.check((f.cursor_open)(txn, self.dbi, &mut cursor))?;
                let (mut key, mut value) = (Value::NONE, Value::NONE);
                while (f.cursor_get)(cursor, &mut key, &mut value, NEXT) == 0 {
                    scan.add(value.bytes());
                }
                (f.cursor_close)(cursor);
            }
            Ok(scan)
        })
    }
}
