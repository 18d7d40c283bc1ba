//! The work of child processes, as the job in their environment describes it.

use crate::kv;
use crate::live;
use crate::measuring::child::{JOB_VARIABLE, Job};
use crate::measuring::peers::replace_file;
use crate::measuring::slow_disk;
use crate::preloaded;
use crate::shipped::slow_place;
use crate::sqlite;
use crate::stores::{many_unclean, nvm, reader_costs};
use crate::xsync;
use anyhow::{Context, Result, bail};
use fastrand::Rng;
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use untorn::{File, StoreOptions, offline};
use untorn_terminal::say;

/// If this process is such a child, does its job and prints the result.
pub fn run_if_child() -> Option<Result<()>> {
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
            return say_and_die(kv::first::leave_unapplied(&dir, &name, bytes, from, commits)?);
        }
        Job::LeaveUnclean { dir, files, round } => {
            return say_and_die(many_unclean::leave_unclean(&dir, files, round)?);
        }
        Job::StoreToLive { path, bytes } => return say_and_die(live::store_before_kill(&path, bytes)?),
        Job::KeyValueServer(program) => return kv::http_server::run(&serde_json::from_value(program)?),
        Job::Preloaded(program) => return preloaded::worker::run(&serde_json::from_value(program)?),
        Job::Sqlite(program) => return sqlite::worker::run(&serde_json::from_value(program)?),
        Job::Nvm(program) => return nvm::worker::run(&serde_json::from_value(program)?),
        Job::Session(session) => return xsync::session::run(session),
        Job::Serve { port, log, flush } => return xsync::guest::serve(port, &log, flush),
        Job::SlowDisk { image, at, times } => return slow_disk::serve(&image, &at, times),
        Job::EchoKeys { log } => return xsync::guest::echo_keys(log.as_deref()),
        Job::ReadOn { store, file } => return reader_costs::read_on(&store, &file),
        Job::CommitOn { store, bytes, pending } => return kv::snapshot_costs::commit_on(&store, bytes, pending),
        Job::CommitOnLmdb { dir, values } => return kv::snapshot_costs::commit_on_lmdb(&dir, values),
        Job::ReadPlain { path } => return reader_costs::read_plain(&path),
        Job::Follow { store } => return reader_costs::follow(&store),
        Job::BeTold => return reader_costs::be_told(),
        Job::ServeBucket { dir, put_us } => return slow_place::serve_bucket(dir, Duration::from_micros(put_us)),
        Job::Server { program, arguments } => {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            return Err(Command::new(program).args(arguments).env_remove(JOB_VARIABLE).exec().into());
        }
        Job::Postmark { dir, files, transactions } => return xsync::postmark::run(&dir, files, transactions),
        Job::Update { path, bytes } => {
            let content = content(bytes);
            start = Instant::now();
            let file = if path.exists() { File::open(&path)? } else { File::open_or_create(&path)? };
            file.write_all_at(&content, 0)?;
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
    say!("{}", start.elapsed().as_nanos());
    Ok(())
}

/// Fills the journal with records of one page each, prints how many bytes are pending, and kills itself.
///
/// Nothing is closed, and nothing is checkpointed at the end.
fn fill_journal(root: &std::path::Path, file: &str, journal_bytes: u64, wanted_bytes: u64) -> Result<()> {
    let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(root)?;
    let file = store.open_file(file)?;
    let mut pages: Vec<u64> = (0..file.len()? / 4096).collect();
    let mut random = Rng::with_seed(1);
    random.shuffle(&mut pages);
    let mut content = [7; 4096];
    let mut peak_bytes = 0;
    let mut falls = 0;
    let mut last_bytes = 0;
    for page in pages {
        content[..8].copy_from_slice(&random.u64(..).to_le_bytes());
        file.write_all_at(&content, page * 4096)?;
        file.commit()?;
        // A checkpoint may empty the journal before it holds `wanted_bytes`. Then the second time that it is nearly as
        // full as before is enough.
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

/// Prints a number, and kills this process.
fn say_and_die(number: u64) -> Result<()> {
    say!("{number}");
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
    bail!("survived SIGKILL")
}
