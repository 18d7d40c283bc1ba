//! `untorn tail`.

use crate::commands::history::time_value;
use clap::{Args, ValueHint};
use std::fmt::Write;
use std::path::PathBuf;
use untorn::reader::{Change, ChangeKind, Commit, Followed};
use untorn::{Error, Reader};
use untorn_terminal::{Failure, Output, shown, tell, write};

/// Follow the commits of a store as they become durable, while a program has it open.
///
/// Prints a line for each change: the number of the commit, the name, and the kind of the change; with --bytes also
/// the bytes that were written. Ends when it is interrupted, or after the requested number of commits. Changes
/// nothing, and waits for nothing but the next commit. The owner keeps commits that were not printed yet, up to a limit
/// (`StoreOptions::readers_space`); beyond it, a line tells which ones were missed.
#[derive(Args)]
pub struct Tail {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Begin with the first commit after this one (0: the first commit of all), as far as the journal still has them.
    /// Without it: with the next commit that is made.
    #[arg(long, value_name = "LSN")]
    from: Option<u64>,
    /// End after this number of commits.
    #[arg(short = 'n', long)]
    commits: Option<u64>,
    /// Print the bytes that each commit wrote, regardless of later commits: at the end of the line, printable ASCII
    /// as it is, everything else, quotes and backslashes as \n, \", \\ or \x1b. With --json: as `hex`, two digits for
    /// a byte.
    #[arg(long)]
    bytes: bool,
    /// Print a line of JSON for each commit, for programs.
    #[arg(long)]
    json: bool,
}

/// The most bytes of a commit that are in memory at once, besides those in the log.
const PIECE_BYTES: usize = 64 << 10;

impl Tail {
    pub fn run(self) -> Result<Output, Failure> {
        let reader = Reader::open(&self.path)?;
        let mut follow = match self.from {
            None => reader.follow()?,
            Some(lsn) => reader.follow_from(lsn).map_err(|e| match e {
                Error::Conflict { .. } => self.not_there_yet(&reader, lsn),
                e => e.into(),
            })?,
        };
        tell!("following {} after commit {}", self.path.display(), self.from.unwrap_or(follow.lsn()));
        let mut left = self.commits.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(next) = follow.next().transpose()? else { break };
            let goes_on = match &next {
                Followed::Commit(commit) => self.print(commit)?,
                Followed::Missed { first_lsn, last_lsn } => write(self.missed(*first_lsn, *last_lsn).as_bytes())?,
                _ => true,
            };
            if !goes_on {
                break;
            }
            left -= u64::from(matches!(next, Followed::Commit(_)));
        }
        Ok(Output::default())
    }

    fn not_there_yet(&self, reader: &Reader, lsn: u64) -> Failure {
        let last = reader.snapshot().map_or(String::new(), |snapshot| format!("; its last one is {}", snapshot.lsn()));
        Failure::new(format!("{}: the store has no commit {lsn} yet{last}", self.path.display()))
    }

    /// Prints a commit. False if the reader of the output has closed it.
    fn print(&self, commit: &Commit) -> Result<bool, Failure> {
        let mut line = String::new();
        if self.json {
            let _ = write!(line, "{{\"lsn\":{},\"time\":{},\"changes\":[", commit.lsn, time_value(commit));
        }
        for (n, change) in commit.changes.iter().enumerate() {
            let is_bytes = self.bytes && matches!(change.kind, ChangeKind::Written(_));
            let (before, end) = match (self.json, is_bytes) {
                (false, false) => ("", "\n"),
                (false, true) => (": ", "\n"),
                (true, false) => ("", "}"),
                (true, true) => (",\"hex\":\"", "\"}"),
            };
            if self.json {
                let object = json_of(change).to_string();
                line += if n > 0 { "," } else { "" };
                line += object.strip_suffix('}').unwrap_or(&object);
            } else {
                let _ = write!(line, "#{}  {}  {}", commit.lsn, shown(&change.path), said(&change.kind));
            }
            line += before;
            if is_bytes && !self.print_bytes(change, &mut line)? {
                return Ok(false);
            }
            line += end;
        }
        line += if self.json { "]}\n" } else { "" };
        write(line.as_bytes())
    }

    /// Prints the line so far and the bytes of a change, in pieces, so that a large commit does not fill the memory.
    fn print_bytes(&self, change: &Change, line: &mut String) -> Result<bool, Failure> {
        let ChangeKind::Written(range) = &change.kind else { return Ok(true) };
        let (mut buf, mut at) = (vec![0; PIECE_BYTES], range.start);
        loop {
            let n = change.read_at(&mut buf, at)?;
            if n == 0 {
                return Ok(true);
            }
            if self.json {
                buf[..n].iter().for_each(|byte| _ = write!(line, "{byte:02x}"));
            } else {
                let _ = write!(line, "{}", buf[..n].escape_ascii());
            }
            if !write(line.as_bytes())? {
                return Ok(false);
            }
            line.clear();
            at += n as u64;
        }
    }

    fn missed(&self, first_lsn: u64, last_lsn: u64) -> String {
        if self.json {
            let value = serde_json::json!({ "missed": { "first_lsn": first_lsn, "last_lsn": last_lsn } });
            return format!("{value}\n");
        }
        format!(
            "commits #{first_lsn} to #{last_lsn} were applied before this command could read them; the files \
                 contain them\n"
        )
    }
}

fn said(kind: &ChangeKind) -> String {
    match kind {
        ChangeKind::Written(range) => format!("wrote {} bytes at {}", range.end - range.start, range.start),
        ChangeKind::Zeroed(range) => format!("zeroed {} bytes at {}", range.end - range.start, range.start),
        ChangeKind::Resized(size) => format!("has {size} bytes"),
        ChangeKind::Created(_) => "created".into(),
        ChangeKind::Renamed(to) => format!("renamed to {}", shown(to)),
        ChangeKind::Removed => "removed".into(),
        ChangeKind::Mode(mode) => format!("mode {mode:04o}"),
        ChangeKind::DirectoryMade(_) => "made, a directory".into(),
        ChangeKind::DirectoryRemoved => "removed, a directory".into(),
        _ => "changed".into(),
    }
}

fn json_of(change: &Change) -> serde_json::Value {
    use serde_json::json;
    let mut value = match &change.kind {
        ChangeKind::Written(range) => {
            json!({ "kind": "written", "offset": range.start, "bytes": range.end - range.start })
        }
        ChangeKind::Zeroed(range) => {
            json!({ "kind": "zeroed", "offset": range.start, "bytes": range.end - range.start })
        }
        ChangeKind::Resized(size) => json!({ "kind": "resized", "bytes": size }),
        ChangeKind::Created(mode) => json!({ "kind": "created", "mode": format!("{mode:04o}") }),
        ChangeKind::Renamed(to) => json!({ "kind": "renamed", "to": to.to_string_lossy() }),
        ChangeKind::Removed => json!({ "kind": "removed" }),
        ChangeKind::Mode(mode) => json!({ "kind": "mode", "mode": format!("{mode:04o}") }),
        ChangeKind::DirectoryMade(mode) => json!({ "kind": "directory-made", "mode": format!("{mode:04o}") }),
        ChangeKind::DirectoryRemoved => json!({ "kind": "directory-removed" }),
        _ => json!({ "kind": "changed" }),
    };
    value["path"] = change.path.to_string_lossy().into();
    value
}
