//! Table 2 of paper 000: key-value stores on each device.

use crate::kv;
use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{FileSystem, Place};
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::report::statistics::Measured;
use anyhow::Result;

const PLACE_BYTES: u64 = 1 << 30;
const OURS: &str = "std::map on Untorn";

/// The paper's contenders, then the best of today's.
const NAMES: &[&str] = &[
    OURS,
    "explicit hash table on Untorn (Rust)",
    "Kyoto Cabinet tree, transactions",
    "SQLite, rollback journal",
    "LevelDB",
    "SQLite, WAL",
    "LMDB",
    "RocksDB",
];

const SETTINGS: [[&str; 2]; 8] = [
    ["Untorn", "std::map in a heap, tracker scan, a commit for each operation"],
    [NAMES[1], "marks its changes"],
    [NAMES[2], "hard transactions"],
    [NAMES[3], "synchronous=FULL, journal_mode=DELETE"],
    [NAMES[4], "sync=true"],
    [NAMES[5], "synchronous=FULL, journal_mode=WAL"],
    [NAMES[6], "as it is"],
    [NAMES[7], "sync=true"],
];

/// The keys on each disk.
const DISKS: [(Disk, usize); 3] = [(Disk::Hdd2013, 20), (Disk::Ssd1, 50), (Disk::Ssd2, 300)];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let of_disk = |(disk, keys): (Disk, usize)| {
        run.progress.cell(format!("{}: making the disk", disk.name()));
        let place = Place::on_disk(FileSystem::Ext4, &run.dir, PLACE_BYTES, disk.times())?;
        let keys = if run.quick { 2 } else { keys };
        let (passes, missing) = kv::means(run, &place, NAMES, keys, setting.runs)?;
        let cell = |(pass, measured): (&str, Vec<Measured>)| Cell {
            name: pass.to_owned(),
            contenders: measured.iter().map(renamed).collect(),
        };
        let mut notes =
            vec![format!("{keys} keys of 24 B, values of 1 KiB, every operation a durable commit; no think time.")];
        notes.extend(missing);
        Ok(Panel {
            name: disk.name(),
            title: format!("key-value stores on {}", disk.name()),
            place: place.name.clone(),
            place_details: place.details.clone(),
            unit: Unit::Milliseconds,
            chart: Chart::Groups,
            settings: SETTINGS.map(|setting| setting.map(str::to_owned)).to_vec(),
            cells: passes.into_iter().map(cell).collect(),
            notes,
        })
    };
    DISKS.into_iter().map(of_disk).collect()
}

fn renamed(measured: &Measured) -> Runs {
    let runs = Runs::of(measured, Statistic::Mean);
    if runs.name == OURS { Runs { name: "Untorn".to_owned(), ..runs } } else { runs }
}
