//! `untorn tail`.

use clap::{Args, ValueHint};
use std::path::PathBuf;
use untorn::Store;
use untorn::reader::{Change, Followed, What};
use untorn_terminal::{Failure, Output, shown, write};

/// Follow the commits of a store as they become durable, while a program has it open.
///
/// Prints a line for each change: the number of the commit, the name, what happened. Ends when it is interrupted, or
/// after as many commits as were asked for. Changes nothing, and waits for nobody but the next commit.
#[derive(Args)]
pub struct Tail {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// End after so many commits.
    #[arg(short = 'n', long)]
    commits: Option<u64>,
    /// For programs: a line of JSON for each commit.
    #[arg(long)]
    json: bool,
}

impl Tail {
    pub fn run(self) -> Result<Output, Failure> {
        let mut follow = Store::open_read_only(&self.path)?.follow()?;
        eprintln!("following {} after commit {}", self.path.display(), follow.lsn());
        let mut left = self.commits.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(next) = follow.next().transpose()? else { break };
            let line = if self.json { json_line(&next) } else { text(&next) };
            if !write(line.as_bytes())? {
                break;
            }
            left -= u64::from(matches!(next, Followed::Commit(_)));
        }
        Ok(Output::default())
    }
}

fn text(next: &Followed) -> String {
    match next {
        Followed::Commit(commit) => {
            let line = |change: &Change| format!("#{}  {}  {}\n", commit.lsn, shown(&change.path), said(&change.what));
            commit.changes.iter().map(line).collect()
        }
        Followed::Missed { first_lsn, last_lsn } => {
            format!("commits #{first_lsn} to #{last_lsn} were applied before they were read; the files hold them\n")
        }
        _ => String::new(),
    }
}

fn said(what: &What) -> String {
    match what {
        What::Written(range) => format!("wrote {} bytes at {}", range.end - range.start, range.start),
        What::Zeroed(range) => format!("zeroed {} bytes at {}", range.end - range.start, range.start),
        What::Resized(size) => format!("has {size} bytes"),
        What::Created => "created".into(),
        What::Renamed(to) => format!("renamed to {}", shown(to)),
        What::Removed => "removed".into(),
        What::Mode(mode) => format!("mode {mode:04o}"),
        What::DirectoryMade => "made, a directory".into(),
        What::DirectoryRemoved => "removed, a directory".into(),
        _ => "changed".into(),
    }
}

fn json_line(next: &Followed) -> String {
    let value = match next {
        Followed::Commit(commit) => {
            let change = |change: &Change| {
                let mut value = json_of(&change.what);
                value["path"] = change.path.to_string_lossy().into();
                value
            };
            let changes: Vec<_> = commit.changes.iter().map(change).collect();
            serde_json::json!({ "lsn": commit.lsn, "changes": changes })
        }
        Followed::Missed { first_lsn, last_lsn } => {
            serde_json::json!({ "missed": { "first_lsn": first_lsn, "last_lsn": last_lsn } })
        }
        _ => serde_json::json!({}),
    };
    format!("{value}\n")
}

fn json_of(what: &What) -> serde_json::Value {
    use serde_json::json;
    match what {
        What::Written(range) => json!({ "what": "written", "offset": range.start, "bytes": range.end - range.start }),
        What::Zeroed(range) => json!({ "what": "zeroed", "offset": range.start, "bytes": range.end - range.start }),
        What::Resized(size) => json!({ "what": "resized", "bytes": size }),
        What::Created => json!({ "what": "created" }),
        What::Renamed(to) => json!({ "what": "renamed", "to": to.to_string_lossy() }),
        What::Removed => json!({ "what": "removed" }),
        What::Mode(mode) => json!({ "what": "mode", "mode": format!("{mode:04o}") }),
        What::DirectoryMade => json!({ "what": "directory-made" }),
        What::DirectoryRemoved => json!({ "what": "directory-removed" }),
        _ => json!({ "what": "changed" }),
    }
}
