//! A model of the rules, and of a kernel's write cache.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::common::{ME, TestClock, name};
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn_tree::*;

type File = usize;
/// Position, value and number of bytes.
pub type Write = (usize, u8, usize);
/// The opening of the transaction.
const OWNER: u64 = 7;

/// A name, and whether it is in the directory rather than in the root.
type Name = (bool, &'static str);

const NAMES: [Name; 4] = [(false, "a"), (false, "b"), (true, "a"), (true, "c")];

#[derive(Clone, Debug)]
pub enum Op {
    Create(Name, File),
    Open(File),
    Write(File, usize, u8, usize),
    /// The kernel sends its dirty pages of a file.
    Send(File),
    Release(File),
    Truncate(File, usize),
    Sync(File),
    /// The kernel's write fails in the sync.
    SyncFails(File),
    SyncNames,
    /// Seconds pass; then the timer runs.
    Tick(u64),
    Rename(Name, Name),
    Exchange(Name, Name),
    Link(Name, Name),
    Unlink(Name),
    RenameDir,
    SyncAll,
    /// A file joins the transaction, which begins if there is none.
    Join(File),
    /// The transaction continues with its files if true, else it ends.
    CommitTxn(bool),
    AbortTxn(bool),
    DissolveTxn,
}

impl Op {
    /// Whether the kernel sends writes in the middle of the operation.
    pub fn sends(&self) -> bool {
        !matches!(self, Op::Create(..) | Op::Open(_) | Op::Write(..) | Op::Unlink(_) | Op::RenameDir)
    }

    pub fn is_sync(&self) -> bool {
        matches!(self, Op::Sync(_) | Op::SyncNames | Op::SyncAll | Op::CommitTxn(_))
    }
}

#[derive(Clone, Default)]
struct Inode {
    ino: Ino,
    /// Contents that commits show.
    committed: Vec<u8>,
    /// Contents that the tree was sent.
    sent: Vec<u8>,
    /// Writes that the kernel has yet to send.
    cached: Vec<Write>,
    changed: bool,
    kept: usize,
    since: u64,
    synced: bool,
    writer: bool,
    poisoned: bool,
    in_txn: bool,
}

#[derive(Clone)]
pub struct Model {
    dir: Ino,
    dir_name: &'static str,
    names: BTreeMap<Name, File>,
    files: Vec<Inode>,
    now: u64,
    stamp: u8,
    /// With `CommitMode::Store`: the state that the last sync committed.
    round: Option<Shown>,
    txn: bool,
    /// Each file of the transaction has a transaction of its own in the tree, and they are committed together.
    pub apart: bool,
}

/// Contents by path; `None` for directories.
pub type Shown = BTreeMap<String, Option<Vec<u8>>>;

fn put(bytes: &mut Vec<u8>, (at, stamp, len): Write) {
    bytes.resize(bytes.len().max(at + len), 0);
    bytes[at..at + len].fill(stamp);
}

impl Inode {
    fn change(&mut self, first: usize, now: u64) {
        if !self.changed {
            (self.changed, self.kept, self.since) = (true, usize::MAX, now);
        }
        self.kept = self.kept.min(first);
        if !self.writer {
            self.since = now;
        }
    }

    fn send(&mut self, now: u64) {
        for write in std::mem::take(&mut self.cached) {
            self.change(write.0, now);
            put(&mut self.sent, write);
        }
    }

    fn commit(&mut self) {
        if !self.poisoned {
            self.committed = self.sent.clone();
            self.changed = false;
        }
    }
}

impl Model {
    pub fn new(dir: Ino, mode: CommitMode) -> Model {
        let (names, files) = Default::default();
        let mut model =
            Model { dir, dir_name: "d", names, files, now: 0, stamp: 0, round: None, txn: false, apart: false };
        model.round = (mode == CommitMode::Store).then(|| model.live());
        model
    }

    /// Takes the inodes of files from a model that has made them.
    pub fn learn(&mut self, from: &Model) {
        self.files.iter_mut().zip(&from.files).for_each(|(file, known)| file.ino = known.ino);
    }

    fn path(&self, (below, name): Name) -> String {
        if below { format!("/{}/{name}", self.dir_name) } else { format!("/{name}") }
    }

    fn state_of(&self, contents: impl Fn(&Inode) -> Vec<u8>) -> Shown {
        let files = self.names.iter().map(|(name, file)| (self.path(*name), Some(contents(&self.files[*file]))));
        files.chain([(format!("/{}", self.dir_name), None)]).collect()
    }

    /// The state that a commit of all names shows; in rounds, the last round's.
    pub fn state(&self) -> Shown {
        self.round.clone().unwrap_or_else(|| self.state_of(|file| file.committed.clone()))
    }

    /// The state that the tree shows now: everything that it was sent.
    pub fn live(&self) -> Shown {
        self.state_of(|file| file.sent.clone())
    }

    fn names_of(&self, file: File) -> usize {
        self.names.values().filter(|other| **other == file).count()
    }

    /// Draws an operation that is possible now.
    pub fn draw(&mut self, rng: &mut Rng) -> Op {
        loop {
            let (one, other) = (NAMES[rng.usize(..4)], NAMES[rng.usize(..4)]);
            let there = |name| self.names.contains_key(&name);
            let usable = |f: &File| self.files[*f].writer || self.names_of(*f) > 0;
            let file = rng.usize(..self.files.len().max(1));
            let is_usable = file < self.files.len() && usable(&file);
            let is_writer = is_usable && self.files[file].writer;
            self.stamp = self.stamp % 250 + 1;
            return match rng.u8(..29) {
                0..=2 if !there(one) => Op::Create(one, self.files.len()),
                3 | 4 if is_usable && !is_writer => Op::Open(file),
                5..=8 if is_writer => {
                    // Many writes append.
                    let end = self.files[file].sent.len();
                    let at = if rng.bool() { end } else { rng.usize(..=end) };
                    Op::Write(file, at, self.stamp, rng.usize(1..3000))
                }
                9 | 10 if is_writer && !self.files[file].cached.is_empty() => Op::Send(file),
                11 if is_writer => Op::Release(file),
                12 if is_usable => Op::Truncate(file, if rng.bool() { 0 } else { rng.usize(..4000) }),
                13 | 14 if is_usable => Op::Sync(file),
                15 if is_usable && rng.u8(..3) == 0 => Op::SyncFails(file),
                16 if rng.u8(..3) == 0 => Op::SyncNames,
                17 => Op::Tick(if rng.bool() { 6 } else { 31 }),
                18 | 19 if there(one) && one != other => Op::Rename(one, other),
                20 if there(one) && there(other) && one != other => Op::Exchange(one, other),
                21 if there(one) && !there(other) => Op::Link(one, other),
                22 if there(one) => Op::Unlink(one),
                23 => match rng.u8(..4) {
                    0 => Op::SyncAll,
                    1 => Op::RenameDir,
                    _ => continue,
                },
                24..=26 if is_usable => Op::Join(file),
                27 if self.txn => Op::CommitTxn(rng.bool()),
                28 if self.txn => match rng.u8(..4) {
                    0 => Op::DissolveTxn,
                    _ => Op::AbortTxn(rng.bool()),
                },
                _ => continue,
            };
        }
    }

    /// Commits everything; returns whether each write of the round succeeds.
    fn commit_round(&mut self, writes_succeed: bool) -> bool {
        let mut succeeds = true;
        for n in 0..self.files.len() {
            let (now, is_there) = (self.now, self.files[n].writer || self.names_of(n) > 0);
            let file = &mut self.files[n];
            if file.writer && !writes_succeed {
                file.cached.clear();
                file.poisoned = true;
            }
            file.send(now);
            succeeds &= !is_there || !file.poisoned || file.in_txn;
        }
        if succeeds {
            self.files.iter_mut().filter(|file| !file.in_txn).for_each(Inode::commit);
            self.round = Some(self.state_of(|file| file.committed.clone()));
        }
        succeeds
    }

    /// Applies an operation by the rules; returns whether it succeeds.
    pub fn apply(&mut self, op: &Op) -> bool {
        let now = self.now;
        match *op {
            Op::Sync(file) | Op::SyncFails(file) if self.files[file].in_txn => return false,
            Op::Sync(_) | Op::SyncNames | Op::SyncAll if self.round.is_some() => return self.commit_round(true),
            Op::SyncFails(_) if self.round.is_some() => return self.commit_round(false),
            Op::Tick(seconds) if self.round.is_some() => self.now += seconds,
            Op::Create(name, file) => {
                assert_eq!(file, self.files.len());
                self.files.push(Inode::default());
                self.names.insert(name, file);
            }
            Op::Open(file) => self.files[file].writer = true,
            Op::Write(file, at, stamp, len) => self.files[file].cached.push((at, stamp, len)),
            Op::Send(file) => self.files[file].send(now),
            Op::Release(file) => {
                let file = &mut self.files[file];
                file.send(now);
                (file.writer, file.since) = (false, now);
            }
            Op::Truncate(file, size) => {
                let file = &mut self.files[file];
                file.send(now);
                file.change(size.min(file.sent.len()), now);
                file.sent.resize(size, 0);
                file.poisoned &= size > 0;
            }
            Op::Sync(file) => {
                let names = self.names_of(file);
                let file = &mut self.files[file];
                file.send(now);
                if file.poisoned {
                    return false;
                }
                file.synced = true;
                if names > 0 {
                    file.commit();
                }
            }
            Op::SyncFails(file) => {
                let file = &mut self.files[file];
                file.cached.clear();
                file.poisoned = true;
                return false;
            }
            Op::SyncNames => {}
            Op::RenameDir => self.dir_name = if self.dir_name == "d" { "e" } else { "d" },
            Op::Tick(seconds) => {
                self.now += seconds;
                let now = self.now;
                for n in 0..self.files.len() {
                    let has_names = self.names_of(n) > 0;
                    let f = &mut self.files[n];
                    let appends = |f: &Inode| f.kept >= f.committed.len() && f.sent.len() >= f.committed.len();
                    if !has_names || !f.changed || f.poisoned || f.in_txn {
                        continue;
                    }
                    if !f.writer && now - f.since >= 5 {
                        f.commit();
                    } else if f.writer && !f.synced && now - f.since >= 30 && appends(f) {
                        f.send(now);
                        if appends(f) {
                            f.commit();
                        }
                    }
                }
            }
            Op::Rename(from, to) => {
                let file = self.names[&from];
                let target = self.names.get(&to).copied();
                if target == Some(file) {
                    return true;
                }
                let contents = self.round.is_none() && (target.is_some() || !self.files[file].synced);
                if !self.commit_or_defer(file, contents) {
                    return false;
                }
                self.names.remove(&from);
                self.names.insert(to, file);
                self.lost(target);
            }
            Op::Exchange(one, other) => {
                let (a, b) = (self.names[&one], self.names[&other]);
                if a == b {
                    return true;
                }
                let committed: Vec<File> = if self.round.is_none() { vec![a, b] } else { Vec::new() };
                // Both files are written back before either is checked.
                committed.iter().for_each(|n| self.files[*n].send(now));
                if self.files[a].poisoned || self.files[b].poisoned {
                    return false;
                }
                if committed.iter().any(|n| self.files[*n].in_txn && self.files[*n].changed) {
                    return false;
                }
                committed.iter().for_each(|n| assert!(self.commit_or_defer(*n, true)));
                self.names.insert(one, b);
                self.names.insert(other, a);
            }
            Op::Link(from, to) => {
                let file = self.names[&from];
                let contents = self.round.is_none() && !self.files[file].synced;
                if !self.commit_or_defer(file, contents) {
                    return false;
                }
                self.names.insert(to, file);
            }
            Op::Unlink(name) => {
                let file = self.names.remove(&name);
                self.lost(file);
            }
            Op::Join(file) => (self.txn, self.files[file].in_txn) = (true, true),
            Op::CommitTxn(chains) => {
                let joined = self.joined();
                joined.iter().for_each(|n| self.files[*n].send(now));
                if joined.iter().any(|n| self.files[*n].poisoned) {
                    return false;
                }
                self.end_txn();
                let is_done = self.round.is_none() || self.commit_round(true);
                // The transaction also continues if another file blocks the commit.
                self.txn = chains || !is_done;
                for n in joined {
                    self.files[n].in_txn = self.txn;
                    self.files[n].synced |= is_done;
                    if self.round.is_none() && self.names_of(n) > 0 {
                        self.files[n].commit();
                    }
                }
                return is_done;
            }
            Op::AbortTxn(chains) => {
                for n in self.joined() {
                    let file = &mut self.files[n];
                    file.cached.clear();
                    file.sent = file.committed.clone();
                    (file.changed, file.poisoned) = (false, false);
                }
                if !chains {
                    self.end_txn();
                }
            }
            Op::DissolveTxn => self.end_txn(),
            Op::SyncAll => {
                let mut is_all = true;
                for n in 0..self.files.len() {
                    let has_names = self.names_of(n) > 0;
                    let f = &mut self.files[n];
                    if f.writer && !f.synced {
                        f.send(now);
                    }
                    if has_names && !f.in_txn && (!f.writer || !f.synced) {
                        f.commit();
                    }
                    is_all &= !has_names || f.in_txn || !f.poisoned;
                }
                return is_all;
            }
        }
        true
    }

    /// Files of the transaction that still exist.
    fn joined(&self) -> Vec<File> {
        let is_there = |n: &File| self.files[*n].in_txn && (self.files[*n].writer || self.names_of(*n) > 0);
        (0..self.files.len()).filter(is_there).collect()
    }

    fn end_txn(&mut self) {
        self.txn = false;
        self.files.iter_mut().for_each(|file| file.in_txn = false);
    }

    fn commit_or_defer(&mut self, file: File, contents: bool) -> bool {
        let now = self.now;
        let file = &mut self.files[file];
        if contents {
            file.send(now);
        }
        if file.poisoned || contents && file.in_txn && file.changed {
            return false;
        }
        if contents {
            file.commit();
        }
        true
    }

    fn lost(&mut self, file: Option<File>) {
        if let Some(file) = file
            && self.names_of(file) == 0
        {
            self.files[file].poisoned = false;
        }
    }
}

/// Writes that the kernel has yet to send.
pub type Dirty = BTreeMap<Ino, Vec<Write>>;

/// A kernel's write cache.
pub struct Cache<'a> {
    tree: &'a StoreTree,
    dirty: Arc<Mutex<Dirty>>,
    fails: AtomicBool,
}

impl KernelCache for Cache<'_> {
    fn write_back(&self, ino: Ino) -> Result<()> {
        let first = || self.dirty.lock().get(&ino).and_then(|writes| writes.first().copied());
        while let Some((at, stamp, len)) = first() {
            let failed = self.fails.load(SeqCst);
            let written =
                if failed { Err(Errno(libc::EIO)) } else { self.tree.write(ino, at as u64, &vec![stamp; len]) };
            // The cache keeps the write until it is answered.
            let mut dirty = self.dirty.lock();
            if let Err(e) = written {
                dirty.remove(&ino);
                return Err(e);
            }
            dirty.get_mut(&ino).unwrap().remove(0);
        }
        self.dirty.lock().remove(&ino);
        if self.fails.load(SeqCst) { Err(Errno(libc::EIO)) } else { Ok(()) }
    }
}

impl<'a> Cache<'a> {
    pub fn new(tree: &'a StoreTree) -> Cache<'a> {
        Cache::with(tree, Arc::default())
    }

    /// Continues with the cache that the last process's tree left.
    pub fn with(tree: &'a StoreTree, dirty: Arc<Mutex<Dirty>>) -> Cache<'a> {
        Cache { tree, dirty, fails: AtomicBool::new(false) }
    }

    /// Does the operation in the tree. The model has done it before, and learns the inode of a new file.
    pub fn act(&self, op: &Op, clock: &TestClock, model: &mut Model) -> Result<()> {
        let tree = self.tree;
        let at = |model: &Model, (below, called): Name| (if below { model.dir } else { ROOT }, name(called));
        let ino = |model: &Model, file: File| model.files[file].ino;
        match *op {
            Op::Create(called, file) => {
                let (dir, called) = at(model, called);
                model.files[file].ino = tree.make(ME, dir, called, Kind::File, 0o644, 0)?.ino;
                tree.forget(model.files[file].ino, 1);
            }
            Op::Open(file) => tree.open(ino(model, file), true)?,
            Op::Write(file, at, stamp, len) => {
                self.dirty.lock().entry(ino(model, file)).or_default().push((at, stamp, len));
            }
            Op::Send(file) => self.write_back(ino(model, file))?,
            Op::Release(file) => {
                self.write_back(ino(model, file))?;
                tree.release(ino(model, file), true);
            }
            Op::Truncate(file, size) => {
                self.write_back(ino(model, file))?;
                tree.set_attributes(ino(model, file), &Change { size: Some(size as u64), ..Change::default() })?;
            }
            Op::Sync(file) => tree.sync(ino(model, file), self)?,
            Op::SyncFails(file) => {
                self.fails.store(true, SeqCst);
                let result = tree.sync(ino(model, file), self);
                self.fails.store(false, SeqCst);
                result?;
            }
            Op::SyncNames => tree.sync_names(self)?,
            Op::RenameDir => {
                let (from, to) = if model.dir_name == "e" { ("d", "e") } else { ("e", "d") };
                tree.rename((ROOT, name(from)), (ROOT, name(to)), RenameFlags::Replace, self)?;
            }
            Op::Tick(seconds) => {
                clock.pass(seconds);
                tree.tick(self);
            }
            Op::Rename(from, to) => tree.rename(at(model, from), at(model, to), RenameFlags::Replace, self)?,
            Op::Exchange(from, to) => tree.rename(at(model, from), at(model, to), RenameFlags::Exchange, self)?,
            Op::Link(from, to) => {
                let (dir, called) = at(model, from);
                let linked = tree.lookup(dir, called)?.ino;
                tree.forget(linked, 1);
                let (dir, called) = at(model, to);
                tree.link(linked, dir, called, self)?;
                tree.forget(linked, 1);
            }
            Op::Unlink(called) => {
                let (dir, called) = at(model, called);
                tree.unlink(dir, called)?;
            }
            Op::SyncAll => tree.sync_all(self)?,
            Op::Join(file) => {
                let txn = match tree.transactions_of(OWNER).pop() {
                    Some(txn) if !model.apart => txn,
                    _ => tree.begin(OWNER, false)?,
                };
                match tree.add(txn, ino(model, file)) {
                    // It is in a transaction of its own already.
                    Err(Errno(libc::EBUSY | libc::ENOENT)) if model.apart => tree.dissolve(txn),
                    added => added?,
                }
            }
            Op::CommitTxn(chains) if model.apart => {
                let txns = self.transactions();
                tree.commit_together(&txns, self)?;
                self.dissolve(if chains { &[] } else { &txns });
            }
            Op::CommitTxn(chains) => tree.commit(self.transactions()[0], chains, self)?,
            Op::AbortTxn(chains) if model.apart => {
                let txns = self.transactions();
                for txn in &txns {
                    tree.abort(*txn, true, self)?;
                }
                self.dissolve(if chains { &[] } else { &txns });
            }
            Op::AbortTxn(chains) => drop(tree.abort(self.transactions()[0], chains, self)?),
            Op::DissolveTxn => self.dissolve(&self.transactions()),
        }
        Ok(())
    }

    /// The transactions. If the process was killed before it answered, the commit of one that has ended is requested
    /// again.
    fn transactions(&self) -> Vec<Transaction> {
        let mut txns = self.tree.transactions_of(OWNER);
        // The repeated request has the same order.
        txns.sort_unstable();
        if txns.is_empty() { vec![0] } else { txns }
    }

    fn dissolve(&self, txns: &[Transaction]) {
        txns.iter().for_each(|txn| self.tree.dissolve(*txn));
    }
}
