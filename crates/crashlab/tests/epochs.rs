//! Opening without replay: stores that crash again and again, with epochs in their journals that are not applied.

use std::time::{Duration, Instant};
use untorn::sync_point;
use untorn_crashlab::crash_loops::{LoopTotals, crash_loop};
use untorn_crashlab::mutation::sync_point_index;
use untorn_journal::format::EPOCHS_MAX;

/// The header that lists epochs is not flushed: some store loses a commit, or is called damaged.
#[test]
fn the_list_of_epochs_is_flushed() {
    let skipped = 1 << sync_point_index(sync_point::HEADER_LISTED);
    assert!((1..400).any(|seed| crash_loop(seed, skipped, &|_| {}).is_err()), "nothing is lost without that flush");
}

/// Repeats one seed: `UNTORN_LOOP_SEED`.
#[test]
fn again() {
    if let Some(seed) = std::env::var("UNTORN_LOOP_SEED").ok().and_then(|text| text.parse().ok()) {
        println!("{:?}", crash_loop(seed, 0, &|line| println!("{line}")));
    }
}

#[test]
fn epochs_upon_epochs_survive_every_crash() {
    let most = std::env::var("UNTORN_LOOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let first: u64 = std::env::var("UNTORN_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut all, mut wrong) = (LoopTotals::default(), Vec::new());
    let begun = Instant::now();
    for seed in first..first + most {
        match crash_loop(seed, 0, &|_| {}) {
            Ok(totals) => {
                all.openings += totals.openings;
                all.carried += totals.carried;
                all.in_openings += totals.in_openings;
                all.quarantined += totals.quarantined;
                all.listed_max = all.listed_max.max(totals.listed_max);
            }
            Err(what) => wrong.push(format!("{what}\n  again: UNTORN_LOOP_SEED={seed}")),
        }
    }
    println!("{all:?} in {:?}", Duration::from_millis(begun.elapsed().as_millis() as u64));
    assert!(wrong.is_empty(), "{} of {most}:\n{}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert_eq!(all.listed_max, EPOCHS_MAX, "no list was full");
    assert!(all.carried > most && all.in_openings > most && all.quarantined > 0, "{all:?}");
}
