//! A key-value server over Kyoto Cabinet, in the shape of Kyoto Tycoon: records by `PUT` and `DELETE` of HTTP.

use super::kyoto::{Kyoto, Mode, SharedKyoto};
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use untorn_terminal::say;

/// The longest value.
const VALUE_MAX: usize = 1 << 20;
/// The header that tells `replace` from `set`, as in Kyoto Tycoon.
const MODE_HEADER: &str = "X-Kt-Mode";

/// A server to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub database: PathBuf,
    pub mode: Mode,
    /// One update at a time, synchronisation included: a commit is of the whole file, so it must not meet half an update.
    pub one_at_a_time: bool,
    /// Records that are there at the start, and the bytes of their values. The server only makes them, and ends.
    pub fill: Option<(u64, usize)>,
}

/// An update of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Insert,
    Replace,
    Delete,
}

/// Makes a database, or prints a port and serves until the input ends.
pub fn run(program: &Program) -> Result<()> {
    let database = SharedKyoto::open(Kyoto::load()?, &program.database, program.mode)?;
    if let Some((records, bytes)) = program.fill {
        let value = vec![b'f'; bytes];
        (0..records).try_for_each(|n| database.set(format!("filled{n:08}").as_bytes(), &value))?;
        drop(database);
        say!("0");
        return Ok(());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the server's port")?;
    say!("{}", listener.local_addr()?.port());
    let shared = Arc::new((database, Mutex::new(())));
    let one_at_a_time = program.one_at_a_time;
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let shared = shared.clone();
            // A client that is gone ends its thread.
            std::thread::spawn(move || serve(&stream, &shared.0, one_at_a_time.then_some(&shared.1)));
        }
    });
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    say!("0");
    Ok(())
}

/// Answers the requests of a connection.
fn serve(stream: &TcpStream, database: &SharedKyoto, turn: Option<&Mutex<()>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut output) = (BufReader::new(stream), stream);
    let mut value = Vec::new();
    while let Some((update, key)) = read_request(&mut input, &mut value)? {
        let done = {
            let _turn = turn.map(Mutex::lock);
            match update {
                Update::Insert => database.set(key.as_bytes(), &value),
                Update::Replace => database.replace(key.as_bytes(), &value),
                Update::Delete => database.remove(key.as_bytes()),
            }
        };
        let status = match (done, update) {
            (Ok(()), Update::Delete) => "204 No Content",
            (Ok(()), _) => "201 Created",
            (Err(_), _) => "450 Logical Inconsistency",
        };
        output.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())?;
    }
    Ok(())
}

/// Reads a request and its value. None at the end of the connection.
fn read_request(input: &mut impl BufRead, value: &mut Vec<u8>) -> Result<Option<(Update, String)>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().context("no method")?, words.next().context("no path")?);
    let key = path.strip_prefix('/').context("a path without a slash")?.to_owned();
    let mut update = match method {
        "PUT" => Update::Insert,
        "DELETE" => Update::Delete,
        other => bail!("no {other} here"),
    };
    let mut bytes = 0;
    loop {
        let mut line = String::new();
        ensure!(input.read_line(&mut line)? > 0, "a head without an end");
        let Some((name, text)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("Content-Length") {
            bytes = text.trim().parse()?;
        } else if name.eq_ignore_ascii_case(MODE_HEADER) && text.trim() == "replace" {
            update = Update::Replace;
        }
    }
    ensure!(bytes <= VALUE_MAX, "a value of {bytes} bytes");
    value.resize(bytes, 0);
    input.read_exact(value)?;
    Ok(Some((update, key)))
}

/// A connection to a server.
pub struct Client {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

impl Client {
    pub fn connect(port: u16) -> Result<Client> {
        let output = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("the server does not listen")?;
        output.set_nodelay(true)?;
        Ok(Client { input: BufReader::new(output.try_clone()?), output })
    }

    /// Updates a record, and waits for the answer.
    pub fn update(&mut self, update: Update, key: &str, value: &[u8]) -> Result<()> {
        self.output.write_all(&request(update, key, value))?;
        let mut status = String::new();
        self.input.read_line(&mut status)?;
        let mut line = String::new();
        while self.input.read_line(&mut line)? > 2 {
            line.clear();
        }
        ensure!(status.starts_with("HTTP/1.1 20"), "{update:?} of {key}: {}", status.trim());
        Ok(())
    }
}

fn request(update: Update, key: &str, value: &[u8]) -> Vec<u8> {
    let (method, mode, value) = match update {
        Update::Insert => ("PUT", "set", value),
        Update::Replace => ("PUT", "replace", value),
        Update::Delete => ("DELETE", "set", &[][..]),
    };
    let head = format!(
        "{method} /{key} HTTP/1.1\r\nHost: localhost\r\n{MODE_HEADER}: {mode}\r\nContent-Length: {}\r\n\r\n",
        value.len()
    );
    [head.as_bytes(), value].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let mut value = Vec::new();
        for (update, text) in
            [(Update::Insert, &b"some\r\nbytes"[..]), (Update::Replace, b"others"), (Update::Delete, b"")]
        {
            let bytes = request(update, "a-key", text);
            let read = read_request(&mut &bytes[..], &mut value).unwrap();
            assert_eq!((read, &value[..]), (Some((update, "a-key".to_owned())), text));
        }
        assert_eq!(read_request(&mut &b""[..], &mut value).unwrap(), None);
        assert!(read_request(&mut &b"GET /a HTTP/1.1\r\n\r\n"[..], &mut value).is_err());
        assert!(read_request(&mut &b"PUT /a HTTP/1.1\r\nContent-Length: 99\r\n\r\nshort"[..], &mut value).is_err());
        assert!(read_request(&mut &b"PUT /a HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"[..], &mut value).is_err());
    }
}
