//! The programs in a session, or outside of one for comparison: a server, and a program at a terminal.

use super::clients::{MESSAGE_BYTES, STOP, WRITES};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

const PORT: u64 = u64::MAX;

const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Answers questions until one tells the server to end.
///
/// A question that is logged is written, and flushed if `flush` is set, before its answer: once for each question, as
/// in a simple server.
pub fn serve(port: u16, log: &Path, flush: bool) -> Result<()> {
    let mut log = OpenOptions::new().append(true).create(true).open(log).context("the server's log")?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("the server's port")?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(PORT), epoll::EventFlags::IN)?;
    let mut clients: HashMap<u64, TcpStream> = HashMap::new();
    let (mut next, mut events, mut question) = (0, Vec::with_capacity(512), [0; MESSAGE_BYTES]);
    let mut answer = Vec::new();
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        for event in &events {
            let number = event.data.u64();
            if number == PORT {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    epoll::add(&epoll, &stream, epoll::EventData::new_u64(next), epoll::EventFlags::IN)?;
                    clients.insert(next, stream);
                    next += 1;
                }
                continue;
            }
            let Some(client) = clients.get_mut(&number) else { continue };
            // Questions are short, so each arrives in one piece.
            match client.read(&mut question) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                Ok(MESSAGE_BYTES) => {}
                _ => {
                    clients.remove(&number);
                    continue;
                }
            }
            if question[0] == STOP {
                return Ok(());
            }
            if question[0] == WRITES {
                log.write_all(&question)?;
                if flush {
                    log.sync_data()?;
                }
            }
            let length = u64::from_le_bytes(question[8..16].try_into().expect("eight bytes"));
            answer.clear();
            answer.extend_from_slice(&question);
            answer.resize((length as usize).clamp(MESSAGE_BYTES, ANSWER_BYTES_MAX), b'.');
            let _ = write_all(client, &answer);
        }
    }
}

/// Writes all bytes. Waits if the client's socket has no room.
fn write_all(client: &mut TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match client.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(client, PollFlags::OUT)], None)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Answers each key with the same letter, after writing it to the log if there is one. The key `q` ends it.
pub fn echo_keys(log: Option<&Path>) -> Result<()> {
    let mut log = log.map(|path| OpenOptions::new().append(true).create(true).open(path)).transpose()?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout());
    if isatty(rustix::stdio::stdin()) {
        let mut raw = tcgetattr(rustix::stdio::stdin())?;
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?;
    }
    let mut key = [0];
    output.write_all(b"!")?;
    output.flush()?;
    while input.read(&mut key)? == 1 && key[0] != b'q' {
        if let Some(log) = &mut log {
            File::write_all(log, &key)?;
        }
        output.write_all(&key)?;
        output.flush()?;
    }
    Ok(())
}
