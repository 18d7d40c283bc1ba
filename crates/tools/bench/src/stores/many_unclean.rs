//! Many standalone files that one crash has left unclean: opening one of them, or recovering all first.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, leave_full_journal};
use crate::measuring::fs::{Place, drop_caches};
use crate::measuring::harness::timed;
use crate::measuring::unavailable::program_beside;
use crate::report::statistics::Measured;
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use untorn::File;

pub const ONE: &str = "Untorn";
pub const UNTOUCHED: &str = "an untouched file";
pub const ALL: &str = "all recovered";

const PAGE: usize = 4096;
/// Commits of a file that its recovery finds.
const COMMITS: u64 = 2;

fn path(dir: &Path, file: usize) -> PathBuf {
    dir.join(format!("{file}.db"))
}

/// Opens all files, or creates them, and commits to each. Returns their number.
///
/// The process keeps them open, and is killed.
pub fn leave_unclean(dir: &Path, files: usize, round: u64) -> Result<u64> {
    // Each store has descriptors of its own.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let mut page = [7; PAGE];
    for number in 0..files {
        let file = File::open_or_create(path(dir, number)).with_context(|| format!("file {number} of {files}"))?;
        for commit in 0..COMMITS {
            page[..8].copy_from_slice(&round.to_le_bytes());
            file.write_all_at(&page, commit * PAGE as u64)?;
            file.commit()?;
        }
        std::mem::forget(file);
    }
    Ok(files as u64)
}

/// The times of opening and reading one unclean file, of recovering all others, and of opening one that was closed.
pub fn measure(run: &Run, place: &Place, files: usize, rounds: usize) -> Result<[Measured; 3]> {
    let dir = place.directory("many-unclean")?;
    let mut all = [ONE, UNTOUCHED, ALL].map(Measured::new);
    for round in 1..=rounds as u64 {
        run.progress.cell(format!("{}: {files} unclean files, run {round} of {rounds}", place.name));
        leave_full_journal(&Job::LeaveUnclean { dir: dir.clone(), files, round })?;
        all.iter_mut().for_each(Measured::begin_round);
        let [one, untouched, last] = &mut all;
        let opened = fastrand::usize(..files);
        one.push(open(&dir, opened, round)?);
        drop_caches(&[])?;
        last.push(timed(|| recover(&dir))?);
        let other = (opened + 1 + fastrand::usize(..files - 1)) % files;
        untouched.push(open(&dir, other, round)?);
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(all)
}

/// Opens a file and reads its first page, from the disk. Closing it does not count.
fn open(dir: &Path, number: usize, round: u64) -> Result<Duration> {
    let (mut page, mut file) = ([0; PAGE], None);
    drop_caches(&[])?;
    let time = timed(|| -> Result<()> {
        let opened = File::open(path(dir, number))?;
        opened.read_exact_at(&mut page, 0)?;
        file = Some(opened);
        Ok(())
    })?;
    ensure!(page[..8] == round.to_le_bytes(), "the last commits of file {number} are not there");
    file.context("opened")?.close()?;
    Ok(time)
}

fn recover(dir: &Path) -> Result<()> {
    let output = Command::new(program_beside("untorn")?).args(["find-unclean", "--recover"]).arg(dir).output()?;
    ensure!(output.status.success(), "untorn find-unclean: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
