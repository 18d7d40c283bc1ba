//! Programs of transactions, checkpoints and crashes: drawn from a seed, written as text, made smaller.

use super::name_tree::{Alphabet, NameChange, NameTree};
use crate::program::Setup;
use fastrand::Rng;
use std::fmt;
use std::str::FromStr;

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameStep {
    /// One transaction, waited for.
    Commit(Vec<NameChange>),
    /// One transaction, not waited for.
    Async(Vec<NameChange>),
    /// A checkpoint.
    Checkpoint,
    /// A checkpoint that is begun, with a transaction before it is applied, and one before its records are given up.
    Between(Vec<NameChange>, Vec<NameChange>),
    /// The mark that an idle journal writes.
    Mark,
    /// All handles are closed.
    Forget,
    /// The store is closed, and opened again.
    Close,
    /// The process is killed; another one opens the store.
    Kill,
    /// The power goes; the store is opened again.
    Cut,
}

use NameStep::{Async, Between, Checkpoint, Close, Commit, Cut, Forget, Kill, Mark};

/// A program and where it runs; written `setup/seed/step|step|…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameProgram {
    /// The disk and the journal.
    pub setup: Setup,
    /// Chooses the crashes.
    pub seed: u64,
    /// The steps.
    pub steps: Vec<NameStep>,
}

/// Changes of one transaction, at most.
const CHANGES_MAX: usize = 16;

/// Draws the changes of one transaction, and applies them to the tree.
pub fn draw_transaction(rng: &mut Rng, tree: &mut NameTree, alphabet: Alphabet) -> Vec<NameChange> {
    let wanted = if rng.u32(..3) == 0 { rng.usize(1..=CHANGES_MAX) } else { rng.usize(1..5) };
    let mut changes = Vec::new();
    while changes.len() < wanted {
        let drawn = tree.draw(rng, alphabet);
        if drawn.is_empty() || changes.len() + drawn.len() > CHANGES_MAX {
            break;
        }
        drawn.iter().for_each(|change| tree.apply(change));
        changes.extend(drawn);
    }
    changes
}

impl NameProgram {
    /// Draws a program.
    pub fn draw(seed: u64, steps: usize, alphabet: Alphabet) -> NameProgram {
        let rng = &mut Rng::with_seed(seed);
        let setups: Vec<Setup> = Setup::all(crate::program::Start::Plain, rng.usize(..6)).collect();
        let setup = setups[rng.usize(..setups.len())];
        // A guess of what is there: after a crash less may be, and what is impossible then is left out.
        let mut tree = NameTree::default();
        let mut draw = |rng: &mut Rng| draw_transaction(rng, &mut tree, alphabet);
        let steps = (0..steps)
            .map(|_| match rng.u32(..100) {
                0..50 => Commit(draw(rng)),
                50..64 => Async(draw(rng)),
                64..73 => Checkpoint,
                73..81 => Between(draw(rng), draw(rng)),
                81..83 => Mark,
                83..87 => Forget,
                87..91 => Close,
                91..96 => Kill,
                _ => Cut,
            })
            .collect();
        NameProgram { setup, seed, steps }
    }

    /// Programs with one step or one change less.
    pub(crate) fn smaller(&self) -> Vec<NameProgram> {
        let mut programs = Vec::new();
        for at in (0..self.steps.len()).rev() {
            let mut less = self.clone();
            less.steps.remove(at);
            programs.push(less);
        }
        for at in 0..self.steps.len() {
            let parts = match &self.steps[at] {
                Commit(_) | Async(_) => 1,
                Between(..) => 2,
                _ => 0,
            };
            for part in 0..parts {
                for nth in 0.. {
                    let mut less = self.clone();
                    let changes = match (&mut less.steps[at], part) {
                        (Commit(changes) | Async(changes), _) | (Between(changes, _), 0) | (Between(_, changes), _) => {
                            changes
                        }
                        _ => unreachable!("a step with changes"),
                    };
                    if nth >= changes.len() {
                        break;
                    }
                    changes.remove(nth);
                    programs.push(less);
                }
            }
        }
        programs
    }
}

fn written(changes: &[NameChange]) -> String {
    changes.iter().map(NameChange::to_string).collect::<Vec<_>>().join(";")
}

fn read(text: &str) -> Result<Vec<NameChange>, String> {
    text.split(';').filter(|change| !change.is_empty()).map(str::parse).collect()
}

impl fmt::Display for NameStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Commit(changes) => write!(f, "commit={}", written(changes)),
            Async(changes) => write!(f, "async={}", written(changes)),
            Between(first, second) => write!(f, "between={}={}", written(first), written(second)),
            Checkpoint => f.write_str("checkpoint"),
            Mark => f.write_str("mark"),
            Forget => f.write_str("forget"),
            Close => f.write_str("close"),
            Kill => f.write_str("kill"),
            Cut => f.write_str("cut"),
        }
    }
}

impl FromStr for NameStep {
    type Err = String;
    fn from_str(text: &str) -> Result<NameStep, String> {
        let words: Vec<&str> = text.split('=').collect();
        Ok(match words[..] {
            ["commit", changes] => Commit(read(changes)?),
            ["async", changes] => Async(read(changes)?),
            ["between", first, second] => Between(read(first)?, read(second)?),
            ["checkpoint"] => Checkpoint,
            ["mark"] => Mark,
            ["forget"] => Forget,
            ["close"] => Close,
            ["kill"] => Kill,
            ["cut"] => Cut,
            _ => return Err(format!("no such step: {text}")),
        })
    }
}

impl fmt::Display for NameProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(NameStep::to_string).collect();
        write!(f, "{}/{}/{}", self.setup, self.seed, steps.join("|"))
    }
}

impl FromStr for NameProgram {
    type Err = String;
    fn from_str(text: &str) -> Result<NameProgram, String> {
        let parts: Vec<&str> = text.splitn(3, '/').collect();
        let [setup, seed, steps] = parts[..] else { return Err(format!("a program has three parts: {text}")) };
        Ok(NameProgram {
            setup: setup.parse()?,
            seed: seed.parse().map_err(|e| format!("{seed}: {e}"))?,
            steps: steps.split('|').filter(|step| !step.is_empty()).map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}
