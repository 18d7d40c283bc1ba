//! Many files in one commit, against replacing each of them by write, flush and rename.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, COMMITS_MIN, Contender, Plan, ROUNDS_MIN, interleave, timed};
use crate::measuring::peers::{fresh_page, replace_file};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::Result;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::{File, Store, StoreOptions};

const COUNTS: [usize; 7] = [1, 4, 16, 64, 256, 1024, 10_000];
pub const OURS: &str = "Untorn";
pub const PEER: &str = "write, fsync, rename, fsync each";
const FILE_BYTES: usize = 4096;

/// If there are more files, the peer replaces only so many, and its time is scaled.
const SAMPLE: usize = 1000;

/// The `syncv` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let mut rows = Vec::new();
    for count in COUNTS {
        if run.quick && count > 64 {
            continue;
        }
        run.progress.cell(format!("{}: syncv, {}", place.name, count_text(count)));
        let dir = place.directory("syncv")?;
        rows.push(cell(run, &dir, count)?);
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(Section {
        title: "syncv: 4 KiB in each of many files, one commit, class power".to_owned(),
            chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median of replacing each file ÷ median of writing all and syncv: times faster",
        rows,
        notes: vec![
            "The peer, for each file: write a new file, fsync it, rename it over the old, fsync the directory."
                .to_owned(),
            format!("Of 10,000 files the peer replaces {SAMPLE}, and its time is scaled."),
            "First ever: the first syncv of files that the store has never seen; first after opening: the store was closed \
             and opened again in between; both include marking every file. They are not in the other figures."
                .to_owned(),
        ],
    })
}

/// The amount of work on some files.
struct Amount {
    count: usize,
    commits_per_round: usize,
    batches: usize,
    rounds: usize,
}

/// Measures one commit over so many files, in so many runs, against replacing each of them.
pub fn of_count(run: &Run, place: &Place, count: usize, rounds: usize) -> Result<Vec<Measured>> {
    let dir = place.directory("syncv")?;
    let commits_per_round = if run.quick { 1 } else { (2000 / count).clamp(1, 20) };
    let measured = race(run, &dir, &Amount { count, commits_per_round, batches: 1, rounds }, false)?.0;
    std::fs::remove_dir_all(&dir)?;
    Ok(measured)
}

fn cell(run: &Run, dir: &Path, count: usize) -> Result<Row> {
    let commits_per_round = if run.quick { 2 } else { COMMITS_MIN / ROUNDS_MIN };
    let amount = Amount {
        count,
        commits_per_round,
        batches: (400 / count).clamp(1, commits_per_round),
        rounds: if run.quick { 2 } else { ROUNDS_MIN },
    };
    let (measured, extras) = race(run, dir, &amount, true)?;
    let row = Row {
        cell: count_text(count),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(|m| m.summary()).collect(),
        ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
        extras,
        ..Row::default()
    };
    Ok(row.against_target((count >= 16).then_some(Target::AtLeast(10.0)), Waited::Allowed, run.quick))
}

/// Makes the files, and measures; until the journal has turned over often, if that is asked for, and then also the first
/// commit after an opening.
fn race(run: &Run, dir: &Path, amount: &Amount, until_turned_over: bool) -> Result<(Vec<Measured>, Extras)> {
    let Amount { count, commits_per_round, batches, rounds } = *amount;
    let [root, plain] = ["store", "plain"].map(|name| dir.join(name));
    for place in [&root, &plain] {
        std::fs::create_dir(place)?;
        for n in 0..count {
            std::fs::write(place.join(n.to_string()), [0; FILE_BYTES])?;
        }
    }
    rustix::fs::syncfs(std::fs::File::open(dir)?)?;
    // Three commits or more fit, with the record's overhead for each file.
    let journal_bytes = (4 * (count * (FILE_BYTES + 512)) as u64).clamp(4 << 20, 192 << 20);
    let options = StoreOptions::new().create(true).journal_bytes(journal_bytes);
    let (mut store, mut files) = open(&options, &root, count)?;
    let mut extras = Extras::default();
    extras.add("first ever µs", write_all(&store, &files)?.as_secs_f64() * 1e6, 0);
    if until_turned_over {
        close(store, files)?;
        (store, files) = open(&options, &root, count)?;
        extras.add("first after opening µs", write_all(&store, &files)?.as_secs_f64() * 1e6, 0);
    }

    let sample = count.min(SAMPLE);
    let before = store.status();
    let mut contenders = [
        Contender::new(OURS, commits_per_round.div_ceil(batches), || write_all(&store, &files)),
        Contender::new(PEER, 1, || {
            let start = Instant::now();
            for n in 0..sample {
                replace_file(&plain, &n.to_string(), &fresh_page())?;
            }
            Ok(start.elapsed().mul_f64(count as f64 / sample as f64))
        }),
    ];
    let plan = Plan { rounds, batches, think: Duration::ZERO };
    let enough = || {
        run.quick
            || !until_turned_over
            || Activity::between(&before, &store.status()).turned_over(journal_bytes, (count * FILE_BYTES) as u64)
    };
    let measured = interleave(&mut contenders, &plan, &run.progress, enough)?;
    drop(contenders);
    Activity::between(&before, &store.status()).describe(journal_bytes, &mut extras);
    close(store, files)?;
    Ok((measured, extras))
}

pub fn count_text(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

fn open(options: &StoreOptions, root: &Path, count: usize) -> Result<(Store, Vec<File>)> {
    let store = options.open(root)?;
    let files = (0..count).map(|n| store.open_file(n.to_string())).collect::<untorn::Result<Vec<File>>>()?;
    Ok((store, files))
}

fn close(store: Store, files: Vec<File>) -> Result<()> {
    files.into_iter().try_for_each(File::close)?;
    Ok(store.close()?)
}

/// Writes new contents to every file, and makes one commit.
fn write_all(store: &Store, files: &[File]) -> Result<Duration> {
    let handles: Vec<&File> = files.iter().collect();
    timed(|| {
        for file in files {
            file.write_all_at(&fresh_page(), 0)?;
        }
        store.syncv(&handles)
    })
}
