//! The sync points of the journal: its own files, and the data files that recovery writes.

untorn_os::sync_points! {
    /// A new store: the header and the first segment, before the journal directory gets its name.
    CREATE_CONTENTS,
    /// A new store: the entries of the new journal directory, before it gets its name.
    CREATE_ENTRIES,
    /// A new store: the journal directory's name in the store directory.
    CREATE_NAME,
    /// A new store: the name of the store directory in its parent.
    CREATE_STORE_NAME,
    /// A file's attribute, before the first commit that touches the file.
    ATTRIBUTE,
    /// The attributes of many files at once, before the first commit that touches them.
    ATTRIBUTE_MANY,
    /// A new file's attribute, before its contents, where the file system does not keep the order of the two.
    ATTRIBUTE_NEW,
    /// A new journal segment: written whole, before its attribute or a header says how long it is.
    SEGMENT_CONTENTS,
    /// A new journal segment's name.
    SEGMENT_NAME,
    /// A spill file's contents, together with the record that refers to them.
    SPILL_CONTENTS,
    /// A spill file's name, before the record that refers to it.
    SPILL_NAME,
    /// A commit group: the one flush of a commit.
    COMMIT,
    /// The head of the index of a segment, before a record lies beyond the bound in it.
    INDEX_BOUND,
    /// The head of an index as a killed owner left it in the page cache, before a record relies on it.
    INDEX_FOUND,
    /// The removal of an index whose head could not be written, before a record lies beyond its bound.
    INDEX_REMOVED,
    /// Changes that wait to be applied, restated, before the log is truncated behind their records.
    RESTATED,
    /// Data files, applied, before the log is truncated behind their records.
    CHECKPOINT_DATA,
    /// The contents of a data file that a large checkpoint has written so far, on their way to the device: for speed.
    CHECKPOINT_STEP,
    /// Many data files at once, before the log is truncated behind their records.
    CHECKPOINT_MANY,
    /// The names of the directories on the way, before a file moves into another directory.
    MOVE_PARENTS,
    /// Directories whose entries were changed by applied commits, before the log is truncated behind their records.
    CHECKPOINT_NAMES,
    /// The attributes of files that the journal is about to give up, no longer pending, before the clean header.
    CLEARED,
    /// The header that truncates the log.
    HEADER,
    /// The contents of data files, applied, on their way to the device, before the header of a closed journal.
    CONTENTS_OUT,
    /// The header of a closed journal, and with it everything that was written out before: the one flush of a close where
    /// the file system keeps order.
    HEADER_CLOSED,
    /// The header that lists the epochs which are not applied, before the first record behind them.
    HEADER_LISTED,
    /// The header that says that the store is open, before the first file is marked and the first record written.
    HEADER_OPEN,
    /// The header that names the boot, before the first commit of class `process`.
    HEADER_BOOT,
    /// The journal as a killed owner left it in the page cache, before recovery reads it.
    RECOVER_JOURNAL,
    /// A spill file as a killed owner left it in the page cache, before a record that refers to it is accepted.
    RECOVER_SPILLS,
    /// The lengths of segments that a killed owner had cut behind the header of its close, before anything is appended to them.
    RECOVER_LENGTHS,
    /// The blocks of an empty journal that could not be read, written anew, before the first commit behind them.
    UNREADABLE_ANEW,
    /// The journal as a killed owner left it in the page cache, before a reader shows what is in it.
    READER_LOG,
    /// Data files whose journal was of class `process`, before they are promised to be durable.
    RECOVER_DATA,
    /// The list of epochs, before it gets its name.
    EPOCHS,
    /// The name of the list of epochs, before the first record of its last epoch.
    EPOCHS_NAME,
    /// A new slot, before the log is kept for it.
    SLOT,
    /// Durable marks in the log that slots need, before it is truncated.
    KEPT_MARKS,
    /// Names of the log that slots need, before the header that truncates the log.
    KEPT_NAMES,
    /// A quarantined journal: its list of pending files.
    QUARANTINE_CONTENTS,
    /// A quarantined journal: its new name.
    QUARANTINE_NAME,
}
