//! Makes the kernel send the cached dirty pages of a file to the tree, through a helper process (`write_back_helper`)
//! that has descriptors on the mount.
//!
//! The helper keeps a descriptor of each file as long as a program has the file open for writing, and of a few files
//! some time longer. Where the helper cannot be had, the kernel is made to send by dropping its cache of the file.

use crate::fuse::arrivals::Arrivals;
use crate::fuse::device::Device;
use crate::fuse::random::rand_u128;
use crate::fuse::write_back_helper::{Awaits, NOT_ALLOWED, NOT_OPENED, WRITE_BACK_HELPER, WriteBack};
use crate::processes::passed_descriptors::{connection, receive, send};
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use untorn_tree::{Errno, Ino, KernelCache, Result};

/// Inode number of the hidden directory.
pub const HIDDEN: Ino = u64::MAX - 1;
/// Inode number of the file in it from which the helper reads [marks](crate::fuse::arrivals).
pub const MARKS: Ino = u64::MAX - 2;

/// How long the helper may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two checks whether it has ended.
const MOMENT: Duration = Duration::from_millis(1);
/// How many files without writers keep their descriptors: many programs open a file, write, sync and close it, over and
/// over.
const KEPT: usize = 16;
/// How often the helper is asked for one file.
const TRIES: usize = 4;
/// After the helper was started this many times, it is not started again.
const STARTS_MAX: usize = 100;

/// State of the hidden directory.
#[derive(Default)]
struct Hidden {
    /// The name under which a lookup in the root finds the directory, while the helper opens it.
    name: Option<OsString>,
    directory: Option<Arc<OwnedFd>>,
    /// Files that the helper is asked to look up in the directory.
    asked: HashMap<Ino, Asked>,
}

/// Requests to the helper to look a file up.
#[derive(Default)]
struct Asked {
    /// Requests that are not answered.
    requests: usize,
    /// Whether a lookup is still to come.
    expected: bool,
    /// Threads of the helper that have looked the file up, and have not opened it.
    threads: HashSet<u32>,
}

impl Hidden {
    fn begin(&mut self, ino: Ino) {
        let asked = self.asked.entry(ino).or_default();
        asked.requests += 1;
        asked.expected = true;
    }

    fn end(&mut self, ino: Ino) {
        let Some(asked) = self.asked.get_mut(&ino) else { return };
        asked.requests -= 1;
        asked.expected = false;
        if asked.requests == 0 {
            self.asked.remove(&ino);
        }
    }

    /// Whether a lookup was expected, which `thread` makes.
    fn take(&mut self, ino: Ino, thread: u32) -> bool {
        let Some(asked) = self.asked.get_mut(&ino) else { return false };
        let expected = std::mem::take(&mut asked.expected);
        if expected {
            asked.threads.insert(thread);
        }
        expected
    }
}

/// The helper process, which writes back.
struct Helper {
    control: OwnedFd,
    /// Connections that no request is using.
    lines: Mutex<Vec<OwnedFd>>,
    child: Mutex<Child>,
}

/// Bookkeeping about files.
#[derive(Default)]
struct Files {
    /// How often programs have each file open for writing.
    writers: HashMap<Ino, u64>,
    /// Files that the helper has open.
    written_back: HashSet<Ino>,
    /// Those of `written_back` that have no writers, the longest idle first.
    idle: VecDeque<Ino>,
    /// The mount is no longer attached to any directory.
    detached: bool,
}

/// Makes the kernel send dirty pages, by the helper process or, without it, by dropping the cache.
pub struct MountCache {
    device: Arc<Device>,
    hidden: Mutex<Hidden>,
    helper: Mutex<Option<Arc<Helper>>>,
    program: Mutex<Option<PathBuf>>,
    starts: Mutex<usize>,
    /// Locked while the helper reads from the kernel's cache.
    reading: Mutex<()>,
    files: Mutex<Files>,
    /// How often the kernel got each inode from a lookup in the hidden directory. The tree does not count those
    /// lookups.
    given: Mutex<HashMap<Ino, u64>>,
    when_closed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    ended: AtomicBool,
    before_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// For kernels whose writeback ends before this process has the data.
    arrivals: Option<Arc<Arrivals>>,
}

impl Helper {
    fn start(program: &Path) -> io::Result<Helper> {
        let (ours, theirs) = connection()?;
        let mut command = Command::new(program);
        command
            .arg0("untorn-mount")
            .arg(WRITE_BACK_HELPER)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // `spawn` does not copy this process. After a copy, the kernel has to find memory for pages that it was about
        // to hand over to a thread, and if the daemon is killed at that time, a write is lost.
        let child = command.spawn()?;
        Ok(Helper { control: ours, lines: Mutex::default(), child: Mutex::new(child) })
    }

    /// Sends a request of numbers, as [`write_back_helper`](crate::fuse::write_back_helper) defines them. Returns an
    /// error number, and fills `bytes` if there are some.
    ///
    /// An error of the connection means that the helper has ended.
    fn ask(&self, asked: &[u64], bytes: &mut [u8]) -> rustix::io::Result<i32> {
        let idle = self.lines.lock().pop();
        let line = match idle {
            Some(line) => line,
            None => {
                let (ours, theirs) = connection()?;
                send(&self.control, b"line", Some(theirs.as_fd()))?;
                ours
            }
        };
        let asked: Vec<u8> = asked.iter().copied().flat_map(u64::to_ne_bytes).collect();
        send(&line, &asked, None)?;
        let mut answer = vec![0; 4 + bytes.len()];
        let (len, _) = receive(&line, &mut answer)?;
        let (number, read) = answer[..len].split_first_chunk().ok_or(rustix::io::Errno::PIPE)?;
        self.lines.lock().push(line);
        match i32::from_ne_bytes(*number) {
            0 if read.len() == bytes.len() => bytes.copy_from_slice(read),
            0 => return Ok(libc::EIO),
            error => return Ok(error),
        }
        Ok(0)
    }

    fn close(&self, ino: Ino) {
        // If the helper has ended, its descriptors are closed.
        let _ = send(&self.control, &ino.to_ne_bytes(), None);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The helper ends when the connection is closed and the kernel has sent the dirty pages of its files.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let started = Instant::now();
        let mut child = self.child.lock();
        while matches!(child.try_wait(), Ok(None)) && started.elapsed() < PATIENCE {
            std::thread::sleep(MOMENT);
        }
    }
}

impl MountCache {
    /// Creates it without a helper process.
    pub fn new(device: Arc<Device>, arrivals: Option<Arc<Arrivals>>) -> MountCache {
        MountCache {
            device,
            hidden: Mutex::default(),
            helper: Mutex::default(),
            program: Mutex::default(),
            starts: Mutex::default(),
            reading: Mutex::default(),
            files: Mutex::default(),
            given: Mutex::default(),
            when_closed: Mutex::default(),
            ended: AtomicBool::new(false),
            before_waiting: OnceLock::new(),
            arrivals,
        }
    }

    /// Sets a function that a thread calls before it waits for a write-back.
    pub fn before_waiting(&self, first: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_waiting.set(Box::new(first));
    }

    /// Starts the helper from `program`, which must be this program.
    ///
    /// The hidden directory is `given`, or is opened beneath a mount point that answers.
    pub fn start(&self, program: &Path, at: &Path, given: Option<OwnedFd>) -> io::Result<()> {
        *self.program.lock() = Some(program.to_owned());
        if let Some(given) = given {
            self.hidden.lock().directory = Some(Arc::new(given));
            return self.start_again().map(drop);
        }
        let helper = Helper::start(program)?;
        let name = OsString::from(format!(".{:032x}", rand_u128()));
        self.hidden.lock().name = Some(name.clone());
        let asked = send(&helper.control, at.join(&name).as_os_str().as_bytes(), None);
        let answered = asked.and_then(|()| receive(&helper.control, &mut [0]));
        let mut hidden = self.hidden.lock();
        hidden.name = None;
        let (_, directory) = answered?;
        let directory = directory.ok_or(io::ErrorKind::PermissionDenied)?;
        hidden.directory = Some(Arc::new(directory));
        drop(hidden);
        *self.helper.lock() = Some(Arc::new(helper));
        Ok(())
    }

    /// Returns the hidden directory, for the process that serves the mount after this one.
    pub fn hidden_directory(&self) -> Option<Arc<OwnedFd>> {
        self.hidden.lock().directory.clone()
    }

    /// Sets a function that is called when the hidden directory is closed here.
    pub fn when_closed(&self, then: impl FnOnce() + Send + 'static) {
        *self.when_closed.lock() = Some(Box::new(then));
    }

    /// Returns the number of the helper process, which no program has started.
    pub fn process(&self) -> Option<u32> {
        self.helper.lock().as_ref().map(|helper| helper.child.lock().id())
    }

    fn start_again(&self) -> io::Result<Arc<Helper>> {
        let mut current = self.helper.lock();
        if let Some(helper) = &*current {
            return Ok(Arc::clone(helper));
        }
        let directory = self.hidden.lock().directory.clone().ok_or(io::ErrorKind::NotFound)?;
        let program = self.program.lock().clone().ok_or(io::ErrorKind::NotFound)?;
        let mut starts = self.starts.lock();
        if *starts >= STARTS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        *starts += 1;
        let helper = Helper::start(&program)?;
        send(&helper.control, b"hidden", Some(directory.as_fd()))?;
        let helper = Arc::new(helper);
        *current = Some(Arc::clone(&helper));
        Ok(helper)
    }

    /// Forgets a helper that was killed.
    fn lost(&self, helper: &Arc<Helper>) {
        let mut current = self.helper.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, helper)) {
            *current = None;
            let mut files = self.files.lock();
            files.written_back.clear();
            files.idle.clear();
        }
    }

    /// Stops all write-backs, when the mount is gone and the kernel has sent everything.
    ///
    /// Returns each file that was open for writing, and how often; the kernel need not have sent a release for these
    /// openings.
    pub fn end(&self) -> Vec<(Ino, u64)> {
        self.ended.store(true, Ordering::Release);
        self.close_all();
        self.files.lock().writers.drain().collect()
    }

    /// Closes all descriptors on the mount as soon as no program has a file open for writing, so that the kernel can
    /// end the mount. Called when the mount is no longer attached to any directory.
    pub fn close_when_unused(self: &Arc<MountCache>) {
        let unused = {
            let mut files = self.files.lock();
            files.detached = true;
            files.writers.is_empty()
        };
        if unused {
            self.close_all();
        }
    }

    /// Closes all descriptors on the mount. Pulls still work, and drop the kernel's cache.
    pub fn close_all(&self) {
        self.hidden.lock().directory = None;
        if let Some(then) = self.when_closed.lock().take() {
            then();
        }
        let helper = self.helper.lock().take();
        {
            let mut files = self.files.lock();
            files.written_back.clear();
            files.idle.clear();
        }
        // Waits for the helper's end. A handler that uses the helper holds a reference until it has its answer.
        let Some(helper) = helper else { return };
        let started = Instant::now();
        while Arc::strong_count(&helper) > 1 && started.elapsed() < PATIENCE {
            std::thread::sleep(MOMENT);
        }
    }

    /// Whether a name in the root is that of the hidden directory.
    pub fn is_hidden(&self, name: &OsStr) -> bool {
        self.hidden.lock().name.as_deref() == Some(name)
    }

    /// Whether a file is being looked up in the hidden directory for a write-back; if so, counts that the kernel gets
    /// the inode once more.
    pub fn gives(&self, ino: Ino, thread: u32) -> bool {
        let expected = self.hidden.lock().take(ino, thread);
        if expected {
            *self.given.lock().entry(ino).or_default() += 1;
        }
        expected
    }

    /// Whether the helper opens the file with this request of a thread.
    pub fn is_opened_by_helper(&self, ino: Ino, thread: u32) -> bool {
        // A thread without a number here may be anybody's.
        thread != 0 && self.hidden.lock().asked.get_mut(&ino).is_some_and(|asked| asked.threads.remove(&thread))
    }

    /// For kernels whose writeback ends before this process has the data.
    pub fn arrivals(&self) -> Option<&Arrivals> {
        self.arrivals.as_deref()
    }

    /// Returns how many of the `count` lookups that the kernel forgets were lookups in the tree.
    pub fn forgotten(&self, ino: Ino, count: u64) -> u64 {
        let mut given = self.given.lock();
        let Some(own) = given.get_mut(&ino) else { return count };
        let taken = count.min(*own);
        *own -= taken;
        if *own == 0 {
            given.remove(&ino);
        }
        count - taken
    }

    /// Makes the kernel forget its attributes of a file that the requesting program has open, because those in the tree
    /// have changed.
    pub fn forget_attributes(&self, ino: Ino) -> Result<()> {
        self.device.forget_attributes(ino)
    }

    /// Notes that programs have opened a file for writing `times` times.
    pub fn opened(&self, ino: Ino, times: u64) {
        let mut files = self.files.lock();
        *files.writers.entry(ino).or_default() += times;
        files.idle.retain(|idle| *idle != ino);
    }

    /// Notes that one of those openings has ended.
    pub fn released(self: &Arc<MountCache>, ino: Ino) {
        let mut files = self.files.lock();
        let Some(writers) = files.writers.get_mut(&ino) else { return };
        *writers -= 1;
        if *writers > 0 {
            return;
        }
        files.writers.remove(&ino);
        if files.detached && files.writers.is_empty() {
            // Not in this thread, which may have to answer requests that the end of the helper waits for.
            let cache = Arc::clone(self);
            let _ = std::thread::Builder::new().spawn(move || cache.close_all());
        }
        if !files.written_back.contains(&ino) {
            return;
        }
        files.idle.push_back(ino);
        if files.idle.len() > KEPT
            && let Some(oldest) = files.idle.pop_front()
        {
            self.close(files, oldest);
        }
    }

    /// Closes the descriptors of idle files that have lost their last name.
    pub fn unlinked(&self, is_gone: impl Fn(Ino) -> bool) {
        let idle: Vec<Ino> = self.files.lock().idle.iter().copied().collect();
        for ino in idle.into_iter().filter(|ino| is_gone(*ino)) {
            let mut files = self.files.lock();
            if files.idle.contains(&ino) {
                files.idle.retain(|idle| *idle != ino);
                self.close(files, ino);
            }
        }
    }

    fn close(&self, mut files: MutexGuard<'_, Files>, ino: Ino) {
        files.written_back.remove(&ino);
        drop(files);
        if let Some(helper) = &*self.helper.lock() {
            helper.close(ino);
        }
    }

    /// Sends a request for which the helper looks the file up once. `None` if the helper cannot be had.
    fn ask_once(&self, ino: Ino, asked: &[u64], bytes: &mut [u8]) -> Option<i32> {
        let helper = self.start_again().ok()?;
        self.hidden.lock().begin(ino);
        let answer = helper.ask(asked, bytes);
        self.hidden.lock().end(ino);
        answer.inspect_err(|_| self.lost(&helper)).ok()
    }

    /// Makes the kernel send the dirty pages of a file.
    fn pull(&self, ino: Ino, awaits: Awaits) -> Result<()> {
        if self.ended.load(Ordering::Acquire) || !self.files.lock().writers.contains_key(&ino) {
            return Ok(());
        }
        self.begin_waiting();
        let awaits = if self.arrivals.is_some() { awaits } else { Awaits::Pages };
        self.by_helper(ino, awaits).unwrap_or_else(|| {
            // Where the arrival counts, dropping the cache does not tell of pages that are on their way, and the thread
            // that drops it would keep `/dev/fuse` open if this process were killed.
            if awaits == Awaits::Pages { self.device.drop_cache(ino) } else { Err(Errno(libc::EIO)) }
        })
    }

    /// Writes back a file by the helper; `None` if that cannot be done.
    fn by_helper(&self, ino: Ino, awaits: Awaits) -> Option<Result<()>> {
        let asked = |reads| [ino, WriteBack { awaits, reads }.number()];
        for tried in 0..TRIES {
            let helper = self.start_again().ok()?;
            let is_first = {
                let mut files = self.files.lock();
                // The last writer may have gone meanwhile; its close has sent everything.
                if !files.writers.contains_key(&ino) {
                    return Some(Ok(()));
                }
                let is_first = files.written_back.insert(ino);
                if is_first {
                    self.hidden.lock().begin(ino);
                }
                is_first
            };
            let mut written_back = helper.ask(&asked(false), &mut []);
            if is_first {
                self.hidden.lock().end(ino);
            }
            if written_back == Ok(NOT_ALLOWED) {
                written_back = self.ask_once(ino, &asked(true), &mut []).ok_or(rustix::io::Errno::PIPE);
            }
            match written_back {
                Ok(0) => return Some(Ok(())),
                Ok(NOT_OPENED) => {
                    self.files.lock().written_back.remove(&ino);
                    // The helper may have closed its descriptor late, or another request took the lookup.
                    if awaits == Awaits::Pages || tried + 1 == TRIES {
                        return None;
                    }
                }
                Ok(error) => return Some(Err(Errno(error))),
                // The pages that the lost helper was about to send were sent, or will be sent by the next one.
                Err(_) => self.lost(&helper),
            }
        }
        None
    }
}

impl KernelCache for MountCache {
    fn write_back(&self, ino: Ino) -> Result<()> {
        self.pull(ino, Awaits::Sync)
    }

    fn cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Errno(libc::EIO));
        }
        self.begin_waiting();
        // Two lookups of one file at the same time are one to the kernel.
        let _turn = self.reading.lock();
        for _ in 0..TRIES {
            match self.ask_once(ino, &[ino, offset, buf.len() as u64], buf) {
                Some(0) => return Ok(()),
                // A write-back of the file took the lookup.
                Some(NOT_OPENED) | None => {}
                Some(error) => return Err(Errno(error)),
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    fn begin_waiting(&self) {
        if let Some(first) = self.before_waiting.get() {
            first();
        }
    }

    fn rolled_back(&self, ino: Ino, size: u64) {
        self.begin_waiting();
        let _ = self.device.drop_cache(ino);
        // The kernel relies on its own size of a file, unless a program sets it; so the helper sets it.
        let _ = self.ask_once(ino, &[ino, size], &mut []);
    }
}

/// Pulls for a request of a program during which the kernel has locked the inodes of the pulled files.
pub struct Locked<'a>(pub &'a MountCache);

/// Pulls that nothing relies on: the data may come later.
pub struct Early<'a>(pub &'a MountCache);

macro_rules! pulls {
    ($of:ident, $awaits:expr) => {
        impl KernelCache for $of<'_> {
            fn write_back(&self, ino: Ino) -> Result<()> {
                self.0.pull(ino, $awaits)
            }

            fn cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
                self.0.cached(ino, offset, buf)
            }

            fn begin_waiting(&self) {
                self.0.begin_waiting();
            }

            fn rolled_back(&self, ino: Ino, size: u64) {
                self.0.rolled_back(ino, size);
            }
        }
    };
}

pulls!(Locked, Awaits::Marks);
pulls!(Early, Awaits::Pages);
