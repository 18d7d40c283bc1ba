//! Threads that answer the kernel's requests.
//!
//! One thread receives requests, and answers them. A second receiver would be in its way: the kernel wakes the thread
//! that has waited the longest, so that each request would go to a sleeping thread, on another processor. A thread
//! whose handler is about to wait, for dirty pages or for a commit, first calls another thread to receive. That thread
//! answers the requests that the first one waits for.

use crate::fuse::arrivals::Arrivals;
use crate::fuse::device::{Device, End, Look};
use crate::fuse::handlers::{Handlers, Waits};
use crate::fuse::kernel;
use crate::fuse::kernel_cache::MountCache;
use crate::fuse::protocol::{
    ASKED_AGAIN, Answer, BUFFER, Fields, Header, MAJOR, MAX_WRITE, MINOR, MINOR_LEAST, REQUEST_HEADER, agreed, opcode,
};
use anyhow::{Context, Result, bail, ensure};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use untorn_tree::{CommitMode, Errno, FileTree};

/// The most threads that receive at a time.
const RECEIVING_MOST: usize = 3;
/// The most threads that sleep in reserve; others end.
const RESERVE_MOST: usize = 4;

thread_local! {
    static PART: Cell<Part> = const { Cell::new(Part::Other) };
}

/// The present role of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// None.
    Other,
    /// Receives requests, and answers them without waiting.
    Receives,
    /// Runs a handler that waits.
    Waits,
}

#[derive(Default)]
struct Threads {
    all: usize,
    /// Threads that receive. There is always at least one, until the end.
    receiving: usize,
    /// Threads whose handlers wait.
    waiting: usize,
    /// Threads that sleep until they are called.
    reserve: usize,
    /// Calls that no thread has taken yet.
    calls: usize,
    end: Option<End>,
}

/// Counts a thread in `all` until the thread ends, even by a panic.
struct Counted(Arc<Server>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.threads.lock().all -= 1;
        self.0.ended.notify_all();
    }
}

/// A mount that is served.
pub struct Server {
    device: Arc<Device>,
    handlers: Handlers,
    cache: Arc<MountCache>,
    arrivals: Option<Arc<Arrivals>>,
    threads: Mutex<Threads>,
    called: Condvar,
    ended: Condvar,
}

impl Server {
    /// Negotiates with the kernel on a mount's descriptor, and serves the tree from then on.
    ///
    /// `commit` is the mode in which the tree was opened.
    pub fn start(descriptor: OwnedFd, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let device = Arc::new(Device::new(descriptor));
        agree(&device, commit)?;
        Server::with(device, tree, commit)
    }

    /// Continues to serve a mount after another process, which negotiated with the kernel, was killed.
    ///
    /// The kernel repeats the requests that were not answered.
    pub fn go_on(descriptor: OwnedFd, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let device = Arc::new(Device::new(descriptor));
        // Before anything is received: otherwise the kernel would also repeat requests that this process is answering.
        let again = device.ask_again();
        again.map_err(|Errno(e)| std::io::Error::from_raw_os_error(e)).context("the kernel does not ask again")?;
        Server::with(device, tree, commit)
    }

    fn with(device: Arc<Device>, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let arrivals = kernel::ends_writeback_early().then(|| Arc::new(Arrivals::default()));
        let cache = Arc::new(MountCache::new(Arc::clone(&device), arrivals.clone()));
        let handlers = Handlers::new(tree, Arc::clone(&cache), commit);
        handlers.take_over();
        let (threads, called, ended) = Default::default();
        let server = Arc::new(Server { device, handlers, cache, arrivals, threads, called, ended });
        let of_cache = Arc::downgrade(&server);
        server.cache.before_waiting(move || {
            if let Some(server) = of_cache.upgrade() {
                server.begin_waiting();
            }
        });
        let mut threads = server.threads.lock();
        server.add_reserve(&mut threads)?;
        server.add_reserve(&mut threads)?;
        server.call(threads);
        Ok(server)
    }

    /// Returns the object that makes the kernel send dirty pages to the tree.
    pub fn cache(&self) -> &Arc<MountCache> {
        &self.cache
    }

    /// Ends the transactions that a killed process was ending. Call it after write-backs were started.
    pub fn leave_left(&self) {
        self.handlers.leave_left();
    }

    /// Waits until the mount is gone and every handler has ended.
    pub fn wait(&self) -> End {
        let mut threads = self.threads.lock();
        loop {
            match threads.end {
                Some(end) if threads.all == 0 => return end,
                _ => self.ended.wait(&mut threads),
            }
        }
    }

    fn add_reserve(self: &Arc<Server>, threads: &mut Threads) -> Result<()> {
        let server = Arc::clone(self);
        spawn(move || server.serve())?;
        threads.all += 1;
        threads.reserve += 1;
        Ok(())
    }

    /// Makes one thread of the reserve receive from now on.
    fn call(&self, mut threads: MutexGuard<'_, Threads>) {
        threads.reserve -= 1;
        threads.receiving += 1;
        threads.calls += 1;
        // Unlocked first, so that the called thread finds the lock free.
        drop(threads);
        self.called.notify_one();
    }

    /// Sleeps until this thread is called; false at the end.
    fn wait_for_call(&self, mut threads: MutexGuard<'_, Threads>) -> bool {
        while threads.calls == 0 && threads.end.is_none() {
            self.called.wait(&mut threads);
        }
        if threads.end.is_some() {
            return false;
        }
        threads.calls -= 1;
        PART.set(Part::Receives);
        true
    }

    fn serve(self: Arc<Server>) {
        let counted = Counted(self);
        let mut buffer = resident();
        if counted.0.wait_for_call(counted.0.threads.lock()) {
            counted.0.receive_all(&mut buffer);
        }
    }

    fn receive_all(self: &Arc<Server>, buffer: &mut [u8]) {
        let mut look = Look::default();
        loop {
            let is_alone = self.threads.lock().receiving == 1;
            let turn = self.arrivals.as_ref().map(|arrivals| arrivals.turn());
            let len = match self.device.receive(buffer, is_alone.then_some(&mut look)) {
                Ok(len) => len,
                Err(end) => {
                    self.threads.lock().end.get_or_insert(end);
                    self.called.notify_all();
                    return;
                }
            };
            let Ok((header, fields)) = Fields::of(&buffer[..len]) else { continue };
            let is_write = header.opcode == opcode::WRITE && fields.are_cached_write();
            let write = self.arrivals.as_ref().filter(|_| is_write).map(|arrivals| arrivals.write());
            drop(turn);
            let waits = self.handlers.waits(header.opcode);
            if waits != Waits::No
                && let Err(e) = self.prepare_waiting()
            {
                self.device.answer(header.unique, Err(e));
                continue;
            }
            if waits == Waits::Always {
                self.begin_waiting();
            }
            self.answer(&header, fields);
            drop(write);
            if !self.goes_on(header.opcode == opcode::READ) {
                return;
            }
        }
    }

    fn answer(&self, header: &Header, fields: Fields<'_>) {
        let unique = header.unique & !ASKED_AGAIN;
        untorn_tree::answering(unique);
        // After a panic the request gets an error: otherwise the program would wait for ever.
        let answer = catch_unwind(AssertUnwindSafe(|| self.handlers.answer(header, fields)));
        if let Some(answer) = answer.unwrap_or(Some(Err(Errno(libc::EIO)))) {
            self.device.answer(header.unique, answer);
        }
        if untorn_tree::has_happened() {
            self.handlers.answered(unique);
        }
    }

    /// Ensures, before a handler that may wait, that there is a thread to call. `ENOMEM` if none can be had.
    ///
    /// The thread stays in reserve until this one calls it: only the last receiving thread calls one, and this thread
    /// receives.
    fn prepare_waiting(self: &Arc<Server>) -> Result<(), Errno> {
        let mut threads = self.threads.lock();
        match threads.reserve {
            0 => self.add_reserve(&mut threads).map_err(|_| Errno(libc::ENOMEM)),
            _ => Ok(()),
        }
    }

    /// Called in a handler before it waits. Does nothing in threads that do not receive.
    fn begin_waiting(&self) {
        if PART.get() != Part::Receives {
            return;
        }
        PART.set(Part::Waits);
        let mut threads = self.threads.lock();
        threads.receiving -= 1;
        threads.waiting += 1;
        if threads.receiving == 0 {
            self.call(threads);
        }
    }

    /// Called after a handler: whether this thread receives again, perhaps after it has slept in the reserve.
    ///
    /// Several threads receive while several programs wait for their syncs, and while a file is read, because the
    /// kernel then requests several parts of it at a time. With a single receiver, waking a thread for each would cost
    /// as much as the single receiver saves.
    fn goes_on(&self, reads: bool) -> bool {
        let has_waited = PART.replace(Part::Receives) == Part::Waits;
        let mut threads = self.threads.lock();
        threads.waiting -= usize::from(has_waited);
        let several = reads || threads.waiting > 0;
        if has_waited && several && threads.receiving < RECEIVING_MOST {
            threads.receiving += 1;
            return true;
        }
        if !has_waited {
            if several || threads.receiving == 1 {
                return true;
            }
            threads.receiving -= 1;
        }
        PART.set(Part::Other);
        if threads.reserve >= RESERVE_MOST {
            return false;
        }
        threads.reserve += 1;
        self.wait_for_call(threads)
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("untorn mount".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}

/// Allocates a request buffer, and touches all its pages. If the kernel had to find memory for it while the process is
/// being killed, it would drop the request, and with it the data of a write.
fn resident() -> Vec<u8> {
    let mut buffer = Vec::with_capacity(BUFFER);
    buffer.resize(BUFFER, 1);
    buffer
}

/// Answers the first request, `INIT`.
fn agree(device: &Device, commit: CommitMode) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok(len) = device.receive(&mut buffer, None) else { bail!("the mount was gone before it was served") };
        let (header, mut fields) =
            Fields::of(&buffer[..len]).map_err(|_| anyhow::anyhow!("the kernel sent nothing"))?;
        ensure!(header.opcode == opcode::INIT && len > REQUEST_HEADER, "the descriptor is no fresh mount");
        let fields = (|| {
            let (major, minor, read_ahead, flags) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
            let more = if flags & agreed::INIT_EXT as u32 != 0 { fields.u32()? } else { 0 };
            Ok((major, minor, read_ahead, u64::from(flags) | u64::from(more) << 32))
        })();
        let (major, minor, read_ahead, offered) =
            fields.map_err(|_: Errno| anyhow::anyhow!("the kernel's INIT is short"))?;
        if major > MAJOR {
            // The kernel sends `INIT` again, with this version.
            device.answer(header.unique, Ok(Answer::default().u32(MAJOR).u32(MINOR).raw(&[0; 56])));
            continue;
        }
        ensure!(
            major == MAJOR && minor >= MINOR_LEAST,
            "the kernel's FUSE is version {major}.{minor}, and {MAJOR}.{MINOR_LEAST} is needed; use Linux 5.15 or newer"
        );
        ensure!(
            commit != CommitMode::Store || !kernel::ends_writeback_early(),
            "--commit=store needs Linux 6.16: on this kernel, syncs of two files that each commit everything could wait \
             for each other for ever; use another mode"
        );
        let writes = match commit {
            CommitMode::Write => agreed::DIRECT_IO_ALLOW_MMAP,
            _ => agreed::WRITEBACK_CACHE,
        };
        // Without ASYNC_DIO: after an asynchronous direct write the kernel neither requests the sync of `O_DSYNC` and
        // its kin, nor drops its cache of the range. It does both after a write for which the submitting thread waits.
        let wanted = agreed::ASYNC_READ
            | agreed::ATOMIC_O_TRUNC
            | agreed::EXPORT_SUPPORT
            | agreed::BIG_WRITES
            | writes
            | agreed::DO_READDIRPLUS
            | agreed::READDIRPLUS_AUTO
            | agreed::PARALLEL_DIROPS
            | agreed::ABORT_ERROR
            | agreed::MAX_PAGES
            | agreed::CACHE_SYMLINKS
            | agreed::HANDLE_KILLPRIV_V2
            | agreed::DONT_MASK
            | agreed::POSIX_ACL
            | agreed::SETXATTR_EXT
            | agreed::HAS_RESEND
            | agreed::INIT_EXT;
        let flags = wanted & offered;
        let needed = writes
            | agreed::MAX_PAGES
            | agreed::ATOMIC_O_TRUNC
            | agreed::HANDLE_KILLPRIV_V2
            | agreed::DONT_MASK
            | agreed::POSIX_ACL
            | agreed::SETXATTR_EXT;
        ensure!(
            flags & writes == writes || commit != CommitMode::Write,
            "--commit=write needs Linux 6.6: this kernel cannot map files whose writes it does not cache; use another mode"
        );
        ensure!(flags & needed == needed, "the kernel's FUSE lacks a feature of Linux 5.15; use a newer kernel");
        // One page more than the data, because a program's buffer need not begin at a page. (The kernel has a limit of
        // its own.)
        let pages = u16::try_from(MAX_WRITE / rustix::param::page_size() + 1).unwrap_or(u16::MAX);
        let answer = Answer::default()
            .u32(MAJOR)
            .u32(minor.min(MINOR))
            .u32(read_ahead)
            .u32(flags as u32)
            .u16(64)
            .u16(48)
            .u32(MAX_WRITE as u32)
            .u32(1)
            .u16(pages)
            .u16(0)
            .u32((flags >> 32) as u32)
            .raw(&[0; 28]);
        device.answer(header.unique, Ok(answer));
        return Ok(());
    }
}
