//! Cuts of a live heap of 1 GiB: how long they stop a thread, and how long an opening after `SIGKILL` takes.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, leave_full_journal};
use crate::measuring::fs::Place;
use crate::measuring::harness::ROUNDS_MIN;
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::{Context, Result, ensure};
use std::alloc::Layout;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use untorn::heap::{Heap, HeapOptions, LiveStart};

const EVERY: Duration = Duration::from_millis(100);
const LINE_BYTES: usize = 64;
const LINES: usize = 10_000;
/// The limits for a stop of the threads by a cut, and for an opening.
const STOP_MOST: Duration = Duration::from_millis(1);
const OPENING_MOST: Duration = Duration::from_millis(20);

fn options() -> HeapOptions {
    HeapOptions::new().create(true).live(true)
}

/// The block of a heap, made and filled if it is new.
fn block_of(heap: &Heap, bytes: usize) -> Result<NonNull<u8>> {
    if let Some(block) = heap.root::<u8>("block")? {
        return Ok(block);
    }
    let block: NonNull<u8> = heap.allocate(Layout::from_size_align(bytes, 8)?)?;
    // SAFETY: allocated just now.
    unsafe { block.as_ptr().write_bytes(1, bytes) };
    heap.set_root("block", Some(block))?;
    heap.commit()?;
    Ok(block)
}

/// Adds to `lines` random lines of a block.
fn store(block: NonNull<u8>, bytes: usize, lines: usize, random: &mut fastrand::Rng) {
    for _ in 0..lines {
        let line = random.usize(..bytes / LINE_BYTES);
        // SAFETY: within the block, aligned, and used as atomics alone.
        unsafe { block.add(line * LINE_BYTES).cast::<AtomicU64>().as_ref() }.fetch_add(1, Relaxed);
    }
}

/// Stores to the heap, in a child that is about to be killed.
pub fn store_before_kill(path: &Path, bytes: usize) -> Result<u64> {
    let heap = options().open(path)?;
    let block = block_of(&heap, bytes)?;
    store(block, bytes, LINES, &mut fastrand::Rng::new());
    // Leaves the heap open.
    std::mem::forget(heap);
    Ok(LINES as u64)
}

/// Times as ratios to their limit.
fn against(most: Duration, times: &[Duration]) -> Ratio {
    let ratios = times.iter().map(|time| time.as_secs_f64() / most.as_secs_f64()).collect();
    Ratio::of_rounds(&format!("{most:?}"), ratios)
}

fn row(cell: String, measured: &Measured, ratio: Ratio, quick: bool) -> Row {
    let row = Row {
        cell,
        load: load_text(Duration::ZERO),
        contenders: vec![measured.summary()],
        ratio: Some(ratio),
        ..Row::default()
    };
    row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, quick)
}

/// Measures how long cuts stop a thread that stores to 10,000 lines in each tenth of a second: the median, and the
/// longest stop.
fn stops(run: &Run, path: &Path, bytes: usize) -> Result<Vec<Row>> {
    let heap = options().open(path)?;
    let block = block_of(&heap, bytes)?;
    let at = block.as_ptr().expose_provenance();
    let stop = AtomicBool::new(false);
    let mut measured = Measured::new("stop");
    let cuts = if run.quick { 3 } else { 50 };
    let made: Result<Vec<Duration>> = std::thread::scope(|scope| {
        let stopped = &stop;
        scope.spawn(move || {
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).expect("a block");
            let mut random = fastrand::Rng::with_seed(1);
            while !stopped.load(Relaxed) {
                let begun = Instant::now();
                store(block, bytes, LINES, &mut random);
                std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
            }
        });
        let mut times = Vec::new();
        let mut done = Ok(());
        for n in 0..cuts {
            run.progress.tick(n, cuts, 0, 1);
            // A random moment in the thread's work.
            std::thread::sleep(EVERY + Duration::from_millis(fastrand::u64(..100)));
            done = heap.commit();
            if done.is_err() {
                break;
            }
            times.push(heap.live().context("a live heap").map_or(Duration::ZERO, |live| live.stops.last));
        }
        stop.store(true, Relaxed);
        done?;
        Ok(times)
    });
    let times = made?;
    times.iter().for_each(|time| measured.push(*time));
    let longest = heap.live().context("a live heap")?.stops.longest;
    drop(heap);
    let what = format!("a cut of {LINES} lines, {}", bytes_text(bytes as u64));
    let mut longest_of_all = Measured::new("longest stop");
    longest_of_all.push(longest);
    Ok(vec![
        row(format!("{what}: half of the stops"), &measured, against(STOP_MOST, &times), run.quick),
        row(format!("{what}: the longest stop"), &longest_of_all, against(STOP_MOST, &[longest]), run.quick),
    ])
}

/// Measures how long an opening takes after a process with the heap was killed.
fn openings(run: &Run, path: &Path, bytes: usize) -> Result<Row> {
    let mut measured = Measured::new("opening");
    let mut times = Vec::new();
    for _ in 0..if run.quick { 1 } else { ROUNDS_MIN } {
        leave_full_journal(&Job::StoreToLive { path: path.to_owned(), bytes })?;
        let begun = Instant::now();
        let heap = options().open(path)?;
        let took = begun.elapsed();
        ensure!(heap.live().is_some_and(|live| live.start == LiveStart::WentOn), "the heap did not go on");
        measured.begin_round();
        measured.push(took);
        times.push(took);
    }
    let cell = format!("opening after SIGKILL, {}", bytes_text(bytes as u64));
    Ok(row(cell, &measured, against(OPENING_MOST, &times), run.quick))
}

pub fn run(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    let bytes = if run.quick { 16 << 20 } else { 1 << 30 };
    let path = dir.join("cuts");
    run.progress.cell(format!("{}: live, stops", place.name));
    let mut rows = stops(run, &path, bytes)?;
    run.progress.cell(format!("{}: live, opening after SIGKILL", place.name));
    rows.push(openings(run, &path, bytes)?);
    untorn::offline::eject(&path, &|_, _| {})?;
    std::fs::remove_file(&path)?;
    Ok(Section {
        title: "live: how long cuts stop threads, and opening after SIGKILL".to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Bars,
        ratio_means: "the time ÷ what it may be",
        rows,
        notes: vec![
            "A thread stores to 10,000 random lines in each tenth of a second, and cuts are made at random moments. The longest \
             stop is that of attempts, too, which are followed by another one. The kill comes behind 10,000 stores; the opening \
             has the file's pages in memory."
                .to_owned(),
        ],
    })
}
