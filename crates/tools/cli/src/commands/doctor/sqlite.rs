//! Examines a SQLite database for Untorn's extension.

use super::finding::Finding;
use crate::sqlite_files::{Database, log_of, marked_databases};
use std::path::Path;
use untorn_terminal::shown;

/// The markers of a store, or the state of one database.
pub fn databases(path: &Path) -> Vec<Finding> {
    let marked = marked_databases(path).into_iter().map(|database| {
        let why = "a directory with -journal in its name keeps programs without Untorn's extension from it; if no program \
                   has the database open, `untorn recover` removes the directory";
        Finding::new("SQLite database", format!("{} is marked", shown(&database))).note(why)
    });
    let mut findings: Vec<_> = marked.collect();
    let database = Database::open(path).ok().flatten().filter(Database::is_in_wal_mode);
    findings.extend(database.map(|_| {
        let why = match log_of(path).exists() {
            true => "Untorn's extension refuses it: run `sqlite3 FILE 'PRAGMA journal_mode=DELETE'` first",
            false => "Untorn's extension refuses it: `untorn sqlite adopt` ends WAL mode",
        };
        Finding::new("SQLite database", "in WAL mode").note(why)
    }));
    findings
}
