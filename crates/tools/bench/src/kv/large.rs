//! The stores with a million small values: loading, commits, reads, a scan.

use super::kv_store::{Entry, Expected, KEY_BYTES, Key, Store, key, shuffled};
use super::roster::{Entrant, Role, Roster, Work};
use super::{new_directory, notes};
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::report::section::{Chart, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use std::path::Path;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 150;
const RUNS: usize = 3;

/// The amount of work in a run.
#[derive(Clone, Copy)]
struct Amount {
    keys: usize,
    /// Entries in one commit while loading.
    lot: usize,
    singles: usize,
    batches: usize,
    batch: usize,
}

const FULL: Amount = Amount { keys: 1_000_000, lot: 10_000, singles: 1000, batches: 100, batch: 1000 };
const QUICK: Amount = Amount { keys: 500, lot: 250, singles: 5, batches: 2, batch: 50 };

impl Amount {
    fn all(&self) -> usize {
        self.keys + self.singles + self.batches * self.batch
    }
}

/// The `kv-large` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let amount = if run.quick { QUICK } else { FULL };
    let work = Work {
        put_bytes: amount.lot * (KEY_BYTES + VALUE_BYTES),
        floor_bytes: 64 << 20,
        map_bytes: 3 << 30,
        large_values: false,
        bulk: true,
        only: &[],
    };
    let probe = place.directory("probe")?;
    // In a run of all, without those that take a quarter of an hour to load.
    let slow = ["Kyoto", "gdbm"].map(str::to_owned);
    let without = [&run.without[..], if run.all && !run.quick { &slow } else { &[] }].concat();
    let roster = Roster::here(&probe, work)?.without(&without)?;
    std::fs::remove_dir_all(probe)?;
    let runs = match run.runs {
        Some(runs) => runs.into(),
        None if run.quick => 2,
        None if run.all => 1,
        None => RUNS,
    };
    let mut all: Vec<[Measured; 5]> =
        roster.entrants.iter().map(|entrant| std::array::from_fn(|_| Measured::new(entrant.name))).collect();
    for round in 0..runs {
        for turn in 0..all.len() {
            let who = (turn + round) % all.len();
            let entrant = &roster.entrants[who];
            run.progress.cell(format!("{}: kv-large, run {} of {runs}: {}", place.name, round + 1, entrant.name));
            let dir = new_directory(place, entrant.name)?;
            run_once(entrant, dir.path(), amount, round as u64, &mut all[who]).with_context(|| entrant.name)?;
        }
    }
    let Amount { keys, lot, singles, batches, batch } = amount;
    let phases = [
        "load, per entry".to_owned(),
        "commit of 1 insert".to_owned(),
        format!("commit of {batch} inserts"),
        "random read".to_owned(),
        "scan, per entry".to_owned(),
    ];
    let rows = phases.iter().enumerate().map(|(phase, name)| {
        let reads = phase >= 3;
        let measured: Vec<(Role, &Measured)> = roster
            .entrants
            .iter()
            .zip(&all)
            .filter(|(entrant, _)| !reads || entrant.role != Role::Floor)
            .map(|(entrant, measured)| (entrant.role, &measured[phase]))
            .collect();
        row(name, &measured, run.quick)
    });
    let mut all_notes = vec![
        format!(
            "{keys} keys of {KEY_BYTES} B in random order, random values of {VALUE_BYTES} B, loaded in commits of {lot}; \
             then {singles} commits of one more key, {batches} commits of {batch} more, {keys} random reads, and a scan of \
             everything. A figure is the median of {runs} interleaved runs, each on a new store (in brackets: quartiles), \
             of the mean for one entry, commit or read. Reads: one call for all of them, in one transaction where \
             there is such a thing."
        ),
        "SQLite: a table WITHOUT ROWID, as its manual advises for small rows. Kyoto Cabinet without auto-sync, which \
         flushes every insert."
            .to_owned(),
    ];
    all_notes.extend(notes(&roster));
    Ok(Section {
        title: format!("kv-large: {keys} keys"),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Groups,
        ratio_means: "Untorn's first ÷ the fastest peer, and ÷ the faster floor",
        rows: rows.collect(),
        notes: all_notes,
    })
}

/// Runs everything once on a new store, and checks that reads return the stored values.
fn run_once(entrant: &Entrant, dir: &Path, amount: Amount, seed: u64, means: &mut [Measured; 5]) -> Result<()> {
    let mut store = entrant.open(dir)?;
    let mut random = Rng::with_seed(seed);
    let keys: Vec<Key> = (0..amount.all() as u64).map(key).collect();
    let mut expected = Expected::new(keys.len());
    let mut next = 0;
    let mut insert = |store: &mut dyn Store, commits: usize, each: usize| -> Result<Duration> {
        let mut sum = Duration::ZERO;
        let mut values = vec![0; each * VALUE_BYTES];
        for _ in 0..commits {
            random.fill(&mut values);
            let new = &keys[next..next + each];
            let entries: Vec<Entry<'_>> =
                new.iter().zip(values.chunks(VALUE_BYTES)).map(|(key, value)| Entry { key, value }).collect();
            let start = Instant::now();
            store.put(&entries)?;
            sum += start.elapsed();
            entries.iter().enumerate().for_each(|(n, entry)| expected.put(next + n, entry.value));
            next += each;
        }
        Ok(sum)
    };
    let Amount { keys: loaded, lot, singles, batches, batch } = amount;
    let load = insert(&mut *store, loaded / lot, lot)?;
    let single = insert(&mut *store, singles, 1)?;
    let many = insert(&mut *store, batches, batch)?;

    let order = shuffled(keys.len(), &mut random);
    let wanted: Vec<Key> = order.iter().take(loaded).map(|n| keys[*n]).collect();
    let start = Instant::now();
    let sum = store.read(&wanted)?;
    let read = start.elapsed();
    let start = Instant::now();
    let found = store.scan()?;
    let scan = start.elapsed();
    if store.keeps() {
        let read_sum: u64 = order.iter().take(loaded).filter_map(|n| expected.taste(*n)).sum();
        ensure!(sum == read_sum && found == expected.scan(), "{sum} {found:?}, not {read_sum} {:?}", expected.scan());
    }
    let counts = [loaded, singles, batches, loaded, keys.len()];
    for ((measured, time), count) in means.iter_mut().zip([load, single, many, read, scan]).zip(counts) {
        measured.begin_round();
        measured.push(time / count as u32);
    }
    Ok(())
}

fn row(phase: &str, measured: &[(Role, &Measured)], quick: bool) -> Row {
    let ours = measured[0].1;
    let of = |wanted: Role| -> Vec<&Measured> {
        measured.iter().filter(|(role, _)| *role == wanted).map(|(_, measured)| *measured).collect()
    };
    let floors = of(Role::Floor);
    let mut row = Row {
        cell: phase.to_owned(),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(|(_, measured)| measured.summary()).collect(),
        ratio: Some(Ratio::cost(ours, &of(Role::Peer))),
        ..Row::default()
    };
    if !floors.is_empty() {
        let floor = Ratio::cost(ours, &floors);
        row.others.push(Other::new(&floor.against.clone(), floor, None, quick));
    }
    row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, quick)
}
