//! Writes the handover log, from which another process continues when the process that serves the tree is killed.
//!
//! The log is not durable, and durable data does not depend on it: after a crash of the machine it is gone. It is
//! written before the operation's commit is submitted, so that no commit is ahead of it.

use crate::handover::log::{Item, State};
use crate::interface::file_tree::{Errno, Ino, Result, Transaction};
use crate::table::inode::Inode;
use crate::table::row::Key;
use crate::tree::core::{Core, Txn};
use std::cell::Cell;
use std::io;

/// A log that is longer than this, and than twice its first length, is rewritten.
const LONG: u64 = 16 << 20;
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

thread_local! {
    /// The request that this thread answers.
    static ASKED: Cell<Asked> = const { Cell::new(Asked { unique: 0, steps: 0, is_noted: false, is_repeated: false }) };
}

#[derive(Clone, Copy)]
struct Asked {
    unique: u64,
    /// Number of its completed steps.
    steps: usize,
    /// Whether something is kept in memory about the request until it is answered.
    is_noted: bool,
    /// Whether the killed process had completed the last step.
    is_repeated: bool,
}

/// Begins to answer a request, which the kernel may repeat if the process is killed.
pub fn answering(unique: u64) {
    ASKED.set(Asked { unique, steps: 0, is_noted: false, is_repeated: false });
}

/// Whether a killed process had completed the last step of the request that this thread answers.
pub fn is_repeated() -> bool {
    ASKED.get().is_repeated
}

/// Whether the tree must be told when this thread's request is answered, because a step that must not be done twice is
/// complete.
pub fn has_happened() -> bool {
    ASKED.get().is_noted
}

/// The inode of the present step of this thread's request, if the killed process had completed that step. The step must
/// not be repeated.
pub(crate) fn happened(core: &Core) -> Option<Ino> {
    let before = &core.continuation.as_ref()?.happened_before;
    let Asked { unique, steps, .. } = ASKED.get();
    let ino = *before.get(&unique)?.get(steps)?;
    ASKED.set(Asked { unique, steps: steps + 1, is_noted: true, is_repeated: true });
    Some(ino)
}

// Notes of operations.
impl Core {
    /// Notes that a row differs from the table.
    pub fn note_key(&mut self, key: &Key) {
        if let Some(continuation) = &mut self.continuation {
            continuation.keys.push(key.clone());
        }
    }

    /// Notes that the state of an inode may have changed.
    pub fn note_state(&mut self, ino: Ino) {
        if let Some(continuation) = &mut self.continuation
            && continuation.inos.last() != Some(&ino)
        {
            continuation.inos.push(ino);
        }
    }

    /// Notes that a step of this thread's request is complete, and must not be repeated with the request.
    pub fn note_happened(&mut self, ino: Ino) {
        let Asked { unique, steps, .. } = ASKED.get();
        if let Some(continuation) = &mut self.continuation
            && unique != 0
        {
            Item::Happened { unique, ino }.write(&mut continuation.items);
            continuation.happened.entry(unique).or_default().push(ino);
            ASKED.set(Asked { unique, steps: steps + 1, is_noted: true, is_repeated: false });
        }
    }

    /// Notes that the answer to this thread's request gives the kernel an inode.
    pub fn note_given(&mut self, ino: Ino) {
        let Asked { unique, steps, .. } = ASKED.get();
        if let Some(continuation) = &mut self.continuation
            && unique != 0
        {
            Item::Given { unique, ino }.write(&mut continuation.items);
            continuation.given.entry(unique).or_default().push(ino);
            ASKED.set(Asked { unique, steps, is_noted: true, is_repeated: false });
        }
    }

    /// Called before a request is answered with inodes. Takes back the counts of the inodes that the killed process was
    /// to give in its answer to the same request, because the kernel never got them.
    pub fn take_back_given(&mut self) {
        let Asked { unique, .. } = ASKED.get();
        let Some(continuation) = &mut self.continuation else { return };
        let Some(inos) = continuation.given_before.remove(&unique) else { return };
        Item::TakenBack { unique }.write(&mut continuation.items);
        for ino in inos {
            if let Ok(inode) = self.inode_mut(ino) {
                inode.known = inode.known.saturating_sub(1);
                self.reap(ino);
            }
        }
    }

    /// Forgets a request that was answered.
    pub fn forget_question(&mut self, unique: u64) {
        if let Some(continuation) = &mut self.continuation {
            continuation.happened.remove(&unique);
            continuation.happened_before.remove(&unique);
            continuation.given.remove(&unique);
        }
    }

    fn note(&mut self, item: &Item<'_>) {
        if let Some(continuation) = &mut self.continuation {
            item.write(&mut continuation.items);
        }
    }

    /// Notes that a file has fewer bytes than before.
    pub fn note_length(&mut self, ino: Ino, len: u64) {
        if self.continuation.is_none() {
            return;
        }
        self.note(&Item::Length { ino, len });
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.cut = Some(inode.cut.map_or(len, |cut| cut.min(len)));
            inode.staged.remove(len..u64::MAX);
        }
    }

    /// Notes that a range of a file's bytes is zeros.
    pub fn note_zeros(&mut self, ino: Ino, offset: u64, len: u64) {
        if self.continuation.is_none() || len == 0 {
            return;
        }
        self.note(&Item::Zeros { ino, offset, len });
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.staged.insert(offset..offset + len, false);
        }
    }

    /// Notes that a range of a file's bytes was written, with the inode's new state.
    pub fn note_data(&mut self, ino: Ino, offset: u64, bytes: &[u8]) {
        if self.continuation.is_none() || bytes.is_empty() {
            return;
        }
        self.note_rows();
        self.note(&Item::Data { ino, offset, bytes });
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.staged.insert(offset..offset + bytes.len() as u64, true);
        }
        self.append(bytes);
    }

    /// Adds the rows and states that the operation has changed so far.
    pub fn note_rows(&mut self) {
        let Some(continuation) = &mut self.continuation else { return };
        let (mut keys, mut inos) = (std::mem::take(&mut continuation.keys), std::mem::take(&mut continuation.inos));
        // An operation may name a key several times. Rows of inodes come first, because other rows refer to them.
        keys.sort_unstable();
        keys.dedup();
        inos.sort_unstable();
        inos.dedup();
        let mut items = std::mem::take(&mut continuation.items);
        for key in keys.drain(..) {
            match self.row(&key) {
                Some(row) => Item::Row(row).write(&mut items),
                None => Item::Gone(key).write(&mut items),
            }
        }
        for ino in inos.drain(..) {
            if let Some(inode) = self.inodes.get(&ino) {
                Item::State(state(ino, inode)).write(&mut items);
            }
        }
        if let Some(continuation) = &mut self.continuation {
            (continuation.keys, continuation.inos, continuation.items) = (keys, inos, items);
        }
    }

    fn append(&mut self, more: &[u8]) {
        let Some(continuation) = &mut self.continuation else { return };
        if let Err(e) = continuation.append(more) {
            tracing::error!(
                id = "untorn.tree.handover_failed",
                error = %e,
                "a process that takes over from this one will not know the uncommitted changes"
            );
            continuation.kept.give_up();
            self.continuation = None;
        }
    }

    /// Notes a commit that is about to be submitted: of all rows so far, and of the contents of these files.
    pub fn note_commit(&mut self, inos: &[Ino]) {
        if self.continuation.is_some() {
            self.note_rows();
            self.note(&Item::Commit { number: self.numbers.commit, inos: inos.to_vec() });
            self.append(&[]);
        }
    }

    /// Notes that the uncommitted contents of a file were discarded.
    pub fn note_rolled_back(&mut self, ino: Ino) {
        self.note(&Item::RolledBack(ino));
    }

    /// Notes that a transaction has begun; the states of its files name it.
    pub fn note_begun(&mut self, number: Transaction, txn: &Txn) {
        self.note(&Item::Begun { number, owner: txn.owner, keeps: txn.keeps, left: txn.left });
    }

    /// Notes that the commit of the file is deferred to the next commit.
    pub fn note_deferred(&mut self, ino: Ino) {
        self.note(&Item::Deferred(ino));
    }

    /// Notes that a transaction has ended.
    pub fn note_ended(&mut self, number: Transaction) {
        self.note(&Item::Ended(number));
    }

    /// Notes that the store refused the commit.
    pub fn note_void(&mut self) {
        self.note(&Item::Void { number: self.numbers.commit });
    }

    /// Ends the operation: appends its changes to the log, in one frame.
    pub fn end_operation(&mut self) {
        // An operation that panicked may end anywhere.
        debug_assert!(
            std::thread::panicking() || !self.waits && self.committing.is_empty() && !self.table.is_staged(),
            "an operation ends while commit {} is built",
            self.numbers.commit
        );
        let Some(continuation) = &self.continuation else { return };
        if continuation.keys.is_empty() && continuation.inos.is_empty() && continuation.items.is_empty() {
            return;
        }
        self.note_rows();
        self.append(&[]);
        let Some(continuation) = &self.continuation else { return };
        if continuation.len > LONG.max(2 * continuation.first_len) {
            self.begin_log();
        }
    }
}

fn state(ino: Ino, inode: &Inode) -> State {
    State {
        ino,
        known: inode.known,
        openings: inode.openings,
        writers: inode.writers,
        poisoned: inode.poisoned,
        lost: inode.lost.iter().map(|range| (range.start, range.end)).collect(),
        txn: inode.txn,
        uncommitted: inode.uncommitted.map(|u| (u.size, u.kept, [u.atime, u.mtime, u.ctime])),
    }
}

// A new log from the present state.
impl Core {
    /// Begins a new log in place of the last one.
    pub fn begin_log(&mut self) {
        if let Err(e) = self.try_begin_log() {
            tracing::error!(
                id = "untorn.tree.handover_failed",
                errno = e.0,
                "a process that takes over from this one will not know the uncommitted changes"
            );
            if let Some(continuation) = self.continuation.take() {
                continuation.kept.give_up();
            }
        }
    }

    fn try_begin_log(&mut self) -> Result<()> {
        // A commit on its way would be neither in the table nor in the new log.
        if self.pending.iter().any(|ticket| ticket.wait().is_err()) {
            // The old log continues until that commit can be written, or nothing can be written any more; the next try
            // comes when the log has doubled.
            if let Some(continuation) = &mut self.continuation {
                continuation.first_len = continuation.len;
            }
            return Ok(());
        }
        self.sweep();
        let lost = |e: io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO));
        let contents: u64 = self.changed.iter().filter_map(|ino| self.inodes.get(ino)).map(staged_bytes).sum();
        let Some(continuation) = &mut self.continuation else { return Ok(()) };
        debug_assert!(
            continuation.items.is_empty() && continuation.keys.is_empty() && continuation.inos.is_empty(),
            "{} bytes of an operation belong to the log before",
            continuation.items.len()
        );
        continuation.kept.begin(contents).map_err(lost)?;
        continuation.len = 0;
        let (own, numbers, of_table) = (continuation.own, self.numbers, self.table.numbers());
        let happened = continuation.happened_before.iter().chain(&continuation.happened);
        let happened: Vec<(u64, Vec<Ino>)> = happened.map(|(unique, inos)| (*unique, inos.clone())).collect();
        let given = continuation.given_before.iter().chain(&continuation.given);
        let given: Vec<(u64, Vec<Ino>)> = given.map(|(unique, inos)| (*unique, inos.clone())).collect();
        self.note(&Item::Begin { commit: of_table.commit, owner: of_table.owner, own });
        self.note(&Item::Numbers { next: numbers.next, limit: numbers.limit });
        for (unique, inos) in happened {
            inos.iter().for_each(|ino| self.note(&Item::Happened { unique, ino: *ino }));
        }
        for (unique, inos) in given {
            inos.iter().for_each(|ino| self.note(&Item::Given { unique, ino: *ino }));
        }
        for (number, txn) in self.txns.clone() {
            self.note_begun(number, &txn);
        }
        for ino in self.doomed() {
            self.note(&Item::Doomed(ino));
        }
        for ino in self.deferred() {
            self.note_deferred(ino);
        }
        for key in self.dirty_keys() {
            self.note_key(&key);
        }
        let used = |inode: &Inode| {
            inode.known > 0
                || inode.openings > 0
                || inode.is_poisoned()
                || inode.uncommitted.is_some()
                || inode.txn.is_some()
        };
        let used: Vec<Ino> = self.inodes.iter().filter(|(_, inode)| used(inode)).map(|(ino, _)| *ino).collect();
        used.into_iter().for_each(|ino| self.note_state(ino));
        self.note_rows();
        self.append(&[]);
        for ino in self.changed.clone() {
            self.log_contents(ino)?;
        }
        let Some(continuation) = &mut self.continuation else { return Err(Errno(libc::EIO)) };
        continuation.first_len = continuation.len;
        continuation.kept.finish().map_err(lost)
    }

    /// Logs the uncommitted contents of a file as they are now.
    fn log_contents(&mut self, ino: Ino) -> Result<()> {
        let Some(inode) = self.inodes.get(&ino) else { return Ok(()) };
        let (cut, staged) = (inode.cut, inode.staged.clone());
        if let Some(len) = cut {
            self.note(&Item::Length { ino, len });
        }
        let mut piece = vec![0; PIECE];
        for (range, is_data) in staged {
            if !is_data {
                self.note(&Item::Zeros { ino, offset: range.start, len: range.end - range.start });
                continue;
            }
            let mut offset = range.start;
            while offset < range.end {
                let bytes = &mut piece[..(range.end - offset).min(PIECE as u64) as usize];
                if self.read_bytes(ino, offset, bytes)? < bytes.len() {
                    return Err(Errno(libc::EIO));
                }
                self.note(&Item::Data { ino, offset, bytes });
                self.append(bytes);
                offset += bytes.len() as u64;
            }
        }
        self.append(&[]);
        Ok(())
    }
}

fn staged_bytes(inode: &Inode) -> u64 {
    inode.staged.iter().filter(|(_, is_data)| **is_data).map(|(range, _)| range.end - range.start).sum()
}
