//! Manifests: the complete state of retention.

use crate::error::{Error, Result};
use crate::interface::{Hash, Point, Random, StoreId};
use crate::object::bytes::{Reader, Writer};
use crate::object::{hash, names};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"UNTORNMF";
const POSITION_MAGIC: &[u8; 8] = b"UNTORNPO";

/// Most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// A place on the chain, behind a log object, and the history there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The generation.
    pub generation: u64,
    /// The last commit.
    pub point: Point,
    /// The hash of the history.
    pub hash: Hash,
    /// The time of the last commit.
    pub time: u64,
    /// The owner of the generation; zero in generation 0.
    pub owner: Random,
    /// The owner, for people.
    pub who: String,
}

impl Position {
    /// The beginning of every chain.
    pub fn root(store: &StoreId) -> Position {
        let hash = hash::root(store);
        Position { generation: 0, point: Point::default(), hash, time: 0, owner: [0; 16], who: String::new() }
    }

    /// Generation and last LSN, by which places are ordered.
    pub fn place(&self) -> (u64, u64) {
        (self.generation, self.point.lsn)
    }

    /// The bytes to remember a place by, so that the next start of a shipper need not read the chain from the floor on.
    pub fn encode(&self, store: &StoreId) -> Vec<u8> {
        self.write(Writer::new(POSITION_MAGIC).put(store)).sealed()
    }

    /// Reads a place that was remembered in a file of this name.
    ///
    /// # Errors
    /// It is damaged, or of another store: the chain is read from the floor on then.
    pub fn decode(name: &str, store: &StoreId, bytes: &[u8]) -> Result<Position> {
        let mut reader = Reader::sealed(name, POSITION_MAGIC, bytes)?;
        if reader.random()? != *store {
            return reader.fail("it is of another store");
        }
        let position = Position::read(&mut reader)?;
        reader.end()?;
        Ok(position)
    }

    fn write(&self, writer: Writer) -> Writer {
        let writer = writer.u64(self.generation).point(self.point).put(&self.hash).u64(self.time);
        writer.put(&self.owner).sized(self.who.as_bytes())
    }

    fn read(reader: &mut Reader<'_>) -> Result<Position> {
        let (generation, point, hash, time) = (reader.u64()?, reader.point()?, reader.hash()?, reader.u64()?);
        Ok(Position { generation, point, hash, time, owner: reader.random()?, who: reader.who()? })
    }
}

/// A snapshot that can be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its number.
    pub number: u64,
    /// Its place.
    pub position: Position,
}

/// A snapshot in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Its number: that of the manifest which announced it.
    pub number: u64,
    /// When it was announced.
    pub time: u64,
    /// The place that it will have.
    pub position: Position,
}

/// The snapshot of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfEnd {
    /// Its number.
    pub number: u64,
    /// The generation that the end ends.
    pub generation: u64,
    /// The LSN in the end's name.
    pub lsn: u64,
    /// The end's nonce.
    pub nonce: Random,
}

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The store.
    pub store: StoreId,
    /// Its number; 0 is the one that every bucket begins with, and that is no object.
    pub number: u64,
    /// The random number of the attempt to write it.
    pub nonce: Random,
    /// The nonce of the manifest before.
    pub previous: Random,
    /// The oldest place from which everything is retained.
    pub floor: Position,
    /// The number of the floor's snapshot; 0 for the root.
    pub floor_snapshot: u64,
    /// Snapshots that can be restored.
    pub registered: Vec<Registered>,
    /// Snapshots in the making.
    pub announced: Vec<Announced>,
    /// Snapshots of ends.
    pub of_ends: Vec<OfEnd>,
}

impl Manifest {
    /// The state of a bucket without manifests.
    pub fn first(store: &StoreId) -> Manifest {
        Manifest {
            store: *store,
            number: 0,
            nonce: [0; 16],
            previous: [0; 16],
            floor: Position::root(store),
            floor_snapshot: 0,
            registered: Vec::new(),
            announced: Vec::new(),
            of_ends: Vec::new(),
        }
    }

    /// Whether the floor lies beyond this place: objects that are read there do not count.
    pub fn is_beyond(&self, place: (u64, u64)) -> bool {
        place < self.floor.place()
    }

    /// Whether this snapshot is in the making.
    pub fn announces(&self, number: u64) -> bool {
        self.announced.iter().any(|known| known.number == number)
    }

    /// The next manifest, which says the same so far.
    pub fn next(&self, nonce: Random) -> Manifest {
        Manifest { number: self.number + 1, nonce, previous: self.nonce, ..self.clone() }
    }

    /// Whether this snapshot can be relied on: registered, or of an end.
    pub fn has(&self, number: u64) -> bool {
        self.registered.iter().any(|known| known.number == number)
            || self.of_ends.iter().any(|known| known.number == number)
    }

    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let writer = Writer::new(MAGIC).put(&self.store).u64(self.number).put(&self.nonce).put(&self.previous);
        let writer = self.floor.write(writer).u64(self.floor_snapshot);
        let writer = writer.list(&self.registered, |w, known| known.position.write(w.u64(known.number)));
        let writer = writer.list(&self.announced, |w, known| known.position.write(w.u64(known.number).u64(known.time)));
        let of_end =
            |w: Writer, known: &OfEnd| w.u64(known.number).u64(known.generation).u64(known.lsn).put(&known.nonce);
        writer.list(&self.of_ends, of_end).sealed().into()
    }

    /// Reads a manifest of this name.
    pub fn decode(name: &str, store: Option<&StoreId>, bytes: &[u8]) -> Result<Manifest> {
        let mut reader = Reader::sealed(name, MAGIC, bytes)?;
        let found: StoreId = reader.random()?;
        if store.is_some_and(|store| *store != found) {
            return Err(Error::OtherStore { found: names::hex(&found) });
        }
        let number = reader.u64()?;
        if names::parse_meta(name) != Some(number) || number == 0 {
            return reader.fail("it is a copy of an object with another name");
        }
        let (nonce, previous) = (reader.random()?, reader.random()?);
        let (floor, floor_snapshot) = (Position::read(&mut reader)?, reader.u64()?);
        let registered = reader.list(92, |r| Ok(Registered { number: r.u64()?, position: Position::read(r)? }))?;
        let announced =
            reader.list(100, |r| Ok(Announced { number: r.u64()?, time: r.u64()?, position: Position::read(r)? }))?;
        let of_end = |r: &mut Reader<'_>| {
            Ok(OfEnd { number: r.u64()?, generation: r.u64()?, lsn: r.u64()?, nonce: r.random()? })
        };
        let of_ends = reader.list(40, of_end)?;
        reader.end()?;
        let manifest =
            Manifest { store: found, number, nonce, previous, floor, floor_snapshot, registered, announced, of_ends };
        Ok(manifest)
    }
}
