//! `untorn dump`.

use super::heap::{self, Target};
use super::status;
use crate::commands::history::time_text;
use crate::json;
use crate::progress_bar::Progress;
use clap::Args;
use std::fmt::Write;
use std::time::{Duration, SystemTime};
use untorn::offline::{self, Inspection};
use untorn_terminal::{Failure, Output};

/// Print the journal's records, oldest first; or describe the contents of a heap.
///
/// Changes nothing. Only records that have not been checkpointed yet are still in the journal.
///
/// `untorn dump heap PATH` prints the sizes of a heap, how full its blocks are, its roots, and a map of its chunks. A
/// heap that a program has open is busy.
///
/// Exit code: 0 in order, 1 problems, 2 could not look.
#[derive(Args)]
#[command(override_usage = "untorn dump [OPTIONS] [heap] <PATH>")]
pub struct Dump {
    #[command(flatten)]
    target: Target,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Dump {
    pub fn run(self) -> Result<Output, Failure> {
        let (path, in_heap) = self.target.path()?;
        if in_heap {
            let progress = Progress::new("looking");
            let found = offline::dump_heap(&path, &|done, all| progress.show(done, all))?;
            return if self.json {
                json::output(&heap::json(&found)?)
            } else {
                Ok(Output::text(heap::dump_text(&found)))
            };
        }
        let found = status::look(&path)?;
        let output = if self.json { json::output(&found)? } else { Output::text(text(&found)) };
        Ok(output.code(status::code(&found)))
    }
}

fn text(found: &Inspection) -> String {
    let mut text = String::new();
    let write = |text: &mut String| -> std::fmt::Result {
        writeln!(text, "{}  store {}  format {}", found.path.display(), found.store_id, found.format_version)?;
        for r in &found.records {
            write!(text, "#{} {}  epoch {}  {} @ {}", r.lsn, r.kind, r.epoch, r.segment, r.offset)?;
            let time = r.time.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
            write!(text, "  {} bytes  crc {}  durable LSN {}", r.bytes, r.crc, r.durable_lsn)?;
            writeln!(text, "  {}", time_text(time))?;
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
