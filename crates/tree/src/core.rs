//! The state of a tree: names and inodes as of the last reply, and what commits of them write.

use crate::clock::Clock;
use crate::file_tree::{Attributes, Errno, Ino, Kind, ROOT, Request, Result, Time};
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

pub(crate) struct Core {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    table: Table,
    pub inodes: HashMap<Ino, Inode>,
    pub dirs: HashMap<Ino, Dir>,
    /// Rows that differ from the table.
    dirty: BTreeSet<Key>,
    /// Since when there are some.
    pub dirty_since: Option<Duration>,
    /// Files with uncommitted contents.
    pub changed: BTreeSet<Ino>,
    numbers: Numbers,
    /// Objects of inodes that are gone.
    doomed: BTreeSet<Ino>,
    /// Commits on their way, in the order of the log.
    pub pending: Vec<Ticket>,
    /// A commit failed: nothing later is acknowledged.
    pub failed: bool,
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
        E::NoSpace { .. } => libc::ENOSPC,
        E::NoMemory { .. } => libc::ENOMEM,
        _ => libc::EIO,
    };
    tracing::warn!(error = %e, "the store refused");
    Errno(number)
}

/// What the store said, with an error number.
pub(crate) fn refused<T>(done: untorn::Result<T>) -> Result<T> {
    done.map_err(errno)
}

// Opening.
impl Core {
    /// The tree in a store; a new one if the store has none.
    pub fn open(store: Store, clock: Arc<dyn Clock>, owner: Request) -> untorn::Result<Core> {
        // A store that was never a tree has no table: no transaction but the first makes one.
        let core = match store.open_file(crate::inode_table::TABLE) {
            Ok(file) => Core::load(store, clock, file)?,
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
            numbers,
            doomed: BTreeSet::new(),
            pending: Vec::new(),
            failed: false,
        }
    }

    fn format(store: Store, clock: Arc<dyn Clock>, owner: Request) -> untorn::Result<Core> {
        let mut txn = store.begin();
        txn.mkdir("obj", 0o700)?;
        txn.mkdir(object_dir(0), 0o700)?;
        let file = txn.create(crate::inode_table::TABLE, 0o600)?;
        let mut table = Table::format(file, Numbers { next: ROOT + 1, limit: OBJECTS })?;
        let mut root = new_row(Kind::Directory, 0o755, owner.uid, owner.gid, clock.now());
        root.nlink = 2;
        table.put(&Row::Inode(ROOT, root.clone()))?;
        txn.commit()?;
        let mut core = Core::with(store, clock, table);
        core.inodes.insert(ROOT, Inode::new(root));
        core.dirs.insert(ROOT, Dir::default());
        core.settle_root();
        Ok(core)
    }

    fn load(store: Store, clock: Arc<dyn Clock>, file: File) -> untorn::Result<Core> {
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
            let text = String::from_utf8_lossy(&name).into_owned();
            let inode = inodes.get_mut(&ino).ok_or_else(|| damaged(format!("{text} names no inode")))?;
            if inode.is_dir() {
                inode.parent = dir;
            }
            let dir = dirs.get_mut(&dir).ok_or_else(|| damaged(format!("{text} lies in no directory")))?;
            dir.restore(&name, ino, cookie);
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
        core.drop_leftovers()?;
        Ok(core)
    }

    fn settle_root(&mut self) {
        let root = self.inodes.get_mut(&ROOT).expect("a tree has a root");
        root.parent = ROOT;
        root.known = 1;
    }

    /// Removes what the last owner left: inodes without names, and objects whose inodes no commit has.
    fn drop_leftovers(&mut self) -> untorn::Result<()> {
        let Numbers { next, limit } = self.numbers;
        let dir = object_dir(limit - 1);
        for name in self.store.list(&dir)? {
            if let Some(ino) = name.to_str().and_then(|name| name.parse::<Ino>().ok())
                && ino >= next
            {
                self.doomed.insert(ino);
            }
        }
        // What of them the kernel has seen is not given again.
        self.numbers.next = limit;
        let orphans: Vec<Ino> = self.inodes.iter().filter(|(_, i)| i.row.nlink == 0).map(|(ino, _)| *ino).collect();
        orphans.into_iter().for_each(|ino| self.reap(ino));
        if !self.doomed.is_empty() || !self.dirty.is_empty() {
            self.submit(&[], None)?;
            for ticket in std::mem::take(&mut self.pending) {
                ticket.wait()?;
            }
        }
        Ok(())
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

    /// After a commit that failed, nothing changes any more.
    pub fn check(&self) -> Result<()> {
        if self.failed { Err(Errno(libc::EIO)) } else { Ok(()) }
    }

    pub fn mark(&mut self, key: Key) {
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
        let now = self.clock.now();
        if let Some(inode) = self.inodes.get_mut(&ino) {
            *inode.times()[2] = now;
        }
        self.mark(Key::Inode(ino));
    }

    pub fn set_name(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.set(name, ino);
        }
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.is_dir()
        {
            inode.parent = dir;
        }
        self.mark(Key::Name(dir, name.into()));
    }

    pub fn remove_name(&mut self, dir: Ino, name: &[u8]) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            names.remove(name);
        }
        self.mark(Key::Name(dir, name.into()));
    }

    /// The inode loses a name; a directory its only one.
    pub fn lose_name(&mut self, ino: Ino) {
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
        self.dirs.remove(&ino);
        self.mark(Key::Inode(ino));
        for name in inode.xattrs.into_keys() {
            self.mark(Key::Xattr(ino, name));
        }
        if inode.row.object {
            self.doomed.insert(ino);
        }
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

    fn row(&self, key: &Key) -> Option<Row> {
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
        let file = match ino < self.table.numbers().next {
            // A commit may have the row already: from now on the row has an object, and the two are one commit.
            true => {
                self.inode_mut(ino)?.row.object = true;
                self.mark(Key::Inode(ino));
                self.commit(&[], Some(New::Object(ino)))?
            }
            // No commit has the row: an opening finds the object by its number.
            false => {
                let made = self.create_object(ino);
                self.inode_mut(ino)?.row.object = true;
                self.mark(Key::Inode(ino));
                Some(self.outcome(made)?)
            }
        };
        let file = Arc::new(file.ok_or(Errno(libc::EIO))?);
        self.inode_mut(ino)?.object = Some(file.clone());
        Ok(file)
    }

    fn create_object(&mut self, ino: Ino) -> untorn::Result<File> {
        let mut txn = self.store.begin();
        let file = txn.create(object_path(ino), 0o600)?;
        let ticket = txn.commit_async()?;
        self.keep(ticket);
        Ok(file)
    }

    /// Numbers for more inodes, and a directory for their objects.
    fn reserve(&mut self) -> Result<()> {
        let dir = object_dir(self.numbers.limit);
        self.numbers.limit += OBJECTS;
        self.commit(&[], Some(New::Directory(dir))).map(|_| ())
    }

    /// Commits all names and attributes, and the uncommitted contents of these files, as one. Nobody waits: the ticket is
    /// among the pending ones.
    pub fn commit(&mut self, contents: &[Ino], new: Option<New>) -> Result<Option<File>> {
        self.check()?;
        let done = self.submit(contents, new);
        self.outcome(done)
    }

    fn outcome<T>(&mut self, done: untorn::Result<T>) -> Result<T> {
        done.map_err(|e| {
            self.failed = true;
            tracing::error!(error = %e, "a commit of the tree failed: nothing is committed until it is opened again");
            errno(e)
        })
    }

    fn submit(&mut self, contents: &[Ino], new: Option<New>) -> untorn::Result<Option<File>> {
        let mut objects = Vec::new();
        for ino in contents {
            let Some(inode) = self.inodes.get_mut(ino) else { continue };
            if inode.row.nlink == 0 || inode.poisoned || !inode.fold() {
                continue;
            }
            objects.extend(inode.object.clone());
            if inode.openings == 0 {
                inode.object = None;
            }
            self.changed.remove(ino);
            self.dirty.insert(Key::Inode(*ino));
        }
        if self.dirty.is_empty() && self.doomed.is_empty() && new.is_none() {
            return Ok(None);
        }
        for key in std::mem::take(&mut self.dirty) {
            match self.row(&key) {
                Some(row) => self.table.put(&row)?,
                None => self.table.remove(&key)?,
            }
        }
        self.dirty_since = None;
        if self.table.numbers() != self.numbers {
            self.table.write_numbers(self.numbers)?;
        }
        let doomed = std::mem::take(&mut self.doomed);
        let mut made = None;
        let ticket = if doomed.is_empty() && new.is_none() {
            let files: Vec<&File> = std::iter::once(self.table.file()).chain(objects.iter().map(|o| &**o)).collect();
            self.store.syncv_async(&files)?
        } else {
            let mut txn = self.store.begin();
            txn.add(self.table.file())?;
            for object in &objects {
                txn.add(object)?;
            }
            for ino in doomed {
                txn.unlink(object_path(ino))?;
            }
            match new {
                Some(New::Object(ino)) => made = Some(txn.create(object_path(ino), 0o600)?),
                Some(New::Directory(dir)) => txn.mkdir(dir, 0o700)?,
                None => {}
            }
            txn.commit_async()?
        };
        self.keep(ticket);
        Ok(made)
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

/// What a commit makes in the store.
pub(crate) enum New {
    /// The object of an inode.
    Object(Ino),
    /// A directory for objects.
    Directory(PathBuf),
}
