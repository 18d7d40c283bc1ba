//! Paper 004: Table 1, iterations of a map under locks and of a lock-free one by several threads; and programs with
//! locks.

use crate::live::{self, Cells, LOG, LOG_AND_FLUSH, MEMCACHED, NO_PROTECTION, POOL};
use crate::measuring::fs::{FileSystem, Place};
use crate::paper::measured::{Cell, Panel, Runs};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use anyhow::Result;

const KEYS: u64 = 1_000_000;
const KEYS_QUICK: u64 = 20_000;
const THREADS: [u64; 3] = [1, 2, 8];

const IN_MEMORY: &str = "std::mutex, malloc, no hooks";
const FLUSHED: &str = "the same log; each record is flushed by clwb (or clflush, on older processors) and sfence";

fn place(setting: &Setting<'_>) -> Result<Place> {
    let run = setting.run;
    Place::prepare(FileSystem::Here, &run.dir, run.quick, &run.progress)
}

fn panel(
    place: &Place,
    [name, title]: [&str; 2],
    settings: &[[&str; 2]],
    measured: &Cells,
    notes: Vec<String>,
) -> Panel {
    let cell = |(name, rates): &(String, Vec<(&'static str, Vec<f64>)>)| Cell {
        name: name.clone(),
        contenders: rates.iter().map(|(name, runs)| Runs { name: (*name).to_owned(), runs: runs.clone() }).collect(),
    };
    let is_here = |name: &str| measured.cells.iter().any(|(_, rates)| rates.iter().any(|(one, _)| *one == name));
    let settings: Vec<_> = settings.iter().filter(|[name, _]| is_here(name)).collect();
    Panel {
        name: name.to_owned(),
        title: format!("{title}, {}", measured.compiler),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::PerSecond,
        chart: Chart::Groups,
        settings: settings.into_iter().map(|setting| setting.map(str::to_owned)).collect(),
        cells: measured.cells.iter().map(cell).collect(),
        notes,
    }
}

/// Table 1.
pub fn iterations(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = place(setting)?;
    let keys = if run.quick { KEYS_QUICK } else { KEYS };
    let threads = if run.quick { &THREADS[1..] } else { &THREADS[..] };
    let [map, list] = live::iterations(run, &place, keys, threads, setting.runs)?;
    let note = format!(
        "An iteration sets a counter of its thread, adds to one of {keys} numbers, sets another counter: three operations. \
         Iterations of all threads in a second."
    );
    let mut map_notes = vec![note.clone()];
    if map.cells.iter().any(|(_, rates)| rates.iter().all(|(name, _)| *name != POOL)) {
        map_notes
            .push(format!("{POOL} is not here (Debian's package libpmemobj1; `scripts/setup.sh bench` installs it)."));
    }
    let map_settings = [
        [LOG, "a live heap, untorn::mutex, hooks of the compiler: an undo log"],
        [NO_PROTECTION, IN_MEMORY],
        [LOG_AND_FLUSH, FLUSHED],
        [
            POOL,
            "a pool in /dev/shm, std::mutex; each section is a transaction that adds the range of a store by hand. \
             PMEM_IS_PMEM_FORCE=1: it flushes by clwb and sfence, without system calls",
        ],
    ];
    let list_settings =
        [[LOG, "a lock-free skip list in a live heap, no log"], [NO_PROTECTION, "the same list in ordinary memory"]];
    Ok(vec![
        panel(&place, ["map", "iterations of a hash map in sections"], &map_settings, &map, map_notes),
        panel(&place, ["list", "iterations of a lock-free list"], &list_settings, &list, vec![note]),
    ])
}

/// The evaluation on programs with locks.
pub fn programs(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let place = place(setting)?;
    let measured = live::kernels(setting.run, &place, setting.runs)?;
    let settings = [
        [LOG, "shared data in a live heap, untorn::mutex, hooks of the compiler: an undo log"],
        [NO_PROTECTION, IN_MEMORY],
        [LOG_AND_FLUSH, FLUSHED],
    ];
    let mut notes = vec![
        "Two threads. LU: a matrix by blocks of 16 x 16, each stored under its lock (multiplications with an addition a second). \
         Radix sort: a shared histogram under locks; numbers move outside of sections (moves a second). Molecules: forces of \
         pairs, added under the lock of a molecule (pairs a second). Each run checks its result."
            .to_owned(),
    ];
    notes.push(match measured.cells.iter().any(|(name, _)| name == MEMCACHED) {
        true => format!("{MEMCACHED}: its sets of 100 bytes a second, as `make ports` has built it."),
        false => format!("{MEMCACHED} is left out: `make ports` has not built it here."),
    });
    Ok(vec![panel(&place, ["programs", "operations of programs with locks"], &settings, &measured, notes)])
}
