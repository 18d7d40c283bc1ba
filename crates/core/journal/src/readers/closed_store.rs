//! The commits of a store that nobody has opened since the boot, and the files that tell whether somebody opened it.

use crate::directories::quarantine::PendingFiles;
use crate::directories::store_dir::{StoreDir, is_owned_by_somebody, read_pid};
use crate::error::{Context, Error, Result};
use crate::format::{Header, ListedEpoch};
use crate::readers::refusal;
use crate::scanning::scan::{AcceptedRecord, Scan, flush_header, given_up_after, read_header, read_slots, scan};
use crate::scanning::segment_reader::{Keep, ReadMode};
use crate::sync_point;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Open, Storage, read_full_at};

/// Bytes of a lock file that are compared.
const NOTE_BYTES: usize = 16;

/// The files as the last owner left them. The next owner changes one of them before it changes anything else. For
/// stores without a page that readers can lock.
pub(crate) struct Left {
    lock: Option<Arc<dyn File>>,
    /// Modification time of the lock file: two owners with the same process id may leave the same note.
    noted: Option<i128>,
    /// Contents of the lock file: a process id, perhaps of another pid namespace, or nothing.
    note: Vec<u8>,
    header: Vec<u8>,
}

/// A lock file and its contents.
type LockNote = (Arc<dyn File>, Vec<u8>);

impl Left {
    /// The files now. `None` if a process has the store open.
    pub(crate) fn look(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<Left>> {
        let (lock, note) = match lock_note(storage, store_dir)? {
            Some((lock, note)) => (Some(lock), note),
            None if storage.stat(&store_dir.lock_file()).is_ok() => return Ok(None),
            None => (None, Vec::new()),
        };
        let noted = lock.as_ref().and_then(|lock| written_at(&**lock));
        Ok(Some(Left { lock, noted, note, header: header_bytes(storage, store_dir)? }))
    }

    /// Contents of the lock file.
    pub(crate) fn note(&self) -> &[u8] {
        &self.note
    }

    /// Whether nobody has opened the store since.
    pub(crate) fn is_still_there(&self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<bool> {
        let is_same_lock = match (lock_note(storage, store_dir)?, &self.lock) {
            (Some((found, note)), Some(lock)) => {
                is_same(&**lock, &*found) && note == self.note && written_at(&*found) == self.noted
            }
            (None, None) => true,
            _ => false,
        };
        Ok(is_same_lock && header_bytes(storage, store_dir)? == self.header)
    }
}

fn written_at(lock: &dyn File) -> Option<i128> {
    lock.meta().ok().map(|meta| meta.mtime_ns)
}

fn is_same(a: &dyn File, b: &dyn File) -> bool {
    matches!((a.meta(), b.meta()), (Ok(a), Ok(b)) if (a.device, a.inode, a.links) == (b.device, b.inode, b.links))
}

/// The contents of the header file and of its attribute.
fn header_bytes(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<u8>> {
    let path = store_dir.journal().join("header");
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        done => done.context("open", &path)?,
    };
    // The attribute comes first: it belongs to slots that are no older.
    let attribute = file.attribute().context("read the attribute of", &path)?.unwrap_or_default();
    let mut bytes = read_slots(&*file, &path)?;
    bytes.extend(attribute);
    Ok(bytes)
}

/// The lock file and its contents, or `None` if there is no file or a process holds the lock.
fn lock_note(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<LockNote>> {
    let path = store_dir.lock_file();
    let file = match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        done => done.context("open", &path)?,
    };
    let is_owned = || is_owned_by_somebody(storage, store_dir, &*file).context("look at", &path);
    if is_owned()? {
        return Ok(None);
    }
    let mut note = vec![0; NOTE_BYTES];
    let n = read_full_at(&*file, &mut note, 0).context("read", &path)?;
    note.truncate(n);
    // The lock may have been taken before or after the read, so check again.
    Ok((!is_owned()?).then(|| (file.clone(), note)))
}

/// Whether a process has the store open, and which.
pub fn is_owned(storage: &dyn Storage, store_dir: &StoreDir) -> Result<(bool, Option<u32>)> {
    let path = store_dir.lock_file();
    match storage.open(&path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok((false, None)),
        Err(e) => Err(Error::io("open", &path, e)),
        Ok(lock) => Ok((is_owned_by_somebody(storage, store_dir, &*lock).context("look at", &path)?, read_pid(&*lock))),
    }
}

/// The commits that recovery would accept.
#[derive(Default)]
pub(crate) struct ClosedLog {
    pub lsn: u64,
    pub checkpoint_lsn: u64,
    pub accepted: Vec<AcceptedRecord>,
    pub is_missing_some: bool,
    pub header: Option<Header>,
    /// The epochs of its records.
    pub epochs: Vec<ListedEpoch>,
    pub quarantined: BTreeMap<u64, String>,
}

impl ClosedLog {
    /// Reads the log, flushed. With `after`, includes every commit behind this LSN that is still there.
    pub(crate) fn read(storage: &Arc<dyn Storage>, store_dir: &StoreDir, after: Option<u64>) -> Result<ClosedLog> {
        let journal = store_dir.journal();
        let quarantined = quarantined_files(&**storage, store_dir)?;
        match storage.stat(&journal) {
            // The creation of the store, or of a new journal, was interrupted: nothing is committed in it.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(ClosedLog { quarantined, ..ClosedLog::default() }),
            done => done.context("look at", &journal)?,
        };
        flush_header(&**storage, &journal, Open::READ, sync_point::READER_LOG)?;
        let header = read_header(&**storage, &journal)?;
        if let Some(boot) = header.boot {
            let same = storage.boot_id().is_ok_and(|now| now == boot);
            return Err(if same { refusal::class_process_left(store_dir) } else { refusal::unknown_state(store_dir) });
        }
        let mode = ReadMode::PastCacheReadOnly;
        let mut scanned = scan(storage, &journal, mode, Keep::Contents, after.is_some(), &|_, _| {})?;
        if let Some(e) = scanned.corrupt {
            return Err(e);
        }
        let mut accepted = std::mem::take(&mut scanned.accepted);
        let is_missing_some = add_given_up(storage, &journal, &scanned, after, &mut accepted);
        Ok(ClosedLog {
            lsn: scanned.last_lsn,
            checkpoint_lsn: scanned.header.checkpoint_lsn,
            accepted,
            is_missing_some,
            header: Some(scanned.header.clone()),
            epochs: std::mem::take(&mut scanned.epochs),
            quarantined,
        })
    }
}

/// Adds the commits behind this LSN that were truncated from the log. Returns whether some may be missing.
pub(crate) fn add_given_up(
    storage: &Arc<dyn Storage>,
    journal: &Path,
    scanned: &Scan,
    after: Option<u64>,
    accepted: &mut Vec<AcceptedRecord>,
) -> bool {
    let Some(after) = after.filter(|after| *after < scanned.header.checkpoint_lsn) else { return false };
    match given_up_after(storage, journal, scanned, after) {
        Some(given_up) => {
            accepted.splice(0..0, given_up);
            false
        }
        None => true,
    }
}

/// The files of which quarantined journals have commits.
pub(crate) fn quarantined_files(storage: &dyn Storage, store_dir: &StoreDir) -> Result<BTreeMap<u64, String>> {
    let mut files = BTreeMap::new();
    for dir in store_dir.quarantined_journals(storage)? {
        files.extend(PendingFiles::read(storage, &dir)?.map(|pending| pending.files).unwrap_or_default());
    }
    Ok(files)
}
