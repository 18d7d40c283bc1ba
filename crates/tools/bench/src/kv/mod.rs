//! Key-value stores on the workload of "Failure-atomic msync()" (Park, Kelly, Shen 2013), Table 2.
//!
//! They are the standard containers on Untorn's heap, and the stores that people would use instead.

mod crates;
mod explicit_table;
pub mod first;
mod gdbm;
pub mod http_server;
pub mod kv_store;
pub mod kyoto;
pub mod large;

mod lmdb;
mod lsm;
mod roster;
mod rust_heap;
pub mod snapshot_costs;
pub mod sqlite;
mod stl;

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::Activity;
use crate::measuring::memory_use::minor_faults;
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::{Context, Result};
use fastrand::Rng;
use kv_store::{Entry, Expected, KEY_BYTES, Key, key, shuffled};
use roster::{Entrant, Role, Roster, Work};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub use stl::library_of_untorn;

const KEYS: usize = 1000;
const VALUE_BYTES: usize = 1 << 10;
/// The sleep before each operation in a run with think time.
const THINK_MS: u64 = 10;
const RUNS: usize = 7;
/// With think time, a run takes half a minute for each contender. Also in a run of everything.
const RUNS_FEW: usize = 3;

const WORK: Work = Work {
    put_bytes: KEY_BYTES + VALUE_BYTES,
    floor_bytes: 16 << 20,
    map_bytes: 1 << 30,
    large_values: true,
    bulk: false,
    only: &[],
};

/// The passes of a run, each over all keys in a new random order.
const PASSES: [&str; 3] = ["insert", "replace", "delete"];

/// The `kv` sections of one place: one for each load.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let probe = place.directory("probe")?;
    let roster = Roster::here(&probe, WORK)?.without(&run.without)?;
    std::fs::remove_dir_all(probe)?;
    let thinks = match &run.think_ms[..] {
        [] if run.all => &[0],
        [] => &[0, THINK_MS][..],
        chosen => chosen,
    };
    thinks.iter().map(|ms| section(run, place, &roster, Duration::from_millis(*ms))).collect()
}

/// The measurements of one entrant in one of the passes.
struct Taken {
    /// The mean time of an operation in each run.
    means: Measured,
    /// The time of every single operation.
    singly: Measured,
    activity: Option<Activity>,
    faults: u64,
}

impl Taken {
    fn new(name: &str) -> Taken {
        Taken { means: Measured::new(name), singly: Measured::new(name), activity: None, faults: 0 }
    }
}

/// Runs all passes of each entrant so often, in turns.
fn race(
    run: &Run,
    place: &Place,
    roster: &Roster,
    think: Duration,
    keys: usize,
    runs: usize,
) -> Result<Vec<[Taken; 3]>> {
    let load = load_text(think);
    let mut all: Vec<[Taken; 3]> =
        roster.entrants.iter().map(|entrant| std::array::from_fn(|_| Taken::new(entrant.name))).collect();
    for round in 0..runs {
        run.progress.cell(format!("{}: kv, {load}, run {} of {runs}", place.name, round + 1));
        for turn in 0..all.len() {
            // Another store starts each time, so that no store always follows the same neighbour.
            let who = (turn + round) % all.len();
            let entrant = &roster.entrants[who];
            let dir = new_directory(place, entrant.name)?;
            run_once(entrant, dir.path(), keys, think, round as u64, &mut all[who]).with_context(|| entrant.name)?;
        }
    }
    Ok(all)
}

/// A pass, and the mean times of each entrant in it, one for each run.
pub type Pass = (&'static str, Vec<Measured>);

/// The mean times of an operation in each run, by the names of the passes, for the entrants of `only` that are here; and
/// the reasons why others are missing. The time to think before each operation does not count.
pub fn means(
    run: &Run,
    place: &Place,
    only: &'static [&'static str],
    (keys, think): (usize, Duration),
    runs: usize,
) -> Result<(Vec<Pass>, Vec<String>)> {
    let probe = place.directory("probe")?;
    let roster = Roster::here(&probe, Work { only, ..WORK })?;
    std::fs::remove_dir_all(probe)?;
    let all = race(run, place, &roster, think, keys, runs)?;
    let of_pass =
        |(pass, name): (usize, &&'static str)| (*name, all.iter().map(|taken| taken[pass].means.clone()).collect());
    Ok((PASSES.iter().enumerate().map(of_pass).collect(), roster.missing))
}

fn section(run: &Run, place: &Place, roster: &Roster, think: Duration) -> Result<Section> {
    let keys = if run.quick { 10 } else { KEYS };
    let runs = match (run.runs, run.quick) {
        (Some(runs), _) => runs.into(),
        (None, true) => 2,
        (None, false) if think.is_zero() && !run.all => RUNS,
        (None, false) => RUNS_FEW,
    };
    let load = load_text(think);
    let all = race(run, place, roster, think, keys, runs)?;
    let rows = PASSES.iter().enumerate().map(|(pass, name)| {
        let measured: Vec<(Role, &Taken)> =
            roster.entrants.iter().zip(&all).map(|(entrant, taken)| (entrant.role, &taken[pass])).collect();
        row(name, &load, &measured, run.quick)
    });
    let count = keys;
    let mut all_notes = vec![
        format!(
            "{count} keys of {KEY_BYTES} B, random values of {VALUE_BYTES} B: all inserted, all replaced, all deleted, \
             each pass in a new random order, every operation a durable commit of its own. A figure is the median of \
             {runs} interleaved runs, each on a new store (in brackets: quartiles), of the mean time of an operation, \
             think time not counted. Two of the ratios are of the medians of single operations instead, which a \
             busy machine disturbs less."
        ),
        "Pages: page faults of the calling thread for each operation; on Untorn, each page stored to faults once in a \
         commit."
            .to_owned(),
    ];
    all_notes.extend(notes(roster));
    Ok(Section {
        title: format!("kv: {count} keys, {load}"),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Groups,
        ratio_means: "Untorn's first ÷ the faster floor, and ÷ the fastest peer; the same of the table that tells",
        rows: rows.collect(),
        notes: all_notes,
    })
}

/// Notes about how each store was made durable, and about missing stores.
fn notes(roster: &Roster) -> Vec<String> {
    let mut notes = vec![
        "Floor: one pwrite of the bytes of keys and values, padded to 4 KiB, at the next place of a preallocated, \
         already written file, plus fdatasync. In memory: the same C++ program without durability."
            .to_owned(),
        "Explicit: a hash table of 150 lines over a heap with the tracker explicit, which marks its changes; B-tree: \
         HeapBTreeMap, which does that itself. untorn-c++: the same program as without, compiled with hooks that mark all of \
         its stores, over such a heap."
            .to_owned(),
        "LevelDB, RocksDB: sync=true. LMDB: default. SQLite: synchronous=FULL. Kyoto Cabinet: hard transactions, or \
         OAUTOSYNC. gdbm: gdbm_sync after each, durable but not atomic. redb: Durability::Immediate. fjall: \
         PersistMode::SyncAll."
            .to_owned(),
    ];
    notes.extend(roster.missing.iter().cloned());
    notes
}

/// A directory for one store. Its removal waits until it is written, so that no store pays for the removal of another
/// one.
struct StoreDirectory(PathBuf);

fn new_directory(place: &Place, name: &str) -> Result<StoreDirectory> {
    Ok(StoreDirectory(place.directory(name)?))
}

impl StoreDirectory {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for StoreDirectory {
    fn drop(&mut self) {
        // If it fails, the next directory of this name cannot be made, and that is reported.
        let _ = std::fs::remove_dir_all(&self.0);
        if let Ok(parent) = File::open(self.0.parent().expect("a directory in a place")) {
            let _ = rustix::fs::syncfs(parent);
        }
    }
}

/// Runs all passes on a new store, and checks its contents after each.
fn run_once(
    entrant: &Entrant,
    dir: &Path,
    count: usize,
    think: Duration,
    seed: u64,
    taken: &mut [Taken; 3],
) -> Result<()> {
    let mut store = entrant.open(dir)?;
    let mut random = Rng::with_seed(seed);
    let keys: Vec<Key> = (0..count as u64).map(key).collect();
    let mut expected = Expected::new(count);
    let mut value = vec![0; VALUE_BYTES];
    for (name, taken) in PASSES.iter().zip(taken) {
        let order = shuffled(count, &mut random);
        let before = (store.activity()?, minor_faults()?);
        let mut sum = Duration::ZERO;
        taken.singly.begin_round();
        for n in order {
            let deletes = *name == "delete";
            random.fill(&mut value);
            if !think.is_zero() {
                std::thread::sleep(think);
            }
            let start = Instant::now();
            if deletes {
                store.delete(&keys[n])?;
            } else {
                store.put(&[Entry { key: &keys[n], value: &value }])?;
            }
            let time = start.elapsed();
            sum += time;
            taken.singly.push(time);
            if deletes { expected.delete(n) } else { expected.put(n, &value) }
        }
        taken.means.begin_round();
        taken.means.push(sum / count as u32);
        taken.faults += minor_faults()? - before.1;
        if let Some(after) = store.activity()? {
            let stretch = after.since(&before.0.unwrap_or_default());
            taken.activity.get_or_insert_default().add(&stretch);
        }
        expected.compare(&mut *store, &keys).with_context(|| format!("after all {name}s"))?;
    }
    Ok(())
}

fn row(pass: &str, load: &str, measured: &[(Role, &Taken)], quick: bool) -> Row {
    let ours = &measured[0].1.means;
    let of = |wanted: Role| -> Vec<&Measured> {
        measured.iter().filter(|(role, _)| *role == wanted).map(|(_, taken)| &taken.means).collect()
    };
    let singly = |wanted: Role| -> Ratio {
        let peers: Vec<&Measured> =
            measured.iter().filter(|(role, _)| *role == wanted).map(|(_, taken)| &taken.singly).collect();
        let ratio = Ratio::cost(&measured[0].1.singly, &peers);
        Ratio { against: format!("{}, medians", ratio.against), ..ratio }
    };
    let other = |ratio: Ratio, target| Other::new(&ratio.against.clone(), ratio, target, quick);
    let told = measured.iter().find(|(_, taken)| taken.means.name == roster::EXPLICIT);
    let told = told.into_iter().flat_map(|(_, taken)| {
        [(Role::Floor, None), (Role::Peer, Some(Target::AtMost(1.0)))].map(|(role, target)| {
            let ratio = Ratio::cost(&taken.means, &of(role));
            other(Ratio { against: format!("explicit against {}", ratio.against), ..ratio }, target)
        })
    });
    let told: Vec<Other> = told.collect();
    let row = Row {
        cell: pass.to_owned(),
        load: load.to_owned(),
        contenders: measured.iter().map(|(_, taken)| taken.means.summary()).collect(),
        ratio: Some(Ratio::cost(ours, &of(Role::Floor))),
        others: [
            other(Ratio::cost(ours, &of(Role::Peer)), Some(Target::AtMost(1.0))),
            other(singly(Role::Floor), None),
            other(singly(Role::Peer), None),
        ]
        .into_iter()
        .chain(told)
        .collect(),
        details: measured.iter().map(|(role, taken)| (taken.means.name.clone(), details(*role, taken))).collect(),
        ..Row::default()
    };
    row.against_target(Some(Target::AtMost(1.25)), Waited::Allowed, quick)
}

/// The figures of single operations, and Untorn's activity for each.
fn details(role: Role, taken: &Taken) -> Extras {
    let mut extras = Extras::default();
    let singly = taken.singly.summary();
    let operations = singly.samples as f64;
    extras.add("median of one µs", singly.median_us, 1);
    extras.add("p99.9 µs", singly.p999_us, 1);
    if role == Role::Untorn {
        extras.add("pages", taken.faults as f64 / operations, 2);
    }
    if let Some(activity) = &taken.activity {
        extras.add("journal B", activity.journal_bytes as f64 / operations, 0);
        extras.add("syncs", activity.syncs as f64 / operations, 3);
        extras.add("waited", activity.commits_waited as f64, 0);
        extras.add("checkpoints", activity.checkpoints as f64, 0);
    }
    extras
}
