//! One transaction over several attached databases of SQLite, a use of `syncv` that paper 003 sketches.

use crate::measuring::child::{Job, Running};
use crate::measuring::fs::FileSystem;
use crate::measuring::harness::{Contender, Plan, interleave};
use crate::mounts::mounted::Mounted;
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::sqlite::worker::{Kept, Program, Work, need_extension};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

const DATABASES: [usize; 4] = [1, 2, 4, 8];
/// The databases of the sketch.
const DATABASES_QUICK: [usize; 1] = [4];
/// Transactions of a measurement, measurements of a run, and measurements before.
const TRANSACTIONS: usize = 100;
const TURNS: usize = 3;
const BEFORE: usize = 3;

const WAYS: [(&str, Kept, &str); 4] = [
    ("Untorn", Kept::Vfs, "the extension, databases of one store, synchronous=FULL"),
    (
        "rollback journals",
        Kept::Delete,
        "natively, journal_mode=DELETE, synchronous=FULL: a super-journal over several",
    ),
    ("WAL", Kept::Wal, "natively, synchronous=FULL: not atomic over several databases"),
    (
        "Untorn, mount",
        Kept::InTransaction,
        "a transaction of a mount over the files; journal_mode=MEMORY, synchronous=OFF",
    ),
];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    need_extension()?;
    let place = setting.image(FileSystem::Ext4)?;
    let dir = place.directory("attached")?;
    let mounted = Mounted::new(&dir)?;
    let counts = if run.quick { &DATABASES_QUICK[..] } else { &DATABASES[..] };
    let of_count = |count: &usize| {
        let name = format!("{count} database{}", if *count == 1 { "" } else { "s" });
        run.progress.cell(format!("{}: SQLite, {name}", place.name));
        let mut processes = Vec::new();
        for (way, kept, _) in WAYS {
            let below = if kept == Kept::InTransaction { &mounted.at } else { &dir };
            let at = below.join(format!("{count}-{}", way.replace([' ', ','], "-")));
            processes.push(start(setting, &at, kept, *count).context(way)?);
        }
        let mut contenders: Vec<Contender<'_>> =
            WAYS.iter().zip(&mut processes).map(|(way, process)| Contender::new(way.0, 1, || one(process))).collect();
        let plan = Plan { rounds: setting.runs, batches: if run.quick { 1 } else { TURNS }, think: Duration::ZERO };
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        Ok(Cell::of(name, &measured, Statistic::Median))
    };
    let cells = counts.iter().map(of_count).collect::<Result<_>>()?;
    drop(mounted);
    Ok(vec![Panel {
        name: "attached".to_owned(),
        title: "a transaction of SQLite over attached databases".to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Groups,
        settings: WAYS.iter().map(|(name, _, how)| [(*name).to_owned(), (*how).to_owned()]).collect(),
        cells,
        notes: vec![format!(
            "A transaction updates a random row of 1,000 B, of 1,000 rows, in each database; the mean of {TRANSACTIONS} \
             (with rollback journals a fifth), and the median of {TURNS} of them in a run. Checkpoints of the WAL and of \
             Untorn are included."
        )],
    }])
}

/// Starts a process with databases, and lets their logs grow to their sizes.
fn start(setting: &Setting<'_>, dir: &Path, kept: Kept, databases: usize) -> Result<Running> {
    std::fs::create_dir(dir)?;
    let is_quick = setting.run.quick;
    let mut process = Running::start(&Job::Sqlite(serde_json::to_value(Program {
        dir: dir.to_owned(),
        kept,
        work: Work::Update { databases, is_durable: true },
        operations: match kept {
            _ if is_quick => 5,
            // It is slower by far.
            Kept::Delete => TRANSACTIONS / 5,
            Kept::Vfs | Kept::Wal | Kept::InTransaction => TRANSACTIONS,
        },
        is_apart: false,
    })?))?;
    for _ in 0..if is_quick { 0 } else { BEFORE } {
        one(&mut process)?;
    }
    Ok(process)
}

/// The time of one transaction, from a measurement of many.
fn one(process: &mut Running) -> Result<Duration> {
    process.tell()?;
    let line = process.line()?;
    let (time, _) = line.split_once(' ').context("bad output of a program")?;
    Ok(Duration::from_nanos(time.parse()?))
}
