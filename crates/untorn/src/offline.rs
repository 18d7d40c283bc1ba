//! Looks at and repairs of a store by its path, without handles of files.

use crate::options::{FailureClass, StoreOptions};
use crate::status::{Quarantined, Recovered};
use crate::store::{Inner, Store};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::apply::{Applier, Place};
use untorn_journal::format::{Attribute, RecordKind, VERSION, hex};
use untorn_journal::held::Only;
use untorn_journal::home::{Home, read_pid, remove_tree, segment_name};
use untorn_journal::recovery::{strip_attribute, strip_attributes};
use untorn_journal::scan::{ReadMode, Scan, scan};
use untorn_journal::state::FinalState;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, Open, Step, Storage};

pub use crate::put::put;

/// What [`inspect`] finds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inspection {
    /// The path that was asked for.
    pub path: PathBuf,
    /// Identity, in hexadecimal digits.
    pub store_id: String,
    /// The class of the commits in the journal.
    pub class: FailureClass,
    /// Version of the format.
    pub format_version: u32,
    /// Nothing is pending: the data files are plain and whole.
    pub clean: bool,
    /// The process that owns the store now (0: one that did not tell); the picture may then be stale.
    pub owner: Option<u32>,
    /// Class `process`, and the machine went down since.
    pub unknown_state: bool,
    /// The first commit that is not yet in the data files.
    pub sequence_first: u64,
    /// The last commit.
    pub sequence_last: u64,
    /// Accepted records, in order.
    pub records: Vec<RecordInfo>,
    /// Remains of an unfinished record follow, which recovery drops.
    pub torn_tail: bool,
    /// Files with pending commits.
    pub files_pending: Vec<PendingFile>,
    /// Journals set aside for files that could not be served.
    pub held_journals: u64,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Damage and broken invariants. Empty: sound.
    pub problems: Vec<String>,
}

/// A record.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecordInfo {
    /// Its number.
    pub sequence: u64,
    /// Which opening of the store wrote it.
    pub session: u64,
    /// The segment that it is in.
    pub segment: String,
    /// Its place there, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its checksum, in hexadecimal digits.
    pub crc: String,
    /// Every commit up to this one was durable when it was written.
    pub durable_through: u64,
    /// `commit` or `mark`.
    pub kind: String,
    /// Files that it touches.
    pub files: Vec<PathBuf>,
    /// What it does to them.
    pub operations: Vec<String>,
}

/// A file with pending commits.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PendingFile {
    /// Its newest name.
    pub path: PathBuf,
    /// Its identity, in hexadecimal digits.
    pub file_id: String,
    /// The first pending commit that touches it.
    pub first_sequence: u64,
    /// The last one.
    pub last_sequence: u64,
    /// Bytes that they change.
    pub bytes: u64,
    /// What recovery would do, or why it would not.
    pub outcome: String,
    /// Recovery can serve it.
    pub served: bool,
}

/// Where a path's store is: the storage, and Untorn's directory in it.
fn locate(path: &Path) -> Result<(Arc<Linux>, Home)> {
    let meta = std::fs::metadata(path).context("look at", path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        let storage = Linux::open(path).context("open", path)?;
        return match storage.stat(Path::new(untorn_journal::home::HOME)) {
            Ok(_) => Ok((storage, Home::of_directory())),
            Err(e) => Err(no_store(path, e)),
        };
    }
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
    let storage = Linux::open(path.parent().unwrap_or(Path::new(""))).context("open", path)?;
    let home = Home::of_file(Path::new(name));
    match storage.stat(&home.dir) {
        Ok(_) => Ok((storage, home)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            meta?;
            Err(no_store(path, e))
        }
        Err(e) => Err(no_store(path, e)),
    }
}

fn no_store(path: &Path, e: std::io::Error) -> Error {
    Error::io("find a store (of a directory, or beside a lone file) at", path, e)
}

/// The options that fit the store at a path.
fn open_options(options: &RecoverOptions) -> StoreOptions {
    StoreOptions::default()
        .create(false)
        .wait(options.wait)
        .accept_unknown(options.accept_unknown)
        .salvage(options.salvage)
        .background(false)
}

/// Opens the store at a path for maintenance, whether it is a directory or a lone file, recovering it.
pub fn open(path: &Path, options: &RecoverOptions, progress: &dyn Fn(u64, u64)) -> Result<Store> {
    let (storage, home) = locate(path)?;
    Ok(Store { inner: Inner::open(storage, home, path.to_owned(), &open_options(options), progress)? })
}

/// Looks at a store without changing a byte and without owning it.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let (linux, home) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    home.check_trust(&*storage)?;
    let journal = home.journal();
    if storage.stat(&journal).is_err() && storage.stat(&home.dir).is_ok() {
        return Err(Error::io("find a journal in", &home.dir, ErrorKind::NotFound.into()));
    }
    let scanned = scan(&storage, &journal, ReadMode::Cached, true, &|_, _| {})?;
    let boot = storage.boot_id().context("read the boot id for", path)?;
    let mut found = Inspection {
        path: path.to_owned(),
        store_id: hex(&scanned.header.store),
        class: if scanned.header.boot.is_some() { FailureClass::Process } else { FailureClass::Power },
        format_version: VERSION,
        clean: scanned.header.clean && scanned.accepted_heads.is_empty(),
        owner: owner(&*storage, &home),
        unknown_state: scanned.header.boot.is_some_and(|b| b != boot),
        sequence_first: scanned.header.through + 1,
        sequence_last: scanned.last,
        records: records(&scanned),
        torn_tail: scanned.torn_tail,
        files_pending: Vec::new(),
        held_journals: 0,
        journal_bytes_allocated: scanned.segments.iter().map(|s| s.bytes).sum(),
        problems: scanned.corrupt.iter().map(Error::to_string).collect(),
    };
    look_at_files(&storage, &scanned, &journal, None, &mut found);
    for held in home.all_held(&*storage)? {
        found.held_journals += 1;
        match Only::read(&*storage, &held)
            .and_then(|only| Ok((only, scan(&storage, &held, ReadMode::Cached, true, &|_, _| {})?)))
        {
            Ok((only, scanned)) => look_at_files(&storage, &scanned, &held, only.as_ref(), &mut found),
            Err(e) => found.problems.push(e.to_string()),
        }
    }
    found.clean &= found.held_journals == 0 && found.problems.is_empty();
    Ok(found)
}

fn owner(storage: &dyn Storage, home: &Home) -> Option<u32> {
    let lock = storage.open(&home.lock_file(), Open::READ).ok()?;
    if lock.is_locked().ok()? { read_pid(&*lock).or(Some(0)) } else { None }
}

fn records(scanned: &Scan) -> Vec<RecordInfo> {
    let commits: std::collections::HashMap<u64, _> = scanned.accepted.iter().map(|a| (a.sequence, &a.record)).collect();
    let info = |v: &untorn_journal::scan::Valid| {
        let record = commits.get(&v.head.sequence);
        RecordInfo {
            sequence: v.head.sequence,
            session: v.head.session,
            segment: segment_name(scanned.segments[v.segment].index),
            offset: v.head.position,
            bytes: v.head.len,
            crc: format!("{:016x}", v.crc),
            durable_through: v.head.durable_through,
            kind: if v.head.kind == RecordKind::Mark { "mark" } else { "commit" }.to_owned(),
            files: record.map(|r| r.files.iter().map(|f| f.path.clone()).collect()).unwrap_or_default(),
            operations: record.map(|r| r.ops.iter().map(ToString::to_string).collect()).unwrap_or_default(),
        }
    };
    scanned.accepted_heads.iter().map(info).collect()
}

fn look_at_files(storage: &Arc<dyn Storage>, scanned: &Scan, dir: &Path, only: Option<&Only>, found: &mut Inspection) {
    let mut state = FinalState::default();
    for accepted in &scanned.accepted {
        if let Err(e) = state.absorb(&accepted.record, accepted.sequence) {
            found.problems.push(e.to_string());
            return;
        }
    }
    if let Some(only) = only {
        state.only(&only.files);
    }
    let applier = Applier {
        storage: &**storage,
        store: scanned.header.store,
        session: 0,
        newest: Some(scanned.last),
        limbo: dir.to_owned(),
    };
    let outcomes = applier.locate(&state);
    for file in state.files.values() {
        let (outcome, served) = match &outcomes[&file.id] {
            Ok(Place::At(at)) if file.name.is_none() => (format!("remove {}", at.display()), true),
            Ok(Place::At(_)) => ("bring up to date".to_owned(), true),
            Ok(Place::Nowhere) if file.name.is_some() => ("create".to_owned(), true),
            Ok(Place::Nowhere) => ("nothing: it is gone".to_owned(), true),
            Err(e) => (e.to_string(), false),
        };
        if !served {
            found.problems.push(outcome.clone());
        }
        found.files_pending.push(PendingFile {
            path: file.shown_name().to_owned(),
            file_id: format!("{:016x}", file.id),
            first_sequence: file.first,
            last_sequence: file.last,
            bytes: file.layer.changed_bytes(),
            outcome,
            served,
        });
    }
}

/// How to recover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverOptions {
    /// Keep what is acceptable of a damaged journal and put the rest into `untorn-salvage.*` in the
    /// store's directory; files that cannot be served are taken as they are.
    pub salvage: bool,
    /// Take the files of a class `process` store as they are after a machine crash.
    pub accept_unknown: bool,
    /// Wait for another owner.
    pub wait: bool,
}

/// What [`recover`] did, and what it could not do.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// What was recovered.
    #[serde(flatten)]
    pub recovered: Recovered,
    /// Files that could not be served.
    pub quarantined: Vec<Quarantined>,
}

/// Recovers a store and closes it: data files are then plain and whole.
pub fn recover(path: &Path, options: &RecoverOptions, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let store = open(path, options, progress)?;
    let status = store.status();
    store.close()?;
    Ok(Report { recovered: status.recovered, quarantined: status.quarantined })
}

/// Recovers a store, then removes all of Untorn's: plain files remain. Refused while a file waits for
/// commits that could not be brought into it.
pub fn eject(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let (storage, home) = locate(path)?;
    let store = open(path, &RecoverOptions::default(), progress)?;
    let status = store.status();
    if let Some(q) = status.quarantined.first() {
        return Err(Error::Conflict {
            path: q.path.clone(),
            detail: format!("it has commits that are only in the journal, so the journal must stay ({})", q.reason),
        });
    }
    let ours = |a: &Attribute| a.store == store.inner.store_id;
    match &home.lone {
        Some(lone) => strip_attribute(&*storage, lone, &ours),
        None => strip_attributes(&*storage, Path::new(""), &ours)?,
    }
    // The lock file goes last, while we hold it: whoever waits for it sees that it is gone.
    for name in storage.list(&home.dir).context("list", &home.dir)? {
        if name != "lock" {
            let entry = home.dir.join(name);
            match storage.unlink(&entry) {
                Err(e) if e.kind() == ErrorKind::IsADirectory => remove_tree(&*storage, &entry)?,
                done => done.context("remove", &entry)?,
            }
        }
    }
    storage.unlink(&home.lock_file()).context("remove", home.lock_file())?;
    storage.rmdir(&home.dir).context("remove", &home.dir)?;
    storage.sync_dir(Path::new(""), Step::Eject).context("flush", path)?;
    // Nothing is left to close: no journal, no lock file.
    store.inner.closed.store(true, std::sync::atomic::Ordering::SeqCst);
    Ok(Report { recovered: status.recovered, quarantined: Vec::new() })
}
