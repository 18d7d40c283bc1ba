//! Runs the benchmarks that the command line names, one after the other, and prints and writes their figures.

use crate::benchmarks::{ALL, Benchmark};
use crate::measuring::bench_run::Run;
use crate::measuring::disk_model::{Disk, DiskTimes};
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::unavailable::Unavailable;
use crate::measuring::{fs, scratch};
use crate::plot;
use crate::report::outcome::{self, Ended, Outcome};
use crate::report::section::Report;
use crate::report::section_text;
use crate::report::status_line::StatusLine;
use anyhow::{Context, Result, anyhow, ensure};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use untorn_terminal::tell;

/// Measure commits, side by side with the cost of plain system calls here
///
/// As root, each benchmark runs on ext4, XFS and btrfs, in image files of 4 GiB that it makes and
/// removes; otherwise on the file system of the directory.
#[derive(clap::Args, Debug)]
pub struct Bench {
    /// The benchmarks to run
    #[arg(value_enum, required = true)]
    benchmarks: Vec<Benchmark>,

    /// File systems, separated by commas; the default is ext4,xfs,btrfs for root, else here; of all, those that matter for
    /// each benchmark
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHERE")]
    fs: Vec<FileSystem>,

    /// Instead: on ext4, behind FUSE, on a disk whose flushes take this number of milliseconds; several numbers
    /// separated by commas (root only)
    #[arg(long, value_delimiter = ',', value_name = "MS", conflicts_with = "fs", value_parser = flush_ms)]
    flush_ms: Vec<f64>,

    /// With --flush-ms: each write of that disk takes this number of milliseconds, in order or not, with up to 1 MiB; four go
    /// on at a time
    #[arg(long, value_name = "MS", requires = "flush_ms", default_value = "0", value_parser = flush_ms)]
    write_ms: f64,

    /// Instead: on ext4, on the models of these disks, separated by commas (root only)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DISK", conflicts_with_all = ["fs", "flush_ms"])]
    disk: Vec<Disk>,

    /// Directory for the images, or for the measurements
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also draw the figures as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// A smoke run of seconds: every benchmark once, small, here, and no verdicts
    #[arg(long)]
    quick: bool,

    /// mount: also beside other FUSE file systems, as far as they are installed: mergerfs, bindfs, fuse-overlayfs
    #[arg(long)]
    peers: bool,

    /// kv: number of runs, instead of 7; 3 with think time, and of kv-large
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,

    /// kv: think times in milliseconds, separated by commas; the default is 0,10
    #[arg(long, value_delimiter = ',', value_name = "MS")]
    think_ms: Vec<u64>,

    /// recovery: sizes of the log in MiB, separated by commas; the default is 256. Each needs up to four times its size on
    /// the disk, and at least 3 GiB
    #[arg(long, value_delimiter = ',', value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=4096))]
    log_mib: Vec<u64>,

    /// kv: leave out the stores whose names begin with one of these; xsync: parts to leave out, of session, server,
    /// postmark, postgresql, programs, flush; separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    without: Vec<String>,
}

fn flush_ms(text: &str) -> Result<f64, String> {
    let ms: f64 = text.parse().map_err(|_| "it is no number of milliseconds".to_owned())?;
    if (0.0..=1000.0).contains(&ms) { Ok(ms) } else { Err("from 0 to 1000".to_owned()) }
}

/// A commit wakes up several times. On a busy processor each wake-up waits for its turn, also in the floor and the
/// peers, and all ratios come near 1.
fn warn_of_company(processors: usize) -> Result<()> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let running = load.split(' ').next().and_then(|minute| minute.parse().ok()).unwrap_or(0.0);
    if running > processors as f64 / 4.0 {
        tell!("The machine is busy (load {running} on {processors} processors): run this again when it is not.");
    }
    Ok(())
}

/// Where benchmarks run.
#[derive(Clone, Copy)]
enum Where {
    /// A file system; whether the command line names it, so that it must be there.
    On(FileSystem, bool),
    /// ext4 on a disk with these times.
    SlowDisk(DiskTimes),
}

/// The benchmarks of one place.
struct Stage {
    at: Where,
    benchmarks: Vec<Benchmark>,
}

impl Bench {
    /// Runs the benchmarks, prints their tables, writes the files. A missed target is no failure.
    pub fn run(&self) -> Result<()> {
        let dir = self.dir.canonicalize().with_context(|| format!("cannot use {}", self.dir.display()))?;
        ensure!(
            (self.flush_ms.is_empty() && self.disk.is_empty()) || rustix::process::geteuid().is_root(),
            "--flush-ms and --disk make and mount a file system of its own, which only root may do; `--fs here` measures here"
        );
        fs::enter_private_namespace();
        scratch::clean_up_on_signals()?;
        if cfg!(debug_assertions) {
            tell!("This is a debug build: its figures mean nothing. Build with --release.");
        }
        let run = self.settings(dir);
        let mut report = Report {
            untorn_version: env!("CARGO_PKG_VERSION"),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            quick: self.quick,
            outcomes: Vec::new(),
            sections: Vec::new(),
        };
        let smoke = if self.quick { "; a smoke run: its figures mean little" } else { "" };
        run.progress.print(&format!(
            "Untorn {}, Linux {}, {} processors{smoke}",
            report.untorn_version, report.kernel, report.processors
        ));
        warn_of_company(report.processors)?;
        let stages = self.stages();
        let total = stages.iter().map(|stage| stage.benchmarks.len()).sum();
        for stage in &stages {
            self.run_stage(stage, total, &run, &mut report)?;
        }
        run.progress.print(&outcome::summary(&report.outcomes));
        let failed = report.outcomes.iter().filter(|outcome| matches!(outcome.ended, Ended::Failed(_))).count();
        ensure!(failed == 0, "{failed} of {total} benchmarks failed");
        Ok(())
    }

    fn is_all(&self) -> bool {
        self.benchmarks.contains(&Benchmark::All)
    }

    fn settings(&self, dir: PathBuf) -> Run {
        Run {
            quick: self.quick,
            all: self.is_all(),
            peers: self.peers || self.is_all(),
            runs: self.runs,
            think_ms: self.think_ms.clone(),
            log_mib: self.log_mib.clone(),
            without: self.without.clone(),
            dir,
            progress: StatusLine::new(),
        }
    }

    /// The places in their order, each with its benchmarks.
    fn stages(&self) -> Vec<Stage> {
        let places: Vec<Where> = if !self.disk.is_empty() {
            self.disk.iter().map(|disk| Where::SlowDisk(disk.times())).collect()
        } else if self.flush_ms.is_empty() {
            let is_anywhere = !self.is_all() && self.benchmarks.iter().all(|benchmark| benchmark.is_on_own_disks());
            let wish = if is_anywhere { &[FileSystem::Here][..] } else { &self.fs };
            let chosen = Place::choose(wish, &self.dir, self.quick);
            chosen.into_iter().map(|(fs, is_required)| Where::On(fs, is_required)).collect()
        } else {
            let times = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let disk = |ms: &f64| Where::SlowDisk(DiskTimes::of(times(*ms), times(self.write_ms)));
            self.flush_ms.iter().map(disk).collect()
        };
        let stage = |(n, at): (usize, &Where)| {
            let is_wanted = |benchmark: Benchmark, planned: &[FileSystem]| match at {
                // Nobody named the place: all benchmarks run there, or those that are planned for it.
                Where::On(fs, false) if self.is_all() && *fs != FileSystem::Here => planned.contains(fs),
                _ if benchmark.is_on_own_disks() && n > 0 => false,
                _ => self.is_all() || self.benchmarks.contains(&benchmark),
            };
            let benchmarks = ALL.iter().filter(|(benchmark, planned)| is_wanted(*benchmark, planned));
            Stage { at: *at, benchmarks: benchmarks.map(|(benchmark, _)| *benchmark).collect() }
        };
        places.iter().enumerate().map(stage).collect()
    }

    /// Runs the benchmarks of a place, goes on after one that fails, and writes the figures after each.
    fn run_stage(&self, stage: &Stage, total: usize, run: &Run, report: &mut Report) -> Result<()> {
        if stage.benchmarks.is_empty() {
            return Ok(());
        }
        let place = self.make(stage.at, run);
        for benchmark in &stage.benchmarks {
            let (start, number) = (Instant::now(), report.outcomes.len() + 1);
            let (at, ended) = match &place {
                Ok(place) => {
                    run.progress.benchmark(&format!("{} on {}", benchmark.name(), place.name), number, total);
                    (place.name.clone(), self.measure(*benchmark, place, run, report))
                }
                Err((at, ended)) => ((*at).to_owned(), ended.clone()),
            };
            let (benchmark, seconds) = (benchmark.name(), start.elapsed().as_secs_f64());
            report.outcomes.push(Outcome { benchmark, place: at, seconds, ended });
            self.write_files(report)?;
        }
        Ok(())
    }

    /// Makes a place. If it cannot be made, returns its name, and how its benchmarks end.
    fn make(&self, at: Where, run: &Run) -> Result<Place, (&'static str, Ended)> {
        let (name, made) = match at {
            Where::On(fs, _) => (fs.name(), Place::prepare(fs, &run.dir, self.quick, &run.progress)),
            Where::SlowDisk(times) => {
                run.progress.cell(format!("making {}", times.describe()));
                (FileSystem::Ext4.name(), Place::on_disk(FileSystem::Ext4, &run.dir, fs::IMAGE_BYTES, times))
            }
        };
        made.map_err(|e| match at {
            Where::On(_, false) => (name, Ended::Skipped(format!("{e:#}"))),
            _ => (name, self.ended_by(&e)),
        })
    }

    /// Runs a benchmark, and adds its sections to the report. After a failure the place is empty again.
    fn measure(&self, benchmark: Benchmark, place: &Place, run: &Run, report: &mut Report) -> Ended {
        let measured = catch_unwind(AssertUnwindSafe(|| benchmark.sections(run, place)));
        match measured.unwrap_or_else(|_| Err(anyhow!("it panicked"))) {
            Ok(sections) => {
                for section in sections {
                    run.progress.print(&section_text::render(&section));
                    report.sections.push(section);
                }
                Ended::Done
            }
            Err(e) => {
                run.progress.print(&format!("\n{} on {} was not measured: {e:#}", benchmark.name(), place.name));
                if let Err(e) = place.clear() {
                    run.progress.print(&format!("It has left something: {e:#}"));
                }
                self.ended_by(&e)
            }
        }
    }

    /// Tells a failure from a lack of the machine, which excuses only a benchmark that the command line does not name.
    fn ended_by(&self, e: &anyhow::Error) -> Ended {
        let why = format!("{e:#}");
        if self.is_all() && e.is::<Unavailable>() { Ended::Skipped(why) } else { Ended::Failed(why) }
    }

    fn write_files(&self, report: &Report) -> Result<()> {
        let write = |path: &PathBuf, text: String| {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(path) = &self.json {
            write(path, serde_json::to_string_pretty(report)? + "\n")?;
        }
        if let Some(path) = &self.svg {
            write(path, plot::render(&report.sections)?)?;
        }
        Ok(())
    }
}
