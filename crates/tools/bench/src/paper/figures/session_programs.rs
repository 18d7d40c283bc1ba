//! Figures 4 to 8 of paper 002: programs and servers in sessions.

use crate::measuring::fs::{FileSystem, Place, mounted_sync};
use crate::paper::measured::{Cell, Panel, Runs, Statistic};
use crate::paper::setting::Setting;
use crate::report::section::{Chart, Unit};
use crate::report::statistics::Measured;
use crate::xsync::clients::{Load, MESSAGE_BYTES, WRITES};
use crate::xsync::runs::{NAMES, ON_DEVICE, ON_JOURNALING};
use crate::xsync::session::Setting as Sessions;
use crate::xsync::{mail, postgres, programs, servers};
use anyhow::{Context, Result};
use std::path::Path;

/// Files and transactions of PostMark: fewer than the paper's 10,000, as the synchronous contenders take their time.
const MAILS: u64 = 1000;
const CLIENTS: [usize; 5] = [1, 2, 8, 20, 32];
/// Connections of the paper's web server.
const CONNECTIONS: usize = 50;
const ANSWER_KIB: [usize; 4] = [1, 16, 64, 256];

const OURS: &str = "Untorn";
const NO_BARRIERS: &str = "mounted sync, no barriers";
const IN_MEMORY: &str = "in memory";

/// Sessions on an ext4 in an image.
fn sessions(setting: &Setting<'_>) -> Result<(Place, Sessions)> {
    let place = setting.image(FileSystem::Ext4)?;
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
    let mails = if setting.run.quick { 50 } else { MAILS };
    setting.run.progress.cell(format!("{}: PostMark in sessions", place.name));
    let barriers = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync")?;
    let none = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync,barrier=0")?;
    let synchronous = [(mail::SYNC, barriers.path()), (NO_BARRIERS, none.path())];
    let times = mail::measure(&sessions, mails, setting.runs, &synchronous)?;
    let cell = Cell::of("PostMark", &times, Statistic::Median);
    Ok(vec![panel(&place, "postmark", &format!("PostMark, {mails} files"), Unit::Milliseconds, vec![cell])])
}

pub fn build(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let barriers = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync")?;
    let none = mounted_sync(&sessions.dir, mail::SYNC_BYTES, "sync,barrier=0")?;
    let memory = tempfile::tempdir_in("/dev/shm").context("a directory in memory")?;
    let others: [(&str, &Path); 3] =
        [(IN_MEMORY, memory.path()), (mail::SYNC, barriers.path()), (NO_BARRIERS, none.path())];
    let built = programs::measure_build(setting.run, &sessions, setting.runs, &others)?;
    let (name, times) = built.context("there is no compiler")?;
    let cell = Cell::of("build", &times, Statistic::Median);
    Ok(vec![panel(&place, "build", &name, Unit::Milliseconds, vec![cell])])
}

pub fn database(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let cluster = postgres::Cluster::set_up(setting.run, &sessions)?.context("PostgreSQL is not installed")?;
    let clients = if setting.run.quick { &CLIENTS[1..2] } else { &CLIENTS[..] };
    let cell = |clients: &usize| {
        let times: Vec<Measured> = cluster.measure(setting.run, *clients, setting.runs)?;
        Ok(Cell::of(format!("{clients} clients"), &times, Statistic::Median))
    };
    let cells = clients.iter().map(cell).collect::<Result<_>>()?;
    Ok(vec![panel(&place, "database", "time of a transaction of pgbench", Unit::Milliseconds, cells)])
}

pub fn server(setting: &Setting<'_>) -> Result<Vec<Panel>> {
    let (place, sessions) = sessions(setting)?;
    let run = setting.run;
    let connections = if run.quick { 5 } else { CONNECTIONS };
    run.progress.cell(format!("{}: a server, {connections} connections", place.name));
    let load = Load { clients: connections, kind: WRITES, answer_bytes: MESSAGE_BYTES };
    let many = servers::answers(run, &sessions, load, setting.runs)?;
    let names = many.times.iter().map(|times| times.name.clone());
    let contenders = names.zip(&many.rates).map(|(name, runs)| Runs { name, runs: runs.clone() }).collect();
    let throughput = vec![Cell { name: "answers in a second".to_owned(), contenders }];
    let sizes = if run.quick { &ANSWER_KIB[..1] } else { &ANSWER_KIB[..] };
    let latency = |kib: &usize| {
        run.progress.cell(format!("{}: answers of {kib} KiB", place.name));
        let load = Load { clients: 1, kind: WRITES, answer_bytes: kib << 10 };
        let one = servers::answers(run, &sessions, load, setting.runs)?;
        Ok(Cell::of(format!("{kib} KiB"), &one.times, Statistic::Median))
    };
    let latency = sizes.iter().map(latency).collect::<Result<_>>()?;
    let title = format!("a server that logs, {connections} connections");
    Ok(vec![
        panel(&place, "throughput", &title, Unit::PerSecond, throughput),
        panel(&place, "latency", "time of an answer, one connection", Unit::Milliseconds, latency),
    ])
}
