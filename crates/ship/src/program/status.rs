//! `ship --status`.

use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use untorn::{Reader, Slot};
use untorn_terminal::{Failure, Output};

/// Shows how far each slot of a store is. The exit code is 1 if a slot is lost.
///
/// # Errors
/// There is no store, or it cannot be read.
pub fn show(store: &Path, json: bool) -> Result<Output, Failure> {
    let last = Reader::open(store)?.last_commit()?.lsn;
    let slots = Slot::list(store)?;
    let is_lost = slots.iter().any(|slot| slot.lost.is_some());
    let mut text = String::new();
    if json {
        let each = slots.iter().map(|slot| {
            let lsn = slot.acknowledged.filter(|known| known.time_ns > 0).map(|known| known.point.lsn);
            json!({"slot": slot.name, "lsn": lsn, "behind": lsn.map(|lsn| last.saturating_sub(lsn)),
                "cap_bytes": slot.cap, "lost_to": slot.lost})
        });
        let _ = writeln!(text, "{}", json!({"store_lsn": last, "slots": each.collect::<Vec<_>>()}));
    } else if slots.is_empty() {
        let _ = writeln!(text, "last commit #{last}; the store has no slot: it was never shipped");
    } else {
        let _ = writeln!(text, "last commit #{last}");
        for slot in &slots {
            let shipped = match slot.acknowledged {
                // The commit at which the slot was made.
                Some(acknowledged) if acknowledged.time_ns == 0 => "nothing is shipped yet".into(),
                Some(acknowledged) => {
                    let lsn = acknowledged.point.lsn;
                    format!("shipped up to #{lsn}, {} commits behind", last.saturating_sub(lsn))
                }
                None => "the last acknowledgement was torn; the next start finds it in the bucket".into(),
            };
            let lost = slot.lost.map_or(String::new(), |lsn| {
                format!("; LOST: the log up to #{lsn} is gone, and shipping goes on with a new snapshot")
            });
            let _ = writeln!(text, "slot {}: {shipped}{lost}", slot.name);
        }
    }
    Ok(Output { text, code: u8::from(is_lost) })
}
