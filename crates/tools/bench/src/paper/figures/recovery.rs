//! Figure 11 of paper 001: recovery over the size of the log, with the checkpoint after the first read, and before it.

use crate::measuring::fs::FileSystem;
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit, bytes_text};
use crate::stores::recovery_time;
use anyhow::Result;

const SIZES: [u64; 3] = [64 << 20, 256 << 20, 512 << 20];
const OURS: &str = "Untorn";
const REPLAY: &str = "open, read, apply all";

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Ext4)?;
    let sizes = if run.quick { &[8 << 20][..] } else { &SIZES[..] };
    let of_size = |bytes: &u64| {
        let recoveries = recovery_time::measure(run, &place, *bytes, setting.runs)?;
        let mut first = recoveries.first.clone();
        first.name = OURS.to_owned();
        Ok(Cell::of(bytes_text(*bytes), [&first, &recoveries.whole(REPLAY)], Statistic::Median))
    };
    let cells = sizes.iter().map(of_size).collect::<Result<_>>()?;
    let setting = |name: &str, how: &str| [name.to_owned(), how.to_owned()];
    Ok(vec![Panel {
        name: "recovery".to_owned(),
        title: "time of recovery over the size of the log".to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Lines,
        settings: vec![
            setting(OURS, "opening after a crash, and the first read"),
            setting(REPLAY, "the same, and a checkpoint of the whole log"),
        ],
        cells,
        notes: vec![
            "Records of 4 KiB at random places, written by a process that was killed; caches are dropped before."
                .to_owned(),
        ],
    }])
}
