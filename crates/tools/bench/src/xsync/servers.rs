//! A server that logs each question before it answers it, and its clients outside.

use super::clients::{self, Load, MESSAGE_BYTES, READS, WRITES};
use super::runs::{ON_DEVICE, ON_JOURNALING, outside};
use super::session::{Host, Setting, command, guest, wait};
use crate::measuring::bench_run::Run;
use crate::measuring::child::Job;
use crate::report::section::{Extras, Other, Row, Target, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::Result;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "The server has one thread. It writes each question to its log, then answers; the durable one calls fdatasync in \
     between. The asynchronous one does not, and tells its clients what a power cut may take back; it works in the \
     benchmark's directory or on an ext4 of its own with data=journal. On a block device: a session whose volume is a \
     loop device over an image beside that of the place. Each client asks again when it has its answer. All run on this machine, and share its processors.",
    "A time is that of one answer. A ratio is one of answers in a second. The bound is the number of clients divided by \
     the median time of one client's answer, which is little more than one commit.",
];

/// The first contenders, of which every row has ratios and rates.
pub const NAMES: [&str; 3] = ["in a session", "durable, without a session", "in a session without gate"];
pub const ASYNCHRONOUS: &str = "asynchronous, without a session";

/// Where and how the server of a contender runs.
pub enum Way<'a> {
    Session(&'a Host),
    Outside { dir: &'a Path, flush: bool },
}

/// The contenders.
pub fn usual(setting: &Setting) -> Vec<(&'static str, Way<'_>)> {
    let mut ways = vec![
        (NAMES[0], Way::Session(&setting.host)),
        (NAMES[1], Way::Outside { dir: &setting.dir, flush: true }),
        (NAMES[2], Way::Session(&setting.ungated)),
        (ASYNCHRONOUS, Way::Outside { dir: &setting.dir, flush: false }),
    ];
    ways.extend(setting.journaling.as_ref().map(|dir| (ON_JOURNALING, Way::Outside { dir, flush: false })));
    ways.extend(setting.on_device.as_ref().map(|host| (ON_DEVICE, Way::Session(host))));
    ways
}

/// Rows over the number of clients, whose questions are logged.
pub fn over_clients(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let counts: &[usize] = if run.quick { &[1] } else { &[1, 5, 20, 50, 200, 500] };
    let mut rows: Vec<Row> = Vec::new();
    let mut alone_us = f64::NAN;
    for &clients in counts {
        run.progress.cell(format!("xsync: a server, {clients} clients"));
        let load = Load { clients, kind: WRITES, answer_bytes: MESSAGE_BYTES };
        let answers = answers(run, &usual(setting), load, run.rounds(3))?;
        if clients == 1 {
            alone_us = answers.times[0].summary().median_us;
        }
        let mut row = answers.row(1, run.quick);
        let rate = Ratio::of_rounds("", answers.rates[0].clone()).value;
        row.extras.add("bound/s", clients as f64 / alone_us * 1e6, 0);
        row.extras.add("of the bound %", rate * alone_us / 1e6 / clients as f64 * 100.0, 0);
        let mut all = answers.times[0].rounds_ns.concat();
        all.sort_unstable();
        row.extras.add("p99 ms", all[all.len() * 99 / 100] as f64 / 1e6, 1);
        let target = match clients {
            1 => Some(Target::AtLeast(0.9)),
            50 => Some(Target::AtLeast(10.0)),
            _ => None,
        };
        let row = Row { cell: format!("{clients} clients"), load: "logged".to_owned(), ..row };
        rows.push(row.against_target(target, Waited::Allowed, run.quick));
    }
    Ok(rows)
}

/// Rows over the length of the answer, for one client whose questions are logged.
pub fn over_sizes(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let sizes: &[usize] = if run.quick { &[4] } else { &[1, 4, 16, 64, 256, 1024] };
    let row = |kib: &usize| {
        run.progress.cell(format!("xsync: answers of {kib} KiB"));
        logged(run, setting, Load { clients: 1, kind: WRITES, answer_bytes: kib << 10 }, format!("{kib} KiB"))
    };
    sizes.iter().map(row).collect()
}

/// A row with clients whose questions are logged, without a target.
pub fn logged(run: &Run, setting: &Setting, load: Load, cell: String) -> Result<Row> {
    let answers = answers(run, &usual(setting), load, run.rounds(3))?;
    Ok(Row { cell, load: format!("{} clients", load.clients), ..answers.row(1, run.quick) })
}

/// A row with clients whose questions change nothing.
pub fn unchanged(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let clients = if run.quick { 20 } else { 50 };
    run.progress.cell(format!("xsync: a server, {clients} clients, nothing changed"));
    let load = Load { clients, kind: READS, answer_bytes: MESSAGE_BYTES };
    let row = answers(run, &usual(setting), load, run.rounds(3))?.row(2, run.quick);
    let row = Row { cell: format!("{clients} clients"), load: "nothing changed".to_owned(), ..row };
    Ok(vec![row.against_target(Some(Target::AtLeast(0.9)), Waited::Allowed, run.quick)])
}

/// The times of answers of each contender, and its answers per second in each round.
pub struct Answers {
    pub times: Vec<Measured>,
    pub rates: Vec<Vec<f64>>,
}

impl Answers {
    /// The answers per second of a session divided by those of another contender.
    fn faster_than(&self, who: usize) -> Ratio {
        let pairs = self.rates[0].iter().zip(&self.rates[who]).map(|(ours, theirs)| ours / theirs);
        Ratio::of_rounds(&self.times[who].name, pairs.collect())
    }

    /// A row against one of the first contenders. The ratios against all others stand beside it.
    fn row(&self, against: usize, quick: bool) -> Row {
        let others = (1..self.times.len()).filter(|who| *who != against);
        let mut extras = Extras::default();
        for (head, rates) in ["answers/s", "durable/s", "no gate/s"].into_iter().zip(&self.rates) {
            extras.add(head, Ratio::of_rounds("", rates.clone()).value, 0);
        }
        Row {
            contenders: self.times.iter().map(Measured::summary).collect(),
            ratio: Some(self.faster_than(against)),
            others: others.map(|who| Other::new(&self.times[who].name, self.faster_than(who), None, quick)).collect(),
            extras,
            ..Row::default()
        }
    }
}

/// Asks each contender's server in turn, so many times.
pub fn answers(run: &Run, ways: &[(&str, Way<'_>)], load: Load, rounds: usize) -> Result<Answers> {
    let time = if run.quick { 50 } else { 800 };
    let mut times: Vec<_> = ways.iter().map(|(name, _)| Measured::new(*name)).collect();
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (who, (_, way)) in ways.iter().enumerate() {
            let (child, port) = start(way)?;
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

/// Starts the server of a contender.
fn start(way: &Way<'_>) -> Result<(Child, u16)> {
    let port = clients::free_port();
    let mut started = match way {
        Way::Outside { dir, flush } => outside(&Job::Serve { port, log: dir.join("log"), flush: *flush })?,
        Way::Session(host) => {
            let server = guest(&Job::Serve { port, log: "/data/log".into(), flush: false })?;
            command(&host.on_volume(Some(port), server))?
        }
    };
    Ok((started.spawn()?, port))
}
