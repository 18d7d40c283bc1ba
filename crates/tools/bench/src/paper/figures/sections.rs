//! Table 1 of paper 004: iterations of a map under locks and of a lock-free one, by several threads.

use crate::live::{self, LOG, LOG_AND_FLUSH, NO_PROTECTION, Rates};
use crate::measuring::fs::{FileSystem, Place};
use crate::paper::measured::{Cell, Panel, Runs};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use anyhow::Result;

const KEYS: u64 = 1_000_000;
const KEYS_QUICK: u64 = 20_000;
const THREADS: [u64; 3] = [1, 2, 8];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = Place::prepare(FileSystem::Here, &run.dir, run.quick, &run.progress)?;
    let keys = if run.quick { KEYS_QUICK } else { KEYS };
    let threads = if run.quick { &THREADS[1..] } else { &THREADS[..] };
    let (compiler, rates) = live::iterations(run, &place, keys, threads, setting.runs)?;
    let names = threads.iter().map(|threads| format!("{threads} thread{}", if *threads == 1 { "" } else { "s" }));
    let names: Vec<String> = names.collect();
    let panel = |name: &str, title: &str, settings: &[[&str; 2]], part: usize| Panel {
        name: name.to_owned(),
        title: format!("{title}, {compiler}"),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::PerSecond,
        chart: Chart::Groups,
        settings: settings.iter().map(|setting| setting.map(str::to_owned)).collect(),
        cells: names.iter().zip(&rates).map(|(name, rates)| cell(name, &rates[part])).collect(),
        notes: vec![format!(
            "An iteration sets a counter of its thread, adds to one of {keys} numbers, sets another counter: three operations. \
             Iterations of all threads in a second."
        )],
    };
    let in_memory = "std::mutex, malloc, no hooks";
    let map = [
        [LOG, "a live heap, untorn::mutex, hooks of the compiler: an undo log"],
        [NO_PROTECTION, in_memory],
        [LOG_AND_FLUSH, "the same log; each record is flushed by clwb (or clflush, on older processors) and sfence"],
    ];
    let list =
        [[LOG, "a lock-free skip list in a live heap, no log"], [NO_PROTECTION, "the same list in ordinary memory"]];
    Ok(vec![
        panel("map", "iterations of a hash map in sections", &map, 0),
        panel("list", "iterations of a lock-free list", &list, 1),
    ])
}

fn cell(name: &str, rates: &Rates) -> Cell {
    let contenders = rates.iter().map(|(name, runs)| Runs { name: (*name).to_owned(), runs: runs.clone() }).collect();
    Cell { name: name.to_owned(), contenders }
}
