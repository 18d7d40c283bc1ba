//! All short programs of a few transactions over names, with checkpoints between and around them, on a machine that
//! refuses something. They are numbered, so that a slice of them can be tried.

use crate::names_fuzz::program::{NameProgram, NameStep};
use crate::names_fuzz::tree::NameChange;
use crate::programs::program::{Setup, Start};
use crate::simulation::{REFUSED, Refusal};
use fastrand::Rng;

/// The changes before every program: files beside a directory and in it, all applied.
const START: &str =
    "create:a:600;write:a:0:700:1;create:b:640;write:b:100:30:2;mkdir:d:700;create:d/a:644;write:d/a:0:90:3";

/// The transactions.
const TRANSACTIONS: [&str; 15] = [
    "create:c:600;write:c:0:300:11",
    "create:d/c:400",
    "write:a:50:900:12;write:d/a:10:20:13",
    "rename:a:b",
    "rename:a:c;rename:b:a;rename:c:b",
    "rename:a:c;rename:d/a:a;rename:c:d/a",
    "rename:d/a:c;write:c:0:40:14",
    "unlink:a;unlink:d/a",
    "mkdir:c:755;create:c/a:600;write:c/a:0:200:15",
    "mkdir:c:500;rename:a:c/a",
    "unlink:d/a;rmdir:d;create:d:600;write:d:0:60:16",
    "unlink:a;mkdir:a:500;rename:b:a/b;create:a/c:600",
    "chmod:d:500;chmod:a:400;chmod:d/a:444",
    "create:c:600;write:c:0:80:17;rename:c:a",
    "chmod:d:700;rename:d/a:d/b;rename:b:d/a",
];

/// The number of positions of a transaction relative to a checkpoint.
const PLACES: usize = 3;
/// The most operations of a program.
pub const OPERATIONS_MAX: usize = 5;

fn changes(nth: usize) -> Vec<NameChange> {
    parsed(TRANSACTIONS[nth])
}

fn parsed(text: &str) -> Vec<NameChange> {
    text.split(';').map(|change| change.parse().expect("a change")).collect()
}

/// Every refusal that concerns the changes of these programs.
fn refusals() -> Vec<Refusal> {
    let mut all = Vec::new();
    for (what, _, codes) in REFUSED {
        for dir in ["", "d"] {
            let below = what == crate::simulation::Refused::Below;
            let dirs = if below && dir.is_empty() { ["c", "d"] } else { [dir, dir] };
            for code in codes {
                let refusal = |told| Refusal { what, dir: dirs[0], code: *code, told };
                all.extend([refusal(false), refusal(true)]);
            }
        }
    }
    all
}

/// The number of different programs with this many operations.
pub fn programs_of(operations: usize) -> usize {
    TRANSACTIONS.len().pow(operations as u32) * PLACES * (refusals().len() + 1)
}

/// Returns one of the programs with this many operations. The kernel begins to refuse something before the last
/// operation, or only during the recovery. The last operations are between the steps of a checkpoint, after one, or on
/// their own.
pub fn numbered(operations: usize, number: usize) -> NameProgram {
    let mut left = number;
    let mut digit = |base: usize| {
        let digit = left % base;
        left /= base;
        digit
    };
    let place = digit(PLACES);
    let refusals = refusals();
    let refusal = digit(refusals.len() + 1).checked_sub(1).map(|nth| refusals[nth]);
    let mut transactions: Vec<Vec<NameChange>> = (0..operations).map(|_| changes(digit(TRANSACTIONS.len()))).collect();
    let setups: Vec<Setup> = Setup::all(Start::Plain, number).collect();
    let mut steps = vec![NameStep::Commit(parsed(START)), NameStep::Checkpoint];
    let last = transactions.pop().unwrap_or_default();
    let before_last = if place == 2 { transactions.pop().unwrap_or_default() } else { Vec::new() };
    steps.extend(transactions.into_iter().map(NameStep::Commit));
    steps.extend(refusal.map(NameStep::Refuse));
    match place {
        0 => steps.push(NameStep::Commit(last)),
        1 => steps.extend([NameStep::Commit(last), NameStep::Checkpoint]),
        _ => steps.push(NameStep::Between(before_last, last)),
    }
    steps.push(NameStep::Heal);
    NameProgram { setup: setups[number / 7 % setups.len()], seed: number as u64, steps }
}

/// A program of two to [`OPERATIONS_MAX`] operations, drawn from a seed.
pub fn drawn(seed: u64) -> NameProgram {
    let rng = &mut Rng::with_seed(seed);
    let operations = rng.usize(2..=OPERATIONS_MAX);
    NameProgram { seed, ..numbered(operations, rng.usize(..programs_of(operations))) }
}

/// The number of steps of a program before its last operation, which shorter programs crash.
pub fn steps_before(program: &NameProgram) -> usize {
    program.steps.len().saturating_sub(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_is_another_program() {
        let texts: BTreeSet<String> = (0..programs_of(1)).map(|n| numbered(1, n).to_string()).collect();
        assert_eq!(texts.len(), programs_of(1));
        for text in &texts {
            assert_eq!(&text.parse::<NameProgram>().unwrap().to_string(), text);
        }
        assert_eq!(drawn(5), drawn(5));
    }
}
