//! Every program of one to three operations, crashed at every moment. `untorn_crashlab::programs::program` has the
//! alphabet, `untorn_crashlab::enumeration::enumerate` the order.
//!
//! In addition, programs of four and five operations on names, drawn from the seed.
//!
//! A usual run tries all programs of one operation, and a part of the longer ones, each on one setup. A drawn seed
//! chooses both. `UNTORN_ENUM_SECONDS` tries all of them on every setup for that time; `UNTORN_ENUM_FULL=1` does so with
//! more power cuts and to the end (hours); `UNTORN_CASE` repeats one case.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration, again, within};
use untorn_crashlab::programs::program::{Case, Op, STARTS, Setup, Start, alphabet, names_alphabet};
use untorn_testkit::{drawn_seed, extent, is_full, slice, variable};

const LONGER_PROGRAMS: u64 = 500;
/// The programs of one and of two operations that a usual run continues.
const CONTINUED: [usize; 2] = [4, 8];

#[test]
fn every_program_survives_every_crash() {
    let full = variable::<u32>("UNTORN_ENUM_FULL").is_some();
    let seconds = variable("UNTORN_ENUM_SECONDS");
    let (is_slice, seed) = (!full && !is_full() && seconds.is_none(), drawn_seed());
    let seconds = seconds.unwrap_or(560);
    let started = Instant::now();
    let enumeration = Enumeration::new(Bounds {
        violations_max: variable("UNTORN_ENUM_VIOLATIONS").unwrap_or(1),
        // A slice is tried to its end, however long that takes.
        deadline: if full || is_slice { None } else { within(Duration::from_secs(seconds)) },
        seed,
        ..Bounds::default()
    });
    let ops: Vec<Op> = alphabet().collect();
    let cuts_max = if full { 64 } else { 8 };
    let one_op = Effort { cuts_max, second_max: 4, after_failed_sync_max: 4, failed_sync_ways: 3 };
    let two_ops = Effort { second_max: 1, after_failed_sync_max: 1, failed_sync_ways: 1, ..one_op };
    let three_ops = Effort { cuts_max: if full { 16 } else { 3 }, after_failed_sync_max: full as usize, ..two_ops };
    let tell = |start: Start, len: usize, programs: &[Vec<Op>]| {
        let totals = enumeration.totals();
        println!(
            "{start:?}, {} programs of {len} that do something; in all {} runs, {} crash states with something lost, {} distinct disk images, {} recoveries checked, {} failed syncs; {} s{}",
            programs.len(),
            totals.programs,
            totals.states,
            totals.images,
            totals.checked,
            totals.failed_syncs,
            started.elapsed().as_secs(),
            if enumeration.is_over() { "; STOPPED before it was complete" } else { "" }
        );
    };
    let some = |programs: Vec<Vec<Op>>, most: usize| if is_slice { slice(&programs, most, seed) } else { programs };
    let mut pairs = Vec::new();
    // If the time is over early, it is not always the same programs that are left out.
    let mut starts = STARTS;
    starts.rotate_left(seed as usize % STARTS.len());
    for start in starts {
        // In a slice, one setup for each program.
        let everywhere = |at: usize| {
            let setups: Vec<Setup> = Setup::all(start, at).collect();
            let chosen = fastrand::Rng::with_seed(seed << 16 | at as u64).usize(..setups.len());
            if is_slice { vec![setups[chosen]] } else { setups }
        };
        let opened = enumeration.level(&[], &ops, &everywhere, &one_op);
        let one = enumeration.level(&opened, &ops, &everywhere, &one_op);
        tell(start, 1, &one);
        let two = enumeration.level(&some(one, CONTINUED[0]), &ops, &everywhere, &two_ops);
        tell(start, 2, &two);
        pairs.push((start, two));
    }
    for (start, two) in pairs {
        // One setup per program, in turn, unless there is time for all of them.
        let setups = |at: usize| match full {
            true => Setup::all(start, at).collect::<Vec<_>>(),
            false => Setup::in_turn(start, at).collect(),
        };
        let three = enumeration.level(&some(two, CONTINUED[1]), &ops, &setups, &three_ops);
        tell(start, 3, &three);
        assert!(!three.is_empty() || enumeration.is_over(), "no program of three operations does anything");
    }
    let violations = enumeration.violations();
    for violation in &violations {
        println!("VIOLATION {violation}\n");
    }
    assert!(violations.is_empty(), "{} violations", violations.len());
    let checked = enumeration.totals().checked;
    assert!(checked > 20_000 || !is_slice, "{checked} recoveries");
}

/// Programs of four and five operations on names, and steps of checkpoints between them: `UNTORN_NAMES_PROGRAMS` sets
/// their number.
#[test]
fn longer_programs_of_names_survive_every_crash() {
    let seed = drawn_seed();
    let programs = variable("UNTORN_NAMES_PROGRAMS").unwrap_or(extent(LONGER_PROGRAMS / 4, LONGER_PROGRAMS));
    let enumeration = Enumeration::new(Bounds { seed, ..Bounds::default() });
    let effort = Effort { cuts_max: 3, second_max: 1, after_failed_sync_max: 1, failed_sync_ways: 1 };
    let ops: Vec<Op> = names_alphabet().collect();
    let next = AtomicU64::new(0);
    let worker = || {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= programs || enumeration.is_over() {
                return;
            }
            let rng = &mut fastrand::Rng::with_seed(seed << 32 | nth);
            let program: Vec<Op> = (0..rng.usize(4..=5)).map(|_| ops[rng.usize(..ops.len())]).collect();
            let setups: Vec<Setup> = Setup::all(STARTS[rng.usize(..STARTS.len())], rng.usize(..6)).collect();
            enumeration.program(&setups[rng.usize(..setups.len())], &program, &effort);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (totals, violations) = (enumeration.totals(), enumeration.violations());
    println!(
        "{} programs of four and five operations on names, {} crash states with something lost, {} distinct disk images, {} recoveries checked, {} failed syncs",
        totals.programs, totals.states, totals.images, totals.checked, totals.failed_syncs
    );
    violations.iter().for_each(|violation| println!("VIOLATION {violation}\n"));
    assert!(violations.is_empty(), "{} violations", violations.len());
    assert!(totals.checked > 10 * programs, "{} recoveries", totals.checked);
}

/// Repeats one case in the form that a violation prints, call by call.
#[test]
fn again_one_case() {
    let Some(case) = variable::<String>("UNTORN_CASE") else { return };
    let case: Case = case.parse().unwrap();
    if let Err(what) = again(&case, &|line| println!("{line}")) {
        panic!("{case}\n  {what}");
    }
}

/// The program ends its begun checkpoint where a commit would wait for it.
#[test]
fn a_commit_beside_a_begun_checkpoint_has_room() {
    let case: Case = "pending,ext4,garbage,growing,direct/0/cut,large,mkdir,across/".parse().unwrap();
    again(&case, &|_| ()).unwrap_or_else(|what| panic!("{case}\n  {what}"));
}
