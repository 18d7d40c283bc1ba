//! Scenarios that are not in any enumerated program: damage, permission bits, and a second thread. Each returns a
//! description of its violation.

mod epoch;
mod heap;
mod index;
mod kept_log;
mod live;
mod live_order;
mod live_power;
mod live_threads;
mod name;
mod opening;
mod owners;
mod portion;
mod reader;
mod remote;
mod shared_spill;
mod slot;
mod store;
mod unreadable;

pub use index::{begin_in_a_bounded_segment, crash_indexed};
pub use portion::{PortionTotals, crash_in_portions};
pub use shared_spill::crash_shared;
pub use slot::ship_and_crash;

/// A scenario, and its name.
pub type Scenario = (&'static str, fn() -> Result<(), String>);

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    ("damage_before_durable_commits_is_no_torn_end", store::damage_before_durable_commits_is_no_torn_end),
    ("a_lost_header_is_missed", store::a_lost_header_is_missed),
    ("a_copy_without_attributes_is_not_taken_for_closed", store::a_copy_without_attributes_is_not_taken_for_closed),
    ("a_mark_that_stays_is_looked_for_again", store::a_mark_that_stays_is_looked_for_again),
    ("a_mark_cleared_by_a_killed_owner_stays_cleared", store::a_mark_cleared_by_a_killed_owner_stays_cleared),
    ("contents_that_look_like_records_are_none", store::contents_that_look_like_records_are_none),
    ("a_directory_that_is_closed_is_filled", name::a_directory_that_is_closed_is_filled),
    ("a_file_that_waits_keeps_its_place", name::a_file_that_waits_keeps_its_place),
    ("a_racing_store_is_in_this_commit_or_the_next", store::a_racing_store_is_in_this_commit_or_the_next),
    ("what_was_not_told_is_in_no_commit", store::what_was_not_told_is_in_no_commit),
    ("large_commits_lie_over_each_other", store::large_commits_lie_over_each_other),
    ("what_is_spilled_is_overwritten_by_nothing_else", store::what_is_spilled_is_overwritten_by_nothing_else),
    ("what_is_half_made_has_no_second_name", store::what_is_half_made_has_no_second_name),
    ("a_name_shows_what_is_committed", store::a_name_shows_what_is_committed),
    ("a_checkpoint_leaves_newer_contents", store::a_checkpoint_leaves_newer_contents),
    ("epochs_upon_epochs_are_kept", epoch::epochs_upon_epochs_are_kept),
    ("portions_survive_every_crash", portion::portions_survive_every_crash),
    ("portions_of_an_indexed_log_survive_every_crash", portion::portions_of_an_indexed_log_survive_every_crash),
    ("an_indexed_log_survives_every_crash", index::an_indexed_log_survives_every_crash),
    ("shared_ranges_survive_every_crash", shared_spill::shared_ranges_survive_every_crash),
    ("a_failed_flush_of_shared_ranges_is_noticed", shared_spill::a_failed_flush_of_shared_ranges_is_noticed),
    ("damage_in_shared_ranges_is_no_torn_end", shared_spill::damage_in_shared_ranges_is_no_torn_end),
    ("an_index_hides_no_damage", index::an_index_hides_no_damage),
    ("an_index_of_another_time_is_not_believed", index::an_index_of_another_time_is_not_believed),
    ("commits_wait_for_the_list_of_epochs", epoch::commits_wait_for_the_list_of_epochs),
    ("damage_in_the_journal_is_not_shown", epoch::damage_in_the_journal_is_not_shown),
    ("what_waits_outlives_its_segment", epoch::what_waits_outlives_its_segment),
    ("what_cannot_be_read_is_not_the_end", unreadable::what_cannot_be_read_is_not_the_end),
    ("what_is_torn_is_not_what_cannot_be_read", unreadable::what_is_torn_is_not_what_cannot_be_read),
    ("what_may_be_torn_is_not_salvaged", unreadable::what_may_be_torn_is_not_salvaged),
    ("what_is_listed_and_cannot_be_read_is_not_damaged", unreadable::what_is_listed_and_cannot_be_read_is_not_damaged),
    ("a_header_that_cannot_be_read_may_be_the_newest", unreadable::a_header_that_cannot_be_read_may_be_the_newest),
    ("contents_that_cannot_be_read_wait", unreadable::contents_that_cannot_be_read_wait),
    ("what_cannot_be_read_stays_until_it_is_given_up", unreadable::what_cannot_be_read_stays_until_it_is_given_up),
    ("log_that_slots_need_survives", slot::log_that_slots_need_survives),
    ("openings_without_commits_leave_no_epochs", kept_log::openings_without_commits_leave_no_epochs),
    ("an_older_list_of_epochs_claims_no_commits", kept_log::an_older_list_of_epochs_claims_no_commits),
    ("another_stores_acknowledgement_frees_no_log", kept_log::another_stores_acknowledgement_frees_no_log),
    ("a_store_with_a_slot_opens_on_a_full_disk", kept_log::a_store_with_a_slot_opens_on_a_full_disk),
    ("what_recovery_dropped_is_not_shipped", kept_log::what_recovery_dropped_is_not_shipped),
    ("readers_see_one_commit", reader::readers_see_one_commit),
    ("a_commit_whose_flush_fails_is_not_shown", reader::a_commit_whose_flush_fails_is_not_shown),
    ("a_closed_store_without_a_page_is_watched", reader::a_closed_store_without_a_page_is_watched),
    ("another_epochs_acknowledgement_releases_nothing", remote::another_epochs_acknowledgement_releases_nothing),
    ("readers_see_what_waits", reader::readers_see_what_waits),
    ("kept_space_is_freed", reader::kept_space_is_freed),
    ("a_heap_is_made_whole_or_not_at_all", heap::a_heap_is_made_whole_or_not_at_all),
    ("a_told_heap_tells_of_itself", heap::a_told_heap_tells_of_itself),
    ("a_heap_grows_whole_or_not_at_all", heap::a_heap_grows_whole_or_not_at_all),
    ("a_commit_of_a_heap_waits_for_a_change", heap::a_commit_of_a_heap_waits_for_a_change),
    ("what_was_rolled_back_is_given_out_once", heap::what_was_rolled_back_is_given_out_once),
    ("what_was_overwritten_is_not_committed", heap::what_was_overwritten_is_not_committed),
    ("a_free_chunk_has_one_use", heap::a_free_chunk_has_one_use),
    ("a_huge_allocation_hides_no_metadata", heap::a_huge_allocation_hides_no_metadata),
    ("a_huge_allocation_leaves_no_metadata", heap::a_huge_allocation_leaves_no_metadata),
    ("a_live_heap_goes_on_from_its_own_memory", live::a_live_heap_goes_on_from_its_own_memory),
    ("a_live_heap_goes_back_behind_a_change", live::a_live_heap_goes_back_behind_a_change),
    ("a_section_is_all_or_nothing", live::a_section_is_all_or_nothing),
    ("what_saw_a_section_is_undone_with_it", live::what_saw_a_section_is_undone_with_it),
    ("a_cut_undoes_what_has_not_ended", live::a_cut_undoes_what_has_not_ended),
    ("a_cut_is_of_one_moment", live::a_cut_is_of_one_moment),
    ("what_a_live_heap_had_is_committed", live::what_a_live_heap_had_is_committed),
    ("sections_survive_power_cuts", live_power::sections_survive_power_cuts),
    ("aborts_survive_power_cuts", live_power::aborts_survive_power_cuts),
    ("sections_of_threads_survive_power_cuts", live_power::sections_of_threads_survive_power_cuts),
    ("what_a_heap_in_memory_told_is_durable", live_power::what_a_heap_in_memory_told_is_durable),
    ("released_segments_are_zeros_after_a_power_cut", live_power::released_segments_are_zeros_after_a_power_cut),
    ("blocks_of_threads_survive_power_cuts", live_threads::blocks_of_threads_survive_power_cuts),
    ("a_freed_block_is_freed_once", live_order::a_freed_block_is_freed_once),
    ("an_aborted_free_frees_nothing", live_order::an_aborted_free_frees_nothing),
    ("what_is_shown_as_stable_is_durable", live_order::what_is_shown_as_stable_is_durable),
    ("memory_that_grew_is_as_long", live_order::memory_that_grew_is_as_long),
    ("a_recovery_that_is_repeated_spares_metadata", live_order::a_recovery_that_is_repeated_spares_metadata),
    ("sections_that_saw_each_other_stay_together", live_order::sections_that_saw_each_other_stay_together),
    ("sections_survive_the_end_of_their_class", live_order::sections_survive_the_end_of_their_class),
    ("a_race_is_told_and_the_commit_takes_place", heap::a_race_is_told_and_the_commit_takes_place),
];
