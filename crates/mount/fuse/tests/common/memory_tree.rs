//! A tree in memory, which commits nothing: for tests of the layers between the tree and programs.

#![allow(dead_code, reason = "not every program that is tested needs all of it")]

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;
use untorn_tree::{
    Attributes, Change, Entry, Errno, FileTree, Ino, KernelCache, Kind, ROOT, RenameFlags, Request, Result, SetTime,
    SpaceUse, Time, Transaction, TreeStatus,
};

/// Requests of the kernel, in the order of the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Write(Ino, u64, usize),
    Sync(Ino),
    Rename,
    Link,
    Truncate(Ino, u64),
    Allocate(Ino),
    Seek(Ino),
    Release(Ino),
    SyncAll,
    SyncFiles(Vec<Ino>),
}

struct Inode {
    attributes: Attributes,
    data: Vec<u8>,
    target: OsString,
    names: BTreeMap<u64, (OsString, Ino)>,
    cookies: HashMap<OsString, u64>,
    next_cookie: u64,
    xattrs: BTreeMap<OsString, Vec<u8>>,
    known: u64,
    open: u64,
}

#[derive(Default)]
struct State {
    inodes: HashMap<Ino, Inode>,
    last: Ino,
    asked: Vec<Asked>,
    failing: bool,
    lazy: bool,
}

/// A function that a handler calls before a write.
type Before = Box<dyn FnOnce(Ino) + Send>;

/// The tree.
pub struct MemoryTree {
    state: Mutex<State>,
    before_write: Mutex<Option<Before>>,
}

fn errno<T>(error: i32) -> Result<T> {
    Err(Errno(error))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

impl State {
    fn get(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno(libc::ENOENT))
    }

    fn find(&mut self, dir: Ino, name: &OsStr) -> Result<Ino> {
        let dir = self.get(dir)?;
        let cookie = dir.cookies.get(name).ok_or(Errno(libc::ENOENT))?;
        Ok(dir.names[cookie].1)
    }

    fn new_inode(&mut self, by: Request, dir: Ino, kind: Kind, mode: u32, rdev: u32) -> Result<Ino> {
        let above = self.get(dir)?.attributes;
        self.last += 1;
        let (ino, time, setgid) = (self.last, now(), above.mode & 0o2000);
        let gid = if setgid != 0 { above.gid } else { by.gid };
        let mode = mode & !by.umask;
        let mode = if kind == Kind::Directory { mode | setgid } else { mode };
        let nlink = if kind == Kind::Directory { 2 } else { 1 };
        let (size, blocks) = (0, 0);
        let attributes = Attributes {
            ino,
            kind,
            mode,
            nlink,
            uid: by.uid,
            gid,
            rdev,
            size,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
        };
        self.inodes.insert(ino, Inode::new(attributes));
        Ok(ino)
    }

    fn add(&mut self, dir: Ino, name: &OsStr, ino: Ino) -> Result<()> {
        if name.len() > 255 {
            return errno(libc::ENAMETOOLONG);
        }
        let directory = self.get(dir)?;
        if directory.attributes.nlink == 0 {
            return errno(libc::ENOENT);
        }
        if directory.cookies.contains_key(name) {
            return errno(libc::EEXIST);
        }
        directory.next_cookie += 1;
        let cookie = directory.next_cookie;
        directory.names.insert(cookie, (name.to_owned(), ino));
        directory.cookies.insert(name.to_owned(), cookie);
        directory.changed();
        if self.get(ino)?.attributes.kind == Kind::Directory {
            self.get(dir)?.attributes.nlink += 1;
        }
        Ok(())
    }

    fn remove(&mut self, dir: Ino, name: &OsStr) -> Result<Ino> {
        let ino = self.find(dir, name)?;
        let is_dir = self.get(ino)?.attributes.kind == Kind::Directory;
        let directory = self.get(dir)?;
        let cookie = directory.cookies.remove(name).unwrap();
        directory.names.remove(&cookie);
        directory.changed();
        directory.attributes.nlink -= u32::from(is_dir);
        Ok(ino)
    }

    fn drop_name(&mut self, ino: Ino) {
        let inode = self.inodes.get_mut(&ino).unwrap();
        let is_dir = inode.attributes.kind == Kind::Directory;
        inode.attributes.nlink -= if is_dir { 2 } else { 1 };
        inode.attributes.ctime = now();
        self.drop_unused(ino);
    }

    fn drop_unused(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.attributes.nlink == 0 && inode.known == 0 && inode.open == 0)
        {
            self.inodes.remove(&ino);
        }
    }

    fn given(&mut self, ino: Ino) -> Result<Attributes> {
        let inode = self.get(ino)?;
        inode.known += 1;
        Ok(inode.attributes)
    }
}

impl Inode {
    fn new(attributes: Attributes) -> Inode {
        let (data, target, names, cookies, xattrs) = Default::default();
        Inode { attributes, data, target, names, cookies, next_cookie: 0, xattrs, known: 0, open: 0 }
    }

    fn changed(&mut self) {
        self.attributes.mtime = now();
        self.attributes.ctime = self.attributes.mtime;
    }

    fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        self.attributes.size = size;
        self.attributes.blocks = size.div_ceil(4096) * 8;
        self.changed();
    }
}

impl MemoryTree {
    /// A tree whose root belongs to this user.
    pub fn new() -> MemoryTree {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (kind, mode, time) = (Kind::Directory, 0o755, now());
        let (nlink, rdev, size, blocks) = (2, 0, 0, 0);
        let (atime, mtime, ctime) = (time, time, time);
        let root = Attributes { ino: ROOT, kind, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime };
        let inodes = HashMap::from([(ROOT, Inode::new(root))]);
        let state = Mutex::new(State { inodes, last: ROOT, ..State::default() });
        MemoryTree { state, before_write: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The kernel's requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    /// Sets a function that the handler of the next write calls first.
    pub fn before_next_write(&self, run: impl FnOnce(Ino) + Send + 'static) {
        *self.before_write.lock() = Some(Box::new(run));
    }

    /// Makes writes and syncs of everything fail from now on, or succeed again.
    pub fn fail_writes(&self, failing: bool) {
        self.state().failing = failing;
    }

    /// Pulls nothing from now on, so that tests see writes that the kernel sends late by itself.
    pub fn be_lazy(&self) {
        self.state().lazy = true;
    }

    fn write_back(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        let lazy = self.state().lazy;
        if lazy { Ok(()) } else { cache.write_back(ino) }
    }

    /// Number of inodes.
    pub fn inodes(&self) -> usize {
        self.state().inodes.len()
    }
}

impl FileTree for MemoryTree {
    fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Attributes> {
        let mut state = self.state();
        let ino = state.find(dir, name)?;
        state.given(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state();
        let inode = state.get(ino).expect("the kernel forgets what it was given");
        inode.known = inode.known.checked_sub(count).expect("the kernel forgets no more than it was given");
        state.drop_unused(ino);
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(self.state().get(ino)?.attributes)
    }

    fn set_attributes(&self, ino: Ino, change: &Change) -> Result<Attributes> {
        let mut state = self.state();
        if let Some(size) = change.size {
            state.asked.push(Asked::Truncate(ino, size));
            if size > 1 << 30 {
                return errno(libc::EFBIG);
            }
        }
        let inode = state.get(ino)?;
        inode.attributes.ctime = now();
        if let Some(size) = change.size {
            inode.resize(size);
        }
        let attributes = &mut inode.attributes;
        attributes.mode = change.mode.unwrap_or(attributes.mode);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        let time = |set| match set {
            SetTime::Now => now(),
            SetTime::At(time) => time,
        };
        attributes.atime = change.atime.map_or(attributes.atime, time);
        attributes.mtime = change.mtime.map_or(attributes.mtime, time);
        attributes.ctime = change.ctime.unwrap_or(attributes.ctime);
        Ok(*attributes)
    }

    fn make(&self, by: Request, dir: Ino, name: &OsStr, kind: Kind, mode: u32, rdev: u32) -> Result<Attributes> {
        let mut state = self.state();
        let ino = state.new_inode(by, dir, kind, mode, rdev)?;
        if let Err(e) = state.add(dir, name, ino) {
            state.inodes.remove(&ino);
            return Err(e);
        }
        state.given(ino)
    }

    fn make_unnamed(&self, by: Request, dir: Ino, mode: u32) -> Result<Attributes> {
        let mut state = self.state();
        let ino = state.new_inode(by, dir, Kind::File, mode, 0)?;
        state.get(ino)?.attributes.nlink = 0;
        state.given(ino)
    }

    fn symlink(&self, by: Request, dir: Ino, name: &OsStr, target: &OsStr) -> Result<Attributes> {
        let made = self.make(by, dir, name, Kind::Symlink, 0o777, 0)?;
        let mut state = self.state();
        let inode = state.get(made.ino)?;
        inode.target = target.to_owned();
        inode.attributes.size = target.len() as u64;
        Ok(inode.attributes)
    }

    fn read_link(&self, ino: Ino) -> Result<OsString> {
        Ok(self.state().get(ino)?.target.clone())
    }

    fn link(&self, ino: Ino, dir: Ino, name: &OsStr, cache: &dyn KernelCache) -> Result<Attributes> {
        self.write_back(ino, cache)?;
        let mut state = self.state();
        state.add(dir, name, ino)?;
        state.asked.push(Asked::Link);
        let inode = state.get(ino)?;
        inode.attributes.nlink += 1;
        inode.attributes.ctime = now();
        state.given(ino)
    }

    fn unlink(&self, dir: Ino, name: &OsStr) -> Result<()> {
        let mut state = self.state();
        let ino = state.remove(dir, name)?;
        state.drop_name(ino);
        Ok(())
    }

    fn remove_dir(&self, dir: Ino, name: &OsStr) -> Result<()> {
        let mut state = self.state();
        let ino = state.find(dir, name)?;
        if !state.get(ino)?.names.is_empty() {
            return errno(libc::ENOTEMPTY);
        }
        state.remove(dir, name)?;
        state.drop_name(ino);
        Ok(())
    }

    fn rename(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
        cache: &dyn KernelCache,
    ) -> Result<()> {
        let ino = self.state().find(from.0, from.1)?;
        self.write_back(ino, cache)?;
        let mut state = self.state();
        state.asked.push(Asked::Rename);
        let target = state.find(to.0, to.1).ok();
        match (flags, target) {
            (RenameFlags::NoReplace, Some(_)) => return errno(libc::EEXIST),
            (RenameFlags::Exchange, None) => return errno(libc::ENOENT),
            (_, Some(target)) if target == ino => return Ok(()),
            (RenameFlags::Exchange, Some(target)) => {
                state.remove(from.0, from.1)?;
                state.remove(to.0, to.1)?;
                state.add(from.0, from.1, target)?;
                state.add(to.0, to.1, ino)?;
            }
            (_, target) => {
                if let Some(target) = target {
                    if !state.get(target)?.names.is_empty() {
                        return errno(libc::ENOTEMPTY);
                    }
                    state.remove(to.0, to.1)?;
                    state.drop_name(target);
                }
                state.remove(from.0, from.1)?;
                state.add(to.0, to.1, ino)?;
            }
        }
        state.get(ino)?.attributes.ctime = now();
        Ok(())
    }

    fn read_dir(&self, dir: Ino, start: u64, most: usize) -> Result<Vec<Entry>> {
        let mut state = self.state();
        let names: Vec<_> =
            state.get(dir)?.names.range(start + 1..).take(most).map(|(next, name)| (*next, name.clone())).collect();
        let entry = |(next, (name, ino)): (u64, (OsString, Ino))| {
            let kind = state.get(ino)?.attributes.kind;
            Ok(Entry { next, name, ino, kind })
        };
        names.into_iter().map(entry).collect()
    }

    fn open(&self, ino: Ino, _writable: bool) -> Result<()> {
        self.state().get(ino)?.open += 1;
        Ok(())
    }

    fn release(&self, ino: Ino, _writable: bool) -> bool {
        let mut state = self.state();
        state.asked.push(Asked::Release(ino));
        let inode = state.get(ino).expect("what is released is there");
        inode.open = inode.open.checked_sub(1).expect("no more is released than was opened");
        state.drop_unused(ino);
        true
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.state();
        let data = &state.get(ino)?.data;
        let from = data.len().min(offset as usize);
        let len = buf.len().min(data.len() - from);
        buf[..len].copy_from_slice(&data[from..from + len]);
        Ok(len)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let before = self.before_write.lock().take();
        if let Some(before) = before {
            before(ino);
        }
        let mut state = self.state();
        if state.failing {
            return errno(libc::EIO);
        }
        state.asked.push(Asked::Write(ino, offset, data.len()));
        let inode = state.get(ino)?;
        let end = offset as usize + data.len();
        if end > inode.data.len() {
            inode.resize(end as u64);
        }
        inode.data[offset as usize..end].copy_from_slice(data);
        Ok(())
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()> {
        let mut state = self.state();
        state.asked.push(Asked::Allocate(ino));
        let inode = state.get(ino)?;
        let size = inode.data.len() as u64;
        let zero = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !(zero | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return errno(libc::EOPNOTSUPP);
        }
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && offset + len > size {
            inode.resize(offset + len);
        }
        if mode & zero != 0 {
            let end = (offset + len).min(size).max(offset.min(size));
            inode.data[offset.min(size) as usize..end as usize].fill(0);
        }
        inode.changed();
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, whence: i32, cache: &dyn KernelCache) -> Result<u64> {
        self.write_back(ino, cache)?;
        let mut state = self.state();
        state.asked.push(Asked::Seek(ino));
        let size = state.get(ino)?.data.len() as u64;
        match whence {
            _ if offset >= size => errno(libc::ENXIO),
            libc::SEEK_DATA => Ok(offset),
            libc::SEEK_HOLE => Ok(size),
            _ => errno(libc::EINVAL),
        }
    }

    fn sync(&self, ino: Ino, cache: &dyn KernelCache) -> Result<()> {
        self.write_back(ino, cache)?;
        self.state().asked.push(Asked::Sync(ino));
        Ok(())
    }

    fn sync_names(&self, _cache: &dyn KernelCache) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self, cache: &dyn KernelCache) -> Result<()> {
        let open: Vec<Ino> =
            self.state().inodes.iter().filter(|(_, inode)| inode.open > 0).map(|(ino, _)| *ino).collect();
        open.into_iter().try_for_each(|ino| self.write_back(ino, cache))?;
        let mut state = self.state();
        state.asked.push(Asked::SyncAll);
        if state.failing { errno(libc::EIO) } else { Ok(()) }
    }

    fn prepare_end(&self, cache: &dyn KernelCache) -> Result<()> {
        self.sync_all(cache)
    }

    fn sync_files(&self, inos: &[Ino], cache: &dyn KernelCache) -> Result<()> {
        inos.iter().try_for_each(|ino| self.write_back(*ino, cache))?;
        self.state().asked.push(Asked::SyncFiles(inos.to_vec()));
        Ok(())
    }

    fn begin(&self, _: u64, _: bool) -> Result<Transaction> {
        Err(Errno(libc::ENOTTY))
    }

    fn add(&self, _: Transaction, _: Ino) -> Result<()> {
        Err(Errno(libc::ENOTTY))
    }

    fn commit_together(&self, _: &[Transaction], _: &dyn KernelCache) -> Result<()> {
        Err(Errno(libc::ENOSYS))
    }

    fn commit(&self, _: Transaction, _: bool, _: &dyn KernelCache) -> Result<()> {
        Err(Errno(libc::ENOTTY))
    }

    fn abort(&self, _: Transaction, _: bool, _: &dyn KernelCache) -> Result<bool> {
        Err(Errno(libc::ENOTTY))
    }

    fn dissolve(&self, _: Transaction) {}

    fn transactions_of(&self, _: u64) -> Vec<Transaction> {
        Vec::new()
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        let state = self.state();
        let lies_in = |inode: &Inode| inode.names.values().any(|(_, ino)| *ino == dir);
        Ok(state.inodes.iter().find(|(_, inode)| lies_in(inode)).map_or(ROOT, |(ino, _)| *ino))
    }

    fn has_no_name(&self, ino: Ino) -> bool {
        self.attributes(ino).map_or(true, |now| now.nlink == 0)
    }

    fn status(&self) -> Result<TreeStatus> {
        Ok(TreeStatus { inodes: self.state().inodes.len(), ..TreeStatus::default() })
    }

    fn end_opening(&self, _: u64) -> Vec<Transaction> {
        Vec::new()
    }

    fn left(&self) -> Vec<Transaction> {
        Vec::new()
    }

    fn leave(&self, _: Transaction, _: &dyn KernelCache) {}

    fn tick(&self, _cache: &dyn KernelCache) {}

    fn xattr(&self, ino: Ino, name: &OsStr) -> Result<Vec<u8>> {
        self.state().get(ino)?.xattrs.get(name).cloned().ok_or(Errno(libc::ENODATA))
    }

    fn set_xattr(&self, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        let mut state = self.state();
        let xattrs = &mut state.get(ino)?.xattrs;
        match xattrs.contains_key(name) {
            true if flags & libc::XATTR_CREATE != 0 => errno(libc::EEXIST),
            false if flags & libc::XATTR_REPLACE != 0 => errno(libc::ENODATA),
            _ => {
                xattrs.insert(name.to_owned(), value.to_vec());
                Ok(())
            }
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<OsString>> {
        Ok(self.state().get(ino)?.xattrs.keys().cloned().collect())
    }

    fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Result<()> {
        self.state().get(ino)?.xattrs.remove(name).map(drop).ok_or(Errno(libc::ENODATA))
    }

    fn space(&self) -> Result<SpaceUse> {
        let (blocks, files) = (1 << 18, 1 << 20);
        Ok(SpaceUse { block_size: 4096, blocks, free: blocks, available: blocks, files, files_free: files })
    }

    fn close(&self, _cache: &dyn KernelCache) -> Result<()> {
        Ok(())
    }
}
