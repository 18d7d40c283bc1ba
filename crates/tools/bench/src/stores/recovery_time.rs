//! Opening a store with a full journal of one-page records.
//!
//! The first read is compared with reading the journal once. Applying everything is compared with writing as many pages
//! of such a file in order.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, leave_full_journal};
use crate::measuring::fs::{Place, drop_caches};
use crate::measuring::harness::{ROUNDS_MIN, timed};
use crate::measuring::peers::{fill, write_pages};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Result, bail};
use std::io::Read;
use std::path::{Path, PathBuf};
use untorn::StoreOptions;

const PAGE: u64 = 4096;

/// The `recovery` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let sizes = match &run.log_mib[..] {
        [] if run.quick => vec![8 << 20],
        [] => vec![256 << 20],
        sizes => sizes.iter().map(|mib| mib << 20).collect(),
    };
    let rows = sizes.into_iter().map(|wanted_bytes| of_size(run, place, wanted_bytes)).collect::<Result<Vec<_>>>()?;
    Ok(Section {
        title: "recovery of a full journal of 4 KiB records, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        ratio_means: "first read: time ÷ time of reading; applied: throughput ÷ throughput of the peer",
        rows: rows.into_iter().flatten().collect(),
        notes: vec![
            "A child process commits pages of a large file, each page once, in random order, and is killed. Timed are \
             opening the store and reading a page, and the checkpoint that applies the journal. Bytes are those of the \
             pages, not of the records around them."
                .to_owned(),
            "The peer writes as many pages of a file as large, random ones in order, each by a `pwrite` from memory, and flushes \
             once. Caches are dropped before both."
                .to_owned(),
        ],
    })
}

/// The times of recoveries from a journal of some size.
pub struct Recoveries {
    /// Opening and the first read.
    pub first: Measured,
    /// Reading the journal.
    reading: Measured,
    /// The checkpoint behind the first read.
    applied: Measured,
    peer: Measured,
    delays: Vec<f64>,
    throughputs: Vec<f64>,
    pending_bytes: u64,
    commits: u64,
}

impl Recoveries {
    /// The time until everything is applied, in each round.
    pub fn whole(&self, name: &str) -> Measured {
        let sum = |(first, applied): (&Vec<u64>, &Vec<u64>)| first.iter().zip(applied).map(|(a, b)| a + b).collect();
        let rounds_ns = self.first.rounds_ns.iter().zip(&self.applied.rounds_ns).map(sum).collect();
        Measured { name: name.to_owned(), rounds_ns }
    }
}

/// Recovers so often from a journal with this many bytes.
pub fn measure(run: &Run, place: &Place, wanted_bytes: u64, rounds: usize) -> Result<Recoveries> {
    let dir = place.directory("recovery")?;
    let file_bytes = if run.quick { 64 << 20 } else { wanted_bytes.max(1 << 30) };
    let root = dir.join("store");
    let [data, target] = ["store/data", "target"].map(|name| dir.join(name));
    run.progress.cell(format!("{}: recovery, writing the files", place.name));
    std::fs::create_dir(&root)?;
    fill(&data, file_bytes)?;
    fill(&target, file_bytes)?;

    // A checkpoint starts before the journal is full. With twice the size, the wanted part can fill up.
    let journal_bytes = 2 * wanted_bytes;
    let options = StoreOptions::new().create(true).journal_bytes(journal_bytes);
    let [mut first, mut reading] = ["Untorn, open + first read", "read the journal"].map(Measured::new);
    let [mut ours, mut peer] = ["Untorn, checkpoint", "pwrites + fdatasync"].map(Measured::new);
    let (mut delays, mut throughputs) = (Vec::new(), Vec::new());
    let (mut pending_bytes, mut recovered) = (0, Default::default());
    for round in 0..rounds {
        run.progress.cell(format!("{}: recovery, round {} of {rounds}", place.name, round + 1));
        let job = Job::FillJournal { root: root.clone(), file: "data".to_owned(), journal_bytes, wanted_bytes };
        pending_bytes = leave_full_journal(&job)?;

        let segments = segments(&root)?;
        drop_caches(&[&segments[..], std::slice::from_ref(&data)].concat())?;
        reading.begin_round();
        let read_time = timed(|| segments.iter().try_for_each(|segment| read_whole(segment)))?;
        reading.push(read_time);

        let read_in_opening = [&segments[..], &indexes(&root)?, std::slice::from_ref(&data)].concat();
        drop_caches(&read_in_opening)?;
        let mut store = None;
        first.begin_round();
        let time = timed(|| -> Result<()> {
            let opened = options.open(&root)?;
            opened.open_file("data")?.read_exact_at(&mut [0; PAGE as usize], 0)?;
            store = Some(opened);
            Ok(())
        })?;
        first.push(time);
        delays.push(time.as_secs_f64() / read_time.as_secs_f64());
        let store = store.expect("opened");
        recovered = store.status().recovered;
        ours.begin_round();
        let time = timed(|| store.checkpoint())?;
        ours.push(time);
        store.close()?;
        let payload_bytes = recovered.commits * PAGE;
        if payload_bytes == 0 {
            bail!("nothing was recovered, although {pending_bytes} bytes of journal were pending");
        }

        // Each page once, as the child wrote them.
        let mut pages: Vec<u64> = (0..file_bytes / PAGE).collect();
        fastrand::shuffle(&mut pages);
        pages.truncate(recovered.commits as usize);
        pages.sort_unstable();
        drop_caches(std::slice::from_ref(&target))?;
        peer.begin_round();
        let write_time = timed(|| write_pages(&target, &pages, PAGE))?;
        peer.push(write_time);
        throughputs.push(write_time.as_secs_f64() / time.as_secs_f64());
    }
    std::fs::remove_dir_all(&dir)?;
    let (applied, commits) = (ours, recovered.commits);
    Ok(Recoveries { first, reading, applied, peer, delays, throughputs, pending_bytes, commits })
}

/// The rows for a journal with this many bytes.
fn of_size(run: &Run, place: &Place, wanted_bytes: u64) -> Result<Vec<Row>> {
    let rounds = if run.quick { 1 } else { ROUNDS_MIN };
    let Recoveries { first, reading, applied: ours, peer, delays, throughputs, pending_bytes, commits } =
        measure(run, place, wanted_bytes, rounds)?;
    let payload_mib = (commits * PAGE) as f64 / f64::from(1 << 20);
    let mut extras = Extras::default();
    extras.add("records", commits as f64, 0);
    extras.add("payload MiB", payload_mib, 1);
    extras.add("journal pending MiB", pending_bytes as f64 / f64::from(1 << 20), 1);
    extras.add("recovery MiB/s", payload_mib / (ours.summary().median_us / 1e6), 0);
    extras.add("peer MiB/s", payload_mib / (peer.summary().median_us / 1e6), 0);
    let first_row = Row {
        cell: format!("{} of journal, first read", bytes_text(wanted_bytes)),
        load: "cold".to_owned(),
        contenders: vec![first.summary(), reading.summary()],
        ratio: Some(Ratio::of_rounds(&reading.name, delays)),
        ..Row::default()
    };
    let row = Row {
        cell: format!("{} of journal, applied", bytes_text(wanted_bytes)),
        load: "after the first read".to_owned(),
        contenders: vec![ours.summary(), peer.summary()],
        ratio: Some(Ratio::of_rounds(&peer.name, throughputs)),
        extras,
        ..Row::default()
    };
    // A long journal is told by its index.
    let most = if wanted_bytes < 1 << 30 { 0.15 } else { 0.05 };
    Ok(vec![
        first_row.against_target(Some(Target::AtMost(most)), Waited::Allowed, run.quick),
        row.against_target(Some(Target::AtLeast(0.9)), Waited::Allowed, run.quick),
    ])
}

/// The segments of a store's journal.
fn segments(root: &Path) -> Result<Vec<PathBuf>> {
    in_journal(root, "segment.")
}

fn indexes(root: &Path) -> Result<Vec<PathBuf>> {
    in_journal(root, "index.")
}

fn in_journal(root: &Path, beginning: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join(".untorn/journal"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(beginning) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn read_whole(path: &Path) -> Result<()> {
    let (mut file, mut buf) = (std::fs::File::open(path)?, vec![0; 1 << 20]);
    while file.read(&mut buf)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_recovery_is_the_sum_of_its_parts() {
        let measured = |rounds_ns: &[u64]| Measured {
            name: "part".to_owned(),
            rounds_ns: rounds_ns.iter().map(|ns| vec![*ns]).collect(),
        };
        let recoveries = Recoveries {
            first: measured(&[1, 2]),
            reading: measured(&[9, 9]),
            applied: measured(&[10, 30]),
            peer: measured(&[9, 9]),
            delays: Vec::new(),
            throughputs: Vec::new(),
            pending_bytes: 0,
            commits: 0,
        };
        let whole = recoveries.whole("whole");
        assert_eq!((whole.name.as_str(), whole.rounds_ns), ("whole", vec![vec![11], vec![32]]));
    }
}
