//! Resumes a tree after the process that served it was killed: loads the store, and redoes that process's handover log.
//!
//! The table names the commit that it is as of. Rows that the log has from before that commit are in the table, and
//! contents that such a commit included are in place; everything later is redone in its order, commits included.

pub(crate) mod continuation;

use crate::handover::Continuation;
use crate::handover::log::{HandoverLog, Item, Items, State};
use crate::interface::clock::Clock;
use crate::interface::file_tree::{Errno, Ino, Kind, ROOT, Request};
use crate::table::inode::{Inode, Uncommitted};
use crate::table::row::{Key, Row};
use crate::tree::core::{Core, Txn, is_final};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::{Error, Store};

/// The largest frame: a write and the rows that it changes.
const FRAME_MAX: u64 = 1 << 30;

fn lost(detail: &str) -> Error {
    Error::Corrupt {
        path: PathBuf::from("the log of the process that was killed"),
        detail: detail.to_owned(),
        advice: "The store has the last commits: unmount what is left, and mount it again.",
    }
}

fn unreadable(e: io::Error) -> Error {
    lost(&format!("it cannot be read ({e})"))
}

fn failed(Errno(e): Errno) -> Error {
    lost(&format!("it cannot be followed: {}", io::Error::from_raw_os_error(e)))
}

/// Reads the frames of a log, one after the other.
struct Frames<'a> {
    kept: &'a dyn HandoverLog,
    at: u64,
    end: u64,
    bytes: Vec<u8>,
}

impl<'a> Frames<'a> {
    fn of(kept: &'a dyn HandoverLog) -> untorn::Result<Frames<'a>> {
        Ok(Frames { kept, at: 0, end: kept.len().map_err(unreadable)?, bytes: Vec::new() })
    }

    /// The next frame. An incomplete frame at the end, which the process was writing when it was killed, counts as not
    /// written.
    fn next(&mut self) -> untorn::Result<Option<&[u8]>> {
        let mut len = [0; 8];
        if self.at + 8 > self.end {
            return Ok(None);
        }
        self.kept.read_at(&mut len, self.at).map_err(unreadable)?;
        let len = u64::from_le_bytes(len);
        if len > FRAME_MAX {
            return Err(lost("it has no frame where one should be"));
        }
        if self.at + 8 + len > self.end {
            return Ok(None);
        }
        self.bytes.resize(len as usize, 0);
        self.kept.read_at(&mut self.bytes, self.at + 8).map_err(unreadable)?;
        self.at += 8 + len;
        Ok(Some(&self.bytes))
    }
}

/// Completed steps and given inodes of requests that may not have been answered.
#[derive(Default)]
struct Unanswered {
    happened: HashMap<u64, Vec<Ino>>,
    given: HashMap<u64, Vec<Ino>>,
}

/// The part of the log that the store's commits include.
#[derive(Default)]
struct Included {
    /// The table has the rows of the frames up to and including this one.
    rows: usize,
    /// For each file, the contents of the frames up to and including this one are in place.
    contents: HashMap<Ino, usize>,
    void: HashSet<u64>,
    /// End of the last complete frame.
    end: u64,
}

impl Included {
    fn of(kept: &dyn HandoverLog, core: &Core) -> untorn::Result<(Included, u64)> {
        let (commit, owner) = (core.numbers.commit, core.numbers.owner);
        let mut included = Included::default();
        let (mut own, mut commits) = (None, Vec::new());
        let (mut frames, mut n) = (Frames::of(kept)?, 0);
        while let Some(frame) = frames.next()? {
            n += 1;
            let mut items = Items(frame);
            while let Some(item) = items.next() {
                match item {
                    Item::Begin { commit: base, owner: base_owner, own: of_log } => {
                        if owner != of_log && (owner, commit) != (base_owner, base) {
                            return Err(lost("another program has used the store since the log was written"));
                        }
                        own = Some(of_log);
                    }
                    Item::Commit { number, inos } if number <= commit => commits.push((n, number, inos)),
                    Item::Void { number } => {
                        included.void.insert(number);
                    }
                    _ => {}
                }
            }
            if !items.0.is_empty() {
                return Err(lost("it has an invalid frame"));
            }
        }
        included.end = frames.at;
        for (n, number, inos) in commits {
            if !included.void.contains(&number) {
                included.rows = n;
                included.contents.extend(inos.into_iter().map(|ino| (ino, n)));
            }
        }
        Ok((included, own.ok_or_else(|| lost("its beginning is missing"))?))
    }
}

impl Core {
    /// Opens a tree as [`Core::open`] does, and logs uncommitted changes from now on.
    ///
    /// If there is a log, the tree continues in the state in which the process that wrote the log left it.
    pub fn open_kept(
        store: Store,
        clock: Arc<dyn Clock>,
        owner: Request,
        small_max: usize,
        kept: Option<Arc<dyn HandoverLog>>,
    ) -> untorn::Result<Core> {
        let Some(kept) = kept else { return Core::open(store, clock, owner, small_max, false) };
        let resumes = kept.len().map_err(unreadable)? > 0;
        let mut core = Core::open(store, clock, owner, small_max, resumes)?;
        let continuation = if resumes {
            let (included, own) = Included::of(&*kept, &core)?;
            let Unanswered { happened, given } = core.follow(&*kept, &included)?;
            // An incomplete frame is removed, so that new frames can be appended.
            kept.cut(included.end).map_err(unreadable)?;
            Continuation { happened_before: happened, given_before: given, ..Continuation::new(kept, own) }
        } else {
            let mut own = [0; 8];
            let _ = rustix::rand::getrandom(&mut own, rustix::rand::GetRandomFlags::empty());
            Continuation::new(kept, u64::from_le_bytes(own))
        };
        core.numbers.owner = continuation.own();
        core.continuation = Some(continuation);
        core.begin_log();
        Ok(core)
    }

    fn follow(&mut self, kept: &dyn HandoverLog, included: &Included) -> untorn::Result<Unanswered> {
        let mut unanswered = Unanswered::default();
        let mut last = self.numbers.commit;
        // The opening has removed the objects of inodes that no commit includes.
        let known = self.numbers.next;
        let (mut frames, mut n) = (Frames::of(kept)?, 0);
        while let Some(frame) = frames.next()? {
            n += 1;
            let mut items = Items(frame);
            while let Some(item) = items.next() {
                let rows = n > included.rows;
                let contents = |ino: &Ino| included.contents.get(ino).is_none_or(|of| n > *of);
                match item {
                    Item::Begin { own, .. } => self.numbers.owner = own,
                    Item::Numbers { next, .. } => self.make_room_for(next.saturating_sub(1)).map_err(failed)?,
                    Item::Row(row) if rows => self.follow_row(row).map_err(failed)?,
                    Item::Gone(key) if rows => self.follow_removal(key),
                    Item::Doomed(ino) if rows && ino < known => {
                        self.doomed.insert(ino);
                    }
                    Item::State(state) => {
                        let contents = contents(&state.ino);
                        self.follow_state(state, contents);
                    }
                    Item::Data { ino, offset, bytes } if contents(&ino) && self.inodes.contains_key(&ino) => {
                        self.write_bytes(ino, offset, bytes).map_err(failed)?;
                        if let Some(inode) = self.inodes.get_mut(&ino) {
                            inode.staged.insert(offset..offset + bytes.len() as u64, true);
                        }
                    }
                    Item::Zeros { ino, offset, len } if contents(&ino) && self.inodes.contains_key(&ino) => {
                        self.zero_bytes(ino, offset, len).map_err(failed)?;
                        if let Some(inode) = self.inodes.get_mut(&ino) {
                            inode.staged.insert(offset..offset + len, false);
                        }
                    }
                    Item::Length { ino, len } if contents(&ino) && self.inodes.contains_key(&ino) => {
                        self.cut_bytes(ino, len).map_err(failed)?;
                        if let Some(inode) = self.inodes.get_mut(&ino) {
                            inode.cut = Some(inode.cut.map_or(len, |cut| cut.min(len)));
                            inode.staged.remove(len..u64::MAX);
                        }
                    }
                    Item::Commit { number, inos } => {
                        if !included.void.contains(&number) {
                            self.follow_commit(number, &inos, last)?;
                        }
                        last = last.max(number);
                    }
                    Item::Deferred(ino) => self.defer(&[ino]),
                    Item::RolledBack(ino) if contents(&ino) => self.give_up_bytes(ino)?,
                    Item::Begun { number, owner, keeps, left } => {
                        let txn = self.txns.entry(number);
                        let txn = txn.or_insert(Txn { owner, keeps, left, resumed: true, files: BTreeSet::new() });
                        (txn.keeps, txn.left) = (keeps, left);
                    }
                    Item::Ended(number) => drop(self.txns.remove(&number)),
                    Item::Happened { unique, ino } => unanswered.happened.entry(unique).or_default().push(ino),
                    Item::Given { unique, ino } => unanswered.given.entry(unique).or_default().push(ino),
                    Item::TakenBack { unique } => drop(unanswered.given.remove(&unique)),
                    _ => {}
                }
            }
        }
        self.numbers.commit = last;
        Ok(unanswered)
    }

    /// Redoes a commit, unless the store has it: it has those up to `last`.
    fn follow_commit(&mut self, number: u64, inos: &[Ino], last: u64) -> untorn::Result<()> {
        if number <= last {
            self.clear_deferred();
            return Ok(());
        }
        self.numbers.commit = number.wrapping_sub(1);
        // The files of transactions are still in them.
        self.committing = inos.iter().filter_map(|ino| self.inodes.get(ino)?.txn).collect();
        // An earlier commit that found no room is part of this one, whose rows include its names.
        debug_assert!(!self.waits, "somebody waits for commit {number}, which a killed process made");
        let submitted = self.submit(&self.with_deferred(inos));
        self.committing.clear();
        match submitted {
            // On a full disk the next commit includes it. Nobody was told that it is durable.
            Err(e) if !is_final(&e) => {
                self.defer(inos);
                Ok(())
            }
            done => done,
        }
    }

    /// Reserves numbers, because those up to this one were given.
    fn make_room_for(&mut self, ino: Ino) -> crate::interface::file_tree::Result<()> {
        while self.numbers.limit <= ino {
            self.reserve()?;
        }
        self.numbers.next = self.numbers.next.max(ino + 1);
        debug_assert!(self.numbers.next <= self.numbers.limit, "numbers {:?} after inode {ino}", self.numbers);
        Ok(())
    }

    fn follow_row(&mut self, row: Row) -> crate::interface::file_tree::Result<()> {
        let key = row.key();
        match row {
            Row::Inode(ino, mut row) => {
                self.make_room_for(ino)?;
                if row.kind == Kind::Directory {
                    self.dirs.entry(ino).or_default();
                }
                // The object is made when bytes for it follow, and an extent is given when a commit includes bytes.
                let before = self.inodes.get(&ino).map(|inode| &inode.row);
                (row.object, row.extent) = before.map_or((false, None), |row| (row.object, row.extent));
                match self.inodes.get_mut(&ino) {
                    Some(inode) => inode.row = row,
                    None => drop(self.inodes.insert(ino, Inode::new(row))),
                }
            }
            Row::Name { dir, name, cookie, ino } => {
                if let Some(names) = self.dirs.get_mut(&dir) {
                    names.remove(&name);
                    names.restore(name, ino, cookie);
                }
                if let Some(inode) = self.inodes.get_mut(&ino)
                    && inode.is_dir()
                    && ino != ROOT
                {
                    inode.parent = dir;
                }
            }
            Row::Xattr { ino, name, value } => {
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.xattrs.insert(name, value);
                }
            }
        }
        self.mark(key);
        Ok(())
    }

    fn follow_removal(&mut self, key: Key) {
        match &key {
            Key::Inode(ino) => {
                if let Some(inode) = self.inodes.remove(ino) {
                    if let Some(object) = &inode.object {
                        let _ = object.rollback();
                    }
                    self.doom_bytes(*ino, &inode);
                    if let Some(txn) = inode.txn.and_then(|txn| self.txns.get_mut(&txn)) {
                        txn.files.remove(ino);
                    }
                }
                self.dirs.remove(ino);
                self.changed.remove(ino);
                self.open_for_writing.remove(ino);
            }
            Key::Name(dir, name) => {
                if let Some(names) = self.dirs.get_mut(dir) {
                    names.remove(name);
                }
            }
            Key::Xattr(ino, name) => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.xattrs.remove(name);
                }
            }
        }
        self.mark(key);
    }

    fn follow_state(&mut self, state: State, contents: bool) {
        let since = self.clock.elapsed();
        let Some(inode) = self.inodes.get_mut(&state.ino) else { return };
        (inode.known, inode.openings, inode.writers) = (state.known, state.openings, state.writers);
        inode.poisoned = state.poisoned;
        inode.lost = state.lost.iter().filter(|(start, end)| start < end).map(|(start, end)| *start..*end).collect();
        // It is unknown whether the kernel has reported these failed writes. If it has not, the next write-back does.
        inode.is_untold = !inode.lost.is_empty();
        let before = std::mem::replace(&mut inode.txn, state.txn);
        if contents {
            inode.uncommitted = state.uncommitted.map(|(size, kept, [atime, mtime, ctime])| Uncommitted {
                size,
                atime,
                mtime,
                ctime,
                kept,
                since,
                first: since,
            });
        }
        let (is_changed, is_open) = (inode.uncommitted.is_some() || inode.is_poisoned(), inode.writers > 0);
        match is_changed {
            true => self.changed.insert(state.ino),
            false => self.changed.remove(&state.ino),
        };
        if before != state.txn {
            if let Some(txn) = before.and_then(|txn| self.txns.get_mut(&txn)) {
                txn.files.remove(&state.ino);
            }
            if let Some(txn) = state.txn.and_then(|txn| self.txns.get_mut(&txn)) {
                txn.files.insert(state.ino);
            }
        }
        match is_open {
            true => self.open_for_writing.insert(state.ino),
            false => self.open_for_writing.remove(&state.ino),
        };
    }
}
