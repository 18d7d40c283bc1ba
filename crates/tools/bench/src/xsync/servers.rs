//! A server that logs each question before it answers it, and its clients outside.

use super::clients::{self, Load, MESSAGE_BYTES, READS, WRITES};
use super::session::{Host, command, guest, wait};
use crate::measuring::bench_run::Run;
use crate::measuring::child::Job;
use crate::report::section::{Extras, Other, Row, Target, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::Result;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "The server has one thread. It writes each question to its log, then answers; the durable one calls fdatasync in \
     between. Each client asks again when it has its answer. All run on this machine, and share its processors.",
    "A time is that of one answer. A ratio is one of answers in a second. The bound is the number of clients divided by \
     the median time of one client's answer, which is little more than one commit.",
];

const NAMES: [&str; 3] = ["in a session", "durable, without a session", "in a session without gate"];

/// Rows over the number of clients, whose questions are logged.
pub fn over_clients(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let counts: &[usize] = if run.quick { &[1] } else { &[1, 5, 20, 50, 200, 500] };
    let mut rows: Vec<Row> = Vec::new();
    let mut alone_us = f64::NAN;
    for &clients in counts {
        run.progress.cell(format!("xsync: a server, {clients} clients"));
        let load = Load { clients, kind: WRITES, answer_bytes: MESSAGE_BYTES };
        let Answers { times, rates } = answers(run, host, dir, load)?;
        if clients == 1 {
            alone_us = times[0].summary().median_us;
        }
        let mut extras = Extras::default();
        for (head, rates) in ["answers/s", "durable/s", "no gate/s"].into_iter().zip(&rates) {
            extras.add(head, Ratio::of_rounds("", rates.clone()).value, 0);
        }
        let rate = Ratio::of_rounds("", rates[0].clone()).value;
        extras.add("bound/s", clients as f64 / alone_us * 1e6, 0);
        extras.add("of the bound %", rate * alone_us / 1e6 / clients as f64 * 100.0, 0);
        let mut all = times[0].rounds_ns.concat();
        all.sort_unstable();
        extras.add("p99 ms", all[all.len() * 99 / 100] as f64 / 1e6, 1);
        let target = match clients {
            1 => Some(Target::AtLeast(0.9)),
            50 => Some(Target::AtLeast(10.0)),
            _ => None,
        };
        let row = Row {
            cell: format!("{clients} clients"),
            load: "logged".to_owned(),
            contenders: times.iter().map(Measured::summary).collect(),
            ratio: Some(faster(&rates, 1)),
            others: vec![Other::new(NAMES[2], faster(&rates, 2), None, run.quick)],
            extras,
            ..Row::default()
        };
        rows.push(row.against_target(target, Waited::Allowed, run.quick));
    }
    Ok(rows)
}

/// Rows over the length of the answer, for one client whose questions are logged.
pub fn over_sizes(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let sizes: &[usize] = if run.quick { &[4] } else { &[1, 4, 16, 64, 256, 1024] };
    let row = |kib: &usize| {
        run.progress.cell(format!("xsync: answers of {kib} KiB"));
        logged(run, host, dir, Load { clients: 1, kind: WRITES, answer_bytes: kib << 10 }, format!("{kib} KiB"))
    };
    sizes.iter().map(row).collect()
}

/// A row with clients whose questions are logged, without a target.
pub fn logged(run: &Run, host: &Host, dir: &Path, load: Load, cell: String) -> Result<Row> {
    let Answers { times, rates } = answers(run, host, dir, load)?;
    let mut extras = Extras::default();
    for (head, rates) in ["answers/s", "durable/s"].into_iter().zip(&rates) {
        extras.add(head, Ratio::of_rounds("", rates.clone()).value, 0);
    }
    Ok(Row {
        cell,
        load: format!("{} clients", load.clients),
        contenders: times.iter().map(Measured::summary).collect(),
        ratio: Some(faster(&rates, 1)),
        others: vec![Other::new(NAMES[2], faster(&rates, 2), None, run.quick)],
        extras,
        ..Row::default()
    })
}

/// A row with clients whose questions change nothing.
pub fn unchanged(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let clients = if run.quick { 20 } else { 50 };
    run.progress.cell(format!("xsync: a server, {clients} clients, nothing changed"));
    let load = Load { clients, kind: READS, answer_bytes: MESSAGE_BYTES };
    let Answers { times, rates } = answers(run, host, dir, load)?;
    let mut extras = Extras::default();
    extras.add("answers/s", Ratio::of_rounds("", rates[0].clone()).value, 0);
    let row = Row {
        cell: format!("{clients} clients"),
        load: "nothing changed".to_owned(),
        contenders: times.iter().map(Measured::summary).collect(),
        ratio: Some(faster(&rates, 2)),
        others: vec![Other::new(NAMES[1], faster(&rates, 1), None, run.quick)],
        extras,
        ..Row::default()
    };
    Ok(vec![row.against_target(Some(Target::AtLeast(0.9)), Waited::Allowed, run.quick)])
}

/// The times of answers of each contender, and its answers per second in each round.
struct Answers {
    times: [Measured; 3],
    rates: [Vec<f64>; 3],
}

fn answers(run: &Run, host: &Host, dir: &Path, load: Load) -> Result<Answers> {
    let (rounds, time) = if run.quick { (1, 50) } else { (3, 800) };
    let (mut times, mut rates) = (NAMES.map(Measured::new), <[Vec<f64>; 3]>::default());
    for _ in 0..rounds {
        for who in 0..NAMES.len() {
            let (child, port) = start(who, host, dir)?;
            let time = Duration::from_millis(time);
            let answered = clients::ask(port, load, time)?;
            rates[who].push(answered.len() as f64 / time.as_secs_f64());
            times[who].begin_round();
            answered.into_iter().for_each(|time| times[who].push(time));
            clients::stop(port)?;
            wait(child)?;
        }
    }
    Ok(Answers { times, rates })
}

/// The answers per second of a session divided by those of another contender.
fn faster(rates: &[Vec<f64>; 3], who: usize) -> Ratio {
    let pairs = rates[0].iter().zip(&rates[who]).map(|(ours, theirs)| ours / theirs);
    Ratio::of_rounds(NAMES[who], pairs.collect())
}

/// Starts the server of a contender.
fn start(who: usize, host: &Host, dir: &Path) -> Result<(Child, u16)> {
    let port = clients::free_port();
    let mut started = match who {
        1 => {
            let words = guest(&Job::Serve { port, log: dir.join("log"), flush: true })?;
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        }
        _ => {
            let server = guest(&Job::Serve { port, log: "/data/log".into(), flush: false })?;
            command(&host.on_volume(who == 0, Some(port), server))?
        }
    };
    Ok((started.spawn()?, port))
}
