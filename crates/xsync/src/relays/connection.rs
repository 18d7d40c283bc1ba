//! A connection of a client outside to a server in the session: two sockets, and the operations that both relays need.

use rustix::io::Errno;
use rustix::net::{SendFlags, connect_unspec, send};
use std::os::fd::OwnedFd;

/// The socket that an event belongs to, in both relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The socket to the client, of the connection of this number.
    Client(u64),
    /// The socket that leads into the session.
    Inner(u64),
    /// A port, by its number among the ports.
    Port(u64),
    /// Another thread wakes the relay up.
    Wake,
}

impl Source {
    /// Encodes it as a number for epoll.
    pub fn to_number(self) -> u64 {
        match self {
            Source::Client(n) => n << 2,
            Source::Inner(n) => n << 2 | 1,
            Source::Port(n) => n << 2 | 2,
            Source::Wake => 3,
        }
    }

    /// Decodes such a number.
    pub fn from_number(number: u64) -> Source {
        match number & 3 {
            0 => Source::Client(number >> 2),
            1 => Source::Inner(number >> 2),
            2 => Source::Port(number >> 2),
            _ => Source::Wake,
        }
    }
}

/// One connection, closed when both relays have dropped it. Both sockets are non-blocking.
#[derive(Debug)]
pub struct Connection {
    /// The number of the connection in the session.
    pub number: u64,
    /// The socket to the client.
    pub client: OwnedFd,
    /// The socket to the server, in the session.
    pub inner: OwnedFd,
}

impl Connection {
    /// Resets both sides at once, so that both see a failure. The other relay then finds the connection closed.
    pub fn reset(&self) {
        let _ = connect_unspec(&self.client);
        let _ = connect_unspec(&self.inner);
    }
}

/// Sends as many bytes as the other side accepts now, and returns the number.
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
