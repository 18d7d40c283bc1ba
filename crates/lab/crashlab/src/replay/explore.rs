//! Explores many crash states of one recording.

use super::bench::{Bench, Check, Verdict};
use super::crash_state::State;
use super::recording::{Recording, apply};
use crate::device::{FileSystem, Image};
use anyhow::Result;
use std::collections::HashSet;
use std::ops::AddAssign;
use std::time::Instant;

/// Counts of the states that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Crash states that count: something unflushed was lost or torn, and no earlier state had the same disk and the
    /// same acknowledgements.
    pub states: u64,
    /// Different disks among them.
    pub images: u64,
    /// States with a later write, but without an earlier one.
    pub reordered: u64,
    /// States with a partial write.
    pub torn: u64,
    /// States in which something acknowledged was missing or incomplete.
    pub broken: u64,
    /// States that the kernel could not mount.
    pub unmountable: u64,
    /// Drawn states that do not count, because nothing was lost or the state was known.
    pub idle: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.states += more.states;
        self.images += more.images;
        self.reordered += more.reordered;
        self.torn += more.torn;
        self.broken += more.broken;
        self.unmountable += more.unmountable;
        self.idle += more.idle;
    }
}

/// A violation: a state that the check refused.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The state.
    pub state: State,
    /// The verdict of the check.
    pub verdict: Verdict,
}

/// A run over crash states of one recording.
pub struct Exploration<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The oracle.
    pub check: &'a dyn Check,
    /// The seed from which the seeds of the states are derived.
    pub seed: u64,
    /// The number of counted states after which it ends.
    pub states: u64,
    /// The number of violations after which it ends.
    pub violations_max: usize,
    /// The time at which it ends early.
    pub deadline: Option<Instant>,
}

/// The most seeds drawn per counted state: a recording may have few states.
const DRAWS_PER_STATE: u64 = 20;
/// The most states that are drawn before the first of them is checked.
const BATCH_MAX: u64 = 256;

/// The seed of the n-th state.
pub fn seed_of(seed: u64, n: u64) -> u64 {
    fastrand::Rng::with_seed(seed ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).u64(..1 << 53)
}

impl Exploration<'_> {
    /// Explores, and calls `tell` after every checked state.
    pub fn run(&self, bench: &mut Bench, mut tell: impl FnMut(&Totals)) -> Result<(Totals, Vec<Violation>)> {
        let (mut totals, mut violations) = (Totals::default(), Vec::new());
        let (mut known, mut images) = (HashSet::new(), HashSet::new());
        let mut drawn = 0;
        while totals.states < self.states && drawn < self.states * DRAWS_PER_STATE {
            let seeds = drawn..drawn + (self.states - totals.states).min(BATCH_MAX);
            drawn = seeds.end;
            let mut batch: Vec<State> =
                seeds.filter_map(|n| State::draw(self.recording, seed_of(self.seed, n))).collect();
            // In the order of their cuts, so that the flushed part of the disk is made only once.
            batch.sort_by_key(|state| state.cut);
            let (mut flushed, mut at) = (self.recording.base.clone(), 0);
            for state in batch {
                let since = self.recording.flushed(state.cut);
                apply(&mut flushed, &self.recording.events[at..since]);
                at = since;
                if !self.count(&state, &flushed, &mut known, &mut images, &mut totals) {
                    totals.idle += 1;
                    continue;
                }
                let image = state.image(self.recording, &flushed);
                match bench.judge(self.recording, state.cut, &image, self.check)? {
                    Verdict::Sound => {}
                    Verdict::Unmountable(_) if self.is_of_torn_metadata(bench, &state, &flushed)? => {
                        totals.unmountable += 1;
                    }
                    verdict => {
                        match verdict {
                            Verdict::Unmountable(_) => totals.unmountable += 1,
                            _ => totals.broken += 1,
                        }
                        violations.push(Violation { state, verdict });
                    }
                }
                tell(&totals);
                let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if violations.len() >= self.violations_max || late {
                    return Ok((totals, violations));
                }
            }
        }
        Ok((totals, violations))
    }

    /// XFS does not replay a metadata block whose first sector is new, although the others may be old, and then the
    /// file system cannot be mounted. The program is not at fault if the state passes when such writes are complete.
    fn is_of_torn_metadata(&self, bench: &mut Bench, state: &State, flushed: &Image) -> Result<bool> {
        if self.recording.fs != FileSystem::Xfs || !state.is_torn() {
            return Ok(false);
        }
        let image = state.with_whole_writes().image(self.recording, flushed);
        Ok(bench.judge(self.recording, state.cut, &image, self.check)? == Verdict::Sound)
    }

    /// Whether the state counts.
    fn count(
        &self,
        state: &State,
        flushed: &Image,
        known: &mut HashSet<(u64, usize)>,
        images: &mut HashSet<u64>,
        totals: &mut Totals,
    ) -> bool {
        let sum = state.image(self.recording, flushed).sum();
        let said = self.recording.said(state.cut).len();
        if sum == state.full(self.recording, flushed).sum() || !known.insert((sum, said)) {
            return false;
        }
        totals.states += 1;
        totals.images += u64::from(images.insert(sum));
        totals.reordered += u64::from(state.is_reordered());
        totals.torn += u64::from(state.is_torn());
        true
    }
}
