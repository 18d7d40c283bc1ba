//! The open files of a store: opening them, finding them by name, and closing descriptors when there are many.

use crate::engine::files::file_state::{FileState, Life, SharedFile, check_kind};
use crate::engine::files::open_files::FileTable;
use crate::engine::paths::error_paths::error_in_store;
use crate::engine::waiting::concurrency::{RwLockReadGuard, RwLockWriteGuard};
use crate::engine::{Engine, out_of_descriptors};
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use untorn_journal::data_files::locate::{check_attribute, open_for_writing};
use untorn_journal::format::{Attribute, AttributeFound};
use untorn_journal::recovery::Quarantined;
use untorn_journal::{Context, Error, Result};
use untorn_os::Open;

impl Engine {
    /// Checks that recovery did not quarantine the file of this name, which keeps its name.
    pub(crate) fn check_quarantine(&self, path: &Path) -> Result<()> {
        self.refuse_quarantined(|q| q.path == path)
    }

    /// Checks that recovery did not quarantine a directory of this path, because nothing new may be created in one.
    pub(crate) fn check_quarantined_dirs(&self, path: &Path) -> Result<()> {
        self.refuse_quarantined(|q| q.id == 0 && path.starts_with(&q.path))
    }

    fn refuse_quarantined(&self, is_meant: impl Fn(&Quarantined) -> bool) -> Result<()> {
        match self.opening.quarantined.iter().find(|q| is_meant(q)) {
            Some(q) => Err(error_in_store(q.reason.clone(), &self.path)),
            None => Ok(()),
        }
    }

    /// The shared file of a name, which is opened if necessary. It counts `handles` new handles at once, because a file
    /// without handles may leave the table at any moment.
    pub(crate) fn load(&self, path: &Path, handles: usize) -> Result<Arc<SharedFile>> {
        self.check_name(path)?;
        self.check_quarantine(path)?;
        // While a commit changes names, table and disk differ.
        let _names = self.steady_names();
        let mut files = self.files.lock();
        self.life.check_not_shut_down()?;
        if let Some(known) = files.get(path) {
            if handles > 0 {
                known.write().handles += handles;
            }
            return Ok(known.clone());
        }
        files.close_descriptors(self.storage.open_files_max());
        let (file, writable) = match with_descriptors(&mut files, || self.storage.open(path, Open::WRITE)) {
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                (self.storage.open(path, Open::READ).context("open", path)?, false)
            }
            done => (done.map_err(|e| open_error(path, e))?, true),
        };
        let meta = file.meta().context("look at", path)?;
        check_kind(&meta, self.own_links(&meta), path)?;
        if writable && !file.try_claim().context("claim", path)? {
            return Err(claimed(path));
        }
        let attribute = file.attribute().context("read the attribute of", path)?;
        self.check_attribute(path, Attribute::decode(attribute.as_deref()))?;
        let mut state = FileState::new(path.to_owned(), Life::Named);
        state.content.base_size = meta.size;
        state.content.data = Some(file);
        state.content.last_stat = Some(meta);
        state.writable = writable;
        state.handles = handles;
        let shared = SharedFile::new(self.new_file_id()?, state);
        files.insert(path.to_owned(), shared.clone());
        files.note_descriptor(&shared);
        Ok(shared)
    }

    /// Checks that the file has no commits in some other journal, without which it is incomplete.
    fn check_attribute(&self, path: &Path, found: AttributeFound) -> Result<()> {
        // The file is refused under each of its names, because its commits are still in a quarantined journal.
        let quarantined = |id: u64| self.refuse_quarantined(|q| q.id == id);
        let is_known = |a: &Attribute| a.epoch == self.epoch || self.opening.unapplied.contains(&a.file);
        check_attribute(found, path, Some(self.store_id), quarantined, is_known, |a| self.is_of_another_journal(a))
    }

    /// A file's state, locked for reading, with its data file open.
    pub(crate) fn readable<'a>(&self, file: &'a Arc<SharedFile>) -> Result<RwLockReadGuard<'a, FileState>> {
        loop {
            let state = file.read();
            state.check_alive()?;
            if state.content.data.is_some() || state.life == Life::Uncommitted {
                return Ok(state);
            }
            drop(state);
            self.reopen(file)?;
        }
    }

    /// A file's state, locked for changes, with its data file open. While nobody holds the state, the descriptor may be
    /// closed at any moment for the sake of other files.
    pub(crate) fn changeable<'a>(&self, file: &'a Arc<SharedFile>) -> Result<RwLockWriteGuard<'a, FileState>> {
        loop {
            let state = file.write();
            if state.content.data.is_some() || state.life != Life::Named {
                return Ok(state);
            }
            drop(state);
            self.reopen(file)?;
        }
    }

    /// Opens a data file again that was closed to save descriptors.
    pub(crate) fn reopen(&self, shared: &Arc<SharedFile>) -> Result<()> {
        let _names = self.steady_names();
        let mut files = self.files.lock();
        self.life.check_not_shut_down()?;
        files.close_descriptors(self.storage.open_files_max());
        let (path, writable) = {
            let state = shared.read();
            // A checkpoint writes to files with commits, even if their mode forbids that to the program.
            (state.path().to_owned(), state.writable || state.attribute_set)
        };
        let open = || match writable {
            true => open_for_writing(&*self.storage, &path),
            false => self.storage.open(&path, Open::READ),
        };
        let file = with_descriptors(&mut files, open).context("open", &path)?;
        let mut state = shared.write();
        if state.content.data.is_some() || state.life != Life::Named {
            return Ok(());
        }
        let found = Attribute::decode(file.attribute().context("read the attribute of", &path)?.as_deref());
        let is_same = if state.attribute_set {
            matches!(found, AttributeFound::Valid(a) if a.store == self.store_id && a.file == shared.id)
        } else {
            self.check_attribute(&path, found)?;
            let meta = file.meta().context("look at", &path)?;
            state.content.last_stat.is_some_and(|last| last.inode == meta.inode && last.device == meta.device)
        };
        if !is_same {
            return Err(Error::Conflict { path, detail: "somebody replaced the file while it was in use".into() });
        }
        if writable && !file.try_claim().context("claim", &path)? {
            return Err(claimed(&path));
        }
        state.content.data = Some(file);
        files.note_descriptor(shared);
        Ok(())
    }

    /// Whether a file can be changed. A file that was read-only when it was opened may have another mode now.
    pub(crate) fn is_writable(&self, shared: &Arc<SharedFile>) -> bool {
        if shared.read().writable {
            return true;
        }
        let _names = self.steady_names();
        let mut files = self.files.lock();
        let mut state = shared.write();
        if !state.writable
            && let Ok(file) = self.storage.open(state.path(), Open::WRITE)
            && let (Ok(meta), Some(last)) = (file.meta(), state.content.last_stat)
            && (meta.inode, meta.device) == (last.inode, last.device)
            && file.try_claim().unwrap_or(false)
        {
            state.content.data = Some(file);
            files.note_descriptor(shared);
            state.writable = true;
        }
        state.writable
    }

    /// Whether no file of the store has a handle.
    pub(crate) fn has_no_handles(&self) -> bool {
        self.files.lock().all().all(|file| file.read().handles == 0)
    }

    /// Uncounts a handle that was not created after all.
    pub(crate) fn remove_handle(&self, shared: &Arc<SharedFile>) {
        let mut state = shared.write();
        debug_assert!(state.handles > 0, "{:?} has no handle to uncount", state.path());
        state.handles -= 1;
        drop(state);
        self.forget_if_idle(shared);
    }
}

/// Opens a file; if there are no descriptors left, closes data files and tries again.
fn with_descriptors<T>(files: &mut FileTable, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match open() {
        Err(e) if out_of_descriptors(&e) => {
            files.close_descriptors(0);
            open()
        }
        done => done,
    }
}

fn open_error(path: &Path, e: io::Error) -> Error {
    let because = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
    match Errno::from_io_error(&e) {
        Some(Errno::ISDIR) => because("it is a directory, not a regular file"),
        Some(Errno::XDEV) => because("its path crosses a mount point; a store is on one file system"),
        Some(Errno::LOOP) => because("its path contains a symbolic link; links are never followed"),
        // The error of opening a socket, or a device without a driver.
        Some(Errno::NXIO) => because("it is a device, a pipe or a socket, not a regular file"),
        _ => Error::io("open", path, e),
    }
}

/// The error for a file that is open in another store. It has another name there, or that store is another directory.
fn claimed(path: &Path) -> Error {
    let detail = " through another store, or a program has locked it (`flock`): close it there first";
    Error::Busy { path: path.to_owned(), pid: None, detail: detail.to_owned() }
}
