//! Clients of a server, each with one open question at a time.

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll;
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The time limit for the start of a server.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// The length of a question, and the least length of an answer. The second eight bytes of a question are the length of
/// its answer.
pub const MESSAGE_BYTES: usize = 32;
/// The first byte of a question that changes nothing.
pub const READS: u8 = b'r';
/// The first byte of a question that is logged before it is answered.
pub const WRITES: u8 = b'w';
/// The first byte of a message that ends the server.
pub const STOP: u8 = b's';

/// The clients and their questions.
#[derive(Clone, Copy)]
pub struct Load {
    pub clients: usize,
    pub kind: u8,
    pub answer_bytes: usize,
}

struct Client {
    stream: TcpStream,
    asked: Instant,
    got: usize,
}

/// A free port that the kernel gives to no outgoing connection, which another program might open before the server
/// listens.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..30_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Connects as soon as the server listens.
pub fn connect(port: u16) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && start.elapsed() < START_TIME_MAX => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done.context("the server does not listen"),
        }
    }
}

/// Sends a server the message to end.
pub fn stop(port: u16) -> Result<()> {
    let mut message = [b'.'; MESSAGE_BYTES];
    message[0] = STOP;
    Ok(connect(port)?.write_all(&message)?)
}

/// Lets clients ask for the given time. Returns the time of each answer.
pub fn ask(port: u16, load: Load, time: Duration) -> Result<Vec<Duration>> {
    let Load { clients, kind, answer_bytes } = load;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut all = Vec::new();
    let mut question = [b'.'; MESSAGE_BYTES];
    question[0] = kind;
    question[8..16].copy_from_slice(&(answer_bytes as u64).to_le_bytes());
    for n in 0..clients {
        let stream = connect(port)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&epoll, &stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)?;
        all.push(Client { stream, asked: Instant::now(), got: 0 });
    }
    let (start, mut times, mut answer) = (Instant::now(), Vec::new(), vec![0; answer_bytes]);
    for client in &mut all {
        client.asked = Instant::now();
        client.stream.write_all(&question)?;
    }
    let mut open = clients;
    let mut events = Vec::with_capacity(512);
    while open > 0 {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        for event in &events {
            let client = &mut all[event.data.u64() as usize];
            match client.stream.read(&mut answer[client.got..]) {
                Ok(0) => bail!("the server has closed a connection"),
                Ok(bytes) => client.got += bytes,
                Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e.into()),
            }
            if client.got < answer_bytes {
                continue;
            }
            ensure!(answer[0] == kind, "a wrong answer");
            client.got = 0;
            let now = Instant::now();
            times.push(now - client.asked);
            if start.elapsed() >= time {
                open -= 1;
                continue;
            }
            client.asked = now;
            client.stream.write_all(&question)?;
        }
    }
    Ok(times)
}
