//! Threads that commit to their own files in one store, against one thread, and one thread against the floor.
//!
//! Other threads allocate in heaps of their own, and commit these with their files.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, ROUNDS_MIN, timed};
use crate::measuring::peers::{Floor, fill};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::{Writer, commits_needed, journal_bytes};
use anyhow::Result;
use std::alloc::Layout;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions};
use untorn::{Store, StoreOptions};

/// The numbers of threads, each with a file.
const CROWDS: [usize; 4] = [1, 4, 16, 64];
/// The numbers of threads, each with a heap and a file.
const HEAPS: [usize; 2] = [1, 8];
const COMMIT_BYTES: usize = 1 << 10;
const FILE_BYTES: u64 = 16 << 20;
/// The number of blocks of a thread in its heap.
const BLOCKS: usize = 1000;
const BLOCK_BYTES: usize = 256;

/// The `threads` sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("threads")?;
    let sections = vec![files(run, place, &dir)?, heaps(run, place, &dir)?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

/// The repeated work of a thread.
pub trait Work: Send {
    fn commit(&mut self) -> Result<Duration>;
}

impl Work for Writer {
    fn commit(&mut self) -> Result<Duration> {
        Writer::commit(self)
    }
}

/// The results of a number of threads.
struct Crowd {
    threads: usize,
    measured: Measured,
    rates: Vec<f64>,
    activity: Activity,
}

impl Crowd {
    fn new(threads: usize) -> Crowd {
        let name = if threads == 1 { "Untorn, 1 thread".to_owned() } else { format!("Untorn, {threads} threads") };
        Crowd { threads, measured: Measured::new(name), rates: Vec::new(), activity: Activity::default() }
    }

    fn round<W: Work>(&mut self, store: &Store, workers: &mut [W], commits: usize) -> Result<()> {
        let before = store.status();
        self.rates.push(crowd(&mut workers[..self.threads], commits, &mut self.measured)?);
        self.activity.add(&Activity::between(&before, &store.status()));
        Ok(())
    }

    /// A row with the ratio of commits per second to those of one thread.
    fn row(&self, one: &Crowd, journal_bytes: u64) -> Row {
        let gain = self.rates.iter().zip(&one.rates).map(|(many, one)| many / one).collect();
        Row {
            cell: format!("{} threads", self.threads),
            load: "saturated".to_owned(),
            contenders: vec![self.measured.summary(), one.measured.summary()],
            ratio: Some(Ratio::of_rounds(&one.measured.name, gain)),
            extras: figures(&self.rates, &self.activity, journal_bytes),
            ..Row::default()
        }
    }
}

fn files(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    let crowds = if run.quick { &CROWDS[..2] } else { &CROWDS };
    let most = crowds[crowds.len() - 1];
    run.progress.cell(format!("{}: commit 1 KiB, 1 to {most} threads", place.name));
    let root = dir.join("store");
    std::fs::create_dir(&root)?;
    let journal_bytes = journal_bytes(run, COMMIT_BYTES);
    for n in 0..most {
        fill(&root.join(n.to_string()), FILE_BYTES)?;
    }
    let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(&root)?;
    let mut writers = Vec::new();
    for n in 0..most {
        let mut writer = Writer::new(store.open_file(n.to_string())?, COMMIT_BYTES, FILE_BYTES);
        writer.commit()?;
        writers.push(writer);
    }
    let mut floor = Floor::buffered(dir, COMMIT_BYTES, journal_bytes)?;
    let mut direct_floor = Floor::direct(dir, COMMIT_BYTES, journal_bytes)?;

    let (rounds, commits) =
        if run.quick { (2, 20) } else { (ROUNDS_MIN, commits_needed(run, COMMIT_BYTES).div_ceil(ROUNDS_MIN)) };
    let mut crowds: Vec<Crowd> = crowds.iter().map(|threads| Crowd::new(*threads)).collect();
    let mut floors = [Floor::BUFFERED, Floor::DIRECT].map(Measured::new);
    for round in 0..rounds {
        run.progress.tick(round, rounds, 0, 1);
        floors.iter_mut().for_each(Measured::begin_round);
        for _ in 0..commits {
            floors[0].push(floor.write_all()?);
            if let Some(floor) = &mut direct_floor {
                floors[1].push(floor.write_all()?);
            }
        }
        for crowd in &mut crowds {
            // More threads make fewer commits each: about as many in all, and enough for the tail of the times.
            crowd.round(&store, &mut writers, (4 * commits / crowd.threads).clamp(commits.min(50), commits))?;
        }
    }
    writers.into_iter().try_for_each(|writer| writer.file.close())?;
    store.close()?;

    let floors: Vec<Measured> = floors.into_iter().filter(|m| m.rounds_ns.iter().all(|r| !r.is_empty())).collect();
    let floors: Vec<&Measured> = floors.iter().collect();
    let one = &crowds[0];
    let single = Row {
        cell: "1 thread".to_owned(),
        load: "saturated".to_owned(),
        contenders: std::iter::once(&one.measured).chain(floors.iter().copied()).map(Measured::summary).collect(),
        ratio: Some(Ratio::cost(&one.measured, &floors)),
        extras: figures(&one.rates, &one.activity, journal_bytes),
        ..Row::default()
    };
    let mut rows = vec![single.against_target(Some(Target::AtMost(1.25)), Waited::Allowed, run.quick)];
    for crowd in &crowds[1..] {
        let row = crowd.row(one, journal_bytes);
        rows.push(row.against_target(Some(Target::AtLeast(2.5)), Waited::Allowed, run.quick));
    }
    Ok(Section {
        title: "commit: threads of one store, 1 KiB each, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "1 thread: median commit ÷ median of the faster floor (*); more threads: commits per second ÷ those of 1 thread",
        rows,
        notes: vec![format!(
            "Each thread commits at random offsets of its own file of {}; {commits} commits of each thread in a round, of \
             larger crowds fewer.",
            bytes_text(FILE_BYTES)
        )],
    })
}

/// A thread with a heap and a file.
struct Keeper {
    heap: Heap,
    file: Writer,
    blocks: Vec<NonNull<u8>>,
}

// SAFETY: the blocks are the heap's, which can be used in any thread; only one thread has the keeper.
unsafe impl Send for Keeper {}

impl Keeper {
    fn layout() -> Layout {
        Layout::from_size_align(BLOCK_BYTES, 8).expect("a layout")
    }

    fn new(store: &Store, root: &Path, n: usize) -> Result<Keeper> {
        let heap = HeapOptions::new().create(true).open_in(store, format!("heap{n}"))?;
        fill(&root.join(format!("file{n}")), FILE_BYTES)?;
        let file = Writer::new(store.open_file(format!("file{n}"))?, COMMIT_BYTES, FILE_BYTES);
        let blocks = (0..BLOCKS).map(|_| heap.allocate(Keeper::layout())).collect::<untorn::Result<Vec<_>>>()?;
        let mut keeper = Keeper { heap, file, blocks };
        keeper.commit()?;
        Ok(keeper)
    }
}

impl Work for Keeper {
    /// Replaces a block by a new one with new contents, changes the file, and commits both together.
    fn commit(&mut self) -> Result<Duration> {
        let n = fastrand::usize(..BLOCKS);
        timed(|| {
            let block = self.heap.allocate(Keeper::layout())?;
            // SAFETY: so many bytes were just allocated, and the block that is freed is in `blocks` alone.
            unsafe {
                block.write_bytes(fastrand::u8(..), BLOCK_BYTES);
                self.heap.free(std::mem::replace(&mut self.blocks[n], block))?;
            }
            self.file.write()?;
            self.heap.syncv(&[&self.file.file])
        })
    }
}

fn heaps(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    let root = dir.join("heaps");
    std::fs::create_dir(&root)?;
    run.progress.cell(format!("{}: {} threads with heaps", place.name, HEAPS[1]));
    let journal_bytes = journal_bytes(run, COMMIT_BYTES);
    let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(&root)?;
    let keepers = (0..HEAPS[1]).map(|n| Keeper::new(&store, &root, n));
    let mut keepers = keepers.collect::<Result<Vec<_>>>()?;
    let (rounds, commits) = if run.quick { (2, 20) } else { (ROUNDS_MIN, 300) };
    let [mut one, mut many] = HEAPS.map(Crowd::new);
    for round in 0..rounds {
        run.progress.tick(round, rounds, 0, 1);
        one.round(&store, &mut keepers, commits)?;
        many.round(&store, &mut keepers, commits)?;
    }
    for Keeper { heap, file, .. } in keepers {
        heap.close()?;
        file.file.close()?;
    }
    store.close()?;
    let row = many.row(&one, journal_bytes);
    Ok(Section {
        title: "commit: threads with heaps and files of one store, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "commits per second ÷ those of 1 thread",
        rows: vec![row.against_target(Some(Target::AtLeast(4.0)), Waited::Allowed, run.quick)],
        notes: vec![format!(
            "Each thread allocates a block of {BLOCK_BYTES} B in its own heap, fills it, frees another one, changes 1 KiB of its \
             own file, and commits both as one."
        )],
    })
}

/// Lets every writer commit in a thread of its own. Returns the commits per second of all together.
pub fn crowd<W: Work>(writers: &mut [W], commits: usize, measured: &mut Measured) -> Result<f64> {
    let start = Instant::now();
    let times: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let work = |writer: &mut W| (0..commits).map(|_| writer.commit()).collect();
        let threads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(move || work(writer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    measured.begin_round();
    for thread in times {
        thread?.into_iter().for_each(|time| measured.push(time));
    }
    Ok((commits * writers.len()) as f64 / seconds)
}

fn figures(rates: &[f64], activity: &Activity, journal_bytes: u64) -> Extras {
    let mut extras = Extras::default();
    extras.add("commits/s", Ratio::of_rounds("", rates.to_vec()).value, 0);
    extras.add("commits/flush", activity.commits as f64 / activity.groups.max(1) as f64, 2);
    activity.describe(journal_bytes, &mut extras);
    extras
}
