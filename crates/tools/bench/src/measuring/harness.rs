//! Runs contenders side by side, in short alternating batches, in rounds, with or without think time.
//!
//! So drifts of the machine affect all contenders alike.

use crate::report::section::Extras;
use crate::report::statistics::Measured;
use crate::report::status_line::StatusLine;
use anyhow::Result;
use std::time::{Duration, Instant};
use untorn::Status;

/// The pause between two operations of a run with think time.
pub const THINK: Duration = Duration::from_millis(2);

/// The least number of commits in a cell, and the least number of turnovers of its journal.
pub const COMMITS_MIN: usize = 200;
pub const TURNOVERS_MIN: u64 = 3;

/// The least number of rounds in a cell. A published ratio is the median over the rounds.
pub const ROUNDS_MIN: usize = 5;

/// The largest number of rounds. More rounds run while a cell is not done, but a contender that never gets done must
/// not hang the benchmark.
const ROUNDS_MAX: usize = 40;

/// A contender: a name and an operation, which returns the times of its parts.
pub struct Contender<'a, const PARTS: usize = 1> {
    pub name: String,
    /// Operations in a row before the next contender's turn.
    pub batch: usize,
    pub operation: Box<dyn FnMut() -> Result<[Duration; PARTS]> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(
        name: impl Into<String>,
        batch: usize,
        mut operation: impl FnMut() -> Result<Duration> + 'a,
    ) -> Contender<'a> {
        Contender::in_parts(name, batch, move || Ok([operation()?]))
    }
}

impl<'a, const PARTS: usize> Contender<'a, PARTS> {
    pub fn in_parts(
        name: impl Into<String>,
        batch: usize,
        operation: impl FnMut() -> Result<[Duration; PARTS]> + 'a,
    ) -> Contender<'a, PARTS> {
        Contender { name: name.into(), batch, operation: Box::new(operation) }
    }
}

/// The length of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// Turns of every contender in each round.
    pub batches: usize,
    /// The sleep before each operation, also of the peers: a device and a processor that were idle are slower,
    /// whichever operation wakes them.
    pub think: Duration,
}

impl Plan {
    /// Spreads `operations` of each contender over the rounds, `batch` of them in a row.
    pub fn spread(operations: usize, batch: usize, quick: bool, think: Duration) -> Plan {
        let rounds = if quick { 2 } else { ROUNDS_MIN };
        Plan { rounds, batches: operations.div_ceil(rounds * batch).max(1), think }
    }
}

/// Runs the contenders in turn until the plan is done and `enough` agrees.
pub fn interleave(
    contenders: &mut [Contender<'_>],
    plan: &Plan,
    progress: &StatusLine,
    enough: impl FnMut() -> bool,
) -> Result<Vec<Measured>> {
    let measured = interleave_parts(contenders, plan, progress, enough)?;
    Ok(measured.into_iter().map(|[only]| only).collect())
}

/// Interleaves operations of several timed parts.
pub fn interleave_parts<const PARTS: usize>(
    contenders: &mut [Contender<'_, PARTS>],
    plan: &Plan,
    progress: &StatusLine,
    mut enough: impl FnMut() -> bool,
) -> Result<Vec<[Measured; PARTS]>> {
    let new = |c: &Contender<'_, PARTS>| std::array::from_fn(|_| Measured::new(c.name.as_str()));
    let mut measured: Vec<[Measured; PARTS]> = contenders.iter().map(new).collect();
    let mut round = 0;
    while round < plan.rounds || (round < ROUNDS_MAX && !enough()) {
        measured.iter_mut().flatten().for_each(Measured::begin_round);
        for batch in 0..plan.batches {
            progress.tick(round, plan.rounds, batch, plan.batches);
            for turn in 0..contenders.len() {
                // Another contender starts each time, so that no contender always follows the same neighbour.
                let who = (turn + batch) % contenders.len();
                for _ in 0..contenders[who].batch {
                    if !plan.think.is_zero() {
                        std::thread::sleep(plan.think);
                    }
                    let times = (contenders[who].operation)()?;
                    measured[who].iter_mut().zip(times).for_each(|(part, time)| part.push(time));
                }
            }
        }
        round += 1;
    }
    Ok(measured)
}

/// Measures the time of `work`.
pub fn timed<T, E>(work: impl FnOnce() -> std::result::Result<T, E>) -> Result<Duration>
where
    anyhow::Error: From<E>,
{
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// The activity of a store between two reads of its status.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    pub commits: u64,
    pub commits_waited: u64,
    pub groups: u64,
    pub checkpoints: u64,
    pub syncs: u64,
    pub journal_bytes: u64,
}

impl Activity {
    pub fn between(before: &Status, after: &Status) -> Activity {
        Activity::total(after).since(&Activity::total(before))
    }

    /// The activity since the store was opened.
    pub fn total(status: &Status) -> Activity {
        Activity {
            commits: status.commits,
            commits_waited: status.commits_waited,
            groups: status.commit_groups,
            checkpoints: status.checkpoints,
            syncs: status.syncs,
            journal_bytes: status.journal_bytes_written,
        }
    }

    pub fn since(&self, before: &Activity) -> Activity {
        Activity {
            commits: self.commits - before.commits,
            commits_waited: self.commits_waited - before.commits_waited,
            groups: self.groups - before.groups,
            checkpoints: self.checkpoints - before.checkpoints,
            syncs: self.syncs - before.syncs,
            journal_bytes: self.journal_bytes - before.journal_bytes,
        }
    }

    /// Adds another activity.
    pub fn add(&mut self, other: &Activity) {
        self.commits += other.commits;
        self.commits_waited += other.commits_waited;
        self.groups += other.groups;
        self.checkpoints += other.checkpoints;
        self.syncs += other.syncs;
        self.journal_bytes += other.journal_bytes;
    }

    /// Whether the journal has turned over often enough, or never will, because commits by reference write little to
    /// it.
    pub fn turned_over(&self, journal_bytes_max: u64, commit_bytes: u64) -> bool {
        let by_reference = self.commits > 0 && self.journal_bytes / self.commits < commit_bytes / 2;
        by_reference || self.journal_bytes >= TURNOVERS_MIN * journal_bytes_max
    }

    /// The figures as columns of the second table.
    pub fn describe(&self, journal_bytes_max: u64, extras: &mut Extras) {
        let per_commit = |n: u64| n as f64 / self.commits.max(1) as f64;
        extras.add("journal MiB", journal_bytes_max as f64 / f64::from(1 << 20), 1);
        extras.add("turnovers", self.journal_bytes as f64 / journal_bytes_max as f64, 1);
        extras.add("commits", self.commits as f64, 0);
        extras.add("waited", self.commits_waited as f64, 0);
        extras.add("checkpoints", self.checkpoints as f64, 0);
        extras.add("syncs/commit", per_commit(self.syncs), 3);
        extras.add("journal B/commit", per_commit(self.journal_bytes), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn contenders_take_turns_in_batches_and_rotate() {
        let order = RefCell::new(String::new());
        let mut contenders = [("a", 2), ("b", 1)].map(|(name, batch)| {
            let order = &order;
            Contender::new(name, batch, move || {
                order.borrow_mut().push_str(name);
                Ok(Duration::from_micros(1))
            })
        });
        let plan = Plan { rounds: 2, batches: 2, think: Duration::ZERO };
        let mut extra_rounds = 1;
        let enough = || std::mem::replace(&mut extra_rounds, 0) == 0;
        let measured = interleave(&mut contenders, &plan, &StatusLine::hidden(), enough).unwrap();
        drop(contenders);
        assert_eq!(order.into_inner(), "aabbaa".repeat(3));
        assert_eq!(measured[0].rounds_ns, vec![vec![1000; 4]; 3]);
        assert_eq!(measured[1].summary().samples, 6);
    }

    #[test]
    fn a_plan_does_at_least_what_was_asked() {
        for operations in [1, 199, 200, 1001] {
            let plan = Plan::spread(operations, 10, false, Duration::ZERO);
            assert!(plan.rounds >= ROUNDS_MIN && plan.rounds * plan.batches * 10 >= operations);
        }
    }

    #[test]
    fn turnovers_count_unless_commits_go_by_reference() {
        let inline = |journal_bytes| Activity { commits: 10, journal_bytes, ..Activity::default() };
        assert!(!inline(2 << 20).turned_over(1 << 20, 4096));
        assert!(inline(3 << 20).turned_over(1 << 20, 4096));
        assert!(inline(40_960).turned_over(1 << 20, 1 << 20));
    }
}
