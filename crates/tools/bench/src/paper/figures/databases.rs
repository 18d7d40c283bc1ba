//! Figure 12 of paper 001: databases that nobody changed, on a mounted store and natively.

use crate::kv::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use crate::kv::sqlite::{JournalMode, Sqlite, SqliteStore};
use crate::measuring::fs::FileSystem;
use crate::measuring::harness::{Contender, Plan, interleave};
use crate::mounts::mariadb::{self, Server};
use crate::mounts::mounted::Mounted;
use crate::mounts::mounted_programs::{UPDATES, Work, updates};
use crate::paper::measured::{Cell, Panel, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Threads of sysbench.
const THREADS: u32 = 16;
/// Turns of a contender in a run.
const TURNS: usize = 3;

const SETTINGS: [[&str; 2]; 7] = [
    ["Untorn", "on a mount: SQLite journal_mode=OFF, MariaDB innodb_doublewrite=0, Kyoto Cabinet auto-sync"],
    ["rollback journal", "SQLite, synchronous=FULL, natively"],
    ["WAL", "SQLite, synchronous=FULL, natively"],
    ["pages twice", "MariaDB, innodb_doublewrite=1, natively"],
    ["pages once", "MariaDB, innodb_doublewrite=0, natively: a power cut tears pages"],
    ["transactions", "Kyoto Cabinet, hard transactions, natively"],
    ["auto-sync", "Kyoto Cabinet, natively: a power cut damages it"],
];

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let run = setting.run;
    let place = setting.image(FileSystem::Ext4)?;
    let dir = place.directory("databases")?;
    let native = dir.join("native");
    fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    let (mut cells, mut notes) = (Vec::new(), Vec::new());
    let mut cell = |name: &str, works: Vec<(&str, Work)>| {
        run.progress.cell(format!("{}: {name}", place.name));
        let contender = |(name, work)| Contender::new(name, 1, work);
        let mut contenders: Vec<Contender<'_>> = works.into_iter().map(contender).collect();
        let plan = Plan { rounds: setting.runs, batches: TURNS, think: Duration::ZERO };
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        cells.push(Cell::of(name, &measured, Statistic::Median));
        anyhow::Ok(())
    };
    match Sqlite::load().map(Rc::new) {
        Err(e) => notes.push(format!("SQLite was left out: {e:#}.")),
        Ok(sqlite) => {
            let open = |at: &Path, mode: JournalMode| {
                let dir = at.join(format!("sqlite-{mode:?}"));
                fs::create_dir(&dir)?;
                updates(SqliteStore::open(&sqlite, &dir, mode, true)?)
            };
            let works = vec![
                ("Untorn", open(&mounted.at, JournalMode::Off)?),
                ("rollback journal", open(&native, JournalMode::Delete)?),
                ("WAL", open(&native, JournalMode::Wal)?),
            ];
            cell("SQLite", works)?;
        }
    }
    if mariadb::is_here() {
        let work = |at: &Path, twice: bool| -> Result<Work> {
            let server = Server::start(&at.join(format!("mariadb-{twice}")), twice)?;
            Ok(Box::new(move || server.work("oltp_write_only", THREADS)))
        };
        let works = vec![
            ("Untorn", work(&mounted.at, false)?),
            ("pages twice", work(&native, true)?),
            ("pages once", work(&native, false)?),
        ];
        cell("MariaDB", works)?;
    } else {
        notes.push("MariaDB was left out: install the packages mariadb-server and sysbench.".to_owned());
    }
    match Kyoto::load().map(Rc::new) {
        Err(e) => notes.push(format!("Kyoto Cabinet was left out: {e:#}.")),
        Ok(kyoto) => {
            let open = |at: &Path, durable: Durable, name: &str| {
                let dir = at.join(format!("kyoto-{name}"));
                fs::create_dir(&dir)?;
                updates(KyotoStore::open(&kyoto, &dir, Kind::Hash, durable)?)
            };
            let works = vec![
                ("Untorn", open(&mounted.at, Durable::AutoSync, "mounted")?),
                ("transactions", open(&native, Durable::Transactions, "transactions")?),
                ("auto-sync", open(&native, Durable::AutoSync, "auto-sync")?),
            ];
            cell("Kyoto Cabinet", works)?;
        }
    }
    drop(mounted);
    notes.push(format!(
        "SQLite and Kyoto Cabinet: {UPDATES} durable updates of rows of up to 16 KiB; MariaDB: {} transactions of sysbench's \
         oltp_write_only by {THREADS} threads.",
        mariadb::EVENTS
    ));
    let is_there = |name: &str| cells.iter().any(|cell| cell.contenders.iter().any(|runs| runs.name == name));
    let settings =
        SETTINGS.iter().filter(|[name, _]| is_there(name)).map(|setting| setting.map(str::to_owned)).collect();
    Ok(vec![Panel {
        name: "databases".to_owned(),
        title: "time of durable updates".to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Milliseconds,
        chart: Chart::Groups,
        settings,
        cells,
        notes,
    }])
}
