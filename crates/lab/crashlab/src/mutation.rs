//! The mutation points of all crates: sync points, which a disk can skip, and invariants, which a
//! build with the feature `mutants` can disable.

use untorn_os::{Invariant, SyncPoint};

const SYNC_POINTS: [&[SyncPoint]; 2] =
    [untorn_journal::sync_point::SYNC_POINTS, untorn::__private::sync_point::SYNC_POINTS];
const INVARIANTS: [&[Invariant]; 2] = [untorn_journal::invariant::INVARIANTS, untorn::__private::invariant::INVARIANTS];

/// All sync points.
pub fn sync_points() -> Vec<SyncPoint> {
    SYNC_POINTS.concat()
}

/// The position of a sync point in [`sync_points`].
///
/// # Panics
/// If no crate's list has it.
pub fn sync_point_index(point: SyncPoint) -> usize {
    SYNC_POINTS.into_iter().flatten().position(|known| *known == point).expect("a sync point of some crate's list")
}

/// All invariants.
pub fn invariants() -> Vec<Invariant> {
    INVARIANTS.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_used_once() {
        let names: BTreeSet<&str> = sync_points().iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), sync_points().len());
        let names: BTreeSet<&str> = invariants().iter().map(|invariant| invariant.name()).collect();
        assert_eq!(names.len(), invariants().len());
    }
}
