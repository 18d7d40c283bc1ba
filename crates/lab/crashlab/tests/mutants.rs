//! Finds for each flush a test that fails without it. For every sync point there is a crash that loses something
//! without it (`docs/generated/MUTANTS.md`), found by enumeration with that sync point skipped.

mod gate;

use gate::{Mutant, case_of, gate, run, shows};
use std::time::Duration;
use untorn::__private::sync_point;
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration, NO_SUCH_CALL, within};
use untorn_crashlab::mutants_table::{Row, listed};
use untorn_crashlab::mutation::{sync_point_index, sync_points};
use untorn_crashlab::programs::program::{Case, Op, STARTS, Setup, alphabet};
use untorn_os::SyncPoint;

/// Programs that show a missing sync point at once, so that most need no search.
fn known(step: &str) -> &'static [&'static str] {
    match step {
        "ATTRIBUTE_MANY" => &["closed,posix,sector,tight,direct/0/many/"],
        "ATTRIBUTE_NEW" => {
            &["closed,posix,garbage,tight,direct/0/replace/", "closed,posix,sector,tight,buffered/0/mkdir/"]
        }
        "CHECKPOINT_MANY" => &["closed,posix,sector,tight,direct/0/many,retire/"],
        "QUARANTINE_CONTENTS" => {
            &["closed,posix,sector,tight,direct/0/one,away/", "closed,posix,sector,roomy,buffered/0/large,away/"]
        }
        "RECOVER_DATA" => &["closed,posix,sector,tight,buffered/0/other,one,other/"],
        "HEADER_BOOT" => &["closed,posix,sector,tight,buffered/0/other,one/"],
        "SPILL_CONTENTS" | "SPILL_NAME" => &["closed,posix,sector,tight,direct/0/large/"],
        "SEGMENT_CONTENTS" => {
            &["closed,posix,sector,growing,direct/0/one,one/", "plain,posix,sector,growing,direct/0/one/"]
        }
        "HEADER_OPEN" => &["closed,posix,sector,tight,direct/0/one/"],
        "HEADER_LISTED" => &["closed,posix,sector,tight,direct/0/one/"],
        "SEGMENT_NAME" => &["pending,posix,sector,roomy,direct/0/one/"],
        _ => &[],
    }
}

/// Sync points that no test here needs, with the reason.
fn why_not(step: SyncPoint) -> Option<&'static str> {
    match step {
        sync_point::RELOCATED => Some(
            "not here: an open standalone file is renamed by the calls of POSIX; \
             `a_file_renamed_while_open_keeps_its_new_name` fails without it",
        ),
        sync_point::READER_LOG => Some(
            "not here: no enumerated program has readers; \
             `what_a_reader_flushed_survives` fails without it",
        ),
        sync_point::RECOVER_LENGTHS => Some(
            "not here: it takes a kill in the last step of a close and a power cut in the first commit behind it; \
             `a_close_that_was_killed_leaves_no_length_behind` fails without it",
        ),
        sync_point::UNREADABLE_ANEW => Some(
            "not here: the disks that are enumerated can read everything; \
             `no_block_of_the_journal_is_guessed` fails without it",
        ),
        sync_point::EJECT => Some("not here: `eject` is not enumerated: it ends the store"),
        sync_point::EJECT_JOURNAL => Some(
            "not here: no enumerated program removes a store; \
             `the_name_of_a_removed_file_is_free_whenever_its_removal_ends` fails without it",
        ),
        sync_point::CHECKPOINT_STEP => {
            Some("not needed: it is for speed: the flush at the end of the checkpoint covers what was written out")
        }
        sync_point::QUARANTINE_NAME => {
            Some("not needed: the journal that is made next flushes the same directories before anything relies on it")
        }
        sync_point::CLEARED => Some(
            "not here: it is for a file that is moved or copied after a power cut; \
             `a_closed_file_can_be_moved_after_a_power_cut` fails without it",
        ),
        sync_point::FORGOTTEN => Some(
            "not here: it is for a file that is moved after a power cut; \
             `a_forgotten_file_can_be_moved_after_a_power_cut` fails without it",
        ),
        sync_point::MOVE_PARENTS => Some(
            "not here: no enumerated program moves a file into a directory that it made; \
             `an_existing_file_moves_into_a_new_directory` fails without it",
        ),
        sync_point::RESTATED => Some(
            "not here: no enumerated program has changes that wait in an open store; \
             `names_that_wait_survive_every_crash` fails without it",
        ),
        sync_point::EPOCHS
        | sync_point::EPOCHS_NAME
        | sync_point::SLOT
        | sync_point::KEPT_MARKS
        | sync_point::KEPT_NAMES => Some(
            "not here: no enumerated program has slots; \
             `the_log_of_slots_survives_every_crash` fails without it",
        ),
        sync_point::INDEX_BOUND | sync_point::INDEX_FOUND | sync_point::INDEX_REMOVED => Some(
            "not here: no enumerated program has a log that recovery reads by its indexes; \
             `bounds_are_on_the_disk_before_records_beyond_them` fails without it",
        ),
        sync_point::PUT_CONTENTS | sync_point::PUT_NAME => {
            Some("not here: `put` has no store and no journal; it has its own tests")
        }
        _ => None,
    }
}

/// The smallest case that shows the missing sync point.
fn find(mutant: &Mutant) -> Option<Case> {
    let bounds = Bounds { skipped: mutant.skipped, deadline: within(Duration::from_secs(60)), ..Bounds::default() };
    let effort = Effort { cuts_max: 24, second_max: 6, after_failed_sync_max: 0, failed_sync_ways: 3 };
    let found = |enumeration: &Enumeration| {
        let cases = enumeration.violations().into_iter().map(|violation| violation.case);
        cases.map(|case| Case { skipped: 0, ..case }).find(|case| shows(case, mutant.skipped, &|_| {}))
    };
    for text in known(&mutant.row.name) {
        let case: Case = text.parse().unwrap();
        let enumeration = Enumeration::new(bounds);
        enumeration.program(&case.setup, &case.ops, &effort);
        if let Some(case) = found(&enumeration) {
            return Some(case);
        }
    }
    let ops: Vec<Op> = alphabet().collect();
    let enumeration = Enumeration::new(bounds);
    for start in STARTS.into_iter().rev() {
        let setups = |at: usize| Setup::all(start, at).collect::<Vec<_>>();
        let mut shorter = enumeration.level(&[], &ops, &setups, &effort);
        for _ in 0..2 {
            shorter = enumeration.level(&shorter, &ops, &setups, &effort);
            if let Some(case) = found(&enumeration) {
                return Some(case);
            }
        }
    }
    None
}

#[test]
fn every_flush_is_needed() {
    let mutant = |step: &SyncPoint| Mutant {
        row: Row { name: format!("{step:?}"), about: step.about(), why_not: why_not(*step) },
        skipped: 1 << sync_point_index(*step),
        scenario: None,
    };
    gate("Sync point", &sync_points().iter().map(mutant).collect::<Vec<_>>(), &|_, _| {}, &find);
}

fn survives(case: &Case) {
    let enumeration = Enumeration::new(Bounds::default());
    let effort = Effort { cuts_max: 24, second_max: 2, after_failed_sync_max: 8, failed_sync_ways: 3 };
    enumeration.program(&case.setup, &case.ops, &effort);
    assert!(enumeration.totals().checked > 0, "{case} does nothing");
    if let Some(violation) = enumeration.violations().first() {
        panic!("{violation}");
    }
}

/// Every crash in the table passes if nothing is disabled.
#[test]
fn every_listed_crash_is_survived() {
    for (name, shown) in ["Sync point", "Invariant"].into_iter().flat_map(listed) {
        if let Some(case) = case_of(&shown) {
            println!("{name}: {case}");
            match run(&case) {
                // With the invariant disabled, the number of calls was different, so every crash of that program is
                // tried.
                Err(what) if what == NO_SUCH_CALL => survives(&case),
                done => done.unwrap_or_else(|what| panic!("{case}\n  {what}")),
            }
        }
    }
}
