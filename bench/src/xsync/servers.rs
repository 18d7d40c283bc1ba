//! A server that logs what it is asked before it answers, and its clients outside.

use super::clients::{self, READS, WRITES};
use super::session::{Host, command, guest, wait};
use crate::bench_run::Run;
use crate::child::Job;
use crate::section::{Extras, Other, Row, Target, Waited};
use crate::statistics::{Measured, Ratio};
use anyhow::Result;
use std::net::{Ipv4Addr, TcpListener};
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

pub fn rows(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let loads: &[(usize, u8)] =
        if run.quick { &[(1, WRITES), (20, READS)] } else { &[(1, WRITES), (50, WRITES), (500, WRITES), (50, READS)] };
    let (rounds, time) = if run.quick { (1, 50) } else { (3, 800) };
    let mut rows: Vec<Row> = Vec::new();
    let mut alone_us = f64::NAN;
    for &(count, kind) in loads {
        run.progress.cell(format!("xsync: a server, {count} clients"));
        let mut times = NAMES.map(Measured::new);
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for who in 0..NAMES.len() {
                let (child, port) = start(who, host, dir)?;
                let time = Duration::from_millis(time);
                let answered = clients::ask(port, count, kind, time)?;
                rates[who].push(answered.len() as f64 / time.as_secs_f64());
                times[who].begin_round();
                answered.into_iter().for_each(|time| times[who].push(time));
                clients::stop(port)?;
                wait(child)?;
            }
        }
        let against = |who: usize| {
            let pairs = rates[0].iter().zip(&rates[who]).map(|(ours, theirs)| ours / theirs);
            Ratio::of_rounds(NAMES[who], pairs.collect())
        };
        let ours = times[0].summary();
        if count == 1 {
            alone_us = ours.median_us;
        }
        let mut extras = Extras::default();
        for (head, rates) in ["answers/s", "durable/s", "no gate/s"].into_iter().zip(&rates) {
            extras.add(head, Ratio::of_rounds("", rates.clone()).value, 0);
        }
        let rate = Ratio::of_rounds("", rates[0].clone()).value;
        extras.add("bound/s", count as f64 / alone_us * 1e6, 0);
        extras.add("of the bound %", rate * alone_us / 1e6 / count as f64 * 100.0, 0);
        let mut all = times[0].rounds_ns.concat();
        all.sort_unstable();
        extras.add("p99 ms", all[all.len() * 99 / 100] as f64 / 1e6, 1);
        let writes = kind == WRITES;
        let target = match count {
            1 => Some(Target::AtLeast(0.9)),
            _ => writes.then_some(Target::AtLeast(10.0)),
        };
        let row = Row {
            cell: format!(
                "{count} client{}, {}",
                if count == 1 { "" } else { "s" },
                if writes { "logged" } else { "nothing changed" }
            ),
            load: "saturated".to_owned(),
            contenders: times.iter().map(Measured::summary).collect(),
            ratio: Some(against(1)),
            others: vec![Other::new(NAMES[2], against(2), (!writes).then_some(Target::AtLeast(0.9)), run.quick)],
            extras,
            ..Row::default()
        };
        rows.push(row.against_target(target, Waited::Allowed, run.quick));
    }
    Ok(rows)
}

/// Starts the server as the contender of this number has it.
fn start(who: usize, host: &Host, dir: &Path) -> Result<(Child, u16)> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
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
