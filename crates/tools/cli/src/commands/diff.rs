//! `untorn diff`.

use crate::commands::history::History;
use clap::{Args, ValueHint};
use rangemap::RangeSet;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use untorn::reader::{Change, ChangeKind, Commit, Followed};
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
                        shown(history.path())
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
    ranges: RangeSet<u64>,
    size: Option<u64>,
    mode: Option<u32>,
}

impl Changed {
    fn resize(&mut self, size: u64) {
        self.size = Some(size);
        self.ranges.remove(size..u64::MAX);
    }

    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    fn is_changed(&self) -> bool {
        let has_content = !self.ranges.is_empty() || self.size.is_some() || self.mode.is_some();
        self.new || self.before.is_some() || has_content
    }

    /// The changes in words.
    fn said(&self) -> String {
        let mut parts = Vec::new();
        if !self.ranges.is_empty() {
            let (shown, all) = (self.ranges.iter().take(RANGES_MAX), self.ranges.iter().count());
            let ranges: Vec<String> = shown.map(|range| format!("{}-{}", range.start, range.end)).collect();
            let more = if all > RANGES_MAX { format!(" and {} more", all - RANGES_MAX) } else { String::new() };
            parts.push(format!("wrote {} bytes: {}{more}", self.bytes(), ranges.join(" ")));
        }
        parts.extend(self.size.map(|size| format!("has {size} bytes")));
        parts.extend(self.mode.map(|mode| format!("mode {mode:04o}")));
        parts.join(", ")
    }
}

/// Ranges of a file that are shown to people.
const RANGES_MAX: usize = 8;

/// A file or directory in the course of a commit.
struct InCommit {
    /// Its name before the commit, and now.
    first: PathBuf,
    name: PathBuf,
    is_gone: bool,
    changed: Changed,
}

impl Net {
    /// Adds a commit. Its changes name each file as before the commit, so that two files may have one name: one that
    /// goes, and a new one.
    fn add(&mut self, commit: &Commit) {
        let is_made = |kind: &ChangeKind| matches!(kind, ChangeKind::Created(_) | ChangeKind::DirectoryMade(_));
        let key = |change: &Change| (change.file, if change.file == 0 { change.path.clone() } else { PathBuf::new() });
        let made: BTreeSet<_> = commit.changes.iter().filter(|change| is_made(&change.kind)).map(key).collect();
        let mut files: BTreeMap<(u64, PathBuf), InCommit> = BTreeMap::new();
        for change in &commit.changes {
            let file = files.entry(key(change)).or_insert_with(|| {
                let known = if made.contains(&key(change)) { None } else { self.changed.remove(&change.path) };
                let (first, name) = (change.path.clone(), change.path.clone());
                InCommit { first, name, is_gone: false, changed: known.unwrap_or_default() }
            });
            match &change.kind {
                ChangeKind::Removed | ChangeKind::DirectoryRemoved => file.is_gone = true,
                ChangeKind::Renamed(to) => file.name.clone_from(to),
                kind => {
                    // A directory may be made again under its name.
                    file.is_gone &= !is_made(kind);
                    file.changed.note(kind);
                }
            }
        }
        let (gone, left): (Vec<_>, Vec<_>) = files.into_values().partition(|file| file.is_gone);
        gone.into_iter().for_each(|file| self.end(file.first, file.changed));
        for InCommit { first, name, mut changed, .. } in left {
            if let Some(replaced) = self.changed.remove(&name) {
                self.end(name.clone(), replaced);
            }
            if !changed.new {
                changed.before = Some(changed.before.unwrap_or(first)).filter(|before| *before != name);
            }
            self.changed.insert(name, changed);
        }
    }

    /// A file or directory is gone, which had this name before the commit.
    fn end(&mut self, name: PathBuf, changed: Changed) {
        if !changed.new {
            self.gone.push(changed.before.unwrap_or(name));
        }
    }

    fn text(mut self) -> String {
        self.gone.sort();
        self.gone.dedup();
        let mut text = String::new();
        for path in &self.gone {
            let replaced = if self.changed.contains_key(path) { "  (another one has its name)" } else { "" };
            text += &format!("gone     {}{replaced}\n", shown(path));
        }
        for (path, file) in self.changed.iter().filter(|(_, file)| file.is_changed()) {
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
            ChangeKind::Written(range) | ChangeKind::Zeroed(range) => self.ranges.insert(range.clone()),
            ChangeKind::Resized(size) => self.resize(*size),
            ChangeKind::Mode(mode) => self.mode = Some(*mode),
            ChangeKind::Created(mode) => (self.new, self.mode) = (true, Some(*mode)),
            ChangeKind::DirectoryMade(mode) => (self.new, self.is_dir, self.mode) = (true, true, Some(*mode)),
            // Renames and removals are of the names.
            _ => {}
        }
    }
}
