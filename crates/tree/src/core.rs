//! The state of a tree: names and inodes as of the last reply, and what commits of them write.

use crate::clock::Clock;
use crate::file_tree::{Attributes, Errno, Ino, Kind, ROOT, Request, Result, Time, Transaction};
use crate::handover::Continuation;
use crate::inode::{Dir, Inode};
use crate::inode_table::{Numbers, Table};
use crate::row::{InodeRow, Key, Row};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::{File, Store, Ticket};

/// Objects of a directory; numbers are given out by so many.
const OBJECTS: u64 = 4096;
/// Commits that nobody has waited for, before those that are done are looked for.
const PENDING: usize = 64;

/// A transaction that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    /// The opening whose end ends it.
    pub owner: u64,
    /// Then nothing is given up.
    pub keeps: bool,
    /// That opening has ended: it is given up, by this process or by the next.
    pub left: bool,
    pub files: BTreeSet<Ino>,
}

/// What is committed before the timer does it.
#[derive(Default)]
pub(crate) struct Early {
    /// How many files with uncommitted contents there have to be, until those without a writer are looked for again.
    pub changed: usize,
    /// How many objects have to be doomed until their removal is tried again.
    pub doomed: usize,
    /// Files that were looked at, ever.
    pub looked_at: u64,
}

pub(crate) struct Core {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub table: Table,
    pub inodes: HashMap<Ino, Inode>,
    pub dirs: HashMap<Ino, Dir>,
    /// Rows that differ from the table.
    pub dirty: BTreeSet<Key>,
    /// Since when there are some.
    pub dirty_since: Option<Duration>,
    /// Files with uncommitted contents, and those that are poisoned.
    pub changed: BTreeSet<Ino>,
    pub open_for_writing: BTreeSet<Ino>,
    pub numbers: Numbers,
    pub early: Early,
    /// Objects of inodes that are gone.
    pub doomed: BTreeSet<Ino>,
    /// Commits on their way, in the order of the log.
    pub pending: Vec<Ticket>,
    /// Files whose seal could not be asked for: every commit has them until one can be.
    owed: BTreeSet<Ino>,
    /// Files of the transactions that go on.
    pub txns: HashMap<Transaction, Txn>,
    /// A flush failed: nothing later is acknowledged.
    pub failed: bool,
    /// Whoever commits waits for it at once.
    waits: bool,
    /// What another process goes on from, if this one is killed.
    pub continuation: Option<Continuation>,
}

fn object_dir(ino: Ino) -> PathBuf {
    PathBuf::from(format!("obj/{:x}", ino / OBJECTS))
}

pub(crate) fn object_path(ino: Ino) -> PathBuf {
    object_dir(ino).join(ino.to_string())
}

/// The error number of an error of the store.
pub(crate) fn errno(e: untorn::Error) -> Errno {
    use untorn::Error as E;
    let number = match &e {
        E::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        E::NoSpace { .. } if e.is_of_quota() => libc::EDQUOT,
        E::NoSpace { .. } => libc::ENOSPC,
        E::NoMemory { .. } => libc::ENOMEM,
        _ => libc::EIO,
    };
    tracing::warn!(error = %e, "the store refused");
    Errno(number)
}

/// Whether nothing can be committed until the store is opened again. After any other error the next try may succeed.
pub(crate) fn is_final(e: &untorn::Error) -> bool {
    use untorn::Error as E;
    matches!(e, E::SyncFailed { .. } | E::Corrupt { .. } | E::Closed | E::Forked)
}

/// What the store said, with an error number.
pub(crate) fn refused<T>(done: untorn::Result<T>) -> Result<T> {
    done.map_err(errno)
}

// Opening.
impl Core {
    /// The tree in a store; a new one if the store has none.
    pub fn open(store: Store, clock: Arc<dyn Clock>, owner: Request, resumes: bool) -> untorn::Result<Core> {
        // A store that was never a tree has no table: no transaction but the first makes one.
        let core = match store.open_file(crate::inode_table::TABLE) {
            Ok(file) => Core::load(store, clock, file, resumes)?,
            Err(untorn::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Core::format(store, clock, owner)?
            }
            Err(e) => return Err(e),
        };
        Ok(core)
    }

    fn with(store: Store, clock: Arc<dyn Clock>, table: Table) -> Core {
        let numbers = table.numbers();
        Core {
            store,
            clock,
            table,
            inodes: HashMap::new(),
            dirs: HashMap::new(),
            dirty: BTreeSet::new(),
            dirty_since: None,
            changed: BTreeSet::new(),
            open_for_writing: BTreeSet::new(),
            numbers,
            early: Early::default(),
            doomed: BTreeSet::new(),
            pending: Vec::new(),
            owed: BTreeSet::new(),
            txns: HashMap::new(),
            failed: false,
            waits: false,
            continuation: None,
        }
    }

    fn format(store: Store, clock: Arc<dyn Clock>, owner: Request) -> untorn::Result<Core> {
        let mut txn = store.begin();
        txn.mkdir("obj", 0o700)?;
        txn.mkdir(object_dir(0), 0o700)?;
        let file = txn.create(crate::inode_table::TABLE, 0o600)?;
        let mut table = Table::format(file, Numbers { next: ROOT + 1, limit: OBJECTS, commit: 0, owner: 0 });
        let mut root = new_row(Kind::Directory, 0o755, owner.uid, owner.gid, clock.now());
        root.nlink = 2;
        table.put(&Row::Inode(ROOT, root.clone()));
        table.stage()?;
        txn.commit()?;
        table.submitted();
        let mut core = Core::with(store, clock, table);
        core.inodes.insert(ROOT, Inode::new(root));
        core.dirs.insert(ROOT, Dir::default());
        core.settle_root();
        Ok(core)
    }

    fn load(store: Store, clock: Arc<dyn Clock>, file: File, resumes: bool) -> untorn::Result<Core> {
        let (mut inodes, mut dirs) = (HashMap::new(), HashMap::<Ino, Dir>::new());
        let (mut names, mut xattrs) = (Vec::new(), Vec::new());
        let table = Table::load(file, &mut |row| match row {
            Row::Inode(ino, row) => {
                if row.kind == Kind::Directory {
                    dirs.entry(ino).or_default();
                }
                inodes.insert(ino, Inode::new(row));
            }
            Row::Name { dir, name, cookie, ino } => names.push((dir, name, cookie, ino)),
            Row::Xattr { ino, name, value } => xattrs.push((ino, name, value)),
        })?;
        let damaged = |what: String| untorn::Error::Corrupt {
            path: PathBuf::from(crate::inode_table::TABLE),
            detail: what,
            advice: "Restore the store from a copy.",
        };
        for (dir, name, cookie, ino) in names {
            let wrong = |what: &str| damaged(format!("{} {what}", String::from_utf8_lossy(&name)));
            let inode = inodes.get_mut(&ino).ok_or_else(|| wrong("names no inode"))?;
            if inode.is_dir() {
                inode.parent = dir;
            }
            let dir = dirs.get_mut(&dir).ok_or_else(|| wrong("lies in no directory"))?;
            dir.restore(name, ino, cookie);
        }
        for (ino, name, value) in xattrs {
            let inode = inodes.get_mut(&ino).ok_or_else(|| damaged("an attribute of no inode".into()))?;
            inode.xattrs.insert(name, value);
        }
        let mut core = Core::with(store, clock, table);
        (core.inodes, core.dirs) = (inodes, dirs);
        if !core.dirs.contains_key(&ROOT) {
            return Err(damaged("there is no root".into()));
        }
        core.settle_root();
        if !resumes {
            // What this process commits is not what the last one's log goes on from.
            core.numbers.owner = 0;
        }
        core.drop_leftovers(resumes)?;
        Ok(core)
    }

    fn settle_root(&mut self) {
        let root = self.inodes.get_mut(&ROOT).expect("a tree has a root");
        root.parent = ROOT;
        root.known = 1;
    }

    /// Removes what the last owner left: inodes without names, and objects whose inodes no commit has. If this process
    /// resumes its work, those without names are still used, and the commit is none of those that the log counts.
    fn drop_leftovers(&mut self, resumes: bool) -> untorn::Result<()> {
        let Numbers { next, limit, .. } = self.numbers;
        for dir in (next..limit).step_by(OBJECTS as usize).chain([limit - 1]).map(object_dir) {
            for name in self.store.list(&dir)? {
                if let Some(ino) = name.to_str().and_then(|name| name.parse::<Ino>().ok())
                    && ino >= next
                {
                    self.doomed.insert(ino);
                }
            }
        }
        if !resumes {
            // What of them the kernel has seen is not given again.
            self.numbers.next = limit;
        }
        if resumes {
            self.numbers.commit = self.numbers.commit.wrapping_sub(1);
        }
        let orphans: Vec<Ino> =
            self.inodes.iter().filter(|(_, i)| i.row.nlink == 0 && !resumes).map(|(ino, _)| *ino).collect();
        orphans.into_iter().for_each(|ino| self.reap(ino));
        let before = self.numbers.commit;
        let done = self.submit(&[]).and_then(|()| self.pending.iter().try_for_each(Ticket::wait));
        self.sweep();
        if resumes && self.numbers.commit == before {
            self.numbers.commit = before.wrapping_add(1);
        }
        match done {
            // On a full disk they stay for a while.
            Err(e) if !is_final(&e) => Ok(()),
            done => done,
        }
    }
}

pub(crate) fn new_row(kind: Kind, mode: u32, uid: u32, gid: u32, now: Time) -> InodeRow {
    InodeRow {
        kind,
        mode: mode & 0o7777,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        synced: false,
        object: false,
        target: Box::default(),
    }
}

// Names and inodes.
impl Core {
    pub fn inode(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno(libc::ESTALE))
    }

    pub fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.note_state(ino);
        self.inodes.get_mut(&ino).ok_or(Errno(libc::ESTALE))
    }

    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.inode(ino)?.attributes(ino))
    }

    /// Attributes for the kernel, which knows the inode once more.
    pub fn give(&mut self, ino: Ino) -> Result<Attributes> {
        let inode = self.inode_mut(ino)?;
        inode.known += 1;
        Ok(inode.attributes(ino))
    }

    pub fn dir(&self, dir: Ino) -> Result<&Dir> {
        self.dirs.get(&dir).ok_or(Errno(if self.inodes.contains_key(&dir) { libc::ENOTDIR } else { libc::ESTALE }))
    }

    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let found = self.dir(dir)?.names.get(name);
        found.map(|(ino, _)| *ino).ok_or(Errno(libc::ENOENT))
    }

    /// A directory in which names can be made.
    pub fn living_dir(&self, dir: Ino) -> Result<&Dir> {
        let names = self.dir(dir)?;
        if self.inode(dir)?.row.nlink == 0 { Err(Errno(libc::ENOENT)) } else { Ok(names) }
    }

    /// What a transaction alone may commit is committed by nothing else.
    pub fn check_free(&self, inos: &[Ino]) -> Result<()> {
        let taken = |ino: &Ino| self.inodes.get(ino).is_some_and(|inode| inode.txn.is_some());
        if inos.iter().any(taken) { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    /// After a flush that failed, nothing changes any more.
    pub fn check(&self) -> Result<()> {
        if self.failed { Err(Errno(libc::EIO)) } else { Ok(()) }
    }

    pub fn mark(&mut self, key: Key) {
        self.note_key(&key);
        self.dirty.insert(key);
        let now = self.clock.elapsed();
        self.dirty_since.get_or_insert(now);
    }

    /// The directory has other names than before.
    pub fn touch_dir(&mut self, dir: Ino) {
        let now = self.clock.now();
        if let Some(inode) = self.inodes.get_mut(&dir) {
            (inode.row.mtime, inode.row.ctime) = (now, now);
        }
        self.mark(Key::Inode(dir));
    }

    /// The inode's attributes or number of names are others than before.
    pub fn touch(&mut self, ino: Ino) {
        // The times may be those of uncommitted contents.
        self.note_state(ino);
        let now = self.clock.now();
        if let Some(inode) = self.inodes.get_mut(&ino) {
            *inode.times()[2] = now;
        }
        self.mark(Key::Inode(ino));
    }

    pub fn set_name(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let name: Arc<[u8]> = name.into();
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.set(name.clone(), ino);
        }
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.is_dir()
        {
            inode.parent = dir;
        }
        self.mark(Key::Name(dir, name));
    }

    pub fn remove_name(&mut self, dir: Ino, name: &[u8]) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.remove(name);
        }
        self.mark(Key::Name(dir, name.into()));
    }

    /// The inode loses a name; a directory its only one.
    pub fn lose_name(&mut self, ino: Ino) {
        self.note_state(ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.row.nlink = if inode.is_dir() { 0 } else { inode.row.nlink.saturating_sub(1) };
            if inode.row.nlink == 0 {
                inode.poisoned = false;
            }
        }
        self.touch(ino);
        self.reap(ino);
    }

    pub fn add_links(&mut self, dir: Ino, by: i32) {
        if let Some(inode) = self.inodes.get_mut(&dir) {
            inode.row.nlink = inode.row.nlink.saturating_add_signed(by);
        }
        self.mark(Key::Inode(dir));
    }

    /// A write of the file failed.
    pub fn poison(&mut self, ino: Ino) {
        self.note_state(ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.poisoned = true;
            self.changed.insert(ino);
        }
    }

    /// The inode goes if nothing names, knows or has opened it.
    pub fn reap(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        if inode.row.nlink > 0 || inode.known > 0 || inode.openings > 0 {
            return;
        }
        let Some(inode) = self.inodes.remove(&ino) else { return };
        if let Some(object) = &inode.object
            && let Err(e) = object.rollback()
        {
            tracing::error!(error = %e, ino, "the contents of a removed file stay");
        }
        self.changed.remove(&ino);
        if let Some(txn) = inode.txn.and_then(|txn| self.txns.get_mut(&txn)) {
            txn.files.remove(&ino);
        }
        self.dirs.remove(&ino);
        self.mark(Key::Inode(ino));
        for name in inode.xattrs.into_keys() {
            self.mark(Key::Xattr(ino, name));
        }
        if inode.row.object {
            self.doomed.insert(ino);
        }
    }

    /// What is uncommitted of a file is gone.
    pub fn roll_back(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        if let Some(object) = &inode.object {
            object.rollback().map_err(errno)?;
        }
        (inode.uncommitted, inode.poisoned) = (None, false);
        (inode.cut, inode.staged) = Default::default();
        self.changed.remove(&ino);
        self.close_object(ino);
        self.note_rolled_back(ino);
        Ok(())
    }

    /// Adds an inode.
    pub fn add_inode(&mut self, inode: Inode) -> Result<Ino> {
        if self.numbers.next == self.numbers.limit {
            self.reserve()?;
        }
        let ino = self.numbers.next;
        self.numbers.next += 1;
        if inode.is_dir() {
            self.dirs.insert(ino, Dir::default());
        }
        self.inodes.insert(ino, inode);
        self.mark(Key::Inode(ino));
        Ok(ino)
    }

    /// Objects of inodes that are gone, which no commit has removed.
    pub fn doomed(&self) -> Vec<Ino> {
        self.doomed.iter().copied().collect()
    }

    /// What differs from the table.
    pub fn dirty_keys(&self) -> Vec<Key> {
        self.dirty.iter().cloned().collect()
    }

    pub fn row(&self, key: &Key) -> Option<Row> {
        match key {
            Key::Inode(ino) => self.inodes.get(ino).map(|inode| Row::Inode(*ino, inode.row.clone())),
            Key::Name(dir, name) => {
                let (ino, cookie) = *self.dirs.get(dir)?.names.get(name)?;
                Some(Row::Name { dir: *dir, name: name.clone(), cookie, ino })
            }
            Key::Xattr(ino, name) => {
                let value = self.inodes.get(ino)?.xattrs.get(name)?;
                Some(Row::Xattr { ino: *ino, name: name.clone(), value: value.clone() })
            }
        }
    }
}

// Objects and commits.
impl Core {
    /// The file with the contents of an inode; `None` if the inode has none.
    pub fn object(&mut self, ino: Ino) -> Result<Option<Arc<File>>> {
        let inode = self.inode(ino)?;
        if inode.object.is_some() || !inode.row.object {
            return Ok(inode.object.clone());
        }
        let file = Arc::new(self.store.open_file(object_path(ino)).map_err(errno)?);
        self.inode_mut(ino)?.object = Some(file.clone());
        Ok(Some(file))
    }

    /// The file with the contents of an inode, made if need be.
    pub fn object_for_writing(&mut self, ino: Ino) -> Result<Arc<File>> {
        if let Some(file) = self.object(ino)? {
            return Ok(file);
        }
        let file = Arc::new(self.make(&New::Object(ino))?.ok_or(Errno(libc::EIO))?);
        let inode = self.inode_mut(ino)?;
        inode.row.object = true;
        inode.object = Some(file.clone());
        self.mark(Key::Inode(ino));
        Ok(file)
    }

    /// Numbers for more inodes, and a directory for their objects.
    pub fn reserve(&mut self) -> Result<()> {
        let limit = self.numbers.limit + OBJECTS;
        self.make(&New::Directory { path: object_dir(self.numbers.limit), limit })?;
        self.numbers.limit = limit;
        Ok(())
    }

    /// Makes something in the store, in a commit of its own that has no name, no attribute and no contents: what no commit
    /// of those follows, the next opening finds by its number. Nobody waits.
    fn make_in_store(&mut self, new: &New) -> untorn::Result<Option<File>> {
        let mut txn = self.store.begin();
        let made = match new {
            New::Object(ino) => {
                let made = txn.create(object_path(*ino), 0o600)?;
                // If a commit has the row, it gets its object in the same moment.
                if self.table.set_object(*ino, true)? {
                    txn.add(self.table.file())?;
                }
                Some(made)
            }
            New::Directory { path, limit } => {
                txn.mkdir(path, 0o700)?;
                let numbers = Numbers { limit: *limit, ..self.table.numbers() };
                self.table.write_numbers(numbers);
                txn.add(self.table.file())?;
                None
            }
        };
        self.table.stage()?;
        // The next commit that is waited for flushes the log for both; at the latest the timer's.
        let ticket = txn.commit_quietly()?;
        self.table.submitted();
        self.keep(ticket);
        Ok(made)
    }

    fn make(&mut self, new: &New) -> Result<Option<File>> {
        let before = self.table.numbers();
        let made = self.make_in_store(new);
        if made.is_err() {
            // What the table had of it must be in no other commit.
            match new {
                New::Object(ino) => {
                    if let Err(e) = self.table.set_object(*ino, false) {
                        // A row without its object must not be committed.
                        self.failed = true;
                        return Err(errno(e));
                    }
                }
                New::Directory { .. } => self.table.write_numbers(before),
            }
        }
        self.outcome(made)
    }

    /// Commits all names and attributes, and the uncommitted contents of these files, as one. Nobody waits: the ticket is
    /// among the pending ones.
    pub fn commit(&mut self, contents: &[Ino]) -> Result<()> {
        self.check()?;
        let number = self.numbers.commit;
        let done = match self.owed.is_empty() {
            true => self.submit(contents),
            false => {
                let with_owed: BTreeSet<Ino> = self.owed.iter().chain(contents).copied().collect();
                self.submit(&with_owed.into_iter().collect::<Vec<_>>())
            }
        };
        if done.is_err() && self.numbers.commit != number {
            self.note_void();
        }
        self.outcome(done)
    }

    /// As [`commit`](Self::commit), for a caller that waits for it next.
    pub fn commit_waited(&mut self, contents: &[Ino]) -> Result<()> {
        self.waits = true;
        let done = self.commit(contents);
        self.waits = false;
        done
    }

    /// Commits all names and attributes, and what there is of these files, which they must not be without. If that cannot
    /// be asked for, on a full disk, the next commit has it.
    pub fn seal(&mut self, contents: &[Ino]) {
        if self.commit(contents).is_err() {
            self.owe(contents);
        }
    }

    /// Every commit has these files from now on, until one could be asked for.
    pub fn owe(&mut self, contents: &[Ino]) {
        self.owed.extend(contents);
        contents.iter().for_each(|ino| self.note_owed(*ino));
    }

    /// Files whose seals are yet to be asked for.
    pub fn owed(&self) -> Vec<Ino> {
        self.owed.iter().copied().collect()
    }

    /// A commit that was asked for has what is owed.
    pub fn settle_owed(&mut self) {
        self.owed.clear();
    }

    /// Whether a seal of the file is yet to be asked for.
    pub fn owes(&self, ino: Ino) -> bool {
        self.owed.contains(&ino)
    }

    fn outcome<T>(&mut self, done: untorn::Result<T>) -> Result<T> {
        done.map_err(|e| {
            if is_final(&e) {
                self.failed = true;
                tracing::error!(error = %e, "a commit of the tree failed: nothing is committed until it is opened again");
            }
            errno(e)
        })
    }

    pub fn submit(&mut self, contents: &[Ino]) -> untorn::Result<()> {
        self.note_rows();
        let mut folded = Vec::new();
        for ino in contents {
            let Some(inode) = self.inodes.get_mut(ino) else { continue };
            if inode.row.nlink == 0 || !inode.is_committable() {
                continue;
            }
            if let Some(before) = inode.fold() {
                folded.push((*ino, before));
                self.changed.remove(ino);
                self.dirty.insert(Key::Inode(*ino));
            }
        }
        for key in std::mem::take(&mut self.dirty) {
            match self.row(&key) {
                Some(row) => self.table.put(&row),
                None => self.table.remove(&key),
            }
        }
        if !self.table.is_staged() && self.doomed.is_empty() {
            return Ok(());
        }
        self.numbers.commit = self.numbers.commit.wrapping_add(1);
        let inos: Vec<Ino> = folded.iter().map(|(ino, _)| *ino).collect();
        self.note_commit(&inos);
        if self.table.numbers() != self.numbers {
            self.table.write_numbers(self.numbers);
        }
        let objects: Vec<Arc<File>> =
            folded.iter().filter_map(|(ino, _)| self.inodes.get(ino)?.object.clone()).collect();
        let ticket = match self.submit_files(&objects) {
            Ok(ticket) => ticket,
            Err(e) => {
                for (ino, before) in folded {
                    self.note_state(ino);
                    if let Some(inode) = self.inodes.get_mut(&ino) {
                        inode.unfold(before);
                    }
                    self.changed.insert(ino);
                    self.dirty.insert(Key::Inode(ino));
                }
                return Err(e);
            }
        };
        self.table.submitted();
        self.keep(ticket);
        self.doomed.clear();
        self.settle_owed();
        self.dirty_since = None;
        folded.iter().for_each(|(ino, _)| self.close_object(*ino));
        Ok(())
    }

    fn submit_files(&self, objects: &[Arc<File>]) -> untorn::Result<Ticket> {
        self.table.stage()?;
        if self.doomed.is_empty() {
            let files: Vec<&File> = std::iter::once(self.table.file()).chain(objects.iter().map(|o| &**o)).collect();
            return if self.waits { self.store.syncv_quietly(&files) } else { self.store.syncv_async(&files) };
        }
        let mut txn = self.store.begin();
        for ino in &self.doomed {
            txn.unlink(object_path(*ino))?;
        }
        txn.add(self.table.file())?;
        for object in objects {
            txn.add(object)?;
        }
        if self.waits { txn.commit_quietly() } else { txn.commit_async() }
    }

    fn keep(&mut self, ticket: Ticket) {
        if self.pending.len() >= PENDING {
            self.sweep();
        }
        self.pending.push(ticket);
    }

    /// Forgets the commits that are done.
    pub fn sweep(&mut self) {
        let mut failed = false;
        self.pending.retain(|ticket| match ticket.poll() {
            Some(Ok(())) => false,
            Some(Err(_)) => {
                failed = true;
                true
            }
            None => true,
        });
        self.failed |= failed;
    }

    /// Takes the file's handle back that nobody needs.
    pub fn close_object(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.openings == 0
            && inode.uncommitted.is_none()
        {
            inode.object = None;
        }
    }
}

/// What is made in the store.
enum New {
    /// The object of an inode.
    Object(Ino),
    /// A directory for objects, with numbers up to a limit.
    Directory { path: PathBuf, limit: Ino },
}
