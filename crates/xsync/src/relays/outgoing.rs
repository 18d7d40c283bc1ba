//! Relays connections of the session to addresses outside: the supervisor makes each of them anew, after a commit.

use crate::relays::listen::Served;
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, write};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, connect, getsockname, socket_with};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most connections that may share a commit.
const GROUP_MAX: usize = 256;
const DNS: u16 = 53;

/// The thread that makes connections.
#[derive(Debug)]
pub struct Outgoing {
    ended: Arc<OwnedFd>,
    thread: JoinHandle<Result<()>>,
}

impl Outgoing {
    /// Relays the connections that arrive at these sockets of the session's network.
    pub fn begin(
        sockets: Vec<OwnedFd>,
        served: &Arc<Served>,
        committer: &Arc<Committer>,
        counters: &Arc<Counters>,
    ) -> Result<Outgoing> {
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("a relay")?);
        let (hears, served) = (ended.clone(), served.clone());
        let (committer, counters) = (committer.clone(), counters.clone());
        let work = move || take(&sockets, &hears, &served, &committer, &counters);
        let thread = thread::Builder::new().spawn(work).context("a thread for connections")?;
        Ok(Outgoing { ended, thread })
    }

    /// Ends the thread after the session's end. Connections that the session has made by then are still made outside.
    pub fn end(self) -> Result<()> {
        let _ = write(&self.ended, &1_u64.to_ne_bytes());
        self.thread.join().expect("a relay does not panic")
    }
}

fn take(
    sockets: &[OwnedFd],
    ended: &OwnedFd,
    served: &Served,
    committer: &Committer,
    counters: &Counters,
) -> Result<()> {
    loop {
        let all = sockets.iter().chain([ended]);
        let mut ready: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            done => done.context("a relay")?,
        };
        // Read before the sockets, so that connections from before the session's end are found.
        let over = ready.last().is_some_and(|ended| !ended.revents().is_empty());
        let mut group = Vec::new();
        sockets.iter().for_each(|socket| accept(socket, &mut group));
        if group.is_empty() {
            if over {
                return Ok(());
            }
            continue;
        }
        // A connection by itself tells the outside something, so it waits for a commit, too.
        let durable = committer.commit().is_ok();
        for inner in group {
            match durable.then(|| outside(&inner)).flatten() {
                Some(client) => {
                    counters.connections.fetch_add(1, SeqCst);
                    served.relay(client, inner);
                }
                // Resets the session's connection if there is no connection outside.
                None => set_socket_linger(&inner, Some(Duration::ZERO)).unwrap_or_default(),
            }
        }
    }
}

fn accept(socket: &OwnedFd, group: &mut Vec<OwnedFd>) {
    while group.len() < GROUP_MAX {
        match accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(inner) => group.push(inner),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::MFILE | Errno::NFILE) => {
                // Waits for another connection to end, which frees descriptors.
                thread::sleep(Duration::from_millis(20));
                return;
            }
            Err(_) => return,
        }
    }
}

/// Connects to the address that the session's connection was meant for. The connection may still be in progress.
fn outside(inner: &OwnedFd) -> Option<OwnedFd> {
    let to = SocketAddr::try_from(getsockname(inner).ok()?).ok()?;
    if to.ip().is_loopback() && to.port() != DNS {
        return None;
    }
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Some(socket),
        Err(_) => None,
    }
}
