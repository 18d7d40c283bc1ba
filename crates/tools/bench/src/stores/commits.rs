//! Commits at random offsets of a large file, against the floor.
//!
//! Those of class `process` are compared with a plain `pwrite`.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, COMMITS_MIN, Contender, Plan, THINK, TURNOVERS_MIN, interleave, timed};
use crate::measuring::peers::{Floor, fill};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::Ratio;
use anyhow::Result;
use fastrand::Rng;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use untorn::{FailureClass, Store, StoreOptions};

const SIZES: [usize; 5] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

/// Both `commit` sections of one place: class `power` against the floor, and class `process`.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("commit")?;
    let setting = Setting { run, place, dir: &dir, file_bytes: if run.quick { 64 << 20 } else { 1 << 30 } };
    std::fs::create_dir(dir.join("store"))?;
    run.progress.cell(format!("{}: writing the file of {}", place.name, bytes_text(setting.file_bytes)));
    fill(&dir.join("store/data"), setting.file_bytes)?;
    let sections = vec![setting.against_floor()?, setting.process()?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

/// The journal's size in a cell. It is small enough for three turnovers, and so large that one turnover takes more than
/// a hundred commits.
pub fn journal_bytes(run: &Run, commit_bytes: usize) -> u64 {
    match commit_bytes {
        _ if run.quick => 1 << 20,
        0..=4096 => 4 << 20,
        4097..=65_536 => 16 << 20,
        _ => 64 << 20,
    }
}

/// The number of commits that turn the journal over three times, if each is a record of its own in blocks of its own.
pub fn commits_needed(run: &Run, commit_bytes: usize) -> usize {
    let record_bytes = (commit_bytes + 256).next_multiple_of(4096) as u64;
    let turnovers = TURNOVERS_MIN * journal_bytes(run, commit_bytes) / record_bytes;
    if run.quick { 50 } else { COMMITS_MIN.max(turnovers as usize) }
}

/// The name of a load in the tables.
pub fn load_text(think: Duration) -> String {
    if think.is_zero() { "saturated".to_owned() } else { format!("think {} ms", think.as_millis()) }
}

struct Setting<'a> {
    run: &'a Run,
    place: &'a Place,
    dir: &'a Path,
    file_bytes: u64,
}

/// One file in an open store, written at random offsets.
pub struct Writer {
    pub file: untorn::File,
    bytes: Vec<u8>,
    offsets: Offsets,
}

impl Writer {
    pub fn new(file: untorn::File, commit_bytes: usize, file_bytes: u64) -> Writer {
        let mut bytes = vec![0; commit_bytes];
        fastrand::fill(&mut bytes);
        Writer { file, bytes, offsets: Offsets::new(commit_bytes, file_bytes) }
    }

    /// Makes one change, and commits it.
    pub fn commit(&mut self) -> Result<Duration> {
        let offset = self.offsets.next();
        freshen(&mut self.bytes);
        timed(|| {
            self.file.write_all_at(&self.bytes, offset)?;
            self.file.commit()
        })
    }

    /// Makes one change.
    pub fn write(&mut self) -> untorn::Result<()> {
        let offset = self.offsets.next();
        freshen(&mut self.bytes);
        self.file.write_all_at(&self.bytes, offset)
    }
}

/// Makes the bytes differ from the last ones.
fn freshen(bytes: &mut [u8]) {
    let fresh = fastrand::u64(..).to_le_bytes();
    bytes[..fresh.len()].copy_from_slice(&fresh);
}

/// Random offsets, the same for every contender. They are aligned to the size of the change, up to a page.
struct Offsets {
    random: Rng,
    align: u64,
    count: u64,
}

impl Offsets {
    fn new(commit_bytes: usize, file_bytes: u64) -> Offsets {
        let align = commit_bytes.min(4096) as u64;
        Offsets { random: Rng::with_seed(1), align, count: (file_bytes - commit_bytes as u64) / align + 1 }
    }

    fn next(&mut self) -> u64 {
        self.random.u64(..self.count) * self.align
    }
}

impl Setting<'_> {
    fn open(&self, class: FailureClass, journal_bytes: u64) -> Result<Store> {
        Ok(StoreOptions::new().create(true).class(class).journal_bytes(journal_bytes).open(self.dir.join("store"))?)
    }

    fn against_floor(&self) -> Result<Section> {
        let mut rows = Vec::new();
        for size in SIZES {
            for think in [Duration::ZERO, THINK] {
                self.run.progress.cell(format!(
                    "{}: commit {}, {}",
                    self.place.name,
                    bytes_text(size as u64),
                    load_text(think)
                ));
                rows.push(self.cell(size, think)?);
            }
        }
        Ok(Section {
            title: "commit: random offsets of one file, class power".to_owned(),
            chart: Chart::Bars,
            place: self.place.name.clone(),
            place_details: self.place.details.clone(),
            unit: Unit::Microseconds,
            ratio_means: "median commit ÷ median floor, against the faster of the two floors (*)",
            rows,
            notes: vec![
                format!(
                    "File of {}; offsets aligned to the change, at most to 4 KiB. A commit is one write_at and one commit.",
                    bytes_text(self.file_bytes)
                ),
                "Floor: one pwrite of the changed bytes, padded to 4 KiB, at the next place of a preallocated, already \
                 written file of the journal's size, plus fdatasync."
                    .to_owned(),
                "Saturated: batches of 10 in turn. Think: commit by commit in turn, a sleep before each, the floor's too."
                    .to_owned(),
                "Alone: Untorn by itself for as many commits again, the last checkpoint included; device bytes are of \
                 this part, with all that the file system adds."
                    .to_owned(),
                "Waited: commits that had to wait for a checkpoint, alone or in company. With think time none may: one misses \
                 the target.".to_owned(),
            ],
        })
    }

    fn cell(&self, size: usize, think: Duration) -> Result<Row> {
        let journal_bytes = journal_bytes(self.run, size);
        let store = self.open(FailureClass::Power, journal_bytes)?;
        let mut writer = Writer::new(store.open_file("data")?, size, self.file_bytes);
        // The first commit after opening also sets the attribute, which another benchmark measures.
        for _ in 0..3 {
            writer.commit()?;
        }
        let commits = commits_needed(self.run, size);
        let batch = if think.is_zero() { 10 } else { 1 };
        let mut floors = [
            (Floor::BUFFERED, Some(Floor::buffered(self.dir, size, journal_bytes)?)),
            (Floor::DIRECT, Floor::direct(self.dir, size, journal_bytes)?),
        ];
        let before = store.status();
        let mut contenders = vec![Contender::new("Untorn", batch, || writer.commit())];
        for (name, floor) in &mut floors {
            if let Some(floor) = floor {
                contenders.push(Contender::new(*name, batch, || floor.write_all()));
            }
        }
        let plan = Plan::spread(commits, batch, self.run.quick, think);
        let enough = || {
            let done = Activity::between(&before, &store.status());
            self.run.quick || done.turned_over(journal_bytes, size as u64)
        };
        let measured = interleave(&mut contenders, &plan, &self.run.progress, enough)?;
        drop(contenders);
        let mut activity = Activity::between(&before, &store.status());
        let mut extras = Extras::default();
        if think.is_zero() {
            activity.commits_waited += self.alone(&store, &mut writer, commits, &mut extras)?;
        }
        activity.describe(journal_bytes, &mut extras);
        writer.file.close()?;
        store.close()?;
        let (ours, peers) = measured.split_first().expect("Untorn is the first");
        let waited = if think.is_zero() { Waited::Allowed } else { Waited::Forbidden(activity.commits_waited) };
        let row = Row {
            cell: bytes_text(size as u64),
            load: load_text(think),
            contenders: measured.iter().map(|m| m.summary()).collect(),
            ratio: Some(Ratio::cost(ours, &peers.iter().collect::<Vec<_>>())),
            extras,
            ..Row::default()
        };
        Ok(row.against_target(Some(Target::AtMost(1.25)), waited, self.run.quick))
    }

    /// Measures Untorn alone: the sustained rate, and the bytes that reach the device. Returns the number of waits.
    fn alone(&self, store: &Store, writer: &mut Writer, commits: usize, extras: &mut Extras) -> Result<u64> {
        store.checkpoint()?;
        let device_before = self.place.device_bytes_written()?;
        let before = store.status();
        let start = Instant::now();
        for _ in 0..commits {
            writer.commit()?;
        }
        store.checkpoint()?;
        let mean_us = start.elapsed().as_secs_f64() * 1e6 / commits as f64;
        extras.add("alone µs/commit", mean_us, 1);
        if let (Some(from), Some(to)) = (device_before, self.place.device_bytes_written()?) {
            let changed = (commits * writer.bytes.len()) as f64;
            extras.add("device B ÷ changed B", (to - from) as f64 / changed, 2);
        }
        Ok(Activity::between(&before, &store.status()).commits_waited)
    }

    fn process(&self) -> Result<Section> {
        const PAGE: usize = 4096;
        self.run.progress.cell(format!("{}: commit 4 KiB, class process", self.place.name));
        let plain_path = self.dir.join("plain");
        fill(&plain_path, self.file_bytes)?;
        let plain = OpenOptions::new().write(true).open(&plain_path)?;
        let journal_bytes = journal_bytes(self.run, PAGE);
        let store = self.open(FailureClass::Process, journal_bytes)?;
        let mut writer = Writer::new(store.open_file("data")?, PAGE, self.file_bytes);
        for _ in 0..3 {
            writer.commit()?;
        }
        let mut bytes = writer.bytes.clone();
        let mut offsets = Offsets::new(PAGE, self.file_bytes);
        let before = store.status();
        let mut contenders = [
            Contender::new("Untorn", 50, || writer.commit()),
            Contender::new("pwrite", 50, || {
                let offset = offsets.next();
                freshen(&mut bytes);
                timed(|| plain.write_all_at(&bytes, offset))
            }),
        ];
        let plan = Plan::spread(commits_needed(self.run, PAGE), 50, self.run.quick, Duration::ZERO);
        let enough = || {
            let done = Activity::between(&before, &store.status());
            self.run.quick || done.turned_over(journal_bytes, PAGE as u64)
        };
        let measured = interleave(&mut contenders, &plan, &self.run.progress, enough)?;
        drop(contenders);
        let mut extras = Extras::default();
        Activity::between(&before, &store.status()).describe(journal_bytes, &mut extras);
        writer.file.close()?;
        store.close()?;
        let row = Row {
            cell: "4 KiB".to_owned(),
            load: load_text(Duration::ZERO),
            contenders: measured.iter().map(|m| m.summary()).collect(),
            ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
            extras,
            ..Row::default()
        };
        Ok(Section {
            title: "commit: one page, class process".to_owned(),
            chart: Chart::Bars,
            place: self.place.name.clone(),
            place_details: self.place.details.clone(),
            unit: Unit::Microseconds,
            ratio_means: "median commit ÷ median pwrite",
            rows: vec![row.against_target(Some(Target::AtMost(6.0)), Waited::Allowed, self.run.quick)],
            notes: vec![format!(
                "The peer is a plain pwrite of 4 KiB at the same offsets of another file of {}; neither side flushes.",
                bytes_text(self.file_bytes)
            )],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_inside_aligned_and_repeatable() {
        for size in SIZES {
            let file_bytes = 1 << 20;
            let [mut a, mut b] = [(); 2].map(|()| Offsets::new(size, file_bytes));
            let mut seen = std::collections::HashSet::new();
            for _ in 0..1000 {
                let offset = a.next();
                assert_eq!(offset, b.next());
                assert!(offset + size as u64 <= file_bytes && offset.is_multiple_of(size.min(4096) as u64));
                seen.insert(offset);
            }
            assert!(seen.len() > 100, "{size}: {}", seen.len());
        }
    }
}
