//! `untorn sqlite plain`.

use super::belonging::{Belonging, database};
use super::each::{Done, each};
use crate::commands::recover;
use crate::json;
use crate::progress_bar::Progress;
use crate::sqlite_files::Locked;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn::Recovered;
use untorn::offline::{self, RecoverOptions};
use untorn_terminal::{Failure, Output, shown};

/// Bring SQLite databases back to plain files, which belong to no store.
///
/// Recovers their store, then removes the marker directory, the database's attribute of Untorn, and the store, unless
/// other files belong to it. The opposite of `untorn sqlite adopt`. No program may have the databases open.
#[derive(Args)]
pub struct Plain {
    /// Databases.
    #[arg(required = true, value_name = "DB", value_hint = ValueHint::FilePath)]
    databases: Vec<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Released {
    #[serde(serialize_with = "json::path")]
    path: PathBuf,
    /// The store to which it belonged.
    #[serde(serialize_with = "json::maybe_path")]
    store: Option<PathBuf>,
    /// Whether that store is removed.
    store_removed: bool,
    /// Whether a marker was removed.
    marker_removed: bool,
    /// Commits that recovery found in the store's journal.
    recovered_commits: u64,
    #[serde(skip)]
    text: String,
}

impl Done for Released {
    fn path(&self) -> &Path {
        &self.path
    }

    fn text(&self) -> &str {
        &self.text
    }
}

impl Plain {
    pub fn run(self) -> Result<Output, Failure> {
        each(&self.databases, self.json, release)
    }
}

fn release(path: &Path) -> Result<Released, Failure> {
    let (path, database) = database(path)?;
    let belonging = Belonging::of(&path)?;
    if belonging.is_none() && offline::file_mark(&path)?.is_some_and(|mark| mark.pending) {
        return Err(Failure::new(format!(
            "{} waits for commits in the journal of a store that is not here: put that store back, or, if it is lost, run \
             `untorn recover --accept-lost {0}`",
            shown(&path)
        )));
    }
    let locked = database.lock(false)?;
    let (recovered, marker_removed, store_removed) = match &belonging {
        Some(of) => leave(of, &locked)?,
        None => (Recovered::default(), locked.remove_marker()?.is_some(), false),
    };
    let mut text = format!("{}: plain, and of no store\n", shown(&path));
    if recovered.commits > 0 {
        text += &format!("  {}", recover::text(&recovered));
    }
    if let Some(of) = belonging.as_ref().filter(|_| !store_removed) {
        text += &format!("  the store {} stays: other files belong to it\n", of.text());
    }
    let (store, recovered_commits) = (belonging.map(|of| of.store), recovered.commits);
    Ok(Released { path, store, store_removed, marker_removed, recovered_commits, text })
}

/// Recovers the store, then removes the marker, then the mark and the store: a crash in between leaves a database that this
/// command, or `untorn recover`, makes plain.
fn leave(of: &Belonging, locked: &Locked) -> Result<(Recovered, bool, bool), Failure> {
    let progress = Progress::new("recovering");
    let show = |done, all| progress.show(done, all);
    let report = offline::recover(&of.store, &RecoverOptions::default(), &show)?;
    recover::refuse_quarantined(&report.quarantined)?;
    let marker_removed = locked.remove_marker()?.is_some();
    let has_others = match &of.name {
        Some(name) => offline::leave(&of.store, name, &show)?.1,
        None => false,
    };
    if !has_others {
        offline::eject(&of.store, &show)?;
    }
    Ok((report.recovered, marker_removed, !has_others))
}
