//! One file as its handles see it: the data file under layers of changes.
//!
//! ```text
//! staged       changed by handles, not committed
//! committing   on their way through the journal, newest first
//! committed    in the journal, not yet in the data file
//! applying     being written to the data file by a running checkpoint
//! data file
//! ```

use crate::region::Region;
use crate::store::Inner;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::care::{Care, kept};
use untorn_journal::extent::{Extent, append_summed};
use untorn_journal::layer::{Layer, NO_END, Source, read_through};
use untorn_journal::record::FILE_BYTES_MAX;
use untorn_journal::{Error, Result};
use untorn_os::{File, Kind, Meta};

const PAGE_BYTES: u64 = 4096;

/// A file that is open in a store, shared by its handles.
pub(crate) struct FileShared {
    pub id: u64,
    view: RwLock<View>,
}

/// Where a file is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Created in a transaction that is not committed.
    Unborn,
    /// It has a name.
    Named,
    /// Unlinked by a commit, or created by a transaction that was aborted.
    Gone,
}

pub(crate) struct View {
    /// Name in the store.
    pub path: PathBuf,
    pub life: Life,
    pub staged: Layer,
    pub committing: VecDeque<Arc<Layer>>,
    pub committed: Layer,
    pub applying: Option<Arc<Layer>>,
    /// The data file, unless it was closed to save descriptors.
    pub data: Option<Arc<dyn File>>,
    /// The data file can be written.
    pub writable: bool,
    /// Its size on disk.
    pub base_size: u64,
    /// What the data file looked like when we last wrote or opened it.
    pub seen: Option<Meta>,
    /// The attribute names this session.
    pub flagged: bool,
    /// Its name or mode, or that it exists at all, was committed since the last checkpoint.
    pub renamed: bool,
    /// A commit created it, and its attribute may not be durable yet.
    pub unmarked: bool,
    /// The last commit that touched the file, or the one that it was whole at.
    pub last: u64,
    /// A commit of it may be in the journal or not.
    pub uncertain: bool,
    /// The transaction that it takes part in.
    pub txn: Option<u64>,
    /// Why commits to it are refused.
    pub quarantine: Option<Error>,
    /// Open handles.
    pub handles: usize,
    /// Where large uncommitted changes go.
    pub spill: Option<Arc<Extent>>,
    /// Pages that were logged whole since the last cut.
    pub whole_pages: BTreeSet<u64>,
    /// Its mapping: memory is the view then.
    pub region: Option<Region>,
}

impl View {
    pub(crate) fn new(path: PathBuf, life: Life, last: u64) -> View {
        View {
            path,
            life,
            staged: Layer::default(),
            committing: VecDeque::new(),
            committed: Layer::default(),
            applying: None,
            data: None,
            writable: true,
            base_size: 0,
            seen: None,
            flagged: false,
            renamed: false,
            unmarked: false,
            last,
            uncertain: false,
            txn: None,
            quarantine: None,
            handles: 0,
            spill: None,
            whole_pages: BTreeSet::new(),
            region: None,
        }
    }

    pub(crate) fn layers(&self) -> Vec<&Layer> {
        let mut layers = Vec::with_capacity(4);
        layers.push(&self.staged);
        layers.extend(self.committing.iter().rev().map(|l| &**l));
        layers.push(&self.committed);
        layers.extend(self.applying.as_deref());
        layers.retain(|l| !l.is_empty());
        layers
    }

    pub(crate) fn size(&self) -> u64 {
        self.layers().iter().find_map(|l| l.size).unwrap_or(self.base_size)
    }

    /// The most that it is in any layer: a rollback, or a commit that fails, may bring that back.
    pub(crate) fn size_most(&self) -> u64 {
        self.layers().iter().filter_map(|l| l.size).fold(self.base_size, u64::max)
    }

    /// Something is committed that the data file does not hold yet.
    pub(crate) fn is_pending(&self) -> bool {
        !self.committed.is_empty() || self.applying.is_some() || !self.committing.is_empty()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.layers().iter().map(|l| l.memory_bytes()).sum()
    }

    /// The file can be read and changed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.life {
            Life::Gone => {
                let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
                Err(Error::io("use the unlinked file", &self.path, gone))
            }
            _ => Ok(()),
        }
    }

    /// The file can be committed by this transaction, or by itself.
    pub(crate) fn check_commit(&self, txn: Option<u64>) -> Result<()> {
        self.check_alive()?;
        if self.txn != txn {
            return Err(Error::InTransaction { path: self.path.clone() });
        }
        self.quarantine.clone().map_or(Ok(()), Err)
    }

    /// Makes the file longer, by zeros.
    fn grow(&mut self, size: u64) -> Result<()> {
        self.resize_mapped(size)?;
        fill_gap(self, size);
        self.staged.size = Some(size);
        Ok(())
    }

    /// Forgets uncommitted changes.
    pub(crate) fn forget_changes(&mut self) -> Result<()> {
        self.region = self.region.take().filter(|region| region.maps > 0);
        if self.region.is_some() {
            return self.discard_mapped();
        }
        discard(self);
        Ok(())
    }

    /// Takes the staged changes to commit them.
    pub(crate) fn take_staged(&mut self) {
        let layer = std::mem::take(&mut self.staged);
        self.spill = None;
        self.committing.push_back(Arc::new(layer));
    }

    /// The oldest commit on its way is in the journal. It may be empty, and then no record names the file.
    pub(crate) fn committed(&mut self) {
        let layer = self.committing.pop_front().expect("a commit on its way");
        if self.life == Life::Named {
            self.committed.merge(&layer);
        }
    }

    /// The n-th commit on its way did not happen. Its changes become part of the next one, or
    /// uncommitted again; those of a transaction are gone.
    pub(crate) fn uncommit(&mut self, inner: &Inner, nth: usize, forget: bool) {
        let newer = if forget { self.absorb_newer(inner) } else { Ok(()) };
        let failed = self.committing.remove(nth).expect("a commit on its way");
        if forget {
            if self.life == Life::Unborn {
                self.be_gone();
            } else if let Err(e) = newer.and(self.undo_mapped(&failed)) {
                tracing::error!(file = %self.path.display(), error = %e, "memory keeps changes that were aborted");
            }
            return;
        }
        let newer = self.committing.get_mut(nth);
        let mut merged = (*failed).clone();
        match newer {
            Some(next) => {
                merged.merge(next);
                *next = Arc::new(merged);
            }
            None => {
                merged.merge(&self.staged);
                self.staged = merged;
            }
        }
    }

    /// The oldest commit on its way may be in the journal or not: it shows, and is never applied.
    pub(crate) fn committed_perhaps(&mut self) {
        let layer = self.committing.pop_front().expect("a commit on its way");
        self.committed.merge(&layer);
        self.uncertain = true;
    }

    /// The file is no more, or never came to be.
    pub(crate) fn be_gone(&mut self) {
        self.life = Life::Gone;
        self.staged = Layer::default();
        self.committed = Layer::default();
        self.data = None;
    }
}

impl FileShared {
    pub(crate) fn new(id: u64, view: View) -> Arc<FileShared> {
        Arc::new(FileShared { id, view: RwLock::new(view) })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, View>> {
        self.view.try_write().ok()
    }

    /// A view whose data file is open, if there is one.
    fn readable(&self, inner: &Inner) -> Result<RwLockReadGuard<'_, View>> {
        loop {
            let view = self.read();
            view.check_alive()?;
            if view.data.is_some() || view.life == Life::Unborn {
                return Ok(view);
            }
            drop(view);
            inner.reopen(self)?;
        }
    }

    /// The same for changing it. A descriptor may be closed for the sake of others at any moment that
    /// nobody holds the view.
    pub(crate) fn changeable(&self, inner: &Inner) -> Result<RwLockWriteGuard<'_, View>> {
        loop {
            let view = self.write();
            if view.data.is_some() || view.life != Life::Named {
                return Ok(view);
            }
            drop(view);
            inner.reopen(self)?;
        }
    }

    pub(crate) fn read_at(&self, inner: &Inner, buf: &mut [u8], offset: u64) -> Result<usize> {
        let view = self.readable(inner)?;
        let size = view.size();
        if offset >= size {
            return Ok(0);
        }
        let n = buf.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        if let Some(region) = &view.region {
            region.read(&view, &mut buf[..n], offset)?;
            return Ok(n);
        }
        read_through(&view.layers(), view.data.as_deref(), &mut buf[..n], offset)?;
        Ok(n)
    }

    /// Changes the staged layer. `make` gets the view and returns what to return.
    pub(crate) fn change<T>(&self, make: impl FnOnce(&mut View) -> Result<T>) -> Result<T> {
        let mut view = self.write();
        view.check_alive()?;
        if !view.writable {
            return Err(Error::invalid(format!("{} cannot be written by this user", view.path.display())));
        }
        make(&mut view)
    }

    pub(crate) fn write_at(&self, inner: &Inner, bytes: &[u8], offset: Option<u64>) -> Result<u64> {
        self.change(|view| {
            let size = view.size();
            let offset = offset.unwrap_or(size);
            let range = checked_range(offset, bytes.len() as u64)?;
            if bytes.is_empty() {
                return Ok(offset);
            }
            let source = if bytes.len() as u64 > inner.options.journal.inline_bytes_max {
                let extent = spill_extent(view, inner)?;
                let (at, crc) = append_summed(&extent, bytes)?;
                Source::Extent { extent, at, origin: offset, len: bytes.len() as u64, crc }
            } else {
                Source::Bytes { bytes: Bytes::copy_from_slice(bytes), origin: offset }
            };
            let end = range.end;
            if view.region.is_some() {
                if end > size {
                    view.resize_mapped(end)?;
                }
                view.store_mapped(offset, bytes)?;
            }
            // Staged at once, also what memory has: a commit that is being made takes all of it or nothing.
            fill_gap(view, offset);
            view.staged.insert(range, source);
            if end > size {
                view.staged.size = Some(end);
            }
            bound_memory(view, inner)?;
            Ok(offset)
        })
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::invalid(format!("a size of {size} bytes is beyond the largest file")));
        }
        self.change(|view| {
            if size >= view.size() {
                return view.grow(size);
            }
            view.resize_mapped(size)?;
            view.staged.truncate(size);
            Ok(())
        })
    }

    pub(crate) fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let range = checked_range(offset, len)?;
        self.change(|view| {
            if range.is_empty() {
                return Ok(());
            }
            if range.end > view.size() {
                view.grow(range.end)?;
            }
            if kept(Care::ZeroedAtOnce) {
                view.zero_mapped(range.clone())?;
            }
            view.staged.insert(range, Source::Zero);
            Ok(())
        })
    }

    pub(crate) fn rollback(&self) -> Result<()> {
        let mut view = self.write();
        view.check_alive()?;
        if view.txn.is_some() {
            return Err(Error::InTransaction { path: view.path.clone() });
        }
        view.forget_changes()
    }
}

/// Forgets staged changes, and with them what they put beside the journal.
pub(crate) fn discard(view: &mut View) {
    view.staged = Layer::default();
    view.spill = None;
}

fn spill_extent(view: &mut View, inner: &Inner) -> Result<Arc<Extent>> {
    if let Some(extent) = &view.spill {
        return Ok(extent.clone());
    }
    let extent = inner.create_extent()?;
    view.spill = Some(extent.clone());
    Ok(extent)
}

/// Keeps the memory of uncommitted changes within bounds.
pub(crate) fn bound_memory(view: &mut View, inner: &Inner) -> Result<()> {
    let most = inner.options.journal.inline_bytes_max;
    if view.staged.memory_bytes() <= most {
        return Ok(());
    }
    spill_staged(view, inner, PAGE_BYTES)?;
    if view.staged.memory_bytes() > most { spill_staged(view, inner, 1) } else { Ok(()) }
}

/// Moves staged bytes to an extent.
pub(crate) fn spill_staged(view: &mut View, inner: &Inner, least_bytes: u64) -> Result<()> {
    let extent = spill_extent(view, inner)?;
    view.staged.spill(&extent, least_bytes)
}

/// Bytes between the old end and what comes behind it are zeros, and part of the change: where a crash
/// left newly allocated sectors with anything in them, recovery must not rely on a hole.
fn fill_gap(view: &mut View, to: u64) {
    let size = view.size();
    if to > size && kept(Care::ZeroGap) {
        view.staged.insert(size..to, Source::Zero);
    }
}

/// Option `full_page`: the n-th commit on its way as it is logged, and the pages that it logs. Of what it
/// changes, each page is whole that no record since the last cut has whole already.
pub(crate) fn with_whole_pages(view: &View, nth: usize) -> Result<(Layer, Vec<u64>)> {
    let mut layer = (*view.committing[nth]).clone();
    let older = view.committing.iter().take(nth).rev().map(|l| &**l);
    let below: Vec<&Layer> = older.chain([&view.committed]).chain(view.applying.as_deref()).collect();
    let size = layer.size.or(below.iter().find_map(|l| l.size)).unwrap_or(view.base_size);
    let mut pages = Vec::new();
    for page in changed_pages(&layer).difference(&view.whole_pages) {
        pages.push(*page);
        let start = page * PAGE_BYTES;
        let range = start..(start + PAGE_BYTES).min(size);
        if range.is_empty() || layer.covers(&range) {
            continue;
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let layers: Vec<&Layer> = std::iter::once(&layer).chain(below.iter().copied()).collect();
        read_through(&layers, view.data.as_deref(), &mut bytes, start)?;
        layer.insert(range, Source::Bytes { bytes: bytes.into(), origin: start });
    }
    Ok((layer, pages))
}

/// Pages that a layer changes, wholly or in part; of zeros, only the pages that they do not fill.
fn changed_pages(layer: &Layer) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for (range, source) in layer.ranges() {
        if *source == Source::Zero {
            let edges = [range.start, range.end].into_iter().filter(|at| at % PAGE_BYTES != 0 && *at != NO_END);
            pages.extend(edges.map(|at| at / PAGE_BYTES));
        } else {
            pages.extend(range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES));
        }
    }
    pages
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
