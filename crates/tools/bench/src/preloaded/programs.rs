//! Programs under `untorn preload`, against the same programs without it.

use super::worker::{Program, Work};
use crate::kv::kyoto::Durable;
use crate::kv::sqlite::JournalMode;
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, Running, job_command};
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, ROUNDS_MIN, interleave, timed};
use crate::measuring::unavailable::{need, program_beside};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const ROW_MAX: usize = 16 << 10;
/// The additional time that a call on another file, and a start, may take.
const CALL_NS: f64 = 30.0;
const START_NS: f64 = 10e6;

/// The sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("preload")?;
    let tried = preload(&dir)?.arg("true").output().context("untorn preload")?;
    need(tried.status.success(), String::from_utf8_lossy(&tried.stderr).trim())?;
    let sections = vec![programs(run, place, &dir)?, costs(run, place, &dir)?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

/// `untorn preload` with patterns for all files of these programs.
fn preload(dir: &Path) -> Result<Command> {
    let mut command = Command::new(program_beside("untorn")?);
    command.args(["preload", "--manage", "*.db", "--manage", "db", "--manage", "db.kct", "--manage", "log"]);
    command.arg("--store").arg(dir).arg("--");
    Ok(command)
}

/// Starts a program, natively or under `untorn preload`.
fn start(dir: &Path, name: &str, is_preloaded: bool, work: Work, batch: usize) -> Result<Running> {
    let dir = dir.join(name);
    std::fs::create_dir_all(&dir)?;
    let job = Job::Preloaded(serde_json::to_value(Program { dir: dir.clone(), work, batch })?);
    if !is_preloaded {
        return Running::start(&job);
    }
    let own = job_command(&job)?;
    let mut command = preload(&dir)?;
    command.arg(own.get_program()).envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start_command(command)
}

fn batch(program: &mut Running) -> Result<Duration> {
    program.tell()?;
    Ok(Duration::from_nanos(program.line()?.parse().context("bad output of a program")?))
}

/// One comparison.
struct Cell {
    name: String,
    ours: Work,
    peer: (&'static str, Work),
    /// Operations of a measurement, and measurements.
    batch: usize,
    measurements: usize,
    target: Target,
    /// Each measurement is of programs that have just made their files.
    is_fresh: bool,
}

fn programs(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    let sqlite = |mode, least, most| Work::Sqlite { mode, least, most };
    let memory = |least, most| sqlite(JournalMode::Memory, least, most);
    let (wal, delete) = (|least, most| sqlite(JournalMode::Wal, least, most), sqlite(JournalMode::Delete, 0, ROW_MAX));
    let cell = |name: &str, ours, peer, batch, measurements, target| Cell {
        name: name.to_owned(),
        ours,
        peer,
        batch,
        measurements,
        target: Target::AtLeast(target),
        is_fresh: false,
    };
    let mut cells = vec![
        cell("SQLite, rows to 16 KiB, WAL", memory(0, ROW_MAX), ("WAL", wal(0, ROW_MAX)), 500, 20, 1.46),
        cell("SQLite, rows to 16 KiB, rollback journal", memory(0, ROW_MAX), ("DELETE", delete), 50, 20, 4.0),
        Cell {
            is_fresh: true,
            ..cell("SQLite, rows of 1 KB, first commits", memory(1000, 1000), ("WAL", wal(1000, 1000)), 1000, 5, 0.85)
        },
        cell("SQLite, rows of 1 KB, steady", memory(1000, 1000), ("WAL", wal(1000, 1000)), 500, 20, 0.85),
        cell(
            "Kyoto Cabinet, tree",
            Work::Kyoto { durable: Durable::AutoSync },
            ("its transactions", Work::Kyoto { durable: Durable::Transactions }),
            20,
            20,
            2.0,
        ),
    ];
    cells.extend([100, 4 << 10, 64 << 10].map(|bytes| {
        let work = Work::Append { bytes };
        let name = format!("append {} and fsync", bytes_text(bytes as u64));
        // At most 0.7 of the time.
        cell(&name, work, ("natively", work), 100, 20, 1.0 / 0.7)
    }));
    let each = ("write, fsync, rename each", Work::Replace { files: 16 });
    cells.push(cell("16 files by untorn_fd_syncv", Work::Syncv { files: 16 }, each, 5, 20, 30.0));
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for (n, cell) in cells.iter().enumerate() {
        run.progress.cell(format!("{}: preload, {}", place.name, cell.name));
        match measure(run, &dir.join(n.to_string()), cell) {
            Ok(row) => rows.push(row),
            Err(e) => notes.push(format!("{} was left out: {e:#}", cell.name)),
        }
    }
    ensure!(!rows.is_empty(), "{}", notes.join("; "));
    notes.push(
        "Each time is that of many operations, all of them durable, of a program that runs under `untorn preload`, and of one \
         that does not: 500, 50, 1,000, 500 updates of SQLite (1,000 rows, synchronous=FULL, journal_mode=MEMORY under \
         preload; checkpoints of the WAL included), 20 of Kyoto Cabinet (auto-sync under preload), 100 appends, 5 times 16 \
         files of 4 KiB. First commits: of programs that have just filled their database."
            .to_owned(),
    );
    Ok(Section {
        title: "preload: unchanged programs, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        ratio_means: "median of the program without ÷ median under `untorn preload`: times faster",
        rows,
        notes,
    })
}

fn measure(run: &Run, dir: &Path, cell: &Cell) -> Result<Row> {
    let (operations, measurements) = if run.quick { (cell.batch.min(20), 2) } else { (cell.batch, cell.measurements) };
    let plan = Plan::spread(measurements, 1, run.quick, Duration::ZERO);
    let both = [("under preload", true, cell.ours), (cell.peer.0, false, cell.peer.1)];
    let mut number = 0;
    let mut begin = |name: &str, is_preloaded, work| {
        number += 1;
        start(dir, &format!("{number}-{}", name.replace([' ', ','], "-")), is_preloaded, work, operations)
    };
    let measured = if cell.is_fresh {
        let begin = std::cell::RefCell::new(&mut begin);
        let mut contenders = both.map(|(name, is_preloaded, work)| {
            let begin = &begin;
            Contender::new(name, 1, move || batch(&mut (begin.borrow_mut())(name, is_preloaded, work)?))
        });
        interleave(&mut contenders, &plan, &run.progress, || true)?
    } else {
        let [ours, peer] = both.map(|(name, is_preloaded, work)| begin(name, is_preloaded, work));
        let (mut ours, mut peer) = (ours?, peer?);
        // The first commits make logs and journals of their full size.
        for _ in 0..if run.quick { 0 } else { 2 } {
            batch(&mut ours)?;
            batch(&mut peer)?;
        }
        let mut contenders = [
            Contender::new(both[0].0, 1, move || batch(&mut ours)),
            Contender::new(both[1].0, 1, move || batch(&mut peer)),
        ];
        interleave(&mut contenders, &plan, &run.progress, || true)?
    };
    let mut extras = Extras::default();
    let per_operation = |n: usize| measured[n].summary().median_us / operations as f64;
    extras.add("µs each, preload", per_operation(0), 1);
    extras.add("µs each, without", per_operation(1), 1);
    let row = Row {
        cell: cell.name.clone(),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(Measured::summary).collect(),
        ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
        extras,
        ..Row::default()
    };
    Ok(row.against_target(Some(cell.target), Waited::Allowed, run.quick))
}

/// The additional time of calls on files that are not managed, and of starts.
fn costs(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    run.progress.cell(format!("{}: preload, costs", place.name));
    let calls = 10_000;
    let mut ours = start(dir, "seek", true, Work::Seek, calls)?;
    let mut peer = start(dir, "seek-natively", false, Work::Seek, calls)?;
    let plan = Plan::spread(if run.quick { 2 } else { 20 * ROUNDS_MIN }, 1, run.quick, Duration::ZERO);
    let mut contenders =
        [Contender::new("under preload", 1, || batch(&mut ours)), Contender::new("without", 1, || batch(&mut peer))];
    let seeks = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    let begin = |mut command: Command| {
        timed(|| {
            let status = command.stdin(Stdio::null()).status()?;
            ensure!(status.success(), "`true` failed: {status}");
            Ok(())
        })
    };
    let mut contenders = [
        Contender::new("under preload", 1, || {
            let mut command = preload(dir)?;
            command.arg("true");
            begin(command)
        }),
        Contender::new("without", 1, || begin(Command::new("true"))),
    ];
    let starts = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    let row = |cell: &str, measured: &[Measured], divisor: f64, limit: &str, limit_ns: f64| {
        let medians = measured.iter().map(Measured::round_medians_ns).collect::<Vec<_>>();
        let more = medians[0].iter().zip(&medians[1]).map(|(ours, peer)| (ours - peer) / divisor);
        let mut extras = Extras::default();
        let [ours, peer] = [0, 1].map(|n| measured[n].summary().median_us * 1e3 / divisor);
        extras.add("more, ns", ours - peer, 0);
        let row = Row {
            cell: cell.to_owned(),
            load: "saturated".to_owned(),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(Ratio::of_rounds(limit, more.map(|ns| ns / limit_ns).collect())),
            extras,
            ..Row::default()
        };
        row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, run.quick)
    };
    Ok(Section {
        title: "preload: calls on other files, and starts".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "additional time ÷ its limit: 30 ns for a call, 10 ms for a start",
        rows: vec![
            row("10,000 calls of lseek", &seeks, calls as f64, "30 ns", CALL_NS),
            row("start of `true`", &starts, 1.0, "10 ms", START_NS),
        ],
        notes: vec!["The start of `untorn preload` itself is part of that under preload.".to_owned()],
    })
}
