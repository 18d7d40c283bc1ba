//! The operations on a mapped file: ordinary stores, and commits, rollbacks and drops of them.

use crate::programs::differences::difference;
use crate::programs::program::{Journal, Op};
use crate::programs::reference_model::{Change, Node};
use crate::programs::runner::{Mapped, Runner, Step, wrong};
use std::path::{Path, PathBuf};
use untorn::{Error, MapOptions, Store, TrackerKind};

/// A block of the file, around the end of which operations store.
const BLOCK_BYTES: u64 = 4096;
/// The address space of a mapped file: more than programs use.
const ADDRESS_SPACE: u64 = 1 << 20;

impl Runner<'_> {
    pub(crate) fn on_mapped(&mut self, store: &Store, op: Op) -> Step<()> {
        if op == Op::Unmap {
            return match self.mapped.take().map(|mapped| mapped.map.unmap()) {
                Some(Err(e)) => self.refused("unmapping", &e),
                _ => Ok(()),
            };
        }
        if op == Op::Told
            && !std::mem::replace(&mut self.told, true)
            && let Some(Err(e)) = self.mapped.take().map(|mapped| mapped.map.unmap())
        {
            return self.refused("unmapping", &e);
        }
        if self.mapped.is_none() && !self.map(store)? {
            return Ok(());
        }
        let size = self.contents()?.len() as u64;
        match op {
            Op::Line => self.store(10, 5)?,
            Op::Lines => self.store(60, 100)?,
            Op::Pages => self.store(BLOCK_BYTES - 6, 20)?,
            Op::End => self.store(size.saturating_sub(4), 12)?,
            Op::Poke => return self.store(BLOCK_BYTES - 100, 200),
            Op::Back => self.store_back()?,
            Op::Later => {
                self.store(300, 70)?;
                let number = self.submit(self.changes_of(&[self.mapped().name.clone()]));
                return match self.mapped().map.msync_async() {
                    Ok(ticket) => {
                        self.tickets.push((ticket, number));
                        Ok(())
                    }
                    Err(e) => self.take_result(number, Err(e)).map(drop),
                };
            }
            Op::Undo => {
                let (undone, name) = (self.mapped().map.rollback(), self.mapped().name.clone());
                self.forget_changes(&name);
                return undone.or_else(|e| self.undo_again("rollback", &e));
            }
            Op::Dip => {
                self.resize(size.saturating_sub(3000))?;
                self.resize(size)?;
            }
            Op::Stretch => {
                self.resize(size + 5000)?;
                return self.store(size + 4000, 1000);
            }
            Op::Clip => return self.resize(size.saturating_sub(2500)),
            Op::Txn | Op::Abort => return self.transaction(store, op == Op::Txn),
            Op::Quiesce => {
                let done = self.mapped().map.reclaim();
                return done.or_else(|e| self.refused("quiescing", &e));
            }
            _ => return Ok(()),
        }
        let number = self.submit(self.changes_of(&[self.mapped().name.clone()]));
        let result = self.mapped().map.msync();
        self.take_result(number, result).map(drop)
    }

    fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().expect("a file is mapped")
    }

    /// The options of a map: both trackers that find stores, and both settings of `quiet`, in turn; or the tracker
    /// `told`.
    fn map_options(&self) -> MapOptions {
        let tracker = match (self.told, self.setup.is_direct()) {
            (true, _) => TrackerKind::Explicit,
            (false, true) => TrackerKind::Scan,
            (false, false) => TrackerKind::PageMap,
        };
        let options = MapOptions::new().tracker(tracker).address_space(ADDRESS_SPACE);
        if self.is_quiet() { options.quiet(true).dirty_max(self.setup.page_bytes()) } else { options }
    }

    fn is_quiet(&self) -> bool {
        self.setup.journal != Journal::Roomy
    }

    /// An operation that may run a checkpoint of its own.
    pub(crate) fn may_checkpoint(&self, op: Op) -> bool {
        op == Op::Quiesce
            || (self.is_quiet() && matches!(op, Op::Line | Op::Lines | Op::Pages | Op::End | Op::Back | Op::Dip))
    }

    fn map(&mut self, store: &Store) -> Step<bool> {
        let Some(at) = self.handle(store, "a")? else { return Ok(false) };
        match self.handles[at].map_with(&self.map_options()) {
            Ok(map) => {
                self.mapped = Some(Mapped { map, name: "a".to_owned() });
                Ok(true)
            }
            Err(e) => self.refused("mapping", &e).map(|()| false),
        }
    }

    fn contents(&self) -> Step<&Vec<u8>> {
        match self.reference.now.get(Path::new(&self.mapped().name)) {
            Some(Node::File(contents, _)) => Ok(contents),
            _ => wrong("what is mapped is no file"),
        }
    }

    /// Stores as far as there are pages. Bytes behind the end of the file are lost.
    fn store(&mut self, offset: u64, len: u64) -> Step<()> {
        let pages = (self.contents()?.len() as u64).next_multiple_of(self.setup.page_bytes());
        self.serial += 1;
        let bytes =
            (0..len.min(pages.saturating_sub(offset)) as usize).map(|i| (self.serial * 16 + i * 7 % 239) as u8 | 1);
        self.store_bytes(offset, &bytes.collect::<Vec<_>>())
    }

    fn store_bytes(&mut self, offset: u64, bytes: &[u8]) -> Step<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Mapped { map, name } = self.mapped.as_ref().expect("a file is mapped");
        let at = map.as_ptr().wrapping_add(offset as usize);
        // Marked before the store, or after it. Other trackers must find the store by themselves.
        let mark = |now: bool| if self.told && now { map.mark_dirty(at, bytes.len()) } else { Ok(()) };
        let told = mark(self.serial.is_multiple_of(2));
        if let Err(e) = self.disk.store(at, bytes) {
            return if self.troubled { Ok(()) } else { wrong(format!("memory of a mapped file is gone: {e}")) };
        }
        if let Err(e) = told.and_then(|()| mark(true)) {
            return wrong(format!("a change was marked: {e}"));
        }
        if let Some(Node::File(contents, _)) = self.reference.now.get_mut(Path::new(name)) {
            let inside = bytes.len().min(contents.len().saturating_sub(offset as usize));
            contents.iter_mut().skip(offset as usize).zip(&bytes[..inside]).for_each(|(old, new)| *old = *new);
        }
        Ok(())
    }

    /// Stores the contents that the file had before its last change.
    fn store_back(&mut self) -> Step<()> {
        let name = PathBuf::from(&self.mapped().name);
        let Some(Node::File(mut old, _)) = self.reference.held_before(&name) else { return Ok(()) };
        old.truncate(self.contents()?.len());
        self.store_bytes(0, &old)
    }

    fn resize(&mut self, size: u64) -> Step<()> {
        let Mapped { map, name } = self.mapped.as_ref().expect("a file is mapped");
        if let Err(e) = map.resize(size) {
            return self.refused("resizing", &e);
        }
        if let Some(Node::File(contents, _)) = self.reference.now.get_mut(Path::new(name)) {
            contents.resize(size as usize, 0);
        }
        Ok(())
    }

    /// Changes the mapped file and a plain one in one transaction.
    fn transaction(&mut self, store: &Store, commit: bool) -> Step<()> {
        let name = self.mapped().name.clone();
        let plain = if name == "b" { "a" } else { "b" };
        let Some(at) = self.handle(store, plain)? else { return Ok(()) };
        let mut txn = store.begin();
        let added = txn.add(self.mapped().map.file()).and_then(|()| txn.add(&self.handles[at]));
        if let Err(e) = added {
            return self.refused("a transaction", &e);
        }
        self.store(BLOCK_BYTES - 30, 60)?;
        self.serial += 1;
        let bytes = [self.serial as u8 | 1; 40];
        if let Err(e) = self.handles[at].write_at(&bytes, 200) {
            return self.refused("a change", &e);
        }
        if let Some(Node::File(contents, _)) = self.reference.now.get_mut(Path::new(plain)) {
            contents.resize(contents.len().max(240), 0);
            contents[200..240].copy_from_slice(&bytes);
        }
        let names = [name, plain.to_owned()];
        if commit {
            let number = self.submit(self.changes_of(&names));
            return self.take_result(number, txn.commit()).map(drop);
        }
        let aborted: Result<(), Error> = txn.abort();
        names.iter().for_each(|name| self.forget_changes(name));
        aborted.or_else(|e| self.undo_again("aborting", &e))
    }

    /// Checks that stores that could not be undone in memory are not committed, and can be undone later.
    fn undo_again(&mut self, what: &str, e: &Error) -> Step<()> {
        self.refused(what, e)?;
        if self.mapped().map.msync().is_ok() {
            return wrong(format!("a commit went well after {what} had failed"));
        }
        self.mapped().map.rollback().or_else(|e| wrong(format!("{what} failed twice: {e}")))
    }

    /// Follows changes of names: the mapped file may have another one, or be gone.
    pub(crate) fn follow_mapped(&mut self, changes: &[Change]) {
        for change in changes {
            let Some(Mapped { name, .. }) = &mut self.mapped else { return };
            let is_it = |path: &PathBuf| path == Path::new(name.as_str());
            match change {
                Change::Rename(from, to) if is_it(from) => *name = to.to_string_lossy().into_owned(),
                Change::Rename(_, gone) | Change::Remove(gone) if is_it(gone) => self.mapped = None,
                _ => {}
            }
        }
    }

    /// Compares memory with the model, to the last byte of the last page.
    pub(crate) fn compare_memory(&self) -> Step<()> {
        let Some(Mapped { map, .. }) = &self.mapped else { return Ok(()) };
        if self.troubled {
            return Ok(());
        }
        let expected = self.contents()?;
        let mut found = vec![0; map.len() as usize];
        if let Err(e) = self.disk.load(map.as_ptr(), &mut found) {
            return wrong(format!("memory of a mapped file is gone: {e}"));
        }
        if found != *expected {
            return wrong(format!("memory: {}", difference(expected, &found)));
        }
        let end = found.len().next_multiple_of(self.setup.page_bytes() as usize);
        match self.disk.load(map.as_ptr().wrapping_add(end), &mut [0]) {
            Ok(()) => wrong("there is memory behind the last page of a mapped file"),
            Err(_) => Ok(()),
        }
    }
}
