//! Figures 7 to 10 of paper 001: transactions over two files of many, against protocols over plain files.

use crate::measuring::disk_model::DiskTimes;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::harness::{Contender, Plan, interleave};
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::stores::two_files::protocol::{SHAPE, Shape};
use crate::stores::two_files::roster::{
    Entrant, FINE_LOG, FINE_LOG_LAZY, NO_CONSISTENCY, OURS, PAGE_LOG, POOL, SHADOW, STRICT, SYNCHRONOUS, open,
};
use crate::stores::two_files::transactions::Transactions;
use anyhow::Result;
use fastrand::Rng;
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

const PLACE_BYTES: u64 = 4 << 30;
/// The flushes of the disk, in place of the latency of memory.
const FLUSH_US: u64 = 50;
const ALL: [&str; 9] = [OURS, SYNCHRONOUS, STRICT, NO_CONSISTENCY, FINE_LOG, FINE_LOG_LAZY, PAGE_LOG, SHADOW, POOL];
const SOME: [&str; 5] = [OURS, NO_CONSISTENCY, FINE_LOG, FINE_LOG_LAZY, SHADOW];

/// The transactions of a contender in a run.
const TRANSACTIONS: usize = 300;

/// Makes a disk and the contenders on it, and lets `then` measure.
fn on_disk<T>(
    setting: &Setting<'_>,
    flush_us: u64,
    names: &[&str],
    then: impl FnOnce(&Stage<'_>) -> Result<T>,
) -> Result<(T, Facts)> {
    let run = setting.run;
    run.progress.cell(format!("two files: making the disk with flushes of {flush_us} µs, and the files"));
    let times = DiskTimes::of(Duration::from_micros(flush_us), Duration::ZERO);
    let place = Place::on_disk(FileSystem::Xfs, &run.dir, PLACE_BYTES, times)?;
    let shape = if run.quick { Shape { files: 16, ..SHAPE } } else { SHAPE };
    let dir = place.directory("two-files")?;
    let (entrants, missing) = open(&dir, shape, names)?;
    let settings = entrants.iter().map(|entrant| [entrant.name, entrant.setting].map(str::to_owned)).collect();
    let facts = Facts { place: place.name.clone(), details: place.details.clone(), settings, missing, shape };
    let stage = Stage { setting, place: &place, shape, entrants };
    let measured = then(&stage)?;
    drop(stage);
    remove(&dir)?;
    Ok((measured, facts))
}

fn remove(dir: &Path) -> Result<()> {
    Ok(std::fs::remove_dir_all(dir)?)
}

/// Contenders on one disk.
struct Stage<'a> {
    setting: &'a Setting<'a>,
    place: &'a Place,
    shape: Shape,
    entrants: Vec<Entrant>,
}

/// Facts for the panels of a disk.
struct Facts {
    place: String,
    details: String,
    settings: Vec<[String; 2]>,
    missing: Vec<String>,
    shape: Shape,
}

impl Facts {
    fn panel(&self, name: &str, title: &str, unit: Unit, chart: Chart, cells: Vec<Cell>) -> Panel {
        let mut notes = vec![format!(
            "Two random files of {} of 1 MiB, in each a piece at a random place; the mean of a run. Every log has 4 MiB.",
            self.shape.files
        )];
        notes.extend(self.missing.iter().cloned());
        Panel {
            name: name.to_owned(),
            title: title.to_owned(),
            place: self.place.clone(),
            place_details: self.details.clone(),
            unit,
            chart,
            settings: self.settings.clone(),
            cells,
            notes,
        }
    }
}

impl Stage<'_> {
    /// The transactions of a contender in a run, and the number of runs.
    fn amount(&self) -> (usize, usize) {
        (if self.setting.run.quick { 5 } else { TRANSACTIONS }, self.setting.runs)
    }

    /// The mean latency in each run, for each contender in turns.
    fn latency(&self, cell: &str, change_bytes: Option<usize>, idle: f64) -> Result<Cell> {
        let (count, rounds) = self.amount();
        self.setting.run.progress.cell(format!("two files: {cell}"));
        let transactions = Transactions::new(self.shape, change_bytes);
        let contender = |entrant| {
            let Entrant { name, protocol, .. }: &Entrant = entrant;
            let mut random = Rng::with_seed(1);
            let transactions = &transactions;
            Contender::new(*name, 1, move || transactions.many(&**protocol, count, idle, &mut random))
        };
        let mut contenders: Vec<Contender<'_>> = self.entrants.iter().map(contender).collect();
        let plan = Plan { rounds, batches: 1, think: Duration::ZERO };
        let measured = interleave(&mut contenders, &plan, &self.setting.run.progress, || true)?;
        Ok(Cell::of(cell, &measured, Statistic::Mean))
    }

    /// The bytes that reach the device for a transaction, everything at its final place at the end.
    fn bytes(&self, cell: &str) -> Result<Option<Cell>> {
        let (count, rounds) = self.amount();
        self.setting.run.progress.cell(format!("two files: bytes, {cell}"));
        let transactions = Transactions::new(self.shape, None);
        let mut contenders: Vec<Runs> = self.entrants.iter().map(|entrant| runs_of(entrant.name)).collect();
        let randoms: Vec<RefCell<Rng>> = self.entrants.iter().map(|_| RefCell::new(Rng::with_seed(1))).collect();
        for round in 0..rounds {
            for turn in 0..contenders.len() {
                let who = (turn + round) % contenders.len();
                let protocol = &*self.entrants[who].protocol;
                protocol.settle()?;
                let Some(before) = self.place.device_bytes_written()? else { return Ok(None) };
                transactions.many(protocol, count, 0.0, &mut randoms[who].borrow_mut())?;
                protocol.settle()?;
                let Some(after) = self.place.device_bytes_written()? else { return Ok(None) };
                contenders[who].runs.push((after - before) as f64 / count as f64);
            }
        }
        Ok(Some(Cell { name: cell.to_owned(), contenders }))
    }

    /// The transactions in a second by some threads.
    fn rate(&self, threads: usize) -> Result<Cell> {
        let (count, rounds) = self.amount();
        let name = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
        self.setting.run.progress.cell(format!("two files: {name}"));
        let transactions = Transactions::new(self.shape, None);
        let mut contenders: Vec<Runs> = self.entrants.iter().map(|entrant| runs_of(entrant.name)).collect();
        for round in 0..rounds {
            for turn in 0..contenders.len() {
                let who = (turn + round) % contenders.len();
                let protocol = &*self.entrants[who].protocol;
                let rate = transactions.rate(protocol, threads, count.div_ceil(threads), round as u64)?;
                contenders[who].runs.push(rate);
            }
        }
        Ok(Cell { name, contenders })
    }
}

fn runs_of(name: &str) -> Runs {
    Runs { name: name.to_owned(), runs: Vec::new() }
}

/// Figures 7a and 7b.
pub fn latency_and_bytes(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    const CELL: &str = "2 files, up to 16 KiB each";
    let ((latency, bytes), facts) =
        on_disk(setting, FLUSH_US, &ALL, |stage| Ok((stage.latency(CELL, None, 0.0)?, stage.bytes(CELL)?)))?;
    let mut panels =
        vec![facts.panel("latency", "latency of a transaction", Unit::Microseconds, Chart::Groups, vec![latency])];
    if let Some(bytes) = bytes {
        panels.push(facts.panel(
            "bytes",
            "bytes to the device for a transaction",
            Unit::Bytes,
            Chart::Groups,
            vec![bytes],
        ));
    }
    Ok(panels)
}

/// Figure 7c.
pub fn threads(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let counts = if setting.run.quick { &[1, 6][..] } else { &[1, 2, 4, 6][..] };
    let names = [OURS, STRICT, NO_CONSISTENCY, FINE_LOG, FINE_LOG_LAZY, SHADOW];
    let (cells, facts) =
        on_disk(setting, FLUSH_US, &names, |stage| counts.iter().map(|count| stage.rate(*count)).collect())?;
    Ok(vec![facts.panel("throughput", "transactions a second, over threads", Unit::PerSecond, Chart::Lines, cells)])
}

/// Figure 8.
pub fn sizes(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let sizes = [(64, "64 B"), (1 << 10, "1024 B"), (4 << 10, "4096 B"), (16 << 10, "16384 B")];
    let (cells, facts) = on_disk(setting, FLUSH_US, &SOME, |stage| {
        sizes.iter().map(|(bytes, name)| stage.latency(name, Some(*bytes), 0.0)).collect()
    })?;
    Ok(vec![facts.panel("sizes", "latency over the size of a piece", Unit::Microseconds, Chart::Lines, cells)])
}

/// Figure 9.
pub fn idle(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let parts = if setting.run.quick { &[0, 50][..] } else { &[0, 25, 50, 75, 90][..] };
    let names = [OURS, SYNCHRONOUS, STRICT, NO_CONSISTENCY, FINE_LOG];
    let (cells, facts) = on_disk(setting, FLUSH_US, &names, |stage| {
        parts.iter().map(|part| stage.latency(&format!("{part} %"), None, f64::from(*part) / 100.0)).collect()
    })?;
    Ok(vec![facts.panel("idle", "latency over the part of idle time", Unit::Microseconds, Chart::Lines, cells)])
}

/// Figure 10.
pub fn medium(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let flushes_us = if setting.run.quick { &[50, 1600][..] } else { &[50, 200, 800, 1600][..] };
    let (mut cells, mut first) = (Vec::new(), None);
    for flush_us in flushes_us {
        let (cell, facts) =
            on_disk(setting, *flush_us, &SOME, |stage| stage.latency(&format!("{flush_us} µs"), None, 0.0))?;
        cells.push(cell);
        first.get_or_insert(facts);
    }
    let panel = |facts: Facts| {
        let details = "each cell on an XFS on a disk whose flushes take so long".to_owned();
        let facts = Facts { details, ..facts };
        facts.panel("medium", "latency over the time of a flush", Unit::Microseconds, Chart::Lines, cells)
    };
    Ok(first.map(panel).into_iter().collect())
}
