//! Live heaps: the costs of logging, of allocation in sections, of cuts in the background, of lock-free programs.
//!
//! The peer of the log is the same C++ program without any protection.

mod cut_times;
mod paper_rates;
mod programs;

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::ROUNDS_MIN;
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::Result;
pub use cut_times::store_before_kill;
pub use paper_rates::{Cells, LOG, LOG_AND_FLUSH, MEMCACHED, NO_PROTECTION, POOL, iterations, kernels};
use programs::{Built, Programs, build};
use std::time::Duration;

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
    let compilers_max = if run.quick { 1 } else { u8::MAX };
    let Built { scratch, compilers } = build(run, place, compilers_max)?;
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

impl Programs<'_> {
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
        let has_flush = self.has("flush") && name == "update" && keys < 100_000;
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
