//! The life of a mount, from mounting to the last commit.

pub(crate) mod start;
pub(crate) mod supervisor;

use crate::error_line::in_one_line;
use crate::fuse::device::End;
use crate::fuse::kernel_cache::{Early, MountCache};
use crate::fuse::server::Server;
use crate::mounts::mount_point::{self, Allowed};
use crate::mounts::mount_status;
use crate::processes::passed_signals::Signals;
use crate::processes::supervised::{DEVICE, HIDDEN_DIRECTORY, Supervised, WithEnds};
use anyhow::{Context, Error, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use untorn_terminal::signals;
use untorn_tree::{CommitMode, Errno, FileTree};

/// Default age at which the kernel is made to send the dirty pages of files that are open for writing.
pub const WRITEBACK_AFTER: Duration = Duration::from_secs(30);
/// Interval between two checks for work that is due.
const TICK: Duration = Duration::from_secs(1);

/// From `linux/prctl.h`; the crate `libc` does not define it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

enum Event {
    /// Ctrl-C, SIGTERM or SIGHUP.
    Signal,
    /// The mount is no longer attached to any directory.
    Detached,
    /// No request will come any more.
    Ended(End),
}

/// Mounts a tree that was opened with a commit mode, serves it until it is unmounted, and closes it.
///
/// `ready` is called when the mount answers. With a supervisor, whose log the tree has, the daemon continues to serve
/// the mount of a killed daemon. After `writeback_after` the kernel is made to send the dirty pages of files that are
/// open for writing.
///
/// A signal unmounts. If programs use the mount, it is detached, and the daemon waits for them; a second signal commits
/// everything and ends at once.
pub fn serve(
    (tree, commit): (&Arc<dyn FileTree>, CommitMode),
    source: &Path,
    at: &Path,
    allowed: Allowed,
    ends: Option<WithEnds<'_>>,
    writeback_after: Option<Duration>,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    flush_first();
    let (supervised, ends) = ends.unzip();
    let id = supervised
        .and_then(|kept| kept.kept_bytes(DEVICE))
        .and_then(|id| Some(u64::from_ne_bytes(id.try_into().ok()?)));
    let left = supervised.and_then(|kept| kept.kept(DEVICE));
    let (server, id) = match (left, id) {
        (Some(device), Some(id)) => (Server::go_on(device, Arc::clone(tree), commit)?, id),
        _ => mounted(tree, commit, source, at, allowed, supervised)?,
    };
    let cache = server.cache();
    let hidden = supervised.and_then(|kept| kept.kept(HIDDEN_DIRECTORY));
    if start_helper(cache, at, hidden)?
        && let (Some(supervised), Some(hidden)) = (supervised, cache.hidden_directory())
    {
        supervised.keep(HIDDEN_DIRECTORY, &[], (*hidden).as_fd())?;
        let supervised = Arc::clone(supervised);
        cache.when_closed(move || supervised.let_go(HIDDEN_DIRECTORY));
    }
    server.leave_left();
    let mut life = Life { tree, cache, at, id, writeback_after, stopping: false };
    let (sender, events) = channel();
    let ended = sender.clone();
    signals::handle(move || drop(ended.send(Event::Signal))).context("cannot receive signals")?;
    if let Some(ends) = ends {
        let signals = sender.clone();
        spawn(move || {
            for () in ends {
                let _ = signals.send(Event::Signal);
            }
            // The supervisor is gone and passes no more signals on, so this process receives them itself.
            Signals::that_end().unblock();
            loop {
                thread::park();
            }
        })?;
    }
    let detached = sender.clone();
    spawn(move || {
        if wait_until_unmounted(id).is_ok() {
            let _ = detached.send(Event::Detached);
        }
    })?;
    let waiting = Arc::clone(&server);
    spawn(move || drop(sender.send(Event::Ended(waiting.wait()))))?;
    if let Some(supervised) = supervised {
        supervised.ready();
    }
    ready()?;
    let mut next_tick = Instant::now() + TICK;
    loop {
        match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            Ok(Event::Ended(end)) => return life.end(end),
            Ok(Event::Signal) => life.stop()?,
            // The file system exists as long as any process has a descriptor on it, so the helper's descriptors must be
            // closed.
            Ok(Event::Detached) => cache.close_when_unused(),
            Err(RecvTimeoutError::Timeout) => {
                life.tick();
                next_tick = Instant::now() + TICK;
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the threads of the mount have ended"),
        }
    }
}

fn mounted(
    tree: &Arc<dyn FileTree>,
    commit: CommitMode,
    source: &Path,
    at: &Path,
    allowed: Allowed,
    supervised: Option<&Arc<Supervised>>,
) -> Result<(Arc<Server>, u64)> {
    if let Some(supervised) = supervised {
        supervised.mounts();
    }
    let device = mount_point::mount(source, at, allowed)?;
    let kept = rustix::io::fcntl_dupfd_cloexec(&device, 3).context("the descriptor of the mount")?;
    let started = Server::start(device, Arc::clone(tree), commit).and_then(|server| {
        let id = mount_point::mounted_at(at)?.context("the mount was gone at once")?.id;
        if let Some(supervised) = supervised {
            supervised.keep(DEVICE, &id.to_ne_bytes(), kept.as_fd())?;
        }
        Ok((server, id))
    });
    started.inspect_err(|_| {
        let _ = mount_point::detach(at);
    })
}

/// Starts the write-back helper; returns whether there is one. Without it, write-backs fall back to dropping the kernel's
/// cache of the file, which does not suffice for older kernels.
pub fn start_helper(cache: &MountCache, at: &Path, hidden: Option<OwnedFd>) -> Result<bool> {
    match cache.start(Path::new("/proc/self/exe"), at, hidden) {
        Err(e) if cache.arrivals().is_some() => Err(Error::new(e).context(
            "cannot start the process that writes back, without which Linux before 6.16 does not tell when data has \
             come (an ordinary user needs user namespaces for it)",
        )),
        started => Ok(started.is_ok()),
    }
}

/// Marks this process as an I/O flusher: its writes to disk for other processes must not wait for memory that those
/// processes' writes would free.
fn flush_first() {
    // SAFETY: a system call about this process that takes no memory. Ordinary users may not do it.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Waits until a mount is no longer attached to any directory.
fn wait_until_unmounted(id: u64) -> Result<()> {
    let changes = std::fs::File::open("/proc/self/mountinfo").context("mountinfo")?;
    while mount_point::mounts()?.iter().any(|mounted| mounted.id == id) {
        poll(&mut [PollFd::new(&changes, PollFlags::PRI)], None).context("mountinfo")?;
    }
    Ok(())
}

struct Life<'a> {
    tree: &'a Arc<dyn FileTree>,
    cache: &'a Arc<MountCache>,
    at: &'a Path,
    id: u64,
    writeback_after: Option<Duration>,
    stopping: bool,
}

impl Life<'_> {
    fn tick(&self) {
        self.tree.tick(&**self.cache);
        if let Some(after) = self.writeback_after {
            self.tree.write_back_after(after, &Early(self.cache));
        }
    }

    fn stop(&mut self) -> Result<()> {
        let committed = self.tree.prepare_end(&**self.cache).map_err(|e| error("cannot commit everything", e));
        if std::mem::replace(&mut self.stopping, true) {
            committed?;
            bail!(
                "ended by a second signal while programs use files of {}; committed changes are kept",
                self.at.display()
            );
        }
        if let Err(e) = committed {
            tracing::warn!(
                id = "untorn.mount.commit_failed",
                error = %in_one_line(&e),
                "not everything was committed before the end: unmounting tries it again"
            );
        }
        // Another mount may have been stacked over this one; that one must not be unmounted.
        if mount_point::mounted_at(self.at)?.is_none_or(|mounted| mounted.id != self.id) {
            return Ok(());
        }
        if mount_point::unmount(self.at).is_err() {
            mount_point::detach(self.at)?;
            tracing::warn!(
                id = "untorn.mount.detached",
                mount = %self.at.display(),
                "programs use files of the mount: the mount is detached, and the daemon ends when the last program has \
                 closed its files; a second signal ends the daemon at once"
            );
        }
        Ok(())
    }

    fn end(&self, end: End) -> Result<()> {
        let lost = close(self.tree, self.cache, end, self.at)?;
        let count = lost.len() as u64;
        let lost: Vec<PathBuf> = lost.iter().map(|path| self.at.join(path)).collect();
        ensure!(lost.is_empty(), "{}", mount_status::not_committed(&(lost, count)));
        Ok(())
    }
}

/// Commits everything when the mount is gone, and closes the tree.
///
/// Returns the names of the files that stay as of their last commits because a write of them had failed.
pub fn close(tree: &Arc<dyn FileTree>, cache: &MountCache, end: End, at: &Path) -> Result<Vec<PathBuf>> {
    ensure!(
        end == End::Unmounted,
        "the connection of {} was cut (umount -f?): the store has the last commits; mount it again",
        at.display()
    );
    for (ino, writers) in cache.end() {
        (0..writers).for_each(|_| {
            tree.release(ino, true);
        });
    }
    let lost = tree.status().map(|status| status.poisoned).unwrap_or_default();
    tree.close(cache).map_err(|e| error("cannot commit everything at the end; the last commits stand", e))?;
    Ok(lost)
}

fn error(what: &'static str, Errno(error): Errno) -> anyhow::Error {
    anyhow::Error::new(std::io::Error::from_raw_os_error(error)).context(what)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("untorn mount".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}
