//! Inspects a store by its path, without changing a byte and without owning it.

use crate::admin::slots::{SlotInfo, look_at_slots};
use crate::engine::lifecycle::left_marks::LeftMark;
use crate::engine::lifecycle::status::Quarantined;
use crate::engine::options::FailureClass;
use crate::heap::live::{self, LiveMemoryFound};
use crate::reader::locate_store::locate;
use crate::reader::lost::{LostFile, waiting_files};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::final_state::{FileState, FinalState};
use untorn_journal::data_files::locate::{DataFiles, Location, Locations, leave_unreadable};
use untorn_journal::directories::quarantine::PendingFiles;
use untorn_journal::directories::store_dir::{
    StoreDir, is_noted_closed, is_of_another_namespace, is_owned_by_somebody, read_pid, segment_name,
};
use untorn_journal::format::{Header, RecordKind, VERSION, hex};
use untorn_journal::recovery::boot_id;
use untorn_journal::scanning::scan::{Scan, read_header, scan};
use untorn_journal::scanning::segment_reader::{Keep, ReadMode, ValidRecord};
use untorn_journal::slots::epochs::Epochs;
use untorn_journal::undo::kept_links::KeptLinks;
use untorn_journal::undo::page::held_commits;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Kind, Open, Storage};

/// Tries at a look at a store that changes meanwhile.
const LOOKS_MAX: usize = 100;

/// The result of [`inspect`].
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inspection {
    /// The requested path.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Identity, in hexadecimal digits.
    pub store_id: String,
    /// The class of the commits in the journal.
    pub class: FailureClass,
    /// Version of the format.
    pub format_version: u32,
    /// Whether nothing is pending, so that the data files are plain and complete.
    pub clean: bool,
    /// The process that owns the store now (0: its id is unknown); the other fields may then be stale.
    pub owner: Option<u32>,
    /// Whether the owner's id is one of another pid namespace, such as that of a container. Here it denotes another
    /// process, or none.
    pub owner_elsewhere: bool,
    /// Whether the store is of class `process`, and the machine went down since.
    pub unknown_state: bool,
    /// The first commit that is not yet in the data files.
    pub first_lsn: u64,
    /// The last commit.
    pub last_lsn: u64,
    /// Accepted records, in order.
    pub records: Vec<RecordInfo>,
    /// Whether remains of an incomplete record follow, which recovery drops.
    pub torn_tail: bool,
    /// Files with pending commits.
    pub files_pending: Vec<PendingFile>,
    /// Number of quarantined journals, some of whose files could not be redone.
    pub quarantined_journals: u64,
    /// Files and directories that wait for commits in quarantined journals, and why.
    pub quarantined: Vec<Quarantined>,
    /// Bytes of journal on disk.
    pub journal_bytes_allocated: u64,
    /// Whether there is no journal, because a crash or a full disk came before a new one was made. The next opening
    /// makes it.
    pub journal_missing: bool,
    /// Files that wait for commits in journals that are not here.
    pub lost_files: Vec<LostFile>,
    /// Files of the closed store that keep, or may keep, marks of programs that did not close it.
    pub left_marks: Vec<LeftMark>,
    /// Files with the working memory of a live heap, which may be newer than the heap's last commit.
    pub live_memory: Vec<LiveMemoryFound>,
    /// Commits that readers hold: the owner keeps the old data that they need, up to its limit
    /// ([`crate::StoreOptions::readers_space`]).
    pub held: Vec<u64>,
    /// Slots: consumers for which the store keeps its log.
    pub slots: Vec<SlotInfo>,
    /// Bytes of the log behind the checkpoint that are kept for slots.
    pub kept_log_bytes: u64,
    /// Damage and broken invariants; empty if the store is sound.
    pub problems: Vec<String>,
}

/// A record.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecordInfo {
    /// Its LSN.
    pub lsn: u64,
    /// The opening of the store that wrote it.
    pub epoch: u64,
    /// The segment that it is in.
    pub segment: String,
    /// Its offset in the segment, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its checksum, in hexadecimal digits.
    pub crc: String,
    /// LSN up to which every commit was durable when it was written.
    pub durable_lsn: u64,
    /// When it was written, in seconds since 1970, by the clock of its machine.
    pub time: Option<u64>,
    /// `commit` or `durable-mark`.
    pub kind: String,
    /// Files that it touches.
    #[serde(serialize_with = "crate::engine::paths::path_text::paths")]
    pub files: Vec<PathBuf>,
    /// The operations on them.
    pub operations: Vec<String>,
}

/// A file with pending commits.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PendingFile {
    /// Its newest name.
    #[serde(serialize_with = "crate::engine::paths::path_text::path")]
    pub path: PathBuf,
    /// Its identity, in hexadecimal digits.
    pub file_id: String,
    /// The first pending commit that touches it.
    pub first_lsn: u64,
    /// The last one.
    pub last_lsn: u64,
    /// Bytes that they change.
    pub bytes: u64,
    /// The action of recovery, or why there would be none.
    pub outcome: String,
    /// Whether recovery can redo its commits.
    pub recoverable: bool,
}

/// Inspects a store without changing a byte and without owning it.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let (linux, store_dir) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    let mut found = inspect_on(path, &storage, &store_dir)?.0;
    // If a store in a parent directory cannot be read, lost files remain unknown.
    let waiting = waiting_files(path).unwrap_or_default();
    (found.lost_files, found.left_marks) = (waiting.lost, waiting.left);
    found.live_memory = live::memories(path);
    found.problems.extend(found.lost_files.iter().map(LostFile::problem));
    found.problems.extend(found.left_marks.iter().filter(|left| left.seen).map(LeftMark::problem));
    Ok(found)
}

/// The state to which recovery would bring the files of a journal.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) state: FinalState,
    pub(crate) locations: Locations,
}

/// Inspects a store until the result is consistent. While an owner works, one look mixes several moments, and the store
/// may seem damaged. So a result with problems counts only if the next look gives exactly the same: then nothing was
/// written between the two.
///
/// # Errors
/// [`Error::Busy`] if no two looks agree.
pub(crate) fn inspect_on(
    path: &Path,
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
) -> Result<(Inspection, Pending)> {
    let mistrust = check_may_look(&**storage, store_dir)?;
    let mut before = None;
    for _ in 0..LOOKS_MAX {
        let mut seen = DefaultHasher::new();
        let mut look = look(path, storage, store_dir, &mut seen);
        match &look {
            Ok((found, _)) => found.problems.hash(&mut seen),
            Err(e) => e.to_string().hash(&mut seen),
        }
        let sound = look.as_ref().is_ok_and(|(found, _)| found.problems.is_empty());
        let picture = Some(seen.finish());
        if sound || picture == before {
            if let Ok((found, _)) = &mut look {
                found.problems.extend(mistrust);
            }
            return look;
        }
        before = picture;
        storage.pause();
    }
    let pid = owner(&**storage, store_dir).map(|owner| owner.pid).filter(|pid| *pid != 0);
    let detail = format!(
        "{} changes it all the time, so it could not be examined in one state. There is no sign of damage; try again \
         when it is less busy",
        if pid.is_some() { ", which" } else { " by a process that" }
    );
    Err(Error::Busy { path: path.to_owned(), pid, detail })
}

/// Checks permission to inspect. Root may inspect any user's store, because nothing is written; an untrusted store is
/// then reported as a problem.
fn check_may_look(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<String>> {
    match store_dir.check_trust(storage) {
        Err(e @ Error::Untrusted { .. }) if storage.effective_user() == 0 => {
            let meta = storage.stat(&store_dir.dir).context("stat", &store_dir.dir)?;
            match meta.kind {
                Kind::Directory if store_dir.check_may_read(storage).is_ok() => Ok(None),
                Kind::Directory => Ok(Some(format!(
                    "{}: its mode {:04o} gives other users more than read access, so no program opens this store; if \
                     you know why, `chmod 700` it",
                    store_dir.dir.display(),
                    meta.mode
                ))),
                _ => Err(e),
            }
        }
        done => done.map(|_| None),
    }
}

/// Takes one look. Everything that the result consists of is hashed into `seen`.
fn look(
    path: &Path,
    storage: &Arc<dyn Storage>,
    store_dir: &StoreDir,
    seen: &mut DefaultHasher,
) -> Result<(Inspection, Pending)> {
    let journal = store_dir.journal();
    let scanned = match storage.stat(&journal) {
        Ok(_) => Some(scan(storage, &journal, ReadMode::Cached, Keep::Contents, true, &|_, _| {})?),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io("look at", &journal, e)),
    };
    let quarantined = store_dir.quarantined_journals(&**storage)?;
    let header = match (&scanned, quarantined.last()) {
        (Some(scanned), _) => Some(scanned.header.clone()),
        (None, Some(dir)) => read_header(&**storage, dir).ok(),
        (None, None) => None,
    };
    note_header(header.as_ref(), seen);
    let header = header.as_ref();
    let boot = header.and_then(|header| header.boot).map(|_| boot_id(&**storage, path)).transpose()?;
    let owner = owner(&**storage, store_dir);
    let mut found = Inspection {
        path: path.to_owned(),
        store_id: header.map(|header| hex(&header.store)).unwrap_or_default(),
        class: if header.is_some_and(|h| h.boot.is_some()) { FailureClass::Process } else { FailureClass::Power },
        format_version: VERSION,
        clean: scanned.as_ref().is_none_or(|scanned| scanned.header.clean && scanned.accepted_heads.is_empty()),
        owner: owner.map(|owner| owner.pid),
        owner_elsewhere: owner.is_some_and(|owner| owner.is_elsewhere),
        unknown_state: header.is_some_and(|header| header.boot != boot),
        first_lsn: header.map_or(1, |header| header.checkpoint_lsn + 1),
        last_lsn: scanned.as_ref().map_or(0, |scanned| scanned.last_lsn),
        records: scanned.as_ref().map(records).unwrap_or_default(),
        torn_tail: scanned.as_ref().is_some_and(|scanned| scanned.torn_tail),
        files_pending: Vec::new(),
        quarantined_journals: quarantined.len() as u64,
        quarantined: Vec::new(),
        journal_bytes_allocated: scanned.iter().flat_map(|scanned| &scanned.segments).map(|s| s.bytes).sum(),
        journal_missing: scanned.is_none(),
        lost_files: Vec::new(),
        left_marks: Vec::new(),
        live_memory: Vec::new(),
        held: held_commits(&**storage, store_dir),
        slots: Vec::new(),
        kept_log_bytes: 0,
        problems: scanned.iter().flat_map(|scanned| &scanned.corrupt).map(Error::to_string).collect(),
    };
    let mut pending = Pending::default();
    if let Some(scanned) = &scanned {
        note_records(scanned, seen);
        if let Err(e) = note_slots(&**storage, store_dir, scanned, &mut found) {
            found.problems.push(e.to_string());
        }
        pending = inspect_files(storage, scanned, &journal, None, &mut found);
    }
    for quarantined in &quarantined {
        match PendingFiles::read(&**storage, quarantined).and_then(|pending_files| {
            Ok((pending_files, scan(storage, quarantined, ReadMode::Cached, Keep::Contents, true, &|_, _| {})?))
        }) {
            Ok((pending_files, scanned)) => {
                note_records(&scanned, seen);
                _ = inspect_files(storage, &scanned, quarantined, pending_files.as_ref(), &mut found)
            }
            Err(e) => found.problems.push(e.to_string()),
        }
    }
    found.clean &= found.quarantined_journals == 0 && found.problems.is_empty();
    Ok((found, pending))
}

fn note_slots(storage: &dyn Storage, store_dir: &StoreDir, scanned: &Scan, found: &mut Inspection) -> Result<()> {
    let (header, last_lsn) = (&scanned.header, scanned.last_lsn);
    let mut epochs = Epochs::read(storage, store_dir, &header.store)?.unwrap_or_default();
    epochs.add_journal(header, &scanned.epochs);
    (found.slots, found.kept_log_bytes) = look_at_slots(storage, store_dir, &epochs, header.checkpoint_lsn, last_lsn)?;
    Ok(())
}

fn note_header(header: Option<&Header>, seen: &mut DefaultHasher) {
    header.map(Header::encode).hash(seen);
}

fn note_records(scanned: &Scan, seen: &mut DefaultHasher) {
    note_header(Some(&scanned.header), seen);
    for segment in &scanned.segments {
        (segment.index, segment.bytes, segment.first_block_crc).hash(seen);
    }
    for v in &scanned.valid {
        (v.head.lsn, v.crc, v.segment, v.head.position).hash(seen);
    }
}

/// The process that has a store open.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    /// The process id; 0 if it is unknown.
    pid: u32,
    /// Whether the id is one of another pid namespace, so that it denotes another process here, or none.
    is_elsewhere: bool,
}

impl Owner {
    /// The error that the store is busy.
    pub(crate) fn busy(self, path: &Path) -> Error {
        match self {
            Owner { pid, is_elsewhere: true } => Error::busy_elsewhere(path, pid),
            Owner { pid, .. } => Error::busy(path, Some(pid).filter(|pid| *pid != 0)),
        }
    }
}

/// Whether nobody has a store open, and all its commits are in the data files. `was_plain`: this was so at some time
/// since the system started, so that the log need not be read again: each opening since then has replaced the note of a
/// closed store, and only a clean close has put it back.
pub fn is_store_plain(path: &Path, was_plain: bool) -> Result<bool> {
    let (linux, store_dir) = locate(path)?;
    let storage: Arc<dyn Storage> = linux;
    if owner(&*storage, &store_dir).is_some() || !store_dir.quarantined_journals(&*storage)?.is_empty() {
        return Ok(false);
    }
    if !was_plain {
        let found = inspect_on(path, &storage, &store_dir)?.0;
        return Ok(found.owner.is_none() && found.clean && found.quarantined.is_empty());
    }
    let lock = storage.open(&store_dir.lock_file(), Open::READ).context("open", store_dir.lock_file())?;
    Ok(is_noted_closed(&*lock) && read_header(&*storage, &store_dir.journal())?.clean)
}

/// Whether a process has a store open.
pub fn has_owner(path: &Path) -> Result<bool> {
    let (storage, store_dir) = locate(path)?;
    Ok(owner(&*storage, &store_dir).is_some())
}

pub(crate) fn owner(storage: &dyn Storage, store_dir: &StoreDir) -> Option<Owner> {
    let lock = storage.open(&store_dir.lock_file(), Open::READ).ok()?;
    // If the lock cannot be queried, assume that the store is owned.
    if !is_owned_by_somebody(storage, store_dir, &*lock).unwrap_or(true) {
        return None;
    }
    let pid = read_pid(&*lock);
    let is_elsewhere = pid.is_some_and(|pid| is_of_another_namespace(&*lock, pid));
    Some(Owner { pid: pid.unwrap_or(0), is_elsewhere })
}

fn records(scanned: &Scan) -> Vec<RecordInfo> {
    let commits: std::collections::HashMap<u64, _> = scanned.accepted.iter().map(|a| (a.lsn, &a.record)).collect();
    let info = |v: &ValidRecord| {
        let record = commits.get(&v.head.lsn);
        RecordInfo {
            lsn: v.head.lsn,
            epoch: v.head.epoch,
            segment: segment_name(scanned.segments[v.segment].index),
            offset: v.head.position,
            bytes: v.head.len,
            crc: format!("{:016x}", v.crc),
            durable_lsn: v.head.durable_lsn,
            time: v.head.time,
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
        state.retain(&pending_files.file_ids(), &pending_files.dir_paths());
    }
    let data_files = DataFiles {
        storage: &**storage,
        store: scanned.header.store,
        epoch: 0,
        newest_lsn: Some(scanned.last_lsn),
        rename_dir: dir.to_owned(),
        durable: true,
        contents: None,
        kept_links: dir.parent().map(|dir| KeptLinks::found(&**storage, &dir.join("undo"))).unwrap_or_default(),
    };
    let mut locations = data_files.find(&state);
    leave_unreadable(&state, &mut locations);
    for file in state.files.values() {
        let (outcome, recoverable) = match &locations[&file.id] {
            Ok(Location::At(at)) if file.name.is_none() => (format!("remove {}", at.display()), true),
            Ok(Location::At(_)) => ("bring up to date".to_owned(), true),
            Ok(Location::Absent) if file.name.is_some() => match name_is_taken(&data_files, &state, &locations, file) {
                Some(e) => (e.to_string(), false),
                None => ("create".to_owned(), true),
            },
            Ok(Location::Absent) => ("nothing: it is gone".to_owned(), true),
            Err(e) => (e.to_string(), false),
        };
        let waits = pending_files.and_then(|pending_files| pending_files.files.get(&file.id));
        match waits {
            Some(_) if !recoverable => found.quarantine_now(file.display_name(), outcome.clone()),
            Some(reason) => found.quarantine(file.display_name(), reason),
            None if !recoverable => found.problems.push(outcome.clone()),
            None => {}
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
    // A directory without a reason is only needed for one of the files.
    let waits = |dir: &Path| state.files.values().flat_map(|file| &file.names).any(|name| name.starts_with(dir));
    for (dir, reason) in pending_files.iter().flat_map(|pending_files| &pending_files.dirs) {
        if !reason.is_empty() || !waits(dir) {
            found.quarantine(dir, reason);
        }
    }
    Pending { state, locations }
}

impl Inspection {
    /// Notes a file or directory that waits for commits in a quarantined journal, with the error of the last opening.
    fn quarantine(&mut self, path: &Path, reason: &str) {
        let reason = match reason {
            "" => "its commits could not be redone when the store was opened last".to_owned(),
            reason => format!("when the store was opened last: {reason}"),
        };
        self.quarantine_now(path, reason);
    }

    /// Lists a file or directory as quarantined, with the present reason.
    fn quarantine_now(&mut self, path: &Path, reason: String) {
        let entry = Quarantined { path: path.to_owned(), reason };
        self.problems.push(entry.problem());
        self.quarantined.push(entry);
    }
}

/// The error of a file that cannot be created under its name, because another object is there that these commits do not
/// remove.
fn name_is_taken(
    data_files: &DataFiles<'_>,
    state: &FinalState,
    locations: &Locations,
    file: &FileState,
) -> Option<Error> {
    let name = file.name.as_ref()?;
    data_files.storage.stat(name).ok()?;
    let goes = state.files.values().any(|other| {
        matches!(&locations[&other.id], Ok(Location::At(at)) if at == name) && other.name.as_ref() != Some(name)
    });
    let goes = goes || state.dirs.get(name).is_some_and(|dir| !dir.exists);
    (!goes).then(|| Error::Conflict {
        path: name.clone(),
        detail:
            "the name is taken by another file, which the journal does not know; move that file away, and open the \
             store again"
                .into(),
    })
}
