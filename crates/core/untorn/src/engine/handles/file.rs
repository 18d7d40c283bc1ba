//! Handles of files.

use crate::engine::commit::ticket::Ticket;
use crate::engine::content::changed_ranges;
use crate::engine::files::file_state::{FileState, HeapMark, SharedFile, is_a_heap};
use crate::engine::lifecycle::open_store::OpenStore;
use crate::engine::waiting::concurrency::{AtomicBool, RwLockWriteGuard};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use untorn_journal::{Context, Error, Result};

/// One handle of a file.
///
/// All handles of one file in one store share one content, including uncommitted changes: the others read bytes that
/// one has written, and a commit through any of them commits everything.
///
/// **Closing the last handle without a commit discards the uncommitted changes**, unless [`File::set_commit_on_close`]
/// was called. Dropping a handle closes it, and logs an error of that.
pub struct File {
    pub(crate) store: Arc<OpenStore>,
    pub(crate) shared: Arc<SharedFile>,
    read_only: bool,
    /// Whether this is the own handle of a heap, the only one that may change its file.
    is_heaps_own: bool,
    commit_on_close: AtomicBool,
    closed: bool,
}

impl File {
    pub(crate) fn new(store: Arc<OpenStore>, shared: Arc<SharedFile>, read_only: bool) -> File {
        shared.write().handles += 1;
        File::counted(store, shared, read_only)
    }

    /// A handle of a shared file that has already counted it.
    pub(crate) fn counted(store: Arc<OpenStore>, shared: Arc<SharedFile>, read_only: bool) -> File {
        File { store, shared, read_only, is_heaps_own: false, commit_on_close: AtomicBool::new(false), closed: false }
    }

    /// Another handle of the file.
    pub fn try_clone(&self) -> Result<File> {
        self.store.life.check_usable()?;
        let mut other = File::new(self.store.clone(), self.shared.clone(), self.read_only);
        other.is_heaps_own = self.is_heaps_own;
        Ok(other)
    }

    /// Turns this into the handle of a heap. Other handles can only read the file until the mark is dropped.
    pub(crate) fn into_heaps_own(mut self) -> Result<(File, HeapMark)> {
        let mark = HeapMark::new(&self.shared)?;
        self.is_heaps_own = true;
        Ok((self, mark))
    }

    /// An ordinary handle of a heap's file.
    pub(crate) fn view(&self) -> File {
        File::new(self.store.clone(), self.shared.clone(), self.read_only)
    }

    pub(crate) fn check_not_heap(&self) -> Result<()> {
        if self.may_change() { Ok(()) } else { Err(is_a_heap(&self.path())) }
    }

    /// Whether the file is not a heap, or this is the heap's own handle.
    fn may_change(&self) -> bool {
        self.is_heaps_own || !self.shared.is_heap()
    }

    /// Whether the handle may store to the file, by its options and the heap mark. Takes no lock.
    pub(crate) fn may_store(&self) -> bool {
        !self.read_only && self.may_change()
    }

    /// The file's state, locked for a change.
    pub(crate) fn changing(&self) -> Result<RwLockWriteGuard<'_, FileState>> {
        self.check_write()?;
        let state = self.shared.write();
        if self.may_change() { Ok(state) } else { Err(is_a_heap(state.path())) }
    }

    /// Reads committed and uncommitted bytes alike. Returns fewer bytes than requested only at the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.store.life.check_usable()?;
        self.store.readable(&self.shared)?.read_at(buf, offset)
    }

    /// Fills the buffer from an offset on.
    ///
    /// # Errors
    /// [`Error::Io`] of kind `UnexpectedEof` if the file ends before the buffer is full.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buf, offset)? == buf.len() {
            true => Ok(()),
            false => Err(Error::io("read", self.path(), ErrorKind::UnexpectedEof.into())),
        }
    }

    pub(crate) fn check_write(&self) -> Result<()> {
        self.store.life.check_usable()?;
        self.check_not_heap()?;
        if self.read_only { Err(Error::invalid("the handle is for reading only")) } else { Ok(()) }
    }

    /// Changes bytes, and extends the file if necessary; returns their number, which is always all of them. Nothing
    /// reaches the data file before a commit.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_all_at(buf, offset)?;
        Ok(buf.len())
    }

    /// Changes bytes, and extends the file if necessary. Nothing reaches the data file before a commit.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.store.with_room_of_slots(|| self.changing()?.write_at(&**self.store, buf, Some(offset)).map(drop))
    }

    /// Changes only the bytes that differ from the present ones, in units of 64 bytes, so that a commit logs no more than
    /// these. For programs that write whole pages of which little has changed. Returns whether any byte differed.
    pub fn write_changed_at(&self, buf: &[u8], offset: u64) -> Result<bool> {
        self.check_write()?;
        self.store
            .with_room_of_slots(|| self.store.changeable(&self.shared)?.write_changed_at(&**self.store, buf, offset))
    }

    /// Writes at the end of the file; returns the offset of the bytes.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.store.with_room_of_slots(|| self.changing()?.write_at(&**self.store, buf, None))
    }

    /// Sets the size, as an uncommitted change; new bytes are zero.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.changing()?.set_len(&**self.store, size)
    }

    /// Makes a range zero, as an uncommitted change. A range beyond the end extends the file.
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.changing()?.zero(&**self.store, offset, len)
    }

    /// Size in bytes, uncommitted changes included.
    #[allow(clippy::len_without_is_empty, reason = "as std's metadata of a file")]
    pub fn len(&self) -> Result<u64> {
        self.store.life.check_usable()?;
        let state = self.shared.read();
        state.check_alive()?;
        Ok(state.content.size())
    }

    /// Whether the file has uncommitted changes, stores to its mapping included.
    pub fn has_changes(&self) -> Result<bool> {
        let mut state = self.store.changeable(&self.shared)?;
        state.check_alive()?;
        state.stage_stores(&**self.store)?;
        Ok(!state.content.write_set.is_empty())
    }

    /// Device and inode of the data file, by which programs recognise it: for locks of their own, or to see that the
    /// name has another file now. `None` if it is too early, because the commit that creates the file is on its way.
    pub fn identity(&self) -> Result<Option<(u64, u64)>> {
        self.store.life.check_usable()?;
        let state = self.store.readable(&self.shared)?;
        state.check_alive()?;
        let Some(data) = &state.content.data else { return Ok(None) };
        let meta = data.meta().context("look at", state.path())?;
        Ok(Some((meta.device, meta.inode)))
    }

    /// Ranges of the file that its data file may not have yet: of bytes, and of zeros. All other ranges are as in the
    /// data file, including holes.
    #[allow(clippy::type_complexity)]
    pub fn unapplied(&self) -> Result<(Vec<Range<u64>>, Vec<Range<u64>>)> {
        self.store.life.check_usable()?;
        let state = self.shared.read();
        state.check_alive()?;
        let (zeros, bytes) = changed_ranges(&state.content.overlays(), &(0..state.content.size()));
        Ok((bytes.into_iter().collect(), zeros.into_iter().collect()))
    }

    /// Reserves space in the file system for later writes to a range. The file does not change, and the reservation is
    /// not part of a commit. Returns `None` if it is too early, because the commit that creates the file is on its way.
    /// Otherwise returns the parts of the range that lose their reservation again, because an unapplied change makes
    /// them zeros; bytes that are written there keep it.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn keep_room(&self, offset: u64, len: u64) -> Result<Option<Vec<Range<u64>>>> {
        self.check_write()?;
        let mut state = self.store.changeable(&self.shared)?;
        state.check_alive()?;
        if !state.keep_room(offset, len)? {
            return Ok(None);
        }
        let (zeros, _) = changed_ranges(&state.content.overlays(), &(offset..offset.saturating_add(len)));
        Ok(Some(zeros.into_iter().collect()))
    }

    /// Commits all changes of the file. After a crash at any point, the file has all of them, or none.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::SyncFailed`], [`Error::InTransaction`], [`Error::Conflict`].
    pub fn commit(&self) -> Result<()> {
        self.check_write()?;
        let completion = self.store.submit(std::slice::from_ref(&self.shared), None)?;
        self.store.finish(&completion)
    }

    /// Commits all changes made so far, without waiting.
    pub fn commit_async(&self) -> Result<Ticket> {
        self.check_write()?;
        let completion = self.store.submit_async(std::slice::from_ref(&self.shared), None)?;
        Ok(self.store.ticket(completion))
    }

    /// Brings the data file up to everything committed so far, durably, also by commits that were started: other
    /// programs that read it see its last commit. Unlike [`Store::checkpoint`](crate::Store::checkpoint), it leaves the
    /// log and all other files as they are. So the file is still in use: after a crash, recovery writes it again, over
    /// changes of other programs.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::Io`], [`Error::SyncFailed`].
    pub fn checkpoint(&self) -> Result<()> {
        self.store.life.check_usable()?;
        self.store.wait_for_all()?;
        self.store.checkpoint_file(&self.shared)
    }

    /// Closes the handle like [`File::close`], and leaves the file plain: it has every commit, and other programs may
    /// change it, move it or remove it, while the store stays open. That takes a checkpoint of the store if the log has
    /// commits of the file.
    ///
    /// # Errors
    /// [`Error::Busy`] if the file has other handles or maps, or takes part in a transaction; those of
    /// [`File::checkpoint`]. The handle is closed in any case.
    pub fn close_plain(mut self) -> Result<()> {
        self.store.life.check_usable()?;
        let (store, shared) = (self.store.clone(), Arc::downgrade(&self.shared));
        self.close_now()?;
        drop(self);
        // The last handle of a standalone file closes its store.
        if store.life.is_closed() { Ok(()) } else { store.leave_plain(&shared) }
    }

    /// Forgets all uncommitted changes.
    pub fn rollback(&self) -> Result<()> {
        self.changing()?.rollback()
    }

    /// Commits uncommitted changes when this handle is closed. Default: off.
    pub fn set_commit_on_close(&self, on: bool) {
        self.commit_on_close.store(on, Relaxed);
    }

    /// Random bytes from the file's storage.
    pub(crate) fn random(&self, bytes: &mut [u8]) -> Result<()> {
        self.store.storage.random(bytes).map_err(|e| Error::io("draw random bytes for", self.path(), e))
    }

    /// The file's name, relative to the store.
    pub fn path(&self) -> PathBuf {
        self.shared.read().path().to_owned()
    }

    /// Closes the handle. **Uncommitted changes are discarded when the last handle closes.** The last
    /// handle of a standalone file closes its store, too.
    pub fn close(mut self) -> Result<()> {
        self.store.life.check_fork()?;
        self.close_now()
    }

    fn close_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let committed = match self.commit_on_close.load(Relaxed) && !self.read_only {
            true => self.commit(),
            false => Ok(()),
        };
        {
            let mut state = self.shared.write();
            debug_assert!(state.handles > 0, "{:?} has no handle to close", state.path());
            state.handles -= 1;
            if state.handles == 0 && state.txn.is_none() {
                if !self.store.life.is_closed() {
                    state.tell_what_is_discarded(&self.store.path);
                }
                // Without handles and maps, nothing here can fail.
                let _ = state.discard_changes();
            }
        }
        self.store.forget_if_idle(&self.shared);
        let is_last =
            self.store.store_dir.standalone.is_some() && self.shared.read().handles == 0 && self.store.has_no_handles();
        let closed = if is_last { self.store.close() } else { Ok(()) };
        committed.and(closed)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.store.life.check_fork().is_ok()
            && let Err(e) = self.close_now()
        {
            tracing::error!(
                id = "untorn.file.close_failed",
                file = %self.path().display(), error = %e, "closing a file failed"
            );
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.shared.try_write().map(|state| state.path().to_owned());
        f.debug_struct("File").field("path", &path).field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// Positional reads and writes like those of the standard library's files.
impl std::os::unix::fs::FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }
}
