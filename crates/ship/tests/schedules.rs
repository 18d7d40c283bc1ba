//! Shipping in random schedules: every commit that can be restored is one of a durable history, everything that a gate
//! let through is in the newest restore, and the last owner can always go on.

mod simulation;

use simulation::directed;
use simulation::random::{SCENARIOS, run};
use std::collections::BTreeMap;
use untorn_testkit::{drawn_seed, extent, variable_or};

#[test]
fn random_schedules_keep_every_invariant() {
    let first = drawn_seed();
    let runs = variable_or("UNTORN_SHIP_RUNS", extent(40, 1500));
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (scenario, budget) in SCENARIOS {
        for n in 0..runs {
            let happened = run(scenario, *budget, first.wrapping_add(n)).unwrap_or_else(|report| panic!("{report}"));
            happened.into_iter().for_each(|(event, times)| *counts.entry(event).or_default() += times);
        }
    }
    println!("{} schedules: {counts:?}", SCENARIOS.len() as u64 * runs);
    // A schedule that never comes to this would show nothing.
    for event in REACHED {
        assert!(counts.contains_key(event), "no schedule came to {event}");
    }
}

/// Events that random schedules must come to.
const REACHED: &[&str] = &[
    "diverged",
    "forks",
    "gaps",
    "objects that the replica applied",
    "other owners",
    "promotions",
    "pruned objects",
    "put back",
    "restored machines",
    "restores during a schedule",
    "shut out",
    "snapshots",
    "snapshots that the replica loaded",
    "starts",
    "take-overs",
];

#[test]
fn rare_orders_keep_every_invariant() {
    for schedule in directed::ALL {
        if let Err(report) = directed::run(*schedule) {
            panic!("{report}");
        }
    }
}
