//! Scenarios that no program of the enumeration contains: damage, and a second thread. Each says what is wrong.

mod heap_scenarios;
mod opening;
mod store_scenarios;

/// A scenario, and its name.
pub type Scenario = (&'static str, fn() -> Result<(), String>);

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    ("damage_before_durable_commits_is_no_torn_end", store_scenarios::damage_before_durable_commits_is_no_torn_end),
    ("a_lost_header_is_missed", store_scenarios::a_lost_header_is_missed),
    ("a_racing_store_is_in_this_commit_or_the_next", store_scenarios::a_racing_store_is_in_this_commit_or_the_next),
    ("a_heap_is_made_whole_or_not_at_all", heap_scenarios::a_heap_is_made_whole_or_not_at_all),
    ("a_heap_grows_whole_or_not_at_all", heap_scenarios::a_heap_grows_whole_or_not_at_all),
    ("a_commit_of_a_heap_waits_for_a_change", heap_scenarios::a_commit_of_a_heap_waits_for_a_change),
    ("what_was_rolled_back_is_given_out_once", heap_scenarios::what_was_rolled_back_is_given_out_once),
    ("what_was_overwritten_is_not_committed", heap_scenarios::what_was_overwritten_is_not_committed),
    ("a_free_chunk_has_one_use", heap_scenarios::a_free_chunk_has_one_use),
    ("a_huge_allocation_hides_no_metadata", heap_scenarios::a_huge_allocation_hides_no_metadata),
    ("a_huge_allocation_leaves_no_metadata", heap_scenarios::a_huge_allocation_leaves_no_metadata),
    ("a_race_is_told_and_the_commit_takes_place", heap_scenarios::a_race_is_told_and_the_commit_takes_place),
];
