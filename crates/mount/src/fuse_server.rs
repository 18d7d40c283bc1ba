//! Threads that answer the kernel's requests.
//!
//! Each thread receives a request and answers it. Before a handler that may wait, the thread makes sure that enough
//! others receive: what the handler waits for is answered by them.

use crate::fuse_device::{Device, End};
use crate::fuse_protocol::{
    ASKED_AGAIN, Answer, BUFFER, Fields, MAJOR, MAX_WRITE, MINOR, REQUEST_HEADER, agreed, opcode,
};
use crate::handlers::Handlers;
use crate::kernel_pull::KernelPull;
use anyhow::{Context, Result, bail, ensure};
use rustix::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use untorn_tree::{CommitMode, Errno, FileTree};

/// Threads that never wait in a handler.
const RECEIVING: usize = 2;
/// Threads that receive, when many handlers have ended: those beyond end.
const RECEIVING_MOST: usize = 6;

#[derive(Default)]
struct Threads {
    all: usize,
    /// Those in a handler that may wait.
    waiting: usize,
    end: Option<End>,
}

/// A mount that is served.
pub struct Server {
    device: Arc<Device>,
    handlers: Handlers,
    pull: Arc<KernelPull>,
    threads: Mutex<Threads>,
    ended: Condvar,
}

impl Server {
    /// Agrees with the kernel at a mount's descriptor, and serves the tree from then on. `commit` is how the tree was
    /// opened.
    pub fn start(descriptor: OwnedFd, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let device = Arc::new(Device::new(descriptor));
        agree(&device, commit)?;
        Server::with(device, tree, commit)
    }

    /// Serves what another process has served, which agreed with the kernel, and was killed. What the kernel asked and was
    /// not answered, it asks again.
    pub fn go_on(descriptor: OwnedFd, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let device = Arc::new(Device::new(descriptor));
        // Before anything is received: what is being answered would be asked again, too.
        let again = device.ask_again();
        again.map_err(|Errno(e)| std::io::Error::from_raw_os_error(e)).context("the kernel does not ask again")?;
        Server::with(device, tree, commit)
    }

    fn with(device: Arc<Device>, tree: Arc<dyn FileTree>, commit: CommitMode) -> Result<Arc<Server>> {
        let pull = Arc::new(KernelPull::new(Arc::clone(&device)));
        let handlers = Handlers::new(tree, Arc::clone(&pull), commit);
        handlers.take_over();
        let (threads, ended) = Default::default();
        let server = Arc::new(Server { device, handlers, pull, threads, ended });
        for _ in 0..RECEIVING {
            server.add_thread(&mut server.threads())?;
        }
        Ok(server)
    }

    /// What brings the kernel's cache to the tree.
    pub fn pull(&self) -> &Arc<KernelPull> {
        &self.pull
    }

    /// Goes on with transactions that a killed process was to give up. After pulls were started.
    pub fn leave_left(&self) {
        self.handlers.leave_left();
    }

    /// Waits until the mount is gone and every handler has ended.
    pub fn wait(&self) -> End {
        let mut threads = self.threads();
        loop {
            match threads.end {
                Some(end) if threads.all == 0 => return end,
                _ => threads = self.ended.wait(threads).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_thread(self: &Arc<Server>, threads: &mut Threads) -> Result<()> {
        let server = Arc::clone(self);
        spawn(move || server.serve())?;
        threads.all += 1;
        Ok(())
    }

    fn serve(self: Arc<Server>) {
        let mut buffer = resident();
        loop {
            let len = match self.device.receive(&mut buffer) {
                Ok(len) => len,
                Err(end) => {
                    self.threads().end.get_or_insert(end);
                    break;
                }
            };
            let Ok((header, fields)) = Fields::of(&buffer[..len]) else { continue };
            if !self.handlers.may_wait(header.opcode) {
                self.answer(&header, fields);
                continue;
            }
            if let Err(e) = self.begin_waiting() {
                self.device.answer(header.unique, Err(e));
                continue;
            }
            self.answer(&header, fields);
            if !self.end_waiting() {
                return;
            }
        }
        self.threads().all -= 1;
        self.ended.notify_all();
    }

    fn answer(&self, header: &crate::fuse_protocol::Header, fields: Fields<'_>) {
        let unique = header.unique & !ASKED_AGAIN;
        untorn_tree::answering(unique);
        // A program would wait for ever for what a panic leaves unanswered.
        let answer = catch_unwind(AssertUnwindSafe(|| self.handlers.answer(header, fields)));
        if let Some(answer) = answer.unwrap_or(Some(Err(Errno(libc::EIO)))) {
            self.device.answer(header.unique, answer);
        }
        if untorn_tree::has_happened() {
            self.handlers.answered(unique);
        }
    }

    /// Before a handler that may wait. `ENOMEM` if there is no thread for what it waits for.
    fn begin_waiting(self: &Arc<Server>) -> Result<(), Errno> {
        let mut threads = self.threads();
        threads.waiting += 1;
        while threads.all - threads.waiting < RECEIVING {
            if self.add_thread(&mut threads).is_err() {
                if threads.all > threads.waiting {
                    return Ok(());
                }
                threads.waiting -= 1;
                return Err(Errno(libc::ENOMEM));
            }
        }
        Ok(())
    }

    /// After it. Whether this thread goes on.
    fn end_waiting(&self) -> bool {
        let mut threads = self.threads();
        threads.waiting -= 1;
        if threads.all - threads.waiting <= RECEIVING_MOST {
            return true;
        }
        threads.all -= 1;
        self.ended.notify_all();
        false
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("untorn mount".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}

/// Memory for a request. All of it is there, as the kernel drops a request, and what it was to write, if it has to find
/// memory for it while the process is being killed.
fn resident() -> Vec<u8> {
    let mut buffer = Vec::with_capacity(BUFFER);
    buffer.resize(BUFFER, 1);
    buffer
}

/// The first request, `INIT`.
fn agree(device: &Device, commit: CommitMode) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok(len) = device.receive(&mut buffer) else { bail!("the mount was gone before it was served") };
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
            // It asks again, with this version.
            device.answer(header.unique, Ok(Answer::default().u32(MAJOR).u32(MINOR).raw(&[0; 56])));
            continue;
        }
        ensure!(
            major == MAJOR && minor >= MINOR,
            "the kernel's FUSE is version {major}.{minor}, and {MAJOR}.{MINOR} is needed; use Linux 6.16 or newer"
        );
        let writes = match commit {
            CommitMode::Write => agreed::DIRECT_IO_ALLOW_MMAP,
            _ => agreed::WRITEBACK_CACHE,
        };
        let wanted = agreed::ASYNC_READ
            | agreed::ATOMIC_O_TRUNC
            | agreed::BIG_WRITES
            | writes
            | agreed::DO_READDIRPLUS
            | agreed::READDIRPLUS_AUTO
            | agreed::ASYNC_DIO
            | agreed::PARALLEL_DIROPS
            | agreed::ABORT_ERROR
            | agreed::MAX_PAGES
            | agreed::CACHE_SYMLINKS
            | agreed::NO_OPENDIR_SUPPORT
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
        ensure!(flags & needed == needed, "the kernel's FUSE has no cache of writes; use a newer kernel");
        // One more than that, as a program's buffer need not begin with a page. (The kernel has a limit of its own.)
        let pages = u16::try_from(MAX_WRITE / rustix::param::page_size() + 1).unwrap_or(u16::MAX);
        let answer = Answer::default()
            .u32(MAJOR)
            .u32(MINOR)
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
