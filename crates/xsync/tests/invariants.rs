//! Finds for each invariant of a session tests that fail without it, in a build in which invariants can be disabled:
//! `make mutants`.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use untorn_crashlab::mutants_table::{Row, check_section};
use untorn_os::Invariant;
use untorn_xsync::invariant::{self, INVARIANTS};

/// A test program, and a test in it.
type Test = (&'static str, &'static str);

/// Tests of which each fails without the invariant.
fn tests(invariant: Invariant) -> &'static [Test] {
    match invariant {
        invariant::OUTPUT_WAITS => &[
            ("recorded", "nothing_that_was_shown_is_lost"),
            ("recorded", "nothing_that_a_client_was_told_is_lost"),
            ("recorded", "nothing_that_was_told_in_a_connection_is_lost"),
            ("recorded", "nothing_that_was_told_by_connecting_is_lost"),
            ("recorded", "nothing_that_was_told_by_datagrams_is_lost"),
            ("recorded_on", "nothing_that_was_shown_is_lost"),
            ("recorded_on", "nothing_that_was_sent_is_lost"),
            ("recorded_place", "nothing_that_was_shown_is_lost"),
            ("exact", "nothing_that_was_shown_is_lost"),
        ],
        invariant::DATA_IN_THE_JOURNAL => &[
            ("recorded", "nothing_that_was_shown_is_lost"),
            ("recorded_on", "nothing_that_was_shown_is_lost"),
            ("recorded_place", "nothing_that_was_shown_is_lost"),
        ],
        invariant::OVERLAYS_OF_THE_HOST => &[("session", "sockets_and_fifos_of_the_host_are_out_of_reach")],
        invariant::CAPABILITIES_DROPPED => &[("session", "root_in_the_session_cannot_leave_it")],
        invariant::WRITE_ERRORS_FOUND => &[("recorded", "writes_that_fail_later_end_the_session_too")],
        invariant::OWN_TERMINALS => &[("terminal", "the_program_has_a_terminal_of_the_session")],
        invariant::MAPS_BY_DESCRIPTOR => &[("session", "shared_maps_are_refused_on_request_whatever_their_protection")],
        invariant::END_HEARD => &[("session", "a_session_that_waits_sleeps")],
        invariant::REQUESTS_AT_ONCE => &[("recorded", "a_commit_does_not_hold_up_requests")],
        invariant::LISTEN_LATE => &[("listen", "clients_find_a_server_that_listens_or_none")],
        invariant::OUTSIDE_READERS_WAIT => &[
            ("on_directory", "outside_readers_wait_for_a_commit_and_the_session_does_not"),
            ("recorded_on", "nothing_that_an_outsider_has_read_is_lost"),
        ],
        invariant::DIRECTORY_SEALED => &[("on_directory", "no_sockets_and_fifos_are_made_in_the_directory")],
        _ => &[],
    }
}

/// Invariants that no test needs, with the reason.
fn why_not(invariant: Invariant) -> Option<&'static str> {
    match invariant {
        invariant::COMMIT_OF_THE_JOURNAL => Some("not needed: it is for speed: `syncfs` commits the journal, too"),
        _ => None,
    }
}

/// The number of runs in which a test may miss a mutant. The times at which the kernel writes are random, and one in
/// thirty recordings shows no violation.
const RUNS_MAX: u64 = 8;

/// Runs a test with an invariant disabled; `""` disables none. Of the whole workspace, as `scripts/mutants.sh` has built
/// it.
fn passes((program, test): Test, disabled: &str, seed: u64) -> bool {
    let features = "untorn-crashlab/mutants,untorn-ship/mutants,untorn-xsync/mutants";
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--workspace", "--locked", "--features", features, "--test", program]);
    cargo.args(["--", "--exact", test]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env("UNTORN_DISABLED", disabled).env("UNTORN_TEST_SEED", seed.to_string()).env("UNTORN_XSYNC_STATES", "60");
    cargo.output().expect("cargo").status.success()
}

/// Whether the test passes, and fails without the invariant.
fn shows(test: Test, name: &str, well: &mut BTreeMap<Test, bool>) -> bool {
    *well.entry(test).or_insert_with(|| passes(test, "", 0)) && (0..RUNS_MAX).any(|seed| !passes(test, name, seed))
}

#[test]
fn every_invariant_is_needed() {
    if common::Place::new().is_none() {
        return;
    }
    let only = std::env::var("UNTORN_INVARIANT").unwrap_or_default();
    let wanted: Vec<Invariant> = INVARIANTS.iter().copied().filter(|known| known.name().contains(&only)).collect();
    let row = |of: &Invariant| Row { name: of.name().to_owned(), about: of.about(), why_not: why_not(*of) };
    let mut well = BTreeMap::new();
    check_section("Invariant of a session", &wanted.iter().map(row).collect::<Vec<_>>(), &mut |n, _| {
        let tests = tests(wanted[n]);
        let missed = tests.iter().filter(|test| !shows(**test, wanted[n].name(), &mut well)).collect::<Vec<_>>();
        missed.iter().for_each(|test| println!("{test:?} does not show {:?}", wanted[n]));
        let names: Vec<String> = tests.iter().map(|(program, test)| format!("`{test}` ({program})")).collect();
        (!tests.is_empty() && missed.is_empty()).then(|| names.join(", "))
    });
}

#[test]
fn every_name_is_used_once() {
    let library = untorn_crashlab::mutation::invariants();
    let all = [INVARIANTS, library.as_slice()].concat();
    assert_eq!(all.iter().map(|invariant| invariant.name()).collect::<BTreeSet<_>>().len(), all.len());
}
