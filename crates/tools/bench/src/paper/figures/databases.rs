//! Figures 12 and 13 of paper 001: databases on Untorn and natively, their times and the bytes that they write.

use crate::kv::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::harness::{Contender, Plan, interleave};
use crate::mounts::mariadb::{self, Server};
use crate::mounts::mounted::Mounted;
use crate::mounts::mounted_programs::{UPDATES, Work, updates, updates_by};
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::sqlite::connection::Sqlite;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Threads of sysbench.
const THREADS: u32 = 16;
/// Turns of a contender in a run that measures time, and in one that measures bytes.
const TURNS: usize = 25;
const TURNS_OF_BYTES: usize = 10;

const OURS: &str = "Untorn";
const MOUNTED: &str = "Untorn, on a mount";
const ROLLBACK: &str = "rollback journal";
const WAL: &str = "WAL";
const TWICE: &str = "pages twice";
const ONCE: &str = "pages once";
const TRANSACTIONS: &str = "transactions";
const AUTO_SYNC: &str = "auto-sync";

const SETTINGS: [[&str; 2]; 8] = [
    [OURS, "SQLite: the extension; MariaDB innodb_doublewrite=0 and Kyoto Cabinet auto-sync: on a mount"],
    [MOUNTED, "SQLite, journal_mode=OFF"],
    [ROLLBACK, "SQLite, synchronous=FULL, natively"],
    [WAL, "SQLite, synchronous=FULL, natively"],
    [TWICE, "MariaDB, innodb_doublewrite=1, natively"],
    [ONCE, "MariaDB, innodb_doublewrite=0, natively: a power cut tears pages"],
    [TRANSACTIONS, "Kyoto Cabinet, hard transactions, natively"],
    [AUTO_SYNC, "Kyoto Cabinet, natively: a power cut damages it"],
];

/// Opens a database in a new directory.
type Open = Box<dyn Fn(&Path) -> Result<Work>>;

/// A program with its contenders: their names, whether they are on a mount, and their databases.
struct Program {
    name: &'static str,
    contenders: Vec<(&'static str, bool, Open)>,
}

/// The programs that are installed, and notes on the others.
fn programs() -> (Vec<Program>, Vec<String>) {
    let (mut programs, mut notes) = (Vec::new(), Vec::new());
    match Sqlite::load().and_then(|sqlite| sqlite.extend().map(|()| sqlite)) {
        Err(e) => notes.push(format!("SQLite was left out: {e:#}.")),
        Ok(sqlite) => {
            let open = |extension: bool, mode: &'static str| -> Open {
                Box::new(move |dir| {
                    let vfs = if extension { format!("?vfs=untorn&store={}", dir.display()) } else { String::new() };
                    let database = sqlite.open(&format!("file:{}/db{vfs}", dir.display()))?;
                    database.execute(&format!("PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;"))?;
                    database.execute("CREATE TABLE kv (k INTEGER PRIMARY KEY, v BLOB)")?;
                    let put = "INSERT INTO kv VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = ?2";
                    let put = database.prepare(put)?;
                    updates_by(move |n, value| {
                        let _open = &database;
                        put.run(n as i64, Some(value)).map(drop)
                    })
                })
            };
            let contenders = vec![
                (OURS, false, open(true, "DELETE")),
                (MOUNTED, true, open(false, "OFF")),
                (ROLLBACK, false, open(false, "DELETE")),
                (WAL, false, open(false, "WAL")),
            ];
            programs.push(Program { name: "SQLite", contenders });
        }
    }
    if mariadb::is_here() {
        for (name, is_ycsb) in [("MariaDB", false), ("MariaDB, YCSB-A", true)] {
            let open = |twice: bool| -> Open {
                Box::new(move |dir| {
                    let server = Server::start(&dir.join("data"), twice)?;
                    let load = if is_ycsb { server.prepare_ycsb()? } else { "oltp_write_only".to_owned() };
                    Ok(Box::new(move || server.work(&load, THREADS)))
                })
            };
            let contenders = vec![(OURS, true, open(false)), (TWICE, false, open(true)), (ONCE, false, open(false))];
            programs.push(Program { name, contenders });
        }
    } else {
        notes.push("MariaDB was left out: install the packages mariadb-server and sysbench.".to_owned());
    }
    match Kyoto::load().map(Rc::new) {
        Err(e) => notes.push(format!("Kyoto Cabinet was left out: {e:#}.")),
        Ok(kyoto) => {
            let open = |durable: Durable| -> Open {
                let kyoto = kyoto.clone();
                Box::new(move |dir| updates(KyotoStore::open(&kyoto, dir, Kind::Hash, durable)?))
            };
            let contenders = vec![
                (OURS, true, open(Durable::AutoSync)),
                (TRANSACTIONS, false, open(Durable::Transactions)),
                (AUTO_SYNC, false, open(Durable::AutoSync)),
            ];
            programs.push(Program { name: "Kyoto Cabinet", contenders });
        }
    }
    notes.push(format!(
        "SQLite and Kyoto Cabinet: {UPDATES} durable updates of rows of up to 16 KiB; MariaDB: {} transactions of sysbench, \
         its oltp_write_only or YCSB's workload A, by {THREADS} threads.",
        mariadb::EVENTS
    ));
    (programs, notes)
}

/// A new directory, of which a part may be a mounted store.
struct Directory {
    at: PathBuf,
    _mounted: Option<Mounted>,
}

impl Directory {
    fn new(dir: &Path, is_mounted: bool) -> Result<Directory> {
        fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mounted = if is_mounted { Some(Mounted::new(dir)?) } else { None };
        let at = mounted.as_ref().map_or(dir, |mounted| &mounted.at).join("database");
        fs::create_dir(&at)?;
        Ok(Directory { at, _mounted: mounted })
    }
}

/// The times of updates; contenders take turns.
pub fn times(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Ext4)?;
    let dir = place.directory("databases")?;
    let (programs, notes) = programs();
    let mut cells = Vec::new();
    for (n, program) in programs.iter().enumerate() {
        run.progress.cell(format!("{}: {}", place.name, program.name));
        let (mut directories, mut contenders) = (Vec::new(), Vec::new());
        for (m, (name, is_mounted, open)) in program.contenders.iter().enumerate() {
            let directory = Directory::new(&dir.join(format!("{n}-{m}")), *is_mounted)?;
            contenders.push(Contender::new(*name, 1, open(&directory.at)?));
            directories.push(directory);
        }
        let plan = Plan { rounds: setting.runs, batches: if run.quick { 1 } else { TURNS }, think: Duration::ZERO };
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        // The mean: checkpoints of databases fall into few turns.
        cells.push(Cell::of(program.name, &measured, Statistic::Mean));
    }
    Ok(vec![panel("databases", "time of durable updates", &place, Unit::Milliseconds, cells, notes)])
}

/// The bytes that updates write to the device, until the database is closed; one contender after the other.
pub fn bytes(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Ext4)?;
    let (programs, mut notes) = programs();
    let turns = if run.quick { 1 } else { TURNS_OF_BYTES };
    let mut cells = Vec::new();
    for program in &programs {
        run.progress.cell(format!("{}: {}, bytes", place.name, program.name));
        let names = program.contenders.iter().map(|(name, ..)| Runs { name: (*name).to_owned(), runs: Vec::new() });
        let mut cell = Cell { name: program.name.to_owned(), contenders: names.collect() };
        for _ in 0..setting.runs {
            for ((_, is_mounted, open), runs) in program.contenders.iter().zip(&mut cell.contenders) {
                let dir = place.directory("bytes").map(|dir| dir.join("of"))?;
                let directory = Directory::new(&dir, *is_mounted)?;
                let mut work = open(&directory.at)?;
                let written = || place.device_bytes_written()?.context("the device counts no bytes");
                let before = written()?;
                for _ in 0..turns {
                    work()?;
                }
                drop(work);
                drop(directory);
                runs.runs.push((written()? - before) as f64 / turns as f64);
                place.clear()?;
            }
        }
        cells.push(cell);
    }
    notes.push("Device bytes of a turn, until all is closed and flushed: the whole file system's.".to_owned());
    Ok(vec![panel("bytes", "bytes written to the device", &place, Unit::Bytes, cells, notes)])
}

fn panel(name: &str, title: &str, place: &Place, unit: Unit, cells: Vec<Cell>, notes: Vec<String>) -> Panel {
    let is_there = |name: &str| cells.iter().any(|cell| cell.contenders.iter().any(|runs| runs.name == name));
    let settings =
        SETTINGS.iter().filter(|[name, _]| is_there(name)).map(|setting| setting.map(str::to_owned)).collect();
    Panel {
        name: name.to_owned(),
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit,
        chart: Chart::Groups,
        settings,
        cells,
        notes,
    }
}
