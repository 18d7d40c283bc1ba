//! `untorn diff`.

use crate::commands::history::History;
use clap::{Args, ValueHint};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn::reader::{ChangeKind, Commit, Followed};
use untorn_terminal::{Failure, Output, shown};

/// Show the net effect of the commits behind A, up to B: files and directories that are new, gone, renamed, or changed,
/// and which bytes.
///
/// A and B are commits as `untorn log` lists them; without B, up to the last one. The journal must still have all of
/// them: it has at least those since the last checkpoint, and those that readers or slots still need.
#[derive(Args)]
pub struct Diff {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// `A..B` or `A..`: the LSN before the first commit, and that of the last one.
    #[arg(value_parser = commits)]
    commits: (u64, Option<u64>),
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

fn commits(text: &str) -> Result<(u64, Option<u64>), String> {
    let expected = || "expected A..B or A.., with the numbers of two commits".to_owned();
    let (from, to) = text.split_once("..").ok_or_else(expected)?;
    let from: u64 = from.parse().map_err(|_| expected())?;
    let to = Some(to).filter(|to| !to.is_empty()).map(str::parse::<u64>).transpose().map_err(|_| expected())?;
    match to.is_none_or(|to| from <= to) {
        true => Ok((from, to)),
        false => Err(format!("commit {} comes before {from}", to.unwrap_or(0))),
    }
}

impl Diff {
    pub fn run(self) -> Result<Output, Failure> {
        let (from, to) = self.commits;
        let mut history = History::open(&self.path, from, to)?;
        let mut net = Net::default();
        while let Some(next) = history.next_entry()? {
            match next {
                Followed::Commit(commit) => net.add(&commit),
                Followed::Missed { first_lsn, last_lsn } => {
                    return Err(Failure::new(format!(
                        "{}: commits #{first_lsn} to #{last_lsn} were applied: they are in the files, and no longer in \
                         the journal. Begin at #{last_lsn}; `untorn slots` keeps the log of later commits",
                        history.path().display()
                    )));
                }
                _ => {}
            }
        }
        match self.json {
            true => crate::json::output(&net.value()),
            false => Ok(Output::text(net.text())),
        }
    }
}

/// The net effect of commits.
#[derive(Default)]
struct Net {
    /// Files and directories that are there in the end and were changed, by their last names.
    changed: BTreeMap<PathBuf, Changed>,
    /// Names at the beginning of files and directories that are gone.
    gone: Vec<PathBuf>,
}

/// The changes of a file or directory.
#[derive(Clone, Default)]
struct Changed {
    /// Its name at the beginning, if it has another one now.
    before: Option<PathBuf>,
    /// It was made meanwhile.
    new: bool,
    is_dir: bool,
    ranges: Vec<Range<u64>>,
    size: Option<u64>,
    mode: Option<u32>,
}

impl Changed {
    /// Adds a range to those that were written. Ranges that touch become one.
    fn write(&mut self, range: &Range<u64>) {
        let mut all = range.clone();
        self.ranges.retain(|other| {
            let touches = other.start <= all.end && all.start <= other.end;
            if touches {
                all = all.start.min(other.start)..all.end.max(other.end);
            }
            !touches
        });
        self.ranges.push(all);
        self.ranges.sort_unstable_by_key(|range| range.start);
    }

    fn resize(&mut self, size: u64) {
        self.size = Some(size);
        self.ranges.retain_mut(|range| {
            range.end = range.end.min(size);
            !range.is_empty()
        });
    }

    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The changes in words.
    fn said(&self) -> String {
        let mut parts = Vec::new();
        if let [first, ..] = &self.ranges[..] {
            let most = self.ranges.iter().map(|range| format!("{}-{}", range.start, range.end));
            let ranges: Vec<String> = most.take(RANGES_MAX).collect();
            let more = if self.ranges.len() > RANGES_MAX {
                format!(" and {} more", self.ranges.len() - RANGES_MAX)
            } else {
                String::new()
            };
            debug_assert!(!first.is_empty());
            parts.push(format!("wrote {} bytes: {}{more}", self.bytes(), ranges.join(" ")));
        }
        parts.extend(self.size.map(|size| format!("has {size} bytes")));
        parts.extend(self.mode.map(|mode| format!("mode {mode:04o}")));
        parts.join(", ")
    }
}

/// Ranges of a file that are shown to people.
const RANGES_MAX: usize = 8;

impl Net {
    fn add(&mut self, commit: &Commit) {
        // All changes of a file in a commit have its name before the commit.
        let mut names: BTreeMap<(u64, &Path), PathBuf> = BTreeMap::new();
        for change in &commit.changes {
            let key = (change.file, change.path.as_path());
            let name = names.entry(key).or_insert_with(|| change.path.clone()).clone();
            match &change.kind {
                ChangeKind::Removed | ChangeKind::DirectoryRemoved => self.remove(name),
                ChangeKind::Renamed(to) => {
                    self.rename(&name, to);
                    names.insert(key, to.clone());
                }
                kind => self.changed.entry(name).or_default().note(kind),
            }
        }
    }

    fn remove(&mut self, name: PathBuf) {
        match self.changed.remove(&name) {
            Some(Changed { new: true, .. }) => {}
            Some(Changed { before: Some(before), .. }) => self.gone.push(before),
            _ => self.gone.push(name),
        }
    }

    fn rename(&mut self, name: &Path, to: &Path) {
        let mut file = self.changed.remove(name).unwrap_or_default();
        if self.changed.contains_key(to) {
            self.remove(to.to_owned());
        }
        if !file.new {
            let before = file.before.take().unwrap_or_else(|| name.to_owned());
            file.before = Some(before).filter(|before| before != to);
        }
        self.changed.insert(to.to_owned(), file);
    }

    fn text(mut self) -> String {
        self.gone.sort();
        self.gone.dedup();
        let mut text = String::new();
        for path in &self.gone {
            let replaced = if self.changed.contains_key(path) { "  (another one has its name)" } else { "" };
            text += &format!("gone     {}{replaced}\n", shown(path));
        }
        for (path, file) in &self.changed {
            let kind = match (file.new, &file.before) {
                (true, _) => "new    ",
                (false, Some(_)) => "renamed",
                (false, None) => "changed",
            };
            let from = file.before.as_ref().map(|before| format!("{} to ", shown(before))).unwrap_or_default();
            let slash = if file.is_dir { "/" } else { "" };
            let said =
                Some(file.said()).filter(|said| !said.is_empty()).map(|said| format!("  {said}")).unwrap_or_default();
            text += &format!("{kind}  {from}{}{slash}{said}\n", shown(path));
        }
        text
    }

    fn value(&self) -> Value {
        let changed: Vec<Value> = self
            .changed
            .iter()
            .map(|(path, file)| {
                json!({
                    "path": path.to_string_lossy(),
                    "kind": match (file.new, &file.before) {
                        (true, _) => "new",
                        (false, Some(_)) => "renamed",
                        (false, None) => "changed",
                    },
                    "before": file.before.as_ref().map(|before| before.to_string_lossy()),
                    "directory": file.is_dir,
                    "ranges": file.ranges.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>(),
                    "bytes": file.bytes(),
                    "size": file.size,
                    "mode": file.mode,
                })
            })
            .collect();
        let gone: Vec<_> = self.gone.iter().map(|path| path.to_string_lossy()).collect();
        json!({ "gone": gone, "changed": changed })
    }
}

impl Changed {
    fn note(&mut self, kind: &ChangeKind) {
        match kind {
            ChangeKind::Written(range) | ChangeKind::Zeroed(range) => self.write(range),
            ChangeKind::Resized(size) => self.resize(*size),
            ChangeKind::Mode(mode) => self.mode = Some(*mode),
            ChangeKind::Created(mode) => (self.new, self.mode) = (true, Some(*mode)),
            ChangeKind::DirectoryMade(mode) => (self.new, self.is_dir, self.mode) = (true, true, Some(*mode)),
            // Renames and removals are of the names.
            _ => {}
        }
    }
}
