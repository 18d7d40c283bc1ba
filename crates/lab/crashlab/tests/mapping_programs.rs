//! Programs over a mapped file, crashed at every moment. Memory must equal the model after every operation, and after a
//! crash the last acknowledged commit, or the pending one, must be there completely.
//!
//! `UNTORN_TEST_SEED` chooses the longer programs, of which a usual run tries a part; with `UNTORN_ENUM_SECONDS`, all
//! programs of three operations follow until that time is over. A violation prints the line that repeats it.

use std::time::{Duration, Instant};
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration, within};
use untorn_crashlab::programs::program::{Op, STARTS, Setup, mapped_alphabet};
use untorn_testkit::{drawn_seed, extent, is_full, slice, variable};

/// The programs of one operation that a usual run continues.
const CONTINUED: usize = 16;

#[test]
fn every_mapped_program_survives_every_crash() {
    let more_seconds = variable("UNTORN_ENUM_SECONDS");
    let seed = drawn_seed();
    let started = Instant::now();
    // A slice is tried to its end, however long that takes.
    let is_slice = !is_full() && more_seconds.is_none();
    let bounds = Bounds {
        deadline: within(Duration::from_secs(more_seconds.unwrap_or(120))).filter(|_| !is_slice),
        violations_max: variable("UNTORN_ENUM_VIOLATIONS").unwrap_or(1),
        seed,
        ..Bounds::default()
    };
    let enumeration = Enumeration::new(bounds);
    let tell = |what: &str, programs: usize| {
        let totals = enumeration.totals();
        println!(
            "{what}: {programs} programs that do something; in all {} runs, {} crash states with something lost, {} distinct disk images, {} recoveries checked, {} failed syncs; {} s{}",
            totals.programs,
            totals.states,
            totals.images,
            totals.checked,
            totals.failed_syncs,
            started.elapsed().as_secs(),
            if enumeration.is_over() { "; STOPPED before it was complete" } else { "" }
        );
    };
    let ops: Vec<Op> = mapped_alphabet().collect();
    let one_op = Effort { cuts_max: 8, second_max: 2, after_failed_sync_max: 2, failed_sync_ways: 1 };
    let more = Effort { cuts_max: 3, second_max: 1, after_failed_sync_max: 0, failed_sync_ways: 0 };
    let map = [vec![Op::Map], vec![Op::Told]];
    let in_turn = |start, at: usize| Setup::in_turn(start, at).collect::<Vec<_>>();
    let mut pairs = Vec::new();
    // If the time is over early, it is not always the same programs that are left out.
    let mut starts = STARTS;
    starts.rotate_left(seed as usize % STARTS.len());
    for start in starts {
        let everywhere = |at| {
            if is_slice { in_turn(start, at + seed as usize) } else { Setup::all(start, at).collect() }
        };
        let one = enumeration.level(&map, &ops, &everywhere, &one_op);
        tell(&format!("{start:?}, one operation"), one.len());
        let one = if is_slice { slice(&one, CONTINUED, seed) } else { one };
        let two = enumeration.level(&one, &ops, &|at| in_turn(start, at), &more);
        tell(&format!("{start:?}, two operations"), two.len());
        pairs.push((start, two));
    }
    // Longer programs at random, each continued by every operation.
    let mut rng = fastrand::Rng::with_seed(seed);
    for (start, two) in pairs.iter().filter(|_| !enumeration.is_over()) {
        for len in [4, 7, 10] {
            let prefixes: Vec<Vec<Op>> = (0..extent(3, 12))
                .map(|_| {
                    let mut program = two[rng.usize(..two.len())].clone();
                    program.extend((2..len).map(|_| ops[rng.usize(..ops.len())]));
                    program
                })
                .collect();
            let programs = enumeration.level(&prefixes, &ops, &|at| in_turn(*start, at), &more);
            tell(&format!("{start:?}, {} operations by chance", len + 1), programs.len());
            assert!(
                !programs.is_empty() || enumeration.is_over(),
                "no program of {} operations does anything",
                len + 1
            );
        }
    }
    for (start, two) in pairs.iter().filter(|_| more_seconds.is_some()) {
        let three = enumeration.level(two, &ops, &|at| in_turn(*start, at), &more);
        tell(&format!("{start:?}, three operations"), three.len());
    }
    let violations = enumeration.violations();
    for violation in &violations {
        println!("VIOLATION {violation}\n");
    }
    assert!(violations.is_empty(), "{} violations", violations.len());
    let checked = enumeration.totals().checked;
    assert!(checked > 20_000 || !is_slice, "{checked} recoveries");
}
