//! Table 2 of paper 000 and Table 1 of paper 003: key-value stores on each device.

use crate::kv;
use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{FileSystem, Place};
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::report::statistics::Measured;
use anyhow::Result;
use std::time::Duration;

const PLACE_BYTES: u64 = 1 << 30;
const OURS: &str = "std::map on Untorn";

/// The paper's contenders, then the best of today's.
const NAMES: &[&str] = &[
    OURS,
    "Kyoto Cabinet tree, transactions",
    "SQLite, rollback journal",
    "LevelDB",
    "explicit hash table on Untorn (Rust)",
    "SQLite, WAL",
    "LMDB",
    "RocksDB",
];
/// The number of the paper's contenders, which come first.
const OF_THE_PAPER: usize = 4;

const SETTINGS: [[&str; 2]; 8] = [
    ["Untorn", "std::map in a heap, tracker scan, a commit for each operation"],
    [NAMES[1], "hard transactions"],
    [NAMES[2], "synchronous=FULL, journal_mode=DELETE"],
    [NAMES[3], "sync=true"],
    [NAMES[4], "marks its changes"],
    [NAMES[5], "synchronous=FULL, journal_mode=WAL"],
    [NAMES[6], "as it is"],
    [NAMES[7], "sync=true"],
];

/// The operations of a contender in a run.
#[derive(Clone, Copy)]
struct Load {
    keys: usize,
    think_ms: u64,
}

/// A load without think time, of all contenders.
const fn saturated(keys: usize) -> Load {
    Load { keys, think_ms: 0 }
}

/// A load with think time, of the paper's contenders.
const fn light(keys: usize, think_ms: u64) -> Load {
    Load { keys, think_ms }
}

/// Table 2 of paper 000. The think time is a tenth of the paper's.
pub fn of_2013(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let disks = [
        (Disk::Hdd2013, [saturated(20), light(4, 400)]),
        (Disk::Ssd1, [saturated(50), light(6, 100)]),
        (Disk::Ssd2, [saturated(300), light(40, 10)]),
    ];
    let panels = disks.iter().map(|(disk, loads)| on_disk(setting, *disk, loads)).collect::<Result<Vec<_>>>()?;
    Ok(panels.into_iter().flatten().collect())
}

/// Table 1 of paper 003.
pub fn of_2015(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let disks = [(Disk::Raid2015, saturated(200)), (Disk::Ssd2015, saturated(100))];
    let panels = disks.into_iter().map(|(disk, load)| on_disk(setting, disk, &[load])).collect::<Result<Vec<_>>>()?;
    Ok(panels.into_iter().flatten().collect())
}

/// A panel for each load.
fn on_disk(setting: &Setting<'_>, disk: Disk, loads: &[Load]) -> Result<Vec<Panel>> {
    let run = setting.run;
    run.progress.cell(format!("{}: making the disk", disk.name()));
    let place = Place::on_disk(FileSystem::Ext4, &run.dir, PLACE_BYTES, disk.times())?;
    let of_load = |load: &Load| {
        let Load { keys, think_ms } = *load;
        let (keys, think_ms) = if run.quick { (2, think_ms.min(5)) } else { (keys, think_ms) };
        let is_light = think_ms > 0;
        let count = if is_light { OF_THE_PAPER } else { NAMES.len() };
        let (passes, missing) =
            kv::means(run, &place, &NAMES[..count], (keys, Duration::from_millis(think_ms)), setting.runs)?;
        let cell = |(pass, measured): (&str, Vec<Measured>)| Cell {
            name: pass.to_owned(),
            contenders: measured.iter().map(renamed).collect(),
        };
        let think = if is_light { format!("think time {think_ms} ms") } else { "no think time".to_owned() };
        let mut notes =
            vec![format!("{keys} keys of 24 B, values of 1 KiB, every operation a durable commit; {think}.")];
        notes.extend(missing);
        Ok(Panel {
            name: if is_light { format!("{}, light load", disk.name()) } else { disk.name() },
            title: format!("key-value stores on {}, {think}", disk.name()),
            place: place.name.clone(),
            place_details: place.details.clone(),
            unit: Unit::Milliseconds,
            chart: Chart::Groups,
            settings: SETTINGS[..count].iter().map(|setting| setting.map(str::to_owned)).collect(),
            cells: passes.into_iter().map(cell).collect(),
            notes,
        })
    };
    loads.iter().map(of_load).collect()
}

fn renamed(measured: &Measured) -> Runs {
    let runs = Runs::of(measured, Statistic::Mean);
    if runs.name == OURS { Runs { name: "Untorn".to_owned(), ..runs } } else { runs }
}
