//! Programs on a mounted store, against the same programs on the file system below.
//!
//! They are PostMark, databases that need no journal of their own on the mount, and programs while a daemon is killed.

use crate::kv::kv_store::{Entry, Store, key};
use crate::kv::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use crate::kv::sqlite::{JournalMode, Sqlite, SqliteStore};
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{COMMITS_MIN, Contender, Plan, ROUNDS_MIN, interleave};
use crate::mounts::mounted::Mounted;
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use crate::xsync::postmark;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use untorn_os::mount_calls;

/// The rows of a database, and the length limit of a row.
const KEYS: u64 = 1000;
const VALUE_MAX: usize = 16 << 10;
/// Updates of a database that are timed together. Each is a transaction of its own.
pub const UPDATES: usize = 20;
/// The files and transactions of PostMark.
pub(super) const MAILS: u64 = 500;
pub(super) const TRANSACTIONS: u64 = 2000;
/// The limit for a call during the kill of a daemon.
const STALL: Duration = Duration::from_millis(100);

/// Work at a place. It returns its time.
pub type Work = Box<dyn FnMut() -> Result<Duration>>;

/// The `mount` section for programs at one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let dir = place.directory("mount-programs")?;
    let native = dir.join("native");
    fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    let mut rows = Vec::new();
    let mut compare = |name: &str, operations: usize, target: Target, mut of_mount: Work, mut natively: Work| {
        run.progress.cell(format!("{}: mount, {name}", place.name));
        let plan = Plan::spread(if run.quick { 2 } else { operations }, 1, run.quick, Duration::ZERO);
        let mut contenders =
            [Contender::new("on the mount", 1, &mut of_mount), Contender::new("natively", 1, &mut natively)];
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        let row = Row {
            cell: name.to_owned(),
            load: "saturated".to_owned(),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
            ..Row::default()
        };
        rows.push(row.against_target(Some(target), Waited::Allowed, run.quick));
        anyhow::Ok(())
    };
    let mail = |at: &Path| -> Work {
        let at = at.join("mail");
        Box::new(move || timed(|| postmark::run(&at, MAILS, TRANSACTIONS)))
    };
    compare("PostMark, asynchronous", ROUNDS_MIN, Target::AtLeast(0.5), mail(&mounted.at), mail(&native))?;
    let mut notes = vec![
        "PostMark: 500 files of 500 to 9,800 bytes, 2,000 transactions. Databases: 1,000 rows of up to 16 KiB, random updates, \
         each a transaction that is durable; the time is that of 20. The stall is that of the longest call of a thread that \
         writes and syncs, while the daemon is killed; it is divided by 100 ms."
            .to_owned(),
    ];
    match Sqlite::load().map(Rc::new) {
        Err(e) => notes.push(format!("SQLite was left out: {e:#}")),
        Ok(sqlite) => {
            for (name, mode, target) in [
                ("SQLite OFF on the mount, WAL natively", JournalMode::Wal, 1.5),
                ("SQLite OFF on the mount, rollback journal natively", JournalMode::Delete, 2.0),
            ] {
                let open = |at: &Path, mode: JournalMode, of: &str| {
                    let dir = at.join(format!("sqlite-{of}"));
                    fs::create_dir(&dir)?;
                    updates(SqliteStore::open(&sqlite, &dir, mode, true)?)
                };
                let of = format!("{mode:?}");
                let (off, own) = (open(&mounted.at, JournalMode::Off, &of)?, open(&native, mode, &of)?);
                compare(name, COMMITS_MIN / 4, Target::AtLeast(target), off, own)?;
            }
        }
    }
    match Kyoto::load().map(Rc::new) {
        Err(e) => notes.push(format!("Kyoto Cabinet was left out: {e:#}")),
        Ok(kyoto) => {
            let open = |at: &Path, durable: Durable| {
                let dir = at.join("kyoto");
                fs::create_dir(&dir)?;
                updates(KyotoStore::open(&kyoto, &dir, Kind::Hash, durable)?)
            };
            let (auto, own) = (open(&mounted.at, Durable::AutoSync)?, open(&native, Durable::Transactions)?);
            let name = "Kyoto Cabinet, auto-sync on the mount, its transactions natively";
            compare(name, COMMITS_MIN / 4, Target::AtLeast(2.0), auto, own)?;
        }
    }
    run.progress.cell(format!("{}: mount, a killed daemon", place.name));
    let mut stalls = Measured::new("longest call");
    stalls.begin_round();
    for _ in 0..if run.quick { 2 } else { 10 } {
        stalls.push(stall(&mounted.at)?);
    }
    let median = stalls.round_medians_ns().into_iter().map(|ns| ns / STALL.as_nanos() as f64).collect();
    let row = Row {
        cell: "the daemon is killed".to_owned(),
        load: "saturated".to_owned(),
        contenders: vec![stalls.summary()],
        ratio: Some(Ratio::of_rounds("100 ms", median)),
        ..Row::default()
    };
    rows.push(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, run.quick));
    drop(mounted);
    fs::remove_dir_all(&dir)?;
    Ok(Section {
        title: "mount: programs on a mounted store, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        ratio_means: "median natively ÷ median on the mount: times faster; of a killed daemon: stall ÷ 100 ms",
        rows,
        notes,
    })
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Fills a database, and returns work that updates random rows.
pub fn updates(mut store: impl Store + 'static) -> Result<Work> {
    updates_by(move |n, value| store.put(&[Entry { key: &key(n), value }]))
}

/// Fills a database by a function that gives a key a value, durably, and returns work that updates random rows.
pub fn updates_by(mut put: impl FnMut(u64, &[u8]) -> Result<()> + 'static) -> Result<Work> {
    let value = vec![b'v'; VALUE_MAX];
    let mut random = fastrand::Rng::with_seed(7);
    for n in 0..KEYS {
        put(n, &value[..random.usize(..VALUE_MAX)])?;
    }
    Ok(Box::new(move || {
        timed(|| (0..UPDATES).try_for_each(|_| put(random.u64(..KEYS), &value[..random.usize(..VALUE_MAX)])))
    }))
}

/// Measures the longest call of a thread that writes and syncs while the daemon is killed and replaced.
fn stall(at: &Path) -> Result<Duration> {
    let stop = AtomicBool::new(false);
    let file = File::create(at.join("stalled"))?;
    // The supervisor gives up when daemons live for less than a second each, so this one lives longer.
    std::thread::sleep(Duration::from_millis(1100));
    std::thread::scope(|scope| {
        let longest = scope.spawn(|| -> Result<Duration> {
            let mut longest = Duration::ZERO;
            while !stop.load(SeqCst) {
                longest = longest.max(timed(|| Ok(file.write_all_at(&[7; 4096], 0)?))?);
                longest = longest.max(timed(|| Ok(file.sync_all()?))?);
            }
            Ok(longest)
        });
        let killed = (|| -> Result<()> {
            std::thread::sleep(Duration::from_millis(100));
            let status: serde_json::Value = serde_json::from_slice(&mount_calls::status(File::open(at)?)?)?;
            let daemon = status["daemon"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
            rustix::process::kill_process(daemon.context("no daemon")?, rustix::process::Signal::KILL)?;
            std::thread::sleep(Duration::from_millis(900));
            Ok(())
        })();
        stop.store(true, SeqCst);
        let longest = longest.join().expect("a thread panicked");
        killed?;
        longest
    })
}
