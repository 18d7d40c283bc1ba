//! Examines the slots of a store, such as that of `untorn ship`.

use super::super::slots::ago;
use super::finding::Finding;
use untorn::offline::{Inspection, SlotInfo};
use untorn_terminal::table::count;

/// How far each slot is.
pub fn all(found: &Inspection) -> impl Iterator<Item = Finding> {
    found.slots.iter().map(one)
}

fn one(slot: &SlotInfo) -> Finding {
    let of = |text: String| Finding::new("slot", format!("{} {text}", slot.name));
    if let Some(loss) = slot.loss() {
        return of("has lost log".into()).note(loss);
    }
    match (slot.acknowledged, slot.behind) {
        (None, _) => of("has a torn acknowledgement".into()).note("its consumer finds the place when it starts again"),
        (Some(point), None) => of(format!("acknowledged commit {}, which this store does not hold", point.lsn))
            .note("the store is an older state, or a copy: `untorn ship` says what to do when it starts"),
        (Some(point), Some(behind)) => {
            let behind = count(behind, "commit", "commits");
            of(match slot.acknowledged_ns {
                0 => format!("has acknowledged nothing; {behind} since it was made"),
                ns => format!("acknowledged commit {} {}; {behind} behind it", point.lsn, ago(ns)),
            })
        }
    }
}
