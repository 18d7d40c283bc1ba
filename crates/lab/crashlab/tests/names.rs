//! Transactions over names and bytes on the simulated disk, beside a model, crashed at random moments and during the
//! recovery. Every name, size, byte and mode must be as of the last acknowledged commit, or of a pending one, and the
//! program continues from there. If the kernel refuses something, before or during the recovery, only the files and
//! directories concerned wait, and everything is right once it is refused no more.
//!
//! `UNTORN_TEST_SEED` chooses the programs, `UNTORN_NAMES_PROGRAMS` sets their number, for each test. A violation is
//! minimised, and prints the line that repeats it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn_crashlab::names_fuzz::{
    Alphabet, NameEffort, NameProgram, NameTotals, Rights, drawn, numbered, programs_of, smallest_violation,
    steps_before, try_program,
};
use untorn_testkit::{drawn_seed, extent, variable};

const PROGRAMS: u64 = 60;
const STEPS: usize = 14;
/// The most programs of one seed.
const PROGRAMS_MAX: u64 = 1 << 32;
/// The time for which a violation is minimised.
const SMALLER: Duration = Duration::from_secs(30);

fn effort() -> NameEffort {
    NameEffort { moments: 3, cuts: 3, steps_before: 0, alphabet: Alphabet::CHANGES }
}

/// The troubles of ordinary users.
const TROUBLES: Alphabet = Alphabet { kinds: true, rights: Rights::Recoverable, refusals: true, classes: true };

fn troubled() -> NameEffort {
    NameEffort { alphabet: TROUBLES, ..effort() }
}

/// Tries programs until one shows a violation.
fn survive(programs: u64, program: &(dyn Fn(u64) -> (NameProgram, NameEffort) + Sync)) -> NameTotals {
    let next = AtomicU64::new(0);
    let found = Mutex::new((NameTotals::default(), Vec::new()));
    let worker = || {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= programs || !found.lock().1.is_empty() {
                return;
            }
            let (program, effort) = program(nth);
            match try_program(&program, effort) {
                Ok(totals) => found.lock().0 += totals,
                Err(violation) => {
                    println!("program {nth}: {}", violation.what);
                    let smallest = smallest_violation(violation, effort, Instant::now() + SMALLER);
                    found.lock().1.push(smallest);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let (totals, violations) = found.into_inner();
    println!(
        "{} programs with {} commits; {} crash states with something lost, {} recoveries checked, {} recoveries crashed, {} recoveries while something was refused, {} of them with something in quarantine, {} calls refused",
        totals.programs,
        totals.commits,
        totals.states,
        totals.checked,
        totals.second,
        totals.refused,
        totals.quarantined,
        totals.failed
    );
    violations.iter().for_each(|violation| println!("VIOLATION {violation}\n"));
    assert!(violations.is_empty(), "{} violations", violations.len());
    assert!(totals.programs == programs && totals.checked > 5 * programs, "{} recoveries", totals.checked);
    totals
}

fn programs(default: u64) -> u64 {
    variable("UNTORN_NAMES_PROGRAMS").unwrap_or(extent(default / 6, default))
}

#[test]
fn names_survive_every_crash() {
    let seed = drawn_seed();
    let program = |nth| (NameProgram::draw(seed * PROGRAMS_MAX + nth, STEPS, effort().alphabet), effort());
    survive(programs(PROGRAMS), &program);
}

/// Changes that the kernel refuses or fails, modes that take the right to write, both failure classes.
#[test]
fn names_survive_what_is_refused() {
    let seed = drawn_seed();
    let program = |nth| (NameProgram::draw(seed * PROGRAMS_MAX + nth, STEPS, TROUBLES), troubled());
    let totals = survive(programs(PROGRAMS), &program);
    assert!(totals.quarantined + totals.failed > 0, "nothing was refused that mattered");
}

/// Slices of all programs of one, two and three operations: `UNTORN_ENUM_FULL=1` tries all.
#[test]
fn short_programs_of_names_survive_what_is_refused() {
    let (seed, full) = (drawn_seed(), variable::<u32>("UNTORN_ENUM_FULL").is_some());
    for (operations, default) in [(1, 500), (2, 300), (3, 200)] {
        let all = programs_of(operations) as u64;
        let tried = if full { all } else { programs(default).min(all) };
        let program = |nth: u64| {
            // Evenly distributed, differently for each seed.
            let number = (nth * (all / tried) + seed) % all;
            let program = numbered(operations, number as usize);
            let effort = NameEffort { steps_before: steps_before(&program), moments: 2, cuts: 2, ..troubled() };
            (program, effort)
        };
        println!("{tried} of {all} programs of {operations} operations:");
        survive(tried, &program);
    }
}

/// Programs of up to five operations, drawn from the seed.
#[test]
fn longer_programs_of_names_survive_what_is_refused() {
    let seed = drawn_seed();
    let program = |nth| (drawn(seed * PROGRAMS_MAX + nth), NameEffort { moments: 2, cuts: 2, ..troubled() });
    survive(programs(PROGRAMS), &program);
}

/// Repeats a violation: `UNTORN_NAMES_CASE='setup/seed/step|step'`.
#[test]
fn again_one_case() {
    let Some(program) = variable::<NameProgram>("UNTORN_NAMES_CASE") else { return };
    assert_eq!(program.to_string().parse(), Ok(program.clone()));
    let effort = NameEffort { moments: 12, cuts: 6, ..troubled() };
    try_program(&program, effort).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A power cut that keeps the move and loses the new directory would lose the file.
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

/// Tries a program from many seeds.
fn try_seeds(setup: &str, seeds: std::ops::Range<u64>, steps: &str) {
    for seed in seeds {
        let program: NameProgram = format!("{setup}/{seed}/{steps}").parse().expect("a program");
        let effort = NameEffort { moments: 12, cuts: 6, ..troubled() };
        try_program(&program, effort).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// A rename waits, with a mode that was set before and is not flushed, and with the rest of a page that was written in
/// place: the record that the log keeps for them has all of it.
#[test]
fn what_waits_is_restated_whole() {
    let mode = "commit=create:b:640;mkdir:d:700;create:d/a:644|commit=rename:d/a:a|commit=chmod:a:400|\
                refuse=new::36:told|commit=rename:a:b|checkpoint";
    try_seeds("plain,btrfs,sector,tight,buffered", 0..6, mode);
    let page = "commit=mkdir:d:700;create:d/a:644;write:d/a:0:90:3|commit=write:d/a:10:20:13|commit=rename:d/a:c|\
                refuse=moves::18:untold|commit=write:c:0:80:17;rename:c:a|checkpoint";
    try_seeds("plain,ext4,garbage,tight,buffered", 0..6, page);
}

/// A file has the name of a directory that is to be removed, or the directory is still there, and the directory above
/// it is closed by then.
#[test]
fn a_directory_is_removed_from_one_that_is_closed() {
    try_seeds(
        "plain,xfs,garbage,roomy,direct",
        0..30,
        "commit=mkdir:c:750;mkdir:c/b:700|commit=rmdir:c/b;create:c/b:640|commit=chmod:c:500|commit=create:a:644",
    );
    try_seeds(
        "plain,ext4,sector,roomy,direct",
        0..30,
        "commit=mkdir:c:750;mkdir:c/b:700|commit=rmdir:c/b;chmod:c:500|commit=create:a:644",
    );
}

/// A file gets the name of its own directory, which is closed.
#[test]
fn a_file_takes_the_place_of_its_closed_directory() {
    try_seeds(
        "plain,ext4,sector,roomy,direct",
        0..10,
        "commit=mkdir:b:755;mkdir:b/d:755;create:b/d/y:644;write:b/d/y:0:9:1|commit=chmod:b/d:555|\
         commit=chmod:b/d:755;rename:b/d/y:c;rmdir:b/d;rename:c:b/d|commit=write:b/d:0:5:2",
    );
}

/// A directory is made with a file and both are removed, and the disk refuses the removal of the directory: its entries
/// are flushed all the same, or a power cut would bring the file back after the log has forgotten it.
#[test]
fn a_directory_that_stays_does_not_get_its_files_back() {
    for profile in ["posix", "btrfs"] {
        try_seeds(
            &format!("plain,{profile},garbage,growing,buffered"),
            0..20,
            "commit=mkdir:d:700;create:d/a:644;write:d/a:0:90:3|commit=unlink:d/a;rmdir:d|refuse=entries::1:told",
        );
    }
}
