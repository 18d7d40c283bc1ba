//! A program that does not know Untorn: the same one runs natively and under `untorn preload`.

use crate::kv::kv_store::{Entry, Store, key};
use crate::kv::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use crate::kv::sqlite::{JournalMode, Sqlite, SqliteStore};
use crate::measuring::harness::timed;
use crate::measuring::peers::{fresh_page, replace_file};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use untorn_terminal::say;

/// The rows of a database.
const KEYS: u64 = 1000;
/// At this size the file of the appends starts anew.
const APPENDED_MAX: u64 = 256 << 20;

/// The operation that the program repeats.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Work {
    /// An update of a random row of SQLite, to between `least` and `most` bytes.
    Sqlite { mode: JournalMode, least: usize, most: usize },
    /// An update of a random record of a tree of Kyoto Cabinet, to at most 16 KiB.
    Kyoto { durable: Durable },
    /// An append, and `fsync`.
    Append { bytes: usize },
    /// New contents in each of many files, by write, fsync, rename, fsync.
    Replace { files: usize },
    /// New contents in each of many files, by `untorn_fd_syncv`.
    Syncv { files: usize },
    /// A seek in a file that is not managed.
    Seek,
}

/// A program, and how many operations are one measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub dir: PathBuf,
    pub work: Work,
    pub batch: usize,
}

/// Measures a batch for each byte of the input, and prints the nanoseconds.
pub fn run(program: &Program) -> Result<()> {
    let mut operation = prepare(&program.dir, program.work)?;
    for byte in std::io::stdin().lock().bytes() {
        byte?;
        say!("{}", timed(|| (0..program.batch).try_for_each(|_| operation()))?.as_nanos());
    }
    Ok(())
}

type Operation = Box<dyn FnMut() -> Result<()>>;

fn prepare(dir: &Path, work: Work) -> Result<Operation> {
    match work {
        Work::Sqlite { mode, least, most } => {
            updates(SqliteStore::open(&Rc::new(Sqlite::load()?), dir, mode, true)?, least, most)
        }
        Work::Kyoto { durable } => {
            updates(KyotoStore::open(&Rc::new(Kyoto::load()?), dir, Kind::Tree, durable)?, 0, 16 << 10)
        }
        Work::Append { bytes } => {
            let (mut file, content) = (File::create(dir.join("log"))?, vec![b'a'; bytes]);
            let mut at = 0;
            Ok(Box::new(move || {
                if at > APPENDED_MAX {
                    file.set_len(0)?;
                    file.rewind()?;
                    at = 0;
                }
                at += content.len() as u64;
                file.write_all(&content)?;
                Ok(file.sync_all()?)
            }))
        }
        Work::Replace { files } => {
            let dir = dir.to_owned();
            Ok(Box::new(move || (0..files).try_for_each(|n| Ok(replace_file(&dir, &n.to_string(), &fresh_page())?))))
        }
        Work::Syncv { files } => syncv(dir, files),
        Work::Seek => {
            let mut file = File::create(dir.join("plain"))?;
            Ok(Box::new(move || Ok(file.seek(SeekFrom::Start(1)).map(drop)?)))
        }
    }
}

/// Fills a database, and returns the update of a random row.
fn updates(mut store: impl Store + 'static, least: usize, most: usize) -> Result<Operation> {
    let mut value = vec![b'v'; most];
    let mut random = fastrand::Rng::with_seed(7);
    for from in (0..KEYS).step_by(100) {
        let keys: Vec<_> = (from..from + 100).map(key).collect();
        let entry = |key| Entry { key, value: &value[..random.usize(least..=most)] };
        store.put(&keys.iter().map(entry).collect::<Vec<_>>())?;
    }
    Ok(Box::new(move || {
        // SQLite does not write a row that stays the same.
        random.fill(&mut value);
        let key = key(random.u64(..KEYS));
        store.put(&[Entry { key: &key, value: &value[..random.usize(least..=most)] }])
    }))
}

fn syncv(dir: &Path, files: usize) -> Result<Operation> {
    let open =
        |n| File::options().read(true).write(true).create(true).truncate(false).open(dir.join(format!("{n}.db")));
    let files = (0..files).map(open).collect::<std::io::Result<Vec<_>>>()?;
    let fds: Vec<c_int> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let program = libloading::os::unix::Library::this();
    // SAFETY: the function has this type.
    let commit = unsafe { program.get::<unsafe extern "C" fn(*const c_int, usize) -> c_int>(b"untorn_fd_syncv\0") };
    let commit = *commit.context("this process is not under `untorn preload`")?;
    Ok(Box::new(move || {
        files.iter().try_for_each(|file| file.write_all_at(&fresh_page(), 0))?;
        // SAFETY: the descriptors are as many.
        ensure!(unsafe { commit(fds.as_ptr(), fds.len()) } == 0, "{}", std::io::Error::last_os_error());
        Ok(())
    }))
}
