//! Transactions on byte-addressable memory, over the time that it takes for a flushed line.
//!
//! Ordinary memory (tmpfs) stands for it. Each line that a contender writes back, or stores past the caches, makes the
//! thread wait.

mod delay;
mod mapped;
mod pool_flushes;
mod processor;
mod slow_memory;
pub(crate) mod worker;

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, Running, job_command};
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::{need, unavailable};
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Ratio, Summary};
use crate::stores::nvm::processor::CAN_FLUSH;
use crate::stores::nvm::worker::{FILE_BYTES, Means, Measured, Program};
use crate::stores::two_files::roster::{NO_CONSISTENCY, OURS};
use anyhow::{Context, Result};
use std::path::Path;

/// Runs of each cell.
const ROUNDS: usize = 5;
/// The time of a line in the paper's other figures.
const USUAL_NS: u64 = 50;
/// The paper's cost of a transaction there, over no consistency.
const COST_MAX: f64 = 1.06;
/// The longest time of a small commit, without a time of lines.
const SMALL_US_MAX: f64 = 1.0;

/// The directory of ordinary memory.
const MEMORY: &str = "/dev/shm";

fn program(run: &Run, dir: &Path) -> Program {
    let (files, transactions, commits) = if run.quick { (8, 20, 50) } else { (100, 3000, 20_000) };
    let line_ns = if run.quick { vec![0, 50, 1600] } else { vec![0, 50, 100, 200, 400, 800, 1600] };
    Program { dir: dir.to_owned(), files, transactions, commits, rounds: run.rounds(ROUNDS).max(2), line_ns }
}

/// Measures in a process of its own, in which libpmemobj takes its pool for byte-addressable memory.
pub fn run(run: &Run) -> Result<Vec<Section>> {
    need(CAN_FLUSH, "nvm measures on x86-64 only")?;
    let scratch = Scratch::new_in(Path::new(MEMORY)).map_err(|e| unavailable(format!("{e:#}")))?;
    run.progress.cell("nvm: transactions over two files, and small commits");
    let program = program(run, scratch.path());
    let mut command = job_command(&Job::Nvm(serde_json::to_value(&program)?))?;
    // Its flushes are instructions then, not system calls.
    command.env("PMEM_IS_PMEM_FORCE", "1");
    let line = Running::start_command(command)?.line()?;
    let measured: Measured = serde_json::from_str(&line).context("bad output of the child process")?;
    Ok(sections(run, &program, &measured))
}

fn sections(run: &Run, program: &Program, measured: &Measured) -> Vec<Section> {
    let mut notes = vec![
        "Ordinary memory stands for byte-addressable memory: a thread that writes a line back, or stores it past the caches, \
         waits that long for it, by the processor's clock. Lines that are stored to in the caches alone take nothing."
            .to_owned(),
        "Untorn: a store of the usual size; of its group each stored line waits, and in the background each line that a \
         checkpoint writes to the data files. No consistency: stores to mapped files, one fence. Fine-grained log: a redo \
         record of whole lines, a fence, the files in place, a fence. libpmemobj: all files as one object, \
         pmemobj_tx_add_range_direct before each change; its flushes wait by functions put in the place of libpmem's."
            .to_owned(),
        "Lines each: of all threads, for one operation. A checkpoint behind each run is not measured.".to_owned(),
    ];
    notes.extend(measured.missing.clone());
    let section = |title: &str, unit, ratio_means, rows: Vec<Row>, first_note: String| Section {
        title: format!("nvm: {title}"),
        place: "tmpfs".to_owned(),
        place_details: format!("{MEMORY}, in the place of memory whose lines take a given time"),
        unit,
        chart: Chart::Lines,
        ratio_means,
        rows,
        notes: std::iter::once(first_note).chain(notes.clone()).collect(),
    };
    let cells = &measured.cells;
    let transactions = format!(
        "Two random files of {} of {} MiB, in each up to 16 KiB at a random place; means of {} transactions.",
        program.files,
        FILE_BYTES >> 20,
        program.transactions
    );
    let commits = format!("64 bytes at a random place of a file of 1 MiB; means of {} commits.", program.commits);
    const OVER_NONE: &str = "mean ÷ mean of no consistency in the same round";
    vec![
        section(
            "a transaction over two files, over the time of a line",
            Unit::Microseconds,
            OVER_NONE,
            cells.iter().map(|cell| over_none(cell.line_ns, &cell.transactions, run.quick)).collect(),
            transactions.clone(),
        ),
        section(
            "cost over no consistency, over the time of a line",
            Unit::Times,
            OVER_NONE,
            cells.iter().map(|cell| costs(cell.line_ns, &cell.transactions)).collect(),
            transactions,
        ),
        section(
            "a commit of 64 bytes, over the time of a line",
            Unit::Microseconds,
            "mean ÷ 1 µs",
            cells.iter().map(|cell| small(cell.line_ns, &cell.commits, run.quick)).collect(),
            commits,
        ),
    ]
}

fn cell_name(line_ns: u64) -> String {
    format!("{line_ns} ns")
}

/// The means of each round, divided by those of no consistency.
fn ratios(means: &Means, all: &[Means]) -> Vec<f64> {
    let none = all.iter().find(|means| means.name == NO_CONSISTENCY).map_or(&[][..], |means| &means.us);
    means.us.iter().zip(none).map(|(ours, none)| ours / none).collect()
}

fn row(line_ns: u64, all: &[Means]) -> Row {
    let lines = |means: &Means| {
        let mut extras = Extras::default();
        extras.add("lines each", means.lines, 1);
        (means.name.clone(), extras)
    };
    Row {
        cell: cell_name(line_ns),
        contenders: all.iter().map(|means| Summary::of_values(&means.name, &means.us)).collect(),
        details: all.iter().map(lines).collect(),
        ..Row::default()
    }
}

/// Times, with Untorn's cost and those of its peers.
fn over_none(line_ns: u64, all: &[Means], quick: bool) -> Row {
    let ratio = |means: &Means| Ratio::of_rounds(NO_CONSISTENCY, ratios(means, all));
    let peers = all.iter().filter(|means| ![OURS, NO_CONSISTENCY].contains(&means.name.as_str()));
    let target = (line_ns == USUAL_NS).then_some(Target::AtMost(COST_MAX));
    let row = Row {
        ratio: all.iter().find(|means| means.name == OURS).map(ratio),
        others: peers.map(|means| Other::new(&means.name, ratio(means), None, quick)).collect(),
        ..row(line_ns, all)
    };
    row.against_target(target, Waited::Allowed, quick)
}

/// The costs themselves, in the place of times.
fn costs(line_ns: u64, all: &[Means]) -> Row {
    let costly = all.iter().filter(|means| means.name != NO_CONSISTENCY);
    let contenders = costly.map(|means| Summary::of_values(&means.name, &ratios(means, all))).collect();
    Row { cell: cell_name(line_ns), contenders, ..Row::default() }
}

/// Small commits. Without a time of lines, Untorn's has a target.
fn small(line_ns: u64, all: &[Means], quick: bool) -> Row {
    let over_limit = |means: &Means| means.us.iter().map(|us| us / SMALL_US_MAX).collect();
    let target = (line_ns == 0).then_some(Target::AtMost(1.0));
    let ratio = all.iter().find(|means| means.name == OURS).map(|means| Ratio::of_rounds("1 µs", over_limit(means)));
    Row { ratio: ratio.filter(|_| line_ns == 0), ..row(line_ns, all) }.against_target(target, Waited::Allowed, quick)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(name: &str, us: &[f64]) -> Means {
        Means { name: name.to_owned(), us: us.to_vec(), lines: 3.0 }
    }

    #[test]
    fn costs_are_ratios_of_rounds_and_the_usual_memory_has_a_target() {
        let all =
            [means(OURS, &[2.0, 6.0, 3.0]), means(NO_CONSISTENCY, &[2.0, 2.0, 2.0]), means("log", &[4.0, 4.0, 6.0])];
        let usual = over_none(USUAL_NS, &all, false);
        assert_eq!(usual.ratio.as_ref().unwrap().value, 1.5);
        assert!(usual.target.is_some() && usual.verdict.is_some() && usual.others[0].ratio.value == 2.0);
        assert!(over_none(800, &all, false).target.is_none());
        let costs = costs(800, &all);
        assert_eq!(costs.contenders.iter().map(|c| c.median_us).collect::<Vec<_>>(), [1.5, 2.0]);
        assert!(small(0, &all, false).verdict.is_some() && small(50, &all, false).ratio.is_none());
    }
}
