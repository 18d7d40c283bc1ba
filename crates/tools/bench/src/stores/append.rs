//! Appending and committing, against `write` and `fsync`.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, COMMITS_MIN, Contender, Plan, THINK, interleave, timed};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::{commits_needed, journal_bytes, load_text};
use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn::{Store, StoreOptions};

const SIZES: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20];

pub const OURS: &str = "Untorn";
pub const PEER: &str = "write + fsync";
pub const COPY: &str = "reflink, write, fsync, rename";

/// At this size the files start anew, so that the device does not fill up.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// The `append` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let mut rows = Vec::new();
    for size in SIZES {
        if run.quick && size > 4 << 20 {
            continue;
        }
        rows.extend(cells(run, place, size)?);
    }
    Ok(Section {
        title: "append and commit, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median append and commit ÷ median write and fsync",
        rows,
        notes: vec![
            "Think time is 2 ms, and 4 ms per MiB for changes larger than 512 KiB; saturated, those are told by the \
             sustained figures."
                .to_owned(),
            "Sustained: either side by itself, saturated, Untorn's last checkpoint included.".to_owned(),
            format!("Both files are cut to nothing, untimed, before they exceed {}.", bytes_text(FILE_BYTES_MAX)),
        ],
    })
}

/// The cells of this size: one for each load, with its target.
fn cells(run: &Run, place: &Place, size: usize) -> Result<Vec<Row>> {
    let (loads, target) = match size {
        0..=0x8_0000 => (vec![Duration::ZERO, THINK], Some(1.0)),
        _ => (vec![THINK + Duration::from_millis(4 * (size as u64 >> 20))], (size == 64 << 20).then_some(1.15)),
    };
    let mut rows = Vec::new();
    for think in loads {
        let load = load_text(think);
        run.progress.cell(format!("{}: append {}, {load}", place.name, bytes_text(size as u64)));
        let dir = place.directory("append")?;
        rows.push(cell(run, place, &dir, size, think)?.against_target(
            target.map(Target::AtMost),
            Waited::Allowed,
            run.quick,
        ));
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(rows)
}

/// Measures appends of this size, as the plan says, also by way of a copy.
pub fn of_size(run: &Run, place: &Place, size: usize, batch: usize, plan: &Plan) -> Result<Vec<Measured>> {
    let dir = place.directory("append")?;
    let bytes = random_bytes(size);
    let (mut ours, mut plain) = open(&dir, &bytes, journal_bytes(run, size))?;
    let mut copied = Copied { dir: dir.clone(), bytes: &bytes };
    File::create(copied.path())?.sync_all()?;
    copied.append()?;
    let copies = Contender::new(COPY, batch, || copied.append());
    let measured = race(&mut ours, &mut plain, Some(copies), batch, plan, run, |_| true)?;
    drop((ours, plain));
    std::fs::remove_dir_all(&dir)?;
    Ok(measured)
}

fn random_bytes(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::fill(&mut bytes);
    bytes
}

/// Opens both sides, each after a first append.
fn open<'a>(dir: &Path, bytes: &'a [u8], journal_bytes: u64) -> Result<(Ours<'a>, Plain<'a>)> {
    let root = dir.join("store");
    std::fs::create_dir(&root)?;
    let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(&root)?;
    let mut ours = Ours { file: store.open_or_create_file("data")?, store, bytes };
    let mut plain = Plain { file: File::create(dir.join("plain"))?, at: 0, bytes };
    ours.append()?;
    plain.append()?;
    Ok((ours, plain))
}

/// Appends in turns, until the plan is done and `enough` agrees.
fn race<'a>(
    ours: &'a mut Ours<'_>,
    plain: &'a mut Plain<'_>,
    more: Option<Contender<'a>>,
    batch: usize,
    plan: &Plan,
    run: &Run,
    enough: impl Fn(&Store) -> bool,
) -> Result<Vec<Measured>> {
    let store = ours.store.clone();
    let mut contenders =
        vec![Contender::new(OURS, batch, || ours.append()), Contender::new(PEER, batch, || plain.append())];
    contenders.extend(more);
    interleave(&mut contenders, plan, &run.progress, || enough(&store))
}

fn cell(run: &Run, place: &Place, dir: &Path, size: usize, think: Duration) -> Result<Row> {
    let journal_bytes = journal_bytes(run, size);
    let bytes = random_bytes(size);
    let (mut ours, mut plain) = open(dir, &bytes, journal_bytes)?;
    let store = ours.store.clone();
    let commits = if run.quick && size > 1 << 20 { 4 } else { commits_needed(run, size) };
    let batch = if think.is_zero() { 10 } else { 1 };
    let before = store.status();
    let plan = Plan::spread(commits, batch, run.quick, think);
    let enough = |store: &Store| {
        run.quick || Activity::between(&before, &store.status()).turned_over(journal_bytes, size as u64)
    };
    let measured = race(&mut ours, &mut plain, None, batch, &plan, run, enough)?;
    let mut extras = Extras::default();
    Activity::between(&before, &store.status()).describe(journal_bytes, &mut extras);
    if think.is_zero() || size > 512 << 10 {
        let commits = if size > 1 << 20 { commits.min(COMMITS_MIN / 5) } else { commits };
        sustained(place, &mut ours, &mut plain, commits, &mut extras)?;
    }
    ours.file.close()?;
    store.close()?;
    Ok(Row {
        cell: bytes_text(size as u64),
        load: load_text(think),
        contenders: measured.iter().map(|m| m.summary()).collect(),
        ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
        extras,
        ..Row::default()
    })
}

struct Ours<'a> {
    file: untorn::File,
    store: Store,
    bytes: &'a [u8],
}

impl Ours<'_> {
    fn append(&mut self) -> Result<Duration> {
        if self.file.len()? + self.bytes.len() as u64 > FILE_BYTES_MAX {
            self.file.set_len(0)?;
            self.file.commit()?;
            self.store.checkpoint()?;
        }
        timed(|| {
            self.file.append(self.bytes)?;
            self.file.commit()
        })
    }
}

/// A file that each append replaces by a longer copy, so that a crash leaves the old or the new one.
struct Copied<'a> {
    dir: PathBuf,
    bytes: &'a [u8],
}

impl Copied<'_> {
    fn path(&self) -> PathBuf {
        self.dir.join("copied")
    }

    fn append(&mut self) -> Result<Duration> {
        let path = self.path();
        let mut at = std::fs::metadata(&path)?.len();
        if at + self.bytes.len() as u64 > FILE_BYTES_MAX {
            File::create(&path)?.sync_all()?;
            at = 0;
        }
        let temporary = self.dir.join("copied.tmp");
        timed(|| {
            let (from, to) = (File::open(&path)?, File::create(&temporary)?);
            if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
                std::io::copy(&mut &from, &mut &to)?;
            }
            to.write_all_at(self.bytes, at)?;
            to.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(&self.dir)?.sync_all()
        })
    }
}

struct Plain<'a> {
    file: File,
    at: u64,
    bytes: &'a [u8],
}

impl Plain<'_> {
    fn append(&mut self) -> Result<Duration> {
        if self.at + self.bytes.len() as u64 > FILE_BYTES_MAX {
            self.file.set_len(0)?;
            self.file.sync_all()?;
            self.at = 0;
        }
        let time = timed(|| {
            self.file.write_all_at(self.bytes, self.at)?;
            self.file.sync_all()
        })?;
        self.at += self.bytes.len() as u64;
        Ok(time)
    }
}

/// Measures each side alone, at full speed, until everything is in its file.
fn sustained(
    place: &Place,
    ours: &mut Ours<'_>,
    plain: &mut Plain<'_>,
    commits: usize,
    extras: &mut Extras,
) -> Result<()> {
    let changed_bytes = (commits * ours.bytes.len()) as f64;
    let mib_per_s = |start: Instant| changed_bytes / f64::from(1 << 20) / start.elapsed().as_secs_f64();
    ours.store.checkpoint()?;
    let device_before = place.device_bytes_written()?;
    let start = Instant::now();
    for _ in 0..commits {
        ours.append()?;
    }
    ours.store.checkpoint()?;
    extras.add("sustained MiB/s", mib_per_s(start), 1);
    let device_between = place.device_bytes_written()?;
    let start = Instant::now();
    for _ in 0..commits {
        plain.append()?;
    }
    extras.add("peer's MiB/s", mib_per_s(start), 1);
    if let (Some(from), Some(between), Some(to)) = (device_before, device_between, place.device_bytes_written()?) {
        extras.add("device B ÷ changed B", (between - from) as f64 / changed_bytes, 2);
        extras.add("peer's device B ÷ changed B", (to - between) as f64 / changed_bytes, 2);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_grows_by_each_append_and_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = [b'x'; 1000];
        let mut copied = Copied { dir: dir.path().to_owned(), bytes: &bytes };
        let file = File::create(copied.path()).unwrap();
        for n in 1..=3 {
            copied.append().unwrap();
            assert_eq!(std::fs::read(copied.path()).unwrap(), bytes.repeat(n));
        }
        assert_eq!(file.metadata().unwrap().len(), 0, "the first file was replaced");
        File::options().write(true).open(copied.path()).unwrap().set_len(FILE_BYTES_MAX).unwrap();
        copied.append().unwrap();
        assert_eq!(std::fs::read(copied.path()).unwrap(), bytes);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
