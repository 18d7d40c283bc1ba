//! Snapshots beside a writer: their cost for the reader, and for the commits of the writer. LMDB's read transactions are
//! the peer.

use crate::kv::kv_store::{Entry, Store as _, key};
use crate::kv::lmdb::{Lmdb, LmdbStore};
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, Running};
use crate::measuring::fs::Place;
use crate::measuring::harness::{Activity, COMMITS_MIN, Contender, Plan, interleave, timed};
use crate::measuring::peers::fill;
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::{Writer, journal_bytes};
use anyhow::{Result, ensure};
use std::cell::{Cell, RefCell};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use untorn::{Reader, StoreOptions};
use untorn_terminal::standard_streams::write_output;

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// Commits that no checkpoint has applied when the measurement begins.
const PENDING: usize = 5000;
/// Commits in a row beside a held snapshot, and without one: with a few checkpoints among them.
const HELD: usize = 1000;
/// Room of LMDB's environment.
const MAP_BYTES: usize = 1 << 30;

/// Both sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("snapshots")?;
    std::fs::create_dir(dir.join("store"))?;
    std::fs::create_dir(dir.join("lmdb"))?;
    let file_bytes = if run.quick { 4 << 20 } else { FILE_BYTES };
    fill(&dir.join("store/data"), file_bytes)?;
    let lmdb = Lmdb::load().map(Rc::new);
    if let Ok(lmdb) = &lmdb {
        fill_lmdb(lmdb, &dir.join("lmdb"), file_bytes)?;
    }
    let left_out = lmdb.as_ref().err().map(|e| format!("LMDB is left out: {e}"));
    let setting = Setting { run, place, dir: &dir, file_bytes, lmdb: lmdb.ok(), left_out };
    let sections = vec![setting.taking()?, setting.holding()?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

struct Setting<'a> {
    run: &'a Run,
    place: &'a Place,
    dir: &'a Path,
    file_bytes: u64,
    lmdb: Option<Rc<Lmdb>>,
    left_out: Option<String>,
}

fn fill_lmdb(lmdb: &Rc<Lmdb>, dir: &Path, bytes: u64) -> Result<()> {
    let mut store = LmdbStore::open(lmdb, dir, MAP_BYTES)?;
    let value = [7; PAGE];
    let keys: Vec<_> = (0..bytes / PAGE as u64).map(key).collect();
    let entries: Vec<_> = keys.iter().map(|key| Entry { key, value: &value }).collect();
    entries.chunks(1000).try_for_each(|entries| store.put(entries))
}

impl Setting<'_> {
    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn pages(&self) -> u64 {
        self.file_bytes / PAGE as u64
    }

    fn section(&self, title: &str, ratio_means: &'static str, rows: Vec<Row>, note: String) -> Section {
        Section {
            title: title.to_owned(),
            chart: Chart::Bars,
            place: self.place.name.clone(),
            place_details: self.place.details.clone(),
            unit: Unit::Microseconds,
            ratio_means,
            rows,
            notes: [note].into_iter().chain(self.left_out.clone()).collect(),
        }
    }

    /// The time of a snapshot, and of a snapshot with the first read, beside a writer that commits all the time.
    fn taking(&self) -> Result<Section> {
        self.run.progress.cell(format!("{}: snapshots, taking them", self.place.name));
        let pending = if self.run.quick { 100 } else { PENDING };
        // Opening takes LMDB's lock, which a stopped owner may hold.
        let lmdb = match &self.lmdb {
            Some(lmdb) => Some(LmdbStore::open_for_any_thread(lmdb, &self.dir.join("lmdb"), MAP_BYTES)?),
            None => None,
        };
        let owner_job = Job::CommitOn { store: self.store(), bytes: self.file_bytes, pending };
        let jobs = [
            Some(owner_job),
            self.lmdb.as_ref().map(|_| Job::CommitOnLmdb { dir: self.dir.join("lmdb"), values: self.pages() }),
        ];
        let mut owners = jobs.iter().flatten().map(Running::start).collect::<Result<Vec<_>>>()?;
        owners.iter_mut().try_for_each(|owner| owner.line().map(drop))?;
        owners.iter().try_for_each(|owner| owner.pause(true))?;
        // Only the owner of the store that is read works.
        let working = Cell::new(None);
        let let_work = |which: usize| -> Result<()> {
            if working.get() != Some(which) {
                working.get().map_or(Ok(()), |before: usize| owners[before].pause(true))?;
                owners[which].pause(false)?;
                working.set(Some(which));
                // Some commits pass.
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        };
        let reader = Reader::open(self.store())?;
        let mut rows = Vec::new();
        for reads in [false, true] {
            let [mut random, mut theirs] = [(); 2].map(|()| fastrand::Rng::with_seed(1));
            let (mut buf, mut their_buf) = ([0; PAGE], [0; PAGE]);
            let mut contenders = vec![Contender::new("snapshot", 10, || {
                let_work(0)?;
                let at = random.u64(..self.pages()) * PAGE as u64;
                timed(|| -> Result<()> {
                    let snapshot = reader.snapshot()?;
                    if reads {
                        ensure!(snapshot.open("data")?.read_at(&mut buf, at)? == PAGE, "a short read");
                    }
                    Ok(())
                })
            })];
            if let Some(lmdb) = &lmdb {
                contenders.push(Contender::new("LMDB", 10, || {
                    let_work(1)?;
                    let key = key(theirs.u64(..self.pages()));
                    timed(|| -> Result<()> {
                        let txn = lmdb.begin_read()?;
                        if reads {
                            txn.read(&key, &mut their_buf)?;
                        }
                        Ok(())
                    })
                }));
            }
            let operations = if self.run.quick { 20 } else { COMMITS_MIN };
            let plan = Plan::spread(operations, 10, self.run.quick, Duration::from_millis(1));
            let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
            drop(contenders);
            let medians = measured[0].round_medians_ns().into_iter();
            let row = Row {
                cell: if reads { "snapshot, first 4 KiB".to_owned() } else { "snapshot".to_owned() },
                load: "beside commits".to_owned(),
                ratio: Some(Ratio::of_rounds("1 ms", medians.map(|ns| ns.max(1.0) / 1e6).collect())),
                details: measured.iter().map(|measured| (measured.name.clone(), longest(measured))).collect(),
                contenders: measured.iter().map(Measured::summary).collect(),
                ..Row::default()
            };
            rows.push(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, self.run.quick));
        }
        drop(owners);
        Ok(self.section(
            "readers: snapshots beside an owner that commits all the time",
            "median of the snapshot ÷ 1 ms",
            rows,
            format!(
                "Another process commits pages of {} at random of a file of {}, one after the other, with checkpoints and \
                 a journal of 64 MiB; {pending} commits are not applied yet in the beginning, and thousands most of the \
                 time. Each snapshot is of the last commit, and is dropped at once. LMDB has as many values of that size: \
                 a read transaction, and the copy of a value.",
                bytes_text(PAGE as u64),
                bytes_text(self.file_bytes)
            ),
        ))
    }

    /// Commits while a snapshot is held, and without.
    fn holding(&self) -> Result<Section> {
        self.run.progress.cell(format!("{}: commits beside a held snapshot", self.place.name));
        let batch = if self.run.quick { 50 } else { HELD };
        let plan = Plan::spread(if self.run.quick { 100 } else { 10 * HELD }, batch, self.run.quick, Duration::ZERO);
        let mut rows = vec![self.holding_ours(batch, &plan)?];
        if let Some(lmdb) = &self.lmdb {
            rows.push(self.holding_theirs(lmdb, batch, &plan)?);
        }
        Ok(self.section(
            "readers: commits of the owner while a snapshot is held, class power",
            "median beside a held snapshot ÷ median without",
            rows,
            format!(
                "{batch} commits of a page at random while one snapshot of the commit before them is held, then as many \
                 without, and so on. Checkpoints go on meanwhile: the bytes that they overwrite are kept once for the snapshot. LMDB: \
                 the same with a read transaction, which keeps it from using freed pages again.",
            ),
        ))
    }

    fn holding_ours(&self, batch: usize, plan: &Plan) -> Result<Row> {
        let journal_bytes = journal_bytes(self.run, PAGE);
        let store = StoreOptions::new().create(true).journal_bytes(journal_bytes).open(self.store())?;
        let writer = RefCell::new(Writer::new(store.open_file("data")?, PAGE, self.file_bytes));
        writer.borrow_mut().commit()?;
        let reader = Reader::open(self.store())?;
        let held = RefCell::new(None);
        let (activity, kept_bytes) = (RefCell::new(Activity::default()), Cell::new(0));
        let commit = |holds: bool| -> Result<Duration> {
            let mut held = held.borrow_mut();
            if holds && held.is_none() {
                *held = Some(reader.snapshot()?);
            } else if !holds && let Some(snapshot) = held.take() {
                snapshot.check()?;
                kept_bytes.set(kept_bytes.get().max(store.status().kept_bytes));
            }
            let before = store.status();
            let time = writer.borrow_mut().commit()?;
            if holds {
                activity.borrow_mut().add(&Activity::between(&before, &store.status()));
            }
            Ok(time)
        };
        let mut contenders = [
            Contender::new("beside a held snapshot", batch, || commit(true)),
            Contender::new("without", batch, || commit(false)),
        ];
        let measured = interleave(&mut contenders, plan, &self.run.progress, || true)?;
        drop(contenders);
        drop(held);
        drop(writer);
        store.close()?;
        let mut extras = Extras::default();
        extras.add("kept MiB, at most", kept_bytes.get() as f64 / f64::from(1 << 20), 1);
        activity.borrow().describe(journal_bytes, &mut extras);
        let row = of_holding("Untorn", &measured, extras);
        Ok(row.against_target(Some(Target::AtMost(1.05)), Waited::Allowed, self.run.quick))
    }

    fn holding_theirs(&self, lmdb: &Rc<Lmdb>, batch: usize, plan: &Plan) -> Result<Row> {
        let store = LmdbStore::open_for_any_thread(lmdb, &self.dir.join("lmdb"), MAP_BYTES)?;
        let held = RefCell::new(None);
        let mut value = [7; PAGE];
        let put = RefCell::new(|| -> Result<Duration> {
            fastrand::fill(&mut value[..8]);
            let key = key(fastrand::u64(..self.pages()));
            timed(|| store.put_shared(&[Entry { key: &key, value: &value }]))
        });
        let commit = |holds: bool| -> Result<Duration> {
            let mut held = held.borrow_mut();
            if !holds {
                *held = None;
            } else if held.is_none() {
                *held = Some(store.begin_read()?);
            }
            put.borrow_mut()()
        };
        let mut contenders = [
            Contender::new("beside a read transaction", batch, || commit(true)),
            Contender::new("without", batch, || commit(false)),
        ];
        let measured = interleave(&mut contenders, plan, &self.run.progress, || true)?;
        Ok(of_holding("LMDB", &measured, Extras::default()))
    }
}

/// The longest operation of a contender, as a further figure.
fn longest(measured: &Measured) -> Extras {
    let mut extras = Extras::default();
    let longest_ns = measured.rounds_ns.iter().flatten().max().copied().unwrap_or(0);
    extras.add("longest ms", longest_ns as f64 / 1e6, 3);
    extras
}

fn of_holding(store: &str, measured: &[Measured], extras: Extras) -> Row {
    Row {
        cell: format!("commit {}, {store}", bytes_text(PAGE as u64)),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(Measured::summary).collect(),
        ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
        details: measured.iter().map(|measured| (measured.name.clone(), longest(measured))).collect(),
        extras,
        ..Row::default()
    }
}

fn say(word: impl std::fmt::Display) -> Result<()> {
    ensure!(write_output(format!("{word}\n").as_bytes())?, "nobody reads what this says");
    Ok(())
}

/// Makes commits that stay pending, and then commits pages until its input ends, and prints their number.
pub fn commit_on(store: &Path, file_bytes: u64, pending: usize) -> Result<()> {
    let store = StoreOptions::new().create(true).open(store)?;
    let mut writer = Writer::new(store.open_file("data")?, PAGE, file_bytes);
    let tickets = (0..pending).map(|_| {
        writer.write()?;
        writer.file.commit_async()
    });
    let tickets = tickets.collect::<untorn::Result<Vec<_>>>()?;
    tickets.into_iter().try_for_each(|ticket| ticket.wait())?;
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    say("ready")?;
    let mut commits = 0u64;
    while !ended.is_finished() {
        writer.commit()?;
        commits += 1;
    }
    say(commits)
}

/// Replaces values of LMDB, each in a transaction, until its input ends, and prints their number.
pub fn commit_on_lmdb(dir: &Path, values: u64) -> Result<()> {
    let mut store = LmdbStore::open(&Rc::new(Lmdb::load()?), dir, MAP_BYTES)?;
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    say("ready")?;
    let (mut value, mut commits) = ([7; PAGE], 0u64);
    while !ended.is_finished() {
        fastrand::fill(&mut value[..8]);
        store.put(&[Entry { key: &key(fastrand::u64(..values)), value: &value }])?;
        commits += 1;
    }
    say(commits)
}
