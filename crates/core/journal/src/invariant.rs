//! The invariants of the journal: mutation points of the mutation gate.

untorn_os::invariants! {
    /// A record is valid only if its checksum is right.
    CHECKSUM,
    /// No block of a record's body begins like a record, so contents that a program stores are never taken for one.
    BODIES_UNLIKE_RECORDS,
    /// A record is accepted only behind the record whose checksum it repeats.
    CHAIN,
    /// A record is accepted only if the ones before it are of the same epoch.
    EPOCH,
    /// The open epoch continues behind the link in the header, not behind the last listed record.
    OPEN_LINK,
    /// The records of the open epoch are accepted, too, up to its first gap.
    OPEN_EPOCH_ACCEPTED,
    /// An epoch whose records are applied leaves the header's list.
    LIST_CLIPPED,
    /// A header with a new link is written at each opening after a crash, even if nothing new was accepted.
    LISTED_ANEW,
    /// No record is written before the header that lists the epochs before it.
    LISTED_FIRST,
    /// When the header's list is full, everything is applied before the store goes on.
    LIST_BOUNDED,
    /// A segment with unapplied records is not reused.
    LISTED_SEGMENTS_STAY,
    /// A portion of the commits that the opening left unapplied truncates the log behind its own end.
    PORTION_END,
    /// Unapplied changes outside of segments are in the first portion.
    PORTION_OUT_OF_LOG,
    /// A spill file that a record of any listed epoch refers to is not an orphan.
    LISTED_SPILLS_STAY,
    /// A first commit that is flushed together with attributes is appended, so that it is not on the disk without them.
    FIRST_COMMIT_APPENDED,
    /// The header says that the store is open before a file is marked, so that a mark without its commit is found.
    OPEN_NOTED,
    /// A first commit elsewhere than in the segment that a clean header names waits for the note that the store is open.
    OPEN_NOTE_FLUSHED,
    /// A file that waits for commits of an owner that the header does not know belongs to another journal.
    OTHER_JOURNAL,
    /// A segment that is shorter than it was is damage: the lost commits may have been the last.
    SEGMENTS_KEEP_LENGTH,
    /// A commit that makes a segment longer notes the new length.
    APPENDED_LENGTH_NOTED,
    /// A journal is not clean if its segment is longer than the clean header says.
    START_LENGTH,
    /// Restated changes are read from the journal before the segments that hold them are reused.
    RESTATED_LEAVES_LOG,
    /// Bytes that are read from the journal have the checksum that they had when they were accepted.
    LOG_VERIFIED,
    /// The log does not end before an unreadable block that may hold a commit.
    UNREADABLE_STOPS,
    /// A partly unreadable record is accepted only if it was durable: the rest of a torn record may hold anything.
    UNREADABLE_DURABLE,
    /// A record that may be torn, and all records behind it, are not redone, even by salvage.
    UNREADABLE_DROPPED,
    /// A listed commit that may be in an unreadable part of the log is not called damaged.
    UNREADABLE_LISTED,
    /// An unreadable header may be the newest one.
    UNREADABLE_HEADER,
    /// Unreadable blocks of the journal are overwritten after the header that gives them up, and not before.
    UNREADABLE_STAYS,
    /// Unreadable contents are not treated as zeros.
    UNREADABLE_UNKNOWN,
    /// A recovered journal continues behind a random number, which no dropped record can follow.
    FRESH_START,
    /// A broken record is damage, not a torn end, if a later one says that it was durable.
    DURABLE_LSN,
    /// A record that is newer than the newest header is a sign that a header was lost.
    NEWEST_HEADER,
    /// A header never overwrites the newest durable one.
    DURABLE_HEADER,
    /// A group of commits that was stored to memory is durable only behind a fence.
    MEMORY_FENCE,
    /// After a failed write or flush of the journal, no commit succeeds.
    STICKY_ERROR,
    /// A large commit's spill file stays until the log is truncated behind the records that refer to it.
    SPILL_FILES_STAY,
    /// A last commit whose spilled contents are torn ends the log, as one that is torn itself.
    TORN_SPILL_ENDS,
    /// Spilled contents are checked as they are on the disk, not in the page cache.
    SPILLS_PAST_CACHE,
    /// Spilled contents that were not checked when the store was opened are when they are used first.
    SPILLS_CHECKED,
    /// The space of uncommitted changes in a spill file is reused only where no change refers to it.
    SPILLED_BYTES_STAY,
    /// An empty file without an attribute is found under each name that it had.
    HALF_CREATED,
    /// A file has its committed contents before it gets a name.
    CONTENTS_BEFORE_NAME,
    /// A restated file may lack changes of earlier records, of which the log may have lost the first.
    RESTATED_WHOLE,
    /// A directory gets its mode when everything in it is done, because a mode may forbid changes.
    MODES_LAST,
    /// A failed flush of unflushed data of class `process` is remembered: the next flush reports success, although the
    /// data are lost.
    FAILED_FLUSH_NOTED,
    /// A commit is published to readers after its flush.
    TOLD_WHEN_DURABLE,
    /// A checkpoint goes no further than the published commit.
    CHECKPOINT_PUBLISHED,
    /// Old contents that a held commit needs are kept.
    OLD_BYTES_KEPT,
    /// Kept data is published before the data itself is overwritten.
    KEPT_PUBLISHED,
    /// The old header is kept before another one truncates the log.
    HEADER_KEPT,
    /// The files and directories of names are kept before the names change.
    NAMES_KEPT,
    /// Segments of the log that a held commit needs are not reused.
    SEGMENTS_KEPT,
    /// Segments that an earlier owner gave up are not reused while a commit of its readers is held.
    FORMER_SEGMENTS_KEPT,
    /// Records of an earlier owner before the first one that recovery accepts are kept for readers with their segment.
    FORMER_RECORDS_KEPT,
    /// Kept data is needed as long as a lock lies anywhere in its interval.
    WHOLE_INTERVAL,
    /// The next owner of a boot goes on with the data that its predecessor kept.
    CHAIN_CONTINUED,
    /// The next owner keeps the names that its predecessor did not get on the disk.
    FORMER_NAMES_KEPT,
    /// The page of another boot is not believed.
    OTHER_BOOT_VOID,
    /// A reader locks its commit before it reads which one is published.
    LOCKED_FIRST,
    /// A reader reads the data, and then the index.
    INDEX_AFTER_DATA,
    /// A reader reads the header, and then the index.
    INDEX_AFTER_HEADER,
    /// A reader opens a name, and then reads the index.
    INDEX_AFTER_NAME,
    /// Entries that end with the commit of a reader are of an older state.
    NEWER_UNDONE,
    /// Of several entries that apply, the earliest is the truth.
    EARLIEST_UNDO,
    /// A reader checks last that its commit was not given up.
    GIVEN_UP_CHECKED,
    /// A reader identifies files with unapplied commits by their identities, not by their names.
    READ_BY_IDENTITY,
    /// A reader of a closed store without a page believes data only if nobody opened the store meanwhile.
    CLOSED_VALIDATED,
    /// A list of epochs that is newer than the journal is cut to its last commit.
    EPOCHS_CUT,
    /// A list of epochs that is older than the journal does not say where its last epoch ends.
    EPOCHS_GAP_KNOWN,
    /// The list of epochs has an epoch before the first header and the first record of it.
    EPOCH_LISTED_FIRST,
    /// An acknowledgement counts only if this store holds the commit, and not another of the same LSN.
    ACKNOWLEDGED_BY_EPOCH,
    /// Log that slots need has its second names before it is truncated.
    KEPT_FOR_SLOTS,
    /// These names are flushed before the header that truncates the log.
    KEPT_NAMES_FLUSHED,
    /// A segment with a second name is not written again.
    KEPT_NOT_REUSED,
    /// Spill files of the log that slots need are kept with it.
    KEPT_SPILLS,
    /// A closed store begins its next epoch in another segment than the kept one.
    KEPT_AT_CLOSE,
    /// Recovered commits that slots need are kept before recovery truncates the log.
    KEPT_AT_RECOVERY,
    /// A segment holds no record beyond the bound in the head of its index.
    BOUND_RAISED,
    /// A bound of an earlier use of a segment does not count for the next one.
    BOUND_OF_THIS_USE,
    /// The head of an index is believed only where it was written, not in a copy.
    BOUND_IN_PLACE,
    /// Recovery believes an entry of the index only if the record is known to be durable.
    INDEXED_DURABLE,
    /// Only a file that waits for itself, through others, is moved to a rename temporary.
    ONLY_CYCLES,
}
