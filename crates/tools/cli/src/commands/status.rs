//! `untorn status`.

use crate::json;
use crate::siblings;
use crate::sqlite_files;
use clap::{Args, ValueHint};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use serde_json::json;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn::offline::{self, Inspection, SlotInfo};
use untorn::{Error, FailureClass};
use untorn_terminal::table::{bytes, count, pairs};
use untorn_terminal::{Failure, Output};

/// Show the condition of a store.
///
/// Changes nothing and needs no ownership. While a program has the store open, the output may be slightly out of
/// date. Root may examine any user's store.
///
/// For a mount (a mount point, or a directory on it), prints which daemon serves it, what is uncommitted, and which
/// files are poisoned; for a directory with a session of `untorn run`, the state of the session. The program
/// untorn-mount does both. For a directory without any of these, says so; with --json, `store` is null and `session`
/// is `none`.
///
/// Exit code: 0 in order; 1 something is to be done: there are problems, or the owner did not close the store, and it
/// has to be recovered; 2 could not look, or the directory has no store, mount or session. `untorn sqlite status` says
/// more about SQLite databases.
#[derive(Args)]
pub struct Status {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub fn run(self) -> Result<Output, Failure> {
        if siblings::is_on_mount(&self.path) || siblings::has_session(&self.path) {
            return Err(siblings::Other::Status.execute());
        }
        if is_no_store(&self.path) {
            return self.of_no_store();
        }
        let found = look(&self.path)?;
        let output = if self.json {
            json::output(&summary(&found)?)?
        } else {
            Output::text(text(&found) + &sqlite_files::left_markers(&found))
        };
        Ok(output.code(code(&found)))
    }

    /// The answer for a directory without a store, not on a mount and without a session. `untorn-mount status` answers
    /// in the same way.
    fn of_no_store(&self) -> Result<Output, Failure> {
        if self.json {
            let directory = self.path.to_string_lossy();
            let none = json!({ "directory": directory, "store": null, "session": "none", "files": null });
            return Ok(json::output(&none)?.code(COULD_NOT_LOOK));
        }
        let path = self.path.display();
        Ok(Output::text(format!(
            "{path} is no store, and on no mount of Untorn; no session works on it, and none was left\n"
        ))
        .code(COULD_NOT_LOOK))
    }
}

/// Whether this is a directory without a store, and without files that wait for one.
pub fn is_no_store(path: &Path) -> bool {
    let is_missing = |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    path.is_dir() && is_missing(&path.join(".untorn")) && offline::lost_files(path).is_ok_and(|files| files.is_empty())
}

/// The exit code if something is to be done.
pub const PROBLEMS: u8 = 1;
/// The exit code if the store could not be examined.
pub const COULD_NOT_LOOK: u8 = 2;

/// Examines a store. The exit code of an error tells problems of the store from an examination that failed.
pub fn look(path: &Path) -> Result<Inspection, Failure> {
    offline::inspect(path).map_err(|e| match e {
        // The damage may be so large that nothing is left to list.
        Error::Corrupt { .. } | Error::UnknownState { .. } | Error::NeedsJournal { .. } | Error::Foreign { .. } => {
            Failure::from(e).code(PROBLEMS)
        }
        e => Failure::from(e).code(COULD_NOT_LOOK),
    })
}

/// Whether a store has no problems: recovery can bring all of its journal into the files.
pub fn is_sound(found: &Inspection) -> bool {
    found.problems.is_empty() && !found.unknown_state
}

/// Whether the owner did not close a store, and no process has it open.
///
/// The next opening, or recovery, then brings its journal into the files.
pub fn is_unclean(found: &Inspection) -> bool {
    found.owner.is_none() && (!found.clean || found.journal_missing)
}

/// The exit code for an examination. `status`, `check`, `dump` and `find-unclean` use this rule.
pub fn code(found: &Inspection) -> u8 {
    if is_sound(found) && !is_unclean(found) && sqlite_files::left_markers(found).is_empty() { 0 } else { PROBLEMS }
}

/// The inspection as JSON. It has only the number of records, because there can be very many.
pub fn summary(found: &Inspection) -> Result<serde_json::Value, Failure> {
    let mut value = json::value(found)?;
    value["records"] = found.records.len().into();
    value["kept_bytes"] = kept_bytes(&found.path).into();
    let markers = sqlite_files::marked_databases(&found.path);
    value["sqlite_markers"] = markers.iter().map(|database| database.to_string_lossy()).collect();
    Ok(value)
}

/// Bytes in the files that a store keeps for readers of older commits, without segments of the journal. A file that
/// still has a name of its own takes no room.
fn kept_bytes(path: &Path) -> u64 {
    let store_dir = store_dir(path);
    let dirs = [store_dir.join("undo"), store_dir.join("undo/names")];
    let files = dirs.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let metas = files.filter_map(|entry| entry.path().symlink_metadata().ok());
    metas.filter(|meta| meta.is_file() && meta.nlink() == 1).map(|meta| meta.len()).sum()
}

/// The directory of Untorn's own files.
fn store_dir(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.join(".untorn");
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".untorn");
    beside.into()
}

/// Whether the kernel gives programs the journal's memory itself (DAX). Commits can be stored there without calls.
fn is_in_memory(path: &Path) -> bool {
    let segments = std::fs::read_dir(store_dir(path).join("journal")).into_iter().flatten().flatten();
    let is_dax = |segment: std::fs::DirEntry| {
        let found = statx(CWD, segment.path(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX))
    };
    segments.into_iter().any(is_dax)
}

/// A text for people about the condition of a store.
pub fn text(found: &Inspection) -> String {
    let class = serde_json::to_value(found.class).ok();
    let class = class.as_ref().and_then(|c| c.as_str()).unwrap_or("?").to_owned();
    let mut lines = vec![
        ("store", found.path.display().to_string()),
        ("id", found.store_id.clone()),
        ("class", class),
        ("format", format!("version {}", found.format_version)),
        ("owner", owner(found)),
        ("state", state(found)),
        ("journal", journal(found)),
    ];
    let kept = kept_bytes(&found.path);
    if !found.held.is_empty() {
        let commits: Vec<String> = found.held.iter().map(u64::to_string).collect();
        let kept = if kept > 0 { format!("; {} of old data kept for them", bytes(kept)) } else { String::new() };
        lines.push(("held", format!("by readers: commit {}{kept}", commits.join(", "))));
    } else if kept > 0 && found.owner.is_none() {
        lines.push((
            "kept",
            format!("{} of old data for readers that have ended; the next opening removes it", bytes(kept)),
        ));
    }
    if !found.slots.is_empty() || found.kept_log_bytes > 0 {
        lines.push(("slots", slots(found)));
    }
    if found.quarantined_journals > 0 {
        let waiting = count(found.quarantined.len() as u64, "file or directory", "files and directories");
        let journals = count(found.quarantined_journals, "journal", "journals");
        lines.push(("quarantine", format!("{waiting} in {journals}")));
    }
    if !found.lost_files.is_empty() {
        lines.push(("lost", count(found.lost_files.len() as u64, "file", "files")));
    }
    let mut text = pairs(&lines);
    for file in &found.files_pending {
        let size = bytes(file.bytes);
        let outcome = if file.recoverable { &file.outcome } else { "a problem" };
        text += &format!("  pending  {}  {size}  {outcome}\n", file.path.display());
    }
    for loss in found.slots.iter().filter_map(SlotInfo::loss) {
        text += &format!("  lost     {loss}\n");
    }
    for live in &found.live_memory {
        let (name, size, memory) = (live.path.display(), bytes(live.bytes), live.memory.display());
        let which = if live.path == found.path { String::new() } else { format!("{name}  ") };
        let class = if live.class == Some(FailureClass::Memory) { "  survives a power cut" } else { "" };
        text += &format!("  live     {which}{size}  {memory}{class}\n");
    }
    for left in found.left_marks.iter().filter(|left| !left.seen) {
        text += &format!("  mark     {}\n", left.problem());
    }
    for problem in &found.problems {
        text += &format!("PROBLEM  {problem}\n");
    }
    text
}

fn owner(found: &Inspection) -> String {
    match found.owner {
        None => "none".to_owned(),
        Some(pid) if found.owner_elsewhere => {
            format!(
                "process {pid} of another pid namespace (such as a container's); the process has another number \
                     here"
            )
        }
        Some(pid) => format!("process {pid}"),
    }
}

fn state(found: &Inspection) -> String {
    if found.unknown_state {
        return "unknown: the machine went down in class `process`; `untorn recover --accept-unknown` takes the files \
                as they are"
            .to_owned();
    }
    if found.journal_missing {
        return match found.quarantined_journals {
            0 => "not made yet; the next opening makes its journal".to_owned(),
            _ => "the journal is not made yet: recovery was interrupted, or the disk was full. Free some space; the next \
                  opening, or `untorn recover`, makes it"
                .to_owned(),
        };
    }
    if !found.problems.is_empty() {
        return count(found.problems.len() as u64, "problem", "problems");
    }
    if found.clean {
        return "clean: data files are plain and whole".to_owned();
    }
    let files = count(found.files_pending.len() as u64, "file", "files");
    match found.owner {
        Some(_) => format!("in use; committed changes of {files} are still in the journal"),
        None => format!("not closed; the next opening, or `untorn recover`, applies committed changes of {files}"),
    }
}

fn journal(found: &Inspection) -> String {
    let records = count(found.records.len() as u64, "record", "records");
    let torn = if found.torn_tail { ", and a torn one at the end, which never was a commit" } else { "" };
    let medium = if is_in_memory(&found.path) { " of memory (DAX)" } else { "" };
    let allocated = format!("{}{medium}", bytes(found.journal_bytes_allocated));
    if found.records.is_empty() {
        return format!("{allocated}, no records{torn}");
    }
    format!("{allocated}, {records}, LSN {} to {}{torn}", found.first_lsn, found.last_lsn)
}

/// The slots of a store in one line.
fn slots(found: &Inspection) -> String {
    let one = |slot: &SlotInfo| match slot.behind {
        Some(n) => format!("{} ({} behind)", slot.name, count(n, "commit", "commits")),
        None => slot.name.clone(),
    };
    let names: Vec<String> = found.slots.iter().map(one).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("{names}; {} of log kept behind the checkpoint", bytes(found.kept_log_bytes))
}
