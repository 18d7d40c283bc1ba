//! Brings what the kernel has in its cache of a file to the tree: by a process of its own (`puller`), which has
//! descriptors on the mount.
//!
//! A descriptor is kept there as long as a program has the file open for writing, and of a few files some time longer.
//! Where that process cannot be had, the kernel is made to send by dropping what it has cached of the file.

use crate::fuse::device::Device;
use crate::fuse::puller::{FOR_READING, NOT_ALLOWED, NOT_OPENED, PULLER};
use crate::processes::passed_descriptors::{connection, receive, send};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use untorn_tree::{Errno, Ino, Pull, Result};

/// Number of the hidden directory.
pub const HIDDEN: Ino = u64::MAX - 1;

/// How long the process may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const MOMENT: Duration = Duration::from_millis(1);
/// Files that nobody has open for writing any more, whose descriptors are kept: many programs open a file, write, sync and
/// close it, over and over.
const KEPT: usize = 16;
/// After so many ends of the process no other one is started.
const STARTS_MAX: usize = 100;

/// The hidden directory.
#[derive(Default)]
struct Hidden {
    /// What is answered to a lookup in the root, while the directory is opened.
    name: Option<OsString>,
    directory: Option<Arc<OwnedFd>>,
    /// Files whose names are looked up in it now.
    expected: HashSet<Ino>,
}

/// The process that pulls.
struct Puller {
    control: OwnedFd,
    /// Those that nobody waits at.
    lines: Mutex<Vec<OwnedFd>>,
    child: Mutex<Child>,
}

/// What is known of files.
#[derive(Default)]
struct Files {
    /// How often programs have them open for writing.
    writers: HashMap<Ino, u64>,
    /// Those that the process has open.
    pulled: HashSet<Ino>,
    /// Of these, those without writers, the longest first.
    idle: VecDeque<Ino>,
    /// The mount is in no directory any more.
    detached: bool,
}

/// Pulls.
pub struct KernelPull {
    device: Arc<Device>,
    hidden: Mutex<Hidden>,
    puller: Mutex<Option<Arc<Puller>>>,
    program: Mutex<Option<PathBuf>>,
    starts: Mutex<usize>,
    files: Mutex<Files>,
    /// How often the kernel was given an inode by the hidden directory, of which the tree knows nothing.
    given: Mutex<HashMap<Ino, u64>>,
    when_closed: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    ended: AtomicBool,
    before_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Puller {
    fn start(program: &Path) -> io::Result<Puller> {
        let (ours, theirs) = connection()?;
        let mut command = Command::new(program);
        command.arg0("untorn-mount").arg(PULLER).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        // Not by a copy of this process: after one, the kernel has to find memory for what it was about to hand over to a
        // thread, and if the daemon is killed then, a write is lost.
        let child = command.spawn()?;
        Ok(Puller { control: ours, lines: Mutex::default(), child: Mutex::new(child) })
    }

    /// Asks for what [`puller`](crate::fuse::puller) says that such numbers mean: an error number, and bytes if there are some. An
    /// error of the connection means that the process has ended.
    fn ask(&self, asked: &[u64], bytes: &mut [u8]) -> rustix::io::Result<i32> {
        let idle = locked(&self.lines).pop();
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
        locked(&self.lines).push(line);
        match i32::from_ne_bytes(*number) {
            0 if read.len() == bytes.len() => bytes.copy_from_slice(read),
            0 => return Ok(libc::EIO),
            error => return Ok(error),
        }
        Ok(0)
    }

    fn close(&self, ino: Ino) {
        // If the process has ended, so have its descriptors.
        let _ = send(&self.control, &ino.to_ne_bytes(), None);
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        // It ends with the connection, when the kernel has sent what is dirty of its files.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let started = Instant::now();
        let mut child = locked(&self.child);
        while matches!(child.try_wait(), Ok(None)) && started.elapsed() < PATIENCE {
            std::thread::sleep(MOMENT);
        }
    }
}

impl KernelPull {
    /// Without a process at first.
    pub fn new(device: Arc<Device>) -> KernelPull {
        KernelPull {
            device,
            hidden: Mutex::default(),
            puller: Mutex::default(),
            program: Mutex::default(),
            starts: Mutex::default(),
            files: Mutex::default(),
            given: Mutex::default(),
            when_closed: Mutex::default(),
            ended: AtomicBool::new(false),
            before_waiting: OnceLock::new(),
        }
    }

    /// What a thread is to do before it waits for a pull.
    pub fn before_waiting(&self, first: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_waiting.set(Box::new(first));
    }

    /// Starts the process: `program` is the one that this room is of. The hidden directory is `given`, or is beneath a
    /// mount point that answers.
    pub fn start(&self, program: &Path, at: &Path, given: Option<OwnedFd>) -> io::Result<()> {
        *locked(&self.program) = Some(program.to_owned());
        if let Some(given) = given {
            locked(&self.hidden).directory = Some(Arc::new(given));
            return self.start_again().map(drop);
        }
        let puller = Puller::start(program)?;
        let name = OsString::from(format!(".{:032x}", rand_u128()));
        locked(&self.hidden).name = Some(name.clone());
        let asked = send(&puller.control, at.join(&name).as_os_str().as_bytes(), None);
        let answered = asked.and_then(|()| receive(&puller.control, &mut [0]));
        let mut hidden = locked(&self.hidden);
        hidden.name = None;
        let (_, directory) = answered?;
        let directory = directory.ok_or(io::ErrorKind::PermissionDenied)?;
        hidden.directory = Some(Arc::new(directory));
        drop(hidden);
        *locked(&self.puller) = Some(Arc::new(puller));
        Ok(())
    }

    /// The hidden directory, for whoever serves the mount after this process.
    pub fn hidden_directory(&self) -> Option<Arc<OwnedFd>> {
        locked(&self.hidden).directory.clone()
    }

    /// What is to be done when the hidden directory is closed here.
    pub fn when_closed(&self, then: impl FnOnce() + Send + 'static) {
        *locked(&self.when_closed) = Some(Box::new(then));
    }

    /// The process: one that no program has started.
    pub fn process(&self) -> Option<u32> {
        locked(&self.puller).as_ref().map(|puller| locked(&puller.child).id())
    }

    fn start_again(&self) -> io::Result<Arc<Puller>> {
        let mut current = locked(&self.puller);
        if let Some(puller) = &*current {
            return Ok(Arc::clone(puller));
        }
        let directory = locked(&self.hidden).directory.clone().ok_or(io::ErrorKind::NotFound)?;
        let program = locked(&self.program).clone().ok_or(io::ErrorKind::NotFound)?;
        let mut starts = locked(&self.starts);
        if *starts >= STARTS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        *starts += 1;
        let puller = Puller::start(&program)?;
        send(&puller.control, b"hidden", Some(directory.as_fd()))?;
        let puller = Arc::new(puller);
        *current = Some(Arc::clone(&puller));
        Ok(puller)
    }

    /// The process has ended: it was killed.
    fn lost(&self, puller: &Arc<Puller>) {
        let mut current = locked(&self.puller);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, puller)) {
            *current = None;
            let mut files = locked(&self.files);
            files.pulled.clear();
            files.idle.clear();
        }
    }

    /// The mount is gone, and the kernel has sent everything: nothing is pulled any more. Returns each file that was open
    /// for writing, and how often; the kernel need not have told that those openings ended.
    pub fn end(&self) -> Vec<(Ino, u64)> {
        self.ended.store(true, Ordering::Release);
        self.close_all();
        locked(&self.files).writers.drain().collect()
    }

    /// The mount is in no directory any more: closes all descriptors on it as soon as no program has a file open for
    /// writing, so that the kernel can end it.
    pub fn close_when_unused(self: &Arc<KernelPull>) {
        let unused = {
            let mut files = locked(&self.files);
            files.detached = true;
            files.writers.is_empty()
        };
        if unused {
            self.close_all();
        }
    }

    /// Closes all descriptors on the mount. Pulls go on, and drop what is cached.
    pub fn close_all(&self) {
        locked(&self.hidden).directory = None;
        if let Some(then) = locked(&self.when_closed).take() {
            then();
        }
        let puller = locked(&self.puller).take();
        {
            let mut files = locked(&self.files);
            files.pulled.clear();
            files.idle.clear();
        }
        // Its end is waited for. A handler that is using it has a reference until it has its answer.
        let Some(puller) = puller else { return };
        let started = Instant::now();
        while Arc::strong_count(&puller) > 1 && started.elapsed() < PATIENCE {
            std::thread::sleep(MOMENT);
        }
    }

    /// Whether the hidden directory is looked up by this name in the root.
    pub fn is_hidden(&self, name: &OsStr) -> bool {
        locked(&self.hidden).name.as_deref() == Some(name)
    }

    /// Whether a file is looked up in the hidden directory for a pull; then the kernel is given it once.
    pub fn gives(&self, ino: Ino) -> bool {
        let expected = locked(&self.hidden).expected.remove(&ino);
        if expected {
            *locked(&self.given).entry(ino).or_default() += 1;
        }
        expected
    }

    /// How many of `count` times that the kernel forgets were given by the tree.
    pub fn forgotten(&self, ino: Ino, count: u64) -> u64 {
        let mut given = locked(&self.given);
        let Some(own) = given.get_mut(&ino) else { return count };
        let taken = count.min(*own);
        *own -= taken;
        if *own == 0 {
            given.remove(&ino);
        }
        count - taken
    }

    /// The tree has other attributes of a file than the kernel: a file that the program which asks has open.
    pub fn forget_attributes(&self, ino: Ino) -> Result<()> {
        self.device.forget_attributes(ino)
    }

    /// A program has opened a file for writing, so many times.
    pub fn opened(&self, ino: Ino, times: u64) {
        let mut files = locked(&self.files);
        *files.writers.entry(ino).or_default() += times;
        files.idle.retain(|idle| *idle != ino);
    }

    /// One of those openings has ended.
    pub fn released(self: &Arc<KernelPull>, ino: Ino) {
        let mut files = locked(&self.files);
        let Some(writers) = files.writers.get_mut(&ino) else { return };
        *writers -= 1;
        if *writers > 0 {
            return;
        }
        files.writers.remove(&ino);
        if files.detached && files.writers.is_empty() {
            // Not here: the end of the process waits for answers.
            let pull = Arc::clone(self);
            let _ = std::thread::Builder::new().spawn(move || pull.close_all());
        }
        if !files.pulled.contains(&ino) {
            return;
        }
        files.idle.push_back(ino);
        if files.idle.len() > KEPT
            && let Some(oldest) = files.idle.pop_front()
        {
            self.close(files, oldest);
        }
    }

    /// Something lost a name: descriptors of files that have none any more are closed.
    pub fn unlinked(&self, is_gone: impl Fn(Ino) -> bool) {
        let idle: Vec<Ino> = locked(&self.files).idle.iter().copied().collect();
        for ino in idle.into_iter().filter(|ino| is_gone(*ino)) {
            let mut files = locked(&self.files);
            if files.idle.contains(&ino) {
                files.idle.retain(|idle| *idle != ino);
                self.close(files, ino);
            }
        }
    }

    fn close(&self, mut files: MutexGuard<'_, Files>, ino: Ino) {
        files.pulled.remove(&ino);
        drop(files);
        if let Some(puller) = &*locked(&self.puller) {
            puller.close(ino);
        }
    }

    /// Asks the process for something of a file for which it opens, or names, the file once; none if that cannot be.
    fn ask_once(&self, ino: Ino, asked: &[u64], bytes: &mut [u8]) -> Option<i32> {
        let puller = self.start_again().ok()?;
        locked(&self.hidden).expected.insert(ino);
        let answer = puller.ask(asked, bytes);
        locked(&self.hidden).expected.remove(&ino);
        answer.inspect_err(|_| self.lost(&puller)).ok()
    }

    /// Pulls by the process; none if that cannot be.
    fn by_puller(&self, ino: Ino) -> Option<Result<()>> {
        for _ in 0..2 {
            let puller = self.start_again().ok()?;
            let is_first = {
                let mut files = locked(&self.files);
                // The last writer may have gone meanwhile, and closing has sent everything.
                if !files.writers.contains_key(&ino) {
                    return Some(Ok(()));
                }
                let is_first = files.pulled.insert(ino);
                if is_first {
                    locked(&self.hidden).expected.insert(ino);
                }
                is_first
            };
            let mut pulled = puller.ask(&[ino], &mut []);
            if pulled == Ok(NOT_ALLOWED) {
                locked(&self.hidden).expected.insert(ino);
                pulled = puller.ask(&[ino, u64::from_ne_bytes(FOR_READING)], &mut []);
            }
            if is_first {
                locked(&self.hidden).expected.remove(&ino);
            }
            match pulled {
                Ok(0) => return Some(Ok(())),
                Ok(NOT_OPENED) => {
                    locked(&self.files).pulled.remove(&ino);
                    return None;
                }
                Ok(error) => return Some(Err(Errno(error))),
                // What it was about to send is sent by the next one, or was sent.
                Err(_) => self.lost(&puller),
            }
        }
        None
    }
}

impl Pull for KernelPull {
    fn pull(&self, ino: Ino) -> Result<()> {
        if self.ended.load(Ordering::Acquire) || !locked(&self.files).writers.contains_key(&ino) {
            return Ok(());
        }
        self.begin_waiting();
        self.by_puller(ino).unwrap_or_else(|| self.device.drop_cache(ino))
    }

    fn cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Errno(libc::EIO));
        }
        self.begin_waiting();
        match self.ask_once(ino, &[ino, offset, buf.len() as u64], buf) {
            Some(0) => Ok(()),
            Some(NOT_OPENED) | None => Err(Errno(libc::EAGAIN)),
            Some(error) => Err(Errno(error)),
        }
    }

    fn begin_waiting(&self) {
        if let Some(first) = self.before_waiting.get() {
            first();
        }
    }

    fn rolled_back(&self, ino: Ino, size: u64) {
        self.begin_waiting();
        let _ = self.device.drop_cache(ino);
        // The kernel goes by its own size of a file, unless a program sets it.
        let _ = self.ask_once(ino, &[ino, size], &mut []);
    }
}

/// A number that nobody can guess.
pub fn rand_u128() -> u128 {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the system has random numbers");
    u128::from_ne_bytes(bytes)
}
