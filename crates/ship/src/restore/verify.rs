//! Checks of a bucket.

use crate::chain::objects::Objects;
use crate::error::{Error, Result};
use crate::interface::{Source, Target};
use crate::object::names;
use crate::object::snapshot::{EXTENT_BYTES_MAX, decode_extent};
use crate::restore::plan::{Chain, Wanted, read};
use crate::restore::run::restore;
use std::collections::BTreeSet;

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The oldest LSN that can be restored.
    pub oldest: u64,
    /// The newest.
    pub newest: u64,
    /// Objects of the log.
    pub objects: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Extents that were read.
    pub extents: u64,
}

/// Checks the chain with its hashes, and each snapshot with its extents. With a target, restores the newest point from
/// every snapshot's place, too, and compares the histories. With a source, checks that the store goes on where the
/// bucket ends.
///
/// # Errors
/// Something is missing or damaged, or the bucket does not answer.
pub fn verify(
    objects: &Objects<'_>,
    full: Option<&mut dyn Target>,
    against: Option<&mut dyn Source>,
) -> Result<Verified> {
    let chain = read_whole(objects)?;
    let of_nodes = chain.nodes.iter().filter_map(|node| node.snapshot);
    let registered = chain.manifest.registered.iter().map(|known| known.number);
    let numbers: BTreeSet<u64> = registered.chain(of_nodes).collect();
    let mut seen = BTreeSet::new();
    for number in &numbers {
        extents_of(objects, *number, &mut seen)?;
    }
    // A snapshot that is missing because the bucket was pruned meanwhile is told as such.
    if objects.newest()?.is_beyond(chain.start.place()) {
        return Err(Error::Busy(1));
    }
    let newest = chain.tip().point;
    if let Some(target) = full {
        for n in 0..=chain.nodes.len() {
            if chain.snapshot_at(n).is_some() || n == chain.nodes.len() {
                let at = chain.place(n);
                let state = restore(objects, Wanted::In(at.generation, at.point.lsn), target)?;
                if state.hash != at.hash {
                    return Err(Error::DoesNotFit { lsn: at.point.lsn });
                }
            }
        }
    }
    if let Some(source) = against
        && !source.contains(newest)?
    {
        return Err(Error::Diverged { tip: newest, common: 0, is_behind: source.durable()?.lsn < newest.lsn });
    }
    Ok(Verified {
        oldest: chain.start.point.lsn,
        newest: newest.lsn,
        objects: chain.nodes.len() as u64,
        snapshots: numbers.len() as u64,
        extents: seen.len() as u64,
    })
}

/// Reads the chain, and refuses one that objects go on behind, and one that lost all of them.
fn read_whole(objects: &Objects<'_>) -> Result<Chain> {
    let chain = read(objects, Wanted::Newest)?;
    if chain.tip().generation == 0 && chain.manifest.number > 0 {
        let reason =
            "the bucket has no objects of the log: the first snapshot is on its way just now, or the log was deleted";
        return Err(Error::Damaged { name: names::LOG.into(), reason: reason.into() });
    }
    let Some(later) = objects.beyond(chain.tip().place())? else { return Ok(chain) };
    // It was on its way.
    let again = read(objects, Wanted::Newest)?;
    if again.tip().place() > chain.tip().place() {
        return Ok(again);
    }
    let (generation, lsn) = chain.tip().place();
    let reason = format!("it is missing, and {later} is there; if `untorn ship` runs just now, verify again");
    Err(Error::Damaged { name: names::log(generation, lsn + 1), reason })
}

fn extents_of(objects: &Objects<'_>, number: u64, seen: &mut BTreeSet<String>) -> Result<()> {
    let missing = |name: String| Error::Damaged { name, reason: "it is missing".into() };
    let Some(head) = objects.head(number)? else { return Err(missing(names::head(number))) };
    for entry in head.entries.iter().filter(|entry| entry.length > 0) {
        let name = names::extent(entry.owner, &entry.data);
        if seen.insert(name.clone()) {
            let Some(bytes) = objects.bucket.get(&name, EXTENT_BYTES_MAX)? else { return Err(missing(name)) };
            decode_extent(&name, &bytes, entry.length, &entry.data)?;
        }
    }
    Ok(())
}
