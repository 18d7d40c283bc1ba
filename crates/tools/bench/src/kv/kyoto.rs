//! Kyoto Cabinet: file trees and file hashes, with synchronised transactions or with `OAUTOSYNC`.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail, ensure};
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::rc::Rc;

type Any = *mut c_void;

functions!(Functions {
    fn dbnew() -> Any;
    fn dbdel(Any);
    fn dbopen(Any, *const c_char, u32) -> i32;
    fn dbclose(Any) -> i32;
    fn dbemsg(Any) -> *const c_char;
    fn dbset(Any, *const u8, usize, *const u8, usize) -> i32;
    fn dbreplace(Any, *const u8, usize, *const u8, usize) -> i32;
    fn dbremove(Any, *const u8, usize) -> i32;
    fn dbget(Any, *const u8, usize, *mut usize) -> *mut u8;
    fn dbbegintran(Any, i32) -> i32;
    fn dbendtran(Any, i32) -> i32;
    fn dbcursor(Any) -> Any;
    fn curjump(Any) -> i32;
    fn curgetvalue(Any, *mut usize, i32) -> *mut u8;
    fn curdel(Any);
    fn free(*mut c_void);
});

/// `KCOWRITER | KCOCREATE`, `KCOAUTOTRAN` and `KCOAUTOSYNC`.
const WRITE: u32 = 2 | 4;
const AUTO_TRANSACTION: u32 = 16;
const AUTO_SYNC: u32 = 32;

/// The kind of database, which the file's suffix selects.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Tree,
    Hash,
}

/// The way in which an operation becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Durable {
    Transactions,
    AutoSync,
}

pub struct Kyoto {
    f: Functions,
}

impl Kyoto {
    pub fn load() -> Result<Kyoto> {
        Ok(Kyoto { f: Functions::of(load(&["libkyotocabinet.so.16"], "libkyotocabinet16v5")?, "kc")? })
    }
}

/// How a server's database keeps updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// In the kernel's cache.
    Unsynchronized,
    /// Synchronised after each: `ktserver`'s `-oas`.
    Synchronized,
    /// Each in a synchronised transaction: `-oas` and `-oat`.
    Transactions,
}

/// A file hash that threads share, as in a server.
pub struct SharedKyoto {
    kyoto: Kyoto,
    db: Any,
}

// SAFETY: the library's databases may be used by several threads at a time.
unsafe impl Send for SharedKyoto {}
// SAFETY: the same.
unsafe impl Sync for SharedKyoto {}

impl SharedKyoto {
    pub fn open(kyoto: Kyoto, path: &Path, mode: Mode) -> Result<SharedKyoto> {
        let more = match mode {
            Mode::Unsynchronized => 0,
            Mode::Synchronized => AUTO_SYNC,
            Mode::Transactions => AUTO_SYNC | AUTO_TRANSACTION,
        };
        let path = c_path(path)?;
        // SAFETY: as the header has it; deleted once, also if opening fails.
        let shared = unsafe { SharedKyoto { db: (kyoto.f.dbnew)(), kyoto } };
        // SAFETY: a new database object and a string.
        shared.check(unsafe { (shared.kyoto.f.dbopen)(shared.db, path.as_ptr(), WRITE | more) })?;
        Ok(shared)
    }

    fn check(&self, done: i32) -> Result<()> {
        // SAFETY: a constant string.
        ensure!(done != 0, "{}", unsafe { c_text((self.kyoto.f.dbemsg)(self.db)) });
        Ok(())
    }

    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: an open database, and bytes as long as we say.
        self.check(unsafe { (self.kyoto.f.dbset)(self.db, key.as_ptr(), key.len(), value.as_ptr(), value.len()) })
    }

    /// Replaces the value of a key that is there.
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<()> {
        // SAFETY: the same.
        self.check(unsafe { (self.kyoto.f.dbreplace)(self.db, key.as_ptr(), key.len(), value.as_ptr(), value.len()) })
    }

    pub fn remove(&self, key: &[u8]) -> Result<()> {
        // SAFETY: an open database and a whole key.
        self.check(unsafe { (self.kyoto.f.dbremove)(self.db, key.as_ptr(), key.len()) })
    }
}

impl Drop for SharedKyoto {
    fn drop(&mut self) {
        // SAFETY: ours; closing one that is not open does nothing.
        unsafe {
            (self.kyoto.f.dbclose)(self.db);
            (self.kyoto.f.dbdel)(self.db);
        }
    }
}

pub struct KyotoStore {
    kyoto: Rc<Kyoto>,
    db: Any,
    durable: Durable,
}

impl KyotoStore {
    pub fn open(kyoto: &Rc<Kyoto>, dir: &Path, kind: Kind, durable: Durable) -> Result<KyotoStore> {
        let (name, mode) = match kind {
            Kind::Tree => ("db.kct", WRITE),
            Kind::Hash => ("db.kch", WRITE),
        };
        let mode = if durable == Durable::AutoSync { mode | AUTO_SYNC } else { mode };
        let path = c_path(&dir.join(name))?;
        // SAFETY: as the header has it; deleted once, also if opening fails.
        let store = KyotoStore { kyoto: kyoto.clone(), db: unsafe { (kyoto.f.dbnew)() }, durable };
        // SAFETY: a new database object and a string.
        store.check(unsafe { (kyoto.f.dbopen)(store.db, path.as_ptr(), mode) })?;
        Ok(store)
    }

    fn check(&self, done: i32) -> Result<()> {
        if done == 0 {
            // SAFETY: a constant string.
            bail!("{}", unsafe { c_text((self.kyoto.f.dbemsg)(self.db)) });
        }
        Ok(())
    }

    fn durably(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.durable == Durable::AutoSync {
            return work();
        }
        // SAFETY: an open database; 1: physical synchronisation.
        self.check(unsafe { (self.kyoto.f.dbbegintran)(self.db, 1) })?;
        work()?;
        // SAFETY: the transaction that began; 1: commit it.
        self.check(unsafe { (self.kyoto.f.dbendtran)(self.db, 1) })
    }

    /// # Safety
    /// A value of `len` bytes that the library gave out, or NULL.
    unsafe fn take(&self, value: *mut u8, len: usize) -> Option<u64> {
        if value.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; it is freed once.
        unsafe {
            let tasted = taste(std::slice::from_raw_parts(value, len));
            (self.kyoto.f.free)(value.cast());
            Some(tasted)
        }
    }
}

impl Drop for KyotoStore {
    fn drop(&mut self) {
        // SAFETY: ours; closing one that is not open does nothing.
        unsafe {
            (self.kyoto.f.dbclose)(self.db);
            (self.kyoto.f.dbdel)(self.db);
        }
    }
}

impl Store for KyotoStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        self.durably(|| {
            entries.iter().try_for_each(|Entry { key, value }| {
                // SAFETY: an open database, and bytes as long as we say.
                self.check(unsafe {
                    (self.kyoto.f.dbset)(self.db, key.as_ptr(), key.len(), value.as_ptr(), value.len())
                })
            })
        })
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        // SAFETY: an open database and a whole key.
        self.durably(|| self.check(unsafe { (self.kyoto.f.dbremove)(self.db, key.as_ptr(), key.len()) }))
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let mut sum = 0;
        for key in keys {
            let mut len = 0;
            // SAFETY: an open database and a whole key; the value is ours.
            unsafe {
                let value = (self.kyoto.f.dbget)(self.db, key.as_ptr(), key.len(), &mut len);
                sum += self.take(value, len).unwrap_or(0);
            }
        }
        Ok(sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let f = &self.kyoto.f;
        let mut scan = Scan::default();
        // SAFETY: an open database; the cursor ends before it.
        unsafe {
            let cursor = (f.dbcursor)(self.db);
            (f.curjump)(cursor);
            loop {
                let mut len = 0;
                let Some(tasted) = self.take((f.curgetvalue)(cursor, &mut len, 1), len) else { break };
                scan.count += 1;
                scan.sum += tasted;
            }
            (f.curdel)(cursor);
        }
        Ok(scan)
    }
}
