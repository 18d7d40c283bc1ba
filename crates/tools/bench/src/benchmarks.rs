//! Chooses the benchmarks and places of a run, and prints and writes their figures.

use crate::maps::{heap_large, msync, msync_large};
use crate::measuring::bench_run::Run;
use crate::measuring::child::DiskTimes;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::{fs, scratch};
use crate::mounts::{mounted, mounted_programs};
use crate::preloaded::programs;
use crate::report::section::{Report, Section};
use crate::report::section_text;
use crate::report::status_line::StatusLine;
use crate::shipped::shipping;
use crate::sqlite::transactions;
use crate::stores::{append, checkpoints, commits, flush_times, oneshot, reader_costs, recovery_time, syncv, threads};
use crate::{kv, live, plot, xsync};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Duration;
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

    /// File systems, separated by commas; the default is ext4,xfs,btrfs for root, else here
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHERE")]
    fs: Vec<FileSystem>,

    /// Instead: on ext4, behind FUSE, on a disk whose flushes take this number of milliseconds; several numbers
    /// separated by commas (root only)
    #[arg(long, value_delimiter = ',', value_name = "MS", conflicts_with = "fs", value_parser = flush_ms)]
    flush_ms: Vec<f64>,

    /// With --flush-ms: writes of that disk take this number of milliseconds, several at a time
    #[arg(long, value_name = "MS", requires = "flush_ms", default_value = "0", value_parser = flush_ms)]
    write_ms: f64,

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

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Benchmark {
    /// Commits at random offsets; class process
    Commit,
    /// Commits of up to 64 threads of one store; of eight with heaps of their own
    Threads,
    /// Append and commit
    Append,
    /// Many files in one commit
    Syncv,
    /// Commits of a mapped file, against ordinary msync
    Msync,
    /// Commits of a mapped file of 1 GiB and of a sparse one of 64 GiB; reads and stores in between
    MsyncLarge,
    /// A heap of 2 GiB beside one of 16 MiB: commits, rollback, the allocator; threads of a heap
    HeapLarge,
    /// Sections of a live heap: a hash map with hooks and a log, against one without (needs a C++ compiler)
    Live,
    /// Opening after a crash with a full journal
    Recovery,
    /// Checkpoints side by side, one file after the other, and after each commit; commits beside them
    Checkpoints,
    /// One small change in a new process
    Oneshot,
    /// Readers in other processes: the owner's commits beside them, their reads, following, opening
    Readers,
    /// The containers of C++ and Rust on Untorn, against key-value stores (hours, because of the think time)
    Kv,
    /// Containers and key-value stores with a million small values: loading, commits, reads, a scan
    KvLarge,
    /// The first lookup after opening containers and stores of 4 GiB, after a clean close and after a crash
    KvOpen,
    /// Sessions of untorn xsync: their costs, a server with clients, programs (root only)
    Xsync,
    /// Commits for different flush times of a disk: files, mappings, threads (root; makes its own ext4: add --fs
    /// here)
    FlushTimes,
    /// Files on a mounted store (untorn-mount must be beside this program)
    Mount,
    /// Unchanged programs under untorn preload (`untorn` and its library must be beside this program)
    Preload,
    /// Transactions of SQLite with the extension, against its own WAL and rollback journal (`libuntorn_sqlite.so` must be
    /// beside this program)
    Sqlite,
    /// Stores that are shipped: commits, answers that wait for the bucket, restores (`untorn-ship` must be beside this
    /// program)
    Ship,
    /// All benchmarks except kv, live, xsync, mount, preload, ship, sqlite and flush-times
    All,
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

impl Bench {
    /// Runs the benchmarks, prints their tables, writes the files. A missed target is no failure.
    pub fn run(&self) -> Result<()> {
        let dir = self.dir.canonicalize().with_context(|| format!("cannot use {}", self.dir.display()))?;
        let places = match self.flush_ms.is_empty() {
            true => Place::choose(&self.fs, &dir, self.quick),
            false if rustix::process::geteuid().is_root() => Vec::new(),
            false => bail!(
                "--flush-ms makes and mounts a file system of its own, which only root may do; `--fs here` measures here"
            ),
        };
        if !self.flush_ms.is_empty() || places.iter().any(|&(fs, _)| fs != FileSystem::Here) {
            fs::enter_private_namespace();
        }
        scratch::clean_up_on_signals()?;
        if cfg!(debug_assertions) {
            tell!("This is a debug build: its figures mean nothing. Build with --release.");
        }
        let run = Run {
            quick: self.quick,
            runs: self.runs,
            think_ms: self.think_ms.clone(),
            log_mib: self.log_mib.clone(),
            without: self.without.clone(),
            dir: dir.clone(),
            progress: StatusLine::new(),
        };
        let mut report = Report {
            untorn_version: env!("CARGO_PKG_VERSION"),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            quick: self.quick,
            sections: Vec::new(),
        };
        let smoke = if self.quick { "; a smoke run: its figures mean little" } else { "" };
        run.progress.print(&format!(
            "Untorn {}, Linux {}, {} processors{smoke}",
            report.untorn_version, report.kernel, report.processors
        ));
        warn_of_company(report.processors)?;
        for (fs, required) in places {
            match Place::prepare(fs, &dir, self.quick, &run.progress) {
                Ok(place) => self.measure_in(&place, &run, &mut report)?,
                Err(e) if !required => run.progress.print(&format!("\nNot measured on an image: {e:#}")),
                Err(e) => return Err(e),
            }
        }
        for ms in &self.flush_ms {
            run.progress.cell(format!("making the disk with flushes of {ms} ms"));
            let [flush, write] = [*ms, self.write_ms].map(|ms| Duration::from_secs_f64(ms / 1e3));
            let place = Place::on_disk(&dir, fs::IMAGE_BYTES, DiskTimes { flush, write })?;
            self.measure_in(&place, &run, &mut report)?;
        }
        if report.sections.is_empty() {
            run.progress.print("No file system could be made: measuring where it stands.");
            let here = Place::prepare(FileSystem::Here, &dir, self.quick, &run.progress)?;
            self.measure_in(&here, &run, &mut report)?;
        }
        self.write_files(&report)
    }

    fn measure_in(&self, place: &Place, run: &Run, report: &mut Report) -> Result<()> {
        for benchmark in self.chosen() {
            for section in benchmark.sections(run, place)? {
                run.progress.print(&section_text::render(&section));
                report.sections.push(section);
            }
        }
        Ok(())
    }

    fn chosen(&self) -> Vec<Benchmark> {
        use Benchmark::{
            All, Append, Checkpoints, Commit, FlushTimes, HeapLarge, Kv, KvLarge, KvOpen, Live, Mount, Msync,
            MsyncLarge, Oneshot, Preload, Readers, Recovery, Ship, Sqlite, Syncv, Threads, Xsync,
        };
        let every =
            [Commit, Threads, Append, Syncv, Msync, MsyncLarge, HeapLarge, Recovery, Checkpoints, Oneshot, Readers];
        let all = self.benchmarks.contains(&All);
        let mut chosen: Vec<_> = every.into_iter().filter(|b| all || self.benchmarks.contains(b)).collect();
        chosen.extend(
            [Kv, KvLarge, KvOpen, FlushTimes, Live, Mount, Preload, Ship, Sqlite, Xsync]
                .into_iter()
                .filter(|b| self.benchmarks.contains(b)),
        );
        chosen
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

impl Benchmark {
    fn sections(self, run: &Run, place: &Place) -> Result<Vec<Section>> {
        Ok(match self {
            Benchmark::Commit => commits::run(run, place)?,
            Benchmark::Threads => threads::run(run, place)?,
            Benchmark::Append => vec![append::run(run, place)?],
            Benchmark::Syncv => vec![syncv::run(run, place)?],
            Benchmark::Msync => msync::run(run, place)?,
            Benchmark::MsyncLarge => msync_large::run(run, place)?,
            Benchmark::HeapLarge => heap_large::run(run, place)?,
            Benchmark::Live => live::run(run, place)?,
            Benchmark::Recovery => vec![recovery_time::run(run, place)?],
            Benchmark::Checkpoints => checkpoints::run(run, place)?,
            Benchmark::Oneshot => vec![oneshot::run(run, place)?],
            Benchmark::Readers => {
                let mut sections = reader_costs::run(run, place)?;
                sections.extend(kv::snapshot_costs::run(run, place)?);
                sections
            }
            Benchmark::Kv => kv::run(run, place)?,
            Benchmark::KvLarge => vec![kv::large::run(run, place)?],
            Benchmark::KvOpen => vec![kv::first::run(run, place)?],
            Benchmark::FlushTimes => flush_times::run(run)?,
            Benchmark::Mount => vec![mounted::run(run, place)?, mounted_programs::run(run, place)?],
            Benchmark::Preload => programs::run(run, place)?,
            Benchmark::Ship => shipping::run(run, place)?,
            Benchmark::Sqlite => transactions::run(run, place)?,
            Benchmark::Xsync => xsync::run(run, place)?,
            Benchmark::All => unreachable!("All stands for the others"),
        })
    }
}
