//! Checkpoints side by side and one file after the other, against plain writes in order; commits beside them; and the
//! orders of checkpoints that the papers compare.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, ROUNDS_MIN, interleave, timed};
use crate::measuring::peers::{Floor, fill, write_pages_of};
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::Writer;
use crate::stores::two_files::managed::{Managed, Order};
use crate::stores::two_files::protocol::{LOG_BYTES, SHAPE};
use crate::stores::two_files::transactions::Transactions;
use anyhow::Result;
use fastrand::Rng;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn::__private::OpenStoreOn;
use untorn::{File, Store, StoreOptions};

const PAGE: u64 = 4096;
/// The number of files, the size of each, and the number of its pages that are committed before each checkpoint.
const SHAPES: [(usize, u64, usize); 4] =
    [(1, 64 << 20, 4096), (16, 4 << 20, 4), (16, 4 << 20, 256), (250, 1 << 20, 16)];
const JOURNAL_BYTES: u64 = 256 << 20;

const SIDE_BY_SIDE: &str = "Untorn, side by side";
const ONE_BY_ONE: &str = "Untorn, one thread";
const SYNCHRONOUS: &str = "Untorn, synchronous";
const IN_ORDER: &str = "writes in order, one flush";

const TRANSACTIONS: usize = 200;

/// The bytes of a commit beside checkpoints, and the time of a round.
const BESIDE_BYTES: usize = 1 << 10;
const BESIDE_TIME: Duration = Duration::from_secs(2);

/// The sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let section = |title: &str, unit, ratio_means, rows, note: &str| Section {
        title: title.to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit,
        ratio_means,
        rows,
        notes: vec![note.to_owned()],
    };
    let shapes = if run.quick { &SHAPES[1..2] } else { &SHAPES };
    let mut rows = Vec::new();
    for shape in shapes {
        run.progress.cell(format!("{}: checkpoints, {}", place.name, shape_text(shape)));
        rows.push(in_directory(place, "checkpoints", |dir| of_shape(run, dir, *shape))?);
    }
    let checkpoints = section(
        "a checkpoint of pages of files, class power",
        Unit::Milliseconds,
        "throughput ÷ throughput of the peer, or of one thread",
        rows,
        "Random pages of each file are committed, then the checkpoint is timed. One thread: one file after the other. The peer writes as many pages of such files, in order, \
         from memory, and flushes once (`fdatasync`, or `syncfs` for several files).",
    );

    let row = in_directory(place, "checkpoint-orders", |dir| of_orders(run, place, dir))?;
    let orders = section(
        "transactions over two files, by the order of checkpoints, class power",
        Unit::Microseconds,
        "transactions a second ÷ those of the peer",
        vec![row],
        "Each transaction writes 0 to 16 KiB at a random place in each of 2 of 250 files of 1 MiB, and commits; the \
         journal has 4 MiB. One thread: checkpoints write one file after the other (strict order). Synchronous: a \
         checkpoint after each commit. A sample is the mean of 200 transactions, checkpoints included.",
    );

    let row = in_directory(place, "checkpoint-beside", |dir| of_commits_beside(run, place, dir))?;
    let beside = section(
        "commits of 1 KiB beside checkpoints, class power",
        Unit::Microseconds,
        "p99.9 ÷ (p99.9 of the floor + its median, one flush)",
        vec![row],
        "One thread commits to a file. Another one commits 16 pages of each of 16 other files, and makes a checkpoint, \
         again and again. The floor runs alone, in turn.",
    );
    Ok(vec![checkpoints, orders, beside])
}

/// Measures in a directory that is there for that time only.
fn in_directory(place: &Place, name: &str, measure: impl FnOnce(&Path) -> Result<Row>) -> Result<Row> {
    let dir = place.directory(name)?;
    let row = measure(&dir)?;
    std::fs::remove_dir_all(&dir)?;
    Ok(row)
}

fn shape_text((files, bytes, pages): &(usize, u64, usize)) -> String {
    let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    format!("{files} of {}, {pages} pages each", bytes_text(*bytes))
}

fn make_files(dir: &Path, count: usize, bytes: u64) -> Result<Vec<PathBuf>> {
    std::fs::create_dir(dir)?;
    let paths: Vec<_> = (0..count).map(|n| dir.join(n.to_string())).collect();
    paths.iter().try_for_each(|path| fill(path, bytes))?;
    Ok(paths)
}

/// This many pages of a file, in random order.
fn random_pages(bytes: u64, count: usize) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..bytes / PAGE).collect();
    fastrand::shuffle(&mut pages);
    pages.truncate(count);
    pages
}

/// Files of a store that makes checkpoints on request only.
struct Filled {
    store: Store,
    files: Vec<File>,
    bytes: u64,
    pages: usize,
}

impl Filled {
    fn open(dir: &Path, (count, bytes, pages): (usize, u64, usize), threads: usize) -> Result<Filled> {
        make_files(dir, count, bytes)?;
        let options = StoreOptions::new().create(true).background(false).journal_bytes(JOURNAL_BYTES);
        let store = options.checkpoint_threads(threads).open(dir)?;
        let files = (0..count).map(|n| store.open_file(n.to_string())).collect::<untorn::Result<Vec<_>>>()?;
        let filled = Filled { store, files, bytes, pages };
        // The first checkpoint after an opening drops the page cache of its files.
        filled.fill()?;
        filled.store.checkpoint()?;
        Ok(filled)
    }

    /// Commits pages of each file.
    fn fill(&self) -> Result<()> {
        let mut page = vec![0; PAGE as usize];
        for file in &self.files {
            for number in random_pages(self.bytes, self.pages) {
                fastrand::fill(&mut page[..8]);
                file.write_all_at(&page, number * PAGE)?;
            }
            file.commit()?;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<Duration> {
        self.fill()?;
        timed(|| self.store.checkpoint())
    }

    fn close(self) -> Result<()> {
        self.files.into_iter().try_for_each(File::close)?;
        Ok(self.store.close()?)
    }
}

fn of_shape(run: &Run, dir: &Path, shape: (usize, u64, usize)) -> Result<Row> {
    let (count, bytes, pages) = shape;
    let many = Filled::open(&dir.join("many"), shape, usize::MAX)?;
    let one = Filled::open(&dir.join("one"), shape, 1)?;
    let plain = make_files(&dir.join("plain"), count, bytes)?;
    let mut contenders = [
        Contender::new(SIDE_BY_SIDE, 1, || many.checkpoint()),
        Contender::new(IN_ORDER, 1, || {
            let sorted = |_: &PathBuf| {
                let mut pages = random_pages(bytes, pages);
                pages.sort_unstable();
                pages
            };
            let chosen: Vec<_> = plain.iter().map(sorted).collect();
            timed(|| write_pages_of(&plain, &chosen, PAGE))
        }),
        Contender::new(ONE_BY_ONE, 1, || one.checkpoint()),
    ];
    let plan = Plan { rounds: if run.quick { 2 } else { 2 * ROUNDS_MIN }, batches: 1, think: Duration::ZERO };
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    many.close()?;
    one.close()?;
    let gain = Ratio::speedup(&measured[0], &[&measured[2]]);
    let row = Row {
        cell: shape_text(&shape),
        load: "saturated".to_owned(),
        ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
        others: vec![Other::new(ONE_BY_ONE, gain, Some(Target::AtLeast(1.5)), run.quick)],
        contenders: measured.iter().map(Measured::summary).collect(),
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtLeast(0.9)), Waited::Allowed, run.quick))
}

fn of_orders(run: &Run, place: &Place, dir: &Path) -> Result<Row> {
    run.progress.cell(format!("{}: checkpoints, transactions", place.name));
    let count = if run.quick { 5 } else { TRANSACTIONS };
    let transactions = Transactions::new(SHAPE, None);
    let contender = |name, order| -> Result<Contender<'_>> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let store = Managed::open(&dir, SHAPE, LOG_BYTES, order)?;
        let (transactions, mut random) = (&transactions, Rng::with_seed(1));
        Ok(Contender::new(name, 1, move || transactions.many(&store, count, 0.0, &mut random)))
    };
    let mut contenders = [
        contender(SIDE_BY_SIDE, Order::SideBySide)?,
        contender(ONE_BY_ONE, Order::OneByOne)?,
        contender(SYNCHRONOUS, Order::Synchronous)?,
    ];
    let plan = Plan { rounds: if run.quick { 2 } else { 2 * ROUNDS_MIN }, batches: 1, think: Duration::ZERO };
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    let others = vec![Other::new(SYNCHRONOUS, Ratio::speedup(&measured[0], &[&measured[2]]), None, run.quick)];
    Ok(Row {
        cell: "2 of 250 files".to_owned(),
        load: "saturated".to_owned(),
        ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
        others,
        contenders: measured.iter().map(Measured::summary).collect(),
        ..Row::default()
    })
}

/// A store in which one thread commits to a file, while another one makes checkpoints of other files.
struct Beside {
    filled: Filled,
    writer: Writer,
    checkpoints: u64,
}

impl Beside {
    fn open(dir: &Path, threads: usize) -> Result<Beside> {
        let filled = Filled::open(dir, (16, 4 << 20, 16), threads)?;
        fill(&dir.join("beside"), 16 << 20)?;
        let writer = Writer::new(filled.store.open_file("beside")?, BESIDE_BYTES, 16 << 20);
        Ok(Beside { filled, writer, checkpoints: 0 })
    }

    /// Measures the commits of some time.
    fn measure(&mut self, time: Duration, into: &mut Measured) -> Result<()> {
        let Beside { filled, writer, checkpoints } = self;
        let ended = AtomicBool::new(false);
        into.begin_round();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !ended.load(Relaxed) {
                    filled.checkpoint()?;
                    *checkpoints += 1;
                }
                anyhow::Ok(())
            });
            let start = Instant::now();
            let mut measure = || {
                while start.elapsed() < time {
                    into.push(writer.commit()?);
                }
                anyhow::Ok(())
            };
            let measured = measure();
            ended.store(true, Relaxed);
            other.join().expect("no panic").and(measured)
        })
    }

    fn close(self) -> Result<()> {
        self.writer.file.close()?;
        self.filled.close()
    }
}

fn of_commits_beside(run: &Run, place: &Place, dir: &Path) -> Result<Row> {
    run.progress.cell(format!("{}: commits beside checkpoints", place.name));
    let (rounds, time) = if run.quick { (1, Duration::from_millis(100)) } else { (2 * ROUNDS_MIN, BESIDE_TIME) };
    let mut many = Beside::open(&dir.join("many"), usize::MAX)?;
    let mut one = Beside::open(&dir.join("one"), 1)?;
    let mut floor = Floor::buffered(dir, BESIDE_BYTES, 4 << 20)?;
    let [mut ours, mut of_floor, mut single] = [SIDE_BY_SIDE, Floor::BUFFERED, ONE_BY_ONE].map(Measured::new);
    for _ in 0..rounds {
        many.measure(time, &mut ours)?;
        one.measure(time, &mut single)?;
        of_floor.begin_round();
        let start = Instant::now();
        while start.elapsed() < time {
            of_floor.push(floor.write_all()?);
        }
    }
    let mut extras = Extras::default();
    extras.add("checkpoints, side by side", many.checkpoints as f64, 0);
    extras.add("checkpoints, one thread", one.checkpoints as f64, 0);
    many.close()?;
    one.close()?;
    let floor = of_floor.summary();
    let against = |measured: &Measured| {
        let of_round = |round: &Vec<u64>| Measured { name: String::new(), rounds_ns: vec![round.clone()] }.summary();
        let limit_us = floor.p999_us + floor.median_us;
        Ratio::of_rounds(
            Floor::BUFFERED,
            measured.rounds_ns.iter().map(|round| of_round(round).p999_us / limit_us).collect(),
        )
    };
    let row = Row {
        cell: "16 files of 4 MiB, 16 pages each".to_owned(),
        load: "saturated".to_owned(),
        ratio: Some(against(&ours)),
        others: vec![Other::new(ONE_BY_ONE, against(&single), None, run.quick)],
        contenders: vec![ours.summary(), floor.clone(), single.summary()],
        extras,
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, run.quick))
}
