//! Relays requests of clients to servers in the session, without commits.

use crate::invariant::REQUESTS_AT_ONCE;
use crate::network::session_network::be_transparent;
use crate::relays::connection::{Connection, Source, send_some};
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::sockopt::{
    set_socket_linger, set_socket_oobinline, set_socket_reuseaddr, set_tcp_nodelay, socket_error,
};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, connect, getpeername, shutdown, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use untorn_os::holds;

/// The most bytes that are read from one client at a time.
const READ_BYTES_MAX: usize = 256 << 10;
/// The most events that are handled together.
const EVENTS_MAX: usize = 512;
/// The interval before another attempt when no descriptor was free for a client.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The most connections of one port that are accepted before requests are handled again.
const ACCEPTED_MAX: usize = 64;

/// The interface of the relay for other threads.
#[derive(Debug)]
pub struct Requests {
    epoll: OwnedFd,
    wake: OwnedFd,
    ended: AtomicBool,
    ports: Mutex<Vec<(Arc<OwnedFd>, u16)>>,
    arrived: Mutex<Vec<Arc<Connection>>>,
    next: AtomicU64,
}

/// The parts of the session that the relay needs.
pub struct Session {
    /// The session's network.
    pub network: OwnedFd,
    /// All IPv4 addresses lead to the session's loopback.
    pub all_addresses: bool,
    /// The committer, which is gone when the session is over.
    pub committer: Weak<Committer>,
    /// Counters for the status.
    pub counters: Arc<Counters>,
}

struct Inbound {
    connection: Arc<Connection>,
    /// Bytes that the server has not accepted yet. The client is not read meanwhile.
    waiting: Vec<u8>,
}

impl Requests {
    /// Makes a relay without ports.
    pub fn new() -> Result<Requests> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("a relay")?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("a relay")?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(Source::Wake.to_number()), epoll::EventFlags::IN)?;
        Ok(Requests {
            epoll,
            wake,
            ended: AtomicBool::new(false),
            ports: Mutex::default(),
            arrived: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Relays connections to this listening socket to the port of this number in the session.
    pub fn serve(&self, socket: Arc<OwnedFd>, number: u16) -> Result<()> {
        let mut ports = self.ports.lock();
        let source = Source::Port(ports.len() as u64);
        ports.push((socket.clone(), number));
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(source.to_number()), epoll::EventFlags::IN)
            .context("a relay")
    }

    /// Makes a new connection of these two sockets.
    pub fn connection(&self, client: OwnedFd, inner: OwnedFd) -> Arc<Connection> {
        let _ = set_tcp_nodelay(&client, true);
        let _ = set_tcp_nodelay(&inner, true);
        // Urgent bytes are treated like all others.
        let _ = set_socket_oobinline(&client, true);
        let _ = set_socket_oobinline(&inner, true);
        Arc::new(Connection { number: self.next.fetch_add(1, SeqCst), client, inner })
    }

    /// Relays the client's bytes in this connection.
    pub fn add(&self, connection: Arc<Connection>) {
        self.arrived.lock().push(connection);
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Ends the relay.
    pub fn end(&self) {
        self.ended.store(true, SeqCst);
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Relays until [`Requests::end`], and passes each new connection to `answers`.
    ///
    /// The calling thread enters the session's network for good.
    pub fn relay(&self, session: &Session, answers: impl Fn(&Arc<Connection>)) -> Result<()> {
        move_into_link_name_space(session.network.as_fd(), Some(LinkNameSpaceType::Network))
            .context("the session's network")?;
        let mut relay = Relay { requests: self, session, connections: HashMap::new(), full: None, parked: None };
        let (mut events, mut buffer) = (Vec::with_capacity(EVENTS_MAX), vec![0; READ_BYTES_MAX]);
        while !self.ended.load(SeqCst) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), relay.full.map(|_| &LOOK_EVERY))
            {
                Err(Errno::INTR) => continue,
                done => done.context("a relay")?,
            };
            if relay.full.is_some_and(|since| since.elapsed() >= Duration::from_millis(20)) {
                relay.look_at_ports_again(&answers);
            }
            for event in &events {
                match Source::from_number(event.data.u64()) {
                    Source::Client(number) => relay.read_client(number, &mut buffer),
                    Source::Inner(number) => relay.write_inner(number),
                    Source::Port(port) => relay.accept(port as usize, &answers),
                    Source::Wake => relay.take_arrived(),
                }
            }
        }
        Ok(())
    }
}

struct Relay<'a> {
    requests: &'a Requests,
    session: &'a Session,
    connections: HashMap<u64, Inbound>,
    /// When no descriptor was free for a client. Ports are not handled again for a moment.
    full: Option<Instant>,
    /// The client that had been accepted then.
    parked: Option<(OwnedFd, u16)>,
}

impl Relay<'_> {
    fn accept(&mut self, port: usize, answers: &impl Fn(&Arc<Connection>)) {
        let (socket, number) = self.requests.ports.lock()[port].clone();
        if self.full.is_some() {
            let _ = epoll::delete(&self.requests.epoll, &socket);
            return;
        }
        for _ in 0..ACCEPTED_MAX {
            let client = match accept_with(&socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(client) => client,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Waiting clients are served when another connection has ended.
                    self.full = Some(Instant::now());
                    let _ = epoll::delete(&self.requests.epoll, &socket);
                    return;
                }
                Err(_) => return,
            };
            if !self.serve(client, number, answers) {
                return;
            }
        }
    }

    /// Connects a client to the server. False if no descriptor was free: then this client is the next to be served.
    fn serve(&mut self, client: OwnedFd, number: u16, answers: &impl Fn(&Arc<Connection>)) -> bool {
        match self.connected(number, &client) {
            Ok(inner) => self.begin(client, inner, answers),
            Err(Errno::MFILE | Errno::NFILE) => {
                self.full = Some(Instant::now());
                self.parked = Some((client, number));
                return false;
            }
            // No server listens, so the client is reset.
            Err(_) => set_socket_linger(&client, Some(Duration::ZERO)).unwrap_or_default(),
        }
        true
    }

    fn begin(&mut self, client: OwnedFd, inner: OwnedFd, answers: &impl Fn(&Arc<Connection>)) {
        let connection = self.requests.connection(client, inner);
        answers(&connection);
        self.begin_to_read(connection);
    }

    fn look_at_ports_again(&mut self, answers: &impl Fn(&Arc<Connection>)) {
        self.full = None;
        if let Some((client, number)) = self.parked.take()
            && !self.serve(client, number, answers)
        {
            return;
        }
        let ports = self.requests.ports.lock();
        for (n, (socket, _)) in ports.iter().enumerate() {
            // A port that is in the epoll already is refused, which does no harm.
            self.listen_to(Source::Port(n as u64), socket, epoll::EventFlags::IN);
        }
    }

    /// Connects to a port of this thread's network. The connection may still be in progress.
    ///
    /// It comes from the client's address if the server's replies to that address stay in this network.
    fn connected(&self, port: u16, client: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        let from = getpeername(client).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
        let from = from.filter(|_| self.session.all_addresses);
        match from.map(|from| (from.ip().to_canonical(), from.port())) {
            Some((ip, of_client)) if leads_back(ip) => {
                let as_client = connected_from(SocketAddr::new(ip, of_client), port);
                as_client.or_else(|_| connected_from(SocketAddr::new(ip, 0), port)).or_else(|_| connected(port))
            }
            _ => connected(port),
        }
    }

    fn take_arrived(&mut self) {
        let _ = read(&self.requests.wake, &mut [0; 8]);
        let arrived = std::mem::take(&mut *self.requests.arrived.lock());
        arrived.into_iter().for_each(|connection| self.begin_to_read(connection));
    }

    fn begin_to_read(&mut self, connection: Arc<Connection>) {
        self.listen_to(Source::Client(connection.number), &connection.client, epoll::EventFlags::IN);
        self.connections.insert(connection.number, Inbound { connection, waiting: Vec::new() });
    }

    fn listen_to(&self, source: Source, socket: &OwnedFd, to: epoll::EventFlags) {
        // Fails only for lack of memory. The connection then stalls until its client leaves.
        let _ = epoll::add(&self.requests.epoll, socket, epoll::EventData::new_u64(source.to_number()), to);
    }

    fn ignore(&self, socket: &OwnedFd) {
        let _ = epoll::delete(&self.requests.epoll, socket);
    }

    fn read_client(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(inbound) = self.connections.get_mut(&number) else { return };
        let connection = inbound.connection.clone();
        match read(&connection.client, &mut *buffer) {
            Ok(0) => {
                let _ = shutdown(&connection.inner, Shutdown::Write);
                self.forget(&connection);
            }
            Ok(bytes) => {
                self.session.counters.came_in.fetch_add(bytes as u64, SeqCst);
                if !holds(REQUESTS_AT_ONCE) {
                    let _ = self.session.committer.upgrade().map(|committer| committer.commit());
                }
                inbound.waiting.extend_from_slice(&buffer[..bytes]);
                if !self.pass_on(number) {
                    self.ignore(&connection.client);
                    self.listen_to(Source::Inner(number), &connection.inner, epoll::EventFlags::OUT);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                connection.reset();
                self.forget(&connection);
            }
        }
    }

    /// Passes on waiting bytes when the server accepts more.
    fn write_inner(&mut self, number: u64) {
        if self.pass_on(number)
            && let Some(inbound) = self.connections.get(&number)
        {
            self.ignore(&inbound.connection.inner);
            self.listen_to(Source::Client(number), &inbound.connection.client, epoll::EventFlags::IN);
        }
    }

    /// Passes on waiting bytes. True if none are left.
    fn pass_on(&mut self, number: u64) -> bool {
        let Some(inbound) = self.connections.get_mut(&number) else { return true };
        match send_some(&inbound.connection.inner, &inbound.waiting) {
            Ok(sent) => {
                inbound.waiting.drain(..sent);
                inbound.waiting.is_empty()
            }
            // The server does not read any more. The other relay still sends its answers.
            Err(_) => {
                let connection = inbound.connection.clone();
                self.forget(&connection);
                true
            }
        }
    }

    fn forget(&mut self, connection: &Connection) {
        self.ignore(&connection.client);
        self.ignore(&connection.inner);
        self.connections.remove(&connection.number);
    }
}

/// Whether traffic from this thread's network to an outside address stays in it.
///
/// IPv6 has the same routes as the host, but none for link-local addresses.
fn leads_back(ip: IpAddr) -> bool {
    let has_route = |ip: Ipv6Addr| {
        let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        socket.is_ok_and(|socket| connect(&socket, &SocketAddr::new(ip.into(), 9)).is_ok())
    };
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && has_route(ip),
    }
}

/// Works like [`connected`], from an outside address.
fn connected_from(from: SocketAddr, port: u16) -> rustix::io::Result<OwnedFd> {
    let (family, to) = match from {
        SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::from(Ipv4Addr::LOCALHOST)),
        SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::LOCALHOST.into()),
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    be_transparent(&socket, from.ip()).map_err(|_| Errno::PERM)?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &from)?;
    begin_to_connect(socket, SocketAddr::new(to, port))
}

/// Starts a connection. In a loopback it fails at once if no server listens.
fn begin_to_connect(socket: OwnedFd, to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    match connect(&socket, &to) {
        Ok(()) => Ok(socket),
        Err(Errno::INPROGRESS) => socket_error(&socket)?.map(|()| socket),
        Err(e) => Err(e),
    }
}

/// Connects to a port of this thread's network. The connection may still be in progress.
fn connected(port: u16) -> rustix::io::Result<OwnedFd> {
    let to = |ip: IpAddr| {
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        begin_to_connect(socket, SocketAddr::new(ip, port))
    };
    to(Ipv4Addr::LOCALHOST.into()).or_else(|_| to(Ipv6Addr::LOCALHOST.into()))
}
