//! The watchdog: runs a worker, and can end it wherever it hangs.
//!
//! A worker mounts file systems, and makes all calls that could hang. It has a mount namespace and a process group of
//! its own. Killing the group ends the worker's devices, which fails its pending requests. Its mounts go with the
//! namespace, and its loop devices detach themselves.

use crate::device::again::Again;
use crate::device::filesystem::program_path;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The environment variable that makes this process a worker, and names its job.
const ASKED: &str = "UNTORN_CRASHLAB_WORKER";
/// The directory in which a worker may leave files.
const PLACE: &str = "UNTORN_CRASHLAB_PLACE";
/// Begins the lines of a worker, among other output to the same pipe.
const PREFIX: &str = "lab: ";
/// Begins a line that names a FUSE connection for the watchdog to abort.
const CONNECTION: &str = "\u{1}fuse ";
/// Within this time after a kill a worker is gone, or stuck in the kernel.
const DEATH_TIME_MAX: Duration = Duration::from_secs(20);

/// Running workers, so that all can be ended.
static LIVING: Mutex<Vec<(Pid, PathBuf)>> = Mutex::new(Vec::new());

/// Ends every worker of this process, for a handler of Ctrl-C: nothing is left behind.
pub fn end_all() {
    for (group, dir) in std::mem::take(&mut *LIVING.lock()) {
        let _ = kill_process_group(group, Signal::KILL);
        let start = Instant::now();
        while rustix::process::test_kill_process_group(group).is_ok() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// The limits on a worker's time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit for the whole job.
    pub whole: Duration,
    /// The limit between two lines.
    pub silence: Duration,
}

/// The reason why there is no result.
#[derive(Debug)]
pub enum Stuck {
    /// It took longer than allowed, and was ended.
    Time(String),
    /// It ended with an error.
    Failed(String),
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stuck::Time(text) | Stuck::Failed(text) => f.write_str(text),
        }
    }
}

/// A worker that is watched; dropping this value ends it.
struct Worker {
    /// Removes the worker's files when dropped.
    _dir: TempDir,
    child: Child,
    connections: Vec<String>,
}

/// Runs this program as a worker for a job, and passes on every line of the worker.
pub fn supervise(again: &Again, job: &str, limits: Limits, mut hear: impl FnMut(&str)) -> Result<(), Stuck> {
    let started = Instant::now();
    let (mut worker, lines) = Worker::start(again, job).map_err(|e| Stuck::Failed(format!("{e:#}")))?;
    loop {
        let left = limits.whole.saturating_sub(started.elapsed());
        match lines.recv_timeout(left.min(limits.silence)) {
            Ok(line) => match line.strip_prefix(CONNECTION) {
                Some(connection) => worker.connections.push(connection.to_owned()),
                None => hear(&line),
            },
            Err(RecvTimeoutError::Timeout) => {
                let what = if left < limits.silence { "in all" } else { "without a word" };
                let after = left.min(limits.silence).max(started.elapsed().min(limits.whole));
                let end = if worker.end().is_some() { "was ended" } else { "CANNOT BE ENDED: the kernel holds it" };
                return Err(Stuck::Time(format!("the worker took {after:.0?} {what} and {end}")));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match worker.wait(DEATH_TIME_MAX) {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Stuck::Failed(format!("the worker failed: {status}"))),
        None => Err(Stuck::Time("the worker said everything and does not end".into())),
    }
}

impl Worker {
    fn start(again: &Again, job: &str) -> Result<(Worker, Receiver<String>)> {
        let dir = tempfile::Builder::new().prefix("untorn-crashlab-").tempdir()?;
        let mut child = again
            .behind("unshare", &["--mount", "--propagation", "private", "--"])
            .env(ASKED, job)
            .env(PLACE, dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a worker by `unshare`")?;
        LIVING.lock().push((Pid::from_child(&child), dir.path().to_owned()));
        let output = child.stdout.take().expect("piped");
        let (say, lines) = mpsc::channel();
        std::thread::spawn(move || listen(output, &say));
        Ok((Worker { _dir: dir, child, connections: Vec::new() }, lines))
    }

    /// Ends the worker and everything that it started.
    fn end(&mut self) -> Option<ExitStatus> {
        for connection in &self.connections {
            // If the kernel's control file system is mounted there. Otherwise the end of the server does the same.
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
        }
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.wait(DEATH_TIME_MAX)
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
        let me = Pid::from_child(&self.child);
        LIVING.lock().retain(|(pid, _)| *pid != me);
    }
}

fn listen(output: ChildStdout, say: &mpsc::Sender<String>) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        // Output of the test runner may precede the line.
        if let Some((_, text)) = line.split_once(PREFIX)
            && say.send(text.to_owned()).is_err()
        {
            return;
        }
    }
}

/// A new directory for a worker's mounts, empty, removed by the watchdog.
pub fn directory(name: &str) -> Result<PathBuf> {
    let place = std::env::var_os(PLACE).context("only a worker has a place for mounts")?;
    let dir = tempfile::Builder::new().prefix(name).tempdir_in(place)?;
    Ok(dir.keep())
}

/// Sends a line to the watchdog.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{PREFIX}{}\n", line.replace('\n', "\u{2028}")).as_bytes());
    let _ = out.flush();
}

/// Names a FUSE connection that the watchdog aborts in the end.
pub(in crate::device) fn name_connection(number: u32) {
    say(&format!("{CONNECTION}{number}"));
}

/// If this process was started as a worker, does its job and ends the process; otherwise does nothing.
pub fn work_if_asked(job: impl FnOnce(&str) -> Result<()>) {
    let Ok(order) = std::env::var(ASKED) else { return };
    std::thread::spawn(|| {
        // The watchdog holds the other end as long as it lives.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = kill_process_group(rustix::process::getpgrp(), Signal::KILL);
    });
    let code = match job(&order) {
        Ok(()) => 0,
        Err(e) => {
            say(&format!("FAILED {e:#}"));
            1
        }
    };
    std::process::exit(code);
}

/// Returns why the laboratory cannot work here, as far as that shows without trying.
pub fn missing(programs: &[String]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open(device) {
            return Some(format!("needs {device}: {e}"));
        }
    }
    let found = |program: &str| std::env::split_paths(&program_path()).any(|dir| dir.join(program).exists());
    let needed = programs.iter().map(String::as_str).chain(["unshare"]);
    needed.into_iter().find(|p| !found(p)).map(|program| format!("needs the program {program}"))
}

/// A worker's job that shows that its kind of mount works here.
pub const PROBE: &str = "probe";

/// Tries a small mount through all layers; returns why the laboratory cannot work here, if it cannot.
pub fn probe(again: &Again) -> Option<String> {
    let limits = Limits { whole: Duration::from_secs(20), silence: Duration::from_secs(20) };
    let mut said = String::new();
    match supervise(again, PROBE, limits, |line| said = line.trim_start_matches("FAILED ").to_owned()) {
        Ok(()) => None,
        Err(Stuck::Failed(_)) if !said.is_empty() => Some(format!("a small mount failed: {said}")),
        Err(stuck) => Some(format!("a small mount did not come back: {stuck}")),
    }
}
