//! Scenarios with readers beside an owner.

use crate::readers::{ReaderTotals, readers_of, readers_of_what_waits};

/// The numbers of programs that show every broken invariant of readers.
const PROGRAMS: u64 = 800;
const PROGRAMS_THAT_KEEP: u64 = 40;
const PROGRAMS_WITH_WAITING: u64 = 200;

/// Readers in turns with owners.
pub(crate) fn readers_see_one_commit() -> Result<(), String> {
    (0..PROGRAMS).try_for_each(|seed| readers_of(seed).map(drop))
}

/// Readers of a file that waits, and whose commits are restated.
pub(crate) fn readers_see_what_waits() -> Result<(), String> {
    (0..PROGRAMS_WITH_WAITING).try_for_each(|seed| readers_of_what_waits(seed).map(drop))
}

/// Owners keep old bytes for readers, and free them when the readers are gone. Each program checks the second at its
/// end.
pub(crate) fn kept_space_is_freed() -> Result<(), String> {
    let mut totals = ReaderTotals::default();
    for seed in 0..PROGRAMS_THAT_KEEP {
        totals += readers_of(seed)?;
    }
    match totals.kept_most {
        0 => Err("no owner kept anything for a reader".into()),
        _ => Ok(()),
    }
}
