//! The smallest programs that once showed a defect, each crashed at every moment of its last operation.

use untorn_crashlab::enumerate::{Bounds, Effort, Enumeration};
use untorn_crashlab::program::Case;

/// The program, written as `setup/steps taken away/operations/`, survives every crash.
fn survives(case: &str) {
    let case: Case = case.parse().unwrap();
    let enumeration = Enumeration::new(Bounds::default());
    let effort = Effort { cuts_max: 200, second_max: 4, after_failed_sync_max: 4 };
    enumeration.program(&case.setup, &case.ops, &effort);
    for violation in enumeration.violations() {
        panic!("{violation}");
    }
    assert!(enumeration.totals().checked > 0);
}

/// A process that was killed before its first commit left the extent file of a large change behind, and
/// as nothing had been committed, no recovery looked for it.
#[test]
fn an_extent_of_a_change_that_was_never_committed_does_not_stay() {
    survives("closed,posix,sector,tight,direct/0/dirty,kill/");
}
