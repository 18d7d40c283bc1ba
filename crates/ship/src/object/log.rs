//! Objects of the log: commits, and ends of generations.

use crate::error::{Error, Result};
use crate::interface::{Commit, EpochStart, Hash, Point, Random, StoreId};
use crate::object::bytes::{Reader, Writer, compress, decompress};
use crate::object::{hash, names};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"UNTORNLG";

/// Most bytes of the bodies in an object, together.
pub const BODIES_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of an object's contents before compression.
const PLAIN_BYTES_MAX: u64 = BODIES_BYTES_MAX + (16 << 20);

/// Most bytes of a log object.
pub const OBJECT_BYTES_MAX: u64 = PLAIN_BYTES_MAX + (4 << 20);

/// Most entries of a list of epochs in an object; older ones are left out.
pub const EPOCHS_MAX: usize = 4096;

/// Bytes of a commit in an object besides its body.
const COMMIT_HEAD_BYTES: usize = 32;

/// The reason of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The owner started its shipper.
    Start,
    /// Another machine goes on.
    TakeOver,
    /// Commits are missing in the owner's log.
    Gap,
    /// A person began another history.
    Fork,
}

/// The end of a generation: the next one begins at its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The last commit before the next generation.
    pub base: Point,
    /// The hash there.
    pub base_hash: Hash,
    /// The reason.
    pub reason: Reason,
    /// The number of the snapshot that the next generation begins with; 0 if it goes on where this one ends.
    pub snapshot: u64,
    /// Machine and process, for people.
    pub who: String,
}

/// The contents of a log object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Commits, in order.
    Commits(Vec<Commit>),
    /// An end.
    End(End),
}

/// An object of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogObject {
    /// The store.
    pub store: StoreId,
    /// The generation in its name.
    pub generation: u64,
    /// The LSN in its name.
    pub first_lsn: u64,
    /// The epochs of its commits; of an end with a snapshot, those that the snapshot knows.
    pub epochs: Vec<EpochStart>,
    /// The hash before the first commit.
    pub hash_before: Hash,
    /// The hash of the last commit, or of an end's base.
    pub hash: Hash,
    /// The random number of the attempt to write it.
    pub nonce: Random,
    /// Owner id of the writer.
    pub owner: Random,
    /// Time of the first commit.
    pub time_first: u64,
    /// Time of the last commit.
    pub time: u64,
    /// The contents.
    pub body: Body,
}

impl LogObject {
    /// The last LSN; of an end, the one before it.
    pub fn last_lsn(&self) -> u64 {
        match &self.body {
            Body::Commits(commits) => commits.last().map_or(self.first_lsn, |last| last.lsn),
            Body::End(_) => self.first_lsn - 1,
        }
    }

    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let (kind, plain) = match &self.body {
            Body::Commits(commits) => (1, plain(commits)),
            Body::End(_) => (2, Vec::new()),
        };
        let stored = if plain.is_empty() { Vec::new() } else { compress(&plain) };
        let writer = Writer::new(MAGIC).u32(kind).put(&self.store).u64(self.generation).u64(self.first_lsn);
        let writer = writer.u64(self.last_lsn()).put(&self.hash_before).put(&self.hash).put(&self.nonce);
        let writer = writer.put(&self.owner).u64(self.time_first).u64(self.time);
        let writer = writer.u64(stored.len() as u64).u64(plain.len() as u64).put(&hash::of(&stored));
        let writer = write_epochs(writer, &self.epochs);
        let writer = match &self.body {
            Body::Commits(_) => writer,
            Body::End(end) => writer
                .point(end.base)
                .put(&end.base_hash)
                .u32(end.reason as u32)
                .u64(end.snapshot)
                .sized(end.who.as_bytes()),
        };
        let head = writer.sealed();
        let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&stored);
        bytes.into()
    }

    /// Reads an object of this name, and checks everything that it says about itself.
    pub fn decode(name: &str, store: Option<&StoreId>, bytes: &[u8]) -> Result<LogObject> {
        let mut outer = Reader::bare(name, bytes);
        let head = outer.sized(1 << 20)?;
        let stored = &bytes[4 + head.len()..];
        let mut reader = Reader::sealed(name, MAGIC, head)?;
        let kind = reader.u32()?;
        let found: StoreId = reader.random()?;
        if store.is_some_and(|store| *store != found) {
            return Err(Error::OtherStore { found: names::hex(&found) });
        }
        let (generation, first_lsn, last_lsn) = (reader.u64()?, reader.u64()?, reader.u64()?);
        if names::parse_log(name) != Some((generation, first_lsn)) || first_lsn == 0 {
            return reader.fail("it is a copy of an object with another name");
        }
        let (hash_before, hash) = (reader.hash()?, reader.hash()?);
        let (nonce, owner) = (reader.random()?, reader.random()?);
        let (time_first, time) = (reader.u64()?, reader.u64()?);
        let (stored_bytes, plain_bytes, body_hash) = (reader.u64()?, reader.u64()?, reader.hash()?);
        if stored_bytes != stored.len() as u64 || plain_bytes > PLAIN_BYTES_MAX || hash::of(stored) != body_hash {
            return reader.fail("its contents are not those that it was made with");
        }
        let epochs = read_epochs(&mut reader)?;
        let body = match kind {
            1 => Body::Commits(commits(name, &decompress(name, stored, plain_bytes)?)?),
            2 if plain_bytes == 0 && stored.is_empty() => Body::End(read_end(&mut reader)?),
            _ => return reader.fail("an unknown kind"),
        };
        reader.end()?;
        let object = LogObject {
            store: found,
            generation,
            first_lsn,
            epochs,
            hash_before,
            hash,
            nonce,
            owner,
            time_first,
            time,
            body,
        };
        object.check(name, last_lsn)?;
        Ok(object)
    }

    fn check(&self, name: &str, last_lsn: u64) -> Result<()> {
        let reader = Reader::bare(name, &[]);
        if self.last_lsn() != last_lsn {
            return reader.fail("another last LSN");
        }
        let commits = match &self.body {
            Body::End(end) if end.base_hash != self.hash || (end.snapshot == 0 && end.base.lsn != last_lsn) => {
                return reader.fail("an end that does not fit to its base");
            }
            Body::End(_) => return Ok(()),
            Body::Commits(commits) => commits,
        };
        let Some((first, last)) = commits.first().zip(commits.last()) else { return reader.fail("no commits") };
        let is_dense = commits.iter().enumerate().all(|(n, commit)| commit.lsn == self.first_lsn + n as u64);
        let grows = commits.windows(2).all(|pair| pair[0].time <= pair[1].time);
        if !is_dense || !grows || (first.time, last.time) != (self.time_first, self.time) {
            return reader.fail("its commits are not in order");
        }
        if self.epochs != epochs_of(commits) {
            return reader.fail("its epochs are not those of its commits");
        }
        let made = commits.iter().fold(self.hash_before, |before, commit| hash::after(&before, commit));
        if made == self.hash { Ok(()) } else { reader.fail("another hash of the history") }
    }
}

/// Writes a list of epochs, the newest of them.
pub fn write_epochs(writer: Writer, epochs: &[EpochStart]) -> Writer {
    let newest = &epochs[epochs.len().saturating_sub(EPOCHS_MAX)..];
    writer.list(newest, |writer, start| writer.u64(start.epoch).u64(start.first_lsn))
}

/// Reads a list of epochs, which must be in order. An epoch without commits begins where the next one does.
pub fn read_epochs(reader: &mut Reader<'_>) -> Result<Vec<EpochStart>> {
    let epochs = reader.list(16, |reader| Ok(EpochStart { epoch: reader.u64()?, first_lsn: reader.u64()? }))?;
    let is_sorted = epochs.is_sorted_by_key(|start| start.first_lsn);
    if is_sorted && epochs.len() <= EPOCHS_MAX { Ok(epochs) } else { reader.fail("a list of epochs out of order") }
}

/// The epochs of commits.
pub fn epochs_of(commits: &[Commit]) -> Vec<EpochStart> {
    let mut epochs: Vec<EpochStart> = Vec::new();
    for commit in commits {
        if epochs.last().is_none_or(|last| last.epoch != commit.epoch) {
            epochs.push(EpochStart { epoch: commit.epoch, first_lsn: commit.lsn });
        }
    }
    let cut = epochs.len().saturating_sub(EPOCHS_MAX);
    epochs.split_off(cut)
}

fn plain(commits: &[Commit]) -> Vec<u8> {
    let each = |writer: Writer, commit: &Commit| {
        let writer = writer.u64(commit.lsn).u64(commit.epoch).u64(commit.time);
        writer.u64(commit.body.len() as u64).put(&commit.body)
    };
    commits.iter().fold(Writer::empty(), each).bare()
}

fn commits(name: &str, plain: &[u8]) -> Result<Vec<Commit>> {
    let mut reader = Reader::bare(name, plain);
    let mut commits = Vec::new();
    while !reader.is_empty() {
        let (lsn, epoch, time, length) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        commits.push(Commit { lsn, epoch, time, body: Bytes::copy_from_slice(reader.take(length)?) });
    }
    debug_assert!(commits.len() * COMMIT_HEAD_BYTES <= plain.len());
    Ok(commits)
}

fn read_end(reader: &mut Reader<'_>) -> Result<End> {
    let (base, base_hash) = (reader.point()?, reader.hash()?);
    let reason = match reader.u32()? {
        0 => Reason::Start,
        1 => Reason::TakeOver,
        2 => Reason::Gap,
        3 => Reason::Fork,
        _ => return reader.fail("an end for an unknown reason"),
    };
    Ok(End { base, base_hash, reason, snapshot: reader.u64()?, who: reader.who()? })
}
