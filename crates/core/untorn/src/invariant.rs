//! The invariants of stores, mappings and heaps, and those of the journal: mutation points of the mutation gate.

pub use untorn_journal::invariant::*;

untorn_os::invariants! {
    /// A change that was not applied, or not flushed, is applied again by the next checkpoint.
    APPLY_AGAIN,
    /// A checkpoint does not write older changes over those that a commit wrote before it gave the file a name.
    NEWEST_OVER_OLDER,
    /// Closing a store that was not closed before clears marks whose commits never came.
    LEFT_MARKS_CLEARED,
    /// As long as a mark may be left, the header of a closed store says so, and the next close looks again.
    LEFT_MARKS_KEPT,
    /// A portion of what was carried over has every file that the log's commits up to its end touched, whether they left bytes
    /// in it or not.
    PORTION_REACHES_ALL,
    /// What a portion does not apply stays in the file's overlay.
    PORTION_REST_STAYS,
    /// The gap before a write behind the end is written as zeros.
    ZERO_GAP,
    /// Option `full_page`: the first change of a page is logged with the whole page.
    FULL_PAGE,
    /// Memory is compared with what is committed, not with the data file.
    COMPARE_WITH_VIEW,
    /// What is compared, journaled and compared with next time is one copy of a page.
    ONE_COPY,
    /// A page is reclaimed only if no overlay has bytes of it.
    KNOWN_PAGES_STAY,
    /// Rolling back brings committed bytes into memory, also those that the data file lacks.
    COMMITTED_BYTES_BACK,
    /// A page with bytes in an overlay shows them from the moment that it is mapped.
    OVERLAYS_SHOW,
    /// A file that shrinks and grows again shows zeros, not what it held before.
    GROWS_BY_ZEROS,
    /// Bytes stored behind the end of a file are gone when it grows.
    STORES_BEHIND_THE_END,
    /// A page that a checkpoint is about to truncate does not show the data file.
    TRUNCATED_PAGES_HIDDEN,
    /// Pages that the tracker found are not forgotten when comparing them fails.
    FOUND_ONCE,
    /// What could not be undone in memory is not committed.
    UNDONE_IS_NOT_COMMITTED,
    /// What is stored to a page while a rollback brings the page back is found by the next commit.
    STORES_SINCE_UNDO_FOUND,
    /// Tracker `told`: what the program told of is not forgotten when copying it fails.
    TOLD_UNTIL_STAGED,
    /// Tracker `told`: a rollback takes what the program told of out of memory.
    TOLD_UNDONE,
    /// Tracker `told`: bytes that the program did not tell of are in no commit.
    UNTOLD_STAYS_OUT,
    /// Tracker `told`: the allocator of a heap tells of its own stores.
    HEAP_TELLS,
    /// Large commits that lie in layers are a part of what a checkpoint applies, each over those before it.
    LAYERS_APPLIED,
    /// A merged copy of layers takes the place of nothing but the layers that it was made of.
    LAYERS_AS_MERGED,
    /// A range that is zeroed is zero in memory from that moment, so that what is stored there later stays.
    ZEROED_AT_ONCE,
    /// A new heap's size and header are one commit.
    HEAP_CREATED_WHOLE,
    /// A heap's new size and its count of segments are one commit.
    HEAP_GROWS_WHOLE,
    /// A commit of a heap waits for the threads that are changing it.
    HEAP_IS_QUIET,
    /// Metadata of a heap that somebody stored to is not committed.
    HEAP_VERIFIED,
    /// What a heap's allocator remembers is forgotten when the heap is rolled back.
    HEAP_FORGETS,
    /// A chunk of a heap that is free again gives out no more blocks of its old size.
    FREE_CHUNK_UNLISTED,
    /// Segments inside of an allocation hold the program's bytes, not the allocator's.
    INSIDES_SKIPPED,
    /// Segments inside of an allocation are zeroed before they are the allocator's again.
    INSIDES_ZEROED,
    /// A live heap goes on from memory of this boot alone.
    LIVE_OF_THIS_BOOT,
    /// A live heap goes on from memory that was made for this very file, not for one that it was copied from.
    LIVE_OF_THIS_FILE,
    /// A live heap goes on from memory that the file's last commit came from, or one that it knew of.
    LIVE_OF_THIS_CUT,
    /// Memory that was never whole, as its process ended while it made it, is not gone on from.
    LIVE_WHEN_READY,
    /// A live heap whose process ended within a change under a guard goes back to its last cut.
    LIVE_NOT_IN_A_CHANGE,
    /// What the allocator had begun to change when the process of a live heap ended is undone.
    LIVE_UNDONE,
    /// Live memory whose metadata makes no sense is not gone on from.
    LIVE_CHECKED,
    /// The first cut after a live heap went on compares all of it: nobody knows what was stored to.
    LIVE_ALL_COMPARED,
    /// A heap that is opened, but not live, has what its live memory had.
    LIVE_BROUGHT_IN,
    /// While a cut of a live heap copies what was stored, the program's threads stand still.
    CUT_STOPS,
    /// What is stored to behind the copy of its page that a cut has made ahead is copied once more.
    CUT_COPIES_ANEW,
    /// A cut undoes sections that have not ended, in its copy.
    CUT_RECOVERS,
    /// What a cut has otherwise than memory, the next one looks at again, although nobody stored to it.
    CUT_CARRIES,
    /// A section of a live heap that did not end before its process did is undone.
    SECTION_UNDONE,
    /// A section that saw what one did that is undone is undone with it.
    SECTION_CASCADES,
    /// What sections changed is undone from the latest to the first, over all threads.
    SECTION_UNDONE_IN_ORDER,
    /// Whoever takes a lock that a section gave back before it ended depends on that section.
    SECTION_MARKS,
    /// A recovery sees what a section is about to change before it is changed.
    SECTION_LOGGED_FIRST,
    /// What an earlier section logged is logged again by a later one.
    SECTION_FILTER_FORGETS,
    /// What an undone section had allocated is free again.
    SECTION_ALLOCATIONS_UNDONE,
    /// What a section frees is freed when it can not be undone any more.
    SECTION_FREES_LAST,
}
