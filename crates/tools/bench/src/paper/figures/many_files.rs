//! Recovery of one file of many, as paper 003 has it: only those who open a file pay for its recovery.

use crate::measuring::fs::FileSystem;
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::stores::many_unclean::{self, ALL, ONE, UNTOUCHED};
use anyhow::Result;

const FILES: [usize; 3] = [10, 100, 1000];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Ext4)?;
    let counts = if run.quick { &FILES[..1] } else { &FILES[..] };
    let of_count = |files: &usize| {
        let times = many_unclean::measure(run, &place, *files, setting.runs)?;
        Ok(Cell::of(format!("{files} files"), &times, Statistic::Median))
    };
    let cells = counts.iter().map(of_count).collect::<Result<_>>()?;
    let settings = [
        [ONE, "one unclean file is opened, with its recovery, and read"],
        [UNTOUCHED, "one that was closed is opened and read"],
        [ALL, "`untorn find-unclean --recover` of the others"],
    ];
    Ok(vec![Panel {
        name: "many".to_owned(),
        title: "recovery after one crash, over the number of files".to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Lines,
        settings: settings.map(|setting| setting.map(str::to_owned)).to_vec(),
        cells,
        notes: vec![
            "Standalone files of two pages, all open in one process with two commits each when it is killed; caches are \
             dropped before each measurement."
                .to_owned(),
        ],
    }])
}
