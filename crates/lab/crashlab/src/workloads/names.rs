//! Programs over names, and the states that a crash may leave: every name, size, byte and mode.

use super::managed::{COMMIT, Recovers, STORE, SUBMIT, Window, tell};
use crate::device::Acks;
use crate::names_fuzz::{Alphabet, NameChange, NamePlayer, NameTree, Rights, draw_transaction};
use crate::replay::{Check, Program};
use anyhow::{Context, Result};
use fastrand::Rng;
use std::path::Path;
use untorn::{Store, StoreOptions};

const COMMITS: usize = 40;
/// These programs run as root, for whom permission bits forbid nothing.
const ALPHABET: Alphabet = Alphabet { rights: Rights::Any, ..Alphabet::CHANGES };

enum Step {
    Commit(Vec<NameChange>),
    Background(Vec<NameChange>),
    Checkpoint,
    Reopen,
}

/// A program over names, drawn from a seed.
pub struct OverNames {
    seed: u64,
    steps: Vec<Step>,
    /// The state after each commit.
    states: Vec<NameTree>,
}

impl OverNames {
    /// The program of a seed.
    pub fn new(seed: u64) -> OverNames {
        let rng = &mut Rng::with_seed(seed);
        let (mut steps, mut states) = (Vec::new(), vec![NameTree::default()]);
        while states.len() <= COMMITS {
            let mut tree = states.last().expect("the start").clone();
            match rng.u32(..20) {
                0 => steps.push(Step::Reopen),
                1 => steps.push(Step::Checkpoint),
                kind => {
                    let changes = draw_transaction(rng, &mut tree, ALPHABET);
                    if !changes.is_empty() {
                        states.push(tree);
                        steps.push(if kind < 5 { Step::Background(changes) } else { Step::Commit(changes) });
                    }
                }
            }
        }
        OverNames { seed, steps, states }
    }

    fn open(&self, dir: &Path) -> Result<Store, untorn::Error> {
        StoreOptions::new().create(true).journal_bytes(128 << 10).open(dir.join(STORE))
    }

    /// Opens the store, and finds the commit that it shows, among those in question.
    fn which(&self, dir: &Path, window: Window) -> Result<(Store, usize), String> {
        let store = self.open(dir).map_err(|e| format!("the store cannot be opened: {e}"))?;
        let quarantined = store.status().quarantined;
        if !quarantined.is_empty() {
            return Err(format!("files were set aside: {quarantined:?}"));
        }
        // The opening has made the names; contents may still be in the journal.
        store.checkpoint().map_err(|e| format!("what was committed cannot be applied: {e}"))?;
        let mut differs = String::new();
        for number in (window.least..=window.most).rev() {
            match self.states[number].difference_from(&dir.join(STORE), ALPHABET) {
                Ok(None) => return Ok((store, number)),
                Ok(Some(how)) => differs = how,
                Err(e) => return Err(format!("the directory cannot be read: {e}")),
            }
        }
        Err(format!("{window:?}: {differs}"))
    }
}

impl Program for OverNames {
    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let mut acks = Acks::open(acks)?;
        let (mut player, mut number) = (NamePlayer::new(self.open(dir)?), 0);
        for step in &self.steps {
            match step {
                Step::Commit(changes) | Step::Background(changes) => {
                    let mut tree = self.states[number].clone();
                    number += 1;
                    tell(&mut acks, &format!("{SUBMIT}{number}"))?;
                    let done = match step {
                        Step::Background(_) => match player.commit_async(&mut tree, changes, ALPHABET) {
                            Ok(ticket) => ticket.map_or(Ok(()), |ticket| ticket.wait()),
                            Err(e) => Err(e),
                        },
                        _ => player.commit(&mut tree, changes, ALPHABET),
                    };
                    done.with_context(|| format!("commit {number}"))?;
                    tell(&mut acks, &format!("{COMMIT}{number}"))?;
                    player.forget(&tree, number.is_multiple_of(5));
                }
                Step::Checkpoint => player.store.checkpoint()?,
                Step::Reopen => {
                    player.forget(&NameTree::default(), true);
                    player.store.close()?;
                    player = NamePlayer::new(self.open(dir)?);
                }
            }
        }
        player.forget(&NameTree::default(), true);
        Ok(player.store.close()?)
    }
}

impl Check for OverNames {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let (store, number) = self.which(dir, Window::of(said))?;
        // The program continues, closes, and leaves plain files.
        let (mut tree, rng) = (self.states[number].clone(), &mut Rng::with_seed(!self.seed));
        let changes = draw_transaction(rng, &mut tree.clone(), ALPHABET);
        let mut player = NamePlayer::new(store);
        let text = |e: untorn::Error| format!("after recovery: {e}: {changes:?}");
        player.commit(&mut tree, &changes, ALPHABET).map_err(text)?;
        player.forget(&NameTree::default(), true);
        player.store.close().map_err(text)?;
        match tree.difference_from(&dir.join(STORE), ALPHABET) {
            Ok(None) => Ok(()),
            Ok(Some(how)) => Err(format!("after recovery and a close: {how}")),
            Err(e) => Err(format!("after recovery: {e}")),
        }
    }
}

impl Recovers for OverNames {
    fn recover(&self, dir: &Path, said: &[String], found: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let (store, number) = self.which(dir, Window::of(said)).map_err(anyhow::Error::msg)?;
        found(number)?;
        Ok(store.close()?)
    }
}
