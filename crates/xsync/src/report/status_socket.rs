//! The output of `--status`: the state of each session of this user, asked through its socket.

use crate::report::session_home::home;
use crate::report::session_report::Report;
use anyhow::{Context, Result};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for an answer. A working session answers within it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// The socket on which a supervisor answers. It is removed when this value is dropped.
#[derive(Debug)]
pub struct StatusSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
}

impl StatusSocket {
    /// Binds the socket of this process. [`StatusSocket::answer`] answers on it.
    pub fn bind() -> Result<StatusSocket> {
        let path = home()?.join(format!("{}.socket", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(StatusSocket { listener: Some(listener), path })
    }

    /// Answers every request, in a thread of its own.
    pub fn answer(&mut self, report: impl Fn() -> Report + Send + 'static) {
        let Some(listener) = self.listener.take() else { return };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let text = serde_json::to_string(&report()).expect("a report is plain data");
                // If the asking process has closed the connection, the answer is lost.
                let _ = stream.and_then(|mut stream| stream.write_all(text.as_bytes()));
            }
        });
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Collects the reports of this user's sessions. Sockets of killed supervisors are removed.
pub fn ask_all() -> Vec<Report> {
    let entries = home().and_then(|home| Ok(fs::read_dir(home)?)).into_iter().flatten().flatten();
    let sockets = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "socket"));
    let mut reports: Vec<Report> = sockets.filter_map(|path| ask(&path)).collect();
    reports.sort_by_key(|report| report.pid);
    reports
}

fn ask(path: &Path) -> Option<Report> {
    let Ok(mut stream) = UnixStream::connect(path) else {
        let _ = fs::remove_file(path);
        return None;
    };
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
