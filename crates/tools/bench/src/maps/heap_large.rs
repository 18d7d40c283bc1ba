//! A large heap beside a small one: the costs of a commit of few stores, of a rollback, and of the allocator after it.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, ROUNDS_MIN, interleave, interleave_parts, timed};
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::Result;
use fastrand::Rng;
use std::alloc::Layout;
use std::cell::RefCell;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions};
use untorn::{StoreOptions, TrackerKind};

const BLOCK_BYTES: usize = 32 << 10;
const SMALL_BYTES: u64 = 16 << 20;
const LARGE_BYTES: u64 = 2 << 30;
const PAGE_BYTES: usize = 4096;
const STORES: [usize; 2] = [1, 64];
/// The size in pages of the commit during which threads wait for a guard.
const STILL_PAGES: usize = 1000;
/// The number of blocks that a thread has. It frees the oldest one when it allocates a new one.
const LIVE: usize = 1000;

/// The `heap-large` sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("heap-large")?;
    let bytes = if run.quick { [1 << 20, 8 << 20] } else { [SMALL_BYTES, LARGE_BYTES] };
    let [small, large] = ["small", "large"].map(|name| dir.join(name));
    let mut rows = Vec::new();
    let heaps = [TestHeap::new(&small, bytes[0])?, TestHeap::new(&large, bytes[1])?];
    compare(run, place, "new", heaps, &mut rows)?;
    for (state, tracker) in [("reopened", None), ("explicit", Some(TrackerKind::Explicit))] {
        let heaps = [TestHeap::open(&small, tracker)?, TestHeap::open(&large, tracker)?];
        compare(run, place, state, heaps, &mut rows)?;
    }
    rows.push(first_free(run, place, [&small, &large])?);
    let threads = vec![two_threads(run, place, &dir)?, stillness(run, place, &dir)?];
    std::fs::remove_dir_all(&dir)?;
    let section = |title: &str, ratio_means, rows, notes| Section {
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Bars,
        ratio_means,
        rows,
        notes,
    };
    Ok(vec![
        section(
            "heap-large: a large heap and a small one",
            "median in the large heap ÷ median in the small one",
            rows,
            vec![
                format!(
                    "{} and {} of blocks of 32 KiB, every page of them read; 8 B stored to each of so many random pages.",
                    bytes_text(bytes[1]),
                    bytes_text(bytes[0])
                ),
                "New: a page that was read is the zero page. Reopened: it is the file's, in whatever folios reading makes. Explicit: \
                 the same with the tracker explicit."
                    .to_owned(),
            ],
        ),
        section(
            "heap-large: threads of a heap",
            "of two threads: operations per second ÷ those of one; of the guard: median ÷ 1.5 ms",
            threads,
            Vec::new(),
        ),
    ])
}

/// A heap full of blocks. Every page has been read.
struct TestHeap {
    heap: Heap,
    blocks: Vec<NonNull<u8>>,
    random: Rng,
}

fn options() -> HeapOptions {
    HeapOptions::new().create(true).store(StoreOptions::default().journal_bytes(16 << 20)).dirty_max(LARGE_BYTES)
}

fn block() -> Layout {
    Layout::from_size_align(BLOCK_BYTES, 8).expect("a layout")
}

impl TestHeap {
    fn new(path: &Path, bytes: u64) -> Result<TestHeap> {
        let heap = options().create(true).open(path)?;
        for _ in 0..bytes as usize / BLOCK_BYTES {
            heap.allocate(block())?;
        }
        heap.commit()?;
        TestHeap::of(heap)
    }

    fn open(path: &Path, tracker: Option<TrackerKind>) -> Result<TestHeap> {
        let options = tracker.into_iter().fold(options(), |options, tracker| options.tracker(tracker));
        TestHeap::of(options.open(path)?)
    }

    fn of(heap: Heap) -> Result<TestHeap> {
        let (start, bytes) = heap.memory();
        for at in (0..bytes).step_by(PAGE_BYTES) {
            // SAFETY: inside the heap.
            black_box(unsafe { start.add(at).read_volatile() });
        }
        let blocks = blocks_of(&heap);
        Ok(TestHeap { heap, blocks, random: Rng::with_seed(1) })
    }

    /// Stores to random pages, and names the dirty ranges, which only the tracker `explicit` uses.
    fn store(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let block = self.blocks[self.random.usize(..self.blocks.len())];
            let at = self.random.usize(..BLOCK_BYTES / PAGE_BYTES) * PAGE_BYTES;
            // SAFETY: inside the block, which is the benchmark's own.
            let place = unsafe { block.add(at).cast::<u64>() };
            // SAFETY: as above.
            unsafe { place.write_volatile(self.random.u64(..)) };
            self.heap.mark_dirty(place.as_ptr().cast(), size_of::<u64>())?;
        }
        Ok(())
    }

    /// Times a rollback of stores to 64 pages, and the first allocation after it.
    fn roll_back(&mut self) -> Result<[Duration; 2]> {
        self.store(64)?;
        let first = self.heap.allocate(block())?;
        // SAFETY: allocations since the last commit are not used any more.
        let rollback = timed(|| unsafe { self.heap.rollback() })?;
        black_box(first);
        let allocated = timed(|| self.heap.allocate(block()).map(black_box))?;
        Ok([rollback, allocated])
    }
}

/// The blocks that fill a heap.
fn blocks_of(heap: &Heap) -> Vec<NonNull<u8>> {
    let (start, bytes) = heap.memory();
    let all = (0..bytes).step_by(BLOCK_BYTES);
    // SAFETY: addresses inside the heap.
    all.map(|at| unsafe { start.add(at) }).filter(|block| heap.size_of(*block).is_ok()).collect()
}

fn compare(run: &Run, place: &Place, state: &str, heaps: [TestHeap; 2], rows: &mut Vec<Row>) -> Result<()> {
    let [small, large] = heaps.map(RefCell::new);
    let row = |cell: String, measured: &[&Measured], target| {
        let row = Row {
            cell: format!("{state}: {cell}"),
            load: load_text(Duration::ZERO),
            contenders: measured.iter().map(|m| m.summary()).collect(),
            ratio: Some(Ratio::cost(measured[0], &measured[1..])),
            ..Row::default()
        };
        row.against_target(Some(Target::AtMost(target)), Waited::Allowed, run.quick)
    };
    for (count, target) in STORES.into_iter().zip([1.25, 1.9]) {
        run.progress.cell(format!("{}: heap-large, {state}, commit of {count}", place.name));
        let commit = |heap: &RefCell<TestHeap>| {
            let heap = &mut *heap.borrow_mut();
            heap.store(count)?;
            timed(|| heap.heap.commit())
        };
        let mut contenders =
            [Contender::new("large", 10, || commit(&large)), Contender::new("small", 10, || commit(&small))];
        let plan = Plan::spread(if run.quick { 4 } else { 400 }, 10, run.quick, Duration::ZERO);
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        rows.push(row(format!("commit of {count}"), &[&measured[0], &measured[1]], target));
    }
    run.progress.cell(format!("{}: heap-large, {state}, rollback", place.name));
    let mut contenders = [
        Contender::in_parts("large", 5, || large.borrow_mut().roll_back()),
        Contender::in_parts("small", 5, || small.borrow_mut().roll_back()),
    ];
    let plan = Plan::spread(if run.quick { 4 } else { 200 }, 5, run.quick, Duration::ZERO);
    let measured = interleave_parts(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    for (part, what) in ["rollback of 64 stores", "first allocation after it"].into_iter().enumerate() {
        rows.push(row(what.to_owned(), &[&measured[0][part], &measured[1][part]], 1.2));
    }
    for heap in [small, large] {
        heap.into_inner().heap.close()?;
    }
    Ok(())
}

/// Measures the first free of a block after opening.
fn first_free(run: &Run, place: &Place, paths: [&PathBuf; 2]) -> Result<Row> {
    run.progress.cell(format!("{}: heap-large, first free", place.name));
    let mut random = Rng::with_seed(2);
    let mut blocks = Vec::new();
    for path in paths {
        let heap = options().open(path)?;
        blocks.push(blocks_of(&heap));
        heap.close()?;
    }
    let [mut one, mut other] = [0, 1].map(|n| {
        let (path, blocks, mut random) = (paths[n], &blocks[n], random.fork());
        move || {
            let heap = options().open(path)?;
            let block = blocks[random.usize(..blocks.len())];
            // SAFETY: a heap is always at the same address; nothing else uses the block; nothing is committed.
            let time = timed(|| unsafe { heap.free(block) })?;
            heap.close()?;
            Ok(time)
        }
    });
    let mut contenders = [Contender::new("large", 1, &mut other), Contender::new("small", 1, &mut one)];
    let plan = Plan::spread(if run.quick { 2 } else { 40 }, 1, run.quick, Duration::ZERO);
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    let row = Row {
        cell: "first free after opening".to_owned(),
        load: load_text(Duration::ZERO),
        contenders: measured.iter().map(Measured::summary).collect(),
        ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtMost(1.2)), Waited::Allowed, run.quick))
}

/// Allocates and frees blocks of 16 to 271 bytes.
fn churn(heap: &Heap, operations: usize) -> Result<()> {
    let layout = |n: usize| Layout::from_size_align(16 + n * 97 % 256, 8).expect("a layout");
    let mut live = vec![None; LIVE];
    for n in 0..operations + LIVE {
        let new = if n < operations { Some(heap.allocate(layout(n))?) } else { None };
        if let Some(old) = std::mem::replace(&mut live[n % LIVE], new) {
            // SAFETY: allocated `LIVE` operations ago, and known only here.
            unsafe { heap.free(old)? };
        }
    }
    Ok(())
}

fn two_threads(run: &Run, place: &Place, dir: &Path) -> Result<Row> {
    run.progress.cell(format!("{}: heap-large, two threads", place.name));
    let heap = options().create(true).open(dir.join("threads"))?;
    let operations = if run.quick { 10_000 } else { 400_000 };
    let mut gains = Vec::new();
    let [mut two, mut one] = ["2 threads, 1,000 operations", "1 thread"].map(Measured::new);
    for round in 0..2 * ROUNDS_MIN {
        run.progress.tick(round, 2 * ROUNDS_MIN, 0, 1);
        let rate = |threads: usize, measured: &mut Measured| -> Result<f64> {
            let start = Barrier::new(threads);
            let worked: Vec<Result<Duration>> = std::thread::scope(|scope| {
                let work = || {
                    start.wait();
                    timed(|| churn(&heap, operations))
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                all.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
            });
            let longest = worked.into_iter().collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or_default();
            measured.begin_round();
            measured.push(longest / (operations as u32 / 1000));
            Ok(threads as f64 * operations as f64 / longest.as_secs_f64())
        };
        let alone = rate(1, &mut one)?;
        gains.push(rate(2, &mut two)? / alone);
    }
    heap.close()?;
    let row = Row {
        cell: "two threads that allocate and free".to_owned(),
        load: load_text(Duration::ZERO),
        contenders: vec![two.summary(), one.summary()],
        ratio: Some(Ratio::of_rounds(&one.name, gains)),
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtLeast(1.7)), Waited::Allowed, run.quick))
}

/// Measures the longest wait for a guard during a commit of many pages.
fn stillness(run: &Run, place: &Place, dir: &Path) -> Result<Row> {
    run.progress.cell(format!("{}: heap-large, stillness", place.name));
    let heap = options().create(true).open(dir.join("still"))?;
    let layout = Layout::from_size_align(4 * STILL_PAGES * PAGE_BYTES, 4096)?;
    let block = heap.allocate(layout)?.as_ptr() as usize;
    heap.commit()?;
    let [mut waited, mut committed] = ["waited for a guard", "the commit"].map(Measured::new);
    let rounds = if run.quick { 8 } else { 60 };
    for round in 0..rounds {
        run.progress.tick(round, rounds, 0, 1);
        for page in 0..STILL_PAGES {
            // SAFETY: within the block.
            unsafe { ((block + 4 * page * PAGE_BYTES) as *mut usize).write_volatile(round + 1) };
        }
        let (start, done) = (Barrier::new(2), AtomicBool::new(false));
        let (longest, took) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                start.wait();
                let mut longest = Duration::ZERO;
                while !done.load(Relaxed) {
                    let began = Instant::now();
                    drop(black_box(heap.mutate()));
                    longest = longest.max(began.elapsed());
                }
                longest
            });
            start.wait();
            let took = timed(|| heap.commit());
            done.store(true, Relaxed);
            (waiting.join().expect("a thread that waited"), took)
        });
        // The first commits find pages for the first time, and grow buffers, so they do not count.
        if round >= 5 {
            for (measured, time) in [(&mut waited, longest), (&mut committed, took?)] {
                measured.begin_round();
                measured.push(time);
            }
        }
    }
    heap.close()?;
    let ratios = waited.round_medians_ns().into_iter().map(|ns| ns / 1.5e6).collect();
    let row = Row {
        cell: format!("a guard during a commit of {STILL_PAGES} pages"),
        load: load_text(Duration::ZERO),
        contenders: vec![waited.summary(), committed.summary()],
        ratio: Some(Ratio::of_rounds("1.5 ms", ratios)),
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, run.quick))
}
