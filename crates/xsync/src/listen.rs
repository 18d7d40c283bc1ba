//! Ports of the session that the outside may connect to: each connection is relayed, its answers after a commit.

use crate::cares::Cares;
use crate::committer::Committer;
use crate::relay::{self, End, Reader};
use crate::session_report::Counters;
use anyhow::{Context, Result};
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_linger, set_socket_reuseaddr, set_tcp_nodelay};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, listen, shutdown, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often it is looked whether the session listens yet.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Threads of connections keep their bytes elsewhere.
const STACK_BYTES: usize = 64 << 10;
/// `TCP_LISTEN` as `/proc/net/tcp` writes it.
const LISTENS: &str = "0A";

/// A port that is taken, and not open yet.
#[derive(Debug)]
pub struct Port {
    socket: Arc<OwnedFd>,
    number: u16,
}

impl Port {
    /// Takes the port, so that nobody else has it; clients are refused until [`Port::open`].
    pub fn take(address: SocketAddr) -> Result<Port> {
        let any = address.ip().is_unspecified() && address.is_ipv4();
        let both = any.then(|| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()));
        let socket = both.and_then(|both| bound(both).ok()).map_or_else(|| bound(address), Ok);
        let socket = socket.with_context(|| format!("cannot listen at {address}"))?;
        Ok(Port { socket: Arc::new(socket), number: address.port() })
    }

    /// Relays connections as soon as the session listens at the port.
    pub fn open(&self, served: Served) -> Result<()> {
        let (socket, number) = (self.socket.clone(), self.number);
        let work = move || {
            if served.cares.listen_late && !wait_until_it_listens(&served, number) {
                return;
            }
            if let Err(e) = listen(&socket, BACKLOG) {
                eprintln!("untorn-xsync: cannot listen at port {number}: {e}");
                return;
            }
            // Ends when the socket is shut down.
            while let Ok(client) = accept_with(&socket, SocketFlags::CLOEXEC) {
                served.clone().connection(client, number);
            }
        };
        thread::Builder::new().spawn(work).map(drop).context("a thread for a port")
    }

    /// No connection is accepted any more.
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

/// What connections need of the session.
#[derive(Clone, Debug)]
pub struct Served {
    /// The session's first process.
    pub init: Pid,
    /// Cares.
    pub cares: Cares,
    /// Gone when the session is over.
    pub committer: Weak<Committer>,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// Threads that bring something out, to be waited for.
    pub relays: Arc<Mutex<Vec<JoinHandle<End>>>>,
}

/// A client who connects before the server listens would be reset. False if the session ended before.
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

impl Served {
    /// Relays one connection, in threads of its own.
    fn connection(self, client: OwnedFd, port: u16) {
        let relays = self.relays.clone();
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            // Whoever connects when the session is over is reset.
            let Some(committer) = self.committer.upgrade() else { return reset(&client, End::Closed) };
            let end = self.relayed(&client, port, &committer);
            // The end of a connection is an answer, too.
            match (&end, committer.commit()) {
                (End::Closed, Ok(())) => {
                    let _ = shutdown(&client, Shutdown::Write);
                    end
                }
                _ => {
                    if committer.has_failed() {
                        let _ = kill_process(self.init, Signal::KILL);
                    }
                    reset(&client, end)
                }
            }
        });
        let mut relays = relays.lock().unwrap_or_else(|e| e.into_inner());
        relays.retain(|relay| !relay.is_finished());
        relays.extend(thread);
    }

    fn relayed(&self, client: &OwnedFd, port: u16, committer: &Committer) -> End {
        let inner = match self.connect(port) {
            Ok(inner) => OwnedFd::from(inner),
            Err(e) => return End::Failed(e),
        };
        let _ = set_tcp_nodelay(client, true);
        let _ = set_tcp_nodelay(&inner, true);
        let (Ok(from), Ok(to)) = (client.try_clone(), inner.try_clone()) else { return End::Unread };
        let counters = self.counters.clone();
        // Not waited for: a client may say nothing for ever.
        let inbound = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let _ = relay::bring_in(from.as_fd(), &to, &counters);
            let _ = shutdown(&to, Shutdown::Write);
        });
        if let Err(e) = inbound {
            return End::Failed(anyhow::Error::new(e).context("a thread for a connection"));
        }
        relay::bring_out(&inner, client.as_fd(), Reader::Waiting, committer, &self.counters)
    }

    /// Connects within the session's network, which this thread then belongs to.
    fn connect(&self, port: u16) -> Result<TcpStream> {
        let namespace =
            File::open(format!("/proc/{}/ns/net", self.init.as_raw_pid())).context("the session's network")?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("the session's network")?;
        let to = |ip: IpAddr| TcpStream::connect(SocketAddr::new(ip, port));
        to(Ipv4Addr::LOCALHOST.into())
            .or_else(|_| to(Ipv6Addr::LOCALHOST.into()))
            .context("the session does not listen")
    }
}

/// Closes a connection so that the client knows that it failed.
fn reset(client: &OwnedFd, end: End) -> End {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
    end
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
