//! The process that serves a session: in namespaces of its own it mounts the store over the directory, and runs the
//! program there.

use crate::daemon;
use crate::fuse_server::Server;
use crate::mount_point::{self, Allowed};
use crate::passed_signals;
use anyhow::{Context, Error, Result, ensure};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_child_subreaper, set_parent_process_death_signal, waitpid,
};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use untorn_terminal::user_namespace;
use untorn_tree::{CommitMode, FileTree};

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Added to the number of a signal by shells.
const BY_SIGNAL: i32 = 128;
/// What the program left behind has so long to end.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_secs(1);

/// What is to be run, and where.
pub struct Session {
    /// The store.
    pub store: PathBuf,
    /// The directory over which it is mounted.
    pub at: PathBuf,
    /// Where the program begins.
    pub cwd: PathBuf,
    /// Where its exit code is written when all is committed.
    pub ended: PathBuf,
    /// The process that began the session.
    pub parent: i32,
    /// What commits a file.
    pub commit: CommitMode,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl Session {
    /// Runs it. This process must have one thread, and end with the one that started it.
    pub fn run(self, open: impl FnOnce(&Path, CommitMode) -> Result<Arc<dyn FileTree>>) -> Result<()> {
        let before = passed_signals::block()?;
        private_mounts()?;
        // A new user namespace may have taken it away.
        set_parent_process_death_signal(Some(Signal::KILL)).context("the end of the session")?;
        ensure!(rustix::process::getppid() == Pid::from_raw(self.parent), "whoever began the session has ended");
        set_child_subreaper(Some(rustix::process::getpid())).context("cannot look after processes")?;
        std::env::set_current_dir("/").context("/")?;
        let tree = open(&self.store, self.commit)?;
        let descriptor = mount_point::mount_directly(&self.store, &self.at, Allowed::default())?;
        let server = Server::start(descriptor, Arc::clone(&tree), self.commit)?;
        let (ticking, pull) = (Arc::clone(&tree), Arc::clone(server.pull()));
        thread::Builder::new()
            .spawn(move || {
                loop {
                    thread::sleep(TICK);
                    ticking.tick(&*pull);
                }
            })
            .context("cannot start a thread")?;
        let code = self.program(before);
        end_the_rest();
        if rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW).is_err() {
            rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
                .context("cannot unmount")?;
        }
        let end = server.wait();
        daemon::close(&tree, server.pull(), end, &self.at)?;
        fs::write(&self.ended, code.to_string()).with_context(|| format!("cannot write {}", self.ended.display()))
    }

    /// Runs the program; its exit code.
    fn program(&self, before: passed_signals::Before) -> u8 {
        let shown = Path::new(&self.command[0]).display();
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir(&self.cwd);
        before.for_command(&mut command);
        let child = match passed_signals::pass_on().and_then(|meant| Ok((meant, command.spawn()?))) {
            Err(e) => {
                eprintln!("untorn-mount: cannot execute {shown}: {e:#}");
                let missing = e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound);
                return if missing { NOT_FOUND } else { NOT_EXECUTABLE };
            }
            Ok((meant, child)) => {
                let child = Pid::from_child(&child);
                meant.store(child.as_raw_pid(), Ordering::SeqCst);
                child
            }
        };
        // What others left behind is this process's to bury.
        loop {
            match waitpid(None, WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == child => {
                    let status = std::process::ExitStatus::from_raw(status.as_raw());
                    let code = status.code().or(status.signal().map(|number| BY_SIGNAL + number));
                    return code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    eprintln!("untorn-mount: cannot wait for {shown}: {e}");
                    return 1;
                }
            }
        }
    }
}

/// A mount namespace, and for an ordinary user a user namespace, of this process's own.
fn private_mounts() -> Result<()> {
    if user_namespace::is_root() {
        // SAFETY: changes the namespace of this process, which has one thread.
        let failed = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        ensure!(
            failed == 0,
            "this process is root without the right to make namespaces (CAP_SYS_ADMIN): {}",
            std::io::Error::last_os_error()
        );
    } else {
        user_namespace::enter().map_err(Error::msg)?;
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .context("cannot have private mounts")
}

/// Ends whatever the program left behind: whoever is in this process's mount namespace.
fn end_the_rest() {
    let started = Instant::now();
    let mut signal = Signal::TERM;
    loop {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let others = others_here();
        if others.is_empty() {
            return;
        }
        if started.elapsed() > LEFT_BEHIND_MAX {
            signal = Signal::KILL;
        }
        if signal == Signal::KILL || started.elapsed() < Duration::from_millis(20) {
            for pid in others {
                let _ = kill_process(pid, signal);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn others_here() -> Vec<Pid> {
    let namespace = |path: &Path| fs::read_link(path.join("ns/mnt")).ok();
    let Some(ours) = namespace(Path::new("/proc/self")) else { return Vec::new() };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let here = entries.filter(|entry| namespace(&entry.path()).as_ref() == Some(&ours));
    let pids = here.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| *pid != rustix::process::getpid()).collect()
}
