//! Relays the answers of servers in the session: one thread reads all pending answers, commits, and passes them on.
//!
//! So all answers that were there when a commit began share it.

use crate::relays::connection::{Connection, Source, send_some};
use crate::relays::relay::HELD_BYTES_MAX;
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The most events that are handled together.
const EVENTS_MAX: usize = 512;
/// The most bytes that are held for all connections. Further bytes stay in the kernel, where they hold up the servers.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// The least room for a read from one connection.
const READ_BYTES_MIN: usize = 8 << 10;

/// The interface of the relay for other threads.
#[derive(Debug)]
pub struct Answers {
    epoll: OwnedFd,
    wake: OwnedFd,
    session_ended: AtomicBool,
    arrived: Mutex<Vec<Arc<Connection>>>,
}

/// The end of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All answers have been sent.
    Empty,
    /// A commit failed, and the held answers are never sent.
    Held,
}

struct Outbound {
    connection: Arc<Connection>,
    /// Bytes that may be sent but were not, because the client is slow. The server is not read meanwhile.
    rest: Vec<u8>,
    /// The end of the connection, after these bytes.
    end: Option<End>,
}

/// The end of a client's connection, when its server has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server has closed the connection.
    Closed,
    /// The server has reset it, or is gone.
    Reset,
}

/// Answers of one connection that wait for the commit.
struct Held {
    number: u64,
    bytes: Range<usize>,
    end: Option<End>,
}

impl Answers {
    /// Makes a relay without connections.
    pub fn new() -> Result<Answers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("a relay")?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("a relay")?;
        // Edge-triggered: one event for each wake-up is enough.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(Source::Wake.to_number()), flags)?;
        Ok(Answers { epoll, wake, session_ended: AtomicBool::new(false), arrived: Mutex::default() })
    }

    /// Relays the answers on this connection.
    pub fn add(&self, connection: &Arc<Connection>) {
        self.arrived.lock().push(connection.clone());
        self.listen_to(Source::Inner(connection.number), &connection.inner, FROM_THE_SERVER);
    }

    /// The session has ended, and sends nothing more. The relay ends when everything has been sent.
    pub fn end(&self) {
        self.session_ended.store(true, SeqCst);
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn listen_to(&self, source: Source, socket: &OwnedFd, to: epoll::EventFlags) {
        // Fails only for lack of memory. The connection then stalls until its client leaves.
        let _ = epoll::add(&self.epoll, socket, epoll::EventData::new_u64(source.to_number()), to);
    }

    /// Relays until [`Answers::end`] was called and everything has been sent, or until a commit fails.
    pub fn relay(&self, committer: &Committer, counters: &Counters) -> Result<Ended> {
        let mut relay = Relay { answers: self, connections: HashMap::new(), counters };
        let (mut events, mut buffer) = (Vec::with_capacity(EVENTS_MAX), vec![0; GROUP_BYTES_MAX]);
        let mut held = Vec::new();
        loop {
            if self.session_ended.load(SeqCst) {
                relay.take_arrived();
                if relay.connections.is_empty() {
                    return Ok(Ended::Empty);
                }
            }
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Err(Errno::INTR) => continue,
                done => done.context("a relay")?,
            };
            let mut used = 0;
            let share = (GROUP_BYTES_MAX / events.len().max(1)).clamp(READ_BYTES_MIN, HELD_BYTES_MAX);
            for event in &events {
                match Source::from_number(event.data.u64()) {
                    Source::Inner(number) => {
                        let to = used + share;
                        let Some(place) = buffer.get_mut(used..to) else { break };
                        let flags = event.flags;
                        let ends = flags.intersects(ENDS);
                        if let Some((bytes, end)) = relay.read_server(number, place, ends) {
                            held.push(Held { number, bytes: used..used + bytes, end });
                            used += bytes;
                        }
                    }
                    Source::Client(number) => relay.write_client(number, &[], None),
                    Source::Port(_) | Source::Wake => {}
                }
            }
            if held.is_empty() {
                continue;
            }
            let _holding = (used > 0).then(|| counters.hold(used));
            if committer.commit().is_err() {
                counters.dropped.fetch_add(used as u64, SeqCst);
                relay.take_arrived();
                relay.connections.values().for_each(|outbound| outbound.connection.reset());
                return Ok(Ended::Held);
            }
            for Held { number, bytes, end } in held.drain(..) {
                relay.write_client(number, &buffer[bytes], end);
            }
        }
    }
}

const ENDS: epoll::EventFlags = epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);
const FROM_THE_SERVER: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

struct Relay<'a> {
    answers: &'a Answers,
    connections: HashMap<u64, Outbound>,
    counters: &'a Counters,
}

impl Relay<'_> {
    fn take_arrived(&mut self) {
        let arrived = std::mem::take(&mut *self.answers.arrived.lock());
        for connection in arrived {
            let number = connection.number;
            self.connections.insert(number, Outbound { connection, rest: Vec::new(), end: None });
        }
    }

    /// Reads from the server: the number of bytes, and how the connection ends if that was all. With `ends`, the end is
    /// near, and shares the commit.
    fn read_server(&mut self, number: u64, place: &mut [u8], ends: bool) -> Option<(usize, Option<End>)> {
        if !self.connections.contains_key(&number) {
            self.take_arrived();
        }
        let inner = &self.connections.get(&number)?.connection.inner;
        let mut got = 0;
        loop {
            match read(inner, &mut place[got..]) {
                Ok(0) if got == place.len() => return Some((got, None)),
                Ok(0) => return Some((got, Some(End::Closed))),
                Ok(bytes) => got += bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return (got > 0).then_some((got, None)),
                Err(_) => return Some((got, Some(End::Reset))),
            }
            if !ends {
                return Some((got, None));
            }
        }
    }

    /// Sends bytes that were committed to the client, after those that wait already.
    fn write_client(&mut self, number: u64, bytes: &[u8], end: Option<End>) {
        let Some(outbound) = self.connections.get_mut(&number) else { return };
        outbound.end = outbound.end.or(end);
        let waited = !outbound.rest.is_empty();
        let sent = match waited {
            true => {
                outbound.rest.extend_from_slice(bytes);
                let sent = send_some(&outbound.connection.client, &outbound.rest);
                sent.inspect(|&sent| drop(outbound.rest.drain(..sent)))
            }
            false => {
                let sent = send_some(&outbound.connection.client, bytes);
                sent.inspect(|&sent| outbound.rest.extend_from_slice(&bytes[sent..]))
            }
        };
        match sent {
            Ok(sent) => self.counters.went_out.fetch_add(sent as u64, SeqCst),
            // The client has closed the connection.
            Err(_) => {
                outbound.connection.reset();
                return self.forget(number);
            }
        };
        match (outbound.end, outbound.rest.is_empty()) {
            (Some(End::Closed), true) => {
                let _ = shutdown(&outbound.connection.client, Shutdown::Write);
                self.forget(number);
            }
            (Some(End::Reset), true) => {
                outbound.connection.reset();
                self.forget(number);
            }
            (None, true) if waited => {
                outbound.rest = Vec::new();
                let _ = epoll::delete(&self.answers.epoll, &outbound.connection.client);
                self.answers.listen_to(Source::Inner(number), &outbound.connection.inner, FROM_THE_SERVER);
            }
            (_, false) if !waited => {
                let _ = epoll::delete(&self.answers.epoll, &outbound.connection.inner);
                let client = &outbound.connection.client;
                self.answers.listen_to(Source::Client(number), client, epoll::EventFlags::OUT);
            }
            _ => {}
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(outbound) = self.connections.remove(&number) else { return };
        let _ = epoll::delete(&self.answers.epoll, &outbound.connection.client);
        let _ = epoll::delete(&self.answers.epoll, &outbound.connection.inner);
    }
}
