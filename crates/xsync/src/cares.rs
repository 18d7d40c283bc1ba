//! What a session takes care of, by name, so that tests can take one care away and see what happens.

/// Cares of a session. A program has all of them; tests leave one out, and must then find what it is for.
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
    /// Shared maps are judged by how the file was opened, not by their first protection.
    pub maps_by_descriptor: bool,
    /// The program's end is heard at once, by a signal; nobody looks for it again and again.
    pub end_heard: bool,
    /// What clients ask reaches the session while a commit is on its way.
    pub requests_at_once: bool,
    /// Ports are open to the outside only when the session listens there.
    pub listen_late: bool,
}

impl Cares {
    /// All of them.
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
    };

    /// All but the one of this name.
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
            "requests_at_once" => &mut cares.requests_at_once,
            _ => return None,
        };
        *care = false;
        Some(cares)
    }
}
