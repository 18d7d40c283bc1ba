//! `restore`.

use crate::interface::State;
use crate::program::arguments::{bucket, objects, parse_wanted};
use crate::program::interrupts::remove_at_end;
use crate::program::listing;
use crate::program::time_text::shown;
use crate::restore::plan::Wanted;
use crate::restore::run::restore;
use crate::store::fresh::{Fresh, check_free};
use crate::store::plain::PlainTarget;
use clap::{Args, ValueHint};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use untorn_terminal::{Failure, Output, table, tell};

/// Restore a store from an object store into a new directory.
///
/// The directory is built beside its place, flushed, and gets its name when it is complete.
#[derive(Args)]
pub struct Restore {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// The new directory.
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// The point: a commit's number, GENERATION/NUMBER for an abandoned history, or a time such as
    /// 2026-11-29T08:00:00Z [default: the newest commit].
    #[arg(long, value_name = "POINT", value_parser = parse_wanted)]
    at: Option<Wanted>,
    /// Restore plain files without a store, which cannot go on shipping.
    #[arg(long)]
    plain: bool,
    /// List the points that can be restored, and restore nothing.
    #[arg(long)]
    list: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Restore {
    /// Restores.
    pub fn run(self) -> Result<Output, Failure> {
        let bucket = bucket(&self.url)?;
        let dir = match &self.dir {
            Some(dir) if !self.list => dir.clone(),
            _ => return listing::list(&objects(&bucket)?, self.json),
        };
        check_free(&dir)?;
        let objects = objects(&bucket)?;
        let fresh = Fresh::beside(&dir, "untorn-restore")?;
        remove_at_end(fresh.dir().to_owned(), "interrupted; nothing was restored")?;
        let mut target = PlainTarget::new(fresh.dir(), progress())?;
        let wanted = self.at.unwrap_or(Wanted::Newest);
        let state = restore(&objects, wanted, &mut target)?;
        if wanted == Wanted::Newest
            && let Some(later) = objects.beyond((state.generation, state.point.lsn))?
        {
            let lsn = state.point.lsn;
            tell!(
                "warning: #{lsn} is not the newest commit: {later} is there; the commits between them are on their way, or lost"
            );
        }
        if state.generation == 0 {
            // The root of all histories, before the first snapshot: the store was not empty then.
            return Err(Failure::new("nothing in the bucket is that old; `restore --list` shows the oldest point"));
        }
        target.finish()?;
        if !self.plain {
            target.make_store()?;
        }
        fresh.name()?;
        Ok(Output::text(told(&state, &dir.display().to_string(), self.json)))
    }
}

fn told(state: &State, dir: &str, json: bool) -> String {
    let (lsn, generation, time) = (state.point.lsn, state.generation, state.time);
    match json {
        true => format!("{}\n", json!({"lsn": lsn, "generation": generation, "time_ns": time, "directory": dir})),
        false => format!("restored #{lsn} of {} (generation {generation}) into {dir}\n", shown(time)),
    }
}

/// Tells every few seconds how far long work is.
pub fn progress() -> Box<dyn FnMut(u64) + Send> {
    let mut last = Instant::now();
    Box::new(move |written| {
        if last.elapsed() >= Duration::from_secs(5) {
            last = Instant::now();
            tell!("restoring: {} are written", table::bytes(written));
        }
    })
}
