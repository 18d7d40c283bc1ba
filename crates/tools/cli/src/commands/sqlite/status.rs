//! `untorn sqlite status`.

use super::belonging::{Belonging, database};
use crate::commands::status::{COULD_NOT_LOOK, PROBLEMS, is_sound};
use crate::json;
use crate::sqlite_files::{log_of, marker_of};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn::offline;
use untorn_terminal::table::pairs;
use untorn_terminal::{Failure, Output, shown, tell};

/// Show the store of SQLite databases, their owner, and whether they are plain.
///
/// Changes nothing. Exit code: 0 in order; 1 something is to be done: a database waits for recovery, or has a problem;
/// 2 could not look at one.
#[derive(Args)]
pub struct Status {
    /// Databases.
    #[arg(required = true, value_name = "DB", value_hint = ValueHint::FilePath)]
    databases: Vec<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// The condition of a database.
#[derive(Serialize)]
struct Condition {
    #[serde(serialize_with = "json::path")]
    path: PathBuf,
    /// The store's directory; for a store of its own, the database.
    #[serde(serialize_with = "json::maybe_path")]
    store: Option<PathBuf>,
    /// Whether the store is its own.
    own_store: bool,
    /// The URI for the extension.
    uri: Option<String>,
    /// The process that has the store open (0: its id is unknown).
    owner: Option<u32>,
    /// Whether a process has SQLite's locks on it.
    locked: bool,
    /// That process, if Linux tells it.
    locked_by: Option<u32>,
    /// Whether the marker directory stands beside it.
    marked: bool,
    /// Whether the data file has every commit.
    clean: bool,
    wal_mode: bool,
    write_ahead_log: bool,
    hot_journal: bool,
    problems: Vec<String>,
    #[serde(skip)]
    store_text: String,
}

impl Status {
    pub fn run(self) -> Result<Output, Failure> {
        let (mut found, mut unread) = (Vec::new(), None);
        for path in &self.databases {
            match look(path) {
                Ok(condition) => found.push(condition),
                Err(failure) => {
                    // The other databases are shown; the last failure is the command's.
                    unread.replace(failure).inspect(|before: &Failure| tell!("untorn: {}", before.message));
                }
            }
        }
        let code = if found.iter().any(Condition::needs_work) { PROBLEMS } else { 0 };
        let output = if self.json {
            json::output(&found)?
        } else {
            Output::text(found.iter().map(Condition::text).collect::<Vec<_>>().join("\n"))
        };
        match unread {
            None => Ok(output.code(code)),
            Some(failure) if found.is_empty() => Err(failure.code(COULD_NOT_LOOK)),
            Some(failure) => {
                tell!("untorn: {}", failure.message);
                Ok(output.code(COULD_NOT_LOOK))
            }
        }
    }
}

fn look(path: &Path) -> Result<Condition, Failure> {
    let (path, database) = database(path)?;
    let failed = |e| Failure::io("look at", &path, e);
    let belonging = Belonging::of(&path)?;
    let locked = database.locked_by().map_err(failed)?;
    let mut condition = Condition {
        store: belonging.as_ref().map(|of| of.store.clone()),
        own_store: belonging.as_ref().is_some_and(|of| of.name.is_none()),
        uri: belonging.as_ref().map(|of| of.uri(&path)),
        owner: None,
        locked: locked.is_some(),
        locked_by: locked.flatten(),
        marked: marker_of(&path).is_some(),
        clean: !offline::file_mark(&path)?.is_some_and(|mark| mark.pending),
        wal_mode: database.is_in_wal_mode(),
        write_ahead_log: log_of(&path).exists(),
        hot_journal: database.has_hot_journal().map_err(failed)?,
        problems: Vec::new(),
        store_text: belonging.as_ref().map_or("none".to_owned(), Belonging::text),
        path,
    };
    if let Some(of) = &belonging {
        let found = offline::inspect(&of.store)?;
        condition.owner = found.owner;
        // The mark of a killed owner may be on a file for which nothing waits.
        let waits = found.files_pending.iter().any(|file| of.name.as_ref().is_none_or(|name| file.path == *name));
        condition.clean = found.clean || !waits && !condition.marked;
        if !is_sound(&found) {
            condition.problems = found.problems;
        }
    } else if !condition.clean {
        condition.problems.push("it waits for commits in the journal of a store that is not here".to_owned());
    }
    Ok(condition)
}

impl Condition {
    fn needs_work(&self) -> bool {
        let is_owned = self.owner.is_some();
        !self.problems.is_empty()
            || !is_owned && (self.marked || !self.clean)
            || self.hot_journal && !self.locked
            || self.wal_mode && self.store.is_some()
    }

    fn text(&self) -> String {
        let owner = match (self.owner, self.locked_by) {
            (Some(0), _) => "a process".to_owned(),
            (Some(pid), _) => format!("process {pid}"),
            (None, Some(pid)) => format!("none; process {pid} reads or writes it in SQLite"),
            (None, None) if self.locked => "none; a process has SQLite's locks".to_owned(),
            (None, None) => "none".to_owned(),
        };
        let mut lines = vec![
            ("database", shown(&self.path)),
            ("store", self.store_text.clone()),
            ("owner", owner),
            ("state", self.state()),
            ("journal", self.journal()),
        ];
        lines.extend(self.uri.as_ref().map(|uri| ("URI", uri.clone())));
        let mut text = pairs(&lines);
        self.problems.iter().for_each(|problem| text += &format!("PROBLEM  {problem}\n"));
        text
    }

    fn state(&self) -> String {
        let state = match (self.owner.is_some(), self.clean, self.marked) {
            (true, _, true) => "in use; newest commits may be in Untorn's journal only",
            (true, ..) => "plain, and the store is in use",
            (false, true, false) => "plain: any SQLite may open it",
            (false, true, true) => "plain, but the marker directory is left: `untorn recover` removes it",
            (false, false, _) => "not closed: `untorn recover`, or opening it with the extension, brings it up to date",
        };
        state.to_owned()
    }

    fn journal(&self) -> String {
        match (self.wal_mode, self.write_ahead_log, self.hot_journal) {
            (_, true, _) => {
                "WAL mode with a log: run `sqlite3 DB 'PRAGMA journal_mode=DELETE'` before `untorn sqlite adopt`"
            }
            (true, ..) => "WAL mode, without a log: `untorn sqlite adopt` ends it",
            (_, _, true) if self.locked => "of SQLite, of a transaction that is at work",
            (_, _, true) => "of SQLite, of a transaction that was interrupted: the next opening rolls it back",
            _ => "none of SQLite's is needed",
        }
        .to_owned()
    }
}
