//! Commits of a file and of a mapping on slower and slower disks, as curves over the time of a flush.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, Contender, Plan, interleave};
use crate::measuring::memory_use::{
    Folios, Layout, Managed, Memory, Stores, cycle, plain_mapping, tracked_by, warm_up,
};
use crate::measuring::peers::{Floor, fill};
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::{Writer, load_text};
use crate::stores::threads::crowd;
use anyhow::Result;
use std::path::Path;
use std::time::Duration;
use untorn::{StoreOptions, TrackerKind};

/// The flush times of disks with a capacitor, of disks without one, and of hard disks.
const FLUSHES_US: [u64; 4] = [100, 1000, 5000, 10_000];
const IMAGE_BYTES: u64 = 1 << 30;
const COMMIT_BYTES: usize = 1 << 10;
const FILE_BYTES: u64 = 16 << 20;
const JOURNAL_BYTES: u64 = 4 << 20;
const PAGES: usize = 64;
const CHANGED_BYTES: usize = 64;
const THREADS: usize = 8;

const NOTES: &[&str] = &[
    "ext4 on a disk that answers a flush after the time of the row; its writes take no longer than usual, and go on \
     meanwhile. Real disks: some 0.05 ms with a capacitor, 1 to 5 ms without, 10 ms and more if they turn.",
    "File: 1 KiB at random offsets. Mapping: stores of 64 B to each of 64 random pages of 16 MiB, and the commit; the \
     peer is msync, with 4 KiB folios, which is not atomic. Threads: commits a second of 8 threads, each with a file, ÷ \
     those of one. Checkpoints are in it.",
];

/// The sections. They are always measured on ext4, on disks of their own.
pub fn run(run: &Run) -> Result<Vec<Section>> {
    let flushes = if run.quick { &FLUSHES_US[..1] } else { &FLUSHES_US };
    let mut rows: [Vec<Row>; 3] = Default::default();
    let mut last = None;
    for flush_us in flushes {
        let cell = format!("{} ms", *flush_us as f64 / 1e3);
        run.progress.cell(format!("commits, flushes of {cell}"));
        let place = Place::on_slow_disk(&run.dir, IMAGE_BYTES, Duration::from_micros(*flush_us))?;
        let dir = place.directory("flush-times")?;
        // The same number of seconds for each disk.
        let commits = if run.quick { 4 } else { (3_000_000 / (flush_us + 300) as usize).clamp(100, 1000) };
        let row = |measured: &[Measured], ratio, others| Row {
            cell: cell.clone(),
            load: load_text(Duration::ZERO),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(ratio),
            others,
            ..Row::default()
        };
        let measured = of_a_file(run, &dir, commits)?;
        let ratio = Ratio::cost(&measured[0], &[&measured[1]]);
        let target = Some(Target::AtMost(1.25));
        rows[0].push(row(&measured, ratio, Vec::new()).against_target(target, Waited::Allowed, run.quick));

        let measured = of_a_mapping(run, &dir, commits)?;
        let others = vec![Other::new(&measured[1].name, Ratio::cost(&measured[0], &[&measured[1]]), None, run.quick)];
        rows[1].push(row(&measured, Ratio::cost(&measured[0], &[&measured[2]]), others));

        let (measured, gains, extras) = of_threads(run, &dir, commits)?;
        rows[2].push(Row { extras, ..row(&measured, Ratio::of_rounds("1 thread", gains), Vec::new()) });
        std::fs::remove_dir_all(&dir)?;
        last = Some(place);
    }
    let Some(place) = last else { return Ok(Vec::new()) };
    let titles = [
        ("commit of a file, over the flush", Chart::Curves, "median commit ÷ median floor"),
        (
            "stores and commit of a mapping, over the flush",
            Chart::Curves,
            "median ÷ median of msync; commit ÷ floor is below",
        ),
        ("eight threads, over the flush", Chart::Bars, "commits a second ÷ those of one thread"),
    ];
    Ok(titles
        .into_iter()
        .zip(rows)
        .map(|((title, chart, ratio_means), rows)| Section {
            title: title.to_owned(),
            place: place.name.clone(),
            place_details: place.details.clone(),
            unit: Unit::Microseconds,
            chart,
            ratio_means,
            rows,
            notes: NOTES.iter().map(|note| (*note).to_owned()).collect(),
        })
        .collect())
}

fn of_a_file(run: &Run, dir: &Path, commits: usize) -> Result<Vec<Measured>> {
    let root = dir.join("file");
    std::fs::create_dir(&root)?;
    fill(&root.join("data"), FILE_BYTES)?;
    let store = StoreOptions::new().create(true).journal_bytes(JOURNAL_BYTES).open(&root)?;
    let mut writer = Writer::new(store.open_file("data")?, COMMIT_BYTES, FILE_BYTES);
    writer.commit()?;
    let mut floor = Floor::buffered(dir, COMMIT_BYTES, JOURNAL_BYTES)?;
    let mut contenders =
        [Contender::new("Untorn", 5, || writer.commit()), Contender::new(Floor::BUFFERED, 5, || floor.write_all())];
    let measured =
        interleave(&mut contenders, &Plan::spread(commits, 5, run.quick, Duration::ZERO), &run.progress, || true)?;
    drop(contenders);
    writer.file.close()?;
    store.close()?;
    Ok(measured)
}

/// Measures Untorn, the floor and `msync`.
fn of_a_mapping(run: &Run, dir: &Path, commits: usize) -> Result<Vec<Measured>> {
    let root = dir.join("mapping");
    std::fs::create_dir(&root)?;
    fill(&root.join("data"), FILE_BYTES)?;
    let mut ours = Managed::open(&root, JOURNAL_BYTES, &tracked_by(TrackerKind::Scan), false)?;
    let mut plain = plain_mapping(&dir.join("plain"), FILE_BYTES, Folios::Small)?;
    warm_up(&mut ours)?;
    warm_up(&mut plain)?;
    let mut floor = Floor::buffered(dir, PAGES * CHANGED_BYTES, JOURNAL_BYTES)?;
    let [mut one, mut other] = [(); 2].map(|()| Stores::new(Layout::dense(FILE_BYTES), PAGES, CHANGED_BYTES));
    let mut contenders = [
        Contender::new("Untorn", 5, || cycle(&mut ours, &mut one).map(|[all, _]| all)),
        Contender::new(Floor::BUFFERED, 5, || floor.write_all()),
        Contender::new("msync, 4 KiB folios", 5, || cycle(&mut plain, &mut other).map(|[all, _]| all)),
    ];
    let measured =
        interleave(&mut contenders, &Plan::spread(commits, 5, run.quick, Duration::ZERO), &run.progress, || true)?;
    drop(contenders);
    ours.settle()?;
    ours.close()?;
    Ok(measured)
}

/// Measures the commits of several threads and of one. Returns the ratio of commits per second for each round, too.
fn of_threads(run: &Run, dir: &Path, commits: usize) -> Result<(Vec<Measured>, Vec<f64>, Extras)> {
    let root = dir.join("threads");
    std::fs::create_dir(&root)?;
    (0..THREADS).try_for_each(|n| fill(&root.join(n.to_string()), FILE_BYTES))?;
    let store = StoreOptions::new().create(true).journal_bytes(JOURNAL_BYTES).open(&root)?;
    let mut writers = Vec::new();
    for n in 0..THREADS {
        let mut writer = Writer::new(store.open_file(n.to_string())?, COMMIT_BYTES, FILE_BYTES);
        writer.commit()?;
        writers.push(writer);
    }
    let rounds = if run.quick { 2 } else { 5 };
    let each = commits.div_ceil(rounds * 2);
    let [mut many, mut one] = ["Untorn, 8 threads", "Untorn, 1 thread"].map(Measured::new);
    let (mut gains, mut rates, mut activity) = (Vec::new(), Vec::new(), Activity::default());
    for _ in 0..rounds {
        let alone = crowd(&mut writers[..1], each, &mut one)?;
        let before = store.status();
        let together = crowd(&mut writers, each, &mut many)?;
        activity.add(&Activity::between(&before, &store.status()));
        gains.push(together / alone);
        rates.push(together);
    }
    writers.into_iter().try_for_each(|writer| writer.file.close())?;
    store.close()?;
    let mut extras = Extras::default();
    extras.add("commits/s", Ratio::of_rounds("", rates).value, 0);
    extras.add("commits/flush", activity.commits as f64 / activity.groups.max(1) as f64, 2);
    Ok((vec![many, one], gains, extras))
}
