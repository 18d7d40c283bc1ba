//! Commits by epoch and LSN, which name them beyond one store.

use crate::reader::{EpochStart, Follow, Point, Reader};
use untorn_journal::format::StoreId;
use untorn_journal::slots::epochs::Epochs;
use untorn_journal::{Error, Result};

impl Reader {
    /// LSN of the last durable commit, the identity of the store, and its epochs as far as they are known.
    fn known_epochs(&self) -> Result<(u64, StoreId, Epochs)> {
        let files = self.snapshot()?.files;
        let (store, epochs) = files.epochs().map_err(|e| self.shared.error(e))?;
        Ok((files.lsn(), store, epochs))
    }

    /// The identity of the store, drawn at random when it was made. A copy has the same.
    pub fn store_id(&self) -> Result<[u8; 16]> {
        Ok(self.known_epochs()?.1)
    }

    /// The last durable commit. The epoch is 0 if it is not known, as in a store without commits.
    pub fn last_commit(&self) -> Result<Point> {
        let (lsn, _, epochs) = self.known_epochs()?;
        Ok(Point { epoch: epochs.of(lsn).unwrap_or(0), lsn })
    }

    /// Whether the store holds this commit, durably. A copy of the store, or a store that was put back to an older state,
    /// may have another commit of the same LSN.
    pub fn contains(&self, point: Point) -> Result<bool> {
        let (lsn, _, epochs) = self.known_epochs()?;
        Ok(point.lsn <= lsn && (epochs.contains(point) || point == Point::default()))
    }

    /// The epochs of the commits from this LSN on, oldest first, as far as they are known.
    pub fn epochs(&self, from_lsn: u64) -> Result<Vec<EpochStart>> {
        Ok(self.known_epochs()?.2.from(from_lsn))
    }

    /// Follows the commits after this one, like [`Reader::follow_from`].
    ///
    /// # Errors
    /// [`Error::Conflict`] if the store does not hold this commit.
    pub fn follow_from_point(&self, point: Point) -> Result<Follow> {
        match self.contains(point)? {
            true => self.follow_from(point.lsn),
            false => Err(Error::Conflict {
                path: self.path().to_owned(),
                detail: format!(
                    "it does not hold commit {point}: it was put back to an older state, or went on from a copy"
                ),
            }),
        }
    }
}
