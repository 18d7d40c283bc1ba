//! `untorn check`.

use super::status;
use crate::answer::{Answer, Failure};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use untorn::offline::{self, Inspection};

const PROBLEMS: u8 = 1;
const COULD_NOT_LOOK: u8 = 2;

/// Verify every checksum and invariant of a store, without changing a byte.
///
/// Exit code: 0 sound, 1 problems, 2 could not look. A store that its owner did not close is sound
/// if recovery will bring back its last commit.
#[derive(Args)]
pub struct Check {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// For programs.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> Result<Answer, Failure> {
        let found = match offline::inspect(&self.path) {
            Ok(found) => found,
            // Damage can be such that there is nothing left to list.
            Err(e @ (untorn::Error::Corrupt { .. } | untorn::Error::UnknownState { .. })) => {
                return Err(Failure::from(e).code(PROBLEMS));
            }
            Err(e) => return Err(Failure::from(e).code(COULD_NOT_LOOK)),
        };
        let sound = found.problems.is_empty() && !found.unknown_state;
        let answer = if self.json {
            let mut value = status::summary(&found)?;
            value["sound"] = sound.into();
            Answer::json(&value)?
        } else {
            Answer::text(text(&found, sound))
        };
        Ok(answer.code(if sound { 0 } else { PROBLEMS }))
    }
}

fn text(found: &Inspection, sound: bool) -> String {
    let mut text = status::text(found);
    for problem in &found.problems {
        text += &format!("PROBLEM  {problem}\n");
    }
    if found.owner.is_some() {
        text += "note     the store is in use; what is being written this moment may look torn\n";
    }
    text + if sound {
        "sound\n"
    } else if found.problems.is_empty() {
        "not sound: its state is unknown\n"
    } else {
        "not sound; `untorn recover --dry-run` shows what can be kept, `untorn recover --salvage` keeps it\n"
    }
}
