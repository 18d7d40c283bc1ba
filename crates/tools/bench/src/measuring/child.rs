//! Work that needs a process of its own: this program is started again, with a job in its environment.

use crate::measuring::disk_model::DiskTimes;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use untorn_xsync::volumes::committer::Commits;

/// The variable with the job of a child process.
pub const JOB_VARIABLE: &str = "UNTORN_BENCH_CHILD";

/// The work of a child process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Job {
    /// Commits distinct pages to `file` of the store `root` until `wanted_bytes` of journal are pending, or as many as
    /// possible, and is killed.
    FillJournal { root: PathBuf, file: String, journal_bytes: u64, wanted_bytes: u64 },
    /// Commits to as many standalone files, keeps them open, and is killed.
    LeaveUnclean { dir: PathBuf, files: usize, round: u64 },
    /// Opens a standalone file, changes all of it, commits, closes. Creates file and store if missing.
    Update { path: PathBuf, bytes: usize },
    /// Replaces the file with `untorn put`'s function.
    Put { path: PathBuf, bytes: usize },
    /// Replaces the file by write, fsync, rename, fsync of the directory.
    Replace { dir: PathBuf, name: String, bytes: usize },
    /// Commits new keys to one of the stores of `kv-open`, and is killed.
    KvCrash { dir: PathBuf, name: String, bytes: u64, from: u64, commits: u64 },
    /// Runs a session.
    Session(SessionJob),
    /// Runs a server, in a session or outside of one. It flushes its log if `flush` is set.
    Serve { port: u16, log: PathBuf, flush: bool },
    /// Runs a program at a terminal. It writes each key to `log`, if there is one.
    EchoKeys { log: Option<PathBuf> },
    /// Serves a disk with given durations.
    SlowDisk { image: PathBuf, at: PathBuf, times: DiskTimes },
    /// Reads pages of a file of a store that another process has open, until its input ends.
    ReadOn { store: PathBuf, file: String },
    /// Makes this many commits to a file of so many bytes, and then commits on, until its input ends.
    CommitOn { store: PathBuf, bytes: u64, pending: usize },
    /// Replaces values in a store of LMDB, until its input ends.
    CommitOnLmdb { dir: PathBuf, values: u64 },
    /// Reads pages of a plain file, until its input ends.
    ReadPlain { path: PathBuf },
    /// Follows the commits of a store, until it is killed.
    Follow { store: PathBuf },
    /// Reads single bytes from its input.
    BeTold,
    /// Stores to a live heap with a block of `bytes`, and is killed.
    StoreToLive { path: PathBuf, bytes: usize },
    /// Serves a database of Kyoto Cabinet until its input ends, or fills it.
    KeyValueServer(serde_json::Value),
    /// Repeats an operation, under `untorn preload` or not.
    Preloaded(serde_json::Value),
    /// Repeats a transaction of SQLite.
    Sqlite(serde_json::Value),
    /// Serves a directory as a bucket; creating an object takes so much longer.
    ServeBucket { dir: PathBuf, put_us: u64 },
    /// Measures transactions on slower and slower memory.
    Nvm(serde_json::Value),
    /// Becomes a server that is told to end when its parent has ended.
    Server { program: PathBuf, arguments: Vec<PathBuf> },
    /// Makes and changes many small files.
    Postmark { dir: PathBuf, files: u64, transactions: u64 },
}

/// The parameters of a session of `untorn xsync`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionJob {
    /// The moments of commits.
    pub commits: Commits,
    /// Flushes have exact results.
    pub exact: bool,
    /// A volume that is kept. None if the working directory is an overlay.
    pub volume: Option<PathBuf>,
    /// The directory of temporary volumes.
    pub place: PathBuf,
    /// A port for clients outside.
    pub listen: Option<u16>,
    /// The program and its arguments.
    pub program: Vec<String>,
}

/// The times that a child and its parent measured.
#[derive(Clone, Copy, Debug)]
pub struct ChildTimes {
    /// From before the first call to after the last one, measured in the child.
    pub inside: Duration,
    /// From before the child's start to after its end, measured by the parent.
    pub whole: Duration,
}

/// Runs a job in a new process, and returns its times.
pub fn measure(job: &Job) -> Result<ChildTimes> {
    let start = Instant::now();
    let (line, status) = start_and_wait(job)?;
    let whole = start.elapsed();
    if !status.success() {
        bail!("the child process failed ({status}) at {job:?}");
    }
    let inside = Duration::from_nanos(line.trim().parse().context("bad output of the child process")?);
    Ok(ChildTimes { inside, whole })
}

/// Runs a job that leaves a full journal behind and is killed. Returns the number that the job printed.
pub fn leave_full_journal(job: &Job) -> Result<u64> {
    let (line, status) = start_and_wait(job)?;
    let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::KILL.as_raw());
    if !killed {
        bail!("the child process ended by itself ({status}) at {job:?}");
    }
    line.trim().parse().context("bad output of the child process")
}

/// A child that works beside this process, and is killed with it.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a job.
    pub fn start(job: &Job) -> Result<Running> {
        Running::start_command(job_command(job)?)
    }

    /// Starts a command, which ends in that of a job.
    pub fn start_command(mut command: Command) -> Result<Running> {
        let mut child =
            command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().context("cannot start a child process")?;
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Ok(Running { child, input, output })
    }

    /// Reads the next line of its output.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a child process ended by itself: {}", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }

    /// Writes a byte to its input.
    pub fn tell(&mut self) -> Result<()> {
        Ok(self.input.as_mut().expect("not stopped").write_all(b"!")?)
    }

    /// Stops the process for a while, or lets it go on.
    pub fn pause(&self, pause: bool) -> Result<()> {
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)?;
        if pause {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED)?;
        }
        Ok(())
    }

    /// Ends its input, and returns the number that it prints then.
    pub fn stop(mut self) -> Result<u64> {
        self.input = None;
        self.line()?.parse().context("bad output of the child process")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command of a job.
pub fn job_command(job: &Job) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(JOB_VARIABLE, serde_json::to_string(job)?).stdout(Stdio::piped());
    Ok(command)
}

fn start_and_wait(job: &Job) -> Result<(String, std::process::ExitStatus)> {
    let mut child = job_command(job)?.stdin(Stdio::null()).spawn().context("cannot start a child process")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
    Ok((line, child.wait()?))
}
