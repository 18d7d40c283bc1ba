//! Programs of transactions, checkpoints and crashes: drawn from a seed, written as text, and minimised.

use crate::names_fuzz::tree::{Alphabet, NameChange, NameTree};
use crate::programs::program::Setup;
use crate::simulation::{REFUSED, REFUSING_DIRS, Refusal};
use fastrand::Rng;
use std::fmt;
use std::str::FromStr;

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameStep {
    /// A transaction that is waited for.
    Commit(Vec<NameChange>),
    /// A transaction that is not waited for.
    Async(Vec<NameChange>),
    /// A checkpoint.
    Checkpoint,
    /// A checkpoint with two transactions: one before it is applied, and one before the log is truncated.
    Between(Vec<NameChange>, Vec<NameChange>),
    /// A durable mark, as an idle journal writes it.
    Mark,
    /// All handles are closed.
    Forget,
    /// The store is closed, and opened again.
    Close,
    /// The process is killed; another one opens the store.
    Kill,
    /// The power is cut; the store is opened again.
    Cut,
    /// From now on the kernel refuses something.
    Refuse(Refusal),
    /// From now on this many changes of names or attributes succeed, and the next one fails with this `errno`.
    Fail(u64, i32),
    /// The kernel refuses nothing any more; a checkpoint applies everything.
    Heal,
    /// The store is closed, and opened again in the other failure class.
    Other,
}

use NameStep::{Async, Between, Checkpoint, Close, Commit, Cut, Fail, Forget, Heal, Kill, Mark, Other, Refuse};

/// A program and its setup; written `setup/seed/step|step|…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameProgram {
    /// The disk and the journal.
    pub setup: Setup,
    /// The seed of the crashes.
    pub seed: u64,
    /// The steps.
    pub steps: Vec<NameStep>,
}

/// The most changes of one transaction.
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

/// Draws something that the kernel refuses.
pub fn draw_refusal(rng: &mut Rng) -> Refusal {
    loop {
        let (what, _, codes) = REFUSED[rng.usize(..REFUSED.len())];
        let (dir, code) = (REFUSING_DIRS[rng.usize(..REFUSING_DIRS.len())], codes[rng.usize(..codes.len())]);
        // In the store's own directory, nothing would be left to test.
        if what != crate::simulation::Refused::Below || !dir.is_empty() {
            return Refusal { what, dir, code, told: rng.u32(..3) == 0 };
        }
    }
}

/// Errors of single calls.
const FAILURES: [i32; 7] =
    [libc::EACCES, libc::EPERM, libc::ENOSPC, libc::EDQUOT, libc::EXDEV, libc::EFBIG, libc::ENAMETOOLONG];

impl NameProgram {
    /// Draws a program.
    pub fn draw(seed: u64, steps: usize, alphabet: Alphabet) -> NameProgram {
        let rng = &mut Rng::with_seed(seed);
        let setups: Vec<Setup> = Setup::all(crate::programs::program::Start::Plain, rng.usize(..6)).collect();
        let setup = setups[rng.usize(..setups.len())];
        // An approximation: after a crash there may be less, and impossible changes are then left out.
        let mut tree = NameTree::default();
        let mut draw = |rng: &mut Rng| draw_transaction(rng, &mut tree, alphabet);
        let trouble = |rng: &mut Rng| match rng.u32(..100) {
            0..8 if alphabet.refusals => Some(Refuse(draw_refusal(rng))),
            8..11 if alphabet.refusals => Some(Fail(rng.u64(..12), FAILURES[rng.usize(..FAILURES.len())])),
            11..19 if alphabet.refusals => Some(Heal),
            19..22 if alphabet.classes => Some(Other),
            _ => None,
        };
        let may_be_troubled = alphabet.refusals || alphabet.classes;
        let mut step = |rng: &mut Rng| match may_be_troubled.then(|| trouble(rng)).flatten() {
            Some(step) => step,
            None => match rng.u32(..100) {
                0..50 => Commit(draw(rng)),
                50..64 => Async(draw(rng)),
                64..73 => Checkpoint,
                73..81 => Between(draw(rng), draw(rng)),
                81..83 => Mark,
                83..87 => Forget,
                87..91 => Close,
                91..96 => Kill,
                _ => Cut,
            },
        };
        let steps = (0..steps).map(|_| step(rng)).collect();
        NameProgram { setup, seed, steps }
    }

    /// The programs with one step or one change less.
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
            Refuse(refusal) => write!(f, "refuse={refusal}"),
            Fail(after, code) => write!(f, "fail={after}:{code}"),
            Heal => f.write_str("heal"),
            Other => f.write_str("other"),
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
            ["refuse", refusal] => Refuse(refusal.parse()?),
            ["fail", call] => {
                let (after, code) = call.split_once(':').ok_or("a failure is a count and an errno")?;
                Fail(
                    after.parse().map_err(|e| format!("{after}: {e}"))?,
                    code.parse().map_err(|e| format!("{code}: {e}"))?,
                )
            }
            ["heal"] => Heal,
            ["other"] => Other,
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
