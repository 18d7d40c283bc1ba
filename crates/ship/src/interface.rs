//! The store as the protocol sees it: a source of commits, or a target that they are applied to.

use crate::error::Result;
pub use crate::point::Point;
use bytes::Bytes;

/// The id of a store, as in its header.
pub type StoreId = [u8; 16];

/// The hash of a history: BLAKE3 over all commits since its beginning, from the commits' bodies.
pub type Hash = [u8; 32];

/// 128 random bits.
pub type Random = [u8; 16];

/// An entry of a store's list of epochs. It ends where the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpochStart {
    /// The opening of the store.
    pub epoch: u64,
    /// The LSN of its first commit.
    pub first_lsn: u64,
}

/// A commit. The protocol hashes its body, and does not know its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its number.
    pub lsn: u64,
    /// The opening of the store that made it.
    pub epoch: u64,
    /// Nanoseconds since 1970. Times of later commits that are smaller are raised to this one.
    pub time: u64,
    /// Its changes, in canonical bytes: the same commit has the same bytes on every machine.
    pub body: Bytes,
}

/// The commits that come next.
#[derive(Clone, Debug)]
pub enum Next {
    /// The commits with the LSNs that follow, in order; none if there are none yet.
    Commits(Vec<Commit>),
    /// The log no longer has the next commit, or it is too large for one object: only a snapshot leads on.
    Gap,
}

/// A part of a snapshot: some metadata, and up to [`PIECE_BYTES_MAX`] bytes of data. The protocol does not know
/// their meaning. The same contents have the same pieces on every machine: equal data are stored once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Metadata (path, mode, range, …), at most [`ABOUT_BYTES_MAX`] bytes.
    pub about: Bytes,
    /// Data; empty for pieces that have none.
    pub data: Bytes,
}

/// Most bytes of data in a piece.
pub const PIECE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of metadata in a piece.
pub const ABOUT_BYTES_MAX: usize = 64 << 10;

/// The pieces of a snapshot, in order.
pub trait Pieces {
    /// The next piece; `None` behind the last.
    ///
    /// # Errors
    /// The piece cannot be read. The snapshot is worthless then.
    fn next_piece(&mut self) -> Result<Option<Piece>>;
}

/// A snapshot of the live store, held for as long as this value lives.
pub struct Held {
    /// Its last commit, which is durable.
    pub point: Point,
    /// Time of that commit, or of the snapshot.
    pub time: u64,
    /// The contents.
    pub pieces: Box<dyn Pieces>,
}

/// The identity under which a directory ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerId {
    /// Drawn once, and kept.
    pub id: Random,
    /// The place where it was drawn. In another place, in a copy, it is void.
    pub place: Random,
}

/// The identity under which a directory ships, kept in its slot (source) or beside its state (replica).
pub trait Owner {
    /// The owner id that is kept, wherever it was drawn.
    ///
    /// # Errors
    /// It cannot be read.
    fn owner(&mut self) -> Result<Option<OwnerId>>;
    /// Keeps the owner id. It is durable when this returns.
    ///
    /// # Errors
    /// It could not be made durable.
    fn set_owner(&mut self, owner: OwnerId) -> Result<()>;
    /// This place: a hash of the machine's id, and the device and inode of the file with the owner id.
    ///
    /// # Errors
    /// It is not known.
    fn place(&mut self) -> Result<Random>;
    /// This machine and process, for people ("host, process 123"); at most 200 bytes are used.
    fn who(&self) -> String;
}

/// A store that is shipped. Each call looks at the store anew: it may have been put back to an older state, or be
/// another one.
pub trait Source: Owner {
    /// The store's id.
    fn store_id(&self) -> StoreId;
    /// The last durable commit.
    ///
    /// # Errors
    /// The store cannot be read.
    fn durable(&mut self) -> Result<Point>;
    /// Whether the commit is durable in this store: its LSN is at most the last durable one, and belongs to the epoch
    /// by the list of epochs. True for LSN 0.
    ///
    /// # Errors
    /// The store cannot be read.
    fn contains(&mut self, point: Point) -> Result<bool>;
    /// The list of epochs from the one that this LSN belongs to on, as far as it is known.
    ///
    /// # Errors
    /// The store cannot be read.
    fn epochs(&mut self, from_lsn: u64) -> Result<Vec<EpochStart>>;
    /// Commits behind this LSN, in order and without holes. The first one at least, if there is one; more of them only
    /// while their bodies have at most `bytes_max` bytes together. A first one that is larger is a gap. Commits that are
    /// not durable yet may be among them: the protocol leaves them out.
    ///
    /// # Errors
    /// The store cannot be read.
    fn commits(&mut self, behind: u64, bytes_max: u64) -> Result<Next>;
    /// A snapshot at the durable commit.
    ///
    /// # Errors
    /// The store cannot be read.
    fn snapshot(&mut self) -> Result<Held>;
    /// Writes into the slot that everything up to this commit is in the bucket. Need not be durable.
    ///
    /// # Errors
    /// It could not be written.
    fn acknowledge(&mut self, point: Point, hash: Hash) -> Result<()>;
}

/// Where a restored or following directory stands. Kept in its own transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The store's id.
    pub store: StoreId,
    /// The generation of the last object that was applied.
    pub generation: u64,
    /// The last commit.
    pub point: Point,
    /// The hash of the history up to it.
    pub hash: Hash,
    /// The time of it, in nanoseconds since 1970.
    pub time: u64,
    /// The list of epochs, as far as it is known; its last entry is the one of the last commit.
    pub epochs: Vec<EpochStart>,
}

/// A directory that is restored into, or that follows.
pub trait Target {
    /// Where it stands; `None` if nothing was applied yet.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn state(&mut self) -> Result<Option<State>>;
    /// Applies commits, in order, and keeps the state, all in one transaction.
    ///
    /// # Errors
    /// Nothing was changed.
    fn apply(&mut self, commits: &[Commit], state: &State) -> Result<()>;
    /// Replaces everything by a snapshot, and keeps the state, all in one transaction. `None` stands for the empty
    /// store.
    ///
    /// # Errors
    /// Nothing was changed: an error of a piece gets through.
    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<()>;
    /// The contents as pieces, for a snapshot that is made in the bucket.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>>;
}
