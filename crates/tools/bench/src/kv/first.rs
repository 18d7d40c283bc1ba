//! The first lookup after opening something large: after a clean close, and after a crash.

use super::kv_store::{Entry, KEY_BYTES, Key, Store, key, taste};
use super::roster::{Entrant, Role, Roster, Work};
use super::{StoreDirectory, new_directory, notes};
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, leave_full_journal};
use crate::measuring::fs::{Place, drop_caches};
use crate::report::section::{Chart, Other, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use std::path::Path;
use std::time::Instant;

const VALUE_BYTES: usize = 1 << 10;
/// About the size of an entry, with its node and the rounding of blocks.
const ENTRY_BYTES: u64 = 1400;
/// Entries in one commit while loading.
const LOT: usize = 10_000;
/// Commits that are not applied at the crash.
const CRASH_COMMITS: u64 = 1000;
const CRASH_COMMITS_QUICK: u64 = 20;
const ROUNDS: usize = 5;
/// The contenders: Untorn's container for the comparison first, the peer last.
static ENTRANTS: [&str; 3] = ["hashbrown on Untorn (Rust)", "std::map on Untorn", "LMDB"];

/// The `kv-open` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    // The journal and LMDB's free pages need room, too.
    let bytes = if run.quick { 2 << 20 } else { (4 << 30).min(place.available_bytes()? / 4) };
    let count = bytes / ENTRY_BYTES;
    let commits = if run.quick { CRASH_COMMITS_QUICK } else { CRASH_COMMITS };
    let probe = place.directory("probe")?;
    let mut roster = Roster::here(&probe, work(bytes, &ENTRANTS))?;
    std::fs::remove_dir_all(probe)?;
    roster.entrants.sort_by_key(|entrant| ENTRANTS.iter().position(|name| *name == entrant.name));
    let entrants = &roster.entrants;
    let load = |entrant: &Entrant| -> Result<StoreDirectory> {
        run.progress.cell(format!("{}: kv-open, loading {} into {}", place.name, bytes_text(bytes), entrant.name));
        let dir = new_directory(place, entrant.name)?;
        let mut store = entrant.open(dir.path())?;
        let mut numbers: Vec<u64> = (0..count).collect();
        numbers.sort_by_key(|n| key(*n));
        for lot in numbers.chunks(LOT) {
            put(&mut *store, lot)?;
        }
        Ok(dir)
    };
    let directories = entrants.iter().map(load).collect::<Result<Vec<_>>>()?;

    let measured_of = |_| entrants.iter().map(|entrant| Measured::new(entrant.name)).collect::<Vec<_>>();
    let [mut clean, mut crashed] = [(), ()].map(measured_of);
    let mut random = Rng::with_seed(1);
    for round in 0..if run.quick { 1 } else { ROUNDS } {
        for (n, (entrant, dir)) in entrants.iter().zip(&directories).enumerate() {
            run.progress.cell(format!("{}: kv-open, opening {}, {}", place.name, entrant.name, round + 1));
            let first = |wanted: u64, measured: &mut Measured| -> Result<Box<dyn Store>> {
                drop_caches(&[])?;
                let start = Instant::now();
                let mut store = entrant.open(dir.path())?;
                let sum = store.read(&[key(wanted)])?;
                measured.begin_round();
                measured.push(start.elapsed());
                ensure!(sum == taste(&value(wanted)), "{}: what was stored is not there", entrant.name);
                Ok(store)
            };
            drop(first(random.u64(..count), &mut clean[n])?);
            let from = count + round as u64 * commits;
            let job = Job::KvCrash { dir: dir.path().to_owned(), name: entrant.name.to_owned(), bytes, from, commits };
            leave_full_journal(&job)?;
            let mut store = first(random.u64(..count), &mut crashed[n])?;
            let last = from + commits - 1;
            ensure!(store.read(&[key(last)])? == taste(&value(last)), "{}: a commit is lost", entrant.name);
        }
    }
    let row = |cell: &str, measured: &[Measured]| {
        let peer = measured.last().filter(|_| entrants.len() > 1 && entrants[entrants.len() - 1].role == Role::Peer);
        let middle = if measured.len() > 2 { &measured[1..measured.len() - 1] } else { &[] };
        let against_peer = |one: &Measured, peer| {
            let ratio = Ratio::cost(one, &[peer]);
            Other::new(&format!("{} against {}", one.name, ratio.against), ratio, None, run.quick)
        };
        let row = Row {
            cell: cell.to_owned(),
            load: "caches dropped".to_owned(),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: peer.map(|peer| Ratio::cost(&measured[0], &[peer])),
            others: peer.into_iter().flat_map(|peer| middle.iter().map(|one| against_peer(one, peer))).collect(),
            ..Row::default()
        };
        row.against_target(Some(Target::AtMost(1.2)), Waited::Allowed, run.quick)
    };
    let mut all_notes = vec![format!(
        "{count} keys of {KEY_BYTES} B with random values of {VALUE_BYTES} B: about {}. Opening and the first lookup in \
         it, by a process that has it closed, with all caches dropped. Crash: a child process commits {commits} \
         single inserts and is killed. After it, the last of them is there.",
        bytes_text(bytes)
    )];
    all_notes.extend(notes(&roster));
    Ok(Section {
        title: format!("kv-open: the first lookup after opening {}", bytes_text(bytes)),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Groups,
        ratio_means: "Untorn's first ÷ LMDB, and Untorn's others ÷ LMDB",
        rows: vec![row("clean close", &clean), row("crash", &crashed)],
        notes: all_notes,
    })
}

fn work(bytes: u64, only: &'static [&'static str]) -> Work {
    Work { put_bytes: 4096, floor_bytes: 1 << 20, map_bytes: 3 * bytes as usize, large_values: true, bulk: true, only }
}

/// A key's value.
fn value(n: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    Rng::with_seed(n).fill(&mut value);
    value
}

fn put(store: &mut dyn Store, numbers: &[u64]) -> Result<()> {
    let all: Vec<(Key, Vec<u8>)> = numbers.iter().map(|n| (key(*n), value(*n))).collect();
    let entries: Vec<Entry<'_>> = all.iter().map(|(key, value)| Entry { key, value }).collect();
    store.put(&entries)
}

/// Commits new keys from a number on, in a process that is going to be killed.
pub fn leave_unapplied(dir: &Path, name: &str, bytes: u64, from: u64, commits: u64) -> Result<u64> {
    let probe = tempfile::tempdir()?;
    let only = ENTRANTS.chunks(1).find(|only| only[0] == name).context("no store of that name")?;
    let roster = Roster::here(probe.path(), work(bytes, only))?;
    let entrant = roster.entrants.first().context("no such entrant any more")?;
    let mut store = entrant.open(dir)?;
    (from..from + commits).try_for_each(|n| put(&mut *store, &[n]))?;
    // Closing would apply them.
    std::mem::forget(store);
    Ok(commits)
}
