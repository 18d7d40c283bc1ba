//! Programs over a heap, and the states that a crash may leave.

use super::managed::{COMMIT, Recovers, STORE, SUBMIT, Window, tell};
use crate::device::Acks;
use crate::heaps::{Change, HeapFixture, HeapModel, blocks_of};
use crate::replay::{Check, Program};
use anyhow::{Context, Result};
use fastrand::Rng;
use std::path::Path;
use untorn::heap::{Heap, HeapOptions};
use untorn::{File, Store, StoreOptions};

const COMMITS: usize = 30;
const HEAP: &str = "heap";
/// An ordinary file that some commits change, too: it has the number of the last one that did.
const NOTE: &str = "note";

/// The way in which changes are committed, or rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Waiting,
    InBackground,
    WithNote,
    RolledBack,
}

enum Step {
    Changes(Vec<Change>, How),
    Checkpoint,
    Quiesce,
    Reopen,
}

/// The state after a commit.
struct State {
    model: HeapModel,
    note: u64,
}

/// A program over a heap and a file, drawn from a seed.
pub struct OverHeap {
    seed: u64,
    steps: Vec<Step>,
    states: Vec<State>,
}

struct Open {
    heap: Heap,
    note: File,
    store: Store,
}

impl Open {
    fn at(dir: &Path) -> Result<Open, untorn::Error> {
        let store = StoreOptions::new().create(true).journal_bytes(256 << 10).open(dir.join(STORE))?;
        // SAFETY: one thread uses the heap.
        let options = unsafe { HeapOptions::new().create(true).quiet(true) }.dirty_max(1 << 20);
        let heap = options.open_in(&store, HEAP)?;
        Ok(Open { heap, note: store.open_or_create_file(NOTE)?, store })
    }

    fn close(self) -> Result<()> {
        self.heap.close()?;
        self.note.close()?;
        Ok(self.store.close()?)
    }

    fn commit(&self, how: How, number: u64) -> Result<(), untorn::Error> {
        match how {
            How::Waiting => self.heap.commit(),
            How::InBackground => self.heap.commit_async()?.wait(),
            How::WithNote => {
                self.note.write_at(&number.to_le_bytes(), 0)?;
                self.heap.syncv(&[&self.note])
            }
            // SAFETY: nothing that was allocated since is used.
            How::RolledBack => unsafe { self.heap.rollback() },
        }
    }
}

impl OverHeap {
    /// The program of a seed.
    pub fn new(seed: u64) -> OverHeap {
        let rng = &mut Rng::with_seed(seed);
        let (mut steps, mut states) = (Vec::new(), vec![State { model: HeapModel::default(), note: 0 }]);
        while states.len() <= COMMITS {
            match rng.u32(..20) {
                0 => steps.push(Step::Reopen),
                1 => steps.push(Step::Checkpoint),
                2 => steps.push(Step::Quiesce),
                kind => {
                    let State { model, note } = states.last().expect("the start");
                    let (mut model, note) = (model.clone(), *note);
                    let changes = (0..1 + rng.usize(..6)).map(|_| {
                        let change = model.draw(rng);
                        model.apply(&change);
                        change
                    });
                    let changes = changes.collect();
                    let number = states.len() as u64;
                    let (how, note) = match kind {
                        3..6 => (How::InBackground, note),
                        6..9 => (How::WithNote, number),
                        9 | 10 => (How::RolledBack, note),
                        _ => (How::Waiting, note),
                    };
                    steps.push(Step::Changes(changes, how));
                    if how != How::RolledBack {
                        states.push(State { model, note });
                    }
                }
            }
        }
        OverHeap { seed, steps, states }
    }

    /// Finds the commit that the heap shows, among those in question.
    fn which(&self, open: &Open, window: Window) -> Result<usize, String> {
        let fixture = HeapFixture::of(&open.heap).map_err(|e| format!("the structures: {e}"))?;
        let serial = fixture.serial();
        let found = (window.least..=window.most).find(|n| self.states[*n].model.serial == serial);
        let Some(number) = found else {
            let held = self.states.iter().position(|state| state.model.serial == serial);
            return Err(format!("{window:?}: the heap is as of {serial} changes, which is commit {held:?}"));
        };
        fixture.compare(&self.states[number].model).map_err(|what| format!("commit {number}: {what}"))?;
        let mut note = [0; 8];
        open.note.read_at(&mut note, 0).map_err(|e| format!("the note: {e}"))?;
        let (note, wanted) = (u64::from_le_bytes(note), self.states[number].note);
        if note == wanted {
            Ok(number)
        } else {
            Err(format!("commit {number}: the note is of {note}, not of {wanted}"))
        }
    }

    fn open(&self, dir: &Path) -> Result<Open, String> {
        let open = Open::at(dir).map_err(|e| format!("the heap cannot be opened: {e}"))?;
        let quarantined = open.store.status().quarantined;
        if quarantined.is_empty() { Ok(open) } else { Err(format!("files were set aside: {quarantined:?}")) }
    }
}

fn apply(heap: &Heap, model: &mut HeapModel, change: &Change) -> Result<(), untorn::Error> {
    HeapFixture::of(heap)?.apply(change, model)?;
    model.apply(change);
    Ok(())
}

impl Program for OverHeap {
    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let mut acks = Acks::open(acks)?;
        let (mut open, mut number) = (Open::at(dir)?, 0);
        for step in &self.steps {
            match step {
                Step::Changes(changes, how) => {
                    let mut model = self.states[number].model.clone();
                    changes.iter().try_for_each(|change| apply(&open.heap, &mut model, change))?;
                    if *how == How::RolledBack {
                        open.commit(*how, 0)?;
                        continue;
                    }
                    number += 1;
                    tell(&mut acks, &format!("{SUBMIT}{number}"))?;
                    open.commit(*how, number as u64).with_context(|| format!("commit {number}"))?;
                    tell(&mut acks, &format!("{COMMIT}{number}"))?;
                }
                Step::Checkpoint => open.store.checkpoint()?,
                // SAFETY: one thread uses the heap.
                Step::Quiesce => unsafe { open.heap.reclaim() }?,
                Step::Reopen => {
                    open.close()?;
                    open = Open::at(dir)?;
                }
            }
        }
        open.close()
    }
}

impl Check for OverHeap {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let open = self.open(dir)?;
        let number = self.which(&open, Window::of(said))?;
        // The program continues, closes, and leaves a file with exactly its allocations.
        let text = |e: untorn::Error| format!("after recovery: {e}");
        let (mut model, rng) = (self.states[number].model.clone(), &mut Rng::with_seed(!self.seed));
        for _ in 0..8 {
            let change = model.draw(rng);
            apply(&open.heap, &mut model, &change).map_err(text)?;
        }
        open.heap.commit().map_err(text)?;
        let (blocks, others) = {
            let fixture = HeapFixture::of(&open.heap).map_err(text)?;
            fixture.compare(&model).map_err(|what| format!("after recovery: {what}"))?;
            fixture.allocations()
        };
        open.close().map_err(|e| format!("after recovery: {e:#}"))?;
        let file = std::fs::read(dir.join(STORE).join(HEAP)).map_err(|e| format!("after recovery: {e}"))?;
        let found = blocks_of(&file).map_err(|what| format!("after recovery: {what}"))?;
        let own = |(at, bytes): &(usize, usize)| found.get(at).is_some_and(|found| found >= bytes);
        if blocks.iter().all(own) && found.len() == blocks.len() + others {
            return Ok(());
        }
        Err(format!(
            "after recovery the file has {} allocations: {found:x?}, not {blocks:x?} and {others}",
            found.len()
        ))
    }
}

impl Recovers for OverHeap {
    fn recover(&self, dir: &Path, said: &[String], found: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let open = Open::at(dir)?;
        found(self.which(&open, Window::of(said)).map_err(anyhow::Error::msg)?)?;
        open.close()
    }
}
