//! How much of programs over names is tried, and what was.

use crate::names_fuzz::tree::Alphabet;
use std::ops::AddAssign;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct NameEffort {
    /// Moments of each step at which it is crashed.
    pub moments: usize,
    /// Power cuts at each of them, besides the kill.
    pub cuts: usize,
    /// Steps that are not crashed: shorter programs have them.
    pub steps_before: usize,
    /// What changes are drawn from.
    pub alphabet: Alphabet,
}

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameTotals {
    /// Programs that ran.
    pub programs: u64,
    /// Their commits.
    pub commits: u64,
    /// States that were recovered and checked, kills included.
    pub checked: u64,
    /// Power cuts after which something unflushed was lost, torn or reordered.
    pub states: u64,
    /// Crashes during a recovery.
    pub second: u64,
    /// Recoveries while the kernel refused something.
    pub refused: u64,
    /// Those after which something was in quarantine.
    pub quarantined: u64,
    /// Changes that failed, or waited, as the kernel refused them.
    pub failed: u64,
}

impl AddAssign for NameTotals {
    fn add_assign(&mut self, more: NameTotals) {
        self.programs += more.programs;
        self.commits += more.commits;
        self.checked += more.checked;
        self.states += more.states;
        self.second += more.second;
        self.refused += more.refused;
        self.quarantined += more.quarantined;
        self.failed += more.failed;
    }
}
