//! The process that serves a session: in namespaces of its own it mounts the store over the directory, and runs the
//! program there.

use crate::daemon;
use crate::fuse::kernel_cache::Early;
use crate::fuse::server::Server;
use crate::mounts::mount_point::{self, Allowed};
use crate::plain_trees::manifest;
use crate::plain_trees::trial_below::{Trial, User};
use crate::processes::passed_signals::{self, Signals};
use anyhow::{Context, Error, Result, ensure};
use rustix::fd::OwnedFd;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_child_subreaper, set_parent_process_death_signal, waitpid,
};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use untorn_terminal::{tell, user_namespace};
use untorn_tree::{CommitMode, FileTree, HandoverLog, Limits};

/// Name of the directory for trials, beside the store.
const TRIAL: &str = "trial";
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Shells add this to the number of a signal.
pub const BY_SIGNAL: i32 = 128;
/// How long processes that the program left behind have to end by themselves.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(2);
/// After this time processes that do not end are left alone.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_secs(1);

/// A session: the program to run, and where.
pub struct Session {
    /// The store.
    pub store: PathBuf,
    /// The directory over which it is mounted.
    pub at: PathBuf,
    /// The program's working directory.
    pub cwd: PathBuf,
    /// Pipe to the process that began the session, which reads the [`Progress`] from it.
    pub tells: OwnedFd,
    /// The process that began the session.
    pub parent: i32,
    /// The commit mode.
    pub commit: CommitMode,
    /// The signals that are blocked when the program begins. Signals that are passed on to it are blocked in this
    /// process from the start.
    pub blocked: Signals,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// How far a session came. Only if it [never started](Progress::Nothing) the program is it certain that nothing is lost
/// with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The program was never started.
    Nothing,
    /// The program was started, and may have committed something.
    Begun,
    /// The program has ended with this exit code.
    Exited(u8),
    /// The program has ended with this exit code, and all its changes are committed.
    Committed(u8),
}

impl Progress {
    fn line(self) -> String {
        match self {
            Progress::Nothing => String::new(),
            Progress::Begun => "begun\n".to_owned(),
            Progress::Exited(code) => format!("exited {code}\n"),
            Progress::Committed(code) => format!("committed {code}\n"),
        }
    }

    /// Parses the last complete line.
    pub fn read(text: &str) -> Progress {
        let of = |line: &str| {
            let mut words = line.strip_suffix('\n')?.split(' ');
            let word = words.next()?;
            let mut code = || words.next().and_then(|word| word.parse().ok());
            match word {
                "begun" => Some(Progress::Begun),
                "exited" => code().map(Progress::Exited),
                "committed" => code().map(Progress::Committed),
                _ => None,
            }
        };
        text.split_inclusive('\n').filter_map(of).next_back().unwrap_or(Progress::Nothing)
    }
}

impl Session {
    fn tell(&self, progress: Progress) -> Result<()> {
        // A line is short enough for a pipe to take it at once.
        let told = rustix::io::write(&self.tells, progress.line().as_bytes());
        told.map(drop).context("the process that began the session has ended")
    }

    /// Runs the session. This process must have one thread, and end with the process that started it.
    pub fn run(
        self,
        open: impl FnOnce(
            &Path,
            CommitMode,
            Option<Arc<dyn HandoverLog>>,
            Option<Arc<dyn Limits>>,
        ) -> Result<Arc<dyn FileTree>>,
    ) -> Result<()> {
        let user = User::present().context("the user's groups")?;
        private_mounts()?;
        // Entering a new user namespace may have cleared this setting.
        set_parent_process_death_signal(Some(Signal::KILL)).context("the end of the session")?;
        ensure!(
            rustix::process::getppid() == Pid::from_raw(self.parent),
            "the process that began the session has ended"
        );
        set_child_subreaper(Some(rustix::process::getpid())).context("cannot look after processes")?;
        std::env::set_current_dir("/").context("/")?;
        let user = (!user_namespace::is_root()).then_some(user);
        let trial = Trial::begin(&self.store.with_file_name(TRIAL), manifest::read_fixed(&self.store)?, user);
        let trial = trial.context("cannot test which files the directory accepts")?;
        let tree = open(&self.store, self.commit, None, Some(Arc::new(trial)))?;
        let descriptor = mount_point::mount_directly(&self.store, &self.at, Allowed::default())?;
        let server = Server::start(descriptor, Arc::clone(&tree), self.commit)?;
        daemon::start_helper(server.cache(), &self.at, None)?;
        let helper = server.cache().process().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (ticking, cache) = (Arc::clone(&tree), Arc::clone(server.cache()));
        thread::Builder::new()
            .spawn(move || {
                loop {
                    thread::sleep(TICK);
                    ticking.tick(&*cache);
                    ticking.write_back_after(daemon::WRITEBACK_AFTER, &Early(&cache));
                }
            })
            .context("cannot start a thread")?;
        self.tell(Progress::Begun)?;
        let code = self.program();
        self.tell(Progress::Exited(code))?;
        end_the_rest(helper);
        // Retries writes that failed on a full disk, while the kernel still has the pages. Files that cannot be
        // committed are reported below.
        let _ = tree.prepare_end(&**server.cache());
        server.cache().close_all();
        if rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW).is_err() {
            rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
                .context("cannot unmount")?;
        }
        let end = server.wait();
        let lost = daemon::close(&tree, server.cache(), end, &self.at)?;
        for name in &lost {
            tell!("untorn-mount: {} is as of its last commit: a write of it had failed", self.at.join(name).display());
        }
        self.tell(Progress::Committed(if lost.is_empty() { code } else { code.max(1) }))
    }

    /// Runs the program; returns its exit code.
    fn program(&self) -> u8 {
        let shown = Path::new(&self.command[0]).display();
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).current_dir(&self.cwd);
        self.blocked.for_command(&mut command);
        let (meant, child) = match passed_signals::pass_on().and_then(|meant| Ok((meant, command.spawn()?))) {
            Err(e) => {
                tell!("untorn-mount: cannot execute {shown}: {e:#}");
                let missing = e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound);
                return if missing { NOT_FOUND } else { NOT_EXECUTABLE };
            }
            Ok((meant, child)) => {
                let child = Pid::from_child(&child);
                meant.is(child);
                (meant, child)
            }
        };
        // This process is the subreaper, so it also reaps processes that others left behind.
        loop {
            match waitpid(None, WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == child => {
                    meant.is_nobody();
                    let status = std::process::ExitStatus::from_raw(status.as_raw());
                    let code = status.code().or(status.signal().map(|number| BY_SIGNAL + number));
                    return code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tell!("untorn-mount: cannot wait for {shown}: {e}");
                    return 1;
                }
            }
        }
    }
}

/// Enters a mount namespace of this process's own, and for an ordinary user a user namespace.
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

/// Ends the processes that the program left behind.
fn end_the_rest(helper: Option<Pid>) {
    let started = Instant::now();
    let mut told = false;
    loop {
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let others = others(helper);
        // A process that cannot be ended keeps the mount until it ends.
        if others.is_empty() || started.elapsed() > GIVEN_UP_AFTER {
            return;
        }
        let signal = match started.elapsed() > LEFT_BEHIND_MAX {
            true => Some(Signal::KILL),
            false => (!told).then_some(Signal::TERM),
        };
        told = true;
        for pid in others {
            let _ = signal.map(|signal| kill_process(pid, signal));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// All processes in this process's mount namespace, and its descendants in any namespace, except the helper.
fn others(helper: Option<Pid>) -> Vec<Pid> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = rustix::process::getpid().as_raw_pid();
    let ours = namespace(own);
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    let parents: HashMap<i32, i32> = pids.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let comes_from_us = |pid: i32| {
        let mut ancestors = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        ancestors.any(|ancestor| ancestor == own)
    };
    let is_other = |pid: &i32| *pid != own && (comes_from_us(*pid) || ours.is_some() && namespace(*pid) == ours);
    pids.into_iter().filter(is_other).filter_map(Pid::from_raw).filter(|pid| Some(*pid) != helper).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The process name before it may contain any characters. A zombie has ended.
    let rest = String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.to_owned();
    let mut words = rest.split(' ');
    (words.next()? != "Z").then_some(())?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let lines = [Progress::Begun, Progress::Exited(7), Progress::Committed(7)].map(Progress::line);
        assert_eq!(Progress::read(""), Progress::Nothing);
        assert_eq!(Progress::read("beg"), Progress::Nothing);
        assert_eq!(Progress::read(&lines[0]), Progress::Begun);
        assert_eq!(Progress::read(&lines[..2].concat()), Progress::Exited(7));
        let all = lines.concat();
        assert_eq!(Progress::read(&all), Progress::Committed(7));
        assert_eq!(Progress::read(all.trim_end()), Progress::Exited(7));
    }
}
