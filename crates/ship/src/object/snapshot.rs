//! Snapshots: a head with the list of pieces, and extents with their data.

use crate::error::{Error, Result};
use crate::interface::{ABOUT_BYTES_MAX, EpochStart, Hash, PIECE_BYTES_MAX, Point, StoreId};
use crate::object::bytes::{Reader, Writer, compress, decompress};
use crate::object::log::{read_epochs, write_epochs};
use crate::object::{hash, names};
use bytes::Bytes;

const HEAD_MAGIC: &[u8; 8] = b"UNTORNSN";
const EXTENT_MAGIC: &[u8; 8] = b"UNTORNEX";

/// Most bytes of a snapshot's list before compression.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Most bytes of a snapshot's head.
pub const HEAD_BYTES_MAX: u64 = LIST_BYTES_MAX + (1 << 20);

/// Most bytes of an extent.
pub const EXTENT_BYTES_MAX: u64 = PIECE_BYTES_MAX as u64 + (1 << 20);

/// A piece, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Metadata.
    pub about: Bytes,
    /// Bytes of data.
    pub length: u32,
    /// The hash of the data.
    pub data: Hash,
    /// The snapshot that the extent belongs to; 0 if there are no data.
    pub owner: u64,
}

/// Head of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The store.
    pub store: StoreId,
    /// Its number.
    pub number: u64,
    /// The generation that it is of; of an end's snapshot, the one that begins with it.
    pub generation: u64,
    /// The last commit.
    pub point: Point,
    /// The hash of the history.
    pub hash: Hash,
    /// The time of the last commit.
    pub time: u64,
    /// The list of epochs.
    pub epochs: Vec<EpochStart>,
    /// The pieces.
    pub entries: Vec<Entry>,
}

/// The hash of a list of pieces: independent of the places of the data.
pub fn list_hash(entries: &[Entry]) -> Hash {
    let mut list = hash::List::default();
    entries.iter().for_each(|entry| list.add(&entry.about, entry.length, &entry.data));
    list.hash()
}

impl Head {
    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let each = |writer: Writer, entry: &Entry| {
            writer.sized(&entry.about).u32(entry.length).put(&entry.data).u64(entry.owner)
        };
        let plain = self.entries.iter().fold(Writer::empty(), each).bare();
        let stored = compress(&plain);
        let writer = Writer::new(HEAD_MAGIC).put(&self.store).u64(self.number).u64(self.generation);
        let writer = write_epochs(writer.point(self.point).put(&self.hash).u64(self.time), &self.epochs);
        writer.u64(plain.len() as u64).u64(stored.len() as u64).put(&stored).sealed().into()
    }

    /// Reads a head of this name.
    pub fn decode(name: &str, store: Option<&StoreId>, bytes: &[u8]) -> Result<Head> {
        let mut reader = Reader::sealed(name, HEAD_MAGIC, bytes)?;
        let found: StoreId = reader.random()?;
        if store.is_some_and(|store| *store != found) {
            return Err(Error::OtherStore { found: names::hex(&found) });
        }
        let (number, generation) = (reader.u64()?, reader.u64()?);
        if names::parse_snap(name) != Some((number, None)) {
            return reader.fail("it is a copy of an object with another name");
        }
        let (point, hash, time) = (reader.point()?, reader.hash()?, reader.u64()?);
        let epochs = read_epochs(&mut reader)?;
        let (plain_bytes, stored_bytes) = (reader.u64()?, reader.u64()?);
        if plain_bytes > LIST_BYTES_MAX {
            return reader.fail("its list is too long");
        }
        let stored = reader.take(usize::try_from(stored_bytes).unwrap_or(usize::MAX))?;
        reader.end()?;
        let entries = entries(name, number, &decompress(name, stored, plain_bytes)?)?;
        Ok(Head { store: found, number, generation, point, hash, time, epochs, entries })
    }
}

fn entries(name: &str, number: u64, plain: &[u8]) -> Result<Vec<Entry>> {
    let mut reader = Reader::bare(name, plain);
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let about = Bytes::copy_from_slice(reader.sized(ABOUT_BYTES_MAX)?);
        let (length, data, owner) = (reader.u32()?, reader.hash()?, reader.u64()?);
        if length as usize > PIECE_BYTES_MAX || owner > number || (length == 0) != (owner == 0) {
            return reader.fail("an impossible piece");
        }
        entries.push(Entry { about, length, data, owner });
    }
    Ok(entries)
}

/// The bytes of an extent.
pub fn encode_extent(data: &[u8]) -> Bytes {
    Writer::new(EXTENT_MAGIC).u32(data.len() as u32).put(&compress(data)).bare().into()
}

/// The data of an extent, which must have this length and hash.
pub fn decode_extent(name: &str, bytes: &[u8], length: u32, data: &Hash) -> Result<Bytes> {
    let mut reader = Reader::new(name, EXTENT_MAGIC, bytes)?;
    if reader.u32()? != length || length as usize > PIECE_BYTES_MAX {
        return reader.fail("another length");
    }
    let plain = decompress(name, &bytes[16..], length.into())?;
    if hash::of(&plain) == *data { Ok(plain.into()) } else { reader.fail("other data than its name says") }
}
