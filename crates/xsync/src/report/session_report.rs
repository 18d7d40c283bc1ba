//! Counts and reports the progress of a session, for users who ask.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Counters that the threads of a supervisor keep.
#[derive(Debug, Default)]
pub struct Counters {
    /// Writable shared maps of files.
    pub shared_maps: AtomicU64,
    /// Connections of the session to addresses outside.
    pub connections: AtomicU64,
    /// Datagrams of the session that went to addresses outside.
    pub datagrams: AtomicU64,
    /// Bytes that came in from outside.
    pub came_in: AtomicU64,
    /// Bytes that went out.
    pub went_out: AtomicU64,
    /// Bytes that were dropped because a commit failed.
    pub dropped: AtomicU64,
    held: Mutex<Held>,
}

/// Output that waits for a commit, or for its reader outside.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    since: Vec<(u64, Instant)>,
    next: u64,
}

/// Held output. It counts as sent when this value is dropped.
#[derive(Debug)]
pub struct Holding<'a> {
    counters: &'a Counters,
    number: u64,
    bytes: u64,
}

impl Counters {
    /// Counts bytes as held from now on.
    pub fn hold(&self, bytes: usize) -> Holding<'_> {
        let mut held = self.held.lock();
        let number = held.next;
        held.next += 1;
        held.bytes += bytes as u64;
        held.since.push((number, Instant::now()));
        Holding { counters: self, number, bytes: bytes as u64 }
    }

    /// The number of held bytes, and the time for which the oldest of them have been held.
    pub fn held(&self) -> (u64, Duration) {
        let held = self.held.lock();
        (held.bytes, held.since.first().map_or(Duration::ZERO, |(_, since)| since.elapsed()))
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let mut held = self.counters.held.lock();
        held.bytes -= self.bytes;
        held.since.retain(|(number, _)| *number != self.number);
    }
}

/// The state of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The process id of the supervisor.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// The file or device with the volume.
    pub volume: String,
    /// Requested commits, including those that found no changes.
    pub commits: u64,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Connections that the session made to addresses outside.
    #[serde(default)]
    pub connections_out: u64,
    /// Datagrams that the session sent to addresses outside.
    #[serde(default)]
    pub datagrams_out: u64,
    /// Bytes that are held.
    pub bytes_held: u64,
    /// Milliseconds for which the oldest of them have been held.
    pub oldest_held_ms: u64,
    /// Writable shared maps of files that the session made, or tried to.
    pub shared_maps: u64,
}

impl Report {
    /// Fills in the counts.
    pub fn counted(mut self, counters: &Counters, commits: u64) -> Report {
        let (held, oldest) = counters.held();
        self.commits = commits;
        self.bytes_out = counters.went_out.load(SeqCst);
        self.bytes_in = counters.came_in.load(SeqCst);
        self.connections_out = counters.connections.load(SeqCst);
        self.datagrams_out = counters.datagrams.load(SeqCst);
        self.shared_maps = counters.shared_maps.load(SeqCst);
        self.bytes_held = held;
        self.oldest_held_ms = oldest.as_millis() as u64;
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            pid,
            command,
            volume,
            commits,
            bytes_out,
            bytes_in,
            connections_out,
            datagrams_out,
            bytes_held,
            oldest_held_ms,
            shared_maps,
        } = self;
        write!(f, "session {pid} ({command}) on {volume}: {commits} commits, {bytes_out} bytes out, {bytes_in} in, ")?;
        match bytes_held {
            0 => write!(f, "nothing held")?,
            _ => write!(f, "{bytes_held} bytes held, the oldest for {oldest_held_ms} ms")?,
        }
        match connections_out {
            0 => {}
            1 => write!(f, "; 1 connection to the outside")?,
            _ => write!(f, "; {connections_out} connections to the outside")?,
        }
        match datagrams_out {
            0 => {}
            1 => write!(f, "; 1 datagram to the outside")?,
            _ => write!(f, "; {datagrams_out} datagrams to the outside")?,
        }
        match shared_maps {
            0 => Ok(()),
            1 => write!(f, "; 1 writable shared map of a file"),
            _ => write!(f, "; {shared_maps} writable shared maps of files"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_until_it_has_left() {
        let counters = Counters::default();
        let first = counters.hold(3);
        let second = counters.hold(4);
        assert_eq!(counters.held().0, 7);
        drop(first);
        assert_eq!(counters.held().0, 4);
        drop(second);
        assert_eq!(counters.held(), (0, Duration::ZERO));
    }
}
