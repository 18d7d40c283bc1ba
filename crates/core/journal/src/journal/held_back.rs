//! Growth of the journal that waits for a checkpoint.

/// A journal does not take the room of the disk that a checkpoint needs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBack {
    /// The checkpoint LSN at that time.
    pub checkpoint_lsn: u64,
    /// The checkpoint has failed, so the journal may take the room.
    pub is_over: bool,
}
