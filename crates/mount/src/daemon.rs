//! The life of a mount: from mounting to the last commit.

use crate::fuse_device::End;
use crate::fuse_server::Server;
use crate::kernel_pull::KernelPull;
use crate::mount_point::{self, Allowed};
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use untorn_tree::{CommitMode, Errno, FileTree};

/// Between two looks at what is due.
const TICK: Duration = Duration::from_secs(1);

enum Event {
    /// Ctrl-C, SIGTERM or SIGHUP.
    Signal,
    /// No request comes any more.
    Ended(End),
}

/// Mounts a tree that was opened with a mode, serves it until it is unmounted, and closes it. `ready` is called when the mount answers.
///
/// A signal unmounts. If programs use the mount, it is detached, and the daemon waits for them; a second signal commits
/// everything and ends at once.
pub fn serve(
    (tree, commit): (&Arc<dyn FileTree>, CommitMode),
    source: &Path,
    at: &Path,
    allowed: Allowed,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let descriptor = mount_point::mount(source, at, allowed)?;
    let started = Server::start(descriptor, Arc::clone(tree), commit).and_then(|server| {
        // Without a hidden directory, so that no descriptor of this process is on its own mount: if it is killed, the
        // kernel closes them before `/dev/fuse`, sends what is dirty, and waits for this process for ever.
        let mounted = mount_point::mounted_at(at)?.context("the mount was gone at once")?;
        Ok((server, mounted.id))
    });
    let (server, id) = started.inspect_err(|_| {
        let _ = mount_point::detach(at);
    })?;
    let mut life = Life { tree, pull: server.pull(), at, id, stopping: false };
    let (sender, events) = channel();
    let signals = sender.clone();
    ctrlc::set_handler(move || drop(signals.send(Event::Signal))).context("cannot receive signals")?;
    let waiting = Arc::clone(&server);
    spawn(move || drop(sender.send(Event::Ended(waiting.wait()))))?;
    ready()?;
    let mut next_tick = Instant::now() + TICK;
    loop {
        match events.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
            Ok(Event::Ended(end)) => return life.end(end),
            Ok(Event::Signal) => life.stop()?,
            Err(RecvTimeoutError::Timeout) => {
                life.tick();
                next_tick = Instant::now() + TICK;
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the threads of the mount have ended"),
        }
    }
}

struct Life<'a> {
    tree: &'a Arc<dyn FileTree>,
    pull: &'a Arc<KernelPull>,
    at: &'a Path,
    id: u64,
    stopping: bool,
}

impl Life<'_> {
    fn tick(&self) {
        self.tree.tick(&**self.pull);
    }

    fn stop(&mut self) -> Result<()> {
        let committed = self.tree.sync_all(&**self.pull).map_err(|e| error("cannot commit everything", e));
        if std::mem::replace(&mut self.stopping, true) {
            committed?;
            bail!("ended by a second signal while programs use files of {}; all is committed", self.at.display());
        }
        if let Err(e) = committed {
            eprintln!("untorn-mount: {e:#}; unmounting tries it again");
        }
        // Another mount may have come over this one: that is not to be unmounted.
        if mount_point::mounted_at(self.at)?.is_none_or(|mounted| mounted.id != self.id) {
            return Ok(());
        }
        if mount_point::unmount(self.at).is_err() {
            mount_point::detach(self.at)?;
            eprintln!(
                "untorn-mount: programs use files of {}: it is detached, and ends with the last of them; \
                 a second signal ends it at once",
                self.at.display()
            );
        }
        Ok(())
    }

    fn end(&self, end: End) -> Result<()> {
        close(self.tree, self.pull, end, self.at)
    }
}

/// Commits everything when the mount is gone, and closes the tree.
pub fn close(tree: &Arc<dyn FileTree>, pull: &KernelPull, end: End, at: &Path) -> Result<()> {
    ensure!(
        end == End::Unmounted,
        "the connection of {} was cut (umount -f?): the store has the last commits; mount it again",
        at.display()
    );
    for (ino, writers) in pull.end() {
        (0..writers).for_each(|_| tree.release(ino, true));
    }
    tree.close(pull).map_err(|e| error("cannot commit everything at the end; the last commits stand", e))
}

fn error(what: &'static str, Errno(error): Errno) -> anyhow::Error {
    anyhow::Error::new(std::io::Error::from_raw_os_error(error)).context(what)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("untorn mount".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}
