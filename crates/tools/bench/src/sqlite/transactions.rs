//! The extension against SQLite's own WAL and rollback journal.

use super::worker::{Kept, Program, Work};
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, Running};
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, interleave};
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

/// The time that a commit without waiting may take, and opening a database, reading a row and closing it.
const ASYNC_NS: f64 = 12e3;
const OPEN_NS: f64 = 100e3;

/// A goal of the extension.
#[derive(Clone, Copy)]
enum Goal {
    /// So many times as fast as WAL, and as the rollback journal.
    Times { wal: Option<f64>, delete: Option<f64> },
    /// At most this time.
    Nanoseconds(f64),
}

/// One comparison.
#[derive(Clone, Copy)]
struct Comparison {
    name: &'static str,
    work: Work,
    /// Operations of a measurement, measurements, and measurements before.
    operations: usize,
    measurements: usize,
    before: usize,
    goal: Goal,
    /// Each measurement is of databases that were just made.
    is_fresh: bool,
    /// The databases are brought up to date at the end only.
    is_apart: bool,
}

impl Comparison {
    const fn new(name: &'static str, work: Work, operations: usize, goal: Goal) -> Comparison {
        Comparison { name, work, operations, measurements: 20, before: 2, goal, is_fresh: false, is_apart: false }
    }
}

const fn times(wal: Option<f64>, delete: Option<f64>) -> Goal {
    Goal::Times { wal, delete }
}

const fn update(databases: usize) -> Work {
    Work::Update { databases, is_durable: true }
}

const COMPARISONS: [Comparison; 9] = [
    Comparison {
        is_fresh: true,
        measurements: 5,
        before: 0,
        ..Comparison::new("one database, first 1,000 commits", update(1), 1000, times(Some(2.0), None))
    },
    Comparison { before: 6, ..Comparison::new("one database, steady", update(1), 500, times(Some(1.0), Some(4.5))) },
    Comparison::new("two databases", update(2), 200, times(Some(3.0), Some(10.0))),
    Comparison {
        measurements: 10,
        ..Comparison::new("16 databases, 16 threads", Work::Apart { threads: 16 }, 1600, times(Some(3.0), None))
    },
    Comparison {
        measurements: 10,
        ..Comparison::new("one database, 8 threads", Work::Together { threads: 8 }, 800, times(Some(2.0), None))
    },
    Comparison::new(
        "one database, synchronous=OFF",
        Work::Update { databases: 1, is_durable: false },
        1000,
        Goal::Nanoseconds(ASYNC_NS),
    ),
    Comparison::new("read of a row, cache_size=0", Work::Read, 10_000, times(Some(1.0), None)),
    Comparison::new("open, read of a row, close", Work::Open, 200, Goal::Nanoseconds(OPEN_NS)),
    Comparison {
        measurements: 2,
        before: 6,
        is_apart: true,
        ..Comparison::new("one database, brought up to date at the end", update(1), 1000, times(None, None))
    },
];

/// The section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("sqlite")?;
    let mut rows = Vec::new();
    for (n, comparison) in COMPARISONS.iter().enumerate() {
        run.progress.cell(format!("{}: sqlite, {}", place.name, comparison.name));
        rows.push(measure(run, &dir.join(n.to_string()), comparison).context(comparison.name)?);
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(vec![Section {
        title: "sqlite: the extension beside SQLite's own journals".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median of the peer ÷ median of the extension: times faster; for a target in µs, median ÷ target",
        rows,
        notes: vec![
            "Each time is that of one operation, the mean of a measurement of many: a transaction that updates a random row of \
             1,000 B, of 1,000 rows, with synchronous=FULL, in each attached database; a read; a connection. With threads it is \
             the time of all of them divided by their operations. Contenders take turns; checkpoints of the WAL and of \
             Untorn are included."
                .to_owned(),
            "Two databases in WAL mode are not one commit. WAL has synchronous=NORMAL beside synchronous=OFF of the others."
                .to_owned(),
            "Bytes: pages made dirty and direct writes of the process, as in /proc/self/io; the last row apart for journals, \
             and for databases that are brought up to date at the end (DELETE writes both at once)."
                .to_owned(),
        ],
    }])
}

/// A process that does the work of a comparison, with the bytes that it has written so far.
struct Contestant<'a> {
    comparison: &'a Comparison,
    kept: Kept,
    operations: usize,
    commits: &'a Cell<u64>,
    bytes: &'a Cell<u64>,
}

impl Contestant<'_> {
    fn start(&self, dir: &Path) -> Result<Running> {
        std::fs::create_dir_all(dir)?;
        Running::start(&Job::Sqlite(serde_json::to_value(Program {
            dir: dir.to_owned(),
            kept: self.kept,
            work: self.comparison.work,
            operations: self.operations,
            is_apart: self.comparison.is_apart,
        })?))
    }

    /// The time of one operation.
    fn measure(&self, process: &mut Running) -> Result<Duration> {
        process.tell()?;
        let line = process.line()?;
        let (time, bytes) = line.split_once(' ').context("bad output of a program")?;
        self.commits.set(self.commits.get() + self.operations as u64);
        self.bytes.set(self.bytes.get() + bytes.parse::<u64>()?);
        Ok(Duration::from_nanos(time.parse()?))
    }
}

fn measure(run: &Run, dir: &Path, comparison: &Comparison) -> Result<Row> {
    let measurements = if run.quick { 2 } else { comparison.measurements };
    let plan = Plan::spread(measurements, 1, run.quick, Duration::ZERO);
    let totals: [(Cell<u64>, Cell<u64>); 3] = Default::default();
    let contestants: Vec<_> = [Kept::Vfs, Kept::Wal, Kept::Delete]
        .into_iter()
        .zip(&totals)
        .map(|(kept, (commits, bytes))| {
            let least =
                if let Work::Apart { threads } | Work::Together { threads } = comparison.work { threads } else { 1 };
            // It is slower by far.
            let fewer = if kept == Kept::Delete { 5 } else { 1 };
            let operations = if run.quick { least } else { (comparison.operations / fewer).max(least) };
            Contestant { comparison, kept, operations, commits, bytes }
        })
        .collect();
    let (measured, at_end) = if comparison.is_fresh {
        (race_of_new_ones(run, dir, &plan, &contestants)?, None)
    } else {
        let (measured, at_end) = race(run, dir, &plan, &contestants)?;
        (measured, Some(at_end))
    };
    Ok(row(run, comparison, &measured, &contestants, at_end.filter(|_| comparison.is_apart).as_deref()))
}

const NAMES: [&str; 3] = ["extension", "WAL", "DELETE"];

fn race_of_new_ones(run: &Run, dir: &Path, plan: &Plan, contestants: &[Contestant<'_>]) -> Result<Vec<Measured>> {
    let number = Cell::new(0);
    let mut contenders: Vec<_> = contestants
        .iter()
        .zip(NAMES)
        .map(|(contestant, name)| {
            let number = &number;
            Contender::new(name, 1, move || {
                number.set(number.get() + 1);
                contestant.measure(&mut contestant.start(&dir.join(number.get().to_string()))?)
            })
        })
        .collect();
    interleave(&mut contenders, plan, &run.progress, || true)
}

/// Also returns the bytes that bringing the databases up to date has written.
fn race(run: &Run, dir: &Path, plan: &Plan, contestants: &[Contestant<'_>]) -> Result<(Vec<Measured>, Vec<u64>)> {
    let mut processes = Vec::new();
    for (contestant, name) in contestants.iter().zip(NAMES) {
        let mut process = contestant.start(&dir.join(name))?;
        // The first commits make logs and journals of their full size.
        for _ in 0..if run.quick { 0 } else { contestant.comparison.before } {
            contestant.measure(&mut process)?;
        }
        contestant.commits.set(0);
        contestant.bytes.set(0);
        processes.push(RefCell::new(process));
    }
    let mut contenders: Vec<_> = contestants
        .iter()
        .zip(&processes)
        .zip(NAMES)
        .map(|((contestant, process), name)| Contender::new(name, 1, || contestant.measure(&mut process.borrow_mut())))
        .collect();
    let measured = interleave(&mut contenders, plan, &run.progress, || true)?;
    drop(contenders);
    let at_end = processes.into_iter().map(|process| process.into_inner().stop()).collect::<Result<_>>()?;
    Ok((measured, at_end))
}

fn row(
    run: &Run,
    comparison: &Comparison,
    measured: &[Measured],
    contestants: &[Contestant<'_>],
    at_end: Option<&[u64]>,
) -> Row {
    let detail = |n: usize| {
        let mut extras = Extras::default();
        let commits = contestants[n].commits.get() as f64;
        extras.add("B written each", contestants[n].bytes.get() as f64 / commits, 0);
        if let Some(at_end) = at_end {
            extras.add("B in the end, each", at_end[n] as f64 / commits, 0);
        }
        (NAMES[n].to_owned(), extras)
    };
    let row = Row {
        cell: comparison.name.to_owned(),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(Measured::summary).collect(),
        details: (0..NAMES.len()).map(detail).collect(),
        ..Row::default()
    };
    let [ours, wal, delete] = measured else { unreachable!("three contenders") };
    let delete = |target| Other::new(NAMES[2], Ratio::speedup(ours, &[delete]), target, run.quick);
    let (ratio, target, others) = match comparison.goal {
        Goal::Times { wal: least, delete: other } => {
            (Ratio::speedup(ours, &[wal]), least.map(Target::AtLeast), vec![delete(other.map(Target::AtLeast))])
        }
        Goal::Nanoseconds(most) => {
            let parts = ours.round_medians_ns().into_iter().map(|ns| ns / most).collect();
            let limit = format!("{} µs", most / 1e3);
            let wal = Other::new(NAMES[1], Ratio::speedup(ours, &[wal]), None, run.quick);
            (Ratio::of_rounds(&limit, parts), Some(Target::AtMost(1.0)), vec![wal, delete(None)])
        }
    };
    Row { ratio: Some(ratio), others, ..row }.against_target(target, Waited::Allowed, run.quick)
}
