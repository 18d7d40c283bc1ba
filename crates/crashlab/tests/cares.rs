//! Which test fails if this invariant is broken? As `mutants` for flushes, in a build where invariants can be
//! broken: `make mutants`.

mod gate;

use gate::{Mutant, gate, shows};
use std::time::Duration;
use untorn_crashlab::enumerate::{Bounds, Effort, Enumeration, within};
use untorn_crashlab::program::{Case, Op, STARTS, Setup, Trouble, alphabet, mapped_alphabet};
use untorn_journal::care::{CARES, Care, without};

/// Programs that show a broken invariant at once.
fn known(care: Care) -> &'static [&'static str] {
    match care {
        Care::FreshStart | Care::Chain | Care::Session => {
            &["closed,posix,garbage,growing,buffered/0/one/", "closed,posix,garbage,growing,direct/0/one/"]
        }
        Care::DurableHeader => &["closed,posix,sector,tight,buffered/0/other,one,retire,one,retire/"],
        Care::KeptExtents => &["closed,posix,sector,roomy,direct/0/one,cut,large,retire,apply/"],
        Care::HalfMade => &["closed,posix,sector,tight,buffered/0/replace,move/"],
        Care::StickyError => &["closed,ext4,sector,tight,buffered/0/one,one/"],
        Care::OtherSlot => &["closed,posix,garbage,tight,direct/0/one,retire/"],
        Care::ApplyAgain => &["closed,posix,sector,roomy,direct/0/one,retire,append,retire/"],
        Care::ZeroGap => &["closed,posix,sector,tight,buffered/0/empty,group,retire/"],
        Care::FullPage => &["closed,ext4,garbage,roomy,buffered/0/zero,retire/"],
        Care::CompareWithView => &["closed,ext4,sector,roomy,direct/0/line,back/"],
        Care::KnownPagesStay => &["closed,ext4,sector,tight,direct/0/pages/"],
        Care::LayersShow => &["closed,ext4,sector,roomy,direct/0/line,unmap,map/"],
        Care::GrowsByZeros => &["closed,ext4,sector,roomy,direct/0/dip/"],
        Care::CutPagesHidden => &["closed,ext4,sector,roomy,direct/0/empty,cut,grow,map,apply/"],
        Care::StoresBehindTheEnd => &["closed,ext4,sector,roomy,direct/0/end,grow/"],
        Care::ZeroedAtOnce => &["closed,ext4,sector,roomy,direct/0/map,zero/"],
        Care::CommittedBytesBack => &["closed,ext4,sector,roomy,direct/0/line,poke,undo/"],
        _ => &[],
    }
}

/// Programs in which an error, at some call, shows it.
fn known_by_errors(care: Care) -> &'static [&'static str] {
    match care {
        Care::FoundOnce => &["closed,ext4,sector,tight,direct/0/map,pages,line/"],
        Care::UndoneIsNotCommitted => &["closed,ext4,sector,tight,direct/0/map,poke,undo/"],
        _ => &[],
    }
}

/// What no crash shows.
fn scenario(care: Care) -> Option<&'static str> {
    match care {
        Care::DurableThrough => Some("damage_before_durable_commits_is_no_torn_end"),
        Care::NewestHeader => Some("a_lost_header_is_missed"),
        Care::OneCopy => Some("a_racing_store_is_in_this_commit_or_the_next"),
        Care::HeapMadeWhole => Some("a_heap_is_made_whole_or_not_at_all"),
        Care::HeapGrowsWhole => Some("a_heap_grows_whole_or_not_at_all"),
        Care::HeapIsQuiet => Some("a_commit_of_a_heap_waits_for_a_change"),
        Care::HeapForgets => Some("what_was_rolled_back_is_given_out_once"),
        Care::FreeChunkUnlisted => Some("a_free_chunk_has_one_use"),
        Care::InsidesSkipped => Some("a_huge_allocation_hides_no_metadata"),
        Care::InsidesZeroed => Some("a_huge_allocation_leaves_no_metadata"),
        _ => None,
    }
}

/// Cares that no test here can miss, and why.
fn why_not(care: Care) -> Option<&'static str> {
    match care {
        Care::Session => {
            Some("not needed: the chain of checksums, which begins at a random number, refuses other sessions' records")
        }
        _ => None,
    }
}

fn take(care: Care, away: bool) {
    without(away.then_some(care));
}

/// The smallest case that shows the care that is not taken.
fn find(care: Care) -> Option<Case> {
    let bounds = Bounds { deadline: within(Duration::from_secs(60)), violations_max: 50, ..Bounds::default() };
    let effort = Effort { cuts_max: 200, second_max: 300, after_failed_sync_max: 8, failed_sync_ways: 3 };
    let found = |enumeration: &Enumeration| {
        let mut cases = enumeration.violations().into_iter().map(|violation| violation.case);
        cases.find(|case| shows(case, 0, &|away| take(care, away)))
    };
    let tried = |work: &dyn Fn(&Enumeration)| {
        let enumeration = Enumeration::new(bounds);
        take(care, true);
        work(&enumeration);
        take(care, false);
        found(&enumeration)
    };
    let parsed = |text: &&str| text.parse::<Case>().unwrap();
    let programs = known(care).iter().map(parsed);
    let by_errors = known_by_errors(care).iter().map(parsed);
    let eio: &[fn(u64) -> Trouble] = &[|call| Trouble::Errno(call, libc::EIO)];
    programs
        .flat_map(|case| tried(&|e| e.program(&case.setup, &case.ops, &effort)))
        .chain(by_errors.flat_map(|case| tried(&|e| e.trouble_at_every_call(&case.setup, &case.ops, &effort, eio))))
        .next()
        .or_else(|| tried(&search))
}

/// Programs of up to two operations, without and with a map.
fn search(enumeration: &Enumeration) {
    let effort = &Effort { cuts_max: 8, second_max: 1, after_failed_sync_max: 4, failed_sync_ways: 1 };
    for ops in [alphabet().collect::<Vec<Op>>(), mapped_alphabet().collect()] {
        for start in STARTS.into_iter().rev() {
            let setups = |at: usize| Setup::all(start, at).collect::<Vec<_>>();
            let mut shorter = enumeration.level(&[], &ops, &setups, effort);
            for _ in 0..2 {
                shorter = enumeration.level(&shorter, &ops, &setups, effort);
            }
        }
    }
}

#[test]
fn every_care_is_needed() {
    let mutant = |care: &Care| Mutant {
        name: format!("{care:?}"),
        about: care.about(),
        why_not: why_not(*care),
        skipped: 0,
        scenario: scenario(*care),
    };
    let care_of = |mutant: &Mutant| CARES.iter().copied().find(|care| format!("{care:?}") == mutant.name).unwrap();
    let only = std::env::var("UNTORN_CARE").unwrap_or_default();
    let mutants: Vec<Mutant> = CARES.iter().map(mutant).filter(|m| m.name.contains(&only)).collect();
    gate("Invariant", &mutants, &|mutant, away| take(care_of(mutant), away), &|mutant| find(care_of(mutant)));
}
