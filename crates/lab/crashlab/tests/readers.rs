//! Readers beside an owner on the simulated disk, in turns with all their calls.
//!
//! `UNTORN_TEST_SEED` chooses the programs, `UNTORN_READERS_PROGRAMS` sets their number.

use parking_lot::Mutex;
use untorn_crashlab::mutation::sync_point_index;
use untorn_crashlab::readers::{
    ReaderTotals, interleaving_of, reader_after_a_killed_owner, readers_of, readers_of_what_waits,
};
use untorn_crashlab::scenarios::SCENARIOS;
use untorn_journal::sync_point;
use untorn_testkit::variable;

const PROGRAMS: u64 = 300;
const PROGRAMS_WITH_WAITING: u64 = 20;
const PROGRAMS_TWICE: u64 = 25;
const PROGRAMS_KILLED: u64 = 60;

/// Serialises the tests, because a switched-off mutant is off for the whole process.
static SWITCHES: Mutex<()> = Mutex::new(());

#[test]
fn readers_see_one_commit() {
    let _switches = SWITCHES.lock();
    let seed = variable("UNTORN_TEST_SEED").unwrap_or(0);
    let programs = variable("UNTORN_READERS_PROGRAMS").unwrap_or(PROGRAMS);
    println!("programs {seed} to {}", seed + programs);
    let mut totals = ReaderTotals::default();
    for n in seed..seed + programs {
        totals += readers_of(n).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{totals:?}");
    let counts = [totals.whole, totals.across, totals.pieces, totals.survived, totals.followed];
    if programs >= 100 {
        assert!(counts.iter().all(|count| *count > programs / 2), "{totals:?}");
        assert!(totals.died > 0 && totals.killed > 0 && totals.cuts > 0, "{totals:?}");
    }
}

#[test]
fn readers_see_what_waits() {
    let _switches = SWITCHES.lock();
    let mut totals = ReaderTotals::default();
    for n in 0..PROGRAMS_WITH_WAITING {
        totals += readers_of_what_waits(n).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{totals:?}");
    assert!(totals.across > 0);
}

#[test]
fn the_same_seed_gives_the_same_interleaving() {
    let _switches = SWITCHES.lock();
    for seed in 0..PROGRAMS_TWICE {
        let [once, again] = [(); 2].map(|()| interleaving_of(seed));
        let same = once.iter().zip(&again).take_while(|(one, other)| one == other).count();
        let differs = same < once.len().max(again.len());
        assert!(!differs, "program {seed}, call {same}: {:?} and {:?}", once.get(same), again.get(same));
    }
}

#[test]
fn kept_space_is_freed() {
    let _switches = SWITCHES.lock();
    let (_, scenario) = SCENARIOS.iter().find(|(name, _)| *name == "kept_space_is_freed").expect("a scenario");
    scenario().unwrap_or_else(|what| panic!("{what}"));
}

/// The commits of a killed owner that are only in the page cache are flushed before a reader shows them.
#[test]
fn what_a_reader_flushed_survives() {
    let _switches = SWITCHES.lock();
    for seed in 0..PROGRAMS_KILLED {
        reader_after_a_killed_owner(seed, 0).unwrap();
    }
    let skipped = 1 << sync_point_index(sync_point::READER_LOG);
    let missed = (0..PROGRAMS_KILLED).find_map(|seed| reader_after_a_killed_owner(seed, skipped).err());
    println!("without the flush: {missed:?}");
    assert!(missed.is_some_and(|what| what.contains("a power cut leaves")), "no program shows a missing flush");
}
