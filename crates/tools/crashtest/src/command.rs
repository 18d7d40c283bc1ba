//! The command itself: starts and watches a worker for each file system, and reports the results.

use crate::job::{Done, Job, News};
use crate::results;
use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn_crashlab::device::watch::{self, Limits};
use untorn_crashlab::device::{Again, FileSystem};
use untorn_terminal::{Failure, Output, signals, tell};

const VIOLATED: u8 = 1;
const COULD_NOT: u8 = 2;
/// The interval of progress lines, without a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Run a program on a recording disk, cut the power at many moments, and check the remains.
///
/// The program works in a fresh file system: `{}` in its arguments is the directory. Each line that it prints is an
/// acknowledgement, a promise that the work it reports is durable. Then crash states are made: each has all
/// bytes that were flushed before a moment, and any part of the later ones, reordered and torn. Each state is
/// mounted, and the check is run on it. The check must succeed if every update acknowledged by that moment is there,
/// and whole.
///
/// Needs root, /dev/fuse and loop devices. Exit code: 0 nothing found, 1 a violation, 2 could not be done.
#[derive(Args)]
#[command(after_help = "\
Example:
  untorn-crashtest --check 'grep -qx \"$(tail -n 1 $UNTORN_ACKED)\" {}/last' -- ./my-program {}

The check finds the directory as `{}` and in UNTORN_DIR, and in the file UNTORN_ACKED the lines that were
acknowledged before the cut. A program that cannot use its output appends lines to the file UNTORN_ACKS. Both
should leave their buffers at once (`flush`). See docs/CRASHTEST.md.")]
pub struct Crashtest {
    /// File systems: ext4, ext4-journal (data=journal), ext4-nobarrier, xfs, btrfs.
    #[arg(long, value_delimiter = ',', default_value = "ext4,xfs,btrfs", value_parser = str::parse::<FileSystem>)]
    fs: Vec<FileSystem>,
    /// Shell command that checks the file system after a power cut.
    #[arg(long, value_hint = ValueHint::CommandString)]
    check: String,
    /// Shell command to run on the file system first; its results are durable before the recording begins.
    #[arg(long, value_hint = ValueHint::CommandString)]
    setup: Option<String>,
    /// Number of crash states to check, for each file system.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    states: u64,
    /// Check all of these states, instead of ending at the first violation.
    #[arg(long)]
    all: bool,
    /// The seed that selects the crash states.
    #[arg(long)]
    seed: Option<u64>,
    /// End the program after this number of seconds, as a power cut would.
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    run_seconds: u64,
    /// Duration of a flush of the disk, in microseconds.
    #[arg(long, default_value_t = 100, value_name = "MICROSECONDS")]
    flush_us: u64,
    /// Size of the disk in MiB; only the written part takes memory.
    #[arg(long, default_value_t = 320, value_name = "MIB")]
    size: u64,
    /// Directory for recordings and failing disks. Default: a directory for temporary files, if a violation is found.
    #[arg(long, value_hint = ValueHint::DirPath)]
    keep: Option<PathBuf>,
    /// Show one state of kept recordings (`--keep`) again, by its seed.
    #[arg(long, value_name = "SEED", requires = "keep", conflicts_with_all = ["program", "setup"])]
    replay: Option<u64>,
    /// Write a report for CI in JUnit's format.
    #[arg(long, value_hint = ValueHint::FilePath)]
    junit: Option<PathBuf>,
    /// The program and its arguments; `{}` is the directory.
    #[arg(last = true, required_unless_present = "replay", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<String>,
}

impl Crashtest {
    /// Runs the command. The exit code is 0 if nothing was found, 1 after a violation, 2 if the test could not run.
    pub fn run(self) -> Result<Output, Failure> {
        let failed = |e: std::io::Error| Failure::new(format!("cannot find this program: {e}")).code(COULD_NOT);
        let again = Again::with(&[]).map_err(failed)?;
        if let Some(why) = self.impossible(&again) {
            return Err(Failure::new(format!("crashtest cannot work here: {why}")).code(COULD_NOT));
        }
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let could_not = |e: Failure| e.code(COULD_NOT);
        let keep = Keep::new(self.keep.as_deref()).map_err(could_not)?;
        let temporary = keep.temporary.as_ref().map(|dir| dir.path().to_owned());
        let interrupted = Arc::new(AtomicBool::new(false));
        let theirs = interrupted.clone();
        let clean_up = move || {
            theirs.store(true, SeqCst);
            watch::end_all();
            temporary.iter().for_each(|dir| signals::remove_meanwhile(dir));
        };
        signals::on_interrupt(env!("CARGO_BIN_NAME"), "interrupted", clean_up)
            .map_err(|e| could_not(Failure::new(format!("cannot watch for Ctrl-C: {e}"))))?;
        let mut results = Vec::new();
        for &fs in &self.fs {
            let started = Instant::now();
            let done = self.one(&again, fs, seed, &keep.dir);
            while interrupted.load(SeqCst) {
                // The handler ends the process, so errors do not matter any more.
                std::thread::park();
            }
            let done = done.map_err(could_not)?;
            results.push(results::Result { fs, done, took: started.elapsed() });
        }
        if let Some(path) = &self.junit {
            results::junit(&results, &self.program, path)?;
        }
        let violated = results.iter().any(|r| r.done.violation.is_some());
        let kept = if violated { keep.for_good() } else { keep.dir.clone() };
        let text = results::text(&results, &self.again_with(), &kept, seed);
        Ok(Output::text(text).code(if violated { VIOLATED } else { 0 }))
    }

    fn impossible(&self, again: &Again) -> Option<String> {
        let programs: Vec<_> = self.fs.iter().chain([&FileSystem::Ext4]).map(|fs| fs.mkfs()).collect();
        watch::missing(&programs).or_else(|| watch::probe(again))
    }

    /// The command that shows a state again, up to the seed.
    fn again_with(&self) -> String {
        let quoted = self.check.replace('\'', r"'\''");
        format!("{} --check '{quoted}'", env!("CARGO_BIN_NAME"))
    }

    fn job(&self, fs: FileSystem, seed: u64, keep: &Path) -> Job {
        Job {
            fs: fs.name().to_owned(),
            check: self.check.clone(),
            setup: self.setup.clone(),
            program: self.program.clone(),
            states: self.states,
            all: self.all,
            seed,
            run_seconds: self.run_seconds,
            flush_us: self.flush_us,
            size_bytes: self.size << 20,
            keep: keep.to_owned(),
            keep_all: self.keep.is_some(),
            replay: self.replay,
        }
    }

    /// Tests one file system.
    fn one(&self, again: &Again, fs: FileSystem, seed: u64, keep: &Path) -> Result<Done, Failure> {
        let job = serde_json::to_string(&self.job(fs, seed, keep)).expect("a job is plain data");
        // The limit for silence: a state takes a moment, a check may take up to its limit, and the program may take its
        // whole time.
        let silence = Duration::from_secs(self.run_seconds + 120);
        let limits = Limits { whole: silence + Duration::from_secs(self.states * 60), silence };
        let (bar, mut done, mut trouble, mut last) = (bar(fs, self.states), None, None, Instant::now());
        let watched = watch::supervise(again, &job, limits, |line| match serde_json::from_str(line) {
            Ok(News::Says(text)) => bar.suspend(|| tell!("{fs}: {text}")),
            Ok(News::Progress { states, broken }) => {
                bar.set_position(states);
                bar.set_message(format!("{broken} violations"));
                if bar.is_hidden() && last.elapsed() > BETWEEN_LINES {
                    last = Instant::now();
                    tell!("{fs}: {states} of {} states, {broken} violations", self.states);
                }
            }
            Ok(News::Done(all)) => done = Some(*all),
            Err(_) => trouble = Some(line.trim_start_matches("FAILED ").to_owned()),
        });
        bar.finish_and_clear();
        match (watched, done, trouble) {
            (Ok(()), Some(done), _) => Ok(done),
            (_, _, Some(trouble)) => Err(Failure::new(format!("{fs}: {trouble}"))),
            (Err(stuck), ..) => Err(Failure::new(format!("{fs}: {stuck}"))),
            (Ok(()), None, None) => Err(Failure::new(format!("{fs}: the worker ended without a result"))),
        }
    }
}

/// The directory for recordings and failing disks.
struct Keep {
    dir: PathBuf,
    /// The temporary directory, which is removed at the end unless a violation is found.
    temporary: Option<TempDir>,
}

impl Keep {
    fn new(named: Option<&Path>) -> Result<Keep, Failure> {
        if let Some(dir) = named {
            std::fs::create_dir_all(dir).map_err(|e| Failure::io("make", dir, e))?;
            let dir = std::path::absolute(dir).map_err(|e| Failure::io("find", dir, e))?;
            return Ok(Keep { dir, temporary: None });
        }
        let made = tempfile::Builder::new().prefix("untorn-crashtest-").tempdir();
        let made = made.map_err(|e| Failure::io("make a directory in", &std::env::temp_dir(), e))?;
        Ok(Keep { dir: made.path().to_owned(), temporary: Some(made) })
    }

    /// Keeps the directory, because a violation was found.
    fn for_good(self) -> PathBuf {
        self.temporary.map_or(self.dir, TempDir::keep)
    }
}

fn bar(fs: FileSystem, states: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>14} {wide_bar} {pos}/{len} states, {msg} {eta}")
        .expect("the template is a constant");
    ProgressBar::new(states).with_style(style).with_prefix(fs.name()).with_message("0 violations")
}
