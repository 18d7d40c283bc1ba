//! Work that needs a process of its own: the benchmark starts itself again, with the same arguments
//! and a job in the environment, so that it works inside whatever program it is built into.

use crate::peers::replace_file;
use anyhow::{Context, Result, bail};
use fastrand::Rng;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use untorn::{File, StoreOptions, offline};

const JOB_VARIABLE: &str = "UNTORN_BENCH_CHILD";

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Commits distinct pages to `file` of the store `root` until `wanted_bytes` of journal are
    /// pending or no more can be, and is killed.
    FillJournal { root: PathBuf, file: String, journal_bytes: u64, wanted_bytes: u64 },
    /// Opens a lone file, changes all of it, commits, closes. Creates file and store if missing.
    Update { path: PathBuf, bytes: usize },
    /// Replaces the file with `untorn put`'s function.
    Put { path: PathBuf, bytes: usize },
    /// Replaces the file by write, fsync, rename, fsync of the directory.
    Replace { dir: PathBuf, name: String, bytes: usize },
    /// Commits new keys to one of the stores of `kv-open`, and is killed.
    KvCrash { dir: PathBuf, name: String, bytes: u64, from: u64, commits: u64 },
}

/// What a child measured, and what its parent did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildTimes {
    /// From before the first call to after the last, inside the child.
    pub(crate) inside: Duration,
    /// From before its start to after its end.
    pub(crate) whole: Duration,
}

/// If this process is such a child: does its job and says so.
pub(crate) fn run_if_child() -> Option<Result<()>> {
    let job = std::env::var(JOB_VARIABLE).ok()?;
    Some(serde_json::from_str(&job).context("bad job").and_then(run))
}

fn run(job: Job) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let content = |bytes: usize| {
        let mut content = vec![0; bytes];
        fastrand::fill(&mut content);
        content
    };
    let start;
    match job {
        Job::FillJournal { root, file, journal_bytes, wanted_bytes } => {
            return fill_journal(&root, &file, journal_bytes, wanted_bytes);
        }
        Job::KvCrash { dir, name, bytes, from, commits } => {
            return say_and_die(crate::kv::first::leave_unapplied(&dir, &name, bytes, from, commits)?);
        }
        Job::Update { path, bytes } => {
            let content = content(bytes);
            start = Instant::now();
            let file = if path.exists() { File::open(&path)? } else { File::create(&path)? };
            file.write_at(&content, 0)?;
            file.commit()?;
            file.close()?;
        }
        Job::Put { path, bytes } => {
            let content = content(bytes);
            start = Instant::now();
            offline::put(&path, &mut &content[..])?;
        }
        Job::Replace { dir, name, bytes } => {
            let content = content(bytes);
            start = Instant::now();
            replace_file(&dir, &name, &content)?;
        }
    }
    println!("{}", start.elapsed().as_nanos());
    Ok(())
}

/// Fills the journal with records of one page each, says how much is pending, and kills itself:
/// nothing is closed, nothing checkpointed.
fn fill_journal(root: &std::path::Path, file: &str, journal_bytes: u64, wanted_bytes: u64) -> Result<()> {
    let store = StoreOptions::default().journal_bytes(journal_bytes).open(root)?;
    let file = store.file(file)?;
    let mut pages: Vec<u64> = (0..file.size()? / 4096).collect();
    let mut random = Rng::with_seed(1);
    random.shuffle(&mut pages);
    let mut content = [7; 4096];
    let mut peak_bytes = 0;
    let mut falls = 0;
    let mut last_bytes = 0;
    for page in pages {
        content[..8].copy_from_slice(&random.u64(..).to_le_bytes());
        file.write_at(&content, page * 4096)?;
        file.commit()?;
        // A checkpoint may take what is pending away before there is as much as we want; then the
        // second time that it is as full as it gets has to do.
        let pending_bytes = store.status().journal_bytes_pending;
        falls += u64::from(pending_bytes < last_bytes);
        last_bytes = pending_bytes;
        peak_bytes = peak_bytes.max(pending_bytes);
        if pending_bytes >= wanted_bytes || (falls > 0 && pending_bytes >= peak_bytes / 100 * 95) {
            break;
        }
    }
    say_and_die(last_bytes)
}

/// Says a number and kills itself.
fn say_and_die(number: u64) -> Result<()> {
    println!("{number}");
    std::io::stdout().flush()?;
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
    bail!("survived SIGKILL")
}

/// Runs a job in a new process; its times.
pub(crate) fn measure(job: &Job) -> Result<ChildTimes> {
    let start = Instant::now();
    let (line, status) = start_and_wait(job)?;
    let whole = start.elapsed();
    if !status.success() {
        bail!("the child process failed ({status}) at {job:?}");
    }
    let inside = Duration::from_nanos(line.trim().parse().context("bad answer of the child process")?);
    Ok(ChildTimes { inside, whole })
}

/// Leaves a journal behind that its owner, killed, never checkpointed; what the child said.
pub(crate) fn leave_full_journal(job: &Job) -> Result<u64> {
    let (line, status) = start_and_wait(job)?;
    let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::KILL.as_raw());
    if !killed {
        bail!("the child process ended by itself ({status}) at {job:?}");
    }
    line.trim().parse().context("bad answer of the child process")
}

fn start_and_wait(job: &Job) -> Result<(String, std::process::ExitStatus)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(JOB_VARIABLE, serde_json::to_string(job)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child process")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
    Ok((line, child.wait()?))
}
