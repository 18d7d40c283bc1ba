//! Which test fails if this one flush is deleted? For every durability step, the enumeration runs with
//! that step taken away until it finds a crash that loses something; finding none is a failure here.

use std::time::Duration;
use untorn_crashlab::enumerate::{Bounds, Effort, Enumeration, Violation, again, within};
use untorn_crashlab::program::{Case, Op, STARTS, Setup, alphabet};
use untorn_os::{STEPS, Step};

/// Programs that show a missing step at once, so that most steps need no search.
fn known(step: Step) -> &'static [&'static str] {
    match step {
        Step::AttributeMany => &["closed,posix,sector,tight,direct/0/many/"],
        Step::CheckpointMany => &["closed,posix,sector,tight,direct/0/many,retire/"],
        Step::HeldContents => {
            &["closed,posix,sector,tight,direct/0/one,away/", "closed,posix,sector,roomy,buffered/0/large,away/"]
        }
        Step::RecoverData => &["closed,posix,sector,tight,buffered/0/other,one,other/"],
        Step::HeaderBoot => &["closed,posix,sector,tight,buffered/0/other,one/"],
        Step::ExtentContents | Step::ExtentName => &["closed,posix,sector,tight,direct/0/large/"],
        Step::HeaderUnclean => &["plain,ext4,garbage,growing,buffered/0//"],
        Step::SegmentName => &["pending,posix,sector,roomy,direct/0/one/"],
        _ => &[],
    }
}

/// Steps that no test here can miss, and why.
fn why_not(step: Step) -> Option<&'static str> {
    match step {
        Step::Eject => Some("`eject` is not enumerated: it ends the store"),
        Step::SegmentContents => Some(
            "it is for speed: the flush of the segment's first commit makes the same bytes and the same size durable",
        ),
        Step::HeldName => {
            Some("the journal that is made next flushes the same directories before anything relies on it")
        }
        Step::PutContents | Step::PutName => Some("`put` has no store and no journal; it has its own tests"),
        _ => None,
    }
}

/// Without the step taken away, the same case goes well.
fn is_of_the_step(violation: &Violation) -> bool {
    again(&Case { skipped: 0, ..violation.case.clone() }, &|_| {}).is_ok()
}

/// The smallest case that shows the missing step.
fn find(step: Step) -> Option<Violation> {
    let bounds = Bounds { skipped: 1 << step as u64, deadline: within(Duration::from_secs(60)), ..Bounds::default() };
    let effort = Effort { cuts_max: 24, second_max: 6, after_failed_sync_max: 0, failed_sync_ways: 3 };
    for text in known(step) {
        let case: Case = text.parse().unwrap();
        let enumeration = Enumeration::new(bounds);
        enumeration.program(&case.setup, &case.ops, &effort);
        if let Some(violation) = enumeration.violations().into_iter().find(is_of_the_step) {
            return Some(violation);
        }
    }
    let ops: Vec<Op> = alphabet().collect();
    let enumeration = Enumeration::new(bounds);
    for start in STARTS.into_iter().rev() {
        let setups = |at: usize| Setup::all(start, at).collect::<Vec<_>>();
        let mut shorter = enumeration.level(&[], &ops, &setups, &effort);
        for _ in 0..2 {
            shorter = enumeration.level(&shorter, &ops, &setups, &effort);
            if let Some(violation) = enumeration.violations().into_iter().find(is_of_the_step) {
                return Some(violation);
            }
        }
    }
    None
}

#[test]
fn every_flush_is_needed() {
    let only = std::env::var("UNTORN_STEP").ok();
    let mut never_missed = Vec::new();
    for &step in STEPS.iter().filter(|step| only.as_ref().is_none_or(|only| *only == format!("{step:?}"))) {
        if let Some(why) = why_not(step) {
            println!("{step:?} is not looked at: {why}");
            continue;
        }
        match find(step) {
            Some(found) => {
                println!("{step:?} is missed by {}: {}", found.case, found.what.lines().next().unwrap_or_default())
            }
            None => never_missed.push(step),
        }
    }
    assert!(never_missed.is_empty(), "never missed: {never_missed:?}");
}
