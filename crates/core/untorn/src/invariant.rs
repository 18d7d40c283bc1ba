//! The invariants of stores, mappings and heaps, and those of the journal: mutation points of the mutation gate.

pub use untorn_journal::invariant::*;

untorn_os::invariants! {
    /// An acknowledgement of a slot counts only if this store holds the commit, not for another commit of its LSN.
    REMOTE_BY_EPOCH,
    /// A change that was not applied, or not flushed, is applied again by the next checkpoint.
    APPLY_AGAIN,
    /// A checkpoint does not overwrite newer changes that a commit wrote before it named the file.
    NEWEST_OVER_OLDER,
    /// Closing a store that was not closed before clears marks whose commits never came.
    LEFT_MARKS_CLEARED,
    /// While a mark may be left, the header of a closed store says so, and the next close searches again.
    LEFT_MARKS_KEPT,
    /// A portion of the commits that the opening left unapplied covers every file that a commit up to its end touched,
    /// even if the portion has no bytes of the file.
    PORTION_REACHES_ALL,
    /// Changes that a portion does not apply stay in the file's overlay.
    PORTION_REST_STAYS,
    /// The gap before a write behind the end is written as zeros.
    ZERO_GAP,
    /// Option `full_page`: the first change of a page is logged with the whole page.
    FULL_PAGE,
    /// Memory is compared with the committed content, not with the data file.
    COMPARE_WITH_VIEW,
    /// The bytes that are compared, journaled, and compared with next time are one copy of a page.
    ONE_COPY,
    /// A page is reclaimed only if no overlay has bytes of it.
    KNOWN_PAGES_STAY,
    /// A rollback restores committed bytes in memory, including those that the data file lacks.
    COMMITTED_BYTES_BACK,
    /// A page with bytes in an overlay shows them from the moment of its mapping.
    OVERLAYS_SHOW,
    /// A file that shrinks and grows again shows zeros, not its old contents.
    GROWS_BY_ZEROS,
    /// Bytes stored behind the end of a file are gone when it grows.
    STORES_BEHIND_THE_END,
    /// A page that a checkpoint is about to truncate does not show the data file.
    TRUNCATED_PAGES_HIDDEN,
    /// Pages that the tracker found are not forgotten when comparing them fails.
    FOUND_ONCE,
    /// Changes that could not be undone in memory are not committed.
    UNDONE_IS_NOT_COMMITTED,
    /// A store to a page while a rollback restores the page is found by the next commit.
    STORES_SINCE_UNDO_FOUND,
    /// Tracker `explicit`: reported ranges are not forgotten when copying them fails.
    MARKED_UNTIL_STAGED,
    /// Tracker `explicit`: a rollback removes reported changes from memory.
    MARKED_UNDONE,
    /// Tracker `explicit`: unreported bytes are in no commit.
    UNMARKED_STAYS_OUT,
    /// Tracker `explicit`: the allocator of a heap reports its own stores.
    HEAP_MARKS,
    /// A checkpoint applies large commits that are kept as layers, each over those before it.
    LAYERS_APPLIED,
    /// A merged copy of layers replaces only the layers that it was made of.
    LAYERS_AS_MERGED,
    /// A range that is zeroed is zero in memory at once, so that later stores to it stay.
    ZEROED_AT_ONCE,
    /// A new heap's size and header are one commit.
    HEAP_CREATED_WHOLE,
    /// A heap's new size and its count of segments are one commit.
    HEAP_GROWS_WHOLE,
    /// A commit of a heap waits for the threads that are changing it.
    HEAP_IS_QUIET,
    /// Heap metadata that the program has overwritten is not committed.
    HEAP_VERIFIED,
    /// The allocator drops its cached state when the heap is rolled back.
    HEAP_FORGETS,
    /// A chunk of a heap that is free again gives out no more blocks of its old size.
    FREE_CHUNK_UNLISTED,
    /// Segments inside of an allocation hold the program's bytes, not the allocator's.
    INSIDES_SKIPPED,
    /// Segments inside of an allocation are zeroed before the allocator uses them again.
    INSIDES_ZEROED,
    /// A live heap continues only from memory of this boot.
    LIVE_OF_THIS_BOOT,
    /// A live heap continues only from memory that was made for this very file, not for one that it was copied from.
    LIVE_OF_THIS_FILE,
    /// A live heap continues only from memory from which the file's last commit came, or which that commit knew.
    LIVE_OF_THIS_CUT,
    /// A live heap does not continue from memory whose creation was interrupted.
    LIVE_WHEN_READY,
    /// A live heap whose process ended within a change under a guard returns to its last cut.
    LIVE_NOT_IN_A_CHANGE,
    /// A change of the allocator that was unfinished when the process of a live heap ended is undone.
    LIVE_UNDONE,
    /// A live heap does not continue from memory with inconsistent metadata.
    LIVE_CHECKED,
    /// The first cut after a live heap was resumed compares all of it, because the earlier stores are unknown.
    LIVE_ALL_COMPARED,
    /// A heap that is opened, but not live, has the contents of its live memory.
    LIVE_BROUGHT_IN,
    /// While a cut of a live heap copies stores, the program's threads are stopped.
    CUT_STOPS,
    /// A page that is stored to after a cut has copied it early is copied again.
    CUT_COPIES_ANEW,
    /// A cut undoes, in its copy, sections that have not ended.
    CUT_RECOVERS,
    /// Bytes of a cut that differ from memory are examined by the next cut, even without stores to them.
    CUT_CARRIES,
    /// A section of a live heap that did not end before its process did is undone.
    SECTION_UNDONE,
    /// A section that saw changes of an undone section is undone with it.
    SECTION_CASCADES,
    /// Changes of sections are undone from the latest to the first, over all threads.
    SECTION_UNDONE_IN_ORDER,
    /// A section that takes a lock which an unfinished section has released depends on that section.
    SECTION_MARKS,
    /// A change of a section is logged before it is made, so that recovery can undo it.
    SECTION_LOGGED_FIRST,
    /// Bytes that an earlier section logged are logged again by a later one.
    SECTION_FILTER_FORGETS,
    /// After a recovery, the logs of all sections become void at once.
    SECTION_LOGS_VOID_AT_ONCE,
    /// Memory that an undone section had allocated is free again.
    SECTION_ALLOCATIONS_UNDONE,
    /// Memory that a section frees is freed when the section cannot be undone any more.
    SECTION_FREES_LAST,
    /// Memory with flushes: a record of a section is durable before the store that it is about.
    LIVE_RECORDS_DURABLE,
    /// Memory with flushes: a record of a section counts only with its checksum.
    LIVE_RECORDS_CHECKED,
    /// Memory with flushes: the bytes that a section changed are durable before it ends.
    LIVE_CHANGES_DURABLE,
    /// Memory with flushes: the blocks that a section allocated are durable before it ends.
    LIVE_BLOCKS_DURABLE,
    /// Memory with flushes: blocks to which changed bytes point are durable before a section ends.
    LIVE_REFERENCED_DURABLE,
    /// Memory with flushes: the end of a section is durable before its thread goes on.
    LIVE_END_DURABLE,
    /// Memory with flushes: others see that a section is stable only when that is durable.
    LIVE_SHOWN_DURABLE,
    /// Memory with flushes: the log notes durably that a block is freed, before it is free.
    LIVE_FREED_DURABLE,
    /// Memory with flushes: the new generation of a log is durable before its first record.
    LIVE_GENERATION_DURABLE,
    /// Memory with flushes: after a recovery, no older record of a log is valid.
    LIVE_LOGS_VOID,
    /// Memory with flushes: that all logs are void is durable before any is, and that they count again before their next
    /// record.
    LIVE_VOID_DURABLE,
    /// Memory with flushes: the bytes that an abort restored are durable before its records are erased.
    LIVE_ABORT_DURABLE,
    /// Memory with flushes: the records of an aborted section are erased before it goes on.
    LIVE_ABORT_ERASED,
    /// Memory with flushes: a block's bit is durable before its address is given out, or the block is given out again.
    LIVE_BITS_DURABLE,
    /// Memory with flushes: bytes that the allocator saves are durable before it changes them.
    LIVE_SAVED_DURABLE,
    /// Memory with flushes: a finished change of the allocator is durable before the saved bytes are dropped.
    LIVE_SETTLED_DURABLE,
    /// Memory with flushes: dropped saved bytes are durably dropped before the heap goes on.
    LIVE_SETTLE_DURABLE,
    /// Memory with flushes: zeros are durable before the metadata says that they are unused.
    LIVE_ZEROS_DURABLE,
    /// Memory that survives a power cut: its new length is durable before the heap's header says so.
    LIVE_GROWN_DURABLE,
    /// Memory with flushes: a change under a guard is durably noted before it begins.
    LIVE_CHANGING_DURABLE,
    /// Memory with flushes: a change under a guard is durable before it counts as ended.
    LIVE_CHANGE_SYNCED,
    /// Memory with flushes: the end of a change under a guard is durable before the guard is released.
    LIVE_CHANGE_ENDED,
    /// Memory with flushes: a cut's number is durable before the file names it.
    LIVE_CUT_DURABLE,
    /// Memory with flushes: new memory that the file names is durably complete before the program gets it.
    LIVE_READY_DURABLE,
    /// Memory with flushes: everything that a new root may lead to is durable before the root.
    LIVE_ROOT_SYNCED,
    /// Memory with flushes: restored bytes are durable before the records that restored them are dropped.
    LIVE_MENDED_DURABLE,
    /// Memory with flushes: bytes that the program flushes are durable.
    LIVE_FLUSHED_ON_DEMAND,
}
