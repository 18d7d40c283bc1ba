//! The invariants of a session, each with a name, so that a test can disable one and see the harm.

/// Invariants of a session. A program keeps all of them; a test disables one, and must then see the harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cares {
    /// Output waits for a commit.
    pub gate: bool,
    /// A commit flushes the journal alone, and not the files: `fsync` of a directory, not `syncfs`.
    pub commit_of_the_journal: bool,
    /// Data go through the journal, in order with everything else.
    pub data_in_the_journal: bool,
    /// Directories of the host are overlays: a bind would lead to the host's sockets and FIFOs.
    pub overlays_of_the_host: bool,
    /// Root in the session lacks the capabilities that lead out.
    pub capabilities_dropped: bool,
    /// Write errors that no commit reports are looked for after each commit.
    pub write_errors: bool,
    /// The terminal comes from the session's own devpts.
    pub own_terminals: bool,
    /// A shared map counts as writable if the file was opened for writing, even if its first protection forbids stores.
    pub maps_by_descriptor: bool,
    /// A signal announces the end of the program at once; the supervisor does not poll for it.
    pub end_heard: bool,
    /// Requests of clients reach the session while a commit is on its way.
    pub requests_at_once: bool,
    /// Ports are open to the outside only when the session listens there.
    pub listen_late: bool,
    /// Outside readers of a directory that a session is on wait for a commit.
    pub outside_readers_wait: bool,
    /// Processes in a session cannot make sockets and FIFOs in such a directory.
    pub directory_sealed: bool,
}

impl Cares {
    /// Keeps all invariants.
    pub const ALL: Cares = Cares {
        gate: true,
        commit_of_the_journal: true,
        data_in_the_journal: true,
        overlays_of_the_host: true,
        capabilities_dropped: true,
        write_errors: true,
        own_terminals: true,
        maps_by_descriptor: true,
        listen_late: true,
        requests_at_once: true,
        end_heard: true,
        outside_readers_wait: true,
        directory_sealed: true,
    };

    /// Keeps all invariants but the one of this name. None if there is no such invariant.
    pub fn without(name: &str) -> Option<Cares> {
        let mut cares = Cares::ALL;
        let care = match name {
            "gate" => &mut cares.gate,
            "commit_of_the_journal" => &mut cares.commit_of_the_journal,
            "data_in_the_journal" => &mut cares.data_in_the_journal,
            "overlays_of_the_host" => &mut cares.overlays_of_the_host,
            "capabilities_dropped" => &mut cares.capabilities_dropped,
            "write_errors" => &mut cares.write_errors,
            "own_terminals" => &mut cares.own_terminals,
            "maps_by_descriptor" => &mut cares.maps_by_descriptor,
            "listen_late" => &mut cares.listen_late,
            "end_heard" => &mut cares.end_heard,
            "outside_readers_wait" => &mut cares.outside_readers_wait,
            "directory_sealed" => &mut cares.directory_sealed,
            "requests_at_once" => &mut cares.requests_at_once,
            _ => return None,
        };
        *care = false;
        Some(cares)
    }
}
