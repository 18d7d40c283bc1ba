//! SQLite databases as Untorn's extension for SQLite keeps them: their locks, and the marker of commits that are only in
//! the journal.
//!
//! From before its first commit until the data file has every commit, the empty directory `NAME-journal` stands beside a
//! database (crates/bindings/sqlite/marker.c), so that SQLite without the extension reads and writes nothing.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use untorn::offline::{self, Inspection, Report};
use untorn_os::{lock_bytes, lock_of_others};
use untorn_terminal::{Failure, shown};

/// SQLite's lock bytes: PENDING, RESERVED and 510 of SHARED.
const LOCK_BYTES: std::ops::Range<u64> = 0x4000_0000..0x4000_0200;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The offset of the two bytes that say whether a database is in WAL mode.
const VERSIONS: u64 = 18;
const WAL: u8 = 2;
const ROLLBACK_JOURNAL: [u8; 2] = [1, 1];

/// A database, by its file.
pub struct Database {
    path: PathBuf,
    file: File,
    /// The first 20 bytes; none if the file is empty.
    header: Option<[u8; 20]>,
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The name of a database's journal, and of its marker.
pub fn journal_of(path: &Path) -> PathBuf {
    with_end(path, "-journal")
}

/// The name of a database's write-ahead log.
pub fn log_of(path: &Path) -> PathBuf {
    with_end(path, "-wal")
}

/// The name of the store of its own that a file may have.
pub fn own_store_of(path: &Path) -> PathBuf {
    with_end(path, ".untorn")
}

impl Database {
    /// Opens a file for reading. `None` if it is no database; a new one is empty.
    pub fn open(path: &Path) -> io::Result<Option<Database>> {
        let not_blocking = i32::from_ne_bytes(rustix::fs::OFlags::NONBLOCK.bits().to_ne_bytes());
        let mut options = OpenOptions::new();
        let file = std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), not_blocking).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut header = [0; 20];
        let header = match file.read_exact_at(&mut header, 0) {
            Ok(()) if header.starts_with(MAGIC) => Some(header),
            Ok(()) => return Ok(None),
            Err(_) if file.metadata()?.len() == 0 => None,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(Some(Database { path: path.to_owned(), file, header }))
    }

    pub fn is_in_wal_mode(&self) -> bool {
        self.header.is_some_and(|header| header[18..].contains(&WAL))
    }

    /// Whether a program that was killed, or is at work, left a transaction in a journal of SQLite.
    pub fn has_hot_journal(&self) -> io::Result<bool> {
        let mut first = [0; 1];
        match File::open(journal_of(&self.path)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
            Ok(journal) if !journal.metadata()?.is_file() => Ok(false),
            Ok(journal) => Ok(journal.read_at(&mut first, 0)? == 1 && first != [0]),
        }
    }

    /// The holder of SQLite's locks. The inner value is a process's id, if Linux tells it.
    pub fn locked_by(&self) -> io::Result<Option<Option<u32>>> {
        Ok(lock_of_others(&self.file, LOCK_BYTES)?.map(|lock| lock.pid))
    }

    /// Takes all of SQLite's locks until the result is dropped: meanwhile no other program reads or writes the database.
    pub fn lock(&self, wait: bool) -> Result<Locked, Failure> {
        let failed = |e| Failure::io("lock", &self.path, e);
        let file = OpenOptions::new().read(true).write(true).open(&self.path).map_err(failed)?;
        if lock_bytes(&file, LOCK_BYTES, wait).map_err(failed)? {
            return Ok(Locked { file, path: self.path.clone() });
        }
        let who = match self.locked_by().map_err(failed)? {
            Some(Some(pid)) => format!("process {pid} has it open"),
            _ => "another process has it open".to_owned(),
        };
        Err(Failure::new(format!(
            "{}: {who} in SQLite. Close it there, or run `PRAGMA untorn_release` in a process that uses Untorn's \
             extension; then try again",
            shown(&self.path)
        )))
    }
}

/// A database whose locks this process has.
pub struct Locked {
    file: File,
    path: PathBuf,
}

impl Locked {
    /// Ends WAL mode. The log must be gone: with all locks held, nobody is making one. After a crash that left one of the
    /// two bytes, the database still has no log, and SQLite reads it in either mode.
    pub fn end_wal_mode(&self) -> io::Result<()> {
        self.file.write_all_at(&ROLLBACK_JOURNAL, VERSIONS)?;
        self.file.sync_all()
    }

    /// Removes the marker. The data file must have every commit, durably. If a power cut brings the marker back, it is
    /// removed again.
    pub fn remove_marker(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(marker) = marker_of(&self.path) else { return Ok(None) };
        fs::remove_dir(&marker).map_err(|e| Failure::io("remove the marker", &marker, e))?;
        Ok(Some(marker))
    }
}

/// The marker of a database, if it has one. A directory that is not empty is not Untorn's.
pub fn marker_of(path: &Path) -> Option<PathBuf> {
    let marker = journal_of(path);
    let is_directory = marker.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    let is_marker = is_directory && fs::read_dir(&marker).is_ok_and(|mut names| names.next().is_none());
    (is_marker && path.symlink_metadata().is_ok_and(|meta| meta.is_file()) && is_database(path)).then_some(marker)
}

fn is_database(path: &Path) -> bool {
    Database::open(path).is_ok_and(|found| found.is_some())
}

/// The databases of a store that have markers: the file of the path itself, or files below the directory, except those
/// of other stores.
pub fn marked_databases(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if path.is_dir() {
        search(path, &mut found);
    } else if marker_of(path).is_some() {
        found.push(path.to_owned());
    }
    found.sort();
    found
}

fn search(dir: &Path, found: &mut Vec<PathBuf>) {
    // A directory that cannot be read is reported by the search for data files.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let (name, at) = (entry.file_name(), entry.path());
        if let Some(database) = name.as_bytes().strip_suffix(b"-journal") {
            let database = dir.join(OsStr::from_bytes(database));
            if marker_of(&database).is_some() && !own_store_of(&database).exists() {
                found.push(database);
                continue;
            }
        }
        if !name.as_bytes().ends_with(b".untorn") && !at.join(".untorn").exists() {
            search(&at, found);
        }
    }
}

/// Databases of a store, locked while the store is recovered.
pub struct Guard {
    locked: Vec<Locked>,
}

impl Guard {
    /// Locks the databases of a store that have markers or wait for commits. An owner is told by the store itself.
    pub fn of_store(path: &Path, wait: bool) -> Result<Guard, Failure> {
        let mut paths = marked_databases(path);
        if let Ok(found) = offline::inspect(path) {
            let pending = found.files_pending.into_iter().map(|file| file.path);
            paths.extend(pending.map(|name| if path.is_dir() { path.join(name) } else { path.to_owned() }));
            if found.owner.is_some() && !wait {
                return Ok(Guard { locked: Vec::new() });
            }
        }
        if !path.is_dir() {
            paths.push(path.to_owned());
        }
        paths.sort();
        paths.dedup();
        let is_certain = |database: &Database| database.header.is_some() || marker_of(&database.path).is_some();
        let databases = paths.iter().filter_map(|path| Database::open(path).ok().flatten()).filter(is_certain);
        Ok(Guard { locked: databases.map(|database| database.lock(wait)).collect::<Result<_, _>>()? })
    }

    pub fn any_marker(&self) -> bool {
        self.locked.iter().any(|locked| marker_of(&locked.path).is_some())
    }

    /// Removes the markers of the databases that wait for nothing after a recovery. Returns a line about each.
    pub fn remove_markers(&self, after: &Report) -> Result<String, Failure> {
        let mut said = String::new();
        for locked in &self.locked {
            // A copy without attributes may be quarantined: its file has no mark.
            let is_quarantined = after.quarantined.iter().any(|file| locked.path.ends_with(&file.path));
            if is_quarantined || offline::file_mark(&locked.path)?.is_some_and(|mark| mark.pending) {
                continue;
            }
            if let Some(marker) = locked.remove_marker()? {
                said += &format!("{}: the marker is removed; any SQLite may open the database\n", shown(&marker));
            }
        }
        Ok(said)
    }
}

/// A line about each marker in a store that nobody has open.
pub fn left_markers(found: &Inspection) -> String {
    if found.owner.is_some() {
        return String::new();
    }
    let line = |database: PathBuf| {
        format!(
            "  marker   {}: until `untorn recover` removes it, SQLite without Untorn's extension answers \"disk I/O error\"\n",
            shown(&journal_of(&database))
        )
    };
    marked_databases(&found.path).into_iter().map(line).collect()
}
