//! Benchmarks of file systems of paper 003: IOzone, PostMark and MDTest, on mounts and natively.

use crate::measuring::fs::FileSystem;
use crate::measuring::harness::{Contender, Plan, interleave_parts, timed};
use crate::mounts::file_system_programs::{NO_FIO, NO_POSTMARK, PASSES, PHASES, Shape, has_fio, names, passes, settle};
use crate::mounts::mounted::Mounted;
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::xsync::postmark;
use crate::xsync::runs::finished;
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OURS: &str = "Untorn";
const NATIVE: &str = "natively";
const RECORDS: [(u64, &str); 2] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB")];

/// The amount of work.
struct Amount {
    file_bytes: u64,
    mails: u64,
    transactions: u64,
    names: usize,
}

const FULL: Amount = Amount { file_bytes: 128 << 20, mails: 1000, transactions: 5000, names: 10_000 };
const QUICK: Amount = Amount { file_bytes: 4 << 20, mails: 50, transactions: 100, names: 200 };

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    [FileSystem::Ext4, FileSystem::Xfs].into_iter().map(|fs| on(setting, fs)).collect()
}

fn on(setting: &Setting<'_>, fs: FileSystem) -> Result<Panel> {
    let run = setting.run;
    let place = setting.image(fs)?;
    let dir = place.directory("file-systems")?;
    let native = dir.join("native");
    std::fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    let amount = if run.quick { QUICK } else { FULL };
    let both = Both { setting, at: [(OURS, &mounted.at), (NATIVE, &native)] };
    let (mut cells, mut missing) = (Vec::new(), Vec::new());
    if has_fio() {
        for (bytes, text) in if run.quick { &RECORDS[..1] } else { &RECORDS[..] } {
            run.progress.cell(format!("{}: IOzone, records of {text}", place.name));
            let names = PASSES.map(|(pass, _)| format!("IOzone, {pass}, {text}"));
            cells.extend(both.measure(names, |at| passes(at, amount.file_bytes, *bytes))?);
        }
    } else {
        missing.push(NO_FIO.to_owned());
    }
    if postmark::is_installed() {
        run.progress.cell(format!("{}: PostMark", place.name));
        let mail = |at: &Path| {
            settle(at)?;
            let script = postmark::script(at, amount.mails, amount.transactions);
            Ok([timed(|| finished(Command::new("sh").args(["-c", &script])))?])
        };
        cells.extend(both.measure(["PostMark".to_owned()], mail)?);
    } else {
        missing.push(NO_POSTMARK.to_owned());
    }
    for (shape, text) in [(Shape::Flat, "flat"), (Shape::Tree, "tree")] {
        run.progress.cell(format!("{}: MDTest, {text}", place.name));
        let cell_names = PHASES.map(|phase| format!("MDTest, {phase}, {text}"));
        cells.extend(both.measure(cell_names, |at| names(at, shape, amount.names))?);
    }
    drop(mounted);
    let mut notes = vec![format!(
        "IOzone: passes over a file of {} MiB by fio (psync), cached, with an fsync at the end of those that write. \
         PostMark: {} files, {} transactions, unbuffered; nothing is synced. MDTest: {} empty files, in one directory, or \
         in 100 of a tree; a loop of this program.",
        amount.file_bytes >> 20,
        amount.mails,
        amount.transactions,
        amount.names
    )];
    notes.extend(missing);
    Ok(Panel {
        name: fs.name().to_owned(),
        title: format!("benchmarks of file systems on {}", fs.name()),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Groups,
        settings: [[OURS, "a mount, its store on the file system"], [NATIVE, "the file system itself, not atomic"]]
            .map(|setting| setting.map(str::to_owned))
            .to_vec(),
        cells,
        notes,
    })
}

/// The two directories that take turns.
struct Both<'a> {
    setting: &'a Setting<'a>,
    at: [(&'a str, &'a Path); 2],
}

impl Both<'_> {
    /// Measures work of several parts, each of which becomes a cell.
    fn measure<const PARTS: usize>(
        &self,
        names: [String; PARTS],
        work: impl Fn(&Path) -> Result<[Duration; PARTS]>,
    ) -> Result<Vec<Cell>> {
        let mut contenders = self.at.map(|(name, at)| Contender::in_parts(name, 1, || work(at)));
        let plan = Plan { rounds: self.setting.runs, batches: 1, think: Duration::ZERO };
        let measured = interleave_parts(&mut contenders, &plan, &self.setting.run.progress, || true)?;
        let cell = |(part, name)| Cell::of(name, measured.iter().map(|parts| &parts[part]), Statistic::Median);
        Ok(names.into_iter().enumerate().map(cell).collect())
    }
}
