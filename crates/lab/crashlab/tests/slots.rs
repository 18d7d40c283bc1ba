//! Stores with slots that crash again and again.

use untorn_crashlab::scenarios::ship_and_crash;
use untorn_testkit::variable_or;

/// Repeats the seed in `UNTORN_TEST_SEED`; `UNTORN_LOOPS` says how many follow.
#[test]
fn the_log_of_slots_survives_every_crash() {
    let (first, most): (u64, u64) = (variable_or("UNTORN_TEST_SEED", 1), variable_or("UNTORN_LOOPS", 300));
    let wrong: Vec<String> = (first..first + most).filter_map(|seed| ship_and_crash(seed).err()).collect();
    println!("seeds from {first}, {most} stores");
    assert!(wrong.is_empty(), "{} of {most}:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}
