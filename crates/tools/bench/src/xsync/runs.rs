//! Complete runs of programs, in sessions and outside of them, and their sections.

use super::session::{guest, wait};
use crate::measuring::bench_run::Run;
use crate::measuring::child::Job;
use crate::measuring::fs::Place;
use crate::report::section::{Chart, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::Result;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The load of rows whose times are of complete programs.
pub const WHOLE_RUNS: &str = "whole runs";

pub const NAMES: [&str; 2] = ["in a session", "asynchronous, syncfs at the end"];

/// Contenders for which something is made beside the place.
pub const ON_JOURNALING: &str = "asynchronous, data=journal";
pub const ON_DEVICE: &str = "in a session on a block device";

pub fn outside(job: &Job) -> Result<Command> {
    let words = guest(job)?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    Ok(command)
}

pub fn finished(command: &mut Command) -> Result<()> {
    wait(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
}

pub fn syncfs(dir: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

/// A row of complete runs, with the times of a session first. Those beside the place have ratios without targets.
pub fn row(run: &Run, cell: String, times: &[Measured], against: (usize, Target), others: &[(usize, Target)]) -> Row {
    let named = |name: &str| times.iter().position(|one| one.name == name);
    let ratio = |who: usize, target: &Target| match target {
        Target::AtMost(_) => Ratio::cost(&times[0], &[&times[who]]),
        Target::AtLeast(_) => Ratio::speedup(&times[0], &[&times[who]]),
    };
    let beside = |who: usize| Other::new(&times[who].name, Ratio::cost(&times[0], &[&times[who]]), None, run.quick);
    let others = others
        .iter()
        .map(|(who, target)| Other::new(&times[*who].name, ratio(*who, target), Some(*target), run.quick))
        .chain([ON_JOURNALING, ON_DEVICE].into_iter().filter_map(named).map(beside));
    let row = Row {
        cell,
        load: WHOLE_RUNS.to_owned(),
        contenders: times.iter().map(Measured::summary).collect(),
        ratio: Some(ratio(against.0, &against.1)),
        others: others.collect(),
        ..Row::default()
    };
    row.against_target(Some(against.1), Waited::Allowed, run.quick)
}

/// Runs each contender once in turn, so many times.
pub fn in_turns(
    rounds: usize,
    names: &[&str],
    mut once: impl FnMut(usize) -> Result<Duration>,
) -> Result<Vec<Measured>> {
    let mut times: Vec<_> = names.iter().map(|name| Measured::new(*name)).collect();
    for _ in 0..rounds {
        for (who, measured) in times.iter_mut().enumerate() {
            measured.begin_round();
            measured.push(once(who)?);
        }
    }
    Ok(times)
}

/// Makes a section of one place.
pub fn section(place: &Place, title: &str, chart: Chart, rows: Vec<Row>, notes: &[&str]) -> Section {
    let whole_runs = rows.iter().any(|row| row.load == WHOLE_RUNS);

    Section {
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: if whole_runs { Unit::Milliseconds } else { Unit::Microseconds },
        chart,
        ratio_means: "how many times as fast as the row says; for a limit, the share of it that is used",
        rows,
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
    }
}
