//! A directory of another machine as a bucket, reached by ssh: `untorn-ship serve DIR` runs there.
//!
//! The protocol is that of every bucket, so that a killed shipper, a connection that breaks and two machines that ship at
//! the same time are nothing new. A connection that is lost is made again with the next request.

use crate::bucket::wire::{Answer, GREETING, Request};
use crate::bucket::{Bucket, Created, Failed};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The time limit of a request, without its bytes.
const REQUEST: Duration = Duration::from_secs(60);
/// The slowest transfer that is waited for.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;
/// How often a request that has no effect is sent.
const ATTEMPTS: u32 = 3;
/// Output of a login shell before the greeting.
const CHATTER_BYTES_MAX: usize = 64 << 10;

/// The machine and the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// `host` or `user@host`.
    pub host: String,
    /// The port, unless it is that of ssh's configuration.
    pub port: Option<u16>,
    /// The directory there.
    pub directory: String,
}

/// A bucket that another machine serves.
pub struct SshBucket {
    remote: Remote,
    connection: Mutex<Option<Arc<Connection>>>,
}

struct Connection {
    child: Mutex<Child>,
    input: Mutex<BufWriter<ChildStdin>>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    requests: HashMap<u64, Sender<Answer>>,
    /// No answer comes any more.
    is_broken: bool,
}

/// The failure of a request whose effect is not known.
enum Lost {
    /// The request was not sent.
    Before(Failed),
    /// It may have been carried out.
    Perhaps(Failed),
}

impl Remote {
    /// The command that connects.
    fn command(&self) -> Command {
        // As `rsync -e` and git's GIT_SSH: another program with the arguments of ssh.
        let mut command = Command::new(std::env::var_os("UNTORN_SSH").unwrap_or_else(|| "ssh".into()));
        // A question for a password would wait for ever where nobody looks.
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]);
        if let Some(port) = self.port {
            command.arg("-p").arg(port.to_string());
        }
        let directory = format!("'{}'", self.directory.replace('\'', r"'\''"));
        command.arg("--").arg(&self.host).arg(format!("untorn-ship serve {directory}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn failed(&self, reason: impl std::fmt::Display) -> Failed {
        Failed { reason: format!("{}: {reason}", self.host), is_transient: true }
    }

    fn connect(&self) -> Result<Connection, Failed> {
        let no_ssh = |e: io::Error| self.failed(format!("ssh cannot be run: {e}"));
        let mut child = self.command().spawn().map_err(no_ssh)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err(self.failed("ssh has no pipes")) };
        let mut output = BufReader::new(output);
        if let Err(e) = wait_for_greeting(&mut output) {
            let _ = child.kill();
            let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            return Err(self.failed(format!(
                "`untorn-ship serve {}` could not be run there by ssh ({e}; ssh: {status}): log in once by \
                 `ssh {}` without a password, and install untorn-ship there",
                self.directory, self.host
            )));
        }
        let waiting = Arc::<Mutex<Waiting>>::default();
        let receive = {
            let waiting = waiting.clone();
            move || receive_all(&mut output, &waiting)
        };
        let thread = std::thread::Builder::new().name("untorn-ssh".into()).spawn(receive);
        if let Err(e) = thread {
            let _ = child.kill();
            let _ = child.wait();
            return Err(self.failed(format!("no thread can be started: {e}")));
        }
        Ok(Connection { child: Mutex::new(child), input: Mutex::new(BufWriter::new(input)), waiting })
    }
}

fn wait_for_greeting(output: &mut BufReader<ChildStdout>) -> io::Result<()> {
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(GREETING.as_bytes()) {
        output.read_exact(&mut byte)?;
        said.push(byte[0]);
        if said.len() > CHATTER_BYTES_MAX {
            return Err(io::Error::other("it prints something else"));
        }
    }
    Ok(())
}

/// Hands answers to the threads that wait, until the connection ends.
fn receive_all(output: &mut BufReader<ChildStdout>, waiting: &Mutex<Waiting>) {
    while let Ok(Some((number, answer))) = Answer::receive(output) {
        if let Some(sender) = waiting.lock().requests.remove(&number) {
            // Somebody who gave up has no use for it.
            let _ = sender.send(answer);
        }
    }
    let mut waiting = waiting.lock();
    waiting.is_broken = true;
    // Their receivers see the end.
    waiting.requests.clear();
}

impl Connection {
    fn is_broken(&self) -> bool {
        self.waiting.lock().is_broken
    }

    fn end(&self) {
        self.waiting.lock().is_broken = true;
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }

    fn ask(&self, remote: &Remote, request: &Request, limit: Duration) -> Result<Answer, Lost> {
        let (sender, receiver) = channel();
        let number = {
            let mut waiting = self.waiting.lock();
            if waiting.is_broken {
                return Err(Lost::Before(remote.failed("the connection broke")));
            }
            waiting.next += 1;
            let number = waiting.next;
            waiting.requests.insert(number, sender);
            number
        };
        let lost = |reason: String| {
            self.end();
            Lost::Perhaps(remote.failed(reason))
        };
        let sent = request.send(&mut *self.input.lock(), number);
        sent.map_err(|e| lost(format!("the connection broke: {e}")))?;
        receiver.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => lost(format!("no answer within {} s", limit.as_secs())),
            RecvTimeoutError::Disconnected => lost("the connection broke".into()),
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

impl SshBucket {
    /// A bucket. Nothing is sent yet.
    pub fn new(remote: Remote) -> SshBucket {
        SshBucket { remote, connection: Mutex::new(None) }
    }

    fn ask_once(&self, request: &Request, limit: Duration) -> Result<Answer, Lost> {
        let connection = {
            let mut known = self.connection.lock();
            match known.as_ref().filter(|known| !known.is_broken()) {
                Some(known) => known.clone(),
                None => known.insert(Arc::new(self.remote.connect().map_err(Lost::Before)?)).clone(),
            }
        };
        connection.ask(&self.remote, request, limit)
    }

    /// Sends a request that can be repeated.
    fn ask(&self, request: &Request, bytes: u64) -> Result<Answer, Failed> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(200) * attempt);
            }
            match self.ask_once(request, limit_for(bytes)) {
                Ok(Answer::Failed(reason, is_transient)) => {
                    last = Some(Failed { is_transient, ..self.remote.failed(reason) });
                    if !is_transient {
                        break;
                    }
                }
                Ok(answer) => return Ok(answer),
                Err(Lost::Before(failed) | Lost::Perhaps(failed)) => last = Some(failed),
            }
        }
        Err(last.unwrap_or_else(|| self.remote.failed("no attempt was made")))
    }

    fn unexpected(&self) -> Failed {
        Failed { is_transient: false, ..self.remote.failed("untorn-ship there gave an answer to another request") }
    }
}

fn limit_for(bytes: u64) -> Duration {
    REQUEST + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

impl Bucket for SshBucket {
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
        let limit = limit_for(bytes.len() as u64);
        match self.ask_once(&Request::Create(name.to_owned(), bytes), limit) {
            Ok(Answer::Done) => Ok(Created::New),
            Ok(Answer::Exists) => Ok(Created::Exists),
            Ok(Answer::Unknown(reason)) => Ok(Created::Unknown(self.remote.failed(reason))),
            Ok(Answer::Failed(reason, is_transient)) => Err(Failed { is_transient, ..self.remote.failed(reason) }),
            Ok(_) => Ok(Created::Unknown(self.unexpected())),
            Err(Lost::Before(failed)) => Err(failed),
            Err(Lost::Perhaps(failed)) => Ok(Created::Unknown(failed)),
        }
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, Failed> {
        match self.ask(&Request::Get(name.to_owned(), bytes_max), bytes_max)? {
            Answer::Object(bytes) if bytes.len() as u64 <= bytes_max => Ok(Some(bytes)),
            Answer::Nothing => Ok(None),
            _ => Err(self.unexpected()),
        }
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
        match self.ask(&Request::List(prefix.to_owned(), after.unwrap_or_default().to_owned()), 64 << 20)? {
            Answer::Names(names) => Ok(names),
            _ => Err(self.unexpected()),
        }
    }

    fn delete(&self, name: &str) -> Result<(), Failed> {
        match self.ask(&Request::Delete(name.to_owned()), 0)? {
            Answer::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }
}
