//! Random transactions over names and bytes on the simulated disk, beside a model: crashed at random moments, and
//! during the recovery, every name, size, byte and mode is as of the last acknowledged commit, or of one that was on
//! its way, and the program continues from there.
//!
//! `UNTORN_TEST_SEED` chooses the programs, `UNTORN_NAMES_PROGRAMS` says how many. A violation is made smaller, and
//! prints the line that repeats it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn_crashlab::names_fuzz::{Alphabet, NameEffort, NameProgram, NameTotals, smallest_violation, try_program};

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

const PROGRAMS: u64 = 60;
const STEPS: usize = 14;
/// So many programs of one seed, at most.
const PROGRAMS_MAX: u64 = 1 << 32;
/// A violation is made smaller for so long.
const SMALLER: Duration = Duration::from_secs(30);

fn effort() -> NameEffort {
    NameEffort { moments: 3, cuts: 3, alphabet: Alphabet { rights: false, ..Alphabet::ALL } }
}

#[test]
fn names_survive_every_crash() {
    let seed: u64 = variable("UNTORN_TEST_SEED").unwrap_or(1);
    let programs: u64 = variable("UNTORN_NAMES_PROGRAMS").unwrap_or(PROGRAMS);
    println!("UNTORN_TEST_SEED={seed}");
    let next = AtomicU64::new(0);
    let found = Mutex::new((NameTotals::default(), Vec::new()));
    let worker = || {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= programs || !found.lock().unwrap().1.is_empty() {
                return;
            }
            let effort = effort();
            let program = NameProgram::draw(seed * PROGRAMS_MAX + nth, STEPS, effort.alphabet);
            match try_program(&program, effort) {
                Ok(totals) => found.lock().unwrap().0 += totals,
                Err(violation) => {
                    println!("program {nth}: {}", violation.what);
                    let smallest = smallest_violation(violation, effort, Instant::now() + SMALLER);
                    found.lock().unwrap().1.push(smallest);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (totals, violations) = found.into_inner().unwrap();
    println!(
        "{} programs with {} commits; {} crash states with something lost, {} recoveries checked, {} recoveries crashed",
        totals.programs, totals.commits, totals.states, totals.checked, totals.second
    );
    violations.iter().for_each(|violation| println!("VIOLATION {violation}\n"));
    assert!(violations.is_empty() && totals.programs > 0, "{} violations", violations.len());
}

/// Repeats a violation: `UNTORN_NAMES_CASE='setup/seed/step|step'`.
#[test]
fn again_one_case() {
    let Some(program) = variable::<NameProgram>("UNTORN_NAMES_CASE") else { return };
    assert_eq!(program.to_string().parse(), Ok(program.clone()));
    let effort = NameEffort { moments: 12, cuts: 6, ..effort() };
    try_program(&program, effort).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A power cut that kept the move and lost the new directory would lose the file.
#[test]
fn an_existing_file_moves_into_a_new_directory() {
    for profile in ["posix", "btrfs", "ext4", "xfs"] {
        for seed in 0..40 {
            let case = format!(
                "plain,{profile},sector,roomy,direct/{seed}/commit=create:d:600;write:d:0:9:1|cut|\
                 commit=mkdir:b:700;rename:d:b/d|commit=create:e:600"
            );
            let program: NameProgram = case.parse().expect("a program");
            let effort = NameEffort { moments: 12, cuts: 6, ..effort() };
            try_program(&program, effort).unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
}
