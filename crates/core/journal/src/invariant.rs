//! The invariants of the journal: mutation points of the mutation gate.

untorn_os::invariants! {
    /// A record counts only if its checksum is right.
    CHECKSUM,
    /// No block of a record's body begins as a record does: what a program made the journal hold is never one.
    BODIES_UNLIKE_RECORDS,
    /// A record is accepted only behind the one whose checksum it repeats.
    CHAIN,
    /// A record is accepted only if the ones before it are of the same epoch.
    EPOCH,
    /// The open epoch goes on behind the link that the header names, not behind the last listed record.
    OPEN_LINK,
    /// The records of the open epoch are accepted, too, to its first gap.
    OPEN_EPOCH_ACCEPTED,
    /// An epoch whose records are applied leaves the header's list.
    LIST_CLIPPED,
    /// A header with a new link is written at each opening after a crash, even if nothing new was accepted.
    LISTED_ANEW,
    /// No record is written before the header that lists the epochs before it.
    LISTED_FIRST,
    /// When the header's list is full, everything is applied before the store goes on.
    LIST_BOUNDED,
    /// A segment with records that are not applied is not written again.
    LISTED_SEGMENTS_STAY,
    /// A portion of what is carried over truncates the log behind its own end.
    PORTION_END,
    /// What is carried over and lies in no segment is in the first portion.
    PORTION_OUT_OF_LOG,
    /// A spill file that a record of any listed epoch refers to is no orphan.
    LISTED_SPILLS_STAY,
    /// A first commit that is flushed together with attributes is appended: it is not on the disk without them.
    FIRST_COMMIT_APPENDED,
    /// The header says that the store is open before a file is marked: a mark whose commit never came is looked for.
    OPEN_NOTED,
    /// A file that waits for commits of an owner that the header does not know waits for another journal.
    OTHER_JOURNAL,
    /// A segment that is shorter than it was is damaged: the commits that it has lost may have been the last.
    SEGMENTS_KEEP_LENGTH,
    /// A commit that makes a segment longer notes the new length.
    APPENDED_LENGTH_NOTED,
    /// A journal is not clean if its segment is longer than the clean header says.
    START_LENGTH,
    /// What is restated is read from the journal before the segments that it lies in are used again.
    RESTATED_LEAVES_LOG,
    /// Bytes that are read from the journal have the checksum that they had when they were accepted.
    LOG_VERIFIED,
    /// The log does not end before a block that cannot be read, where a commit may be.
    UNREADABLE_STOPS,
    /// A record that cannot be read in whole is taken for one only if it was durable: what is left of a torn one may be
    /// anything.
    UNREADABLE_DURABLE,
    /// What may be torn is not redone by whoever salvages, either, nor what follows it.
    UNREADABLE_DROPPED,
    /// A commit that is listed, and that may be in what cannot be read, is not damaged.
    UNREADABLE_LISTED,
    /// A header that cannot be read may be the newest.
    UNREADABLE_HEADER,
    /// What cannot be read of the journal is written anew after the header that gives it up, and not before.
    UNREADABLE_STAYS,
    /// Contents that cannot be read are no zeros.
    UNREADABLE_UNKNOWN,
    /// A recovered journal goes on behind a random number, where no dropped record can follow.
    FRESH_START,
    /// A broken record is damage, not a torn end, if a later one says that it was durable.
    DURABLE_LSN,
    /// A record that is newer than the newest header is a sign that a header was lost.
    NEWEST_HEADER,
    /// A header never goes over the newest durable one.
    DURABLE_HEADER,
    /// After a failed write or flush of the journal no commit goes through.
    STICKY_ERROR,
    /// A large commit's spill file stays until the log is truncated behind the records that refer to it.
    SPILL_FILES_STAY,
    /// The space of uncommitted changes in a spill file is used again only where no change refers to it.
    SPILLED_BYTES_STAY,
    /// An empty file without an attribute is found under each name that it had.
    HALF_CREATED,
    /// A file has its committed contents before it gets a name.
    CONTENTS_BEFORE_NAME,
    /// A restated file may lack what the records before it say, of which the log has lost the first.
    RESTATED_WHOLE,
    /// A directory gets its mode when everything in it is done: a mode may forbid that.
    MODES_LAST,
    /// A failed flush of what class `process` had not flushed is remembered: the next one says OK, and the data are gone.
    FAILED_FLUSH_NOTED,
    /// Readers are told of a commit after its flush.
    TOLD_WHEN_DURABLE,
    /// Readers are told of a change of names before it is made.
    NAMES_TOLD_FIRST,
    /// Readers are told of a checkpoint before it writes to the data files.
    APPLYING_TOLD_FIRST,
    /// Readers are told of contents that a commit writes before it gives their file a name.
    CONTENTS_TOLD_FIRST,
    /// Readers are told of what is restated before the log is truncated behind the records that said it first.
    RESTATED_TOLD,
    /// A new owner ends the life of the page that the last one left, before it changes anything.
    PAGE_WITHDRAWN,
    /// A reader believes what it read if nothing newer was being applied by then.
    READ_VALIDATED,
    /// A reader believes a name if no newer commit has changed names by then.
    NAME_VALIDATED,
    /// A reader takes a log that reaches the commit as of which it reads, and no shorter one.
    LOG_REACHES,
    /// A reader knows the files of commits that are not applied by their identities, not by their names.
    READ_BY_IDENTITY,
    /// A reader of a store that nobody has open believes what it read if nobody has opened it meanwhile.
    CLOSED_VALIDATED,
    /// A reader of a store that nobody has open compares the head of the page: two owners may leave the same note in the
    /// lock file, and the same header.
    PAGE_HEAD_COMPARED,
    /// A reader takes what a checkpoint has left out of a file, as a later commit removed it, from the log as it was.
    LEFT_OUT_KEPT,
    /// A checkpoint waits for leases before it is applied.
    LEASES_WAITED_FOR,
    /// Leases are looked for after readers were told which commits are wanted.
    WANTED_FIRST,
    /// One timer bounds the wait for all leases.
    ONE_TIMER,
    /// What readers saw counts for a moment, which passes before anything makes it wrong.
    MOMENT_PASSES,
    /// Whoever opens a store without a page cannot see who reads, and lets a moment pass all the same.
    MOMENT_PASSES_UNSEEN,
    /// A lease of a commit that was applied all the same is waited for no more.
    BROKEN_LEASES_FORGOTTEN,
    /// The next owner waits for the leases that the last one left.
    NEXT_OWNER_WAITS,
    /// A reader locks first, and looks afterwards whether the commit is wanted.
    LOCKED_FIRST,
    /// What was read under a lease is believed no more than anything else.
    LEASES_VALIDATED,
    /// A file that is removed or replaced while somebody holds an older commit keeps a name.
    PARKED,
    /// Whether somebody holds an older commit is looked at after readers were told of new names.
    PARKED_AFTER_NAMES,
    /// Recovery removes what is parked before it looks at files.
    PARKED_CLEARED,
    /// Names of commits behind a held one are undone when a name is looked up.
    NAMES_UNDONE,
    /// Only a file that waits for itself, by way of others, is moved to a rename temporary.
    ONLY_CYCLES,
}
