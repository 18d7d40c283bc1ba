//! One open file of a store: its content, its mapping, and the progress of its commits.

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
use untorn_os::{File, Kind, Meta, Storage, TrackerKind, holds};

/// Target of log events about changes that were lost when a file was closed.
pub const DISCARDED: &str = "untorn::discarded";

/// The unit of comparison of a mapped file: differences are journaled in whole lines.
pub(super) const LINE_BYTES: usize = 64;

/// A file that is open in a store, shared by its handles.
pub(crate) struct SharedFile {
    pub id: u64,
    /// Held while a checkpoint, or a commit that gives the file a name, writes to the data file.
    pub writing: Mutex<()>,
    /// The file is open as a heap, so only the heap's own handle may change it.
    is_heap: AtomicBool,
    state: RwLock<FileState>,
}

/// The error for other changes of a heap. A heap's memory is its file, so pointers into it, and the program's
/// references, would see them.
pub(crate) fn is_a_heap(path: &Path) -> Error {
    Error::invalid(format!(
        "{} is open as a heap: only the heap's own calls can change it, commit it or roll it back (with other files: \
         `Heap::syncv`)",
        path.display()
    ))
}

/// Guard: while it lives, the file is marked as an open heap.
pub(crate) struct HeapMark(Arc<SharedFile>);

impl HeapMark {
    /// Marks a file as a heap.
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

/// A record of committed contents that were written to the data file before a commit named it, and that no checkpoint
/// has flushed since.
#[derive(Clone)]
pub(crate) struct WrittenFirst {
    /// The descriptor of the writes: only a flush of this descriptor surely reports their loss.
    pub through: Weak<dyn File>,
    /// Number of failed flushes of the whole file system at the time of the writes. As long as it does not grow, a
    /// later flush that covers the writes reports their loss, too.
    pub failures: u64,
    /// The data file has all committed contents.
    pub is_all: bool,
}

impl SharedFile {
    pub(crate) fn new(id: u64, state: FileState) -> Arc<SharedFile> {
        Arc::new(SharedFile { id, writing: Mutex::new(()), is_heap: AtomicBool::new(false), state: RwLock::new(state) })
    }

    /// Whether the file is open as a heap. It does not become one while its state is locked.
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
    /// The attribute was set before a commit, and is not durable yet: it must be flushed before the commit's record, or
    /// with it.
    pub attribute_due: bool,
    /// A commit created the file, and its attribute may not be durable yet.
    pub attribute_unsynced: bool,
    /// The file's name or mode, or its creation, was committed since the last checkpoint began.
    pub names_changed: bool,
    /// The mode that commits of this epoch gave to the file.
    pub mode_set: Option<u32>,
    /// Contents that a commit wrote to the data file before it gave the file a name.
    pub written_first: Option<WrittenFirst>,
    /// LSN of the last commit that touched the file, or of the one up to which the data file was last complete.
    pub last_lsn: u64,
    /// The data file holds every commit up to this LSN, and its attribute says so at least.
    pub applied_lsn: u64,
    /// LSNs of the first and the last commit before the opening that touched the file, if the data file may lack any.
    pub unapplied: Option<RangeInclusive<u64>>,
    /// It is unknown whether a commit of the file is in the journal.
    pub outcome_unknown: bool,
    /// The transaction that the file takes part in.
    pub txn: Option<u64>,
    /// Why commits to the file are refused.
    pub quarantine: Option<Error>,
    /// Open handles.
    pub handles: usize,
    /// With the option `full_page`: pages that were logged completely since the last checkpoint began.
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
            unapplied: None,
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

    /// Checks that the file can be read and changed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.life {
            Life::Gone => Err(Error::io("use the unlinked file", self.path(), ErrorKind::NotFound.into())),
            _ => Ok(()),
        }
    }

    /// Checks that this transaction can commit the file, or that it can be committed without one.
    pub(crate) fn check_commit(&self, txn: Option<u64>) -> Result<()> {
        self.check_alive()?;
        if self.txn != txn {
            return Err(Error::InTransaction { path: self.path().to_owned() });
        }
        match &self.quarantine {
            // It may be the commit that makes room.
            Some(Error::NoSpace { .. }) if !self.content.grows() => Ok(()),
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    /// Checks that this user can change the file.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.check_alive()?;
        match self.writable {
            true => Ok(()),
            false => Err(Error::invalid(format!("{} cannot be written by this user", self.path().display()))),
        }
    }

    /// Checks that the file can grow to this size, within its mapping's addresses and on its file system.
    pub(super) fn check_growth(&self, sink: &dyn SpillSink, size: u64, action: &'static str) -> Result<()> {
        if let Some(region) = &self.region {
            region.check_room(&self.content, size)?;
        }
        sink.check_end(&self.content, size, action)
    }

    /// Whether the file is plain: nothing is uncommitted, and the data file durably holds every commit under its
    /// present name. `checkpoint_lsn` is that of the journal.
    pub(crate) fn is_plain(&self, checkpoint_lsn: u64) -> bool {
        let content = &self.content;
        let unchanged = content.write_set.is_empty() && !content.is_pending() && !self.names_changed;
        let settled = self.last_lsn <= checkpoint_lsn && self.quarantine.is_none() && !self.outcome_unknown;
        unchanged && settled && self.life == Life::Named && self.region.is_none()
    }

    /// Sets again the mode that a commit gave to the file, because writing clears the setuid and setgid bits.
    pub(crate) fn restore_mode(&self, storage: &dyn Storage, data: &dyn File) -> Result<()> {
        let Some(mode) = self.mode_set else { return Ok(()) };
        let meta = data.meta().context("look at", self.path())?;
        if meta.mode == mode || meta.uid != storage.effective_user() {
            return Ok(());
        }
        data.set_mode(mode).context("change the mode of", self.path())
    }

    /// Reads committed and uncommitted bytes. Returns fewer bytes only at the end of the file.
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

    /// Writes at an offset, or at the end of the file; returns the offset.
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
        // Steps that can fail for lack of space come first, so that a refused write leaves nothing behind.
        self.content.make_room(sink, bytes.len() as u64)?;
        let source = self.content.source_of(sink, bytes, offset)?;
        if let Some(region) = &mut self.region {
            if range.end > size {
                region.resize(&self.content, range.end)?;
            }
            region.write(&self.content, offset, bytes)?;
        }
        // Memory holds the bytes already. With the write set holding them as well, a commit takes all of them or none.
        self.content.write(range, source);
        self.assert_reached();
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
        self.assert_reached();
        Ok(())
    }

    /// Checks that memory reaches to the end of a mapped file.
    fn assert_reached(&self) {
        debug_assert!(
            self.region.as_ref().is_none_or(|region| region.reaches(self.content.size())),
            "the mapping of {:?} ends before {} bytes",
            self.path(),
            self.content.size()
        );
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
        debug_assert!(
            range.end <= self.content.size(),
            "zeros in {range:?} of a file of {} bytes",
            self.content.size()
        );
        self.content.write_set.insert(range, Source::Zero);
        Ok(())
    }

    /// Reserves space in the file system for a range of the data file. Returns false if there is no data file yet.
    pub(crate) fn keep_room(&mut self, offset: u64, len: u64) -> Result<bool> {
        checked_range(offset, len)?;
        self.check_writable()?;
        let content = &mut self.content;
        let Some(data) = &content.data else { return Ok(false) };
        let look = || data.meta().context("look at", &content.path);
        let before = look()?;
        let kept = data.keep_room(offset, len).context("reserve room in", &content.path);
        // The reservation changes the modification time, which must not look like an edit by another program.
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

    /// Logs that closing the file loses changes, if it does, because the program has probably forgotten to commit.
    pub(crate) fn tell_what_is_discarded(&self, store: &Path) {
        if self.life != Life::Gone && !self.content.write_set.is_empty() {
            tracing::warn!(
                target: DISCARDED,
                id = "untorn.file.discarded",
                store = %store.display(),
                file = %self.path().display(),
                "closed without a commit: uncommitted changes are discarded"
            );
        }
    }

    /// Drops uncommitted changes, including stores to the mapping. After an error, memory may still show some of them,
    /// and no commit succeeds until a later call does.
    pub(crate) fn discard_changes(&mut self) -> Result<()> {
        self.drop_unused_region();
        let done = match &mut self.region {
            Some(region) => region.discard(&mut self.content),
            None => {
                self.content.discard();
                Ok(())
            }
        };
        debug_assert!(
            self.content.write_set.is_empty() && self.content.spill.is_none(),
            "changes of {:?} outlive a rollback",
            self.path()
        );
        done
    }

    /// With the tracker `explicit`, if the check is on: checks that all stores were reported.
    pub(crate) fn check_unmarked(&mut self) -> Result<()> {
        match self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            Some(region) => region.check_unmarked(&self.content),
            None => Ok(()),
        }
    }

    /// Moves the program's stores to the mapping into the write set. Ends a mapping without maps.
    pub(crate) fn stage_stores(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let unit = self.unit();
        if let Some(region) = self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            region.stage_stores(&mut self.content, sink, unit)?;
        }
        self.drop_unused_region();
        Ok(())
    }

    /// Copies the program's stores to the mapping, for [`Self::stage_copies`]; nobody stores meanwhile. `looked`: the
    /// caller has just queried the stored pages.
    pub(crate) fn copy_stores(&mut self, sink: &dyn SpillSink, looked: bool) -> Result<Option<Copies>> {
        let unit = self.unit();
        match self.region.as_mut().filter(|_| self.life != Life::Gone && self.writable) {
            Some(region) => region.copy_stores(&mut self.content, sink, unit, looked).map(Some),
            None => Ok(None),
        }
    }

    /// Moves the copies into the write set, which has not changed since.
    pub(crate) fn stage_copies(&mut self, sink: &dyn SpillSink, copies: Option<Copies>) -> Result<()> {
        let unit = self.unit();
        if let (Some(region), Some(copies)) = (&mut self.region, copies) {
            region.stage_copies(&mut self.content, sink, unit, copies)?;
        }
        self.drop_unused_region();
        Ok(())
    }

    /// Bytes of a mapped file that are compared as a unit: a single byte while a transaction is on its way. Bytes of
    /// that transaction, which may still fail, must not get into the next commit with the rest of their line.
    pub(crate) fn unit(&self) -> usize {
        let txn_on_its_way = self.content.committing.iter().any(|commit| commit.is_txn);
        if txn_on_its_way { 1 } else { LINE_BYTES }
    }

    fn drop_unused_region(&mut self) {
        self.region.take_if(|region| region.maps == 0);
    }

    /// Drops pages of the mapping whose contents the data file has. Does nothing for a removed file, whose overlays are
    /// gone.
    pub(crate) fn reclaim_pages(&mut self) -> Result<()> {
        match self.region.as_mut().filter(|_| self.life != Life::Gone) {
            Some(region) => region.reclaim(&self.content),
            None => Ok(()),
        }
    }

    /// Drops pages of the mapping whose contents the data file has, while nobody stores.
    pub(crate) fn drop_clean_pages(&mut self, sink: &dyn SpillSink) -> Result<()> {
        let finds_stores_once = self.region.as_ref().is_some_and(|region| region.tracker() != TrackerKind::PageMap);
        match &mut self.region {
            // Found pages stay noted; comparing them can wait for the commit.
            Some(region) if finds_stores_once => region.find_stores(&self.content)?,
            // This tracker reports every page ever stored to, so the pages that differ must be identified now.
            _ => self.stage_stores(sink)?,
        }
        self.reclaim_pages()
    }

    /// A store to the mapping that happened during a commit, if there was one.
    pub(crate) fn race(&mut self) -> Result<Option<Race>> {
        match &mut self.region {
            Some(region) => region.race(&self.content),
            None => Ok(None),
        }
    }

    /// Notes that the oldest commit on its way is in the journal. It may be empty, and then no record names the file. A
    /// file that the same commit creates is already open, so any user of it must find its contents at once.
    pub(crate) fn finish_commit(&mut self) {
        let size = self.content.size();
        let commit = self.content.committing.pop_front().expect("a commit on its way");
        if let Some(written) = self.written_first.as_mut().filter(|_| !commit.overlay.is_empty()) {
            written.is_all = false;
        }
        if self.life != Life::Gone {
            self.content.committed.lay(commit.overlay);
            debug_assert_eq!(self.content.size(), size, "a commit changed the content that programs see");
        }
        debug_assert!(!self.attribute_due || self.attribute_set, "no attribute is due, and {:?} has none", self.path());
    }

    /// Notes that it is unknown whether the oldest commit on its way is in the journal: it stays visible, and is never
    /// applied.
    pub(crate) fn finish_commit_unknown(&mut self) {
        let size = self.content.size();
        let commit = self.content.committing.pop_front().expect("a commit on its way");
        self.content.committed.lay(commit.overlay);
        self.outcome_unknown = true;
        debug_assert_eq!(self.content.size(), size, "a commit of unknown outcome changed the content");
    }

    /// Takes back the n-th commit on its way, which did not happen. Its changes become part of the next commit, or
    /// uncommitted again; those of a transaction are dropped.
    pub(crate) fn uncommit(&mut self, sink: &dyn SpillSink, nth: usize, is_txn: bool) {
        debug_assert_eq!(
            self.content.committing.get(nth).map(|commit| commit.is_txn),
            Some(is_txn),
            "commit {nth} of {} is of another request",
            self.content.committing.len()
        );
        if !is_txn {
            self.content.uncommit(nth);
            if self.handles == 0 && self.txn.is_none() {
                // Closing the last handle discarded the uncommitted changes, so these are dropped as well.
                self.content.discard();
            }
            return;
        }
        // Stage stores made over the failed commit since then, byte by byte.
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
            tracing::error!(
                id = "untorn.map.keeps_aborted",
                file = %self.path().display(), error = %e, "memory keeps changes that were aborted"
            );
        }
    }

    /// Marks the file as one without a name.
    pub(crate) fn be_gone(&mut self) {
        debug_assert_ne!(self.life, Life::Gone, "{:?} loses its name twice", self.path());
        self.life = Life::Gone;
        self.content.write_set = Overlay::default();
        self.content.committed = Committed::default();
        self.content.data = None;
    }

    /// The conflict if another program wrote to, truncated, linked or replaced the data file since Untorn last wrote to
    /// it.
    pub(crate) fn changed_outside(
        &self,
        storage: &dyn Storage,
        own_links: impl Fn(&Meta) -> u64,
    ) -> Result<Option<Error>> {
        let content = &self.content;
        let (Some(data), Some(last)) = (&content.data, content.last_stat) else { return Ok(None) };
        // If the program has closed the descriptor, its number says nothing about the file.
        data.check_own().context("look at", &content.path)?;
        let now = data.meta().context("look at", &content.path)?;
        let conflict = |detail: &str| Ok(Some(content.conflict(detail)));
        if edited(&now, &last) {
            return conflict("another program changed the file while it was in use");
        }
        if own_links(&now) > 1 {
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

pub(super) fn checked_range(offset: u64, len: u64) -> Result<Range<u64>> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(offset..end),
        _ => Err(Error::invalid(format!("{len} bytes at offset {offset} would end beyond the size limit of files"))),
    }
}

/// Checks that this is a regular file with one name, besides those that are kept for readers; others are not managed.
pub(crate) fn check_kind(meta: &Meta, own_links: u64, path: &Path) -> Result<()> {
    let what = match meta.kind {
        Kind::File if own_links <= 1 => return Ok(()),
        Kind::File => {
            return Err(Error::Conflict {
                path: path.to_owned(),
                detail: format!("it has {own_links} hard links; a managed file has one name"),
            });
        }
        Kind::Directory => "a directory",
        Kind::Symlink => "a symbolic link, which is never followed",
        Kind::Other => "a device, a pipe or a socket",
    };
    Err(Error::invalid(format!("{} is {what}, not a regular file", path.display())))
}
