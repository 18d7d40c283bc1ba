//! Checkpoints: committed changes go into the data files, then the journal's space is given back.
//!
//! ```text
//! cut      everything committed so far is the checkpoint's part        (short, holds up commits)
//! apply    written to the data files, flushed                          (long, holds up nobody)
//! retire   the header gives the records up                             (one flush, holds up nobody)
//! ```

use crate::store::{Inner, lock};
use crate::sync::MutexGuard;
use crate::view::{FileShared, Life, View};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use untorn_journal::apply::apply_layer;
use untorn_journal::care::{Care, kept};
use untorn_journal::format::{Attribute, AttributeFound};
use untorn_journal::journal::{Cut, Journal};
use untorn_journal::layer::Layer;
use untorn_journal::recovery::{flush_one_by_one, set_through};
use untorn_journal::state::FinalState;
use untorn_journal::{Context, Error, Result};
use untorn_os::{File, Meta, Step, Storage};

/// The journal, and what commits left to apply.
pub(crate) struct Side {
    pub journal: Journal,
    /// Files with commits since the last checkpoint.
    pub dirty: BTreeMap<u64, Arc<FileShared>>,
    /// Directories whose entries changed since.
    pub dirs: BTreeSet<PathBuf>,
    /// Committed names that could not be made so.
    pub unapplied: Vec<FinalState>,
}

impl Side {
    pub(crate) fn new(journal: Journal) -> Side {
        Side { journal, dirty: BTreeMap::new(), dirs: BTreeSet::new(), unapplied: Vec::new() }
    }
}

/// What comes after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// More commits: a file's attribute must tell up to which one it is whole.
    More,
    /// A clean journal, whatever attributes say: the contents alone need be flushed.
    Clean,
}

/// What one file has to do with a checkpoint.
struct Part {
    file: Arc<FileShared>,
    layer: Arc<Layer>,
    /// An earlier checkpoint has failed, perhaps in flushing this file.
    again: bool,
    /// Its name or mode, or that it exists, is a part of it, too.
    renamed: bool,
}

/// A checkpoint under way. Dropping it after an error leaves its part for the next one.
pub struct Checkpoint<'a> {
    inner: &'a Inner,
    cut: Cut,
    files: Vec<Part>,
    dirs: BTreeSet<PathBuf>,
    done: bool,
}

impl Inner {
    /// A whole checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _turn: MutexGuard<'_, ()> = lock(&self.checkpoint_turn);
        if self.over.load(SeqCst) {
            return Err(Error::Closed);
        }
        match self.cut()? {
            Some(checkpoint) => checkpoint.apply()?.retire(),
            None => Ok(()),
        }
    }

    /// Takes everything committed so far. The caller has the turn.
    pub(crate) fn cut(&self) -> Result<Option<Checkpoint<'_>>> {
        let mut side = lock(&self.side);
        if let Some(e) = side.journal.failure() {
            return Err(e);
        }
        let cut = side.journal.cut();
        if cut.through == side.journal.header().through {
            return Ok(None);
        }
        let mut files = Vec::new();
        for file in std::mem::take(&mut side.dirty).into_values() {
            let mut view = file.write();
            view.whole_pages.clear();
            let committed = std::mem::take(&mut view.committed);
            let earlier = view.applying.take();
            let again = earlier.is_some();
            let layer = match earlier {
                // What an earlier checkpoint could not do comes first.
                Some(earlier) => {
                    let mut layer = (*earlier).clone();
                    layer.merge(&committed);
                    Arc::new(layer)
                }
                None => Arc::new(committed),
            };
            view.applying = Some(layer.clone());
            let renamed = std::mem::take(&mut view.renamed);
            drop(view);
            files.push(Part { file, layer, again, renamed });
        }
        let dirs = std::mem::take(&mut side.dirs);
        Ok(Some(Checkpoint { inner: self, cut, files, dirs, done: false }))
    }
}

impl Inner {
    /// Makes committed names so that could not be made so when they were committed.
    pub(crate) fn apply_waiting_names(&self, side: &mut Side) {
        side.unapplied.retain(|state| {
            let _renaming = self.renaming.write().unwrap_or_else(|e| e.into_inner());
            !self.apply_names(state)
        });
    }
}

impl<'a> Checkpoint<'a> {
    /// Writes the data files and flushes them, each through a descriptor that was open before.
    pub fn apply(self) -> Result<Checkpoint<'a>> {
        self.apply_before(After::More)
    }

    pub(crate) fn apply_before(mut self, after: After) -> Result<Checkpoint<'a>> {
        self.inner.apply_waiting_names(&mut lock(&self.inner.side));
        let one_by_one = flush_one_by_one(&*self.inner.storage, self.files.len());
        let unmarked = |part: &Part| !part.layer.is_empty() && part.file.read().unmarked;
        if !one_by_one && self.inner.is_durable() && self.files.iter().any(unmarked) {
            self.inner.storage.sync_everything(Step::AttributeMany).context("flush", &self.inner.path)?;
            self.files.iter().for_each(|part| part.file.write().unmarked = false);
        }
        let mut first_error = None;
        for part in &self.files {
            let done = self.apply_file(part, one_by_one, after);
            let mut view = part.file.write();
            match done {
                Ok(Applied::Done) => view.quarantine = None,
                // A later commit removed it, and has yet to be flushed: without these changes the file would
                // be taken for an older one, if it came back.
                Ok(Applied::Gone) => {
                    view.quarantine = None;
                    self.dirs.extend(view.path.parent().map(Path::to_owned));
                }
                Err(e) => {
                    tracing::warn!(file = %view.path.display(), error = %e, "a committed change waits");
                    view.quarantine = Some(e.clone());
                    first_error.get_or_insert(e);
                }
            }
        }
        if self.inner.is_durable() && !one_by_one {
            self.inner.storage.sync_everything(Step::CheckpointMany).context("flush", &self.inner.path)?;
        } else if self.inner.is_durable() {
            self.flush_dirs()?;
        }
        if let Some(e) = first_error {
            return Err(e);
        }
        if !lock(&self.inner.side).unapplied.is_empty() {
            return Err(Error::NoSpace { detail: "a committed change of names could not be made yet".into() });
        }
        self.done = true;
        self.files.iter().for_each(|part| part.file.write().applying = None);
        self.inner.checkpoints.fetch_add(1, Relaxed);
        Ok(self)
    }

    /// Somebody else edited this file in place: an identity that no journal knows keeps recovery from
    /// writing over that edit, too. If this cannot be noted, a conflict is still what this owner says.
    /// One that was only moved, or given a second name, must be recognised when that is undone.
    fn disown(&self, id: u64, view: &View) {
        let (Some(data), Some(seen)) = (&view.data, view.seen) else { return };
        if data.meta().is_ok_and(|now| edited(&now, &seen))
            && let Ok(value) = data.attribute()
            && let AttributeFound::Valid(a) = Attribute::decode(value.as_deref())
            && a.file == id
            && data.set_attribute(&Attribute { file: !id, ..a }.encode()).is_ok()
        {
            let _ = data.sync_all(Step::Attribute);
        }
    }

    fn flush_dirs(&self) -> Result<()> {
        for dir in &self.dirs {
            match self.inner.storage.sync_dir(dir, Step::CheckpointNames) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("flush", dir, e)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The journal's records up to the cut are given up.
    pub fn retire(self) -> Result<()> {
        let write = {
            let side = lock(&self.inner.side);
            // A disk that failed a flush of the journal may have lost what it had taken of the data files, too,
            // and told nobody else.
            if let Some(e) = side.journal.failure() {
                return Err(e);
            }
            side.journal.retire(self.cut)
        };
        write.write()?;
        lock(&self.inner.side).journal.retired(write);
        Ok(())
    }

    /// The data file, unchanged by others, and its name; none if it is gone.
    fn opened(&self, file: &FileShared) -> Result<Option<(Arc<dyn File>, PathBuf)>> {
        loop {
            {
                let _names = self.inner.steady_names();
                let view = file.read();
                if view.life == Life::Gone {
                    return Ok(None);
                }
                if let Some(data) = &view.data {
                    return match changed_outside(&view, &self.inner.storage)? {
                        Some(changed) => {
                            self.disown(file.id, &view);
                            Err(changed)
                        }
                        None => Ok(Some((data.clone(), view.path.clone()))),
                    };
                }
            }
            // Also when it was closed again just now, for the sake of others.
            self.inner.reopen(file)?;
        }
    }

    fn apply_file(&self, part: &Part, flush: bool, after: After) -> Result<Applied> {
        let Part { file, layer, again, renamed } = part;
        let Some((data, path)) = self.opened(file)? else { return Ok(Applied::Gone) };
        if self.inner.is_durable() && !layer.is_empty() && file.read().unmarked {
            // A crash must not leave contents in a file that nothing tells from a stranger's.
            data.sync_all(Step::Attribute).context("flush the attribute of", &path)?;
            file.write().unmarked = false;
        }
        if *again && self.inner.is_durable() {
            data.forget_cached().context("drop the cache of", &path)?;
        }
        let applied = apply_layer(&*data, layer, &path);
        // Also what failed half-way has changed the file: by us, not by somebody else.
        let meta = data.meta();
        {
            let mut view = file.write();
            view.seen = meta.as_ref().ok().copied();
            view.base_size = meta.as_ref().map_or(view.base_size, |meta| meta.size);
        }
        applied?;
        meta.context("look at", &path)?;
        let contents_only = after == After::Clean && !renamed;
        if !contents_only {
            set_through(&*data, self.cut.durable_through, &path).context("set the attribute of", &path)?;
        }
        if flush && self.inner.is_durable() {
            // After a failure the kernel may call the next flush a success: the layer stays, and all
            // of it is written again.
            let flushed = match contents_only {
                true => data.sync_data(Step::CheckpointData),
                false => data.sync_all(Step::CheckpointData),
            };
            flushed.context("flush", &path)?;
        }
        Ok(Applied::Done)
    }
}

/// What became of a file's part.
enum Applied {
    Done,
    Gone,
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        if self.done || !kept(Care::ApplyAgain) {
            return;
        }
        let mut side = lock(&self.inner.side);
        for Part { file, renamed, .. } in self.files.drain(..) {
            file.write().renamed |= renamed;
            side.dirty.insert(file.id, file);
        }
        side.dirs.append(&mut self.dirs);
    }
}

pub(crate) fn edited(now: &Meta, seen: &Meta) -> bool {
    now.size != seen.size || now.mtime_ns != seen.mtime_ns
}

/// Whether somebody else wrote to, truncated or replaced a data file since we last did.
pub(crate) fn changed_outside(view: &View, storage: &Arc<dyn Storage>) -> Result<Option<Error>> {
    let (Some(data), Some(seen)) = (&view.data, view.seen) else { return Ok(None) };
    let now = data.meta().context("look at", &view.path)?;
    let conflict = |detail: &str| Ok(Some(Error::Conflict { path: view.path.clone(), detail: detail.into() }));
    if edited(&now, &seen) {
        return conflict("another program changed the file while it was in use");
    }
    if now.links > 1 {
        return conflict("another program gave the file a second name");
    }
    match storage.stat(&view.path) {
        Ok(named) if named.inode == now.inode && named.device == now.device => Ok(None),
        Ok(_) => conflict("another program replaced the file while it was in use"),
        Err(e) if e.kind() == ErrorKind::NotFound => conflict("another program removed the file while it was in use"),
        Err(e) => Err(Error::io("look at", &view.path, e)),
    }
}
