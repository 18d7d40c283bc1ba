//! `untorn dump`.

use crate::answer::{Answer, Failure};
use clap::{Args, ValueHint};
use std::fmt::Write;
use std::path::PathBuf;
use untorn::offline::{self, Inspection};

/// Print the journal's records, oldest first.
///
/// Changes nothing. Only records that have not been checkpointed yet are still there.
#[derive(Args)]
pub struct Dump {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// For programs.
    #[arg(long)]
    json: bool,
}

impl Dump {
    pub fn run(self) -> Result<Answer, Failure> {
        let found = offline::inspect(&self.path)?;
        if self.json { Answer::json(&found) } else { Ok(Answer::text(text(&found))) }
    }
}

fn text(found: &Inspection) -> String {
    let mut text = String::new();
    let write = |text: &mut String| -> std::fmt::Result {
        writeln!(text, "{}  store {}  format {}", found.path.display(), found.store_id, found.format_version)?;
        for r in &found.records {
            write!(text, "#{} {}  session {}  {} @ {}", r.sequence, r.kind, r.session, r.segment, r.offset)?;
            writeln!(text, "  {} bytes  crc {}  durable through {}", r.bytes, r.crc, r.durable_through)?;
            for operation in &r.operations {
                writeln!(text, "    {operation}")?;
            }
        }
        if found.torn_tail {
            writeln!(text, "a torn record at the end, which never was a commit")?;
        }
        for problem in &found.problems {
            writeln!(text, "PROBLEM  {problem}")?;
        }
        Ok(())
    };
    write(&mut text).expect("a string takes everything");
    text
}
