//! The sync points of the store, and those of the journal: a checkpoint makes the same flushes as recovery.

pub use untorn_journal::sync_point::*;

untorn_os::sync_points! {
    /// The attributes of files that an open store forgets, no longer pending, before the checkpoint ends.
    FORGOTTEN,
    /// `eject`: a journal has the name of an unfinished one, before its files are removed.
    EJECT_JOURNAL,
    /// `eject`: the removal of everything, in the order that keeps a crash in between harmless.
    EJECT,
    /// A standalone file that was renamed while it was open: its new name, before a commit under that name.
    RELOCATED,
    /// `put`: the new contents, before they get the name.
    PUT_CONTENTS,
    /// `put`: the name.
    PUT_NAME,
}
