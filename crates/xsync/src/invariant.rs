//! The invariants of a session.

untorn_os::invariants! {
    /// Output waits for a commit.
    OUTPUT_WAITS,
    /// A commit flushes the journal alone, and not the files: `fsync` of a directory, not `syncfs`.
    COMMIT_OF_THE_JOURNAL,
    /// Data go through the journal, in order with everything else.
    DATA_IN_THE_JOURNAL,
    /// Directories of the host are overlays: a bind would lead to the host's sockets and FIFOs.
    OVERLAYS_OF_THE_HOST,
    /// Root in the session lacks the capabilities that lead out.
    CAPABILITIES_DROPPED,
    /// Write errors that no commit reports are looked for after each commit.
    WRITE_ERRORS_FOUND,
    /// The terminal comes from the session's own devpts.
    OWN_TERMINALS,
    /// A shared map counts as writable if the file was opened for writing, even if its first protection forbids stores.
    MAPS_BY_DESCRIPTOR,
    /// A signal announces the end of the program at once; the supervisor does not poll for it.
    END_HEARD,
    /// Requests of clients reach the session while a commit is on its way.
    REQUESTS_AT_ONCE,
    /// Ports are open to the outside only when the session listens there.
    LISTEN_LATE,
    /// Outside readers of a directory that a session is on wait for a commit.
    OUTSIDE_READERS_WAIT,
    /// Processes in a session cannot make sockets and FIFOs in such a directory.
    DIRECTORY_SEALED,
}
