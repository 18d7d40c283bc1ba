//! The places of messages: standard error, systemd's journal, the system's log.

use super::entry::Entry;
use super::options::LogFormat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tracing::Level;

/// The socket of systemd's journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The socket of the system's log.
const SYSLOG: &str = "/dev/log";
/// The facility of daemons, in a message to the system's log.
const DAEMON: u8 = 3 << 3;
/// The seconds that a message may take. A program that holds a lock must not wait for a reader that has stopped.
const WAIT_MAX_SECONDS: u8 = 1;

/// A place where a message can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Standard error, as a line for people.
    Line,
    /// Standard error, as a line of JSON.
    Json,
    Journal,
    Syslog,
}

/// The places of this process's messages, in order: a message goes to the first that takes it.
pub struct Places {
    program: &'static str,
    places: &'static [Place],
    journal: PathBuf,
    syslog: PathBuf,
}

impl Places {
    /// Chooses the places by the wish of the user, and by whether standard error is the journal's.
    pub fn new(program: &'static str, format: Option<LogFormat>, stderr_is_journal: bool) -> Places {
        let places: &[Place] = match format {
            Some(LogFormat::Human) => &[Place::Line],
            Some(LogFormat::Json) => &[Place::Json],
            Some(LogFormat::Journal) => &[Place::Journal, Place::Syslog, Place::Line],
            None if stderr_is_journal => &[Place::Journal, Place::Line],
            None => &[Place::Line],
        };
        Places { program, places, journal: JOURNAL.into(), syslog: SYSLOG.into() }
    }

    /// Nobody reads standard error from now on.
    pub fn leave_terminal(&mut self) {
        self.places = &[Place::Journal, Place::Syslog];
    }

    /// Whether nobody reads standard error.
    pub fn has_left_terminal(&self) -> bool {
        !self.places.contains(&Place::Line) && !self.places.contains(&Place::Json)
    }

    /// Writes a message. If no place takes it, it is lost.
    pub fn write(&self, entry: &Entry) {
        let takes = |place: &Place| match place {
            Place::Line => to_stderr(&entry.line(self.program)),
            Place::Json => to_stderr(&entry.json(self.program, SystemTime::now())),
            Place::Journal => send(&self.journal, &for_journal(entry, self.program)),
            Place::Syslog => send(&self.syslog, for_syslog(entry, self.program).as_bytes()),
        };
        let _ = self.places.iter().any(takes);
    }
}

/// Whether a stream goes to systemd's journal, which is known by its device and inode.
pub fn is_journal(stream: BorrowedFd<'_>) -> bool {
    let stat = fstat(stream).ok();
    let shown = stat.map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    shown.is_some_and(|shown| std::env::var_os("JOURNAL_STREAM").is_some_and(|stream| stream == *shown))
}

fn to_stderr(line: &str) -> bool {
    let stderr = rustix::stdio::stderr();
    let limit = Timespec { tv_sec: WAIT_MAX_SECONDS.into(), tv_nsec: 0 };
    let takes = !matches!(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&limit)), Ok(0));
    if takes {
        crate::tell!("{line}");
    }
    takes
}

fn send(to: &Path, message: &[u8]) -> bool {
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_write_timeout(Some(Duration::from_secs(WAIT_MAX_SECONDS.into())))?;
        socket.send_to(message, to)
    });
    sent.is_ok()
}

/// The level as syslog numbers it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// The message in the native protocol of the journal.
fn for_journal(entry: &Entry, program: &str) -> Vec<u8> {
    let mut message = Vec::new();
    let mut add = |name: &str, value: &str| {
        message.extend(name.as_bytes());
        if value.contains('\n') {
            message.push(b'\n');
            message.extend((value.len() as u64).to_le_bytes());
        } else {
            message.push(b'=');
        }
        message.extend(value.as_bytes());
        message.push(b'\n');
    };
    add("MESSAGE", &entry.text());
    add("PRIORITY", &priority(entry.level).to_string());
    add("SYSLOG_IDENTIFIER", program);
    add("UNTORN_ID", &entry.id);
    add("UNTORN_TARGET", &entry.target);
    for (name, value) in &entry.fields {
        let name = name.to_ascii_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let text = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        add(&format!("UNTORN_{name}"), &text);
    }
    message
}

/// The message in the form of `syslog(3)`. The system's log adds the time.
fn for_syslog(entry: &Entry, program: &str) -> String {
    let head = DAEMON | priority(entry.level);
    format!("<{head}>{program}[{}]: {} [{}]", std::process::id(), entry.text(), entry.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn entry() -> Entry {
        Entry {
            level: Level::ERROR,
            target: "untorn::engine".to_owned(),
            id: "untorn.store.stopped".to_owned(),
            message: "no more commits".to_owned(),
            fields: vec![("store", "a\nb".into()), ("of-slot", 7.into())],
        }
    }

    /// A socket that stands for the journal's or the system's log, and one message from it.
    fn received(socket: &UnixDatagram) -> Option<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        socket.recv(&mut buffer).ok().map(|len| String::from_utf8(buffer[..len].to_vec()).unwrap())
    }

    #[test]
    fn the_user_chooses_or_else_the_stream_tells() {
        let places = |format, journal| Places::new("untorn", format, journal).places.to_vec();
        assert_eq!(places(None, false), [Place::Line]);
        assert_eq!(places(None, true), [Place::Journal, Place::Line]);
        assert_eq!(places(Some(LogFormat::Human), true), [Place::Line]);
        assert_eq!(places(Some(LogFormat::Json), true), [Place::Json]);
        assert_eq!(places(Some(LogFormat::Journal), false), [Place::Journal, Place::Syslog, Place::Line]);
        let (pipe, _) = std::io::pipe().unwrap();
        assert!(!is_journal(pipe.as_fd()), "the variable is not set, or of another stream");
    }

    #[test]
    fn a_detached_daemon_goes_to_the_journal_or_else_to_the_system_log() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, syslog) = (dir.path().join("journal"), dir.path().join("log"));
        let mut places = Places::new("untorn-mount", Some(LogFormat::Json), false);
        (places.journal, places.syslog) = (journal.clone(), syslog.clone());
        places.leave_terminal();
        places.write(&entry());

        let hears_syslog = UnixDatagram::bind(&syslog).unwrap();
        places.write(&entry());
        let told = format!(
            "<27>untorn-mount[{}]: no more commits; store: a\\nb; of-slot: 7 [untorn.store.stopped]",
            std::process::id()
        );
        assert_eq!(received(&hears_syslog), Some(told));

        let hears_journal = UnixDatagram::bind(&journal).unwrap();
        places.write(&entry());
        let told = "MESSAGE=no more commits; store: a\\nb; of-slot: 7\nPRIORITY=3\nSYSLOG_IDENTIFIER=untorn-mount\n\
                    UNTORN_ID=untorn.store.stopped\nUNTORN_TARGET=untorn::engine\nUNTORN_STORE\n\u{3}\0\0\0\0\0\0\0a\nb\n\
                    UNTORN_OF_SLOT=7\n";
        assert_eq!(received(&hears_journal).as_deref(), Some(told));
        assert_eq!(received(&hears_syslog), None, "one place is enough");
    }
}
