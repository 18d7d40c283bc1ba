//! Relays datagrams between the session and addresses outside: outgoing ones after a commit, incoming ones at once.
//!
//! Each pair of a socket in the session and an address outside is a flow with two sockets of its own. One is outside;
//! the other is in the session's network and has the outside address, so that answers come from there.

use crate::network::inner_sockets::InnerSockets;
use crate::network::session_network::be_transparent;
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Errno, write};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, recvfrom, send, socket_with,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

/// The size of the largest datagram.
const BYTES_MAX: usize = 1 << 16;
/// The most bytes that are held. Further datagrams stay in the kernel.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// The most datagrams that are read from one socket before the next socket is read.
const READ_MAX: usize = 32;
/// The most flows that are kept. The least recently used one makes room for a new one.
const FLOWS_MAX: usize = 512;
const EVENTS_MAX: usize = 128;
const DNS: u16 = 53;
/// The event of the session's end. Smaller numbers are first the sockets that take datagrams without a flow, then
/// flows.
const WAKE: u64 = u64::MAX;
const FIRST_FLOW: u64 = 16;

/// The threads that relay datagrams.
#[derive(Debug)]
pub struct Datagrams {
    shared: Arc<Shared>,
    leaving: JoinHandle<Result<()>>,
    coming: JoinHandle<Result<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The epoll of the session's side.
    leaving: OwnedFd,
    /// The epoll of the outside.
    coming: OwnedFd,
    wake: OwnedFd,
    ended: AtomicBool,
    flows: Mutex<HashMap<u64, Arc<Flow>>>,
}

#[derive(Debug)]
struct Flow {
    ends: Ends,
    outer: OwnedFd,
    inner: OwnedFd,
}

/// The ends of a flow: the socket in the session, and the address outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    session: SocketAddr,
    outside: SocketAddr,
}

impl Flow {
    /// Receives the next datagram from the session: its size and its ends.
    ///
    /// They are another flow's ends if another socket sent it between the bind and the connect of this flow's socket.
    fn receive(&self, buffer: &mut [u8]) -> Option<(usize, Ends)> {
        let (_, bytes, from) = recvfrom(&self.inner, buffer, RecvFlags::DONTWAIT).ok()?;
        let from = SocketAddr::try_from(from?).ok()?;
        Some((bytes, Ends { session: SocketAddr::new(from.ip(), from.port()), outside: self.ends.outside }))
    }
}

impl Datagrams {
    /// Relays the datagrams that arrive at these sockets of the session's network.
    pub fn begin(
        sockets: Vec<OwnedFd>,
        network: OwnedFd,
        committer: &Arc<Committer>,
        counters: &Arc<Counters>,
    ) -> Result<Datagrams> {
        let made = || epoll::create(epoll::CreateFlags::CLOEXEC).context("a relay");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("a relay")?;
        let (ended, flows) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { leaving: made()?, coming: made()?, wake, ended, flows });
        listen_to(&shared.leaving, &shared.wake, WAKE)?;
        listen_to(&shared.coming, &shared.wake, WAKE)?;
        for (n, socket) in sockets.iter().enumerate() {
            listen_to(&shared.leaving, socket, n as u64)?;
        }
        let inner = InnerSockets::begin(network)?;
        let (next, recent, group) = (FIRST_FLOW, HashMap::new(), Group::default());
        let counts = counters.clone();
        let mut leaving = Leaving { shared: shared.clone(), sockets, inner, next, recent, group, counts };
        let committer = committer.clone();
        let leaving =
            thread::Builder::new().spawn(move || leaving.relay(&committer)).context("a thread for datagrams")?;
        let (comes, counters) = (shared.clone(), counters.clone());
        let coming =
            thread::Builder::new().spawn(move || comes.bring_in(&counters)).context("a thread for datagrams")?;
        Ok(Datagrams { shared, leaving, coming })
    }

    /// Ends the relay after the session's end: datagrams that the session has sent by then are still relayed.
    pub fn end(self) -> Result<()> {
        self.shared.ended.store(true, SeqCst);
        let _ = write(&self.shared.wake, &1_u64.to_ne_bytes());
        let ended = [self.leaving, self.coming].map(|thread| thread.join().expect("a relay does not panic"));
        ended.into_iter().collect()
    }
}

fn listen_to(epoll: &OwnedFd, socket: &OwnedFd, number: u64) -> Result<()> {
    epoll::add(epoll, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN).context("a relay")
}

impl Shared {
    fn flow(&self, number: u64) -> Option<Arc<Flow>> {
        self.flows.lock().get(&number).cloned()
    }

    /// Passes on datagrams from outside, until the session's end.
    fn bring_in(&self, counters: &Counters) -> Result<()> {
        let (mut events, mut buffer) = (Vec::with_capacity(EVENTS_MAX), vec![0; BYTES_MAX]);
        while !self.ended.load(SeqCst) {
            events.clear();
            match epoll::wait(&self.coming, rustix::buffer::spare_capacity(&mut events), None) {
                Err(Errno::INTR) => continue,
                done => done.context("a relay")?,
            };
            for flow in events.iter().filter_map(|event| self.flow(event.data.u64())) {
                // A datagram for which the session's socket has no room is lost, as on any network. An error reports
                // that nobody received an earlier datagram, and is ignored.
                if let Ok((_, bytes)) = recv(&flow.outer, &mut buffer[..], RecvFlags::DONTWAIT) {
                    counters.came_in.fetch_add(bytes as u64, SeqCst);
                    let _ = send(&flow.inner, &buffer[..bytes], SendFlags::DONTWAIT);
                }
            }
        }
        Ok(())
    }
}

/// Datagrams that share a commit.
#[derive(Debug, Default)]
struct Group {
    bytes: Vec<u8>,
    datagrams: Vec<(Arc<Flow>, usize)>,
}

struct Leaving {
    shared: Arc<Shared>,
    sockets: Vec<OwnedFd>,
    inner: InnerSockets,
    next: u64,
    /// The number of each flow, and the group that used it last.
    recent: HashMap<Ends, (u64, u64)>,
    group: Group,
    counts: Arc<Counters>,
}

impl Leaving {
    fn relay(&mut self, committer: &Committer) -> Result<()> {
        let (mut events, mut buffer) = (Vec::with_capacity(EVENTS_MAX), vec![0; BYTES_MAX]);
        for now in 0.. {
            // Read before the sockets, so that datagrams from before the session's end are found.
            let over = self.shared.ended.load(SeqCst);
            events.clear();
            match epoll::wait(&self.shared.leaving, rustix::buffer::spare_capacity(&mut events), None) {
                Err(Errno::INTR) => continue,
                done => done.context("a relay")?,
            };
            for event in &events {
                self.read(event.data.u64(), now, &mut buffer);
            }
            if self.group.datagrams.is_empty() {
                if over {
                    break;
                }
                continue;
            }
            let bytes = self.group.bytes.len();
            let counts = self.counts.clone();
            let _holding = counts.hold(bytes);
            if committer.commit().is_err() {
                self.counts.dropped.fetch_add(bytes as u64, SeqCst);
                break;
            }
            self.send();
        }
        Ok(())
    }

    /// Reads the pending datagrams of a flow, or those that begin flows.
    fn read(&mut self, number: u64, now: u64, buffer: &mut [u8]) {
        if number == WAKE {
            return;
        }
        let flow = self.shared.flow(number);
        for _ in 0..READ_MAX {
            if self.group.bytes.len() > GROUP_BYTES_MAX {
                return;
            }
            let received = match &flow {
                Some(flow) => flow.receive(buffer),
                None => self.sockets.get(number as usize).and_then(|socket| receive(socket, buffer)),
            };
            let Some((bytes, ends)) = received else { return };
            // The datagram is dropped, as a network may do.
            let Ok(flow) = self.flow_of(ends, now) else { continue };
            self.group.bytes.extend_from_slice(&buffer[..bytes]);
            self.group.datagrams.push((flow, bytes));
        }
    }

    fn send(&mut self) {
        let mut rest = &self.group.bytes[..];
        for (flow, bytes) in self.group.datagrams.drain(..) {
            let (datagram, others) = rest.split_at(bytes);
            rest = others;
            let leave = || send(&flow.outer, datagram, SendFlags::DONTWAIT);
            // The first attempt may return the error of an earlier datagram.
            if leave().or_else(|_| leave()).is_ok() {
                self.counts.datagrams.fetch_add(1, SeqCst);
                self.counts.went_out.fetch_add(bytes as u64, SeqCst);
            }
        }
        self.group.bytes.clear();
    }

    fn flow_of(&mut self, ends: Ends, now: u64) -> Result<Arc<Flow>> {
        if let Some((number, used)) = self.recent.get_mut(&ends)
            && let Some(flow) = self.shared.flow(*number)
        {
            *used = now;
            return Ok(flow);
        }
        anyhow::ensure!(may_be_sent_to(ends.outside), "nobody outside");
        if self.recent.len() >= FLOWS_MAX {
            self.make_room();
        }
        let outer = socket_for(ends.outside)?;
        connect(&outer, &ends.outside)?;
        let inner = self.inner.make(move || inner(ends))?;
        let flow = Arc::new(Flow { ends, outer, inner });
        let number = self.next;
        self.next += 1;
        listen_to(&self.shared.leaving, &flow.inner, number)?;
        listen_to(&self.shared.coming, &flow.outer, number)?;
        self.shared.flows.lock().insert(number, flow.clone());
        self.recent.insert(ends, (number, now));
        Ok(flow)
    }

    fn make_room(&mut self) {
        let Some((ends, number)) = self.recent.iter().min_by_key(|(_, (_, used))| *used).map(|(e, (n, _))| (*e, *n))
        else {
            return;
        };
        self.recent.remove(&ends);
        let flow = self.shared.flows.lock().remove(&number);
        if let Some(flow) = flow {
            let _ = epoll::delete(&self.shared.leaving, &flow.inner);
            let _ = epoll::delete(&self.shared.coming, &flow.outer);
        }
    }
}

/// Whether the address is a single host, and not on the host's own loopback, except for its resolver.
fn may_be_sent_to(outside: SocketAddr) -> bool {
    let many = outside.ip().is_multicast() || outside.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
    !many && (!outside.ip().is_loopback() || outside.port() == DNS)
}

fn socket_for(address: SocketAddr) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// Makes a socket that has the outside address, in the session's network, which this thread is in.
fn inner(ends: Ends) -> Result<OwnedFd> {
    let socket = socket_for(ends.outside)?;
    be_transparent(&socket, ends.outside.ip())?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &ends.outside)?;
    connect(&socket, &ends.session)?;
    Ok(socket)
}

/// Receives the next datagram without a flow: its size, its sender and its destination.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, Ends)> {
    // SAFETY: structures of numbers and pointers, for which zero is a value; all of them outlive the calls, and the
    // kernel says how much of each it has filled.
    unsafe {
        let mut session: libc::sockaddr_storage = std::mem::zeroed();
        let mut control = [0_u64; 32];
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = (&raw mut session).cast();
        message.msg_namelen = size_of_val(&session) as u32;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let bytes = libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT);
        if bytes < 0 {
            return None;
        }
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let kind = ((*header).cmsg_level, (*header).cmsg_type);
            if kind == (libc::SOL_IP, libc::IP_ORIGDSTADDR) || kind == (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) {
                let outside = address(libc::CMSG_DATA(header).cast())?;
                return Some((bytes as usize, Ends { session: address((&raw const session).cast())?, outside }));
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        None
    }
}

/// # Safety
/// `at` must point to a complete address of its family.
unsafe fn address(at: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: as the caller ensures; the address need not be aligned.
    unsafe {
        match i32::from((&raw const (*at).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let is = at.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(is.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(is.sin_port)))
            }
            libc::AF_INET6 => {
                let is = at.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(SocketAddr::new(Ipv6Addr::from(is.sin6_addr.s6_addr).into(), u16::from_be(is.sin6_port)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_datagram_from_before_the_connect_is_of_its_own_flow() {
        let [inner, other, own] = [0; 3].map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
        let [outside, early, session] = [&inner, &other, &own].map(|socket| socket.local_addr().unwrap());
        other.send_to(b"early", outside).unwrap();
        inner.connect(session).unwrap();
        own.send_to(b"own", outside).unwrap();
        let flow = Flow { ends: Ends { session, outside }, outer: socket_for(outside).unwrap(), inner: inner.into() };
        let mut buffer = [0; 10];
        assert_eq!(flow.receive(&mut buffer), Some((5, Ends { session: early, outside })));
        assert_eq!(flow.receive(&mut buffer), Some((3, flow.ends)));
    }
}
