//! Readers in other processes: their costs for the owner, the costs of reads, the delay until they see a commit.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, Running};
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, COMMITS_MIN, Contender, Plan, THINK, interleave, timed};
use crate::measuring::peers::fill;
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::{Writer, journal_bytes};
use anyhow::{Context, Result, ensure};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::reader::Snapshot;
use untorn::{Reader, Store, StoreOptions};
use untorn_terminal::standard_streams::write_output;

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// The number of pending ranges, and their length.
const PENDING: (u64, usize) = (10_000, 64);
/// The reads of a busy reader from one snapshot.
const READS: usize = 100;

/// All sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("readers")?;
    for store in ["store", "empty"] {
        std::fs::create_dir(dir.join(store))?;
    }
    for file in ["store/data", "plain"] {
        fill(&dir.join(file), FILE_BYTES)?;
    }
    let setting = Setting { run, place, dir: &dir };
    let sections = vec![setting.owner()?, setting.reads()?, setting.followed()?, setting.opening()?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

struct Setting<'a> {
    run: &'a Run,
    place: &'a Place,
    dir: &'a Path,
}

impl Setting<'_> {
    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn plan(&self, operations: usize, batch: usize, think: Duration) -> Plan {
        Plan::spread(if self.run.quick { 2 * batch } else { operations }, batch, self.run.quick, think)
    }

    fn cell(&self, what: &str) {
        self.run.progress.cell(format!("{}: readers, {what}", self.place.name));
    }

    fn section(&self, title: &str, unit: Unit, ratio_means: &'static str, rows: Vec<Row>, note: &str) -> Section {
        Section {
            title: title.to_owned(),
            chart: Chart::Bars,
            place: self.place.name.clone(),
            place_details: self.place.details.clone(),
            unit,
            ratio_means,
            rows,
            notes: vec![note.to_owned()],
        }
    }

    /// Commits beside busy readers, and beside readers that are stopped.
    fn owner(&self) -> Result<Section> {
        self.cell("commits beside them");
        // Each reader has a processor of its own.
        let count = std::thread::available_parallelism()?.get().saturating_sub(1).clamp(1, 8);
        let journal_bytes = journal_bytes(self.run, PAGE);
        let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(self.store())?;
        let writer = RefCell::new(Writer::new(store.open_file("data")?, PAGE, FILE_BYTES));
        writer.borrow_mut().commit()?;
        let jobs = [
            Job::ReadOn { store: self.store(), file: "data".to_owned() },
            Job::ReadPlain { path: self.dir.join("plain") },
        ];
        let start = |job| (0..count).map(|_| Running::start(job)).collect::<Result<Vec<_>>>();
        let mut kinds = jobs.iter().map(start).collect::<Result<Vec<_>>>()?;
        kinds.iter_mut().flatten().try_for_each(|child| child.line().map(drop))?;
        let busy = Cell::new(None);
        let pause = |kind: Option<usize>, pause: bool| {
            kind.map_or(Ok(()), |kind| kinds[kind].iter().try_for_each(|child| child.pause(pause)))
        };
        for kind in 0..kinds.len() {
            pause(Some(kind), true)?;
        }
        let activity = RefCell::new(Activity::default());
        let commit = |beside: Option<usize>| -> Result<Duration> {
            let before = busy.replace(beside);
            if before != beside {
                pause(before, true)?;
                pause(beside, false)?;
            }
            let before = store.status();
            let time = writer.borrow_mut().commit()?;
            if beside == Some(0) {
                activity.borrow_mut().add(&Activity::between(&before, &store.status()));
            }
            Ok(time)
        };
        let mut contenders = [
            Contender::new("beside readers", 50, || commit(Some(0))),
            Contender::new("without", 50, || commit(None)),
            Contender::new("beside readers of a plain file", 50, || commit(Some(1))),
        ];
        let plan = self.plan(20 * COMMITS_MIN, 50, Duration::ZERO);
        let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
        drop(contenders);
        for kind in (0..kinds.len()).filter(|kind| busy.get() != Some(*kind)) {
            pause(Some(kind), false)?;
        }
        let mut reads = Vec::new();
        for children in kinds {
            reads.push(children.into_iter().map(Running::stop).sum::<Result<u64>>()?);
        }
        drop(writer);
        store.close()?;
        let mut extras = Extras::default();
        extras.add("readers", count as f64, 0);
        extras.add("their reads", reads[0] as f64, 0);
        extras.add("plain reads", reads[1] as f64, 0);
        activity.borrow().describe(journal_bytes, &mut extras);
        let row = |what: &str, peer: usize, extras: Extras| {
            let row = Row {
                cell: format!("commit {}, {what}", bytes_text(PAGE as u64)),
                load: "saturated".to_owned(),
                contenders: vec![measured[0].summary(), measured[peer].summary()],
                ratio: Some(Ratio::cost(&measured[0], &[&measured[peer]])),
                extras,
                ..Row::default()
            };
            row.against_target(Some(Target::AtMost(1.05)), Waited::Allowed, self.run.quick)
        };
        Ok(self.section(
            "readers: commits of the owner beside busy readers, class power",
            Unit::Microseconds,
            "median beside readers ÷ median of the other",
            vec![row("readers or none", 1, extras), row("readers of a store or of a plain file", 2, Extras::default())],
            &format!(
                "Each reader is a process that reads {READS} pages at random of a snapshot, refreshes it, and so on. \
                 As many as there are processors beside the owner's, at most 8; they are stopped (SIGSTOP) for the other \
                 turns. The second row sets them against as many processes that only pread pages of a plain file: what a \
                 busy processor costs the owner is in both."
            ),
        ))
    }

    /// Reads through a snapshot against `pread` of a plain file, with few or many pending ranges.
    fn reads(&self) -> Result<Section> {
        let mut rows = Vec::new();
        let store = StoreOptions::new().create(true).background(false).open(self.store())?;
        for (pending, limit) in [(0, 1.2), (if self.run.quick { 100 } else { PENDING.0 }, 2.0)] {
            self.cell(&format!("reads over {pending} pending ranges"));
            self.leave_pending(&store, pending)?;
            let reader = Reader::open(self.store())?;
            let file = reader.snapshot()?.open("data")?;
            let plain = File::open(self.dir.join("plain"))?;
            for bytes in [PAGE, 64 << 10, 1 << 20] {
                let places = FILE_BYTES / bytes as u64;
                let [mut ours, mut theirs] = [(); 2].map(|()| (vec![0; bytes], fastrand::Rng::with_seed(1)));
                let mut contenders = [
                    Contender::new("read_at of a snapshot", 10, || {
                        let (buf, random) = &mut ours;
                        let at = random.u64(..places) * bytes as u64;
                        timed(|| file.read_at(buf, at).map(drop))
                    }),
                    Contender::new("pread", 10, || {
                        let (buf, random) = &mut theirs;
                        let at = random.u64(..places) * bytes as u64;
                        timed(|| plain.read_exact_at(buf, at))
                    }),
                ];
                let plan = self.plan(10 * COMMITS_MIN, 10, Duration::ZERO);
                let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
                drop(contenders);
                let row = Row {
                    cell: format!("{pending} ranges pending, {}", bytes_text(bytes as u64)),
                    load: "cached".to_owned(),
                    contenders: vec![measured[0].summary(), measured[1].summary()],
                    ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
                    ..Row::default()
                };
                rows.push(row.against_target(Some(Target::AtMost(limit)), Waited::Allowed, self.run.quick));
            }
        }
        store.close()?;
        Ok(self.section(
            "readers: reads of a snapshot",
            Unit::Microseconds,
            "median of read_at ÷ median of pread",
            rows,
            &format!(
                "A file of {}, all of it cached, at random places. What is pending are ranges of {} bytes, evenly spread, \
                 that no checkpoint has applied. Each read_at looks afterwards into the owner's page, whether something \
                 was kept for it.",
                bytes_text(FILE_BYTES),
                PENDING.1
            ),
        ))
    }

    /// Commits ranges of the file, so that no checkpoint applies them.
    fn leave_pending(&self, store: &Store, ranges: u64) -> Result<()> {
        let file = store.open_file("data")?;
        store.checkpoint()?;
        for n in 0..ranges {
            file.write_all_at(&[7; PENDING.1], n * (FILE_BYTES / ranges) + n % PAGE as u64 / 2)?;
        }
        file.commit()?;
        Ok(())
    }

    /// The time from the end of a commit to the moment when another process sees the commit.
    fn followed(&self) -> Result<Section> {
        self.cell("following");
        let mut rows = Vec::new();
        for think in [Duration::ZERO, THINK, 10 * THINK] {
            let store = StoreOptions::new().create(true).open(self.store())?;
            let writer = RefCell::new(Writer::new(store.open_file("data")?, PAGE, FILE_BYTES));
            writer.borrow_mut().commit()?;
            let jobs = [Job::Follow { store: self.store() }, Job::BeTold];
            let started = jobs.iter().map(Running::start).collect::<Result<Vec<_>>>()?;
            let [follow, told] = <[Running; 2]>::try_from(started).ok().expect("two").map(RefCell::new);
            for child in [&follow, &told] {
                child.borrow_mut().line()?;
            }
            let heard = |child: &RefCell<Running>, tell: bool| -> Result<Duration> {
                writer.borrow_mut().commit()?;
                let acknowledged = monotonic();
                if tell {
                    child.borrow_mut().tell()?;
                }
                let at: u64 = child.borrow_mut().line()?.parse().context("a time")?;
                // One nanosecond if the other process saw the commit before the call returned.
                Ok(Duration::from_nanos(at.saturating_sub(acknowledged).max(1)))
            };
            let skip = || follow.borrow_mut().line().map(drop);
            let mut contenders = [
                Contender::new("follow", 10, || heard(&follow, false)),
                // The other process follows this commit, too.
                Contender::new("told through a pipe", 10, || heard(&told, true).and_then(|time| skip().map(|()| time))),
            ];
            let plan = self.plan(COMMITS_MIN, 10, think);
            let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
            drop(contenders);
            for child in [follow, told] {
                drop(child.into_inner());
            }
            drop(writer);
            store.close()?;
            let row = Row {
                cell: "acknowledged to heard".to_owned(),
                load: crate::stores::commits::load_text(think),
                contenders: vec![measured[0].summary(), measured[1].summary()],
                ratio: Some(share_of(&measured[0], "100 µs", Duration::from_micros(100))),
                ..Row::default()
            };
            rows.push(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, self.run.quick));
        }
        Ok(self.section(
            "readers: from an acknowledged commit to another process",
            Unit::Microseconds,
            "median of follow ÷ 100 µs",
            rows,
            "Another process follows the commits, or waits for a byte that the owner writes to a pipe after each. It may hear \
             of a commit before the owner does: that counts as a nanosecond.",
        ))
    }

    /// The time of opening a store for reading.
    fn opening(&self) -> Result<Section> {
        let mut rows = Vec::new();
        let path = self.dir.join("empty");
        let options = || StoreOptions::new().create(true).background(false);
        let store = options().open(&path)?;
        store.open_or_create_file("file")?.close()?;
        store.close()?;
        for owned in [false, true] {
            let owner = if owned { Some(options().open(&path)?) } else { None };
            let cell = if owned { "beside an owner" } else { "a closed store" };
            self.cell(&format!("opening, {cell}"));
            let plain = self.dir.join("plain");
            let mut byte = [0];
            let mut contenders = [
                Contender::new("open a reader", 10, || timed(|| Reader::open(&path).map(drop))),
                Contender::new("open and read a file", 10, || timed(|| File::open(&plain)?.read_exact(&mut byte))),
            ];
            let plan = self.plan(COMMITS_MIN, 10, Duration::ZERO);
            let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
            drop(contenders);
            if let Some(owner) = owner {
                owner.close()?;
            }
            let row = Row {
                cell: cell.to_owned(),
                load: "empty journal".to_owned(),
                contenders: vec![measured[0].summary(), measured[1].summary()],
                ratio: Some(share_of(&measured[0], "1 ms", Duration::from_millis(1))),
                ..Row::default()
            };
            rows.push(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, self.run.quick));
        }
        Ok(self.section(
            "readers: opening a store to read it",
            Unit::Milliseconds,
            "median of opening ÷ 1 ms",
            rows,
            "The journal is empty. Of a closed store, opening also flushes the journal's files.",
        ))
    }
}

/// The median of each round as a part of a duration.
fn share_of(measured: &Measured, name: &str, time: Duration) -> Ratio {
    let medians = measured.round_medians_ns().into_iter();
    Ratio::of_rounds(name, medians.map(|ns| ns.max(1.0) / time.as_nanos() as f64).collect())
}

/// Nanoseconds of a clock that is the same in all processes.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn say(word: impl std::fmt::Display) -> Result<()> {
    ensure!(write_output(format!("{word}\n").as_bytes())?, "nobody reads what this says");
    Ok(())
}

/// Reads all the time until its input ends, then prints the number of reads.
pub fn read_on(store: &Path, file: &str) -> Result<()> {
    let reader = Reader::open(store)?;
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    say("ready")?;
    let (mut snapshot, mut buf, mut reads) = (reader.snapshot()?, [0; PAGE], 0u64);
    while !ended.is_finished() {
        read_pages(&snapshot, file, &mut buf, &mut reads)?;
        snapshot.refresh()?;
    }
    say(reads)
}

/// Reads pages of a plain file all the time until its input ends, then prints the number of reads.
pub fn read_plain(path: &Path) -> Result<()> {
    let (file, mut buf, mut reads) = (File::open(path)?, [0; PAGE], 0u64);
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    say("ready")?;
    let pages = file.metadata()?.len() / PAGE as u64;
    while !ended.is_finished() {
        file.read_exact_at(&mut buf, fastrand::u64(..pages) * PAGE as u64)?;
        reads += 1;
    }
    say(reads)
}

fn read_pages(snapshot: &Snapshot, file: &str, buf: &mut [u8], reads: &mut u64) -> untorn::Result<()> {
    let file = snapshot.open(file)?;
    let pages = file.len()? / PAGE as u64;
    for _ in 0..READS {
        file.read_at(buf, fastrand::u64(..pages) * PAGE as u64)?;
        *reads += 1;
    }
    Ok(())
}

/// Follows the commits of a store, and prints the time at which it sees each.
pub fn follow(store: &Path) -> Result<()> {
    let follow = Reader::open(store)?.follow()?;
    say("ready")?;
    for followed in follow {
        let at = monotonic();
        ensure!(matches!(followed?, untorn::reader::Followed::Commit(_)), "commits were missed");
        say(at)?;
    }
    Ok(())
}

/// Reads bytes from its input, and prints the time at which it gets each.
pub fn be_told() -> Result<()> {
    say("ready")?;
    let mut byte = [0];
    while std::io::stdin().read(&mut byte)? == 1 {
        say(monotonic())?;
    }
    Ok(())
}
