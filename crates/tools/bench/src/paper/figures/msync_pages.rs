//! Figures 2 and 3 of paper 000: `msync` over the number of pages that were stored to, saturated and under light load.

use crate::maps::msync::{DATA_JOURNAL, EAGER, OURS, SMALL, with_setting};
use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::harness::Plan;
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::report::statistics::Measured;
use anyhow::Result;
use std::time::Duration;

const PLACE_BYTES: u64 = 1 << 30;
/// The bytes that are stored to each page.
const STORED_BYTES: usize = 64;
const PAGES: [usize; 4] = [1, 4, 16, 64];
const ORDERED: &str = "msync, ordered";
const NAMES: [&str; 4] = [OURS, EAGER, SMALL, DATA_JOURNAL];

/// A disk, the think time of its light load, and the commits of a run under either load.
const DISKS: [(Disk, u64, [usize; 2]); 3] =
    [(Disk::Hdd2013, 400, [2, 1]), (Disk::Ssd1, 100, [3, 2]), (Disk::Ssd2, 10, [20, 10])];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (run, quick) = (setting.run, setting.run.quick);
    let mut panels = Vec::new();
    for (disk, think_ms, commits) in DISKS {
        run.progress.cell(format!("{}: making the disks", disk.name()));
        let place = Place::on_disk(FileSystem::Ext4, &run.dir, PLACE_BYTES, disk.times())?;
        with_setting(run, &place, |mappings| {
            let think_ms = if quick { think_ms / 10 } else { think_ms };
            for (load, think_ms, commits) in [("saturated", 0, commits[0]), ("light load", think_ms, commits[1])] {
                let pages = if quick { &PAGES[1..2] } else { &PAGES[..] };
                let mut cells: [Vec<Cell>; 2] = Default::default();
                for count in pages {
                    run.progress.cell(format!("{}: msync, {count} pages, {load}", disk.name()));
                    let think = Duration::from_millis(think_ms);
                    let commits = if quick { 1 } else { commits };
                    let plan = Plan { rounds: setting.runs, batches: 1, think };
                    let measured = mappings.commits((*count, STORED_BYTES), commits, &plan, &NAMES)?;
                    let name = format!("{count} page{}", if *count == 1 { "" } else { "s" });
                    for (cells, statistic) in cells.iter_mut().zip([Statistic::Mean, Statistic::Median]) {
                        let contenders = measured.iter().map(|measured| renamed(measured, statistic)).collect();
                        cells.push(Cell { name: name.clone(), contenders });
                    }
                }
                for (cells, word) in cells.into_iter().zip(["mean", "median"]) {
                    panels.push(panel(&format!("{}, {load}, {word}", disk.name()), &place, think_ms, cells));
                }
            }
            Ok(())
        })?;
    }
    Ok(panels)
}

/// The paper's name of the ordinary `msync`.
fn renamed(measured: &Measured, statistic: Statistic) -> Runs {
    let runs = Runs::of(measured, statistic);
    if runs.name == SMALL { Runs { name: ORDERED.to_owned(), ..runs } } else { runs }
}

fn panel(name: &str, place: &Place, think_ms: u64, cells: Vec<Cell>) -> Panel {
    let setting = |name: &str, how: &str| [name.to_owned(), how.to_owned()];
    Panel {
        name: name.to_owned(),
        title: format!("latency of msync, {name}"),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Lines,
        settings: vec![
            setting(OURS, "tracker scan, checkpoints in the background"),
            setting(EAGER, "a whole checkpoint in each commit"),
            setting(ORDERED, "ext4, data=ordered, MS_SYNC over a shared mapping in folios of 4 KiB; not atomic"),
            setting(DATA_JOURNAL, "ext4, data=journal, on a disk of its own with the same times"),
        ],
        cells,
        notes: vec![format!(
            "A mapping of 16 MiB, {STORED_BYTES} B in each of so many random pages; the commit alone. Think time {think_ms} ms."
        )],
    }
}
