//! `untorn log`.

use crate::commands::history::{History, time, time_value};
use crate::siblings::Other;
use clap::{Args, ValueHint};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use untorn::reader::{ChangeKind, Commit, Followed};
use untorn_terminal::{Failure, Output, shown, write};

/// List the commits of a store that are in its journal: number, time, bytes, files.
///
/// The journal has at least the commits since the last checkpoint, and those that readers or slots still need; earlier
/// ones are in the files only. Waits for nothing and changes nothing; the store may be open. `untorn tail` goes on with the next
/// commits, and shows each change; `untorn diff` shows the net effect of several commits.
///
/// For the URL of a place to which commits are shipped, lists the commits there, with the options of `untorn-ship log`.
#[derive(Args)]
pub struct Log {
    /// A store's directory, a file with its own store, or a URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Begin with the first commit after this one.
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// List the last commits only, this number of them.
    #[arg(short = 'n', long)]
    commits: Option<usize>,
    /// Print a line of JSON for each commit, for programs.
    #[arg(long)]
    json: bool,
}

/// Whether this names a place of `untorn ship`.
fn is_url(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

impl Log {
    pub fn run(self) -> Result<Output, Failure> {
        if is_url(&self.path) {
            return Err(Other::Log.execute());
        }
        let mut history = History::open(&self.path, self.from, None)?;
        let mut last = VecDeque::new();
        while let Some(next) = history.next_entry()? {
            let line = self.line(&next);
            let Some(most) = self.commits else {
                if !write(line.as_bytes())? {
                    break;
                }
                continue;
            };
            last.push_back(line);
            if last.len() > most {
                last.pop_front();
            }
        }
        write(last.into_iter().collect::<String>().as_bytes())?;
        Ok(Output::default())
    }

    fn line(&self, next: &Followed) -> String {
        match next {
            Followed::Commit(commit) if self.json => json_of(commit).to_string() + "\n",
            Followed::Commit(commit) => text_of(commit),
            Followed::Missed { first_lsn, last_lsn } if self.json => {
                json!({ "missed": { "first_lsn": first_lsn, "last_lsn": last_lsn } }).to_string() + "\n"
            }
            Followed::Missed { first_lsn, last_lsn } => {
                format!("#{first_lsn} to #{last_lsn}  applied: they are in the files, and no longer in the journal\n")
            }
            _ => String::new(),
        }
    }
}

/// The files of a commit, and the bytes that it wrote to each.
fn files(commit: &Commit) -> BTreeMap<&Path, u64> {
    let mut files = BTreeMap::new();
    for change in &commit.changes {
        let bytes = match &change.kind {
            ChangeKind::Written(range) | ChangeKind::Zeroed(range) => range.end - range.start,
            _ => 0,
        };
        *files.entry(change.path.as_path()).or_default() += bytes;
    }
    files
}

fn text_of(commit: &Commit) -> String {
    let files = files(commit);
    let names: Vec<String> = files.keys().map(|path| shown(path).to_string()).collect();
    let bytes: u64 = files.values().sum();
    format!("#{}  {}  {bytes} bytes  {}\n", commit.lsn, time(commit), names.join("  "))
}

fn json_of(commit: &Commit) -> serde_json::Value {
    let files = files(commit);
    let bytes: u64 = files.values().sum();
    let files: Vec<_> =
        files.iter().map(|(path, bytes)| json!({ "path": path.to_string_lossy(), "bytes": bytes })).collect();
    json!({ "lsn": commit.lsn, "epoch": commit.epoch, "time": time_value(commit), "bytes": bytes, "files": files })
}
