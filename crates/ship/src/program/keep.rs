//! `verify`, `prune` and `compact`: everything that a bucket needs besides shipping.

use crate::interface::{Source, Target};
use crate::program::arguments::{bucket, nonces, objects, workspace};
use crate::program::interrupts::remove_at_end;
use crate::program::restore::progress;
use crate::program::time_text::parse_duration;
use crate::restore::verify::verify;
use crate::retain::compact::{Compacted, compact};
use crate::retain::delete::delete;
use crate::retain::prune::{Policy, prune};
use crate::store::fresh::remove;
use crate::store::live::{LiveStore, now};
use crate::store::plain::PlainTarget;
use clap::{Args, ValueHint};
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use untorn_terminal::{Failure, Output};

/// A snapshot in the making that is older than this is given up.
const ANNOUNCED_FOR: Duration = Duration::from_secs(86_400);

/// Check every object of the log and of the snapshots in an object store.
#[derive(Args)]
pub struct Verify {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// Also restore from every snapshot, and compare the histories.
    #[arg(long)]
    full: bool,
    /// Also check that this store contains the newest commit of the bucket.
    #[arg(long, value_name = "STORE", value_hint = ValueHint::AnyPath)]
    against: Option<PathBuf>,
    /// Restore in a temporary directory here [default: TMPDIR or /tmp].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    workspace: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Verify {
    /// Checks.
    pub fn run(self) -> Result<Output, Failure> {
        let bucket = bucket(&self.url)?;
        let objects = objects(&bucket)?;
        let mut store = self.against.as_deref().map(LiveStore::open_to_compare).transpose()?;
        let copies = self.full.then(|| Workspace::new(&workspace(self.workspace))).transpose()?;
        let mut target = copies.as_ref().map(Workspace::target).transpose()?;
        let full = target.as_mut().map(|target| target as &mut dyn Target);
        let against = store.as_mut().map(|store| store as &mut dyn Source);
        let found = verify(&objects, full, against)?;
        let text = match self.json {
            true => json!({"oldest": found.oldest, "newest": found.newest, "objects": found.objects,
                "snapshots": found.snapshots, "extents": found.extents})
            .to_string(),
            false => format!(
                "good: #{} to #{}, {} objects, {} snapshots with {} extents",
                found.oldest, found.newest, found.objects, found.snapshots, found.extents
            ),
        };
        Ok(Output::text(text + "\n"))
    }
}

/// Delete the history before a point in time from an object store.
///
/// Everything from then on can still be restored. It needs a snapshot before that point: `untorn-ship compact` makes
/// one.
#[derive(Args)]
pub struct Prune {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// Keep every commit of this time, for example 30d.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep: Duration,
    /// Of older snapshots, keep one in each stretch of this length, as a single point.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep_every: Option<Duration>,
    /// Wait so long before anything is deleted, for restores that are under way.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    grace: Duration,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Prune {
    /// Prunes.
    pub fn run(self) -> Result<Output, Failure> {
        let bucket = bucket(&self.url)?;
        let objects = objects(&bucket)?;
        let before = |duration: Duration| now().saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        let every = self.keep_every.map_or(0, |every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        let policy = Policy { since: before(self.keep), every, announced_since: before(ANNOUNCED_FOR) };
        let Some(deletion) = prune(&objects, &mut nonces()?, &policy)? else {
            return Ok(Output::text(if self.json { "{\"log\":0,\"snapshots\":0}\n" } else { "nothing is older\n" }));
        };
        std::thread::sleep(self.grace);
        let deleted = delete(&objects, &deletion)?;
        let oldest = deletion.manifest().floor.point.lsn;
        let text = match self.json {
            true => json!({"oldest": oldest, "log": deleted.log, "snapshots": deleted.snapshots}).to_string(),
            false => format!(
                "the oldest commit is #{oldest} now; deleted: {} objects of the log, {} of snapshots",
                deleted.log, deleted.snapshots
            ),
        };
        Ok(Output::text(text + "\n"))
    }
}

/// Make a snapshot of the newest commit in an object store, so that restoring is faster and older history can go.
#[derive(Args)]
pub struct Compact {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// Restore in a temporary directory here [default: TMPDIR or /tmp].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    workspace: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Compact {
    /// Makes one.
    pub fn run(self) -> Result<Output, Failure> {
        let bucket = bucket(&self.url)?;
        let objects = objects(&bucket)?;
        let copies = Workspace::new(&workspace(self.workspace))?;
        let made = compact(&objects, &mut copies.target()?, &mut nonces()?, now())?;
        let (number, lsn, text) = match made {
            Compacted::Registered { number, lsn } => (Some(number), Some(lsn), format!("made a snapshot of #{lsn}")),
            Compacted::NothingNew => (None, None, "the newest commit has a snapshot already".into()),
            Compacted::GivenUp => {
                return Err(Failure::new("the bucket was pruned or compacted by somebody else meanwhile: try again"));
            }
        };
        let text = if self.json { json!({"snapshot": number, "lsn": lsn}).to_string() } else { text };
        Ok(Output::text(text + "\n"))
    }
}

/// A directory for a temporary copy, which nobody else may read. It is removed in the end, and by Ctrl-C.
struct Workspace(TempDir);

impl Workspace {
    fn new(dir: &Path) -> Result<Workspace, Failure> {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix("untorn-ship").permissions(Permissions::from_mode(0o700)).tempdir_in(dir);
        let copies = made.map(Workspace).map_err(|e| Failure::io("make a directory in", dir, e))?;
        remove_at_end(copies.0.path().to_owned(), "interrupted; the temporary copy was removed")?;
        Ok(copies)
    }

    fn target(&self) -> Result<PlainTarget, Failure> {
        Ok(PlainTarget::new(self.0.path(), progress())?)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // A copy has the permissions of its files: some directories may not be written.
        remove(self.0.path());
    }
}
