//! The effort and the counts of tests over names.

use crate::names_fuzz::tree::Alphabet;
use std::ops::AddAssign;

/// The effort of a test.
#[derive(Clone, Copy, Debug)]
pub struct NameEffort {
    /// The moments of each step at which it is crashed.
    pub moments: usize,
    /// The power cuts at each of these moments, besides the kill.
    pub cuts: usize,
    /// The number of first steps that are not crashed, as shorter programs crash them.
    pub steps_before: usize,
    /// The alphabet from which changes are drawn.
    pub alphabet: Alphabet,
}

/// The counts of programs and crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameTotals {
    /// Programs that ran.
    pub programs: u64,
    /// Commits of these programs.
    pub commits: u64,
    /// States that were recovered and checked, including kills.
    pub checked: u64,
    /// Power cuts that lost, tore or reordered something unflushed.
    pub states: u64,
    /// Crashes during a recovery.
    pub second: u64,
    /// Recoveries while the kernel refused something.
    pub refused: u64,
    /// The number of these after which something was in quarantine.
    pub quarantined: u64,
    /// Changes that failed, or waited, because the kernel refused them.
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
