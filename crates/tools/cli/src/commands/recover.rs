//! `untorn recover`.

use super::status;
use crate::progress_bar::Progress;
use crate::siblings;
use crate::sqlite_files::{self, Guard};
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use untorn::offline::{self, LostFile, RecoverOptions};
use untorn::{Quarantined, Recovered};
use untorn_terminal::signals;
use untorn_terminal::table::{bytes, count};
use untorn_terminal::{Failure, Output};

/// The directory in an archived journal for the file contents that lost commits would have made.
const SALVAGED: &str = "salvaged";

/// Bring a store that was not closed back to its last commit.
///
/// Opening a store does the same by itself. An interruption does no harm: run the command again, or open the store.
///
/// Of SQLite databases, it also removes the markers that Untorn's extension for SQLite left, so that any program can open
/// them; meanwhile it has SQLite's locks.
///
/// For a directory with a session of `untorn run` that was killed or met a conflict, puts the session's changes back.
/// The program untorn-mount does this. Exit code 124: some changes are not put back, because of a conflict, or
/// because the directory refused a name.
#[derive(Args)]
pub struct Recover {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Only print the actions, without making changes.
    #[arg(long, conflicts_with_all = ["accept_unknown", "wait"])]
    dry_run: bool,
    /// For a damaged journal: keep every commit before the damage; the journal moves to `untorn-salvage.*` beside the
    /// data. Files that cannot be brought to their last commit are accepted as they are, and the contents that this
    /// commit would have given them go to `untorn-salvage.*/salvaged`.
    #[arg(long)]
    salvage: bool,
    /// Recover a store that was copied without extended attributes (`rsync -a`, `cp -r`, tar).
    ///
    /// Files whose names the journal knows become files of the store, and are brought to their last commit. Only for a
    /// copy of the whole store, `.untorn` included, that was made at one moment.
    #[arg(long, conflicts_with_all = ["salvage", "accept_unknown"])]
    adopt: bool,
    /// Accept the files as they are if the machine went down while the store was in use in failure class `process`.
    #[arg(long)]
    accept_unknown: bool,
    /// Accept files as they are whose journal is lost; their last commits may be missing or torn.
    ///
    /// Such files wait for commits in the journal of a store that is no longer here, because its `.untorn` was removed
    /// or the files were moved away from it.
    #[arg(long, conflicts_with_all = ["salvage", "adopt", "accept_unknown", "wait"])]
    accept_lost: bool,
    /// Wait for the present owner to close the store.
    #[arg(long)]
    wait: bool,
    /// For a session: put its changes back even where another program changed the same file or directory in the
    /// meantime. The changes of that program are lost.
    #[arg(long)]
    overwrite: bool,
    /// For a session: discard its changes, or, if some are put back already, the changes that are in conflict.
    #[arg(long, conflicts_with_all = ["overwrite", "skip"])]
    discard: bool,
    /// For a session: discard its changes to this name (a path from the directory), and to everything below it; can
    /// be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<PathBuf>,
}

impl Recover {
    pub fn run(self) -> Result<Output, Failure> {
        if self.overwrite || self.discard || !self.skip.is_empty() || siblings::has_session(&self.path) {
            return Err(siblings::Other::Recover.execute());
        }
        if !self.accept_lost && status::is_no_store(&self.path) {
            let path = self.path.display();
            return Err(Failure::new(format!(
                "{path} is no store, and no session on it was left; there is nothing to recover"
            )));
        }
        if self.dry_run {
            return self.dry_run();
        }
        if self.accept_lost {
            return accept_lost(&self.path);
        }
        signals::on_interrupt(
            "untorn",
            "interrupted; nothing is lost: run `untorn recover` again, or open the store",
            || {},
        )
        .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
        let mut said = String::new();
        if self.adopt {
            said = adopt(&self.path, self.wait, false)?;
        }
        let options = RecoverOptions { salvage: self.salvage, accept_unknown: self.accept_unknown, wait: self.wait };
        let guard = Guard::of_store(&self.path, self.wait)?;
        let progress = Progress::new("recovering");
        let report = offline::recover(&self.path, &options, &|done, all| progress.show(done, all))?;
        let removed = guard.remove_markers(&report)?;
        refuse_quarantined(&report.quarantined).map_err(|e| advise_adoption(&self.path, e))?;
        refuse_lost(&report.lost_files)?;
        said += &text(&report.recovered);
        said += &removed;
        let is_left = report.left_marks.iter().any(|left| left.seen);
        report.left_marks.iter().for_each(|left| said += &format!("{}\n", left.problem()));
        Ok(Output::text(said).code(u8::from(is_left)))
    }

    fn dry_run(&self) -> Result<Output, Failure> {
        let mut text = String::new();
        let mut code = 0;
        if self.accept_lost {
            for file in offline::lost_files(&self.path)? {
                text += &format!("would be taken as it is: {} (store {})\n", file.path.display(), file.store_id);
            }
        } else if self.adopt {
            text += &adopt(&self.path, false, true)?;
        } else if self.salvage {
            text += &would_salvage(&self.path)?;
        } else {
            let found = status::look(&self.path)?;
            text += &status::text(&found);
            text += &sqlite_files::left_markers(&found);
            code = status::code(&found);
        }
        Ok(Output::text(text + "dry run: nothing was changed\n").code(code))
    }
}

/// Adopts the files of a copied store, or lists those that would be adopted.
fn adopt(path: &Path, wait: bool, dry_run: bool) -> Result<String, Failure> {
    let found = offline::adopt(path, wait, dry_run)?;
    let mut text = String::new();
    for file in &found {
        let size = file.size.map_or("missing".to_owned(), bytes);
        let what = match &file.refused {
            Some(why) => format!("cannot be adopted: {why}"),
            None => format!(
                "{}: assumed to contain its commits up to {}; commit {} is its last",
                if dry_run { "would be adopted" } else { "adopted" },
                file.previous_lsn,
                file.last_lsn
            ),
        };
        text += &format!("  {}  {size}  {what}\n", file.path.display());
    }
    if found.iter().any(|file| file.refused.is_some()) {
        return Err(Failure::new(format!("nothing was adopted, as some files cannot be\n{text}")));
    }
    if found.is_empty() {
        text += "no file of this store lacks its attribute\n";
    }
    Ok(text)
}

/// A text about the files and commits that a salvage would keep.
fn would_salvage(path: &Path) -> Result<String, Failure> {
    let found = match offline::inspect(path) {
        Ok(found) => found,
        Err(e @ untorn::Error::Corrupt { .. }) => {
            return Ok(format!(
                "{e}\nthe journal would be archived in `untorn-salvage.*`; every file would be taken as it is\n"
            ));
        }
        Err(e) => return Err(e.into()),
    };
    let mut text = status::text(&found);
    for file in &found.files_pending {
        let path = file.path.display();
        text += &match file.recoverable {
            true => format!("{path} would be brought to commit {}\n", file.last_lsn),
            false => format!(
                "{path} would be left as it is; its contents after commit {} would go to \
                 `untorn-salvage.*/{SALVAGED}`\n",
                file.last_lsn
            ),
        };
    }
    text.extend(adoption_advice(path));
    text += "\n";
    Ok(text)
}

/// A hint for a store whose files could be adopted.
pub fn adoption_advice(path: &Path) -> Option<&'static str> {
    let found = offline::adopt(path, false, true).ok()?;
    found.iter().any(|file| file.refused.is_none()).then_some(
        "If this store was copied without extended attributes (`rsync -a`, `cp -r`, tar), `untorn recover --adopt` \
         brings the copy to its last commit; with --dry-run, it only lists the files",
    )
}

fn advise_adoption(path: &Path, e: Failure) -> Failure {
    match adoption_advice(path) {
        Some(advice) => Failure { message: format!("{}\n{advice}", e.message), ..e },
        None => e,
    }
}

fn accept_lost(path: &Path) -> Result<Output, Failure> {
    let mut text = String::new();
    for file in offline::accept_lost(path)? {
        text += &format!("taken as it is: {} (store {})\n", file.path.display(), file.store_id);
    }
    if text.is_empty() {
        text += "no file here waits for a journal that is lost\n";
    }
    Ok(Output::text(text))
}

/// Fails if files are lost, even if others were recovered.
fn refuse_lost(files: &[LostFile]) -> Result<(), Failure> {
    match files {
        [] => Ok(()),
        files => Err(Failure::new(files.iter().map(LostFile::problem).collect::<Vec<_>>().join("\n"))),
    }
}

/// Fails if files are quarantined, even if others were recovered.
pub fn refuse_quarantined(files: &[Quarantined]) -> Result<(), Failure> {
    if files.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> = files.iter().map(Quarantined::problem).collect();
    let files = count(files.len() as u64, "file or directory is", "files and directories are");
    Err(Failure::new(format!("{files} quarantined; all others are whole\n{}", reasons.join("\n"))))
}

/// A line about the recovery, and its notes.
pub fn text(done: &Recovered) -> String {
    let mut text = match done.commits {
        0 => "nothing to recover".to_owned(),
        n => {
            let (commits, files) = (count(n, "commit", "commits"), count(done.files, "file", "files"));
            format!("recovered {commits} to {files}, {}", bytes(done.bytes))
        }
    };
    if done.torn_tail {
        text += "; a torn record at the end, never a commit, was dropped";
    }
    text += "; data files are plain and whole\n";
    for note in &done.notes {
        text += &format!("note: {note}\n");
    }
    text
}
