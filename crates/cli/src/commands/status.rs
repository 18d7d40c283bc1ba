//! `untorn status`.

use crate::json;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use untorn::offline::{self, Inspection};
use untorn_terminal::table::{bytes, count, pairs};
use untorn_terminal::{Failure, Output};

/// Show the condition of a store.
///
/// Changes nothing and needs no ownership: while a program has the store open, the picture may be a
/// moment old.
#[derive(Args)]
pub struct Status {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// For programs.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub fn run(self) -> Result<Output, Failure> {
        let found = offline::inspect(&self.path)?;
        if self.json { json::output(&summary(&found)?) } else { Ok(Output::text(text(&found))) }
    }
}

/// Everything but the records, of which there can be very many.
pub fn summary(found: &Inspection) -> Result<serde_json::Value, Failure> {
    let mut value = json::value(found)?;
    value["records"] = found.records.len().into();
    Ok(value)
}

/// The condition of a store, for people.
pub fn text(found: &Inspection) -> String {
    let class = serde_json::to_value(found.class).ok();
    let class = class.as_ref().and_then(|c| c.as_str()).unwrap_or("?").to_owned();
    let mut lines = vec![
        ("store", found.path.display().to_string()),
        ("id", found.store_id.clone()),
        ("class", class),
        ("format", format!("version {}", found.format_version)),
        ("owner", found.owner.map_or("none".to_owned(), |pid| format!("process {pid}"))),
        ("state", state(found)),
        ("journal", journal(found)),
    ];
    if found.quarantined_journals > 0 {
        lines.push(("quarantine", count(found.quarantined_journals, "journal", "journals")));
    }
    let mut text = pairs(&lines);
    for file in &found.files_pending {
        let size = bytes(file.bytes);
        text += &format!("  pending  {}  {size}  {}\n", file.path.display(), file.outcome);
    }
    text
}

fn state(found: &Inspection) -> String {
    if !found.problems.is_empty() {
        return format!("{}; see `untorn check`", count(found.problems.len() as u64, "problem", "problems"));
    }
    if found.unknown_state {
        return "unknown: the machine went down in class `process`; `untorn recover --accept-unknown` takes the files \
                as they are"
            .to_owned();
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
    let allocated = bytes(found.journal_bytes_allocated);
    if found.records.is_empty() {
        return format!("{allocated}, no records{torn}");
    }
    format!("{allocated}, {records}, LSN {} to {}{torn}", found.first_lsn, found.last_lsn)
}
