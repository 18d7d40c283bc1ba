//! Finds for each invariant a test that fails without it, like `mutants` for flushes, in a build in which invariants
//! can be disabled: `make mutants`.

mod gate;

use gate::{Mutant, gate, shows};
use std::time::Duration;
use untorn::__private::invariant;
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration, within};
use untorn_crashlab::mutants_table::Row;
use untorn_crashlab::mutation::invariants;
use untorn_crashlab::programs::program::{Case, Op, STARTS, Setup, Trouble, alphabet, mapped_alphabet};
use untorn_os::{Invariant, disable};

/// Programs that show a disabled invariant at once.
fn known(invariant: Invariant) -> &'static [&'static str] {
    match invariant {
        invariant::FRESH_START | invariant::CHAIN | invariant::EPOCH => {
            &["closed,posix,garbage,growing,buffered/0/one/", "closed,posix,garbage,growing,direct/0/one/"]
        }
        invariant::OPEN_NOTED | invariant::LEFT_MARKS_CLEARED => &["closed,ext4,sector,tight,direct/0/one/"],
        invariant::MEMORY_FENCE => &["closed,ext4,sector,tight,memory/0/one/"],
        invariant::DURABLE_HEADER => &["closed,posix,sector,tight,buffered/0/other,one,retire,one,retire/"],
        invariant::SPILL_FILES_STAY => &["closed,posix,sector,roomy,direct/0/one,cut,large,retire,apply/"],
        invariant::STICKY_ERROR => &["closed,ext4,sector,tight,buffered/0/one,one/"],
        invariant::APPLY_AGAIN => &["closed,posix,sector,roomy,direct/0/one,retire,append,retire/"],
        invariant::ZERO_GAP => &["closed,posix,sector,tight,buffered/0/empty,group,retire/"],
        invariant::FULL_PAGE => &["closed,ext4,garbage,roomy,buffered/0/zero,retire/"],
        invariant::COMPARE_WITH_VIEW => &["closed,ext4,sector,roomy,direct/0/line,back/"],
        invariant::KNOWN_PAGES_STAY => &["closed,ext4,sector,tight,direct/0/pages/"],
        invariant::OVERLAYS_SHOW => &["closed,ext4,sector,roomy,direct/0/line,unmap,map/"],
        invariant::GROWS_BY_ZEROS => &["closed,ext4,sector,roomy,direct/0/dip/"],
        invariant::TRUNCATED_PAGES_HIDDEN => &["closed,ext4,sector,roomy,direct/0/empty,cut,grow,map,apply/"],
        invariant::STORES_BEHIND_THE_END => &["closed,ext4,sector,roomy,direct/0/end,grow/"],
        invariant::ZEROED_AT_ONCE => &["closed,ext4,sector,roomy,direct/0/map,zero/"],
        invariant::MARKED_UNDONE => &["closed,ext4,sector,roomy,direct/0/told,poke,undo/"],
        invariant::COMMITTED_BYTES_BACK => &["closed,ext4,sector,roomy,direct/0/line,poke,undo/"],
        _ => &[],
    }
}

/// Programs that show it by an error at some call.
fn known_by_errors(invariant: Invariant) -> &'static [&'static str] {
    match invariant {
        invariant::FOUND_ONCE => &["closed,ext4,sector,tight,direct/0/map,pages,line/"],
        invariant::MARKED_UNTIL_STAGED => &["closed,ext4,sector,tight,direct/0/told,pages,line/"],
        invariant::UNDONE_IS_NOT_COMMITTED => &["closed,ext4,sector,tight,direct/0/map,poke,undo/"],
        _ => &[],
    }
}

/// The scenario of an invariant that no crash shows.
fn scenario(invariant: Invariant) -> Option<&'static str> {
    match invariant {
        invariant::TORN_SPILL_ENDS => Some("shared_ranges_survive_every_crash"),
        invariant::SPILLS_CHECKED => Some("damage_in_shared_ranges_is_no_torn_end"),
        invariant::SPILLS_PAST_CACHE => Some("a_failed_flush_of_shared_ranges_is_noticed"),
        invariant::DURABLE_LSN => Some("damage_before_durable_commits_is_no_torn_end"),
        invariant::NEWEST_HEADER => Some("a_lost_header_is_missed"),
        invariant::START_LENGTH => Some("a_copy_without_attributes_is_not_taken_for_closed"),
        invariant::LEFT_MARKS_KEPT => Some("a_mark_that_stays_is_looked_for_again"),
        invariant::UNMARKED_STAYS_OUT => Some("what_was_not_told_is_in_no_commit"),
        invariant::LAYERS_APPLIED => Some("large_commits_lie_over_each_other"),
        invariant::BODIES_UNLIKE_RECORDS => Some("contents_that_look_like_records_are_none"),
        invariant::MODES_LAST => Some("a_directory_that_is_closed_is_filled"),
        invariant::ONLY_CYCLES => Some("a_file_that_waits_keeps_its_place"),
        invariant::ONE_COPY => Some("a_racing_store_is_in_this_commit_or_the_next"),
        invariant::SPILLED_BYTES_STAY => Some("what_is_spilled_is_overwritten_by_nothing_else"),
        invariant::HALF_CREATED => Some("what_is_half_made_has_no_second_name"),
        invariant::CONTENTS_BEFORE_NAME => Some("a_name_shows_what_is_committed"),
        invariant::NEWEST_OVER_OLDER => Some("a_checkpoint_leaves_newer_contents"),
        invariant::OPEN_LINK
        | invariant::OPEN_EPOCH_ACCEPTED
        | invariant::LIST_CLIPPED
        | invariant::LIST_BOUNDED
        | invariant::LISTED_SEGMENTS_STAY
        | invariant::LISTED_SPILLS_STAY => Some("epochs_upon_epochs_are_kept"),
        invariant::PORTION_END
        | invariant::PORTION_OUT_OF_LOG
        | invariant::PORTION_REACHES_ALL
        | invariant::PORTION_REST_STAYS => Some("portions_survive_every_crash"),
        invariant::BOUND_RAISED | invariant::BOUND_OF_THIS_USE | invariant::INDEXED_DURABLE => {
            Some("an_indexed_log_survives_every_crash")
        }
        invariant::BOUND_IN_PLACE => Some("an_index_of_another_time_is_not_believed"),
        invariant::LISTED_FIRST => Some("commits_wait_for_the_list_of_epochs"),
        invariant::LOG_VERIFIED => Some("damage_in_the_journal_is_not_shown"),
        invariant::UNREADABLE_STOPS => Some("what_cannot_be_read_is_not_the_end"),
        invariant::UNREADABLE_DURABLE => Some("what_is_torn_is_not_what_cannot_be_read"),
        invariant::UNREADABLE_DROPPED => Some("what_may_be_torn_is_not_salvaged"),
        invariant::UNREADABLE_LISTED => Some("what_is_listed_and_cannot_be_read_is_not_damaged"),
        invariant::UNREADABLE_HEADER => Some("a_header_that_cannot_be_read_may_be_the_newest"),
        invariant::UNREADABLE_UNKNOWN => Some("contents_that_cannot_be_read_wait"),
        invariant::UNREADABLE_STAYS => Some("what_cannot_be_read_stays_until_it_is_given_up"),
        invariant::RESTATED_LEAVES_LOG => Some("what_waits_outlives_its_segment"),
        invariant::TOLD_WHEN_DURABLE => Some("a_commit_whose_flush_fails_is_not_shown"),
        invariant::CHECKPOINT_PUBLISHED
        | invariant::OLD_BYTES_KEPT
        | invariant::KEPT_PUBLISHED
        | invariant::HEADER_KEPT
        | invariant::NAMES_KEPT
        | invariant::SEGMENTS_KEPT
        | invariant::FORMER_SEGMENTS_KEPT
        | invariant::WHOLE_INTERVAL
        | invariant::CHAIN_CONTINUED
        | invariant::FORMER_NAMES_KEPT
        | invariant::OTHER_BOOT_VOID
        | invariant::LOCKED_FIRST
        | invariant::INDEX_AFTER_DATA
        | invariant::INDEX_AFTER_HEADER
        | invariant::INDEX_AFTER_NAME
        | invariant::NEWER_UNDONE
        | invariant::EARLIEST_UNDO
        | invariant::GIVEN_UP_CHECKED
        | invariant::READ_BY_IDENTITY
        | invariant::OPEN_NOTE_FLUSHED => Some("readers_see_one_commit"),
        invariant::CLOSED_VALIDATED => Some("a_closed_store_without_a_page_is_watched"),
        invariant::HEAP_MARKS => Some("a_told_heap_tells_of_itself"),
        invariant::HEAP_CREATED_WHOLE => Some("a_heap_is_made_whole_or_not_at_all"),
        invariant::HEAP_GROWS_WHOLE => Some("a_heap_grows_whole_or_not_at_all"),
        invariant::HEAP_IS_QUIET => Some("a_commit_of_a_heap_waits_for_a_change"),
        invariant::HEAP_FORGETS => Some("what_was_rolled_back_is_given_out_once"),
        invariant::HEAP_VERIFIED => Some("what_was_overwritten_is_not_committed"),
        invariant::FREE_CHUNK_UNLISTED => Some("a_free_chunk_has_one_use"),
        invariant::INSIDES_SKIPPED => Some("a_huge_allocation_hides_no_metadata"),
        invariant::INSIDES_ZEROED => Some("a_huge_allocation_leaves_no_metadata"),
        invariant::LIVE_OF_THIS_BOOT
        | invariant::LIVE_OF_THIS_FILE
        | invariant::LIVE_OF_THIS_CUT
        | invariant::LIVE_WHEN_READY
        | invariant::LIVE_CHECKED => Some("a_live_heap_goes_on_from_its_own_memory"),
        invariant::LIVE_NOT_IN_A_CHANGE => Some("a_live_heap_goes_back_behind_a_change"),
        invariant::CUT_RECOVERS | invariant::CUT_CARRIES => Some("a_cut_undoes_what_has_not_ended"),
        invariant::CUT_STOPS | invariant::CUT_COPIES_ANEW => Some("a_cut_is_of_one_moment"),
        invariant::SECTION_UNDONE
        | invariant::SECTION_LOGGED_FIRST
        | invariant::SECTION_FILTER_FORGETS
        | invariant::SECTION_ALLOCATIONS_UNDONE
        | invariant::SECTION_FREES_LAST => Some("a_section_is_all_or_nothing"),
        invariant::SECTION_CASCADES | invariant::SECTION_UNDONE_IN_ORDER | invariant::SECTION_MARKS => {
            Some("what_saw_a_section_is_undone_with_it")
        }
        invariant::EPOCH_LISTED_FIRST
        | invariant::KEPT_FOR_SLOTS
        | invariant::KEPT_NAMES_FLUSHED
        | invariant::KEPT_NOT_REUSED
        | invariant::KEPT_SPILLS
        | invariant::KEPT_AT_RECOVERY => Some("log_that_slots_need_survives"),
        invariant::EPOCHS_CUT => Some("openings_without_commits_leave_no_epochs"),
        invariant::EPOCHS_GAP_KNOWN => Some("an_older_list_of_epochs_claims_no_commits"),
        invariant::ACKNOWLEDGED_BY_EPOCH => Some("another_stores_acknowledgement_frees_no_log"),
        invariant::KEPT_AT_CLOSE => Some("a_store_with_a_slot_opens_on_a_full_disk"),
        invariant::REMOTE_BY_EPOCH => Some("another_epochs_acknowledgement_releases_nothing"),
        invariant::LIVE_RECORDS_DURABLE
        | invariant::LIVE_RECORDS_CHECKED
        | invariant::LIVE_CHANGES_DURABLE
        | invariant::LIVE_BLOCKS_DURABLE
        | invariant::LIVE_REFERENCED_DURABLE
        | invariant::LIVE_END_DURABLE
        | invariant::LIVE_GENERATION_DURABLE
        | invariant::LIVE_BITS_DURABLE
        | invariant::LIVE_SAVED_DURABLE
        | invariant::LIVE_SETTLED_DURABLE
        | invariant::LIVE_SETTLE_DURABLE
        | invariant::LIVE_CHANGING_DURABLE
        | invariant::LIVE_CHANGE_SYNCED
        | invariant::LIVE_CHANGE_ENDED
        | invariant::LIVE_ROOT_SYNCED => Some("sections_survive_power_cuts"),
        invariant::LIVE_LOGS_VOID | invariant::LIVE_ABORT_DURABLE | invariant::LIVE_MENDED_DURABLE => {
            Some("aborts_survive_power_cuts")
        }
        invariant::LIVE_CUT_DURABLE | invariant::LIVE_READY_DURABLE | invariant::LIVE_FLUSHED_ON_DEMAND => {
            Some("what_a_heap_in_memory_told_is_durable")
        }
        invariant::SECTION_LOGS_VOID_AT_ONCE | invariant::LIVE_VOID_DURABLE => {
            Some("sections_that_saw_each_other_stay_together")
        }
        invariant::LIVE_GROWN_DURABLE => Some("memory_that_grew_is_as_long"),
        invariant::LIVE_FREED_DURABLE => Some("a_freed_block_is_freed_once"),
        invariant::LIVE_ABORT_ERASED => Some("an_aborted_free_frees_nothing"),
        invariant::LIVE_SHOWN_DURABLE => Some("what_is_shown_as_stable_is_durable"),
        invariant::LIVE_ZEROS_DURABLE => Some("released_segments_are_zeros_after_a_power_cut"),
        invariant::LIVE_BROUGHT_IN => Some("what_a_live_heap_had_is_committed"),
        _ => None,
    }
}

/// Invariants that no test here needs, with the reason.
fn why_not(invariant: Invariant) -> Option<&'static str> {
    match invariant {
        invariant::LISTED_ANEW => Some(
            "not needed: the header that says that the store is open is durable before the first record, with the new link",
        ),
        invariant::EPOCH => {
            Some("not needed: the chain of checksums, which begins at a random number, refuses other epochs' records")
        }
        invariant::FAILED_FLUSH_NOTED => Some(
            "not here: after a failed flush of class `process` the enumeration accepts an unknown state; \
             `a_failed_flush_on_the_way_to_class_power_is_not_forgotten` fails without it",
        ),
        invariant::OTHER_JOURNAL => Some(
            "not here: no enumerated program puts an older journal back; \
             `an_older_journal_of_a_closed_store_is_noticed` fails without it",
        ),
        invariant::SEGMENTS_KEEP_LENGTH | invariant::APPENDED_LENGTH_NOTED => {
            Some("not here: no crash cuts a segment off; `a_segment_that_was_cut_short_is_missed` fails without it")
        }
        invariant::RESTATED_WHOLE => Some(
            "not here: no enumerated program has changes that wait in an open store; \
             `a_commit_under_the_checkpoint_that_restates_its_file` fails without it",
        ),
        invariant::LAYERS_AS_MERGED => Some(
            "not here: no program of one thread commits while layers are merged; \
             `a_merged_copy_replaces_only_what_it_was_made_of` fails without it",
        ),
        invariant::LIVE_ALL_COMPARED => Some(
            "not needed: pages that are not in the page table count as stored to, and of a new mapping none is there",
        ),
        invariant::FORMER_RECORDS_KEPT => {
            Some("not here: `a_commit_that_is_held_across_a_kill_keeps_its_log` fails without it")
        }
        invariant::LIVE_UNDONE => Some(
            "not here: no scenario kills a process within the allocator; \
             `a_kill_at_any_instruction_leaves_the_allocator_whole` fails without it",
        ),
        invariant::STORES_SINCE_UNDO_FOUND => Some(
            "not here: no program of one thread stores during a rollback; `a_store_during_a_rollback_is_not_forgotten` \
             fails without it",
        ),
        _ => None,
    }
}

fn take(invariant: Invariant, away: bool) {
    disable(away.then_some(invariant));
}

/// The smallest case that shows the disabled invariant.
fn find(invariant: Invariant) -> Option<Case> {
    let bounds = Bounds { deadline: within(Duration::from_secs(60)), violations_max: 50, ..Bounds::default() };
    let effort = Effort { cuts_max: 200, second_max: 300, after_failed_sync_max: 8, failed_sync_ways: 3 };
    let found = |enumeration: &Enumeration| {
        let mut cases = enumeration.violations().into_iter().map(|violation| violation.case);
        cases.find(|case| shows(case, 0, &|away| take(invariant, away)))
    };
    let tried = |work: &dyn Fn(&Enumeration)| {
        let enumeration = Enumeration::new(bounds);
        take(invariant, true);
        work(&enumeration);
        take(invariant, false);
        found(&enumeration)
    };
    let parsed = |text: &&str| text.parse::<Case>().unwrap();
    let programs = known(invariant).iter().map(parsed);
    let by_errors = known_by_errors(invariant).iter().map(parsed);
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
fn every_invariant_is_needed() {
    let mutant = |invariant: &Invariant| Mutant {
        row: Row { name: format!("{invariant:?}"), about: invariant.about(), why_not: why_not(*invariant) },
        skipped: 0,
        scenario: scenario(*invariant),
    };
    let invariant_of = |mutant: &Mutant| {
        invariants().iter().copied().find(|invariant| format!("{invariant:?}") == mutant.row.name).unwrap()
    };
    let only = std::env::var("UNTORN_INVARIANT").unwrap_or_default();
    let mutants: Vec<Mutant> = invariants().iter().map(mutant).filter(|m| m.row.name.contains(&only)).collect();
    gate("Invariant", &mutants, &|mutant, away| take(invariant_of(mutant), away), &|mutant| find(invariant_of(mutant)));
}

/// Prints the programs of readers that show an invariant which few of them show, for the list of rare programs.
#[test]
#[ignore = "after the order of calls has changed; takes minutes"]
fn programs_of_readers_that_show_rare_invariants() {
    for invariant in [invariant::INDEX_AFTER_HEADER, untorn_journal::invariant::OPEN_NOTE_FLUSHED] {
        take(invariant, true);
        let shows = (0..8000).filter(|seed| untorn_crashlab::readers::readers_of(*seed).is_err());
        println!("{invariant:?}: {:?}", shows.take(4).collect::<Vec<u64>>());
        take(invariant, false);
    }
}
