//! A key-value server that loses nothing that it has answered, and waits for no disk.
//! `kv_server DIRECTORY [ADDRESS:PORT [SLOT]]`, then lines over TCP: `set KEY VALUE`, `get KEY`. Prints where it listens.
//!
//! Each change is appended to a log in a store and its commit is started; the answer waits behind a gate until that
//! commit is durable, while the server goes on with other requests. All answers that wait share the next commit. With a
//! slot, which `untorn ship` serves, they wait until the commit is in the bucket: the loss of the machine loses nothing
//! that a client was told.

// Here a poisoned lock is wanted: it stops the other connections.
#![allow(clippy::disallowed_types)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use untorn::{FailureClass, File, Gate, Output, Remote, Store, StoreOptions, Ticket};

/// State that all connections share.
struct Server {
    values: HashMap<String, String>,
    log: File,
    /// Of the last change: whoever reads it depends on it.
    last: Option<Ticket>,
}

impl Server {
    /// Reads the log of earlier runs.
    fn open(store: &Store) -> untorn::Result<Server> {
        let log = store.open_or_create_file("log")?;
        let mut bytes = vec![0; log.len()? as usize];
        log.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes);
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let values = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(Server { values, log, last: None })
    }

    /// The answer to a line, and the commit that has to be durable before anybody sees it.
    fn answer(&mut self, line: &str) -> untorn::Result<(String, Option<Ticket>)> {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let answer = match words[..] {
            ["set", key, value] => {
                self.log.append(format!("{key} {value}\n").as_bytes())?;
                self.last = Some(self.log.commit_async()?);
                self.values.insert(key.to_owned(), value.to_owned());
                "ok".to_owned()
            }
            ["get", key] => self.values.get(key).cloned().unwrap_or_else(|| "none".to_owned()),
            _ => "error: set KEY VALUE, or get KEY".to_owned(),
        };
        Ok((answer + "\n", self.last.clone()))
    }
}

fn serve(server: &Mutex<Server>, stream: TcpStream, answers: &Output) -> Result<(), Box<dyn std::error::Error>> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        // Locked for the change, not for the disk, and not for a client who is slow to read.
        let (answer, ticket) = server.lock().map_err(|_| "another connection panicked")?.answer(&line)?;
        answers.write(answer.as_bytes(), ticket.as_ref())?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: kv_server DIRECTORY [ADDRESS:PORT [SLOT]]")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let options = StoreOptions::new().create(true);
    let (options, class) = match arguments.next() {
        Some(slot) => (options.remote(slot, Remote::default()), FailureClass::Remote),
        None => (options, FailureClass::Power),
    };
    let store = options.open(&directory)?;
    let server = Arc::new(Mutex::new(Server::open(&store)?));
    let gate = Gate::new()?;
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        let (server, answers) = (server.clone(), gate.output_when(stream.try_clone()?.into(), class));
        std::thread::spawn(move || {
            if let Err(e) = serve(&server, stream, &answers) {
                eprintln!("a connection ended: {e}");
            }
        });
    }
    Ok(())
}
