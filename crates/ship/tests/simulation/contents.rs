//! The contents of a simulated store: each commit names its epoch, and sets one of three values.

use bytes::Bytes;
use untorn_ship::error::{Error, Result};
use untorn_ship::interface::{Commit, Piece, Pieces, State, Target};

/// The epochs of all commits, from LSN 1 on.
pub type History = Vec<u64>;

/// Contents: its history, from which everything else follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(pub History);

/// The values that commits set in turn.
const VALUES: u64 = 3;

/// A commit's body.
pub fn body(epoch: u64, lsn: u64) -> Bytes {
    format!("{epoch}:{lsn}").into_bytes().into()
}

/// Nanoseconds since 1970.
pub fn time_of(lsn: u64) -> u64 {
    10 * lsn
}

/// A commit.
pub fn commit(epoch: u64, lsn: u64) -> Commit {
    Commit { lsn, epoch, time: time_of(lsn), body: body(epoch, lsn) }
}

impl Contents {
    /// Applies a commit.
    pub fn apply(&mut self, commit: &Commit) -> Result<()> {
        if commit.lsn != self.0.len() as u64 + 1 || commit.body != body(commit.epoch, commit.lsn) {
            return Err(Error::store(format!("#{} does not follow #{}", commit.lsn, self.0.len())));
        }
        self.0.push(commit.epoch);
        Ok(())
    }

    fn value(&self, key: u64) -> Bytes {
        let last = (1..=self.0.len() as u64).rev().find(|lsn| lsn % VALUES == key);
        last.map_or_else(Bytes::new, |lsn| body(self.0[lsn as usize - 1], lsn))
    }

    /// The pieces of a snapshot.
    pub fn pieces(&self) -> Vec<Piece> {
        let history: Vec<u8> = self.0.iter().flat_map(|epoch| epoch.to_le_bytes()).collect();
        let values = (0..VALUES).map(|key| Piece { about: vec![key as u8].into(), data: self.value(key) });
        [Piece { about: history.into(), data: Bytes::new() }].into_iter().chain(values).collect()
    }

    /// From pieces, which must be of one history.
    pub fn of(pieces: Option<&mut dyn Pieces>) -> Result<Contents> {
        let Some(pieces) = pieces else { return Ok(Contents::default()) };
        let mut all = Vec::new();
        while let Some(piece) = pieces.next_piece()? {
            all.push(piece);
        }
        let history = all.first().map(|piece| piece.about.clone()).unwrap_or_default();
        let epochs = history.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let contents = Contents(epochs.collect());
        if contents.pieces() == all { Ok(contents) } else { Err(Error::store("a mixture of histories")) }
    }
}

/// Pieces in memory.
pub struct InMemory(pub std::vec::IntoIter<Piece>);

impl Pieces for InMemory {
    fn next_piece(&mut self) -> Result<Option<Piece>> {
        Ok(self.0.next())
    }
}

/// A directory that is restored into.
#[derive(Clone, Default)]
pub struct Workspace {
    pub state: Option<State>,
    pub contents: Contents,
}

impl Target for Workspace {
    fn state(&mut self) -> Result<Option<State>> {
        Ok(self.state.clone())
    }

    fn apply(&mut self, commits: &[Commit], state: &State) -> Result<()> {
        let mut contents = self.contents.clone();
        commits.iter().try_for_each(|commit| contents.apply(commit))?;
        (self.contents, self.state) = (contents, Some(state.clone()));
        Ok(())
    }

    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<()> {
        (self.contents, self.state) = (Contents::of(pieces)?, Some(state.clone()));
        Ok(())
    }

    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>> {
        Ok(Box::new(InMemory(self.contents.pieces().into_iter())))
    }
}
