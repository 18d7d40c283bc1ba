//! Uploading a snapshot.

use crate::chain::objects::{Objects, Placed, place};
use crate::error::{Error, Result};
use crate::interface::{EpochStart, Hash, PIECE_BYTES_MAX, Pieces, Point};
use crate::object::snapshot::{Entry, Head, encode_extent, list_hash};
use crate::object::{hash, names};
use std::collections::HashMap;

/// A snapshot before its contents are known.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its number.
    pub number: u64,
    /// Its generation.
    pub generation: u64,
    /// Its last commit.
    pub point: Point,
    /// The hash of the history; `None` if the history begins with it.
    pub hash: Option<Hash>,
    /// The time of the last commit.
    pub time: u64,
    /// The list of epochs.
    pub epochs: Vec<EpochStart>,
    /// Extents that are there already and may be shared, with their snapshots.
    pub shared: HashMap<Hash, u64>,
}

/// Uploads extents, then the head.
///
/// # Errors
/// The bucket or the store does not answer. The parts that were uploaded are deleted when the snapshot's announcement is
/// taken back.
pub fn upload(objects: &Objects<'_>, plan: Plan, pieces: &mut dyn Pieces) -> Result<Head> {
    let mut known = plan.shared;
    let mut entries = Vec::new();
    while let Some(piece) = pieces.next_piece()? {
        if piece.data.len() > PIECE_BYTES_MAX {
            return Err(Error::store(format!("a piece of a snapshot has {} bytes", piece.data.len())));
        }
        let (data, length) = (hash::data(&piece), piece.data.len() as u32);
        let owner = match known.get(&data) {
            _ if length == 0 => 0,
            Some(owner) => *owner,
            None => {
                let name = names::extent(plan.number, &data);
                if let Placed::Other(_) = place(objects.bucket, &name, &encode_extent(&piece.data))? {
                    return Err(Error::Damaged { name, reason: "somebody else made it".into() });
                }
                known.insert(data, plan.number);
                plan.number
            }
        };
        entries.push(Entry { about: piece.about, length, data, owner });
    }
    let hash = plan.hash.unwrap_or_else(|| hash::base(&objects.store, plan.point, &list_hash(&entries)));
    let (number, generation, point) = (plan.number, plan.generation, plan.point);
    let head =
        Head { store: objects.store, number, generation, point, hash, time: plan.time, epochs: plan.epochs, entries };
    let name = names::head(number);
    match place(objects.bucket, &name, &head.encode())? {
        Placed::Created | Placed::Mine => Ok(head),
        Placed::Other(_) => Err(Error::Damaged { name, reason: "somebody else made it".into() }),
    }
}
