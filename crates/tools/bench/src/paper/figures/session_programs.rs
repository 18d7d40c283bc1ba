//! Figures 4 to 9 of paper 002: programs and servers in sessions.

use crate::measuring::disk_model::Disk;
use crate::measuring::fs::{FileSystem, Place, mounted_sync};
use crate::measuring::unavailable::need_root;
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::xsync::clients::{Load, MESSAGE_BYTES, WRITES};
use crate::xsync::postgres::{Cluster, Transactions, Way};
use crate::xsync::programs::{Builder, Compiler};
use crate::xsync::runs::{NAMES, ON_DEVICE, ON_JOURNALING};
use crate::xsync::servers::Answers;
use crate::xsync::session::Setting as Sessions;
use crate::xsync::web::Requests;
use crate::xsync::{apache_build, mail, postgres, postmark, programs, servers, web};
use anyhow::{Context, Result};
use std::path::Path;

/// Files and transactions of PostMark, as in the paper; and fewer, for the synchronous contenders, which take their time.
const MAILS_ALL: u64 = 10_000;
const MAILS: u64 = 50;
const CLIENTS: [usize; 3] = [1, 20, 32];
/// Connections of the paper's web server.
const CONNECTIONS: usize = 50;
const PLACE_BYTES: u64 = 4 << 30;
const DATABASE_BYTES: u64 = 1 << 30;

const OURS: &str = "Untorn";
const NO_BARRIERS: &str = "mounted sync, no barriers";
const IN_MEMORY: &str = "in memory";
const DURABLE_NO_BARRIERS: &str = "durable, no barriers";
const EAGER: &str = "eager commits";

/// Sessions on an ext4 on the paper's disk; in a quick run in an image.
fn sessions(setting: &Setting<'_>) -> Result<(Place, Sessions)> {
    need_root("a disk of given times")?;
    let run = setting.run;
    run.progress.cell("making the disks");
    let place = match run.quick {
        true => setting.image(FileSystem::Ext4)?,
        false => Place::on_disk(FileSystem::Ext4, &run.dir, PLACE_BYTES, Disk::Wd2006.times())?,
    };
    let sessions = Sessions::new(setting.run, &place)?;
    Ok((place, sessions))
}

fn panel(place: &Place, name: &str, title: &str, unit: Unit, mut cells: Vec<Cell>) -> Panel {
    let all = cells.iter_mut().flat_map(|cell| &mut cell.contenders);
    all.filter(|runs| runs.name == NAMES[0]).for_each(|runs| runs.name = OURS.to_owned());
    let said = [
        (OURS, "untorn xsync, volume in a file; its start and its end count"),
        (NAMES[1], "data=ordered, one syncfs in the end"),
        (ON_JOURNALING, "on an ext4 of its own"),
        (ON_DEVICE, "volume on a loop device"),
        (mail::SYNC, "ext4, -o sync"),
        (NO_BARRIERS, "ext4, -o sync,barrier=0"),
        (IN_MEMORY, "tmpfs"),
        (EAGER, "untorn xsync with a thread that commits all the time"),
        (DURABLE_NO_BARRIERS, "fsync=on, ext4, -o barrier=0"),
        (postgres::DURABLE, "fsync=on, or fdatasync before each answer"),
        (postgres::ASYNCHRONOUS, "fsync=off"),
        (servers::NAMES[2], "answers leave at once"),
        (servers::ASYNCHRONOUS, "no flush"),
    ];
    let is_there = |name: &str| cells.iter().any(|cell| cell.contenders.iter().any(|runs| runs.name == name));
    let settings = said.iter().filter(|(name, _)| is_there(name)).map(|(name, how)| [(*name).into(), (*how).into()]);
    Panel {
        name: name.to_owned(),
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit,
        chart: Chart::Groups,
        settings: settings.collect(),
        cells,
        notes: Vec::new(),
    }
}

pub fn postmark(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let program = if postmark::is_installed() { mail::Program::PostMark } else { mail::Program::Own };
    let barriers = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync")?;
    let none = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync,barrier=0")?;
    let synchronous = [(mail::SYNC, barriers.path()), (NO_BARRIERS, none.path())];
    let few = if setting.run.quick { 50 } else { MAILS };
    let cells: &[(u64, &[_])] =
        if setting.run.quick { &[(few, &synchronous)] } else { &[(MAILS_ALL, &[]), (few, &synchronous)] };
    let cell = |(mails, synchronous): &(u64, &[(&str, &Path)])| {
        setting.run.progress.cell(format!("{}: PostMark in sessions, {mails} files", place.name));
        let times = mail::measure(&sessions, (program, *mails), setting.runs, synchronous)?;
        Ok(Cell::of(format!("{mails} files"), &times, Statistic::Median))
    };
    let cells = cells.iter().map(cell).collect::<Result<_>>()?;
    let title = match program {
        mail::Program::PostMark => "PostMark, as many transactions as files",
        mail::Program::Own => "this project's PostMark, as many transactions as files",
    };
    Ok(vec![panel(&place, "postmark", title, Unit::Milliseconds, cells)])
}

pub fn build(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let barriers = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync")?;
    let none = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync,barrier=0")?;
    let memory = tempfile::tempdir_in("/dev/shm").context("a directory in memory")?;
    let mut builders = Builder::usual(&sessions);
    let others = [(IN_MEMORY, memory.path()), (mail::SYNC, barriers.path()), (NO_BARRIERS, none.path())];
    builders.extend(others.map(|(name, dir)| Builder { name, host: None, dir }));
    let works = [
        ("build", "", Compiler::Compiles),
        ("reads and writes", ", the compiler copies earlier outputs", Compiler::Copies),
    ];
    let panel = |(name, how, compiler)| {
        let built = programs::measure_build(setting.run, setting.runs, &builders, compiler)?;
        let (title, times) = built.context("there is no compiler")?;
        let cell = Cell::of(name, &times, Statistic::Median);
        Ok(panel(&place, name, &format!("{title}{how}"), Unit::Milliseconds, vec![cell]))
    };
    works.into_iter().map(panel).collect()
}

/// The build of Apache in stages, without the synchronous contenders, which would take hours.
pub fn apache(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let sources = apache_build::Sources::find(setting.run.quick)?;
    let (place, sessions) = sessions(setting)?;
    let memory = tempfile::tempdir_in("/dev/shm").context("a directory in memory")?;
    let mut ways = vec![
        (OURS, apache_build::Way::Session(&sessions.host)),
        (NAMES[1], apache_build::Way::Outside(&sessions.dir)),
        (IN_MEMORY, apache_build::Way::Outside(memory.path())),
    ];
    ways.extend(sessions.journaling.as_deref().map(|dir| (ON_JOURNALING, apache_build::Way::Outside(dir))));
    let mut cells: Vec<Cell> = Vec::new();
    for round in 1..=setting.runs {
        for (name, way) in &ways {
            setting
                .run
                .progress
                .cell(format!("{}: a build of Apache, {name}, {round} of {}", place.name, setting.runs));
            rustix::fs::sync();
            let times = sources.build(way)?;
            for (stage, time) in std::iter::once(("whole", times.whole)).chain(times.stages) {
                let at = cells.iter().position(|cell| cell.name == stage).unwrap_or_else(|| {
                    let contenders = ways.iter().map(|(name, _)| Runs { name: (*name).to_owned(), runs: Vec::new() });
                    cells.push(Cell { name: stage.to_owned(), contenders: contenders.collect() });
                    cells.len() - 1
                });
                let runs =
                    cells[at].contenders.iter_mut().find(|runs| runs.name == *name).expect("a contender of each cell");
                runs.runs.push(time.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(vec![panel(&place, "apache", "a build of Apache", Unit::Milliseconds, cells)])
}

pub fn database(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let none = mounted_sync(&sessions.dir, DATABASE_BYTES, "barrier=0")?;
    let mut ways = postgres::usual(&sessions);
    ways.push(Way::outside(DURABLE_NO_BARRIERS, none.path().join("pg"), true));
    let clients = if setting.run.quick { &CLIENTS[1..2] } else { &CLIENTS[..] };
    let cells = transactions(setting, ways, clients)?;
    Ok(vec![panel(&place, "database", "time of a transaction of TPC-C", Unit::Milliseconds, cells)])
}

/// The times of TPC-C's transactions with these numbers of clients.
fn transactions(setting: &Setting<'_>, ways: Vec<Way<'_>>, clients: &[usize]) -> Result<Vec<Cell>> {
    let cluster = Cluster::set_up(setting.run, ways, Transactions::TpcC)?.context("PostgreSQL is not installed")?;
    let cell = |clients: &usize| {
        let times = cluster.measure(setting.run, *clients, setting.runs)?;
        Ok(Cell::of(format!("{clients} clients"), &times, Statistic::Median))
    };
    clients.iter().map(cell).collect()
}

pub fn server(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let run = setting.run;
    let connections = if run.quick { 5 } else { CONNECTIONS };
    run.progress.cell(format!("{}: a server, {connections} connections", place.name));
    let load = Load { clients: connections, kind: WRITES, answer_bytes: MESSAGE_BYTES };
    let many = servers::answers(run, &servers::usual(&sessions), load, setting.runs)?;
    let throughput = vec![Cell { name: "answers in a second".to_owned(), contenders: rates(&many) }];
    let title = format!("a server that logs before each answer, {connections} connections");
    Ok(vec![panel(&place, "logging-server", &title, Unit::PerSecond, throughput)])
}

fn rates(answers: &Answers) -> Vec<Runs> {
    let names = answers.times.iter().map(|times| times.name.clone());
    names.zip(&answers.rates).map(|(name, runs)| Runs { name, runs: runs.clone() }).collect()
}

/// Apache in a session, on file systems whose calls wait for the disk, and on one whose calls do not.
pub fn web(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let run = setting.run;
    let barriers = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync")?;
    let none = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync,barrier=0")?;
    let ways = [
        (OURS, web::Way::Session(&sessions.host)),
        (servers::ASYNCHRONOUS, web::Way::Outside(&sessions.dir)),
        (mail::SYNC, web::Way::Outside(barriers.path())),
        (NO_BARRIERS, web::Way::Outside(none.path())),
    ];
    ways.iter().try_for_each(|(_, way)| way.set_up())?;
    let seconds = if run.quick { 1 } else { 3 };
    let measure = |name: &str, class: Option<usize>, connections: usize| -> Result<Cell> {
        run.progress.cell(format!("{}: Apache, {name}", place.name));
        let mut contenders = ways.each_ref().map(|(name, _)| Runs { name: (*name).to_owned(), runs: Vec::new() });
        for _ in 0..setting.runs {
            for ((_, way), runs) in ways.iter().zip(&mut contenders) {
                let rate = way.rate(Requests { connections, class, seconds })?;
                runs.runs.push(if class.is_some() { 1e6 / rate } else { rate });
            }
        }
        Ok(Cell { name: name.to_owned(), contenders: contenders.into() })
    };
    let throughput = measure("answers in a second", None, CONNECTIONS)?;
    let classes = if run.quick { 1 } else { web::CLASSES.len() };
    let latency = |class: usize| measure(web::CLASSES[class].0, Some(class), 1);
    let latency = (0..classes).map(latency).collect::<Result<_>>()?;
    let title = format!("Apache with its access log, {CONNECTIONS} connections");
    Ok(vec![
        panel(&place, "throughput", &title, Unit::PerSecond, vec![throughput]),
        panel(&place, "latency", "Apache, time of an answer, one connection", Unit::Milliseconds, latency),
    ])
}

/// Sessions that commit before output only, against sessions that also commit one change after the other.
pub fn eager(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let run = setting.run;
    let hosts = [(OURS, &sessions.host), (EAGER, &sessions.eager)];
    let mails = if run.quick { 50 } else { MAILS };
    let times = mail::in_sessions((mail::Program::Own, mails), setting.runs, &hosts)?;
    let mut whole = vec![Cell::of("PostMark", &times, Statistic::Median)];
    let builders = hosts.map(|(name, host)| Builder { name, host: Some(host), dir: &sessions.dir });
    let built = programs::measure_build(run, setting.runs, &builders, Compiler::Compiles)?;
    whole.extend(built.map(|(_, times)| Cell::of("build", &times, Statistic::Median)));
    let ways = hosts.map(|(name, host)| Way::session(name, host));
    let clients = if run.quick { &[2][..] } else { &[1, 20] };
    let database = transactions(setting, ways.into(), clients)?;
    let load = Load { clients: CONNECTIONS, kind: WRITES, answer_bytes: MESSAGE_BYTES };
    let ways = hosts.map(|(name, host)| (name, servers::Way::Session(host)));
    let answers = servers::answers(run, &ways, load, setting.runs)?;
    let server = Cell { name: "answers in a second".to_owned(), contenders: rates(&answers) };
    let title = format!("a server that logs before each answer, {CONNECTIONS} connections");
    Ok(vec![
        panel(&place, "programs", "whole runs of programs", Unit::Milliseconds, whole),
        panel(&place, "transactions", "time of a transaction of TPC-C", Unit::Milliseconds, database),
        panel(&place, "server", &title, Unit::PerSecond, vec![server]),
    ])
}
