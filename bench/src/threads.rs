//! Four threads that commit to their own files in one store, against one thread, and that against
//! the floor.

use crate::bench_run::Run;
use crate::commits::{Writer, commits_needed, journal_bytes};
use crate::fs::Place;
use crate::harness::{Activity, ROUNDS_MIN};
use crate::peers::{Floor, fill};
use crate::section::{Chart, Extras, Row, Section, Target, TimeUnit, Waited, bytes_text};
use crate::statistics::{Measured, Ratio};
use anyhow::Result;
use std::time::Instant;
use untorn::StoreOptions;

const THREADS: usize = 4;
const COMMIT_BYTES: usize = 1 << 10;
const FILE_BYTES: u64 = 64 << 20;

/// The `threads` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let dir = place.directory("threads")?;
    run.progress.cell(format!("{}: commit 1 KiB, {THREADS} threads", place.name));
    let root = dir.join("store");
    std::fs::create_dir(&root)?;
    let journal_bytes = journal_bytes(run, COMMIT_BYTES);
    for n in 0..THREADS {
        fill(&root.join(n.to_string()), FILE_BYTES)?;
    }
    let store = StoreOptions::default().journal_bytes(journal_bytes).open(&root)?;
    let mut writers = Vec::new();
    for n in 0..THREADS {
        let mut writer = Writer::new(store.open_file(n.to_string())?, COMMIT_BYTES, FILE_BYTES);
        writer.commit()?;
        writers.push(writer);
    }
    let mut floor = Floor::buffered(&dir, COMMIT_BYTES, journal_bytes)?;
    let mut direct_floor = Floor::direct(&dir, COMMIT_BYTES, journal_bytes)?;

    let (rounds, commits) =
        if run.quick { (2, 20) } else { (ROUNDS_MIN, commits_needed(run, COMMIT_BYTES).div_ceil(ROUNDS_MIN)) };
    let [mut one, mut many] = ["Untorn, 1 thread".to_owned(), format!("Untorn, {THREADS} threads")].map(Measured::new);
    let mut floors = [Floor::BUFFERED, Floor::DIRECT].map(Measured::new);
    let mut rates = [Vec::new(), Vec::new()];
    let (mut alone, mut together) = (Activity::default(), Activity::default());
    for round in 0..rounds {
        run.progress.tick(round, rounds, 0, 1);
        floors.iter_mut().for_each(Measured::begin_round);
        for _ in 0..commits {
            floors[0].push(floor.write_all()?);
            if let Some(floor) = &mut direct_floor {
                floors[1].push(floor.write_all()?);
            }
        }
        for (n, (measured, activity)) in [(&mut one, &mut alone), (&mut many, &mut together)].into_iter().enumerate() {
            let before = store.status();
            let threads = if n == 0 { 1 } else { THREADS };
            rates[n].push(crowd(&mut writers[..threads], commits, measured)?);
            activity.add(&Activity::between(&before, &store.status()));
        }
    }
    writers.into_iter().try_for_each(|writer| writer.file.close())?;
    store.close()?;
    std::fs::remove_dir_all(&dir)?;

    let floors: Vec<Measured> = floors.into_iter().filter(|m| m.rounds_ns.iter().all(|r| !r.is_empty())).collect();
    let floors: Vec<&Measured> = floors.iter().collect();
    let single = Row {
        cell: "1 thread".to_owned(),
        load: "saturated".to_owned(),
        contenders: std::iter::once(&one).chain(floors.iter().copied()).map(Measured::summary).collect(),
        ratio: Some(Ratio::cost(&one, &floors)),
        extras: figures(&rates[0], &alone, journal_bytes),
        ..Row::default()
    };
    let gain = rates[1].iter().zip(&rates[0]).map(|(many, one)| many / one).collect();
    let crowded = Row {
        cell: format!("{THREADS} threads"),
        load: "saturated".to_owned(),
        contenders: vec![many.summary(), one.summary()],
        ratio: Some(Ratio::of_rounds(&one.name, gain)),
        extras: figures(&rates[1], &together, journal_bytes),
        ..Row::default()
    };
    Ok(Section {
        title: "commit: threads of one store, 1 KiB each, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: TimeUnit::Microseconds,
        ratio_means: "1 thread: median commit ÷ median of the faster floor (*); more threads: commits per second ÷ those of 1 thread",
        rows: vec![
            single.against_target(Some(Target::AtMost(1.25)), Waited::Allowed, run.quick),
            crowded.against_target(Some(Target::AtLeast(2.5)), Waited::Allowed, run.quick),
        ],
        notes: vec![format!(
            "Each thread commits at random offsets of its own file of {}; {commits} commits of each thread in a round.",
            bytes_text(FILE_BYTES)
        )],
    })
}

/// Lets every writer commit on a thread of its own; commits per second of them all.
fn crowd(writers: &mut [Writer], commits: usize, measured: &mut Measured) -> Result<f64> {
    let start = Instant::now();
    let times: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let work = |writer: &mut Writer| (0..commits).map(|_| writer.commit()).collect();
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
