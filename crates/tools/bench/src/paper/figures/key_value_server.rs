//! Figure 4 and Table 3 of paper 000: a key-value server over Kyoto Cabinet, in the shape of Kyoto Tycoon.

use crate::kv::http_server::{Client, Program, Update};
use crate::kv::kyoto::{Kyoto, Mode};
use crate::measuring::child::{Job, Running, job_command};
use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::{need, program_beside, unavailable};
use crate::paper::measured::{Cell, Panel, Runs};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PLACE_BYTES: u64 = 1 << 30;
const VALUE_BYTES: usize = 1 << 10;
/// The pause of the one client whose response times count.
const THINK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 4;
/// The name of the database, for `untorn preload`.
const DATABASE: &str = "casket.kch";

const UPDATES: [(Update, &str); 3] =
    [(Update::Insert, "insert"), (Update::Replace, "replace"), (Update::Delete, "delete")];

/// A way to run the server.
struct Way {
    name: &'static str,
    mode: Mode,
    is_preloaded: bool,
    how: &'static str,
}

const WAYS: [Way; 4] = [
    Way {
        name: "Untorn",
        mode: Mode::Synchronized,
        is_preloaded: true,
        how: "-oas under untorn preload; the server takes a lock for each update and its commit",
    },
    Way {
        name: "transactions",
        mode: Mode::Transactions,
        is_preloaded: false,
        how: "-oas -oat: each update is a transaction of Kyoto Cabinet, which flushes its log and the file",
    },
    Way {
        name: "synchronized",
        mode: Mode::Synchronized,
        is_preloaded: false,
        how: "-oas: msync and fsync after each update; a power cut damages it",
    },
    Way {
        name: "not synchronized",
        mode: Mode::Unsynchronized,
        is_preloaded: false,
        how: "neither: almost no writes; a power cut loses updates",
    },
];

/// The records of the database before, those of the one client, and those of each of the four.
#[derive(Clone, Copy)]
struct Amount {
    filled: u64,
    alone: usize,
    each: usize,
}

const QUICK: Amount = Amount { filled: 10, alone: 1, each: 1 };

pub fn measure(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    Kyoto::load().map_err(|e| unavailable(format!("{e:#}")))?;
    let tried = preload(tempfile::tempdir()?.path())?.arg("true").output().context("untorn preload")?;
    need(tried.status.success(), String::from_utf8_lossy(&tried.stderr).trim())?;
    let disks = [
        (Disk::Ssd1, Amount { filled: 10_000, alone: 15, each: 10 }),
        (Disk::Ssd2, Amount { filled: 10_000, alone: 60, each: 150 }),
    ];
    let mut panels = Vec::new();
    for (disk, amount) in disks {
        panels.extend(on_disk(setting, disk, if setting.run.quick { QUICK } else { amount })?);
    }
    Ok(panels)
}

/// The response times and the throughput on a disk.
fn on_disk(setting: &Setting<'_>, disk: Disk, amount: Amount) -> Result<[Panel; 2]> {
    let run = setting.run;
    run.progress.cell(format!("{}: making the disk", disk.name()));
    let place = Place::on_disk(FileSystem::Ext4, &run.dir, PLACE_BYTES, disk.times())?;
    // It is made elsewhere, as that would take its time here, and copied.
    let scratch = Scratch::new_in(&run.dir)?;
    let filled = scratch.path().join(DATABASE);
    let fill = Some((amount.filled, VALUE_BYTES));
    let filling = Program { database: filled.clone(), mode: Mode::Unsynchronized, one_at_a_time: false, fill };
    Running::start(&Job::KeyValueServer(serde_json::to_value(filling)?))?.stop()?;
    let none = || WAYS.map(|way| Runs { name: way.name.to_owned(), runs: Vec::new() });
    let mut response_us = UPDATES.map(|_| none());
    let mut per_s = UPDATES.map(|_| none());
    for round in 0..setting.runs {
        run.progress.cell(format!("{}: a server, run {} of {}", disk.name(), round + 1, setting.runs));
        for turn in 0..WAYS.len() {
            let who = (turn + round) % WAYS.len();
            let numbers = once(&place, &WAYS[who], &filled, amount).context(WAYS[who].name)?;
            for (update, [response, rate]) in numbers.into_iter().enumerate() {
                response_us[update][who].runs.push(response);
                per_s[update][who].runs.push(rate);
            }
        }
    }
    let panel = |kind: &str, title: &str, unit, numbers: [[Runs; 4]; 3]| {
        let cell = |((_, name), runs): (&(Update, &str), [Runs; 4])| Cell {
            name: (*name).to_owned(),
            contenders: runs.into(),
        };
        Panel {
            name: format!("{}, {kind}", disk.name()),
            title: format!("a key-value server on {}: {title}", disk.name()),
            place: place.name.clone(),
            place_details: place.details.clone(),
            unit,
            chart: Chart::Groups,
            settings: WAYS.iter().map(|way| [way.name, way.how].map(str::to_owned)).collect(),
            cells: UPDATES.iter().zip(numbers).map(cell).collect(),
            notes: vec![format!(
                "A file hash of {} records of 1 KiB; each update is a request of HTTP: {} by a client that pauses for 10 ms \
                 before each, then {} by each of four clients without a pause. The mean of a run.",
                amount.filled, amount.alone, amount.each
            )],
        }
    };
    Ok([
        panel("response", "response time of one client", Unit::Milliseconds, response_us),
        panel("throughput", "updates in a second of four clients", Unit::PerSecond, per_s),
    ])
}

/// The mean response time in microseconds and the updates in a second, for each kind of update, of a new server.
fn once(place: &Place, way: &Way, filled: &Path, amount: Amount) -> Result<[[f64; 2]; 3]> {
    let dir = place.directory("server")?;
    let database = dir.join(DATABASE);
    std::fs::copy(filled, &database)?;
    rustix::fs::syncfs(std::fs::File::open(&dir)?)?;
    let program = Program { database, mode: way.mode, one_at_a_time: way.is_preloaded, fill: None };
    let job = Job::KeyValueServer(serde_json::to_value(program)?);
    let mut server = if way.is_preloaded { preloaded(&dir, &job)? } else { Running::start(&job)? };
    let port = server.line()?.parse().context("bad output of the server")?;
    ensure!(dir.join(".untorn").exists() == way.is_preloaded, "untorn preload does not manage the database");
    let mut numbers = [[0.0; 2]; 3];
    let mut client = Client::connect(port)?;
    for ((update, _), [response_us, _]) in UPDATES.into_iter().zip(&mut numbers) {
        *response_us = 1e6 * respond(&mut client, update, amount.alone)?.as_secs_f64();
    }
    for ((update, _), [_, per_s]) in UPDATES.into_iter().zip(&mut numbers) {
        *per_s = rate(port, update, amount.each)?;
    }
    drop(client);
    ensure!(server.stop()? == 0, "the server failed");
    std::fs::remove_dir_all(&dir)?;
    // Nobody pays for the removal of another one's database.
    place.device_bytes_written()?;
    Ok(numbers)
}

/// Starts the server under `untorn preload`.
fn preloaded(dir: &Path, job: &Job) -> Result<Running> {
    let own = job_command(job)?;
    let mut command = preload(dir)?;
    command.arg(own.get_program()).envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start_command(command)
}

/// `untorn preload` for databases in a directory, which is their store.
fn preload(dir: &Path) -> Result<Command> {
    let mut command = Command::new(program_beside("untorn")?);
    command.args(["preload", "--manage", DATABASE, "--store"]).arg(dir).arg("--");
    Ok(command)
}

/// The mean response time.
fn respond(client: &mut Client, update: Update, count: usize) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for (n, value) in values(count) {
        std::thread::sleep(THINK);
        let start = Instant::now();
        client.update(update, &format!("alone{n:08}"), &value)?;
        sum += start.elapsed();
    }
    Ok(sum / count as u32)
}

/// The updates in a second by all clients, which begin together.
fn rate(port: u16, update: Update, each: usize) -> Result<f64> {
    let clients = (0..CLIENTS).map(|_| Client::connect(port)).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = |(number, mut client): (usize, Client)| {
            values(each).try_for_each(|(n, value)| client.update(update, &format!("client{number}-{n:08}"), &value))
        };
        let threads: Vec<_> =
            clients.into_iter().enumerate().map(|numbered| scope.spawn(move || work(numbered))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"))
    })?;
    Ok((CLIENTS * each) as f64 / start.elapsed().as_secs_f64())
}

/// Numbers of records, with random values.
fn values(count: usize) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..count).map(|n| {
        let mut value = vec![0; VALUE_BYTES];
        fastrand::fill(&mut value);
        (n, value)
    })
}
