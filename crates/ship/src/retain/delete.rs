//! Deleting objects that a published manifest no longer retains.

use crate::chain::objects::Objects;
use crate::error::{Error, Result};
use crate::interface::Hash;
use crate::invariant;
use crate::object::log::{Body, LogObject, OBJECT_BYTES_MAX};
use crate::object::manifest::Manifest;
use crate::object::names;
use crate::restore::plan::Chain;
use std::collections::HashSet;
use untorn_os::holds;

/// The objects that a manifest allows to delete.
pub struct Deletion {
    manifest: Manifest,
    /// Names of objects that are known to hold commits.
    commits: HashSet<String>,
}

/// The numbers of objects that were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Objects of the log.
    pub log: u64,
    /// Heads and extents of snapshots.
    pub snapshots: u64,
    /// Manifests.
    pub manifests: u64,
}

impl Deletion {
    /// By this manifest, which was read or published.
    pub(crate) fn new(chain: &Chain, manifest: Manifest) -> Deletion {
        let commits = chain.nodes.iter().filter(|node| !node.is_end);
        let name = |(generation, last): (u64, u64)| names::log(generation, last + 1);
        Deletion { manifest, commits: commits.map(|node| name(node.before.place())).collect() }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Deletes. Slow is harmless: other manifests may have been published meanwhile.
///
/// # Errors
/// The bucket does not answer or is damaged.
pub fn delete(objects: &Objects<'_>, deletion: &Deletion) -> Result<Deleted> {
    let mut deleted = Deleted::default();
    delete_log(objects, deletion, &mut deleted)?;
    delete_snapshots(objects, &deletion.manifest, &mut deleted)?;
    let listed = objects.bucket.list(names::META, None)?;
    let mut numbers: Vec<u64> = listed.iter().filter_map(|name| names::parse_meta(name)).collect();
    numbers.sort_unstable();
    // Never the two highest: a manifest counts if it is the highest, or if the next one names it.
    for number in numbers.iter().take(numbers.len().saturating_sub(2)) {
        objects.bucket.delete(&names::meta(*number))?;
        deleted.manifests += 1;
    }
    Ok(deleted)
}

fn delete_log(objects: &Objects<'_>, deletion: &Deletion, deleted: &mut Deleted) -> Result<()> {
    let registered = deletion.manifest.registered.iter().map(|known| known.position.place()).max();
    let floor = deletion.manifest.floor.place();
    let floor = if holds(invariant::LOG_STAYS_ABOVE_FLOOR) { floor } else { registered.unwrap_or(floor) };
    for name in objects.bucket.list(names::LOG, None)? {
        if names::parse_log(&name).is_none_or(|place| place > floor) {
            continue;
        }
        let is_deleted = deletion.commits.contains(&name) || holds_commits(objects, &name)?;
        if is_deleted || !holds(invariant::ENDS_STAY) {
            objects.bucket.delete(&name)?;
            deleted.log += 1;
        }
    }
    Ok(())
}

/// Whether an object holds commits. It may lie off the chain, where a slow process put it.
fn holds_commits(objects: &Objects<'_>, name: &str) -> Result<bool> {
    let Some(bytes) = objects.bucket.get(name, OBJECT_BYTES_MAX)? else { return Ok(false) };
    let object = LogObject::decode(name, Some(&objects.store), &bytes)?;
    Ok(matches!(object.body, Body::Commits(_)))
}

fn delete_snapshots(objects: &Objects<'_>, manifest: &Manifest, deleted: &mut Deleted) -> Result<()> {
    let Some(kept) = kept_extents(objects, manifest)? else { return Ok(()) };
    for name in objects.bucket.list(names::SNAP, None)? {
        let Some((number, extent)) = names::parse_snap(&name) else { continue };
        let is_unknown = number > manifest.number && holds(invariant::UNKNOWN_STAY);
        let is_announced = manifest.announces(number) && holds(invariant::ANNOUNCED_STAY);
        let is_kept = manifest.has(number) && extent.is_none();
        if !is_unknown && !is_announced && !is_kept && !kept.contains(&name) {
            objects.bucket.delete(&name)?;
            deleted.snapshots += 1;
        }
    }
    Ok(())
}

/// Names of the extents that retained snapshots need, shared ones too. `None`: another pruner went further meanwhile.
fn kept_extents(objects: &Objects<'_>, manifest: &Manifest) -> Result<Option<HashSet<String>>> {
    let registered = manifest.registered.iter().map(|known| known.number);
    let mut kept = HashSet::new();
    for number in registered.chain(manifest.of_ends.iter().map(|known| known.number)) {
        let Some(head) = objects.head(number)? else {
            let is_gone = !objects.newest()?.has(number);
            let missing = Error::Damaged { name: names::head(number), reason: "it is missing".into() };
            return if is_gone { Ok(None) } else { Err(missing) };
        };
        let extent = |(owner, data): (u64, Hash)| names::extent(owner, &data);
        let used = head.entries.iter().filter(|entry| entry.length > 0);
        kept.extend(used.map(|entry| extent((entry.owner, entry.data))));
    }
    Ok(Some(kept))
}
