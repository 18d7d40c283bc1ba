//! `untorn sqlite adopt`.

use super::belonging::{Belonging, database};
use super::each::{Done, each};
use crate::commands::recover;
use crate::json;
use crate::progress_bar::Progress;
use crate::sqlite_files::{Database, journal_of, log_of, marker_of};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn::offline::{self, RecoverOptions};
use untorn::{File, FileOptions, StoreOptions};
use untorn_terminal::{Failure, Output, shown};

/// Make SQLite databases belong to a store, so that Untorn's extension opens them.
///
/// The extension does the same at the first opening. This command also ends WAL mode, for which no write-ahead log may be
/// there, and names the obstacles beforehand. No program may have the databases open.
#[derive(Args)]
pub struct Adopt {
    /// Databases.
    #[arg(required = true, value_name = "DB", value_hint = ValueHint::FilePath)]
    databases: Vec<PathBuf>,
    /// The store: a directory that has the databases in it, and becomes a store if it is none. Otherwise it is the
    /// directory of each database, if that is a store, or a store of its own.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Adopted {
    #[serde(serialize_with = "json::path")]
    path: PathBuf,
    #[serde(serialize_with = "json::path")]
    store: PathBuf,
    uri: String,
    /// Whether the database was in WAL mode before.
    wal_mode_ended: bool,
    #[serde(skip)]
    text: String,
}

impl Done for Adopted {
    fn path(&self) -> &Path {
        &self.path
    }

    fn text(&self) -> &str {
        &self.text
    }
}

impl Adopt {
    pub fn run(self) -> Result<Output, Failure> {
        each(&self.databases, self.json, |path| adopt(path, self.store.as_deref()))
    }
}

fn adopt(path: &Path, store: Option<&Path>) -> Result<Adopted, Failure> {
    let (path, database) = database(path)?;
    let belonging = choose(&path, store)?;
    let locked = database.lock(false)?;
    // Read again: another program may have changed it before the lock.
    let database = Database::open(&path).map_err(|e| Failure::io("read", &path, e))?.unwrap_or(database);
    refuse_unfinished(&path, &database)?;
    let wal_mode_ended = database.is_in_wal_mode();
    if wal_mode_ended {
        locked.end_wal_mode().map_err(|e| Failure::io("end WAL mode of", &path, e))?;
    }
    if belonging.is_there() {
        let progress = Progress::new("recovering");
        let options = RecoverOptions::default();
        let report = offline::recover(&belonging.store, &options, &|done, all| progress.show(done, all))?;
        recover::refuse_quarantined(&report.quarantined)?;
    }
    let options = StoreOptions::new().create(true);
    let files = FileOptions::new();
    match &belonging.name {
        Some(name) => {
            let store = options.open(&belonging.store)?;
            mark(files.open_in(&store, name)?)?;
        }
        None => mark(files.store(options).open(&path)?)?,
    }
    let removed = match offline::file_mark(&path)?.is_some_and(|mark| mark.pending) {
        true => None,
        false => locked.remove_marker()?,
    };
    let uri = belonging.uri(&path);
    let mut text = format!("{}: belongs to {}\n", shown(&path), belonging.text());
    if wal_mode_ended {
        text += "  WAL mode is ended\n";
    }
    if removed.is_some() {
        text += "  the marker of a killed process is removed\n";
    }
    text += &format!("  open it as {uri}\n");
    Ok(Adopted { store: belonging.store, uri, wal_mode_ended, text, path })
}

/// Commits bytes that the file has already, and so marks it as the store's; then closes the store. Whatever happens to this
/// commit, the file's contents are the same.
fn mark(file: File) -> Result<(), Failure> {
    let store = file.store();
    let mut magic = [0; 16];
    let n = file.read_at(&mut magic, 0)?;
    file.write_all_at(&magic[..n], 0)?;
    file.commit()?;
    file.close()?;
    Ok(store.close()?)
}

/// The store that a database is to belong to.
fn choose(path: &Path, asked: Option<&Path>) -> Result<Belonging, Failure> {
    let present = Belonging::of(path)?;
    let Some(asked) = asked else {
        return Ok(present.unwrap_or_else(|| Belonging { store: path.to_owned(), name: None }));
    };
    let dir = asked.canonicalize().map_err(|e| Failure::io("look at the store", asked, e))?;
    if !dir.is_dir() || !path.starts_with(&dir) {
        return Err(Failure::new(format!("{} does not lie in the directory {}", shown(path), shown(asked))));
    }
    if let Some(present) = present.filter(|present| present.store != dir) {
        return Err(Failure::new(format!(
            "{} belongs to the store {}: run `untorn sqlite plain` on it first",
            shown(path),
            present.text()
        )));
    }
    let nearer =
        path.ancestors().skip(1).take_while(|above| *above != dir).find(|above| above.join(".untorn").is_dir());
    if let Some(nearer) = nearer {
        return Err(Failure::new(format!(
            "{} lies in the store {}, which lies in {}: a file belongs to the nearest store above it",
            shown(path),
            shown(nearer),
            shown(asked)
        )));
    }
    Ok(Belonging::in_directory(&dir, path))
}

/// Refuses a database for which commits or a transaction wait that only SQLite can bring into it.
fn refuse_unfinished(path: &Path, database: &Database) -> Result<(), Failure> {
    let log = log_of(path);
    if log.symlink_metadata().is_ok() {
        return Err(Failure::new(format!(
            "{} has commits that may be in {} only. Run `sqlite3 {0} 'PRAGMA journal_mode=DELETE'`, and adopt it again",
            shown(path),
            shown(&log)
        )));
    }
    if database.has_hot_journal().map_err(|e| Failure::io("look at the journal of", path, e))? {
        return Err(Failure::new(format!(
            "{0} has the journal of a transaction that was interrupted. Run `sqlite3 {0} 'SELECT count(*) FROM \
             sqlite_schema'`, which rolls it back, and adopt it again",
            shown(path)
        )));
    }
    let journal = journal_of(path);
    if journal.is_dir() && marker_of(path).is_none() {
        return Err(Failure::new(format!(
            "{} is a directory with files in it, and stands where the journal of {} would be: move it away first",
            shown(&journal),
            shown(path)
        )));
    }
    Ok(())
}
