//! Live heaps: the costs of logging, of allocation in sections, of cuts in the background, of lock-free programs.
//!
//! The peer of the log is the same C++ program without any protection.

mod cut_times;

use crate::kv::library_of_untorn;
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::ROUNDS_MIN;
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::need;
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::{Context, Result, ensure};
pub use cut_times::store_before_kill;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SOURCES: [(&str, &str); 13] = [
    ("untorn.h", include_str!("../../../../../include/untorn.h")),
    ("untorn.hpp", include_str!("../../../../../include/untorn.hpp")),
    ("untorn_heap.hpp", include_str!("../../../../../include/untorn_heap.hpp")),
    ("untorn_section.hpp", include_str!("../../../../../include/untorn_section.hpp")),
    ("untorn_containers.hpp", include_str!("../../../../../include/untorn_containers.hpp")),
    ("untorn_types.hpp", include_str!("../../../../../include/untorn_types.hpp")),
    ("untorn_members.hpp", include_str!("../../../../../include/untorn_members.hpp")),
    ("hooks.c", include_str!("../../../../bindings/c/live/hooks.c")),
    ("libstdcxx.cpp", include_str!("../../../../bindings/c/live/libstdcxx.cpp")),
    ("live_flags.sh", include_str!("../../../../bindings/c/package/live_flags.sh")),
    ("live_map.cpp", include_str!("live_map.cpp")),
    ("live_list.cpp", include_str!("live_list.cpp")),
    ("skip_list.hpp", include_str!("../../../../../examples/heap/skip_list/skip_list.hpp")),
];

/// The rows: work, keys, threads, and the targets of the log alone as parts of the program without protection, with gcc
/// and with clang.
const ROWS: [(&str, u64, u64, Option<[f64; 2]>); 8] = [
    ("update", 20_000, 1, Some([0.80, 0.75])),
    ("update", 20_000, 2, Some([0.80, 0.75])),
    ("lookup", 20_000, 1, Some([0.97, 0.97])),
    ("lookup", 20_000, 2, Some([0.97, 0.97])),
    ("churn", 20_000, 1, None),
    ("churn", 20_000, 2, None),
    ("update", 1_000_000, 1, Some([0.60, 0.60])),
    ("update", 1_000_000, 2, Some([0.60, 0.60])),
];

/// The rows of a lock-free list against ordinary memory: work, keys, threads, and target. A live heap needs no log for
/// the list; churn shows the cost of the allocator.
const LOCK_FREE: [(&str, u64, u64, Option<f64>); 5] = [
    ("update", 20_000, 1, Some(0.95)),
    ("update", 20_000, 2, Some(0.95)),
    ("lookup", 20_000, 1, Some(0.95)),
    ("lookup", 20_000, 2, Some(0.95)),
    ("churn", 20_000, 2, None),
];

/// The `live` sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let Built { scratch, compilers } = build(run, place)?;
    let dir = place.directory("live")?;
    let mut sections = Vec::new();
    for compiler in &compilers {
        let mut rows = Vec::new();
        for (work, keys, threads, targets) in ROWS {
            let targets = targets.map(|targets| targets[usize::from(compiler.starts_with("clang"))]);
            let programs = Programs { run, dir: &dir, scratch: scratch.path(), compiler };
            let title = format!("{}: live, {compiler}, {work}", place.name);
            rows.extend(programs.row(&title, (work, keys, threads), targets)?);
        }
        let programs = Programs { run, dir: &dir, scratch: scratch.path(), compiler };
        run.progress.cell(format!("{}: live, {compiler}, cuts and allocations", place.name));
        rows.extend(programs.cuts()?);
        rows.extend(programs.allocations()?);
        run.progress.cell(format!("{}: live, {compiler}, a lock-free list", place.name));
        for (work, keys, threads, target) in LOCK_FREE {
            rows.push(programs.lock_free((work, keys, threads), target)?);
        }
        sections.push(Section {
            title: format!("live: a hash map in sections, and a lock-free list, {compiler}"),
            place: place.name.clone(),
            place_details: place.details.clone(),
            unit: Unit::Microseconds,
            chart: Chart::Bars,
            ratio_means: "operations per second ÷ those of the peer",
            rows,
            notes: vec![
                "The map of Procrastination Beats Prevention: a lock for each 1,000 buckets. Times are of 1,000 operations of a \
                 thread; every measurement is a process of its own."
                    .to_owned(),
                "Without protection: std::mutex, malloc, no hooks. Log and flush: clwb and sfence (clflush where there is no clwb) \
                 after each record and again after the log's new end; protection against power cuts on persistent memory would \
                 cost this, or half of it with records that show by themselves that they are whole, as in the paper."
                    .to_owned(),
                "A section that allocates makes 16 blocks of 64 bytes and frees those of the section before. The lock-free list is \
                 the same program in ordinary memory and in a live heap, without hooks."
                    .to_owned(),
            ],
        });
    }
    sections.push(cut_times::run(run, place, &dir)?);
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

/// The directory of the programs, and the compilers that built them.
struct Built {
    scratch: Scratch,
    compilers: Vec<String>,
}

/// Compiles the programs with each compiler that is here.
fn build(run: &Run, place: &Place) -> Result<Built> {
    let library = library_of_untorn()?;
    need(Command::new("cc").arg("--version").output().is_ok(), "there is no C compiler here")?;
    let scratch = Scratch::new_in(&std::env::temp_dir())?;
    for (name, text) in SOURCES {
        std::fs::write(scratch.path().join(name), text)?;
    }
    std::fs::write(scratch.path().join("build_live.sh"), include_str!("build_live.sh"))?;
    // The name by which the programs load the library.
    symlink(library.canonicalize()?, scratch.path().join("libuntorn.so.0"))?;
    run.progress.cell(format!("{}: live, compiling", place.name));
    let built = Command::new("sh").arg("build_live.sh").arg(&library).current_dir(scratch.path()).output()?;
    ensure!(built.status.success(), "compiling failed:\n{}", String::from_utf8_lossy(&built.stderr));
    let compilers = String::from_utf8(built.stdout)?;
    need(!compilers.is_empty(), "there is no g++ or clang++ here")?;
    Ok(Built { scratch, compilers: compilers.lines().map(str::to_owned).collect() })
}

/// The iterations of the paper in a second, in each round: the contenders' names, and for each its rates.
pub type Rates = Vec<(&'static str, Vec<f64>)>;

pub const NO_PROTECTION: &str = "no protection";
pub const LOG: &str = "Untorn";
pub const LOG_AND_FLUSH: &str = "log and one flush";

/// Measures the paper's iteration for each number of threads, in the map and in the lock-free list, by the first compiler
/// that is here.
pub fn iterations(
    run: &Run,
    place: &Place,
    keys: u64,
    threads: &[u64],
    rounds: usize,
) -> Result<(String, Vec<[Rates; 2]>)> {
    let Built { scratch, compilers } = build(run, place)?;
    let compiler = &compilers[0];
    let dir = place.directory("live")?;
    let programs = Programs { run, dir: &dir, scratch: scratch.path(), compiler };
    let has_flush = scratch.path().join(format!("once-{compiler}")).exists();
    let mut ways = [vec![(LOG, "log"), (NO_PROTECTION, "plain")], vec![(LOG, "list"), (NO_PROTECTION, "plain-list")]];
    if has_flush {
        ways[0].push((LOG_AND_FLUSH, "once"));
    }
    let mut cells = Vec::new();
    for threads in threads {
        let mut cell = ways.each_ref().map(|ways| ways.iter().map(|(name, _)| (*name, Vec::new())).collect::<Rates>());
        for round in 0..rounds {
            run.progress.cell(format!("{}: live, threads: {threads}, run {} of {rounds}", place.name, round + 1));
            for (ways, rates) in ways.iter().zip(&mut cell) {
                for turn in 0..ways.len() {
                    let who = (turn + round) % ways.len();
                    rates[who].1.push(programs.rate(ways[who].1, ("paper", keys, *threads))?);
                }
            }
        }
        cells.push(cell);
    }
    std::fs::remove_dir_all(&dir)?;
    Ok((compiler.clone(), cells))
}

/// The programs that one compiler built.
struct Programs<'a> {
    run: &'a Run,
    dir: &'a Path,
    scratch: &'a Path,
    compiler: &'a str,
}

impl Programs<'_> {
    /// Runs a program, and returns its operations per second.
    fn rate(&self, way: &str, work: (&str, u64, u64)) -> Result<f64> {
        self.rate_with(way, work, &[])
    }

    fn rate_with(&self, way: &str, (work, keys, threads): (&str, u64, u64), more: &[&str]) -> Result<f64> {
        let heap = self.dir.join("map");
        let program = self.scratch.join(format!("{way}-{}", self.compiler));
        let milliseconds = if self.run.quick { 20 } else { 400 };
        let mut command = Command::new(program);
        command.arg(&heap).arg(work).args([keys, threads, milliseconds].map(|number| number.to_string()));
        command.args(more).env("LD_LIBRARY_PATH", self.scratch);
        let output = command.output()?;
        ensure!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
        if !way.starts_with("plain") {
            untorn::offline::eject(&heap, &|_, _| {})?;
            std::fs::remove_file(&heap)?;
        }
        let text = String::from_utf8(output.stdout)?;
        Ok(text.split_whitespace().next().context("no figure")?.parse()?)
    }

    /// Compares the rates of one way and another, in turns.
    fn pair(
        &self,
        cell: String,
        names: [&str; 2],
        target: Option<Target>,
        rates: impl Fn() -> Result<([f64; 2], f64)>,
    ) -> Result<Row> {
        let [mut ours, mut peer] = names.map(Measured::new);
        let mut ratios = Vec::new();
        let rounds = if self.run.quick { 1 } else { ROUNDS_MIN };
        for round in 0..rounds {
            self.run.progress.tick(round, rounds, 0, 1);
            let ([our, other], ratio) = rates()?;
            for (measured, rate) in [(&mut ours, our), (&mut peer, other)] {
                measured.begin_round();
                measured.push(Duration::from_secs_f64(1000.0 / rate));
            }
            ratios.push(ratio);
        }
        let row = Row {
            cell,
            load: load_text(Duration::ZERO),
            ratio: Some(Ratio::of_rounds(&peer.name, ratios)),
            contenders: vec![ours.summary(), peer.summary()],
            ..Row::default()
        };
        Ok(row.against_target(target, Waited::Allowed, self.run.quick))
    }

    /// Compares updates with a cut in each tenth of a second to updates without cuts.
    fn cuts(&self) -> Result<Vec<Row>> {
        let row = |keys: u64| {
            let work = ("update", keys, 2);
            let cell = format!("update, {keys} keys, 2 threads, cuts each 100 ms");
            self.pair(cell, ["with cuts", "no cuts"], Some(Target::AtLeast(0.9)), || {
                let without = self.rate("log", work)? / 2.0;
                let with = self.rate_with("log", work, &["100"])? / 2.0;
                Ok(([with, without], with / without))
            })
        };
        [20_000, 300_000].into_iter().map(row).collect()
    }

    /// Compares allocations in sections to those outside of sections, and two threads to one.
    fn allocations(&self) -> Result<Vec<Row>> {
        let rate =
            |work, threads: u64| Ok::<_, anyhow::Error>(self.rate("log", (work, 1000, threads))? / threads as f64);
        let against_outside = |threads: u64| {
            let cell = format!("allocation in a section, {threads} thread{}", if threads == 1 { "" } else { "s" });
            self.pair(cell, ["in a section", "outside"], Some(Target::AtLeast(0.5)), || {
                let (inside, outside) = (rate("inside", threads)?, rate("outside", threads)?);
                Ok(([inside, outside], inside / outside))
            })
        };
        let two = self.pair(
            "allocation in a section, 2 threads against one".to_owned(),
            ["2 threads", "1 thread"],
            Some(Target::AtLeast(1.7)),
            || {
                let (two, one) = (rate("inside", 2)? * 2.0, rate("inside", 1)?);
                Ok(([two, one], two / one))
            },
        )?;
        Ok(vec![against_outside(1)?, against_outside(2)?, two])
    }

    /// Compares a lock-free list in a live heap to one in ordinary memory.
    fn lock_free(&self, work: (&str, u64, u64), target: Option<f64>) -> Result<Row> {
        let (name, keys, threads) = work;
        let cell =
            format!("lock-free list, {name}, {keys} keys, {threads} thread{}", if threads == 1 { "" } else { "s" });
        self.pair(cell, ["live heap", "ordinary memory"], target.map(Target::AtLeast), || {
            let (ordinary, live) = (self.rate("plain-list", work)?, self.rate("list", work)?);
            Ok(([live, ordinary].map(|rate| rate / threads as f64), live / ordinary))
        })
    }

    /// Compares the log to no protection, and log and flush to the log.
    fn row(&self, title: &str, work: (&str, u64, u64), target: Option<f64>) -> Result<Vec<Row>> {
        self.run.progress.cell(title.to_owned());
        let (name, keys, threads) = work;
        let quick = self.run.quick;
        let has_flush =
            self.scratch.join(format!("flush-{}", self.compiler)).exists() && name == "update" && keys < 100_000;
        let [mut log, mut plain, mut flush] = ["log", "no protection", "log and flush"].map(Measured::new);
        let (mut ratios, mut gains) = (Vec::new(), Vec::new());
        let rounds = if quick { 1 } else { ROUNDS_MIN };
        for round in 0..rounds {
            self.run.progress.tick(round, rounds, 0, 1);
            let push = |measured: &mut Measured, rate: f64| {
                measured.begin_round();
                measured.push(Duration::from_secs_f64(1000.0 * threads as f64 / rate));
            };
            let (without, with) = (self.rate("plain", work)?, self.rate("log", work)?);
            push(&mut plain, without);
            push(&mut log, with);
            ratios.push(with / without);
            if has_flush {
                let flushed = self.rate("flush", work)?;
                push(&mut flush, flushed);
                gains.push(with / flushed);
            }
        }
        let row = |cell: String, contenders, ratio| Row {
            cell,
            load: load_text(Duration::ZERO),
            contenders,
            ratio: Some(ratio),
            ..Row::default()
        };
        let cell = format!("{name}, {keys} keys, {threads} thread{}", if threads == 1 { "" } else { "s" });
        let ratio = Ratio::of_rounds(&plain.name, ratios);
        let mut rows = vec![row(cell.clone(), vec![log.summary(), plain.summary()], ratio).against_target(
            target.map(Target::AtLeast),
            Waited::Allowed,
            quick,
        )];
        if has_flush {
            let ratio = Ratio::of_rounds(&flush.name, gains);
            let row = row(format!("{cell}, against flushing"), vec![log.summary(), flush.summary()], ratio);
            rows.push(row.against_target(Some(Target::AtLeast(5.0)), Waited::Allowed, quick));
        }
        Ok(rows)
    }
}
