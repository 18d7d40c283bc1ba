//! Figure 2 of paper 003: appending and syncing, over the number of pages; and one commit over many files.

use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::harness::Plan;
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::report::statistics::Measured;
use crate::stores::{append, syncv};
use anyhow::Result;
use std::time::Duration;

const PAGE_BYTES: usize = 4096;
/// Numbers of pages as powers of two.
const POWERS: [u32; 8] = [0, 2, 4, 6, 8, 10, 12, 14];
const FILES: [usize; 5] = [1, 256, 4096, 20_000, 100_000];
const PEER: &str = "write and fsync";

pub fn pages(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Xfs)?;
    let powers = if run.quick { &POWERS[..5] } else { &POWERS[..] };
    let mut cells = Vec::new();
    for power in powers {
        let pages = 1usize << power;
        run.progress.cell(format!("append {pages} pages"));
        let (batch, mib) = ((256 / pages).clamp(1, 20), (pages * PAGE_BYTES) as u64 >> 20);
        // Time for the checkpoints, as in the paper's load.
        let think = Duration::from_millis(2 + 4 * mib);
        let plan = Plan { rounds: setting.runs, batches: if run.quick { 1 } else { 3 }, think };
        let measured = append::of_size(run, &place, pages * PAGE_BYTES, batch, &plan)?;
        let name = format!("{pages} page{}", if pages == 1 { "" } else { "s" });
        cells.push(Cell { name, contenders: measured.iter().map(renamed).collect() });
    }
    let settings = [
        [append::OURS, "append and commit, class power"],
        [PEER, "at the end of a plain file, not atomic"],
        [append::COPY, "atomic, by plain calls: a reflink of the file, write, fsync, rename, fsync of the directory"],
    ];
    let note = "Think time 2 ms, and 4 ms for each MiB; the median of a run.";
    Ok(vec![panel("append", "latency of append and sync", &place, &settings, cells, note)])
}

fn renamed(measured: &Measured) -> Runs {
    let runs = Runs::of(measured, Statistic::Median);
    if runs.name == append::PEER { Runs { name: PEER.to_owned(), ..runs } } else { runs }
}

pub fn files(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Xfs)?;
    let counts = if run.quick { &FILES[..2] } else { &FILES[..] };
    let of_count = |count: &usize| {
        run.progress.cell(format!("syncv, {}", syncv::count_text(*count)));
        let measured = syncv::of_count(run, &place, *count, setting.runs)?;
        Ok(Cell::of(syncv::count_text(*count), &measured, Statistic::Median))
    };
    let cells = counts.iter().map(of_count).collect::<Result<_>>()?;
    let settings = [
        [syncv::OURS, "4 KiB in each file, one syncv, class power"],
        [syncv::PEER, "each file by itself; of more than 1,000 files a sample, scaled"],
    ];
    let note = "Every file has 4 KiB, all of which are new; the median of a run.";
    Ok(vec![panel("syncv", "latency of a commit over many files", &place, &settings, cells, note)])
}

fn panel(name: &str, title: &str, place: &Place, settings: &[[&str; 2]], cells: Vec<Cell>, note: &str) -> Panel {
    Panel {
        name: name.to_owned(),
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Lines,
        settings: settings.iter().map(|setting| setting.map(str::to_owned)).collect(),
        cells,
        notes: vec![note.to_owned()],
    }
}
