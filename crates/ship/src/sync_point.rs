//! The flushes of this crate.

untorn_os::sync_points! {
    /// A restored directory, before it gets its name.
    RESTORED,
}
