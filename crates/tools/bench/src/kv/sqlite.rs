//! SQLite with `synchronous=FULL`, so that committed changes are durable in both journal modes.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use crate::measuring::library::{c_path, c_text, functions, load};
use anyhow::{Result, bail};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;

type Any = *mut c_void;

functions!(Functions {
    fn open(*const c_char, *mut Any) -> c_int;
    fn close(Any) -> c_int;
    fn exec(Any, *const c_char, *const c_void, Any, *mut *mut c_char) -> c_int;
    fn errmsg(Any) -> *const c_char;
    fn prepare_v2(Any, *const c_char, c_int, *mut Any, *mut *const c_char) -> c_int;
    fn bind_blob(Any, c_int, *const u8, c_int, *const c_void) -> c_int;
    fn step(Any) -> c_int;
    fn reset(Any) -> c_int;
    fn finalize(Any) -> c_int;
    fn column_blob(Any, c_int) -> *const u8;
    fn column_bytes(Any, c_int) -> c_int;
});

const ROW: c_int = 100;
const DONE: c_int = 101;

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub enum JournalMode {
    Wal,
    Delete,
    /// A rollback journal in memory: the file system below makes updates atomic.
    Memory,
    /// No journal: the file system below makes updates atomic.
    Off,
}

pub struct Sqlite {
    f: Functions,
}

impl Sqlite {
    pub fn load() -> Result<Sqlite> {
        Ok(Sqlite { f: Functions::of(load(&["libsqlite3.so.0"], "libsqlite3-0")?, "sqlite3_")? })
    }
}

pub struct SqliteStore {
    sqlite: Rc<Sqlite>,
    db: Any,
    /// The statements put, delete, get and all.
    statements: [Any; 4],
}

const STATEMENTS: [&str; 4] = [
    "INSERT INTO kv VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = ?2",
    "DELETE FROM kv WHERE k = ?1",
    "SELECT v FROM kv WHERE k = ?1",
    "SELECT v FROM kv",
];
const PUT: usize = 0;
const DELETE: usize = 1;
const GET: usize = 2;
const ALL: usize = 3;

impl SqliteStore {
    /// `rowid` makes a table with a rowid, which is better for large values; a table without is better for small ones.
    pub fn open(sqlite: &Rc<Sqlite>, dir: &Path, mode: JournalMode, rowid: bool) -> Result<SqliteStore> {
        let path = c_path(&dir.join("db"))?;
        let mut store = SqliteStore { sqlite: sqlite.clone(), db: null_mut(), statements: [null_mut(); 4] };
        // SAFETY: as the header has it; closed once, also if opening fails.
        let opened = unsafe { (sqlite.f.open)(path.as_ptr(), &mut store.db) };
        store.check(opened, 0)?;
        let kind = if rowid { "" } else { "WITHOUT ROWID" };
        store.execute(&format!("PRAGMA journal_mode={mode:?}"))?;
        store.execute("PRAGMA synchronous=FULL")?;
        store.execute(&format!("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB) {kind}"))?;
        for (n, text) in STATEMENTS.iter().enumerate() {
            let text = CString::new(*text)?;
            let mut statement = null_mut();
            // SAFETY: an open database and a string.
            let prepared = unsafe { (sqlite.f.prepare_v2)(store.db, text.as_ptr(), -1, &mut statement, null_mut()) };
            store.check(prepared, 0)?;
            store.statements[n] = statement;
        }
        Ok(store)
    }

    fn check(&self, result: c_int, wanted: c_int) -> Result<()> {
        if result != wanted {
            // SAFETY: a string that is good until the next call.
            bail!("{}", unsafe { c_text((self.sqlite.f.errmsg)(self.db)) });
        }
        Ok(())
    }

    fn execute(&self, text: &str) -> Result<()> {
        let text = CString::new(text)?;
        // SAFETY: an open database and a string.
        let result = unsafe { (self.sqlite.f.exec)(self.db, text.as_ptr(), null_mut(), null_mut(), null_mut()) };
        self.check(result, 0)
    }

    /// Runs one of the statements; `row` gets the first column of each row.
    fn run(&self, statement: usize, values: &[&[u8]], mut row: impl FnMut(&[u8])) -> Result<()> {
        let (f, statement) = (&self.sqlite.f, self.statements[statement]);
        // SAFETY: a prepared statement; the bound bytes outlive the run, and columns are good until the next step.
        unsafe {
            for (n, value) in values.iter().enumerate() {
                let bound = (f.bind_blob)(statement, n as c_int + 1, value.as_ptr(), value.len() as c_int, null_mut());
                self.check(bound, 0)?;
            }
            let end = loop {
                match (f.step)(statement) {
                    ROW => {
                        let (bytes, len) = ((f.column_blob)(statement, 0), (f.column_bytes)(statement, 0));
                        row(std::slice::from_raw_parts(bytes, len as usize));
                    }
                    other => break other,
                }
            };
            let checked = self.check(end, DONE);
            (f.reset)(statement);
            checked
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // SAFETY: all of them are ours; NULL does nothing.
        unsafe {
            self.statements.iter().for_each(|statement| {
                (self.sqlite.f.finalize)(*statement);
            });
            (self.sqlite.f.close)(self.db);
        }
    }
}

impl Store for SqliteStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        let put = |entry: &Entry<'_>| self.run(PUT, &[entry.key, entry.value], |_| ());
        if let [entry] = entries {
            return put(entry);
        }
        self.execute("BEGIN")?;
        entries.iter().try_for_each(put)?;
        self.execute("COMMIT")
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.run(DELETE, &[key], |_| ())
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let mut sum = 0;
        self.execute("BEGIN")?;
        keys.iter().try_for_each(|key| self.run(GET, &[key], |value| sum += taste(value)))?;
        self.execute("COMMIT")?;
        Ok(sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        self.run(ALL, &[], |value| scan.add(value))?;
        Ok(scan)
    }
}
