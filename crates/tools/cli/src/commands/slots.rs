//! `untorn slots`.

use super::status::{self, PROBLEMS};
use crate::json;
use clap::{Args, ValueHint};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use untorn::offline::{Inspection, SlotInfo};
use untorn::{Error, Slot};
use untorn_terminal::table::{bytes, count, table};
use untorn_terminal::{Failure, Output};

/// Show the slots of a store, or drop one. A slot keeps the log of the store until its consumer acknowledges it.
///
/// For each slot: the last acknowledged commit, how many commits are behind it, and how much log is kept for it, of its
/// cap. Beyond the cap, or on a full disk, the oldest part of the log goes, and the slot has lost it: its consumer needs
/// a whole copy of the store. Slots share the kept log. Works while a program has the store open.
///
/// Exit code: 0; 1 a slot has lost log, the store is damaged, or the slot was not dropped; 2 could not look.
#[derive(Args)]
pub struct Slots {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Drop this slot: no log is kept for it any more. Refused while its consumer runs.
    #[arg(long, value_name = "NAME", conflicts_with = "json")]
    drop: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Slots {
    pub fn run(self) -> Result<Output, Failure> {
        if let Some(name) = &self.drop {
            return self.drop_slot(name);
        }
        let found = status::look(&self.path)?;
        let has_lost = found.slots.iter().any(|slot| slot.lost_lsn.is_some());
        let output = if self.json {
            json::output(&json!({
                "path": found.path.to_string_lossy(),
                "last_lsn": found.last_lsn,
                "kept_log_bytes": found.kept_log_bytes,
                "slots": json::value(&found.slots)?,
            }))?
        } else {
            Output::text(text(&found))
        };
        Ok(output.code(if has_lost { PROBLEMS } else { 0 }))
    }

    fn drop_slot(&self, name: &str) -> Result<Output, Failure> {
        let path = self.path.display();
        let slot = Slot::open(&self.path, name)?;
        let lock = slot.lock().map_err(|e| match e {
            Error::Busy { .. } => Failure::new(format!(
                "{path}: a consumer, such as `untorn ship`, works with slot {name}; stop it, and drop the slot again. \
                 Nothing was changed"
            )),
            e => e.into(),
        })?;
        slot.drop_slot()?;
        drop(lock);
        Ok(Output::text(format!(
            "{path}: slot {name} is dropped; the store frees the log that only this slot needs at its next checkpoint\n"
        )))
    }
}

fn text(found: &Inspection) -> String {
    if found.slots.is_empty() {
        return format!("{}: no slots\n", found.path.display());
    }
    let rows: Vec<Vec<String>> = found.slots.iter().map(row).collect();
    let mut text = table(&["slot", "acknowledged", "epoch", "time", "behind", "kept", "cap", "lost"], &rows);
    text.extend(found.slots.iter().filter_map(SlotInfo::loss).map(|loss| format!("{loss}\n")));
    let of_another = found.slots.iter().filter(|slot| slot.acknowledged.is_some() && slot.behind.is_none());
    text.extend(of_another.map(|slot| {
        format!(
            "slot {} acknowledged a commit that this store does not hold: it is an older state, or a copy\n",
            slot.name
        )
    }));
    text
}

fn row(slot: &SlotInfo) -> Vec<String> {
    let none = || "-".to_owned();
    let behind = |n: u64| count(n, "commit", "commits");
    vec![
        slot.name.clone(),
        slot.acknowledged.map_or_else(none, |point| point.lsn.to_string()),
        slot.acknowledged.map_or_else(none, |point| format!("{:016x}", point.epoch)),
        ago(slot.acknowledged_ns),
        slot.behind.map_or_else(none, behind),
        bytes(slot.kept_bytes),
        bytes(slot.cap_bytes),
        slot.lost_lsn.map_or_else(|| "no".to_owned(), |lost| format!("to {lost}")),
    ]
}

/// How long ago this was.
pub(super) fn ago(ns: u64) -> String {
    if ns == 0 {
        return "never".to_owned();
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    let seconds = since.unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
