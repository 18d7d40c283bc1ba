//! Translates each request of the kernel into calls of the tree.

mod control;
mod hidden;

use crate::fuse::kernel_cache::{HIDDEN, Locked, MARKS, MountCache};
use crate::fuse::privileges::Privileges;
use crate::fuse::protocol::{
    Answer, ENTRY_LEN, Fields, Header, MAX_READ, OPEN_KILL_SUIDGID, SETXATTR_KILL_SGID, WRITE_CACHE,
    WRITE_KILL_SUIDGID, dirent_len, kind_of, meant, opcode,
};
use crate::fuse::random::rand_u128;
use crate::fuse::waiting_call::{AllSent, WaitingCalls};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use untorn_tree::{
    Attributes, Change, CommitMode, Entry, Errno, FileTree, Ino, KernelCache, Kind, ROOT, RenameFlags, Request, Result,
    SetTime, Time,
};

/// Directory offset after `.`; the next constant is the offset after `..`.
///
/// The offsets of the tree follow, shifted by these two, so that all offsets increase, and fit in 31 bits if those of
/// the tree do.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;
/// Number of names requested from the tree at a time.
const NAMES: usize = 128;

/// Answers requests from a tree.
pub struct Handlers {
    tree: Arc<dyn FileTree>,
    cache: Arc<MountCache>,
    privileges: Privileges,
    calls: WaitingCalls,
    commit: CommitMode,
    /// The next opening's number, without its lowest three bits.
    openings: AtomicU64,
}

/// Whether a handler waits for other requests to be answered, or for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    No,
    /// Only if dirty pages of a file have to be written back; the write-back itself announces the wait.
    InPulls,
    /// For most of the handler's time.
    Always,
}

fn waits(opcode: u32, commit: CommitMode) -> Waits {
    match opcode {
        opcode::READ
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::SYNCFS
        | opcode::FALLOCATE
        | opcode::LSEEK
        | opcode::IOCTL => Waits::Always,
        opcode::FORGET
        | opcode::BATCH_FORGET
        | opcode::GETATTR
        | opcode::GETXATTR
        | opcode::LISTXATTR
        | opcode::LOOKUP
        | opcode::RELEASE
        | opcode::OPENDIR
        | opcode::RELEASEDIR
        | opcode::READDIR
        | opcode::READDIRPLUS
        | opcode::READLINK
        | opcode::STATFS => Waits::No,
        // All requests that change something.
        _ if commit == CommitMode::Write => Waits::Always,
        opcode::RENAME | opcode::RENAME2 | opcode::LINK | opcode::OPEN => Waits::InPulls,
        _ => Waits::No,
    }
}

fn errno<T>(error: i32) -> Result<T> {
    Err(Errno(error))
}

fn writable(flags: u32) -> bool {
    // The fourth access mode, neither for reading nor for writing, is the one with which the helper opens files.
    matches!(flags.cast_signed() & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

impl Handlers {
    /// Creates handlers for a tree.
    pub fn new(tree: Arc<dyn FileTree>, cache: Arc<MountCache>, commit: CommitMode) -> Handlers {
        // Openings that another process numbered may continue, so counting starts at random: no number is used twice.
        let openings = AtomicU64::new(rand_u128() as u64);
        Handlers {
            privileges: Privileges::new(Arc::clone(&tree)),
            tree,
            cache,
            calls: WaitingCalls::new(),
            commit,
            openings,
        }
    }

    /// Whether the handler of a request waits.
    pub fn waits(&self, opcode: u32) -> Waits {
        waits(opcode, self.commit)
    }

    /// Returns a number for an opening. Its lowest bits say whether the opening can write, whether its writes must be
    /// durable, and whether it is the write-back helper's.
    fn handle(&self, flags: u32, is_helpers: bool) -> u64 {
        let durable = flags.cast_signed() & libc::O_DSYNC != 0;
        let bits = u64::from(writable(flags)) | u64::from(durable) << 1 | u64::from(is_helpers) << 2;
        self.openings.fetch_add(8, Relaxed) & !7 | bits
    }

    /// The cache, for a request during which the kernel has locked the inodes of all files that it pulls.
    fn locked(&self) -> Locked<'_> {
        Locked(&self.cache)
    }

    /// Whether each `read` and `write` of a program is one message, so that a write that must be committed as one
    /// arrives as one.
    fn direct(&self) -> bool {
        self.commit == CommitMode::Write
    }

    /// Answers a request; `None` if the request expects no answer.
    pub fn answer(&self, header: &Header, fields: Fields<'_>) -> Option<Result<Answer>> {
        match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => {
                let _ = self.forget(header, fields);
                None
            }
            opcode::INTERRUPT => None,
            _ if header.ino == HIDDEN => Some(self.hidden(header, fields)),
            _ if header.ino == MARKS => Some(self.marks(header, fields)),
            _ => Some(self.ask_tree(header, fields)),
        }
    }

    fn ask_tree(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        let ino = header.ino;
        let done = |result: Result<()>| result.map(|()| Answer::default());
        let entry = |attributes: Attributes| Answer::default().entry(&attributes);
        match header.opcode {
            opcode::LOOKUP => self.lookup(ino, fields.name()?),
            opcode::GETATTR => Ok(Answer::default().stat(&self.tree.attributes(ino)?)),
            opcode::SETATTR => self.set_attributes(header, fields),
            opcode::READLINK => Ok(Answer::default().raw(self.tree.read_link(ino)?.as_bytes())),
            opcode::SYMLINK => {
                let (name, target) = (fields.name()?, fields.name()?);
                self.tree.symlink(by(header, 0), ino, name, target).map(entry)
            }
            opcode::MKNOD => {
                let (mode, rdev) = (fields.u32()?, fields.u32()?);
                let by = by(header, fields.u32()?);
                fields.skip(4)?;
                self.tree.make(by, ino, fields.name()?, kind_of(mode)?, mode & 0o7777, rdev).map(entry)
            }
            opcode::MKDIR => {
                let (mode, by) = (fields.u32()?, by(header, fields.u32()?));
                self.tree.make(by, ino, fields.name()?, Kind::Directory, mode & 0o7777, 0).map(entry)
            }
            opcode::UNLINK => {
                self.tree.unlink(ino, fields.name()?)?;
                self.close_unlinked();
                Ok(Answer::default())
            }
            opcode::RMDIR => done(self.tree.remove_dir(ino, fields.name()?)),
            opcode::RENAME => {
                let to = fields.u64()?;
                self.rename(ino, to, 0, fields)
            }
            opcode::RENAME2 => {
                let (to, flags) = (fields.u64()?, fields.u32()?);
                fields.skip(4)?;
                self.rename(ino, to, flags, fields)
            }
            opcode::LINK => {
                let linked = fields.u64()?;
                self.tree.link(linked, ino, fields.name()?, &self.locked()).map(entry)
            }
            opcode::OPEN => self.open(header, fields.u32()?, fields.u32()?),
            opcode::READ => {
                fields.skip(8)?;
                let (offset, len) = (fields.u64()?, fields.u32()? as usize);
                Answer::filled(len.min(MAX_READ), |buf| self.tree.read(ino, offset, buf))
            }
            opcode::WRITE => self.write(header, fields),
            opcode::STATFS => Ok(Answer::default().space(&self.tree.space()?)),
            opcode::RELEASE => {
                let (handle, writable) = (fields.u64()?, writable(fields.u32()?));
                self.leave_transactions(handle);
                let unlinked = self.tree.has_no_name(ino);
                if self.tree.release(ino, writable) && writable {
                    self.cache.released(ino);
                    // The file lost its last name while it was open, and nothing else closes the helper's descriptor of
                    // it.
                    if unlinked {
                        self.close_unlinked();
                    }
                }
                Ok(Answer::default())
            }
            // The helper's own `fsync` waits for the file's data alone.
            opcode::FSYNC if fields.u64()? & 4 != 0 => Ok(Answer::default()),
            opcode::FSYNC => done(self.sync(header)),
            opcode::FSYNCDIR => done(self.tree.sync_names(&*self.cache)),
            opcode::SYNCFS => done(self.tree.sync_all(&*self.cache)),
            opcode::DESTROY => Ok(Answer::default()),
            opcode::SETXATTR => {
                let (len, flags) = (fields.u32()? as usize, fields.u32()?.cast_signed());
                let kills_setgid = fields.u32()? & SETXATTR_KILL_SGID != 0;
                fields.skip(4)?;
                let name = fields.name()?;
                self.tree.set_xattr(ino, name, fields.bytes(len)?, flags)?;
                if kills_setgid {
                    let mode = self.tree.attributes(ino)?.mode & !libc::S_ISGID;
                    self.tree.set_attributes(ino, &Change { mode: Some(mode), ..Change::default() })?;
                }
                self.privileges.attribute_set(ino, name);
                Ok(Answer::default())
            }
            opcode::GETXATTR => {
                let room = fields.u32()? as usize;
                fields.skip(4)?;
                sized(&self.tree.xattr(ino, fields.name()?)?, room)
            }
            opcode::LISTXATTR => {
                let names = self.tree.xattrs(ino)?;
                let list: Vec<u8> = names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect();
                sized(&list, fields.u32()? as usize)
            }
            opcode::REMOVEXATTR => done(self.tree.remove_xattr(ino, fields.name()?)),
            opcode::OPENDIR => Ok(Answer::default().opened_directory()),
            opcode::RELEASEDIR => Ok(Answer::default()),
            opcode::READDIR => self.read_dir(ino, fields, false),
            opcode::READDIRPLUS => self.read_dir(ino, fields, true),
            opcode::CREATE => self.create(header, fields, true),
            opcode::TMPFILE => self.create(header, fields, false),
            opcode::FALLOCATE => {
                let handle = fields.u64()?;
                let (offset, len, mode) = (fields.u64()?, fields.u64()?, fields.u32()?);
                if self.privileges.before_allocation(header, ino)? {
                    self.cache.forget_attributes(ino)?;
                }
                self.tree.allocate(ino, offset, len, mode.cast_signed())?;
                // The kernel itself requests a sync after a durable write, but not after `fallocate`.
                match handle & 2 != 0 {
                    true => done(self.tree.sync(ino, &self.locked())),
                    false => Ok(Answer::default()),
                }
            }
            opcode::LSEEK => {
                fields.skip(8)?;
                let (offset, whence) = (fields.u64()?, fields.u32()?.cast_signed());
                Ok(Answer::default().u64(self.tree.seek(ino, offset, whence, &self.locked())?))
            }
            opcode::IOCTL => self.control(header, fields),
            _ => errno(libc::ENOSYS),
        }
    }

    fn sync(&self, header: &Header) -> Result<()> {
        // With `--commit=store`, concurrent syncs share a commit, and the other callers want changes that came later
        // than this one's.
        match self.commit != CommitMode::Store && self.calls.have_sent_all(header.thread) {
            true => self.tree.sync(header.ino, &AllSent { ino: header.ino, cache: &self.locked() }),
            false => self.tree.sync(header.ino, &self.locked()),
        }
    }

    fn lookup(&self, dir: Ino, name: &OsStr) -> Result<Answer> {
        if dir == ROOT && self.cache.is_hidden(name) {
            return Ok(Answer::default().unbelieved_entry(&self.hidden_attributes()?));
        }
        match self.tree.lookup(dir, name) {
            // The lookup resolves a file handle. The kernel must not cache this name.
            Ok(found) if name == "." || name == ".." => Ok(Answer::default().unbelieved_entry(&found)),
            Ok(found) => Ok(Answer::default().entry(&found)),
            Err(Errno(libc::ENOENT)) => Ok(Answer::default().no_entry()),
            Err(e) => Err(e),
        }
    }

    fn forget(&self, header: &Header, mut fields: Fields<'_>) -> Result<()> {
        if header.opcode == opcode::FORGET {
            self.forget_one(header.ino, fields.u64()?);
            return Ok(());
        }
        let count = fields.u32()?;
        fields.skip(4)?;
        for _ in 0..count {
            self.forget_one(fields.u64()?, fields.u64()?);
        }
        Ok(())
    }

    fn forget_one(&self, ino: Ino, count: u64) {
        if matches!(ino, HIDDEN | MARKS | ROOT) {
            return;
        }
        match self.cache.forgotten(ino, count) {
            0 => {}
            count => self.tree.forget(ino, count),
        }
    }

    fn set_attributes(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        let ino = header.ino;
        let given = fields.u32()?;
        fields.skip(12)?;
        let size = fields.u64()?;
        fields.skip(8)?;
        let seconds = [fields.u64()?, fields.u64()?, fields.u64()?];
        let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let is = |bit: u32| given & bit != 0;
        let time = |n: usize| Time { seconds: seconds[n].cast_signed(), nanoseconds: nanoseconds[n] };
        let set = |bit, now, n| match (is(bit), is(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(time(n))),
        };
        let change = Change {
            mode: is(meant::MODE).then_some(mode & 0o7777),
            uid: is(meant::UID).then_some(uid),
            gid: is(meant::GID).then_some(gid),
            size: is(meant::SIZE).then_some(size),
            atime: set(meant::ATIME, meant::ATIME_NOW, 0),
            mtime: set(meant::MTIME, meant::MTIME_NOW, 1),
            ctime: is(meant::CTIME).then(|| time(2)),
        };
        // Stores to mappings before the time was set must not change it afterwards. A kernel with a write cache ensures
        // that itself. Without one, it sends the stores at any time, so they are written back here. (While a size is
        // being set, the kernel holds them back.)
        if self.direct() && change.size.is_none() && (change.atime.is_some() || change.mtime.is_some()) {
            // The tree already knows of a failed write.
            let _ = self.locked().write_back(ino);
        }
        let change = self.privileges.with_change(header, ino, change, is(meant::KILL_SUIDGID))?;
        Ok(Answer::default().stat(&self.tree.set_attributes(ino, &change)?))
    }

    fn rename(&self, from: Ino, to: Ino, flags: u32, mut fields: Fields<'_>) -> Result<Answer> {
        let (old, new) = (fields.name()?, fields.name()?);
        let flags = match flags {
            0 => RenameFlags::Replace,
            libc::RENAME_NOREPLACE => RenameFlags::NoReplace,
            libc::RENAME_EXCHANGE => RenameFlags::Exchange,
            _ => return errno(libc::EINVAL),
        };
        self.tree.rename((from, old), (to, new), flags, &self.locked())?;
        self.close_unlinked();
        Ok(Answer::default())
    }

    /// Closes the helper's descriptors of files that have just lost their last name.
    fn close_unlinked(&self) {
        self.cache.unlinked(|ino| self.tree.has_no_name(ino));
    }

    /// Tells the tree that the kernel has received an answer, and does not repeat that request.
    pub fn answered(&self, unique: u64) {
        self.tree.answered(unique);
    }

    /// Takes over the openings of programs from the process that served the mount before.
    pub fn take_over(&self) {
        for (ino, times) in self.tree.opened_for_writing() {
            self.cache.opened(ino, times);
            self.privileges.opened(ino);
        }
    }

    fn open(&self, header: &Header, flags: u32, open_flags: u32) -> Result<Answer> {
        let ino = header.ino;
        let truncates = flags.cast_signed() & libc::O_TRUNC != 0;
        if writable(flags) && !truncates {
            self.tree.restore(ino, &*self.cache)?;
        }
        self.begin(ino, flags)?;
        if truncates {
            let kill = open_flags & OPEN_KILL_SUIDGID != 0;
            let truncated = self
                .privileges
                .with_change(header, ino, Change { size: Some(0), ..Change::default() }, kill)
                .and_then(|change| self.tree.set_attributes(ino, &change).map(|_| change.mode.is_some()))
                .and_then(|lost_bits| if lost_bits { self.cache.forget_attributes(ino) } else { Ok(()) });
            if let Err(e) = truncated {
                self.end(ino, flags);
                return Err(e);
            }
        }
        let is_helpers = self.cache.is_opened_by_helper(ino, header.thread);
        Ok(Answer::default().opened(self.handle(flags, is_helpers), self.direct()))
    }

    /// Registers an opening before the kernel is told of it, so that no write arrives before it.
    fn begin(&self, ino: Ino, flags: u32) -> Result<()> {
        self.tree.open(ino, writable(flags))?;
        if writable(flags) {
            // If the last process had registered this opening before it was killed, `take_over` has already counted it.
            if !untorn_tree::is_repeated() {
                self.cache.opened(ino, 1);
            }
            self.privileges.opened(ino);
        }
        Ok(())
    }

    fn end(&self, ino: Ino, flags: u32) {
        if writable(flags) {
            self.cache.released(ino);
        }
        self.tree.release(ino, writable(flags));
    }

    fn create(&self, header: &Header, mut fields: Fields<'_>, named: bool) -> Result<Answer> {
        let (flags, mode) = (fields.u32()?, fields.u32()? & 0o7777);
        let by = by(header, fields.u32()?);
        fields.skip(4)?;
        let made = match named {
            true => self.tree.make(by, header.ino, fields.name()?, Kind::File, mode, 0)?,
            false => self.tree.make_unnamed(by, header.ino, mode)?,
        };
        if let Err(e) = self.begin(made.ino, flags) {
            self.tree.forget(made.ino, 1);
            return Err(e);
        }
        Ok(Answer::default().entry(&made).opened(self.handle(flags, false), self.direct()))
    }

    fn write(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        let ino = header.ino;
        fields.skip(8)?;
        let (offset, len, flags) = (fields.u64()?, fields.u32()?, fields.u32()?);
        fields.skip(16)?;
        let data = fields.bytes(len as usize)?;
        if self.privileges.before_write(header, ino, flags & WRITE_KILL_SUIDGID != 0)? {
            self.cache.forget_attributes(ino)?;
        }
        match flags & WRITE_CACHE != 0 {
            true => self.tree.write(ino, offset, data)?,
            false => self.tree.write_now(ino, offset, data)?,
        }
        Ok(Answer::default().u32(len).u32(0))
    }

    fn read_dir(&self, dir: Ino, mut fields: Fields<'_>, plus: bool) -> Result<Answer> {
        fields.skip(8)?;
        let (start, room) = (fields.u64()?, fields.u32()? as usize);
        let mut answer = Answer::default();
        let own = |next, name: &str, ino| Entry { next, name: OsString::from(name), ino, kind: Kind::Directory };
        let parent = self.tree.parent(dir)?;
        let mut entries = match start {
            0 => vec![own(AFTER_DOT, ".", dir), own(AFTER_DOT_DOT, "..", parent)],
            AFTER_DOT => vec![own(AFTER_DOT_DOT, "..", parent)],
            _ => Vec::new(),
        };
        let of_tree = self.tree.read_dir(dir, start.saturating_sub(AFTER_DOT_DOT), NAMES)?;
        entries.extend(of_tree.into_iter().map(|entry| Entry { next: entry.next + AFTER_DOT_DOT, ..entry }));
        for entry in entries {
            let len = dirent_len(&entry.name) + if plus { ENTRY_LEN } else { 0 };
            if answer.len() + len > room {
                break;
            }
            if plus {
                let of_tree = entry.next > AFTER_DOT_DOT;
                let found = of_tree.then(|| self.tree.lookup(dir, &entry.name).ok()).flatten();
                answer = match found {
                    Some(found) => answer.entry(&found),
                    // The file was removed meanwhile: the answer has the name alone.
                    None => answer.raw(&[0; ENTRY_LEN]),
                };
            }
            answer = answer.dirent(&entry);
        }
        Ok(answer)
    }
}

fn by(header: &Header, umask: u32) -> Request {
    Request { uid: header.uid, gid: header.gid, umask: umask & 0o777 }
}

/// Answers with a value, or with only its length if the caller gave no room.
fn sized(value: &[u8], room: usize) -> Result<Answer> {
    match room {
        0 => Ok(Answer::default().u32(u32::try_from(value.len()).map_err(|_| Errno(libc::E2BIG))?).u32(0)),
        _ if value.len() > room => errno(libc::ERANGE),
        _ => Ok(Answer::default().raw(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::device::Device;
    use parking_lot::Mutex;
    use std::io;
    use untorn_tree::{HandoverLog, StoreTree, TreeOptions};

    /// A log that is being written, and the one before it.
    #[derive(Default)]
    struct Log(Mutex<(Vec<u8>, Vec<u8>)>);

    impl HandoverLog for Log {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().0.len() as u64)
        }

        fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            bytes.copy_from_slice(&self.0.lock().0[at as usize..][..bytes.len()]);
            Ok(())
        }

        fn append(&self, parts: &[&[u8]]) -> io::Result<()> {
            self.0.lock().1.extend(parts.concat());
            Ok(())
        }

        fn cut(&self, len: u64) -> io::Result<()> {
            self.0.lock().0.truncate(len as usize);
            Ok(())
        }

        fn begin(&self, _: u64) -> io::Result<()> {
            self.0.lock().1.clear();
            Ok(())
        }

        fn finish(&self) -> io::Result<()> {
            self.kill();
            Ok(())
        }

        fn give_up(&self) {
            panic!("the log is given up");
        }
    }

    impl Log {
        /// Ends the process: the next one finds the log as written so far.
        fn kill(&self) {
            let mut logs = self.0.lock();
            logs.0 = logs.1.clone();
        }
    }

    /// The process is killed before it answers: when the kernel repeats the request, the next process has already taken
    /// the opening over.
    #[test]
    fn an_opening_that_is_asked_for_again_is_counted_once() {
        let (dir, log) = (tempfile::tempdir().unwrap(), Arc::new(Log::default()));
        let start = || {
            let store = StoreTree::store_options().open(dir.path()).unwrap();
            let options = TreeOptions { kept: Some(log.clone()), ..TreeOptions::default() };
            let cache = Arc::new(MountCache::new(
                Arc::new(Device::new(std::fs::File::open("/dev/null").unwrap().into())),
                None,
            ));
            let tree = Arc::new(StoreTree::open(store, options).unwrap());
            let handlers = Handlers::new(tree, Arc::clone(&cache), CommitMode::Sync);
            handlers.take_over();
            (handlers, cache)
        };
        let create = [0, opcode::CREATE, 7, 0, 1, 0, 0, 0, 0, 0, libc::O_WRONLY.cast_unsigned(), 0o644, 0, 0];
        let message: Vec<u8> = create.into_iter().flat_map(u32::to_ne_bytes).chain(*b"f\0").collect();
        let ask = |handlers: &Handlers| {
            untorn_tree::answering(7);
            let (header, fields) = Fields::of(&message).unwrap();
            assert!(handlers.answer(&header, fields).unwrap().is_ok());
        };
        let (killed, cache) = start();
        ask(&killed);
        assert_eq!(cache.end().iter().map(|(_, writers)| *writers).collect::<Vec<_>>(), [1]);
        drop(killed);
        log.kill();
        let (handlers, cache) = start();
        ask(&handlers);
        assert_eq!(cache.end().iter().map(|(_, writers)| *writers).collect::<Vec<_>>(), [1]);
    }
}
