//! One open file of a store: its content, its mapping, and how far its commits have come.

use crate::engine::content::committed::Committed;
use crate::engine::content::{Content, SpillSink, edited};
use crate::engine::region::{Copies, Race, Region};
use crate::engine::waiting::concurrency::{AtomicBool, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::invariant;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use untorn_journal::commits::overlay::{Overlay, Source};
use untorn_journal::commits::record::FILE_BYTES_MAX;
use untorn_journal::{Context, Error, Result};
use untorn_os::{File, Kind, Meta, Storage, Tracker, holds};

/// Events of the log that say that closing a file lost changes.
pub const DISCARDED: &str = "crate::discarded";

/// The unit of comparison of a mapped file: what differs is journaled in whole lines.
const LINE_BYTES: usize = 64;

/// A file that is open in a store, shared by its handles.
pub(crate) struct SharedFile {
    pub id: u64,
    /// Held while a checkpoint, or a commit that gives the file a name, writes to the data file.
    pub writing: Mutex<()>,
    /// The file is open as a heap: only the heap's own handle changes it.
    is_heap: AtomicBool,
    state: RwLock<FileState>,
}

/// A heap's memory is its file: pointers into it, and the program's references, would see what others change.
pub(crate) fn is_a_heap(path: &Path) -> Error {
    Error::invalid(format!(
        "{} is open as a heap: it is changed, committed and rolled back by the heap's own calls only (with other files by \
         `commit_with`)",
        path.display()
    ))
}

/// As long as it lives, a file is a heap.
pub(crate) struct HeapMark(Arc<SharedFile>);

impl HeapMark {
    /// Takes a file for a heap.
    ///
    /// # Errors
    /// The file belongs to a transaction, whose end could change it.
    pub(crate) fn new(file: &Arc<SharedFile>) -> Result<HeapMark> {
        let state = file.write();
        state.check_commit(None)?;
        file.is_heap.store(true, SeqCst);
        drop(state);
        Ok(HeapMark(file.clone()))
    }
}

impl Drop for HeapMark {
    fn drop(&mut self) {
        self.0.is_heap.store(false, SeqCst);
    }
}

/// Committed contents went into the data file before a name that a commit gave to it, and no checkpoint has flushed
/// them since.
#[derive(Clone)]
pub(crate) struct WrittenFirst {
    /// The descriptor that they were written through: only that one is sure to tell if they are lost.
    pub through: Weak<dyn File>,
    /// Flushes of the whole file system that had failed when they were written: as long as none fails, one that covers them
    /// tells, too.
    pub failures: u64,
    /// The data file has all that is committed.
    pub is_all: bool,
}

impl SharedFile {
    pub(crate) fn new(id: u64, state: FileState) -> Arc<SharedFile> {
        Arc::new(SharedFile { id, writing: Mutex::new(()), is_heap: AtomicBool::new(false), state: RwLock::new(state) })
    }

    /// Whether the file is open as a heap. It does not become one while somebody holds its state.
    pub(crate) fn is_heap(&self) -> bool {
        self.is_heap.load(SeqCst)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, FileState> {
        self.state.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, FileState> {
        self.state.write()
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, FileState>> {
        self.state.try_write()
    }
}

/// Whether a file has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Created in a transaction that is not committed.
    Uncommitted,
    /// It has a name.
    Named,
    /// Unlinked by a commit, or created by a transaction that was aborted.
    Gone,
}

pub(crate) struct FileState {
    pub content: Content,
    /// The file's mapping: while there is one, memory holds the newest content.
    pub region: Option<Region>,
    pub life: Life,
    /// The data file can be written.
    pub writable: bool,
    /// The file's attribute names this epoch.
    pub attribute_set: bool,
    /// The attribute was set before a commit, and is not durable yet: it is flushed before the commit's record, or with it.
    pub attribute_due: bool,
    /// A commit created the file, and its attribute may not be durable yet.
    pub attribute_unsynced: bool,
    /// The file's name or mode, or its creation, was committed since the last checkpoint began.
    pub names_changed: bool,
    /// The mode that commits of this epoch gave to the file.
    pub mode_set: Option<u32>,
    /// What a commit wrote to the data file before it gave the file a name.
    pub written_first: Option<WrittenFirst>,
    /// The last commit that touched the file, or the one at which the data file was last whole.
    pub last_lsn: u64,
    /// The data file holds every commit up to this LSN, and its attribute says so at least.
    pub applied_lsn: u64,
    /// LSNs of the first and the last commit before the opening that touched the file, if the data file may lack any.
    pub carried: Option<RangeInclusive<u64>>,
    /// A commit of the file may be in the journal or not.
    pub outcome_unknown: bool,
    /// The transaction that the file takes part in.
    pub txn: Option<u64>,
    /// Why commits to the file are refused.
    pub quarantine: Option<Error>,
    /// Open handles.
    pub handles: usize,
    /// With the option `full_page`: pages that were logged whole since the last checkpoint began.
    pub whole_pages: BTreeSet<u64>,
}

impl FileState {
    pub(crate) fn new(path: PathBuf, life: Life) -> FileState {
        FileState {
            content: Content::new(path),
            region: None,
            life,
            writable: true,
            attribute_set: false,
            attribute_due: false,
            attribute_unsynced: false,
            names_changed: false,
            mode_set: None,
            written_first: None,
            last_lsn: 0,
            applied_lsn: 0,
            carried: None,
            outcome_unknown: false,
            txn: None,
            quarantine: None,
            handles: 0,
            whole_pages: BTreeSet::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.content.path
    }

    /// The file can be read and changed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.life {
            Life::Gone => Err(Error::io("use the unlinked file", self.path(), ErrorKind::NotFound.into())),
            _ => Ok(()),
        }
    }

    /// The file can be committed by this transaction, or without one.
    pub(crate) fn check_commit(&self, txn: Option<u64>) -> Result<()> {
        self.check_alive()?;
        if self.txn != txn {
            return Err(Error::InTransaction { path: self.path().to_owned() });
        }
        self.quarantine.clone().map_or(Ok(()), Err)
    }

    /// The file can be changed by this user.
    fn check_writable(&self) -> Result<()> {
        self.check_alive()?;
        match self.writable {
            true => Ok(()),
            false => Err(Error::invalid(format!("{} cannot be written by this user", self.path().display()))),
        }
    }

    /// The file can grow to this size: in the addresses of its mapping, and on its file system.
    fn check_growth(&self, sink: &dyn SpillSink, size: u64, action: &'static str) -> Result<()> {
        if let Some(region) = &self.region {
            region.check_room(&self.content, size)?;
        }
        sink.check_end(&self.content, size, action)
    }

    /// Nothing is uncommitted, and every commit of the file is in the data file, durably: the file is as its name
    /// tells. `checkpoint_lsn` is that of the journal.
    pub(crate) fn is_plain(&self, checkpoint_lsn: u64) -> bool {
        let content = &self.content;
        let unchanged = content.write_set.is_empty() && !content.is_pending() && !self.names_changed;
        let settled = self.last_lsn <= checkpoint_lsn && self.quarantine.is_none() && !self.outcome_unknown;
        unchanged && settled && self.life == Life::Named && self.region.is_none()
    }

    /// Sets the mode again that a commit gave to the file, as writing takes setuid and setgid bits away.
    pub(crate) fn restore_mode(&self, storage: &dyn Storage, data: &dyn File) -> Result<()> {
        let Some(mode) = self.mode_set else { return Ok(()) };
        let meta = data.meta().context("look at", self.path())?;
        if meta.mode == mode || meta.uid != storage.effective_user() {
            return Ok(());
        }
        data.set_mode(mode).context("change the mode of", self.path())
    }

    /// Reads committed and uncommitted bytes; fewer than asked for only at the end of the file.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let size = self.content.size();
        if offset >= size {
            return Ok(0);
        }
        let n = buf.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        match &self.region {
            Some(region) => region.read(&self.content, &mut buf[..n], offset)?,
            None => self.content.read_at(&mut buf[..n], offset)?,
        }
        Ok(n)
    }

    /// Writes at an offset, or behind the last byte; returns the offset.
    pub(crate) fn write_at(&mut self, sink: &dyn SpillSink, bytes: &[u8], offset: Option<u64>) -> Result<u64> {
        self.check_writable()?;
        let size = self.content.size();
        let offset = offset.unwrap_or(size);
        let range = checked_range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(offset);
        }
        if range.end > size {
            self.check_growth(sink, range.end, "write")?;
        }
        // What can fail for lack of space comes first: a write that is refused leaves nothing behind.
        self.content.make_room(sink, bytes.len() as u64)?;
        let source = self.content.source_of(sink, bytes, offset)?;
        if let Some(region) = &mut self.region {
            if range.end > size {
                region.resize(&self.content, range.end)?;
            }
            region.write(&self.content, offset, bytes)?;
        }
        // Memory holds the bytes already; in the write set, too, a commit takes all of them or none.
        self.content.write(range, source);
        Ok(offset)
    }

    /// Stores bytes to the mapping, as the program would.
    pub(crate) fn store_mapped(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.region.as_mut().ok_or(Error::Closed)?.write(&self.content, offset, bytes)
    }

    pub(crate) fn set_len(&mut self, sink: &dyn SpillSink, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::invalid(format!("a size of {size} bytes is beyond the largest file")));
        }
        self.check_writable()?;
        if size > self.content.size() {
            self.check_growth(sink, size, "extend")?;
        }
        if let Some(region) = &mut self.region {
            region.resize(&self.content, size)?;
        }
        self.content.set_size(size);
        Ok(())
    }

    pub(crate) fn zero(&mut self, sink: &dyn SpillSink, offset: u64, len: u64) -> Result<()> {
        let range = checked_range(offset, len)?;
        self.check_writable()?;
        if range.is_empty() {
            return Ok(());
        }
        if range.end > self.content.size() {
            self.set_len(sink, range.end)?;
        }
        if let Some(region) = self.region.as_mut().filter(|_| holds(invariant::ZEROED_AT_ONCE)) {
            region.store_zeros(&self.content, range.clone())?;
        }
        self.content.write_set.insert(range, Source::Zero);
        Ok(())
    }

    /// Has the file system keep room for a range of the data file, if there is one yet.
    pub(crate) fn keep_room(&mut self, offset: u64, len: u64) -> Result<bool> {
        checked_range(offset, len)?;
        self.check_writable()?;
        let content = &mut self.content;
        let Some(data) = &content.data else { return Ok(false) };
        let look = || data.meta().context("look at", &content.path);
        let before = look()?;
        let kept = data.keep_room(offset, len).context("reserve room in", &content.path);
        // This changes the time of the data file, and is no edit by somebody else.
        if content.last_stat.is_some_and(|last| !edited(&before, &last)) {
            content.last_stat = Some(look()?);
        }
        kept.map(|()| true)
    }

    pub(crate) fn rollback(&mut self) -> Result<()> {
        self.check_alive()?;
        if self.txn.is_some() {
            return Err(Error::InTransaction { path: self.path().to_owned() });
        }
        self.discard_changes()
    }

    /// Says that closing the file loses changes, if it does: most who close have forgotten to commit.
    pub(crate) fn tell_what_is_discarded(&self, store: &Path) {
        if self.life != Life::Gone && !self.content.write_set.is_empty() {
            tracing::warn!(
                target: DISCARDED,
                store = %store.display(),
                file = %self.path().display(),
                "closed without a commit: uncommitted changes are discarded"
            );
        }
    }

    /// Forgets uncommitted changes, also those that were stored to the mapping. After an error memory may still
    /// show some of them; no commit goes through until a later call succeeds.
    pub(crate) fn discard_changes(&mut self) -> Result<()> {
        self.drop_unused_region();
        match &mut self.region {
            Some(region) => region.discard(&mut self.content),
            None => {
                self.content.discard();
                Ok(())
            }
        }
    }

    /// With the tracker `told`, and if that was asked for: everything that was stored to was told of.
    pub(crate) fn check_told(&mut self) -> Result<()> {
        match self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            Some(region) => region.check_told(&self.content),
            None => Ok(()),
        }
    }

    /// Moves what the program stored to the file's mapping into the write set. A mapping without maps ends with that.
    pub(crate) fn stage_stores(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        if let Some(region) = self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            region.stage_stores(&mut self.content, sink, unit)?;
        }
        self.drop_unused_region();
        Ok(())
    }

    /// Copies what the program stored to the file's mapping, for [`Self::stage_copies`]; nobody stores meanwhile.
    /// `looked`: the caller has just asked which pages that are.
    pub(crate) fn copy_stores(&mut self, sink: &dyn SpillSink, looked: bool) -> Result<Option<Copies>> {
        let unit = self.unit();
        match self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            Some(region) => region.copy_stores(&mut self.content, sink, unit, looked).map(Some),
            None => Ok(None),
        }
    }

    /// Moves the copies into the write set, which nothing has changed since.
    pub(crate) fn stage_copies(&mut self, sink: &dyn SpillSink, copies: Option<Copies>) -> Result<()> {
        let unit = self.unit();
        if let (Some(region), Some(copies)) = (&mut self.region, copies) {
            region.stage_copies(&mut self.content, sink, unit, copies)?;
        }
        self.drop_unused_region();
        Ok(())
    }

    /// Bytes of a mapped file that are compared as one. Bytes of a transaction that may fail yet must not get into the
    /// next commit with the rest of their line.
    pub(crate) fn unit(&self) -> usize {
        let txn_on_its_way = self.content.committing.iter().any(|commit| commit.is_txn);
        if txn_on_its_way { 1 } else { LINE_BYTES }
    }

    fn drop_unused_region(&mut self) {
        self.region.take_if(|region| region.maps == 0);
    }

    /// Drops pages of the mapping that the data file shows as well. Does nothing for a file that is gone, whose overlays
    /// are gone, too.
    pub(crate) fn reclaim_pages(&mut self) -> Result<()> {
        match self.region.as_mut().filter(|_| self.life != Life::Gone) {
            Some(region) => region.reclaim(&self.content),
            None => Ok(()),
        }
    }

    /// Drops pages of the mapping that the data file shows as well, while nobody stores.
    pub(crate) fn drop_clean_pages(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let finds_stores_once = self.region.as_ref().is_some_and(|region| region.tracker() != Tracker::PageMap);
        match &mut self.region {
            // What is found stays; comparing it can wait for the commit.
            Some(region) if finds_stores_once => region.find_stores(&self.content)?,
            // All that was ever stored to is found: what differs must be told from what does not.
            _ => self.stage_stores(sink)?,
        }
        self.reclaim_pages()
    }

    /// A store to the mapping that came while a commit was on its way.
    pub(crate) fn race(&mut self) -> Result<Option<Race>> {
        match &mut self.region {
            Some(region) => region.race(&self.content),
            None => Ok(None),
        }
    }

    /// The oldest commit on its way is in the journal. It may be empty, and then no record names the file. A file that
    /// the same commit makes is open already: whoever uses it at this moment must find its contents.
    pub(crate) fn finish_commit(&mut self) {
        let commit = self.content.committing.pop_front().expect("a commit on its way");
        if let Some(written) = self.written_first.as_mut().filter(|_| !commit.overlay.is_empty()) {
            written.is_all = false;
        }
        if self.life != Life::Gone {
            self.content.committed.lay(commit.overlay);
        }
    }

    /// The oldest commit on its way may be in the journal or not: it shows, and is never applied.
    pub(crate) fn finish_commit_unknown(&mut self) {
        let commit = self.content.committing.pop_front().expect("a commit on its way");
        self.content.committed.lay(commit.overlay);
        self.outcome_unknown = true;
    }

    /// The n-th commit on its way did not happen. Its changes become part of the next commit, or uncommitted
    /// again; those of a transaction are gone.
    pub(crate) fn uncommit(&mut self, sink: &dyn SpillSink, nth: usize, is_txn: bool) {
        if !is_txn {
            self.content.uncommit(nth);
            if self.handles == 0 && self.txn.is_none() {
                // Closing the last handle discarded the uncommitted changes; these come too late to be kept.
                self.content.discard();
            }
            return;
        }
        // What was stored over the failed commit since then is told apart by the byte.
        let staged = match &mut self.region {
            Some(region) => region.stage_stores(&mut self.content, sink, 1),
            None => Ok(()),
        };
        let failed = self.content.committing.remove(nth).expect("a commit on its way");
        if self.life == Life::Uncommitted {
            return self.be_gone();
        }
        let undone = staged.and_then(|()| match &mut self.region {
            Some(region) => region.undo_overlay(&self.content, &failed.overlay),
            None => Ok(()),
        });
        if let Err(e) = undone {
            tracing::error!(file = %self.path().display(), error = %e, "memory keeps changes that were aborted");
        }
    }

    /// The file has no name any more, or never had one.
    pub(crate) fn be_gone(&mut self) {
        self.life = Life::Gone;
        self.content.write_set = Overlay::default();
        self.content.committed = Committed::default();
        self.content.data = None;
    }

    /// Another program wrote to, truncated, linked or replaced the data file since Untorn last wrote to it.
    pub(crate) fn changed_outside(&self, storage: &dyn Storage) -> Result<Option<Error>> {
        let content = &self.content;
        let (Some(data), Some(last)) = (&content.data, content.last_stat) else { return Ok(None) };
        // What has the number of a descriptor that this program has closed says nothing about the file.
        data.check_own().context("look at", &content.path)?;
        let now = data.meta().context("look at", &content.path)?;
        let conflict = |detail: &str| Ok(Some(content.conflict(detail)));
        if edited(&now, &last) {
            return conflict("another program changed the file while it was in use");
        }
        if now.links > 1 {
            return conflict("another program gave the file a second name");
        }
        match storage.stat(&content.path) {
            Ok(named) if named.inode == now.inode && named.device == now.device => Ok(None),
            Ok(_) => conflict("another program replaced the file while it was in use"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                conflict("another program removed the file while it was in use")
            }
            Err(e) => Err(Error::io("look at", &content.path, e)),
        }
    }
}

fn checked_range(offset: u64, len: u64) -> Result<Range<u64>> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(offset..end),
        _ => Err(Error::invalid(format!("{len} bytes at offset {offset} reach beyond the largest file"))),
    }
}

/// Only regular files with one name are managed.
pub(crate) fn check_kind(meta: &Meta, path: &Path) -> Result<()> {
    let what = match meta.kind {
        Kind::File if meta.links <= 1 => return Ok(()),
        Kind::File => {
            return Err(Error::Conflict {
                path: path.to_owned(),
                detail: format!("it has {} hard links; a managed file has one name", meta.links),
            });
        }
        Kind::Directory => "a directory",
        Kind::Symlink => "a symbolic link, which is never followed",
        Kind::Other => "a device, a pipe or a socket",
    };
    Err(Error::invalid(format!("{} is {what}, not a regular file", path.display())))
}
