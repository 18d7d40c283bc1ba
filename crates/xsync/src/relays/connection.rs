//! A connection of a client outside to a server in the session: two sockets, and what both relays do with them.

use rustix::io::Errno;
use rustix::net::{SendFlags, connect_unspec, send};
use std::os::fd::OwnedFd;

/// What the events of a connection's sockets are known by, in both relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's socket of the connection of this number.
    Client(u64),
    /// The socket that leads into the session.
    Inner(u64),
    /// A port, by its number among the ports.
    Port(u64),
    /// Somebody wants the relay to look up.
    Wake,
}

impl Source {
    /// As a number that goes through the kernel.
    pub fn to_number(self) -> u64 {
        match self {
            Source::Client(n) => n << 2,
            Source::Inner(n) => n << 2 | 1,
            Source::Port(n) => n << 2 | 2,
            Source::Wake => 3,
        }
    }

    /// Back from such a number.
    pub fn from_number(number: u64) -> Source {
        match number & 3 {
            0 => Source::Client(number >> 2),
            1 => Source::Inner(number >> 2),
            2 => Source::Port(number >> 2),
            _ => Source::Wake,
        }
    }
}

/// One connection; closed when both relays have let go of it. Neither socket ever waits.
#[derive(Debug)]
pub struct Connection {
    /// Among all connections of the session.
    pub number: u64,
    /// To the client.
    pub client: OwnedFd,
    /// To the server, in the session.
    pub inner: OwnedFd,
}

impl Connection {
    /// Resets both sides at once, so that both know that it failed; the other relay finds it closed.
    pub fn reset(&self) {
        let _ = connect_unspec(&self.client);
        let _ = connect_unspec(&self.inner);
    }
}

/// Sends as much as the other side takes now; how much that was.
pub fn send_some(to: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(to, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(some) => sent += some,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        for source in [Source::Client(7), Source::Inner(7), Source::Port(0), Source::Wake] {
            assert_eq!(Source::from_number(source.to_number()), source);
        }
    }
}
