//! The smallest programs that once showed a defect, each crashed at every moment of its last operation.

use untorn_crashlab::enumerate::{Bounds, Effort, Enumeration};
use untorn_crashlab::program::Case;

/// The program, written as `setup/steps taken away/operations/`, survives every crash.
fn survives(case: &str) {
    let case: Case = case.parse().unwrap();
    let enumeration = Enumeration::new(Bounds::default());
    let effort = Effort { cuts_max: 200, second_max: 4, after_failed_sync_max: 4, failed_sync_ways: 3 };
    enumeration.program(&case.setup, &case.ops, &effort);
    if let Some(violation) = enumeration.violations().first() {
        panic!("{violation}");
    }
    assert!(enumeration.totals().checked > 0);
}

/// A process that was killed before its first commit left the extent file of a large change behind, and
/// as nothing had been committed, no recovery looked for it.
#[test]
fn an_extent_of_a_change_that_was_never_committed_does_not_stay() {
    survives("closed,posix,sector,tight,direct/0/dirty,kill/");
}

/// A killed owner's header was in the cache only. The next owner believed it and reused the journal
/// space that it gave up, or removed its extents; a power cut brought the older header back.
#[test]
fn a_header_that_a_killed_owner_left_in_the_cache_is_flushed_before_it_is_believed() {
    survives("closed,btrfs,garbage,tight,buffered/0/across,close/");
    survives("closed,btrfs,garbage,tight,direct/0/one,swap/");
}

/// A power cut left a new file with contents and without the attribute that tells it from a stranger's.
#[test]
fn a_new_file_has_its_attribute_before_its_contents() {
    survives("closed,posix,garbage,tight,direct/0/replace,retire/");
    survives("closed,posix,sector,tight,direct/0/mkdir,close/");
}

/// Created, then renamed or unlinked before the first name or the attribute was durable: the empty file
/// under the earlier name stayed.
#[test]
fn a_half_made_file_is_found_under_its_earlier_names() {
    survives("closed,posix,sector,tight,buffered/0/replace,move/");
    survives("closed,posix,garbage,tight,direct/0/mkdir,rmdir/");
    survives("closed,posix,sector,tight,buffered/0/replace,swap/");
    // Another half-made file had the name that it was to get.
    survives("closed,posix,sector,roomy,direct/0/replace,unlink,append,move/");
}

/// Removing a journal that had been set aside was interrupted: the store could not be opened any more.
#[test]
fn a_crash_while_a_journal_set_aside_is_removed_does_no_harm() {
    survives("closed,ext4,garbage,tight,buffered/0/one,kill/");
    survives("closed,ext4,sector,tight,direct/0/away/");
}

/// Option `full_page`: zeros over a part of a page were not logged whole, nor was a commit that waited
/// for a checkpoint.
#[test]
fn full_page_covers_zeros_and_commits_that_waited() {
    survives("closed,ext4,garbage,roomy,buffered/0/zero,retire/");
    survives("closed,ext4,garbage,tight,buffered/0/one,group/");
    survives("pending,posix,garbage,tight,direct/0/both,retire/");
}

/// A file that was unlinked while it stood aside for a swap of names came back there.
#[test]
fn nothing_stays_where_files_wait_for_each_others_names() {
    survives("closed,btrfs,garbage,roomy,direct/0/swap,unlink/");
}

/// The header's shortcut past the segments was taken for a journal of class `process`, whose records are
/// in the cache.
#[test]
fn a_killed_owner_of_class_process_is_recovered_from_the_cache() {
    survives("closed,posix,sector,tight,direct/0/other,both/");
}

/// The gap before a write behind the end was left to a hole, where a crash had put old sectors.
#[test]
fn the_gap_before_a_write_behind_the_end_is_zero() {
    survives("closed,posix,sector,tight,buffered/0/empty,group,retire/");
    survives("closed,posix,sector,tight,buffered/0/replace,group,retire/");
}

/// In class `process` two headers in a row were written without a flush, one over the other's slot; a
/// power cut that tore the second brought back a header that named no boot, and the store pretended.
#[test]
fn an_unflushed_header_never_goes_over_the_newest_durable_one() {
    survives("closed,posix,sector,tight,buffered/0/other,one,retire/");
    survives("closed,posix,sector,tight,buffered/0/other,swap,retire,retire,close/");
}

/// The first half of a record was on the disk, the second was not, and the record was dropped. The next
/// session's commit wrote the same bytes in the second half's place, and the dropped record was whole.
#[test]
fn a_dropped_record_does_not_come_back_to_life() {
    survives("plain,ext4,garbage,tight,direct/0/async,across/");
    survives("closed,posix,garbage,tight,buffered/0/one/");
}
