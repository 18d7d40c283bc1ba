//! Ports of the session that clients outside may connect to. Each connection is relayed, its answers after a commit.

use crate::host::outer_streams::tell;
use crate::invariant::LISTEN_LATE;
use crate::relays::answers::{Answers, Ended};
use crate::relays::requests::{Requests, Session};
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result};
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, bind, listen, shutdown, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use untorn_os::holds;

/// The interval at which the supervisor checks whether the session listens yet.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The most connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// `TCP_LISTEN` as `/proc/net/tcp` writes it.
const LISTENS: &str = "0A";

/// A port that is bound, but not open yet.
#[derive(Debug)]
pub struct Port {
    socket: Arc<OwnedFd>,
    number: u16,
}

impl Port {
    /// Binds the port, so that no other process gets it. Clients are refused until [`Port::open`].
    pub fn take(address: SocketAddr) -> Result<Port> {
        let any = address.ip().is_unspecified() && address.is_ipv4();
        let both = any.then(|| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()));
        let socket = both.and_then(|both| bound(both).ok()).map_or_else(|| bound(address), Ok);
        let socket = socket.with_context(|| format!("cannot listen at {address}"))?;
        Ok(Port { socket: Arc::new(socket), number: address.port() })
    }

    /// Relays connections as soon as the session listens at the port.
    pub fn open(&self, served: Arc<Served>) -> Result<()> {
        let (socket, number) = (self.socket.clone(), self.number);
        let work = move || {
            if holds(LISTEN_LATE) && !wait_until_it_listens(&served, number) {
                return;
            }
            let opened =
                listen(&socket, BACKLOG).context("listen").and_then(|()| served.requests.serve(socket, number));
            if let Err(e) = opened {
                tell(format_args!("cannot listen at port {number}: {e:#}"));
            }
        };
        thread::Builder::new().spawn(work).map(drop).context("a thread for a port")
    }

    /// Accepts no more connections.
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

/// The relays of all connections of a session: one thread for requests of clients, one for answers of servers.
#[derive(Debug)]
pub struct Served {
    init: Pid,
    committer: Weak<Committer>,
    requests: Requests,
    answers: Answers,
}

/// The threads of [`Served`].
#[derive(Debug)]
pub struct Threads {
    served: Arc<Served>,
    requests: JoinHandle<Result<()>>,
    answers: JoinHandle<Result<Ended>>,
}

impl Served {
    /// Starts the relays, without a port yet.
    pub fn begin(
        init: Pid,
        network: OwnedFd,
        all_addresses: bool,
        committer: &Arc<Committer>,
        counters: &Arc<Counters>,
    ) -> Result<Threads> {
        let (requests, answers) = (Requests::new()?, Answers::new()?);
        let served = Arc::new(Served { init, committer: Arc::downgrade(committer), requests, answers });
        let (serves, session) = (
            served.clone(),
            Session { network, all_addresses, committer: served.committer.clone(), counters: counters.clone() },
        );
        let requests = move || serves.requests.relay(&session, |connection| serves.answers.add(connection));
        let (serves, committer, counters) = (served.clone(), committer.clone(), counters.clone());
        let answers = move || {
            let end = serves.answers.relay(&committer, &counters);
            if !matches!(end, Ok(Ended::Empty)) {
                // The program's further actions can never become durable.
                let _ = kill_process(serves.init, Signal::KILL);
            }
            end
        };
        let thread = || thread::Builder::new();
        let requests = thread().spawn(requests).context("a thread for requests")?;
        let answers = thread().spawn(answers).context("a thread for answers")?;
        Ok(Threads { served, requests, answers })
    }
}

impl Served {
    /// Relays between a client outside and a socket in the session's network.
    pub fn relay(&self, client: OwnedFd, inner: OwnedFd) {
        let connection = self.requests.connection(client, inner);
        self.answers.add(&connection);
        self.requests.add(connection);
    }
}

impl Threads {
    /// The relays, for opening ports.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Ends the relays after the session's end, when all its answers have been sent.
    pub fn end(self) -> Result<()> {
        self.served.requests.end();
        let requests = self.requests.join().expect("a relay does not panic");
        self.served.answers.end();
        self.answers.join().expect("a relay does not panic")?;
        requests
    }
}

/// Waits until the session listens at the port, because a client who connects before would be reset. False if the
/// session ended first.
fn wait_until_it_listens(served: &Served, port: u16) -> bool {
    let pid = served.init.as_raw_pid();
    while served.committer.strong_count() > 0 {
        let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
        if tables.iter().all(|table| table.is_err()) {
            return false;
        }
        if tables.iter().flatten().any(|table| has_listener(table, port)) {
            return true;
        }
        thread::sleep(LOOK_EVERY);
    }
    false
}

fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        state == LISTENS && local.ends_with(&format!(":{port:04X}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_by_their_port() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
                     0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n   \
                     1: 0100007F:1539 0100007F:9999 01 00000000:00000000 00:00000000 00000000\n";
        assert!(has_listener(table, 0x1538));
        assert!(!has_listener(table, 0x1539) && !has_listener(table, 0x38));
    }
}
