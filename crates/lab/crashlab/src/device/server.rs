//! The device: serves the disk and `acks` through FUSE, and logs.
//!
//! One thread answers the requests one by one, so that the log has them in the order in which the device took them: a
//! write is logged before it is answered, and a flush covers the writes that were answered before it.

use super::event::Event;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The environment variable that makes this process the device: the paths of disk, log and mount point, separated by
/// tabs.
pub(super) const ASKED: &str = "UNTORN_CRASHLAB_DEVICE";
pub(super) const DISK: &str = "disk";
pub(super) const ACKS: &str = "acks";

/// From `<linux/prctl.h>`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The limit of the log, for a program that writes for ever.
const LOG_BYTES_MAX: u64 = 2 << 30;
const FOREVER: Duration = Duration::from_secs(3600);
const ROOT_NODE: u64 = 1;
const DISK_NODE: u64 = 2;
const ACKS_NODE: u64 = 3;

/// If this process was started as the device, serves it and ends the process; otherwise does nothing.
pub fn serve_if_asked() {
    let Ok(order) = std::env::var(ASKED) else { return };
    let code = match serve(&order) {
        Ok(()) => 0,
        Err(e) => {
            // Printing may fail, but the exit code says it, too.
            let _ = writeln!(io::stderr(), "the recording device: {e}");
            1
        }
    };
    std::process::exit(code);
}

fn serve(order: &str) -> io::Result<()> {
    let words: Vec<_> = order.split('\t').collect();
    let [disk, log, place] = words[..] else { return Err(io::Error::other("disk, log and place are wanted")) };
    // The server must not wait for memory that needs its own disk. If the call is not allowed, there is usually enough
    // memory.
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    let disk = OpenOptions::new().read(true).write(true).open(disk)?;
    let log = OpenOptions::new().append(true).open(log)?;
    let bytes = disk.metadata()?.len();
    let state = Arc::new(Mutex::new(State { disk, log, ..State::default()? }));
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("untorn-crashlab".into())];
    let session = Session::new(Server { state: state.clone(), bytes }, place, &config)?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    std::thread::spawn(move || {
        let _ = obey(&control, &state);
        // The worker has closed the connection, so the device is not needed any more. The kernel fails pending requests
        // as soon as this process has ended.
        std::process::exit(0);
    });
    session.run()
}

/// The requests that the device was told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Writes,
    Flushes,
    /// Flushes fail, and unflushed data is lost, as if the disk had lost its cache.
    FlushesAndCache,
}

/// The numbers of writes or flushes.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// All of them, including failed ones.
    all: u64,
    failed: u64,
}

impl Counts {
    /// Counts one; returns whether it fails.
    fn count(&mut self, failing: bool, first: u64) -> bool {
        self.all += 1;
        let fails = failing && self.all >= first;
        self.failed += u64::from(fails);
        fails
    }
}

struct State {
    disk: File,
    log: File,
    log_bytes: u64,
    failing: Option<Failing>,
    /// The number of the first one that fails.
    first: u64,
    writes: Counts,
    flushes: Counts,
    flush_time: Duration,
    /// The bytes that unflushed writes have overwritten, if the device was told to keep them.
    undo: Option<Vec<(u64, Vec<u8>)>>,
    /// The unfinished line of `acks`.
    line: Vec<u8>,
}

impl State {
    fn default() -> io::Result<State> {
        let nowhere = || OpenOptions::new().read(true).write(true).open("/dev/null");
        Ok(State {
            disk: nowhere()?,
            log: nowhere()?,
            log_bytes: 0,
            failing: None,
            first: 0,
            writes: Counts::default(),
            flushes: Counts::default(),
            flush_time: Duration::ZERO,
            undo: None,
            line: Vec::new(),
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if self.writes.count(self.failing == Some(Failing::Writes), self.first) {
            return Err(Errno::EIO);
        }
        self.log_bytes += bytes.len() as u64;
        if self.log_bytes > LOG_BYTES_MAX {
            return Err(Errno::ENOSPC);
        }
        if let Some(undo) = &mut self.undo {
            let mut old = vec![0; bytes.len()];
            self.disk.read_exact_at(&mut old, offset).map_err(Errno::from)?;
            undo.push((offset, old));
        }
        self.disk.write_all_at(bytes, offset).map_err(Errno::from)?;
        Event::append_write(&mut self.log, offset, bytes).map_err(Errno::from)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let failing = self.failing.filter(|what| *what != Failing::Writes);
        if !self.flushes.count(failing.is_some(), self.first) {
            if let Some(undo) = &mut self.undo {
                undo.clear();
            }
            return Event::Flush.append(&mut self.log).map_err(Errno::from);
        }
        if failing == Some(Failing::FlushesAndCache) {
            for (offset, old) in self.undo.replace(Vec::new()).unwrap_or_default().into_iter().rev() {
                self.disk.write_all_at(&old, offset).map_err(Errno::from)?;
                Event::append_write(&mut self.log, offset, &old).map_err(Errno::from)?;
            }
        }
        Err(Errno::EIO)
    }

    fn acknowledge(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.line.extend_from_slice(bytes);
        while let Some(end) = self.line.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            Event::Line(String::from_utf8_lossy(&line[..end]).into_owned()).append(&mut self.log)?;
        }
        Ok(())
    }

    /// Fails writes or flushes from the n-th on, counted from the device's start.
    fn fail(&mut self, what: Failing, n: &str) -> io::Result<()> {
        (self.failing, self.first) = (Some(what), n.parse().map_err(io::Error::other)?);
        Ok(())
    }

    /// Obeys one order, and returns the answer.
    fn order(&mut self, order: &str) -> io::Result<String> {
        let (verb, rest) = match order.starts_with("mark ") {
            true => order.split_once(' '),
            false => order.rsplit_once(' '),
        }
        .unwrap_or((order, ""));
        match (verb, rest) {
            ("ready?", _) => {}
            ("counts?", _) => {
                let (w, f) = (self.writes, self.flushes);
                return Ok(format!("{} {} {} {}", w.all, w.failed, f.all, f.failed));
            }
            ("mark", text) => Event::Mark(text.to_owned()).append(&mut self.log)?,
            ("flush_us", us) => self.flush_time = Duration::from_micros(us.parse().map_err(io::Error::other)?),
            ("remember", _) => drop(self.undo.get_or_insert_default()),
            ("heal", _) => self.failing = None,
            ("fail writes from", n) => self.fail(Failing::Writes, n)?,
            ("fail flushes from", n) => self.fail(Failing::Flushes, n)?,
            ("lose cache from", n) => self.fail(Failing::FlushesAndCache, n)?,
            _ => return Err(io::Error::other(format!("no such order: {order}"))),
        }
        Ok("done".to_owned())
    }
}

fn obey(control: &UnixStream, state: &Mutex<State>) -> io::Result<()> {
    for order in BufReader::new(control).lines() {
        let answer = state.lock().order(&order?);
        let answer = answer.unwrap_or_else(|e| format!("error: {e}"));
        (&*control).write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

struct Server {
    state: Arc<Mutex<State>>,
    bytes: u64,
}

impl Server {
    fn locked<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock())
    }

    fn attributes(&self, node: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match node {
            ROOT_NODE => (FileType::Directory, 0o700, 0),
            DISK_NODE => (FileType::RegularFile, 0o600, self.bytes),
            ACKS_NODE => (FileType::RegularFile, 0o600, 0),
            _ => return None,
        };
        let never: SystemTime = UNIX_EPOCH;
        Some(FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size / 512,
            atime: never,
            mtime: never,
            ctime: never,
            crtime: never,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config.set_max_write(WRITE_BYTES_MAX).map(|_| ()).map_err(|_| io::Error::other("max_write"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match name.to_str() {
            Some(DISK) => DISK_NODE,
            Some(ACKS) => ACKS_NODE,
            _ => 0,
        };
        match self.attributes(node) {
            Some(attributes) if parent.0 == ROOT_NODE => reply.entry(&FOREVER, &attributes, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(node.0) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Times do not matter here, and `acks` is never truncated, even if it is opened with truncation.
    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(node.0) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = match node.0 {
            // Every write comes here at once, with any offset.
            ACKS_NODE => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NONSEEKABLE,
            _ => FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if node.0 != DISK_NODE {
            return reply.data(&[]);
        }
        let size = u64::from(size).min(self.bytes.saturating_sub(offset));
        let mut bytes = vec![0; size as usize];
        match self.locked(|state| state.disk.read_exact_at(&mut bytes, offset)) {
            Ok(()) => reply.data(&bytes),
            Err(e) => reply.error(Errno::from(e)),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = self.locked(|state| match node.0 {
            DISK_NODE => state.write(offset, data),
            _ => state.acknowledge(data).map_err(Errno::from),
        });
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if node.0 != DISK_NODE {
            return reply.ok();
        }
        let (done, mut time) = self.locked(|state| (state.flush(), state.flush_time));
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(Duration::from_millis(5)));
            // A shorter time that is told meanwhile holds for this flush, too.
            time = time.min(self.locked(|state| state.flush_time));
        }
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = [(DISK_NODE, DISK), (ACKS_NODE, ACKS)];
        for (n, (node, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(node), n as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}
