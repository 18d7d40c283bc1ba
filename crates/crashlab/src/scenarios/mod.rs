//! Scenarios that no program of the enumeration contains: damage, permission bits, and a second thread. Each says what is wrong.

mod epoch_scenarios;
mod heap_scenarios;
mod live_scenarios;
mod name_scenarios;
mod opening;
mod portion_scenarios;
mod reader_scenarios;
mod store_scenarios;
mod unreadable_scenarios;

pub use portion_scenarios::{PortionTotals, crash_in_portions};

/// A scenario, and its name.
pub type Scenario = (&'static str, fn() -> Result<(), String>);

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    ("damage_before_durable_commits_is_no_torn_end", store_scenarios::damage_before_durable_commits_is_no_torn_end),
    ("a_lost_header_is_missed", store_scenarios::a_lost_header_is_missed),
    (
        "a_copy_without_attributes_is_not_taken_for_closed",
        store_scenarios::a_copy_without_attributes_is_not_taken_for_closed,
    ),
    ("a_mark_that_stays_is_looked_for_again", store_scenarios::a_mark_that_stays_is_looked_for_again),
    ("contents_that_look_like_records_are_none", store_scenarios::contents_that_look_like_records_are_none),
    ("a_directory_that_is_closed_is_filled", name_scenarios::a_directory_that_is_closed_is_filled),
    ("a_file_that_waits_keeps_its_place", name_scenarios::a_file_that_waits_keeps_its_place),
    ("a_racing_store_is_in_this_commit_or_the_next", store_scenarios::a_racing_store_is_in_this_commit_or_the_next),
    ("what_was_not_told_is_in_no_commit", store_scenarios::what_was_not_told_is_in_no_commit),
    ("large_commits_lie_over_each_other", store_scenarios::large_commits_lie_over_each_other),
    ("what_is_spilled_is_overwritten_by_nothing_else", store_scenarios::what_is_spilled_is_overwritten_by_nothing_else),
    ("what_is_half_made_has_no_second_name", store_scenarios::what_is_half_made_has_no_second_name),
    ("a_name_shows_what_is_committed", store_scenarios::a_name_shows_what_is_committed),
    ("a_checkpoint_leaves_newer_contents", store_scenarios::a_checkpoint_leaves_newer_contents),
    ("epochs_upon_epochs_are_kept", epoch_scenarios::epochs_upon_epochs_are_kept),
    ("portions_survive_every_crash", portion_scenarios::portions_survive_every_crash),
    ("commits_wait_for_the_list_of_epochs", epoch_scenarios::commits_wait_for_the_list_of_epochs),
    ("damage_in_the_journal_is_not_shown", epoch_scenarios::damage_in_the_journal_is_not_shown),
    ("what_waits_outlives_its_segment", epoch_scenarios::what_waits_outlives_its_segment),
    ("what_cannot_be_read_is_not_the_end", unreadable_scenarios::what_cannot_be_read_is_not_the_end),
    ("what_is_torn_is_not_what_cannot_be_read", unreadable_scenarios::what_is_torn_is_not_what_cannot_be_read),
    ("what_may_be_torn_is_not_salvaged", unreadable_scenarios::what_may_be_torn_is_not_salvaged),
    (
        "what_is_listed_and_cannot_be_read_is_not_damaged",
        unreadable_scenarios::what_is_listed_and_cannot_be_read_is_not_damaged,
    ),
    (
        "a_header_that_cannot_be_read_may_be_the_newest",
        unreadable_scenarios::a_header_that_cannot_be_read_may_be_the_newest,
    ),
    ("contents_that_cannot_be_read_wait", unreadable_scenarios::contents_that_cannot_be_read_wait),
    (
        "what_cannot_be_read_stays_until_it_is_given_up",
        unreadable_scenarios::what_cannot_be_read_stays_until_it_is_given_up,
    ),
    ("readers_see_one_moment", reader_scenarios::readers_see_one_moment),
    ("readers_see_what_waits", reader_scenarios::readers_see_what_waits),
    ("a_lease_comes_at_any_moment", reader_scenarios::a_lease_comes_at_any_moment),
    ("what_was_seen_counts_for_a_moment", reader_scenarios::what_was_seen_counts_for_a_moment),
    ("leases_bound_the_wait", reader_scenarios::leases_bound_the_wait),
    ("two_owners_of_one_process_id_are_told_apart", reader_scenarios::two_owners_of_one_process_id_are_told_apart),
    (
        "what_a_checkpoint_leaves_out_is_kept_for_who_holds_it",
        reader_scenarios::what_a_checkpoint_leaves_out_is_kept_for_who_holds_it,
    ),
    ("a_heap_is_made_whole_or_not_at_all", heap_scenarios::a_heap_is_made_whole_or_not_at_all),
    ("a_told_heap_tells_of_itself", heap_scenarios::a_told_heap_tells_of_itself),
    ("a_heap_grows_whole_or_not_at_all", heap_scenarios::a_heap_grows_whole_or_not_at_all),
    ("a_commit_of_a_heap_waits_for_a_change", heap_scenarios::a_commit_of_a_heap_waits_for_a_change),
    ("what_was_rolled_back_is_given_out_once", heap_scenarios::what_was_rolled_back_is_given_out_once),
    ("what_was_overwritten_is_not_committed", heap_scenarios::what_was_overwritten_is_not_committed),
    ("a_free_chunk_has_one_use", heap_scenarios::a_free_chunk_has_one_use),
    ("a_huge_allocation_hides_no_metadata", heap_scenarios::a_huge_allocation_hides_no_metadata),
    ("a_huge_allocation_leaves_no_metadata", heap_scenarios::a_huge_allocation_leaves_no_metadata),
    ("a_live_heap_goes_on_from_its_own_memory", live_scenarios::a_live_heap_goes_on_from_its_own_memory),
    ("a_live_heap_goes_back_behind_a_change", live_scenarios::a_live_heap_goes_back_behind_a_change),
    ("a_section_is_all_or_nothing", live_scenarios::a_section_is_all_or_nothing),
    ("what_saw_a_section_is_undone_with_it", live_scenarios::what_saw_a_section_is_undone_with_it),
    ("a_cut_undoes_what_has_not_ended", live_scenarios::a_cut_undoes_what_has_not_ended),
    ("a_cut_is_of_one_moment", live_scenarios::a_cut_is_of_one_moment),
    ("what_a_live_heap_had_is_committed", live_scenarios::what_a_live_heap_had_is_committed),
    ("a_race_is_told_and_the_commit_takes_place", heap_scenarios::a_race_is_told_and_the_commit_takes_place),
];
