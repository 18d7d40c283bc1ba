//! Looks at and repairs of a store by its path, without handles of files.

use crate::file_state::check_kind;
use crate::heap::check::{Checker, HeapImage};
use crate::heap::{HeapOptions, HeapReport};
use crate::open_store::OpenStore;
use crate::options::{FailureClass, StoreOptions};
use crate::status::{Quarantined, Recovered};
use crate::store::Store;
use crate::sync_point;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::apply::{DataFiles, Location, Locations};
use untorn_journal::final_state::FinalState;
use untorn_journal::format::{Attribute, AttributeFound, RecordKind, VERSION, hex};
use untorn_journal::overlay::{Overlay, read_through};
use untorn_journal::quarantine::PendingFiles;
use untorn_journal::recovery::{boot_id, strip_attribute, strip_attributes};
use untorn_journal::scan::{ReadMode, Scan, read_header, scan};
use untorn_journal::store_dir::{StoreDir, read_pid, remove_tree, segment_name};
use untorn_journal::{Context, Error, Result};
use untorn_os::{File, Linux, Meta, Open, Storage, memory_limit};

pub use crate::put::{put, put_files};

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
    /// The process that owns the store now (0: a process of unknown number); the other fields may then be stale.
    pub owner: Option<u32>,
    /// Class `process`, and the machine went down since.
    pub unknown_state: bool,
    /// The first commit that is not yet in the data files.
    pub first_lsn: u64,
    /// The last commit.
    pub last_lsn: u64,
    /// Accepted records, in order.
    pub records: Vec<RecordInfo>,
    /// Remains of an unfinished record follow, which recovery drops.
    pub torn_tail: bool,
    /// Files with pending commits.
    pub files_pending: Vec<PendingFile>,
    /// Quarantined journals: some of their files could not be redone.
    pub quarantined_journals: u64,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Damage and broken invariants. Empty: sound.
    pub problems: Vec<String>,
}

/// A record.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecordInfo {
    /// Its number.
    pub lsn: u64,
    /// Which opening of the store wrote it.
    pub epoch: u64,
    /// The segment that it is in.
    pub segment: String,
    /// Its place there, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its checksum, in hexadecimal digits.
    pub crc: String,
    /// Every commit up to this one was durable when it was written.
    pub durable_lsn: u64,
    /// `commit` or `durable-mark`.
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
    pub first_lsn: u64,
    /// The last one.
    pub last_lsn: u64,
    /// Bytes that they change.
    pub bytes: u64,
    /// What recovery would do, or why it would not.
    pub outcome: String,
    /// Recovery can redo its commits.
    pub recoverable: bool,
}

/// Where a path's store is: the storage, and Untorn's directory in it.
fn locate(path: &Path) -> Result<(Arc<Linux>, StoreDir)> {
    let meta = std::fs::metadata(path).context("look at", path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        let storage = Linux::open(path).context("open", path)?;
        return match storage.stat(Path::new(untorn_journal::store_dir::STORE_DIR)) {
            Ok(_) => Ok((storage, StoreDir::of_directory())),
            Err(e) => Err(no_store(path, e)),
        };
    }
    let name = path.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", path.display())))?;
    let storage = Linux::open(path.parent().unwrap_or(Path::new(""))).context("open", path)?;
    let store_dir = StoreDir::of_file(Path::new(name));
    match storage.stat(&store_dir.dir) {
        Ok(_) => Ok((storage, store_dir)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            meta?;
            Err(no_store(path, e))
        }
        Err(e) => Err(no_store(path, e)),
    }
}

fn no_store(path: &Path, e: std::io::Error) -> Error {
    Error::io("find a store (of a directory, or beside a standalone file) at", path, e)
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

/// Opens the store at a path for maintenance, whether it is a directory or a standalone file, recovering it.
pub fn open(path: &Path, options: &RecoverOptions, progress: &dyn Fn(u64, u64)) -> Result<Store> {
    let (storage, store_dir) = locate(path)?;
    Ok(Store { open: OpenStore::open(storage, store_dir, path.to_owned(), &open_options(options), progress)? })
}

/// Looks at a store without changing a byte and without owning it.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let (linux, store_dir) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    Ok(inspect_on(path, &storage, &store_dir)?.0)
}

/// What is in a journal, as recovery would make it so.
#[derive(Default)]
struct Pending {
    state: FinalState,
    locations: Locations,
}

fn inspect_on(path: &Path, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<(Inspection, Pending)> {
    store_dir.check_trust(&**storage)?;
    let journal = store_dir.journal();
    if storage.stat(&journal).is_err() && storage.stat(&store_dir.dir).is_ok() {
        return Err(Error::io("find a journal in", &store_dir.dir, ErrorKind::NotFound.into()));
    }
    let scanned = scan(storage, &journal, ReadMode::Cached, true, &|_, _| {})?;
    let boot = scanned.header.boot.map(|_| boot_id(&**storage, path)).transpose()?;
    let mut found = Inspection {
        path: path.to_owned(),
        store_id: hex(&scanned.header.store),
        class: if scanned.header.boot.is_some() { FailureClass::Process } else { FailureClass::Power },
        format_version: VERSION,
        clean: scanned.header.clean && scanned.accepted_heads.is_empty(),
        owner: owner(&**storage, store_dir),
        unknown_state: scanned.header.boot != boot,
        first_lsn: scanned.header.checkpoint_lsn + 1,
        last_lsn: scanned.last_lsn,
        records: records(&scanned),
        torn_tail: scanned.torn_tail,
        files_pending: Vec::new(),
        quarantined_journals: 0,
        journal_bytes_allocated: scanned.segments.iter().map(|s| s.bytes).sum(),
        problems: scanned.corrupt.iter().map(Error::to_string).collect(),
    };
    let pending = inspect_files(storage, &scanned, &journal, None, &mut found);
    for quarantined in store_dir.quarantined_journals(&**storage)? {
        found.quarantined_journals += 1;
        match PendingFiles::read(&**storage, &quarantined).and_then(|pending_files| {
            Ok((pending_files, scan(storage, &quarantined, ReadMode::Cached, true, &|_, _| {})?))
        }) {
            Ok((pending_files, scanned)) => {
                _ = inspect_files(storage, &scanned, &quarantined, pending_files.as_ref(), &mut found)
            }
            Err(e) => found.problems.push(e.to_string()),
        }
    }
    found.clean &= found.quarantined_journals == 0 && found.problems.is_empty();
    Ok((found, pending))
}

fn owner(storage: &dyn Storage, store_dir: &StoreDir) -> Option<u32> {
    let lock = storage.open(&store_dir.lock_file(), Open::READ).ok()?;
    if lock.is_locked().ok()? { read_pid(&*lock).or(Some(0)) } else { None }
}

fn records(scanned: &Scan) -> Vec<RecordInfo> {
    let commits: std::collections::HashMap<u64, _> = scanned.accepted.iter().map(|a| (a.lsn, &a.record)).collect();
    let info = |v: &untorn_journal::scan::ValidRecord| {
        let record = commits.get(&v.head.lsn);
        RecordInfo {
            lsn: v.head.lsn,
            epoch: v.head.epoch,
            segment: segment_name(scanned.segments[v.segment].index),
            offset: v.head.position,
            bytes: v.head.len,
            crc: format!("{:016x}", v.crc),
            durable_lsn: v.head.durable_lsn,
            kind: if v.head.kind == RecordKind::DurableMark { "durable-mark" } else { "commit" }.to_owned(),
            files: record.map(|r| r.files.iter().map(|f| f.path.clone()).collect()).unwrap_or_default(),
            operations: record.map(|r| r.ops.iter().map(ToString::to_string).collect()).unwrap_or_default(),
        }
    };
    scanned.accepted_heads.iter().map(info).collect()
}

fn inspect_files(
    storage: &Arc<dyn Storage>,
    scanned: &Scan,
    dir: &Path,
    pending_files: Option<&PendingFiles>,
    found: &mut Inspection,
) -> Pending {
    let mut state = FinalState::default();
    for accepted in &scanned.accepted {
        if let Err(e) = state.add_record(&accepted.record, accepted.lsn) {
            found.problems.push(e.to_string());
            return Pending::default();
        }
    }
    if let Some(pending_files) = pending_files {
        state.retain(&pending_files.files, &pending_files.dirs);
    }
    let data_files = DataFiles {
        storage: &**storage,
        store: scanned.header.store,
        epoch: 0,
        newest_lsn: Some(scanned.last_lsn),
        rename_dir: dir.to_owned(),
    };
    let locations = data_files.find(&state);
    for file in state.files.values() {
        let (outcome, recoverable) = match &locations[&file.id] {
            Ok(Location::At(at)) if file.name.is_none() => (format!("remove {}", at.display()), true),
            Ok(Location::At(_)) => ("bring up to date".to_owned(), true),
            Ok(Location::Absent) if file.name.is_some() => ("create".to_owned(), true),
            Ok(Location::Absent) => ("nothing: it is gone".to_owned(), true),
            Err(e) => (e.to_string(), false),
        };
        if !recoverable {
            found.problems.push(outcome.clone());
        }
        found.files_pending.push(PendingFile {
            path: file.display_name().to_owned(),
            file_id: format!("{:016x}", file.id),
            first_lsn: file.first_lsn,
            last_lsn: file.last_lsn,
            bytes: file.overlay.changed_bytes(),
            outcome,
            recoverable,
        });
    }
    Pending { state, locations }
}

/// Looks at a heap without changing a byte and without owning its store: at what recovery would make of it, if its
/// program was killed. Everything of the heap is looked at, and what leaked is found out.
///
/// # Errors
/// [`Error::Busy`] if a program has it open: it changes meanwhile. Damage of the heap is told in the report.
pub fn check_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    inspect_heap(path, true, progress)
}

/// Looks at a heap as [`check_heap`] does, without what leaked, which only a look at everything in it can tell.
pub fn dump_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    inspect_heap(path, false, progress)
}

/// Frees what no root of a heap reaches, in one commit; the report tells what that was. As [`crate::Heap::collect`],
/// it does not know pointers in disguise.
///
/// # Errors
/// [`Error::Busy`]; [`Error::Corrupt`] if the heap is damaged: nothing was freed.
pub fn collect_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    let (_, store_dir, name) = locate_heap(path)?;
    let whole = path.canonicalize().context("look at", path)?;
    let dirty_max = memory_limit().map_or(COLLECT_DIRTY_MAX, |limit| COLLECT_DIRTY_MAX.min(limit.bytes / 2));
    let options = HeapOptions::new().create(false).dirty_max(dirty_max);
    let options = options.store(StoreOptions::default().background(false));
    let heap = match store_dir {
        Some(StoreDir { standalone: None, .. }) => {
            let top = whole.ancestors().nth(name.components().count()).unwrap_or(Path::new("/"));
            options.open_in(&open(top, &RecoverOptions::default(), progress)?, &name)?
        }
        _ => options.open(&whole)?,
    };
    let report = heap.free_leaks(progress)?;
    let store = heap.file().store();
    heap.commit()?;
    heap.close()?;
    store.close()?;
    Ok(HeapReport { path: path.to_owned(), ..report })
}

/// Bytes of pages that a collection changes, after which they are dropped; the heap may be larger than memory.
const COLLECT_DIRTY_MAX: u64 = 1 << 30;

/// The storage that a heap's file is in, what its store is, and its name there.
fn locate_heap(path: &Path) -> Result<(Arc<Linux>, Option<StoreDir>, PathBuf)> {
    let whole = path.canonicalize().context("look at", path)?;
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Error::invalid(format!("{} names no file", path.display())));
    };
    let standalone = StoreDir::of_file(Path::new(name));
    if parent.join(&standalone.dir).exists() {
        return Ok((Linux::open(parent).context("open", parent)?, Some(standalone), name.into()));
    }
    if let Some(top) = parent.ancestors().find(|dir| dir.join(untorn_journal::store_dir::STORE_DIR).exists()) {
        let name = whole.strip_prefix(top).expect("an ancestor");
        return Ok((Linux::open(top).context("open", top)?, Some(StoreDir::of_directory()), name.to_owned()));
    }
    Ok((Linux::open(parent).context("open", parent)?, None, name.into()))
}

/// A heap's file under the commits that wait in a journal.
struct Recoverable {
    path: PathBuf,
    data: Option<Arc<dyn File>>,
    meta: Option<Meta>,
    overlay: Overlay,
}

impl HeapImage for Recoverable {
    fn bytes(&self) -> Result<u64> {
        Ok(self.overlay.size.unwrap_or(self.meta.map_or(0, |meta| meta.size)))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let overlays: &[&Overlay] = if self.overlay.is_empty() { &[] } else { &[&self.overlay] };
        read_through(overlays, self.data.as_deref(), buf, offset).map_err(|e| match e {
            Error::Io { action, source, .. } => Error::Io { action, path: self.path.clone(), source },
            e => e,
        })
    }
}

fn inspect_heap(path: &Path, leaks: bool, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    let (linux, store_dir, name) = locate_heap(path)?;
    let storage: Arc<dyn Storage> = linux;
    let mut file = Recoverable { path: path.to_owned(), data: None, meta: None, overlay: Overlay::default() };
    let mut place = Some(name.clone());
    let mut problems = Vec::new();
    let mut before = None;
    if let Some(store_dir) = &store_dir {
        let (found, mut pending) = inspect_on(path, &storage, store_dir)?;
        if found.unknown_state {
            return Err(Error::UnknownState { path: path.to_owned() });
        }
        free_of_owner(&*storage, store_dir, path)?;
        problems.extend(found.problems.iter().map(|problem| format!("its store: {problem}")));
        before = Some((store_dir, read_header(&*storage, &store_dir.journal())?));
        if let Some(id) = pending.state.files.values().find(|f| f.name.as_deref() == Some(&name)).map(|f| f.id) {
            place = match pending.locations.remove(&id).expect("an outcome for each file")? {
                Location::At(at) => Some(at),
                Location::Absent => None,
            };
            file.overlay = pending.state.files.remove(&id).expect("found just now").overlay;
        }
    }
    if let Some(place) = place {
        let data = storage.open(&place, Open::READ).context("open", path)?;
        let meta = data.meta().context("look at", path)?;
        check_kind(&meta, path)?;
        if store_dir.is_none() {
            refuse_pending(&*data, path)?;
        }
        (file.data, file.meta) = (Some(data), Some(meta));
    }
    let mut checker = Checker::new(&file, path, progress)?;
    checker.report.problems.splice(0..0, problems);
    if leaks {
        checker.find_leaks(progress)?;
    }
    // A program that opened the heap meanwhile may have changed it during the check.
    if let Some((store_dir, header)) = before {
        free_of_owner(&*storage, store_dir, path)?;
        let now = file.data.as_ref().map(|data| data.meta()).transpose().context("look at", path)?;
        if read_header(&*storage, &store_dir.journal())? != header || now != file.meta {
            return Err(Error::Busy { path: path.to_owned(), pid: None });
        }
    }
    Ok(checker.report)
}

fn free_of_owner(storage: &dyn Storage, store_dir: &StoreDir, path: &Path) -> Result<()> {
    match owner(storage, store_dir) {
        Some(pid) => Err(Error::Busy { path: path.to_owned(), pid: Some(pid).filter(|pid| *pid != 0) }),
        None => Ok(()),
    }
}

/// A file that was taken away from its journal is not whole.
fn refuse_pending(data: &dyn File, path: &Path) -> Result<()> {
    match Attribute::decode(data.attribute().context("read the attribute of", path)?.as_deref()) {
        AttributeFound::Valid(a) if a.pending => Err(Error::NeedsJournal {
            path: path.to_owned(),
            detail: format!("it belongs to the store {}, which was not closed", hex(&a.store)),
        }),
        _ => Ok(()),
    }
}

/// How to recover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverOptions {
    /// Keep what is acceptable of a damaged journal and put the rest into `untorn-salvage.*` in the
    /// store's directory; files that cannot be redone are taken as they are.
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
    /// Files that could not be redone.
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
    let (storage, store_dir) = locate(path)?;
    let store = open(path, &RecoverOptions::default(), progress)?;
    let status = store.status();
    if let Some(q) = status.quarantined.first() {
        return Err(Error::Conflict {
            path: q.path.clone(),
            detail: format!("it has commits that are only in the journal, so the journal must stay ({})", q.reason),
        });
    }
    let ours = |a: &Attribute| a.store == store.open.store_id;
    match &store_dir.standalone {
        Some(standalone) => strip_attribute(&*storage, standalone, &ours),
        None => strip_attributes(&*storage, Path::new(""), &ours)?,
    }
    // The lock file goes last, while it is locked: a program that waits for the lock sees that the file is gone.
    for name in storage.list(&store_dir.dir).context("list", &store_dir.dir)? {
        if name != "lock" {
            let entry = store_dir.dir.join(name);
            match storage.unlink(&entry) {
                Err(e) if e.kind() == ErrorKind::IsADirectory => remove_tree(&*storage, &entry)?,
                done => done.context("remove", &entry)?,
            }
        }
    }
    storage.unlink(&store_dir.lock_file()).context("remove", store_dir.lock_file())?;
    storage.rmdir(&store_dir.dir).context("remove", &store_dir.dir)?;
    storage.sync_dir(Path::new(""), sync_point::EJECT).context("flush", path)?;
    // Nothing is left to close: no journal, no lock file.
    store.open.forget();
    Ok(Report { recovered: status.recovered, quarantined: Vec::new() })
}
