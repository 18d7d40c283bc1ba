//! Finds for each rule of shipping a schedule that breaks an invariant without it, in a build in which rules can be
//! disabled: `make mutants`.

mod simulation;

use simulation::{directed, random};
use std::collections::BTreeSet;
use untorn_crashlab::mutants_table::{Row, check_section};
use untorn_os::Invariant;
use untorn_ship::invariant::{self, INVARIANTS};

/// How a rule is shown to be needed.
#[derive(Clone, Copy)]
enum By {
    /// A schedule in which a rare order matters.
    Directed(&'static str),
    /// Random schedules of a scenario.
    Random(&'static str),
}

/// Most random schedules for one rule.
const SEEDS: u64 = 400;

fn shown_by(invariant: Invariant) -> By {
    match invariant {
        invariant::FENCE_IN_THE_LOG => By::Random("restart"),
        invariant::GENERATION_ENDS => By::Random("restart"),
        invariant::START_IS_A_GENERATION => By::Random("restart"),
        invariant::CHAIN_IS_DENSE => By::Random("restart"),
        invariant::ACKNOWLEDGED_IN_ORDER => By::Random("restart"),
        invariant::TAKEN_NAME_IS_READ => By::Directed("late_object_behind_a_pruned_end"),
        invariant::OWN_OBJECT_IS_NO_FENCE => By::Directed("lost_answer_to_the_end"),
        invariant::FLOOR_SETTLES => By::Directed("late_end_under_a_pruned_object"),
        invariant::WON_END_IS_VERIFIED => By::Directed("take_over_under_a_pruned_object"),
        invariant::OBJECT_BEFORE_FLOOR => By::Directed("late_end_before_a_slow_replica"),
        invariant::REMEMBERED_PLACE_IS_CHECKED => By::Directed("start_from_a_place_that_was_pruned"),
        invariant::ENDS_STAY => By::Directed("late_object_behind_a_pruned_end"),
        invariant::FLOOR_RISES => By::Directed("prune_with_a_policy_that_keeps_more"),
        invariant::STORE_CONTAINS_TIP => By::Directed("put_back_and_written_beyond_the_tip"),
        invariant::STORE_CHECKED_EACH_TIME => By::Random("putback"),
        invariant::FORK_ONLY_ON_REQUEST => By::Random("putback"),
        invariant::GAP_NEEDS_A_SNAPSHOT => By::Random("crash"),
        invariant::DURABLE_COMMITS_ONLY => By::Random("restart"),
        invariant::OWNER_BEFORE_THE_END => By::Directed("late_end_of_a_killed_start"),
        invariant::OWNER_STAYS => By::Directed("late_end_of_a_killed_start"),
        invariant::COPY_IS_NOT_THE_OWNER => By::Random("clone"),
        invariant::REPLICA_READS_THE_FLOOR => By::Directed("replica_below_the_floor"),
        invariant::REPLICA_CHECKS_THE_CHAIN => By::Random("replica-fork"),
        invariant::PROMOTION_APPLIES_FIRST => By::Directed("promotion_against_a_commit"),
        invariant::PROMOTION_WINS_FIRST => By::Directed("promotion_against_a_commit"),
        invariant::MANIFEST_IS_VERIFIED => By::Directed("late_prune_under_a_deleted_number"),
        invariant::MANIFEST_BY_ITS_SUCCESSOR => By::Directed("two_late_prunes_in_a_row"),
        invariant::PUBLISHED_BEFORE_DELETED => By::Random("gap"),
        invariant::FLOOR_IS_REGISTERED => By::Directed("prune_between_upload_and_registration"),
        invariant::LOG_STAYS_ABOVE_FLOOR => By::Random("gap"),
        invariant::ANNOUNCED_FIRST => By::Directed("prune_between_upload_and_registration"),
        invariant::ANNOUNCED_STAY => By::Directed("prune_between_upload_and_registration"),
        invariant::UNKNOWN_STAY => By::Random("manifests"),
        invariant::NUMBER_OF_THE_MANIFEST => By::Random("zombie"),
        invariant::REGISTERED_WHILE_ANNOUNCED => By::Directed("cancelled_before_registration"),
        invariant::REGISTERED_WITH_ITS_BASE => By::Directed("base_is_pruned_before_registration"),
        invariant::REGISTRATION_LOOKS_AGAIN => By::Directed("cancelled_during_registration"),
        invariant::PRUNE_PLANS_AGAIN => By::Directed("slow_prune_against_a_higher_floor"),
        invariant::SHARED_WITH_THE_BASE => By::Directed("two_snapshots_of_the_same_data"),
        invariant::SNAPSHOT_OF_END_STAYS => By::Directed("prune_before_the_end_arrives"),
        _ => unreachable!("{invariant:?} has no schedule"),
    }
}

/// The violation, and where it was found.
fn violation(by: By) -> Option<(String, String)> {
    match by {
        By::Directed(name) => {
            let schedule = directed::ALL.iter().find(|known| known.0 == name).expect("a schedule of this name");
            Some((format!("`{name}`"), directed::run(*schedule).err()?))
        }
        By::Random(name) => {
            let (_, budget) = random::SCENARIOS.iter().find(|known| known.0 == name).expect("a scenario of this name");
            let (seed, report) = (1..SEEDS).find_map(|seed| Some((seed, random::run(name, *budget, seed).err()?)))?;
            Some((format!("scenario `{name}`, seed {seed}"), report))
        }
    }
}

#[test]
fn every_rule_is_needed() {
    let only = std::env::var("UNTORN_INVARIANT").unwrap_or_default();
    let wanted: Vec<Invariant> = INVARIANTS.iter().copied().filter(|known| known.name().contains(&only)).collect();
    let row = |of: &Invariant| Row { name: of.name().to_owned(), about: of.about(), why_not: None };
    check_section("Rule of shipping", &wanted.iter().map(row).collect::<Vec<_>>(), &mut |n, _| {
        let by = shown_by(wanted[n]);
        if let By::Directed(_) = by {
            assert!(violation(by).is_none(), "the schedule keeps every invariant with the rule");
        }
        untorn_os::disable(Some(wanted[n]));
        let found = violation(by);
        untorn_os::disable(None);
        let (place, report) = found?;
        // The number of the broken invariant, of `docs/design/SHIP_PROTOCOL.md`.
        let broken = report.split(' ').next().unwrap_or_default();
        println!("{}", report.lines().next().unwrap_or_default());
        Some(format!("breaks {broken}: {place}"))
    });
}

#[test]
fn every_name_is_used_once() {
    let library = untorn_crashlab::mutation::invariants();
    let all = [INVARIANTS, library.as_slice()].concat();
    assert_eq!(all.iter().map(|invariant| invariant.name()).collect::<BTreeSet<_>>().len(), all.len());
}
