//! The state of a tree: names and inodes as of the last reply, and the changes that the next commit writes.

use crate::handover::Continuation;
use crate::interface::clock::Clock;
use crate::interface::file_tree::{Attributes, Errno, Ino, Kind, ROOT, Request, Result, Time, Transaction};
use crate::small_files::draft::Drafts;
use crate::small_files::pack::{PACK, Pack};
use crate::small_files::pack_room::EXTENT_MAX;
use crate::table::inode::{Dir, Inode};
use crate::table::inode_table::{Numbers, Table};
use crate::table::row::{InodeRow, Key, Row};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use untorn::{File, Store, Ticket};

/// Objects in one directory of the store; inode numbers are reserved in groups of this size.
pub(crate) const OBJECTS: u64 = 4096;

/// A transaction that continues.
#[derive(Clone, Debug)]
pub(crate) struct Txn {
    /// The opening whose end ends the transaction.
    pub owner: u64,
    /// The end of the opening dissolves the transaction instead of aborting it.
    pub keeps: bool,
    /// The opening has ended: this process, or the next one, ends the transaction.
    pub left: bool,
    /// The transaction was begun by a process that was killed.
    pub resumed: bool,
    pub files: BTreeSet<Ino>,
}

/// Thresholds for commits before the timer's.
#[derive(Default)]
pub(crate) struct Early {
    /// Number of files with uncommitted contents at which those without a writer are searched for again.
    pub changed: usize,
    /// Number of doomed objects at which their removal is tried again.
    pub doomed: usize,
    /// Number of files that were inspected so far.
    pub looked_at: u64,
}

pub(crate) struct Core {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub table: Table,
    pub pack: Pack,
    /// The most bytes of a file that has no object.
    pub small_max: usize,
    /// Uncommitted contents of small files.
    pub drafts: Drafts,
    pub inodes: HashMap<Ino, Inode>,
    pub dirs: HashMap<Ino, Dir>,
    /// Rows that differ from the table.
    pub dirty: BTreeSet<Key>,
    /// Time of the first change in `dirty`.
    pub dirty_since: Option<Duration>,
    /// Files with uncommitted contents, and poisoned files.
    pub changed: BTreeSet<Ino>,
    pub open_for_writing: BTreeSet<Ino>,
    pub numbers: Numbers,
    pub early: Early,
    /// Objects of inodes that are gone.
    pub doomed: BTreeSet<Ino>,
    /// Commits on their way, in the order of the log.
    pub pending: Vec<Ticket>,
    /// Files whose contents the store refused: every commit includes them until one is accepted.
    pub deferred: BTreeSet<Ino>,
    /// Transactions that continue, with their files.
    pub txns: HashMap<Transaction, Txn>,
    /// A flush failed: no later commit is acknowledged.
    pub failed: bool,
    /// The caller waits for its commit at once.
    pub waits: bool,
    /// The transactions that are being committed: their files stay in them until the commit is submitted.
    pub committing: Vec<Transaction>,
    /// The handover log, from which another process continues if this one is killed.
    pub continuation: Option<Continuation>,
}

pub(crate) fn object_dir(ino: Ino) -> PathBuf {
    PathBuf::from(format!("obj/{:x}", ino / OBJECTS))
}

pub(crate) fn object_path(ino: Ino) -> PathBuf {
    object_dir(ino).join(ino.to_string())
}

/// The error number of an error of the store.
pub(crate) fn errno(e: untorn::Error) -> Errno {
    use untorn::Error as E;
    let number = match &e {
        e @ E::Io { .. } => e.os_error().unwrap_or(libc::EIO),
        E::NoSpace { .. } if e.is_of_quota() => libc::EDQUOT,
        E::NoSpace { .. } => libc::ENOSPC,
        E::NoMemory { .. } => libc::ENOMEM,
        _ => libc::EIO,
    };
    tracing::warn!(id = "untorn.tree.store_refused", error = %e, "the store refused");
    Errno(number)
}

/// Whether nothing can be committed until the store is opened again. After any other error the next try may succeed.
pub(crate) fn is_final(e: &untorn::Error) -> bool {
    use untorn::Error as E;
    matches!(e, E::SyncFailed { .. } | E::Corrupt { .. } | E::Closed | E::Forked)
}

/// Converts an error of the store to an error number.
pub(crate) fn refused<T>(done: untorn::Result<T>) -> Result<T> {
    done.map_err(errno)
}

// Opening.
impl Core {
    /// Opens the tree in a store, or makes a new one if the store has none.
    pub fn open(
        store: Store,
        clock: Arc<dyn Clock>,
        owner: Request,
        small_max: usize,
        resumes: bool,
    ) -> untorn::Result<Core> {
        // A missing table means that the store was never a tree: the first transaction of a tree makes it.
        let mut core = match store.open_file(crate::table::inode_table::TABLE) {
            Ok(file) => Core::load(store, clock, file, resumes)?,
            Err(untorn::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Core::format(store, clock, owner)?
            }
            Err(e) => return Err(e),
        };
        core.small_max = small_max.min(EXTENT_MAX);
        Ok(core)
    }

    fn with(store: Store, clock: Arc<dyn Clock>, table: Table, pack: Pack) -> Core {
        let numbers = table.numbers();
        Core {
            store,
            clock,
            table,
            pack,
            small_max: EXTENT_MAX,
            drafts: Drafts::default(),
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
            deferred: BTreeSet::new(),
            txns: HashMap::new(),
            failed: false,
            waits: false,
            committing: Vec::new(),
            continuation: None,
        }
    }

    fn format(store: Store, clock: Arc<dyn Clock>, owner: Request) -> untorn::Result<Core> {
        let mut txn = store.begin();
        txn.mkdir("obj", 0o700)?;
        txn.mkdir(object_dir(0), 0o700)?;
        let file = txn.create(crate::table::inode_table::TABLE, 0o600)?;
        let pack = Pack::load(txn.create(PACK, 0o600)?, Vec::new())?;
        let mut table = Table::format(file, Numbers { next: ROOT + 1, limit: OBJECTS, commit: 0, owner: 0 });
        let mut root = new_row(Kind::Directory, 0o755, owner.uid, owner.gid, clock.now());
        root.nlink = 2;
        table.put(&Row::Inode(ROOT, root.clone()));
        table.stage()?;
        txn.commit()?;
        table.submitted();
        let mut core = Core::with(store, clock, table, pack);
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
            path: PathBuf::from(crate::table::inode_table::TABLE),
            detail: what,
            advice: "Restore the store from a copy.",
        };
        // Names with invalid positions get new ones, so they come last, when the free positions are known.
        names.sort_by_key(|(_, _, cookie, _)| !Dir::is_place(*cookie));
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
        let used = inodes.values().filter_map(|inode| inode.row.extent).collect();
        let pack = Pack::load(store.open_file(PACK)?, used)?;
        let mut core = Core::with(store, clock, table, pack);
        (core.inodes, core.dirs) = (inodes, dirs);
        if !core.dirs.contains_key(&ROOT) {
            return Err(damaged("there is no root".into()));
        }
        let Numbers { next, limit, .. } = core.numbers;
        if next > limit || limit == 0 {
            return Err(damaged("numbers were given for which there is no room".into()));
        }
        if let Some(ino) = core.inodes.keys().find(|ino| **ino >= next) {
            return Err(damaged(format!("inode {ino} has a number that was never given")));
        }
        core.settle_root();
        if !resumes {
            // Commits of this process must not look like those of a handover log, which would then be continued from a
            // wrong state.
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

    /// Removes the rest that the last owner left: inodes without names, and objects whose inodes no commit includes.
    ///
    /// If this process resumes the last one's work, inodes without names are still in use, and the commit gets no
    /// number of its own, because the log counts the others.
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
            // The kernel may have seen some of these numbers, so they are not used again.
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
        extent: None,
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

    /// Attributes for the kernel, which then knows the inode once more.
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

    /// The names of a directory in which names can be made: one that is not removed.
    pub fn living_dir(&self, dir: Ino) -> Result<&Dir> {
        let names = self.dir(dir)?;
        if self.inode(dir)?.row.nlink == 0 { Err(Errno(libc::ENOENT)) } else { Ok(names) }
    }

    /// Refuses files of a transaction, which nothing else may commit.
    pub fn check_free(&self, inos: &[Ino]) -> Result<()> {
        let taken = |ino: &Ino| self.inodes.get(ino).is_some_and(|inode| inode.txn.is_some());
        if inos.iter().any(taken) { Err(Errno(libc::EBUSY)) } else { Ok(()) }
    }

    /// Checks like [`check_free`](Self::check_free) before these files are committed with their names: a file without
    /// uncommitted contents is not committed.
    pub fn check_committable(&self, inos: &[Ino]) -> Result<()> {
        let has_changes = |ino: &Ino| self.inodes.get(ino).is_some_and(|inode| inode.uncommitted.is_some());
        self.check_free(&inos.iter().copied().filter(has_changes).collect::<Vec<_>>())
    }

    /// Refuses changes after a failed flush.
    pub fn check(&self) -> Result<()> {
        if self.failed { Err(Errno(libc::EIO)) } else { Ok(()) }
    }

    pub fn mark(&mut self, key: Key) {
        self.note_key(&key);
        self.dirty.insert(key);
        let now = self.clock.elapsed();
        self.dirty_since.get_or_insert(now);
    }

    /// Sets the times of a directory whose names have changed.
    pub fn touch_dir(&mut self, dir: Ino) {
        let now = self.clock.now();
        if let Some(inode) = self.inodes.get_mut(&dir) {
            (inode.row.mtime, inode.row.ctime) = (now, now);
        }
        self.mark(Key::Inode(dir));
    }

    /// Sets the time of an inode whose attributes or number of names have changed.
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
        self.set_name_at(dir, name, ino, None);
    }

    /// Sets a name like [`set_name`](Self::set_name); a new name gets this position in the directory.
    pub fn set_name_at(&mut self, dir: Ino, name: &[u8], ino: Ino, at: Option<u64>) {
        debug_assert!(
            self.dirs.contains_key(&dir) && self.inodes.contains_key(&ino),
            "a name in {dir} for {ino}, of which one is gone"
        );
        let name: Arc<[u8]> = name.into();
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.set(name.clone(), ino, at);
        }
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.is_dir()
        {
            inode.parent = dir;
        }
        self.mark(Key::Name(dir, name));
    }

    /// Removes a name; returns its position in the directory.
    pub fn remove_name(&mut self, dir: Ino, name: &[u8]) -> Option<u64> {
        let place = self.dirs.get_mut(&dir).and_then(|names| names.remove(name));
        debug_assert!(place.is_some(), "{dir} had no name {:?}", String::from_utf8_lossy(name));
        self.mark(Key::Name(dir, name.into()));
        place
    }

    /// Removes a name of an inode; a directory has only one.
    pub fn lose_name(&mut self, ino: Ino) {
        debug_assert!(self.inodes.contains_key(&ino), "inode {ino} is gone, and loses a name");
        self.note_state(ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.row.nlink = if inode.is_dir() { 0 } else { inode.row.nlink.saturating_sub(1) };
            if inode.row.nlink == 0 {
                inode.cure();
            }
        }
        self.touch(ino);
        self.reap(ino);
    }

    pub fn add_links(&mut self, dir: Ino, by: i32) {
        debug_assert!(self.dirs.contains_key(&dir) && (-1..=1).contains(&by), "{by} directories in inode {dir}");
        if let Some(inode) = self.inodes.get_mut(&dir) {
            inode.row.nlink = inode.row.nlink.saturating_add_signed(by);
        }
        self.mark(Key::Inode(dir));
    }

    /// Notes that an unknown write of the file failed.
    pub fn poison(&mut self, ino: Ino) {
        self.note_state(ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.poisoned = true;
            self.changed.insert(ino);
        }
    }

    /// Removes an inode that has no name, is not open, and is not known to the kernel.
    pub fn reap(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        if inode.row.nlink > 0 || inode.known > 0 || inode.openings > 0 {
            return;
        }
        let Some(inode) = self.inodes.remove(&ino) else { return };
        if let Some(object) = &inode.object
            && let Err(e) = object.rollback()
        {
            tracing::error!(id = "untorn.tree.removed_stays", error = %e, ino, "the contents of a removed file stay");
        }
        self.changed.remove(&ino);
        if let Some(txn) = inode.txn.and_then(|txn| self.txns.get_mut(&txn)) {
            txn.files.remove(&ino);
        }
        self.dirs.remove(&ino);
        self.mark(Key::Inode(ino));
        for name in inode.xattrs.keys() {
            self.mark(Key::Xattr(ino, name.clone()));
        }
        self.doom_bytes(ino, &inode);
    }

    /// Discards the uncommitted contents of a file.
    pub fn roll_back(&mut self, ino: Ino) -> Result<()> {
        self.give_up_bytes(ino).map_err(errno)?;
        let inode = self.inode_mut(ino)?;
        inode.uncommitted = None;
        inode.cure();
        debug_assert!(!inode.is_poisoned() && inode.size() == inode.row.size, "inode {ino} is not as committed");
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
        debug_assert!(self.numbers.next <= self.numbers.limit, "numbers {:?} for inode {ino}", self.numbers);
        if inode.is_dir() {
            self.dirs.insert(ino, Dir::default());
        }
        let before = self.inodes.insert(ino, inode);
        debug_assert!(before.is_none(), "two inodes have the number {ino}");
        self.mark(Key::Inode(ino));
        Ok(ino)
    }

    /// Objects of inodes that are gone, which no commit has removed.
    pub fn doomed(&self) -> Vec<Ino> {
        self.doomed.iter().copied().collect()
    }

    /// The keys of rows that differ from the table.
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
