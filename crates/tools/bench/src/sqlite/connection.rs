//! Connections of SQLite, with the extension or without it.

use crate::measuring::library::{c_text, functions, load};
use crate::measuring::unavailable::unavailable;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::time::Duration;

type Any = *mut c_void;

functions!(Functions {
    fn open_v2(*const c_char, *mut Any, c_int, *const c_char) -> c_int;
    fn close_v2(Any) -> c_int;
    fn exec(Any, *const c_char, *const c_void, Any, *mut *mut c_char) -> c_int;
    fn errmsg(Any) -> *const c_char;
    fn busy_timeout(Any, c_int) -> c_int;
    fn enable_load_extension(Any, c_int) -> c_int;
    fn load_extension(Any, *const c_char, *const c_char, *mut *mut c_char) -> c_int;
    fn prepare_v2(Any, *const c_char, c_int, *mut Any, *mut *const c_char) -> c_int;
    fn bind_blob(Any, c_int, *const u8, c_int, *const c_void) -> c_int;
    fn bind_int64(Any, c_int, i64) -> c_int;
    fn step(Any) -> c_int;
    fn reset(Any) -> c_int;
    fn finalize(Any) -> c_int;
});

const READ_WRITE_CREATE_URI: c_int = 0x2 | 0x4 | 0x40;
const ROW: c_int = 100;
const DONE: c_int = 101;

/// SQLite, loaded.
#[derive(Clone, Copy)]
pub struct Sqlite {
    f: &'static Functions,
}

impl Sqlite {
    pub fn load() -> Result<Sqlite> {
        let functions = Functions::of(load(&["libsqlite3.so.0"], "libsqlite3-0")?, "sqlite3_")?;
        Ok(Sqlite { f: Box::leak(Box::new(functions)) })
    }

    /// Loads the extension, which stays.
    pub fn extend(self) -> Result<()> {
        let path = CString::new(extension()?.into_os_string().as_bytes())?;
        let any = self.open(":memory:")?;
        // SAFETY: an open database and a string; the reason of a failure is not asked for.
        let loaded = unsafe {
            (self.f.enable_load_extension)(any.db, 1);
            (self.f.load_extension)(any.db, path.as_ptr(), null(), null_mut())
        };
        any.check(loaded, 0).with_context(|| format!("cannot load {}", path.to_string_lossy()))
    }

    /// Opens a database by a name or an URI.
    pub fn open(self, uri: &str) -> Result<Connection> {
        let mut connection = Connection { f: self.f, db: null_mut() };
        let uri = CString::new(uri)?;
        // SAFETY: as the header has it; closed once, also if opening fails.
        let opened = unsafe { (self.f.open_v2)(uri.as_ptr(), &mut connection.db, READ_WRITE_CREATE_URI, null()) };
        connection.check(opened, 0)?;
        Ok(connection)
    }
}

/// `libuntorn_sqlite.so`, beside this program or where `make install` puts it.
fn extension() -> Result<PathBuf> {
    const NAME: &str = "libuntorn_sqlite.so";
    let program = std::env::current_exe()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(NAME), dir.join("../lib/untorn").join(NAME)];
    let found = places.iter().find(|path| path.exists());
    found.cloned().ok_or_else(|| unavailable(format!("{} is missing: `make build` builds it", places[0].display())))
}

/// An open database. Only one thread uses it at a time.
pub struct Connection {
    f: &'static Functions,
    db: Any,
}

// SAFETY: SQLite's connections may move between threads.
unsafe impl Send for Connection {}

impl Connection {
    fn check(&self, result: c_int, wanted: c_int) -> Result<()> {
        if result != wanted {
            // SAFETY: a string that is good until the next call.
            bail!("SQLite: {} ({result})", unsafe { c_text((self.f.errmsg)(self.db)) });
        }
        Ok(())
    }

    pub fn execute(&self, sql: &str) -> Result<()> {
        let text = CString::new(sql)?;
        // SAFETY: an open database and a string.
        let result = unsafe { (self.f.exec)(self.db, text.as_ptr(), null(), null_mut(), null_mut()) };
        self.check(result, 0).with_context(|| sql.to_owned())
    }

    /// How long a statement waits for another connection.
    pub fn wait_for_others(&self, most: Duration) {
        // SAFETY: an open database.
        unsafe { (self.f.busy_timeout)(self.db, most.as_millis() as c_int) };
    }

    pub fn prepare(&self, sql: &str) -> Result<Statement> {
        let text = CString::new(sql)?;
        let mut statement = null_mut();
        // SAFETY: an open database and a string.
        let prepared = unsafe { (self.f.prepare_v2)(self.db, text.as_ptr(), -1, &mut statement, null_mut()) };
        self.check(prepared, 0)?;
        Ok(Statement { f: self.f, statement })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: ours, and open until its last statement is gone; NULL does nothing.
        unsafe { (self.f.close_v2)(self.db) };
    }
}

/// A prepared statement.
pub struct Statement {
    f: &'static Functions,
    statement: Any,
}

// SAFETY: as connections.
unsafe impl Send for Statement {}

impl Statement {
    /// Runs the statement with a key, and a value, if there is one. Returns the number of rows.
    pub fn run(&self, key: i64, value: Option<&[u8]>) -> Result<usize> {
        let (f, statement) = (self.f, self.statement);
        let mut rows = 0;
        // SAFETY: a prepared statement; the bound bytes outlive the run.
        unsafe {
            (f.bind_int64)(statement, 1, key);
            if let Some(value) = value {
                (f.bind_blob)(statement, 2, value.as_ptr(), value.len() as c_int, null());
            }
            let end = loop {
                match (f.step)(statement) {
                    ROW => rows += 1,
                    other => break other,
                }
            };
            (f.reset)(statement);
            ensure!(end == DONE, "SQLite: a statement failed with {end}");
        }
        Ok(rows)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.f.finalize)(self.statement) };
    }
}
