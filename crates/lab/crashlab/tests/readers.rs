//! Readers beside an owner on the simulated disk, at interleavings of all their calls.
//!
//! `UNTORN_TEST_SEED` chooses the programs, `UNTORN_READERS_PROGRAMS` sets their number.

use parking_lot::Mutex;
use untorn_crashlab::mutation::sync_point_index;
use untorn_crashlab::readers::{ReaderTotals, readers_of, readers_of_what_waits};
use untorn_crashlab::scenarios::SCENARIOS;
use untorn_journal::sync_point;
use untorn_testkit::variable;

const PROGRAMS: u64 = 40;
const READERS: u64 = 60;

/// Serialises the tests, because a switched-off mutant is off for the whole process.
static SWITCHES: Mutex<()> = Mutex::new(());

#[test]
fn readers_see_one_moment() {
    let _switches = SWITCHES.lock();
    let seed = variable("UNTORN_TEST_SEED").unwrap_or(0);
    let programs = variable("UNTORN_READERS_PROGRAMS").unwrap_or(PROGRAMS);
    println!("programs {seed} to {}", seed + programs);
    let mut totals = ReaderTotals::default();
    for n in seed..seed + programs {
        totals += readers_of(n, READERS, 0).unwrap();
    }
    println!("{totals:?}");
    assert!(totals.whole > totals.expired / 10 && totals.across > 0 && totals.expired > 0, "{totals:?}");
    assert!(totals.followed > 0 && totals.held > 0, "{totals:?}");
}

#[test]
fn leases_are_kept_and_bounded() {
    let _switches = SWITCHES.lock();
    let scenarios = [
        "a_lease_comes_at_any_moment",
        "leases_bound_the_wait",
        "two_owners_of_one_process_id_are_told_apart",
        "what_a_checkpoint_leaves_out_is_kept_for_who_holds_it",
        "what_was_seen_counts_for_a_moment",
    ];
    for wanted in scenarios {
        let (_, scenario) = SCENARIOS.iter().find(|(name, _)| *name == wanted).expect("a scenario");
        scenario().unwrap();
    }
}

#[test]
fn readers_see_what_waits() {
    let _switches = SWITCHES.lock();
    let totals = readers_of_what_waits(400).unwrap();
    println!("{totals:?}");
    assert!(totals.across > 0);
}

/// The commits of a killed owner that are only in the page cache are flushed before a reader shows them.
#[test]
fn what_a_reader_flushed_survives() {
    let _switches = SWITCHES.lock();
    let skipped = 1 << sync_point_index(sync_point::READER_LOG);
    let missed = (0..PROGRAMS).find_map(|seed| readers_of(seed, 0, skipped).err());
    println!("without the flush: {missed:?}");
    assert!(missed.is_some_and(|what| what.contains("a power cut leaves")), "no program shows a missing flush");
}

/// Like the mutation gate for all invariants, but only for those of readers.
#[cfg(feature = "mutants")]
#[test]
fn each_care_for_readers_is_needed() {
    use untorn_journal::invariant::*;
    let _switches = SWITCHES.lock();
    let one_moment = [
        TOLD_WHEN_DURABLE,
        NAMES_TOLD_FIRST,
        APPLYING_TOLD_FIRST,
        CONTENTS_TOLD_FIRST,
        PAGE_WITHDRAWN,
        READ_VALIDATED,
        NAME_VALIDATED,
        LOG_REACHES,
        READ_BY_IDENTITY,
        NEXT_OWNER_WAITS,
        LEASES_VALIDATED,
        PARKED_CLEARED,
        NAMES_UNDONE,
        MOMENT_PASSES,
    ];
    let cares = one_moment.map(|care| (care, "readers_see_one_moment"));
    let mut survived = Vec::new();
    let others = [
        (RESTATED_TOLD, "readers_see_what_waits"),
        (LEASES_WAITED_FOR, "a_lease_comes_at_any_moment"),
        (WANTED_FIRST, "a_lease_comes_at_any_moment"),
        (LOCKED_FIRST, "a_lease_comes_at_any_moment"),
        (PARKED, "a_lease_comes_at_any_moment"),
        (PARKED_AFTER_NAMES, "a_lease_comes_at_any_moment"),
        (CLOSED_VALIDATED, "two_owners_of_one_process_id_are_told_apart"),
        (LEFT_OUT_KEPT, "what_a_checkpoint_leaves_out_is_kept_for_who_holds_it"),
        (ONE_TIMER, "leases_bound_the_wait"),
        (MOMENT_PASSES, "what_was_seen_counts_for_a_moment"),
        (MOMENT_PASSES_UNSEEN, "what_was_seen_counts_for_a_moment"),
        (BROKEN_LEASES_FORGOTTEN, "leases_bound_the_wait"),
    ];
    for (care, name) in others.into_iter().chain(cares) {
        let scenario = SCENARIOS.iter().find(|(known, _)| *known == name).expect("a scenario").1;
        untorn_os::disable(Some(care));
        let found = scenario();
        untorn_os::disable(None);
        println!("{care:?}: {found:?}");
        survived.extend(found.is_ok().then_some(care));
    }
    assert!(survived.is_empty(), "{survived:?}");
}
