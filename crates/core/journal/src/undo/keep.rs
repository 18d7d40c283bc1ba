//! The owner's part: data that a held commit still needs is kept before it is overwritten, and freed afterwards.
//!
//! ```text
//! overwrite   locks listed ─▶ old state written to `undo/`, not flushed ─▶ `kept` published ─▶ overwritten
//! free        locks listed ─▶ data without a lock in its interval is removed
//! give up     `given_up` published ─▶ freed
//! ```
//!
//! Everything kept has an interval of commits for which it is the truth, and is needed as long as a lock lies in it.
//! For a range of a data file it begins with the last checkpoint that overwrote the range and kept it; 0, if none did.
//!
//! Nobody waits for readers. Kept data takes at most `space` bytes: beyond that, or when the disk is full, the oldest
//! reader is given up.

use crate::commits::overlay::Overlay;
use crate::directories::store_dir::{StoreDir, remove_tree};
use crate::error::{Context, Error, Result, is_no_space};
use crate::format::{Header, StoreId};
use crate::invariant;
use crate::undo::holds::Holds;
use crate::undo::index::{Entry, Inode, NAMES_DIR, Old, index_name, link_name, old_bytes_name, read_entries};
use crate::undo::kept::{Kept, Link, OldBytes, damaged};
use crate::undo::kept_links::KeptLinks;
use crate::undo::page::{Cell, OwnersPage, Published, end_chain};
use crate::undo::taken_over::taken_over;
use parking_lot::Mutex;
use std::collections::btree_map;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{File, Open, Storage, holds, read_full_at, write_all_at};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// An index of fewer bytes is not worth writing anew, unless it takes an eighth of the limit.
const INDEX_BYTES_MIN: u64 = 1 << 20;

/// The data that an owner keeps for readers of older commits.
pub struct Undo {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) dir: PathBuf,
    pub(super) page: OwnersPage,
    /// Limit for everything that is kept, in bytes.
    space: u64,
    pub(super) kept: Mutex<Kept>,
}

/// The part of an open store.
#[cfg(feature = "readers")]
pub type UndoHandle = Arc<Undo>;

/// Without the feature `readers` no store has that part, and the compiler leaves out the code for it.
#[cfg(not(feature = "readers"))]
#[derive(Clone)]
pub enum UndoHandle {}

#[cfg(not(feature = "readers"))]
impl std::ops::Deref for UndoHandle {
    type Target = Undo;
    fn deref(&self) -> &Undo {
        match *self {}
    }
}

impl Undo {
    /// The part of a store that is being opened, as [`Undo::open`] has it. Without the feature `readers` everything that
    /// readers hold ends, and there is none.
    #[cfg_attr(not(feature = "readers"), allow(unused_variables))]
    pub(crate) fn of_store(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        store: StoreId,
        last_lsn: u64,
        space: u64,
    ) -> Result<Option<UndoHandle>> {
        #[cfg(feature = "readers")]
        return Undo::open(storage, store_dir, store, last_lsn, space).map(|undo| Some(Arc::new(undo)));
        #[cfg(not(feature = "readers"))]
        return Undo::end(&**storage, store_dir).map(|()| None);
    }

    /// Takes over the data that an earlier owner of this boot kept, or begins anew. The log ends with this commit;
    /// nothing has been changed since the earlier owner ended.
    pub fn open(
        storage: &Arc<dyn Storage>,
        store_dir: &StoreDir,
        store: StoreId,
        last_lsn: u64,
        space: u64,
    ) -> Result<Undo> {
        let dir = store_dir.undo();
        let continued = match holds(invariant::CHAIN_CONTINUED) {
            true => OwnersPage::continued(&**storage, store_dir, store, last_lsn)?,
            false => None,
        };
        let (page, kept) = match continued {
            Some(page) => {
                let kept = taken_over(&**storage, &dir, Published::of(page.told(Cell::Kept)))?;
                (page, kept)
            }
            None => {
                let before = OwnersPage::continued(&**storage, store_dir, store, u64::MAX)?;
                if before.is_some() {
                    // An older journal was put back: readers hold commits that it does not have.
                    end_chain(&**storage, store_dir)?;
                }
                remove_tree(&**storage, &dir)?;
                let page = OwnersPage::begin(&**storage, store_dir, store, last_lsn)?;
                let published = Published::of(page.told(Cell::Kept));
                (page, Kept::new(published))
            }
        };
        page.raise(Cell::Durable, last_lsn)?;
        Ok(Undo { storage: storage.clone(), dir, page, space, kept: Mutex::new(kept) })
    }

    /// Ends everything that readers hold, because later changes are not shown to them.
    pub fn end(storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
        end_chain(storage, store_dir)?;
        remove_tree(storage, &store_dir.undo())
    }

    /// The page.
    pub fn page(&self) -> &OwnersPage {
        &self.page
    }

    /// How many names in the undo directory each file has.
    pub fn links(&self) -> KeptLinks {
        self.kept.lock().own_links.clone()
    }

    /// Bytes that are kept for readers.
    pub fn bytes(&self) -> u64 {
        let kept = self.kept.lock();
        if kept.is_empty() { kept.log_bytes } else { kept.bytes() }
    }

    /// Keeps the contents of a data file which this overlay is about to overwrite, if somebody holds a commit before
    /// `to` that needs them.
    ///
    /// # Errors
    /// The page cannot be written, so the file must not be written either.
    pub fn keep_contents(&self, data: &dyn File, overlay: &Overlay, to: u64, path: &Path) -> Result<()> {
        // Readers that come from now on show this commit or a later one.
        if holds(invariant::CHECKPOINT_PUBLISHED) {
            self.page.raise(Cell::Durable, to)?;
        }
        if overlay.is_empty() || !self.page.is_held_before(to) || !holds(invariant::OLD_BYTES_KEPT) {
            return Ok(());
        }
        let meta = data.meta().context("look at", path)?;
        let inode = (meta.device, meta.inode);
        let size = overlay.size.unwrap_or(meta.size);
        let mut ranges: rangemap::RangeSet<u64> = rangemap::RangeSet::new();
        let changed = overlay.ranges().map(|(range, _)| range.start..range.end.min(meta.size));
        changed
            .chain(std::iter::once(size..meta.size))
            .filter(|range| !range.is_empty())
            .for_each(|range| ranges.insert(range));
        let mut kept = self.kept.lock();
        loop {
            let held = self.page.holds()?;
            let needed = kept.needed(inode, &ranges, to, &held);
            let bytes: u64 = needed.iter().map(|(range, _)| range.end - range.start).sum();
            let from = kept.lengths.get(&inode).copied().unwrap_or(0);
            let length = held.any_in(from..to).then_some(from);
            if needed.is_empty() && length.is_none() {
                return Ok(());
            }
            if kept.bytes() + bytes > self.space {
                // Some kept data may be needed by nobody any more.
                self.try_free(&mut kept);
            }
            if kept.bytes() + bytes > self.space {
                self.give_up_oldest(&mut kept, &held)?;
                continue;
            }
            let mut entries = Vec::new();
            entries.extend(
                length.map(|from| Entry { commits: from..to, old: Old::Length { file: inode, len: meta.size } }),
            );
            match self.copy_old(&mut kept, data, inode, &needed, to, &mut entries) {
                Ok(()) => {}
                Err(e) if is_no_space(&e) => {
                    self.give_up_oldest(&mut kept, &held)?;
                    continue;
                }
                Err(e) => {
                    // Data that cannot be read cannot be kept.
                    tracing::warn!(
                        id = "untorn.snapshot.contents_ended",
                        file = %path.display(), error = %e, "a snapshot of older contents ends"
                    );
                    self.give_up_oldest(&mut kept, &held)?;
                    continue;
                }
            }
            if self.publish(&mut kept, &held, &entries)? {
                for (range, _) in needed {
                    kept.ranges.entry(inode).or_default().insert(range, to);
                }
                if length.is_some() {
                    kept.lengths.insert(inode, to);
                    // Readers of these commits need nothing beyond that length.
                    kept.ranges.entry(inode).or_default().insert(meta.size..u64::MAX, to);
                }
                return Ok(());
            }
        }
    }

    /// Copies old bytes behind those that are kept of their intervals.
    fn copy_old(
        &self,
        kept: &mut Kept,
        data: &dyn File,
        inode: Inode,
        needed: &[(Range<u64>, u64)],
        to: u64,
        entries: &mut Vec<Entry>,
    ) -> io::Result<()> {
        // Single reads of cold ranges would take a time of the disk each.
        needed.iter().for_each(|(range, _)| data.begin_read(range.clone()));
        let mut chunk = Vec::new();
        for (range, from) in needed {
            let commits = *from..to;
            let old = self.old_bytes(kept, &commits)?;
            let at = old.bytes;
            let mut done = 0;
            while range.start + done < range.end {
                let n = COPY_BYTES.min((range.end - range.start - done) as usize);
                chunk.resize(n, 0);
                let got = read_full_at(data, &mut chunk, range.start + done)?;
                chunk[got..].fill(0);
                write_all_at(&*old.file, &chunk, at + done)?;
                done += n as u64;
            }
            old.bytes += done;
            entries.push(Entry { commits, old: Old::Bytes { file: inode, range: range.clone(), at } });
        }
        Ok(())
    }

    fn old_bytes<'k>(&self, kept: &'k mut Kept, commits: &Range<u64>) -> io::Result<&'k mut OldBytes> {
        match kept.old_bytes.entry((commits.start, commits.end)) {
            btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            btree_map::Entry::Vacant(new) => {
                let file = self.make(&self.dir.join(old_bytes_name(commits)))?;
                Ok(new.insert(OldBytes { file, bytes: 0 }))
            }
        }
    }

    /// Makes a file in the undo directory, whose users are those of the store.
    fn make(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let create = || self.storage.open(path, Open::create(0o600).shown());
        match create() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.make_dir(&self.dir)?;
                create()
            }
            // Left by an owner that was killed before it published an entry of it.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.storage.unlink(path)?;
                create()
            }
            done => done,
        }
    }

    pub(super) fn names(&self) -> PathBuf {
        self.dir.join(NAMES_DIR)
    }

    pub(super) fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let own = self.dir.parent().map_or(Ok(0o700), |dir| self.storage.stat(dir).map(|meta| meta.mode))?;
        match self.storage.mkdir(dir, own) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    /// Appends entries to the index, and publishes them. Returns false if the index could not be written, and a reader
    /// was given up.
    pub(super) fn publish(&self, kept: &mut Kept, held: &Holds, entries: &[Entry]) -> Result<bool> {
        if entries.is_empty() {
            return Ok(true);
        }
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut encoded));
        let path = self.dir.join(index_name(kept.published.generation));
        let index = match &kept.index {
            Some(index) => Ok(index.clone()),
            None => self.make(&path),
        };
        let written = index.and_then(|index| {
            write_all_at(&*index, &encoded, kept.published.bytes)?;
            Ok(index)
        });
        let index = match written {
            Ok(index) => index,
            Err(e) => {
                if !is_no_space(&e) {
                    tracing::warn!(
                        id = "untorn.snapshot.commit_ended",
                        file = %path.display(), error = %e, "a snapshot of an older commit ends"
                    );
                }
                self.give_up_oldest(kept, held)?;
                return Ok(false);
            }
        };
        kept.index = Some(index);
        kept.published.bytes += encoded.len() as u64;
        for entry in entries {
            if !matches!(entry.old, Old::Bytes { .. }) {
                kept.intervals.insert((entry.commits.start, entry.commits.end));
            }
        }
        if holds(invariant::KEPT_PUBLISHED) {
            self.page.raise(Cell::Kept, kept.published.number())?;
        }
        Ok(true)
    }

    /// Keeps the header of the journal before another one truncates the log, for commits from its checkpoint on up to
    /// the published one. So a reader finds the log as it was, with changes that the checkpoint left out.
    pub fn keep_header(&self, header: &Header) -> Result<()> {
        let commits = header.checkpoint_lsn..self.page.told(Cell::Durable);
        if !holds(invariant::HEADER_KEPT) || !self.page.is_held_before(commits.end) {
            return Ok(());
        }
        let mut kept = self.kept.lock();
        loop {
            let held = self.page.holds()?;
            if !held.any_in(commits.clone()) {
                return Ok(());
            }
            let entry = Entry { commits: commits.clone(), old: Old::Header(Box::new(header.clone())) };
            if self.publish(&mut kept, &held, &[entry])? {
                return Ok(());
            }
        }
    }

    /// Notes that the names of commits up to this one are on the disk.
    pub fn tell_named(&self, lsn: u64) {
        // A next owner that does not learn this keeps the same names again.
        let _ = self.page.raise(Cell::Named, lsn);
    }

    /// Whether a part of the log that a truncation has given up is still needed: somebody holds one of the commits
    /// from its first one to the one that was published at the truncation, or follows the log and lacks its last one.
    pub fn needs_log(&self, commits: &Range<u64>, last: u64, held: &Holds) -> bool {
        let is_followed = || self.page.oldest_follower().is_some_and(|has| has < last);
        holds(invariant::SEGMENTS_KEPT) && (held.any_in(commits.clone()) || is_followed())
    }

    /// Notes how many bytes of the log are kept. Beyond the limit, the oldest reader is given up; true if one was, so
    /// that a part of the log has to be freed.
    pub fn note_log(&self, bytes: u64) -> Result<bool> {
        let mut kept = self.kept.lock();
        kept.log_bytes = bytes;
        if kept.bytes() <= self.space {
            return Ok(false);
        }
        let held = self.page.holds()?;
        self.give_up_oldest(&mut kept, &held)
    }

    /// Whether this many bytes of the log may be kept.
    pub fn has_room(&self, bytes: u64) -> bool {
        let kept = self.kept.lock();
        kept.bytes() - kept.log_bytes + bytes <= self.space
    }

    /// Gives up the oldest reader, because the disk or the store needs its space. Returns false if there is
    /// no such reader.
    pub fn give_up_one(&self) -> Result<bool> {
        let mut kept = self.kept.lock();
        let held = self.page.holds()?;
        self.give_up_oldest(&mut kept, &held)
    }

    /// Gives up the snapshots of the published commit, too, because a commit finds no room on the disk. Until the next
    /// commit nobody can take a snapshot.
    pub fn give_up_published(&self) -> Result<()> {
        let mut kept = self.kept.lock();
        self.page.raise(Cell::GivenUp, self.page.told(Cell::Durable) + 1)?;
        self.free_in(&mut kept)
    }

    /// Gives up the oldest reader. A reader that was stopped while it took its snapshot holds everything from some
    /// commit on, so it is given up as far as commits are published. Snapshots of the published commit are never given
    /// up. False if there is no other one.
    fn give_up_oldest(&self, kept: &mut Kept, held: &Holds) -> Result<bool> {
        let durable = self.page.told(Cell::Durable);
        let Some(oldest) = held.oldest_range().filter(|oldest| oldest.start < durable) else { return Ok(false) };
        self.page.raise(Cell::GivenUp, oldest.end.min(durable))?;
        self.try_free(kept);
        Ok(true)
    }

    /// Frees data, or leaves it for the next time: nothing else depends on it.
    fn try_free(&self, kept: &mut Kept) {
        if let Err(e) = self.free_in(kept) {
            tracing::warn!(
                id = "untorn.readers.old_data_stays",
                dir = %self.dir.display(), error = %e, "old data of readers that have ended stays"
            );
        }
    }

    /// Frees data that nobody needs any more. Returns whether something is left.
    pub fn free(&self) -> Result<bool> {
        let mut kept = self.kept.lock();
        if !kept.is_empty() || kept.has_dir {
            self.free_in(&mut kept)?;
        }
        Ok(!kept.is_empty())
    }

    fn free_in(&self, kept: &mut Kept) -> Result<()> {
        let held = self.page.holds()?;
        let is_needed = |commits: Range<u64>| {
            if holds(invariant::WHOLE_INTERVAL) {
                held.any_in(commits)
            } else {
                held.any_in(commits.end - 1..commits.end)
            }
        };
        let unneeded: Vec<_> = kept.old_bytes.keys().copied().filter(|(from, to)| !is_needed(*from..*to)).collect();
        for (from, to) in unneeded {
            kept.old_bytes.remove(&(from, to));
            self.remove(old_bytes_name(&(from..to)))?;
        }
        let unneeded: Vec<_> =
            kept.links.iter().filter(|(_, link)| !is_needed(link.commits.clone())).map(|(n, _)| *n).collect();
        for link in unneeded {
            self.remove(Path::new(NAMES_DIR).join(link_name(link)))?;
            let Link { file, .. } = kept.links.remove(&link).expect("listed above");
            kept.own_links.remove(file.0, file.1);
        }
        kept.intervals.retain(|(from, to)| is_needed(*from..*to));
        let Kept { links, own_links, .. } = &mut *kept;
        for (number, link) in links {
            // Only a file that has lost its own name takes space for readers.
            let found = self.storage.stat(&self.names().join(link_name(*number)));
            link.bytes = found.map_or(0, |meta| if own_links.own_links(&meta) == 0 { meta.size } else { 0 });
        }
        if kept.is_empty() {
            self.begin_index(kept, &[])?;
            // Empty directories do no harm.
            let _ = self.storage.rmdir(&self.names());
            let _ = self.storage.rmdir(&self.dir);
            kept.has_dir = false;
            return Ok(());
        }
        kept.has_dir = true;
        // Entries of intervals that nobody holds are passed over by each reader.
        if kept.published.bytes >= INDEX_BYTES_MIN.min(self.space / 8) {
            let old = self.read_index(kept)?;
            let mut needed = Vec::new();
            let mut bytes = 0;
            for entry in old.into_iter().filter(|entry| is_needed(entry.commits.clone())) {
                let before = needed.len();
                entry.encode(&mut needed);
                bytes += needed.len() - before;
            }
            if (bytes as u64) < kept.published.bytes / 2 {
                return self.begin_index(kept, &needed);
            }
        }
        Ok(())
    }

    fn read_index(&self, kept: &Kept) -> Result<Vec<Entry>> {
        let path = self.dir.join(index_name(kept.published.generation));
        let Some(index) = &kept.index else { return Ok(Vec::new()) };
        let mut b = vec![0; kept.published.bytes as usize];
        if read_full_at(&**index, &mut b, 0).context("read", &path)? < b.len() {
            return Err(damaged(&path));
        }
        let mut entries = Vec::new();
        read_entries(&b, &path, |entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Publishes another index, with these entries, in the place of the present one.
    fn begin_index(&self, kept: &mut Kept, entries: &[u8]) -> Result<()> {
        let before = kept.published;
        if before.bytes == 0 {
            return Ok(());
        }
        let next = Published { generation: before.generation + 1, bytes: entries.len() as u64 };
        let mut index = None;
        if !entries.is_empty() {
            let path = self.dir.join(index_name(next.generation));
            let made = self.make(&path).and_then(|file| write_all_at(&*file, entries, 0).map(|()| file));
            match made {
                Ok(file) => index = Some(file),
                // The present one serves as well.
                Err(_) => {
                    let _ = self.storage.unlink(&path);
                    return Ok(());
                }
            }
        }
        self.page.raise(Cell::Kept, next.number())?;
        (kept.published, kept.index) = (next, index);
        if entries.is_empty() {
            kept.ranges.clear();
            kept.lengths.clear();
            kept.names.clear();
        }
        self.remove(index_name(before.generation))
    }

    fn remove(&self, name: impl AsRef<Path>) -> Result<()> {
        let path = self.dir.join(name);
        match self.storage.unlink(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, e)),
            _ => Ok(()),
        }
    }
}
