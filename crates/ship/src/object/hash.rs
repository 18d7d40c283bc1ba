//! The hash of a history.

use crate::interface::{Commit, Hash, Piece, Point, Random, StoreId};

/// The hash of a history up to the commit.
pub fn after(before: &Hash, commit: &Commit) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&commit.lsn.to_le_bytes()).update(&commit.epoch.to_le_bytes());
    *hasher.update(blake3::hash(&commit.body).as_bytes()).finalize().as_bytes()
}

/// The hash at a snapshot that begins a history.
pub fn base(store: &StoreId, point: Point, list: &Hash) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"base").update(store).update(&point.lsn.to_le_bytes()).update(&point.epoch.to_le_bytes());
    *hasher.update(list).finalize().as_bytes()
}

/// The hash at the beginning of a store: nothing is in it.
pub fn root(store: &StoreId) -> Hash {
    base(store, Point::default(), &[0; 32])
}

/// The hash of some bytes.
pub fn of(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// The hash of a snapshot's list.
#[derive(Default)]
pub struct List(blake3::Hasher);

impl List {
    /// Adds a piece, whose data have this hash.
    pub fn add(&mut self, about: &[u8], length: u32, data: &Hash) {
        self.0.update(&(about.len() as u32).to_le_bytes()).update(about);
        self.0.update(&length.to_le_bytes()).update(data);
    }

    /// The hash.
    pub fn hash(&self) -> Hash {
        *self.0.finalize().as_bytes()
    }
}

/// The hash of a piece's data; zero if there are none.
pub fn data(piece: &Piece) -> Hash {
    if piece.data.is_empty() { [0; 32] } else { of(&piece.data) }
}

/// Random numbers that no other process draws, from 256 random bits of this process.
pub struct Nonces {
    seed: [u8; 32],
    drawn: u64,
}

impl Nonces {
    /// Random numbers of a seed that no other process has, and that is nowhere kept.
    pub fn new(seed: [u8; 32]) -> Nonces {
        Nonces { seed, drawn: 0 }
    }

    /// The next one.
    pub fn draw(&mut self) -> Random {
        self.drawn += 1;
        let hash = *blake3::keyed_hash(&self.seed, &self.drawn.to_le_bytes()).as_bytes();
        hash[..16].try_into().expect("half of it")
    }
}
