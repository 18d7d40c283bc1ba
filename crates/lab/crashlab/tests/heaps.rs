//! Random programs over a heap on the simulated disk, beside a model, crashed at every moment and during the recovery.
//! The heap must have, to the last byte, the contents as of a commit that may be the last, and the program continues
//! from there.
//!
//! `UNTORN_TEST_SEED` chooses the programs, `UNTORN_ENUM_SECONDS` gives them more time. A violation prints the line
//! that repeats it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn_crashlab::heaps::{Effort, FailedCalls, HeapCase, Programs, Totals, again_heap, fail_calls};
use untorn_testkit::{drawn_seed, extent, variable};

/// The steps of a program that is crashed, and of one that is not.
const STEPS: usize = 60;
const STEPS_PLAYED: usize = 300;
/// The number of programs that are not crashed.
const PLAYED: u64 = 30;
/// The programs that are tried whatever the time: the first one is crashed, the others are played.
const PROGRAMS_LEAST: u64 = 6;
/// The recoveries that are checked for a crashed program, whatever the time.
const CHECKED_LEAST: u64 = 120;
/// The most programs of one seed, for any time limit.
const PROGRAMS_MAX: u64 = 1 << 32;

#[test]
fn every_heap_survives_every_crash() {
    let seed = drawn_seed();
    let deadline = Instant::now() + Duration::from_secs(variable("UNTORN_ENUM_SECONDS").unwrap_or(extent(12, 60)));
    let effort = Effort { cuts_max: 3, second_every: 4, least: CHECKED_LEAST, deadline: Some(deadline) };
    let next = AtomicU64::new(0);
    let found = Mutex::new((Totals::default(), Vec::new()));
    let worker = || {
        while found.lock().1.is_empty() {
            let (mut programs, nth) = (Programs::new(effort), next.fetch_add(1, Relaxed));
            if nth >= PROGRAMS_LEAST && Instant::now() >= deadline {
                break;
            }
            let seed = seed * PROGRAMS_MAX + nth;
            let played = (1..=PLAYED).contains(&nth);
            let done = if played { programs.play(seed, STEPS_PLAYED) } else { programs.program(seed, STEPS) };
            let (totals, violations) = &mut *found.lock();
            *totals += programs.totals();
            violations.extend(done.err());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (totals, violations) = found.into_inner();
    println!(
        "{} programs with {} commits; {} crash states with something lost, {} recoveries checked, {} of them of recoveries",
        totals.programs, totals.commits, totals.states, totals.checked, totals.second
    );
    violations.iter().for_each(|violation| println!("VIOLATION {violation}\n"));
    assert!(violations.is_empty(), "{} violations", violations.len());
    assert!(totals.programs >= PROGRAMS_LEAST && totals.checked >= CHECKED_LEAST, "{totals:?}");
    assert!(totals.states > 0 && totals.second > 0, "{totals:?}");
}

/// One system call fails in commits, growth, checkpoints, or while a heap is opened or closed: the program gets an
/// error and retries or rolls back, and no commit is lost, even by a crash.
#[test]
fn every_heap_survives_failing_calls() {
    let seed = drawn_seed();
    let seconds = variable("UNTORN_ENUM_SECONDS").unwrap_or(extent(6, 20));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut totals = FailedCalls::default();
    let mut nth = 0;
    while Instant::now() < deadline || totals.went_on == 0 || totals.recovered == 0 {
        let until = Instant::now() + Duration::from_millis(1000 * seconds / 8);
        // Other seeds than in the other test, because a seed determines its heaps' addresses.
        let done = fail_calls(
            seed * PROGRAMS_MAX + PROGRAMS_MAX / 2 + nth,
            STEPS,
            &[libc::EIO, libc::ENOSPC],
            until,
            &mut totals,
        );
        done.unwrap_or_else(|violation| panic!("VIOLATION {violation}"));
        nth += 1;
    }
    println!("{nth} programs, {totals:?}");
    assert!(totals.went_on > 0 && totals.recovered > 0, "{totals:?}");
}

/// Repeats a violation: `UNTORN_HEAP_CASE='seed/steps/crash,crash'`.
#[test]
fn again_one_case() {
    let Some(case) = variable::<HeapCase>("UNTORN_HEAP_CASE") else { return };
    again_heap(&case).unwrap_or_else(|what| panic!("{case}\n  {what}"));
}
