//! The commits of a store that are in its journal, up to one that was durable when the command began.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use untorn::reader::{Commit, Follow, Followed};
use untorn::{Error, Reader};
use untorn_terminal::{Failure, shown};

/// The commits between two of a store.
pub struct History {
    path: PathBuf,
    commits: Follow,
    to: u64,
}

impl History {
    /// The commits after `from`, up to `to`; `None`: the last durable one.
    pub fn open(path: &Path, from: u64, to: Option<u64>) -> Result<History, Failure> {
        let reader = Reader::open(path)?;
        let last = reader.snapshot()?.lsn();
        let missing = |lsn: u64| {
            Failure::new(format!("{}: the store has no commit {lsn} yet; its last one is {last}", shown(path)))
        };
        let to = to.unwrap_or(last);
        if to > last {
            return Err(missing(to));
        }
        let commits = reader.follow_from(from).map_err(|e| match e {
            Error::Conflict { .. } => missing(from),
            e => e.into(),
        })?;
        Ok(History { path: path.to_owned(), commits, to })
    }

    /// The path with which the store was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next commit, or a gap.
    pub fn next_entry(&mut self) -> Result<Option<Followed>, Failure> {
        if self.commits.lsn() >= self.to {
            return Ok(None);
        }
        // All of them are durable, so nothing waits.
        Ok(match self.commits.next_within(Duration::ZERO)? {
            Some(Followed::Commit(commit)) if commit.lsn > self.to => None,
            next => next,
        })
    }
}

/// The time of a commit (UTC).
pub fn time(commit: &Commit) -> String {
    time_text(commit.time)
}

/// The time of a commit (UTC) for programs.
pub fn time_value(commit: &Commit) -> Value {
    commit.time.map_or(Value::Null, |time| time_text(Some(time)).into())
}

/// A time (UTC); `-` if it is not known.
pub fn time_text(time: Option<SystemTime>) -> String {
    time.map_or("-".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
}
