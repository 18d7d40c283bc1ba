//! The list of a store's epochs, each with the LSN of its first record.
//!
//! An epoch is random and belongs to one opening. So two stores that both hold commit *n* of epoch *e* have the same
//! commits up to *n*, although one is a copy of the other or was put back to an older state.
//!
//! The owner writes the list whole, under another name, and durably before the first record of its epoch. A store that
//! never had a slot has no list.

use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{Header, ListedEpoch, StoreId, crc64, u32_at, u64_at};
use crate::invariant;
use crate::sync_point;
use std::io::ErrorKind;
use std::path::Path;
use untorn_os::{Open, Storage, holds, read_full_at, shown_by, write_all_at};

/// First bytes of the list.
pub const EPOCHS_MAGIC: &[u8; 8] = b"UNTORN-E";
/// Version of the list.
const EPOCHS_VERSION: u32 = 1;
/// Bytes before the entries.
pub const EPOCHS_HEAD_BYTES: usize = 32;
/// Bytes of an entry.
pub const EPOCH_START_BYTES: usize = 16;
/// When the list has more entries, the older half is dropped.
pub const EPOCH_STARTS_MAX: usize = 8192;

/// Stands for epochs that are not known.
const UNKNOWN: u64 = 0;

/// The beginning of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct EpochStart {
    /// The epoch, a random number; 0: it is not known to which epochs the commits from `first_lsn` on belong.
    pub epoch: u64,
    /// LSN of its first record.
    pub first_lsn: u64,
}

/// A commit, named beyond one store: two stores that hold the same one have the same commits up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Point {
    /// The epoch in which it was made.
    pub epoch: u64,
    /// Its LSN.
    pub lsn: u64,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of epoch {:016x}", self.lsn, self.epoch)
    }
}

/// The epochs of a store, in order. An epoch ends where the next one begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(Vec<EpochStart>);

impl Epochs {
    /// The list with these entries, oldest first.
    ///
    /// # Errors
    /// [`Error::Invalid`]: they are not in order.
    pub fn new(entries: &[EpochStart]) -> Result<Epochs> {
        match entries.is_sorted_by_key(|entry| entry.first_lsn) {
            true => Ok(Epochs(entries.to_vec())),
            false => Err(Error::invalid("the epochs are not in the order of their first commits")),
        }
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[EpochStart] {
        &self.0
    }

    /// Whether this epoch is listed.
    pub fn has(&self, epoch: u64) -> bool {
        self.0.iter().any(|entry| entry.epoch == epoch)
    }

    /// The epoch of a commit, or `None` if it is not known. The state from which the first known epoch began counts as
    /// the state of that epoch.
    pub fn of(&self, lsn: u64) -> Option<u64> {
        let behind = self.0.partition_point(|entry| entry.first_lsn <= lsn);
        let entry = match behind {
            0 => self.0.first().filter(|first| first.first_lsn == lsn + 1)?,
            n => &self.0[n - 1],
        };
        (entry.epoch != UNKNOWN).then_some(entry.epoch)
    }

    /// Whether the commit of this LSN is of this epoch, or is the one behind which the epoch began.
    pub fn contains(&self, point: Point) -> bool {
        let next = |n: usize| self.0.get(n + 1).map_or(u64::MAX, |next| next.first_lsn);
        let is_of = |(n, entry): (usize, &EpochStart)| {
            entry.epoch == point.epoch && entry.first_lsn <= point.lsn.saturating_add(1) && point.lsn < next(n)
        };
        point.epoch != UNKNOWN && self.0.iter().enumerate().any(is_of)
    }

    /// The entries from that of this commit on.
    pub fn from(&self, lsn: u64) -> Vec<EpochStart> {
        let behind = self.0.partition_point(|entry| entry.first_lsn <= lsn);
        self.0[behind.saturating_sub(1)..].to_vec()
    }

    /// Drops the epochs that began behind the last commit: a copy that was made while the store was in use can have a
    /// list that is newer than its journal. `header`: the epoch in the journal's header, which stays.
    pub fn cut(&mut self, last_lsn: u64, header: u64) {
        if holds(invariant::EPOCHS_CUT) {
            let may_stay = |entry: &EpochStart| {
                entry.first_lsn <= last_lsn || entry.epoch == header && entry.first_lsn == last_lsn + 1
            };
            self.0.retain(may_stay);
        }
    }

    /// Adds epochs that the journal names, as far as the list lacks them. If it lacks any, it is older than the journal,
    /// as in a copy, or was not written: then it is not known how far its last epoch goes.
    fn add_found(&mut self, found: impl IntoIterator<Item = EpochStart>) {
        let mut may_lack = !self.0.is_empty();
        for start in found {
            if self.has(start.epoch) {
                may_lack = false;
                continue;
            }
            if std::mem::take(&mut may_lack)
                && let Some(last) = self.0.last_mut()
                && holds(invariant::EPOCHS_GAP_KNOWN)
            {
                last.epoch = UNKNOWN;
            }
            self.push(start);
        }
    }

    /// Adds the epochs of a journal: those of its records, and that of its header.
    pub fn add_journal(&mut self, header: &Header, accepted: &[ListedEpoch]) {
        let start = |listed: &ListedEpoch| EpochStart { epoch: listed.epoch, first_lsn: listed.first_lsn };
        let mut found: Vec<EpochStart> = header.listed.iter().map(start).collect();
        if header.epoch != UNKNOWN && !found.iter().any(|one| one.epoch == header.epoch) {
            // Without listed epochs, everything to the checkpoint may be of this one.
            let first_lsn = if found.is_empty() { header.checkpoint_lsn } else { header.open_lsn };
            found.push(EpochStart { epoch: header.epoch, first_lsn });
        }
        // The header of an owner that was killed may be of an earlier epoch than its records.
        let open = accepted.iter().filter(|one| one.first_lsn >= header.open_lsn && one.epoch != header.epoch);
        found.extend(open.map(start));
        self.add_found(found);
    }

    /// Adds an epoch that begins with this record, in place of those that began there or later and have no records.
    pub fn push(&mut self, start: EpochStart) {
        self.0.retain(|entry| entry.first_lsn <= start.first_lsn);
        self.0.push(start);
        if self.0.len() > EPOCH_STARTS_MAX {
            self.0.drain(..EPOCH_STARTS_MAX / 2);
        }
    }

    /// The bytes of the list.
    pub fn encode(&self, store: &StoreId) -> Vec<u8> {
        let mut b = Vec::with_capacity(EPOCHS_HEAD_BYTES + EPOCH_START_BYTES * self.0.len() + 8);
        b.extend(EPOCHS_MAGIC);
        b.extend(EPOCHS_VERSION.to_le_bytes());
        b.extend((self.0.len() as u32).to_le_bytes());
        b.extend(store);
        for entry in &self.0 {
            b.extend(entry.epoch.to_le_bytes());
            b.extend(entry.first_lsn.to_le_bytes());
        }
        b.extend(crc64(&b).to_le_bytes());
        b
    }

    /// Decodes a list. `None`: it is of another store.
    fn decode(b: &[u8], store: &StoreId, path: &Path) -> Result<Option<Epochs>> {
        let damaged = || Error::corrupt(path, "the list of epochs has a wrong checksum");
        if b.len() < EPOCHS_HEAD_BYTES + 8 || &b[..8] != EPOCHS_MAGIC {
            return Err(damaged());
        }
        if u32_at(b, 8) > EPOCHS_VERSION {
            return Err(Error::NewerVersion { path: path.to_owned(), found: u32_at(b, 8), supported: EPOCHS_VERSION });
        }
        let end = b.len() - 8;
        if u64_at(b, end) != crc64(&b[..end]) || end - EPOCHS_HEAD_BYTES != EPOCH_START_BYTES * u32_at(b, 12) as usize {
            return Err(damaged());
        }
        let entries = b[EPOCHS_HEAD_BYTES..end].chunks(EPOCH_START_BYTES);
        let entries: Vec<EpochStart> =
            entries.map(|entry| EpochStart { epoch: u64_at(entry, 0), first_lsn: u64_at(entry, 8) }).collect();
        (b[16..32] == *store).then(|| Epochs::new(&entries)).transpose().map_err(|_| damaged())
    }

    /// The list that the file of this store holds; `None` without a file.
    pub fn read(storage: &dyn Storage, store_dir: &StoreDir, store: &StoreId) -> Result<Option<Epochs>> {
        let path = store_dir.epochs();
        let file = match storage.open(&path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let most = EPOCHS_HEAD_BYTES + EPOCH_START_BYTES * EPOCH_STARTS_MAX + 8;
        let mut bytes = vec![0; (file.meta().context("look at", &path)?.size as usize).min(most + 1)];
        let n = read_full_at(&*file, &mut bytes, 0).context("read", &path)?;
        Epochs::decode(&bytes[..n], store, &path)
    }

    /// Writes the list, durably, in place of the one before.
    pub fn write(&self, storage: &dyn Storage, store_dir: &StoreDir, store: &StoreId, dir_mode: u32) -> Result<()> {
        let (path, new) = (store_dir.epochs(), store_dir.epochs_new());
        match storage.unlink(&new) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("remove", &new, e)),
            _ => {}
        }
        let file = storage.open(&new, Open::create(0o600 | shown_by(dir_mode))).context("create", &new)?;
        write_all_at(&*file, &self.encode(store), 0).context("write", &new)?;
        file.sync_all(sync_point::EPOCHS).context("flush", &new)?;
        storage.rename(&new, &path, true).context("rename to", &path)?;
        storage.sync_dir(&store_dir.dir, sync_point::EPOCHS_NAME).context("flush", &store_dir.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Key, VERSION};

    fn list(entries: &[(u64, u64)]) -> Epochs {
        Epochs(entries.iter().map(|(epoch, first_lsn)| EpochStart { epoch: *epoch, first_lsn: *first_lsn }).collect())
    }

    fn header(epoch: u64, checkpoint_lsn: u64, open_lsn: u64, listed: &[ListedEpoch]) -> Header {
        Header {
            version: VERSION,
            store: [7; 16],
            generation: 9,
            checkpoint_lsn,
            listed: listed.to_vec(),
            open_lsn,
            link: 1,
            clean: false,
            start_segment: 0,
            start_crc: 0,
            start_blocks: 0,
            boot: None,
            epoch,
            lengths: Vec::new(),
            unclosed: Vec::new(),
            marks_left: false,
            key: Key(1),
            by_attribute: false,
        }
    }

    fn listed(epoch: u64, first_lsn: u64, last_lsn: u64) -> ListedEpoch {
        ListedEpoch { epoch, first_lsn, last_lsn, last_crc: 0 }
    }

    #[test]
    fn a_commit_is_of_the_epoch_that_began_last() {
        let epochs = list(&[(5, 10), (6, 20), (0, 30), (7, 40)]);
        let of = |lsn| epochs.of(lsn);
        assert_eq!([of(8), of(9), of(10), of(19), of(20)], [None, Some(5), Some(5), Some(5), Some(6)]);
        assert_eq!([of(29), of(30), of(39), of(40), of(1000)], [Some(6), None, None, Some(7), Some(7)]);
        let holds = |epoch, lsn| epochs.contains(Point { epoch, lsn });
        assert!(holds(5, 19) && !holds(5, 20) && !holds(5, 8) && holds(6, 29) && !holds(6, 30));
        // The state behind which an epoch began is one of it, too.
        assert!(holds(5, 9) && holds(6, 19) && !holds(6, 18) && holds(7, 39) && !holds(0, 35) && !holds(8, 50));
        assert_eq!(epochs.from(25).len(), 3);
        assert_eq!(epochs.from(1).len(), 4);
    }

    #[test]
    fn a_list_that_is_newer_than_the_journal_is_cut() {
        let mut epochs = list(&[(5, 1), (6, 20), (7, 40)]);
        epochs.cut(30, 6);
        assert_eq!(epochs, list(&[(5, 1), (6, 20)]));
        epochs.cut(19, 6);
        assert_eq!(epochs, list(&[(5, 1), (6, 20)]), "the epoch in the header stays: its owner may have named it");
        epochs.cut(19, 5);
        assert_eq!(epochs, list(&[(5, 1)]));
    }

    #[test]
    fn the_journal_adds_epochs_that_the_list_lacks() {
        let mut whole = list(&[(5, 1), (6, 20)]);
        whole.add_journal(&header(6, 30, 31, &[]), &[listed(6, 31, 33)]);
        assert_eq!(whole, list(&[(5, 1), (6, 20)]));
        // Without a list, the state of the header is one of its epoch.
        let mut none = Epochs::default();
        none.add_journal(&header(6, 30, 31, &[]), &[]);
        assert_eq!(none, list(&[(6, 30)]));
        let mut none = Epochs::default();
        none.add_journal(&header(6, 30, 40, &[listed(4, 25, 33), listed(5, 34, 39)]), &[listed(6, 40, 41)]);
        assert_eq!(none, list(&[(4, 25), (5, 34), (6, 40)]));
        // The records of an owner whose header a power cut took.
        let mut none = Epochs::default();
        none.add_journal(&header(6, 30, 31, &[]), &[listed(8, 31, 33)]);
        assert_eq!(none, list(&[(6, 30), (8, 31)]));
        // A list that is older than the journal says nothing about the end of its last epoch.
        let mut older = list(&[(5, 1), (6, 20)]);
        older.add_journal(&header(8, 60, 61, &[]), &[]);
        assert_eq!(older, list(&[(5, 1), (0, 20), (8, 60)]));
    }

    #[test]
    fn a_list_round_trip_and_every_flipped_bit_is_seen() {
        let (store, path) = ([7; 16], Path::new("epochs"));
        let epochs = list(&[(5, 1), (6, 20)]);
        let good = epochs.encode(&store);
        assert_eq!(Epochs::decode(&good, &store, path).unwrap(), Some(epochs));
        assert_eq!(Epochs::decode(&good, &[8; 16], path).unwrap(), None, "it is of another store");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Epochs::decode(&bad, &store, path).is_err(), "byte {at}");
            assert!(Epochs::decode(&good[..at], &store, path).is_err(), "cut at {at}");
        }
    }
}
