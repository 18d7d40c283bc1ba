//! Scenarios with readers beside an owner.

use crate::readers::{readers_of, readers_of_what_waits};

/// So many programs, each with so many readers, show each care for readers that is left out.
const PROGRAMS: u64 = 60;
const READERS: u64 = 60;

/// Readers at interleavings of their calls with those of owners.
pub(crate) fn readers_see_one_moment() -> Result<(), String> {
    (0..PROGRAMS).try_for_each(|seed| readers_of(seed, READERS, 0).map(drop))
}

/// Readers of a file that waits, whose commits are restated.
pub(crate) fn readers_see_what_waits() -> Result<(), String> {
    readers_of_what_waits(4 * READERS).map(drop)
}
