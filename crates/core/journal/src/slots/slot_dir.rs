//! The files of a slot, and the slots of a store.

use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{crc64, u32_at, u64_at};
use crate::slots::epochs::Point;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn_os::{Open, Storage, read_full_at};

/// First bytes of an acknowledgement.
pub const ACKNOWLEDGED_MAGIC: &[u8; 8] = b"UNTORN-S";
/// First bytes of the note of a lost slot.
pub const LOST_MAGIC: &[u8; 8] = b"UNTORN-L";
/// First bytes of the cap.
pub const CAP_MAGIC: &[u8; 8] = b"UNTORN-C";
/// Version of the files of a slot.
const SLOT_VERSION: u32 = 1;
/// Length of an acknowledgement.
pub const ACKNOWLEDGED_BYTES: usize = 96;
/// Length of a cap, and of the note of a lost slot.
pub const NUMBER_BYTES: usize = 32;
/// Longest name of a slot.
const NAME_BYTES_MAX: usize = 64;

/// The part of the log that the consumer of a slot does not need any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The last commit that it has.
    pub point: Point,
    /// A hash of the commits to this one, in the consumer's terms.
    pub hash: [u8; 32],
    /// When it got the commit, in nanoseconds since 1970.
    pub time_ns: u64,
    /// A generation, in the consumer's terms.
    pub generation: u64,
}

impl Acknowledged {
    /// The bytes of the file.
    pub fn encode(&self) -> [u8; ACKNOWLEDGED_BYTES] {
        let mut b = [0; ACKNOWLEDGED_BYTES];
        b[..8].copy_from_slice(ACKNOWLEDGED_MAGIC);
        b[8..12].copy_from_slice(&SLOT_VERSION.to_le_bytes());
        b[16..24].copy_from_slice(&self.point.epoch.to_le_bytes());
        b[24..32].copy_from_slice(&self.point.lsn.to_le_bytes());
        b[32..64].copy_from_slice(&self.hash);
        b[64..72].copy_from_slice(&self.time_ns.to_le_bytes());
        b[72..80].copy_from_slice(&self.generation.to_le_bytes());
        let crc = crc64(&b[..ACKNOWLEDGED_BYTES - 8]);
        b[ACKNOWLEDGED_BYTES - 8..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes the file. `None`: it was read in the middle of a write, or torn by a power cut.
    pub fn decode(b: &[u8]) -> Option<Acknowledged> {
        let is_whole = b.len() == ACKNOWLEDGED_BYTES
            && &b[..8] == ACKNOWLEDGED_MAGIC
            && u32_at(b, 8) <= SLOT_VERSION
            && u64_at(b, ACKNOWLEDGED_BYTES - 8) == crc64(&b[..ACKNOWLEDGED_BYTES - 8]);
        is_whole.then(|| Acknowledged {
            point: Point { epoch: u64_at(b, 16), lsn: u64_at(b, 24) },
            hash: b[32..64].try_into().expect("thirty-two bytes"),
            time_ns: u64_at(b, 64),
            generation: u64_at(b, 72),
        })
    }
}

/// The file with one number.
pub fn encode_number(magic: &[u8; 8], number: u64) -> [u8; NUMBER_BYTES] {
    let mut b = [0; NUMBER_BYTES];
    b[..8].copy_from_slice(magic);
    b[8..12].copy_from_slice(&SLOT_VERSION.to_le_bytes());
    b[16..24].copy_from_slice(&number.to_le_bytes());
    let crc = crc64(&b[..NUMBER_BYTES - 8]);
    b[NUMBER_BYTES - 8..].copy_from_slice(&crc.to_le_bytes());
    b
}

fn decode_number(magic: &[u8; 8], b: &[u8]) -> Option<u64> {
    let is_whole =
        b.len() == NUMBER_BYTES && &b[..8] == magic && u64_at(b, NUMBER_BYTES - 8) == crc64(&b[..NUMBER_BYTES - 8]);
    is_whole.then(|| u64_at(b, 16))
}

/// Checks the name of a slot, which is that of a directory.
///
/// # Errors
/// [`Error::Invalid`]
pub fn check_slot_name(name: &str) -> Result<()> {
    let may_be = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let is_right =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(may_be) && !name.starts_with('.');
    match is_right {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{name:?} cannot name a slot: it takes 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`, and does not \
             begin with `.`"
        ))),
    }
}

/// The directory of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDir {
    /// Its name.
    pub name: String,
    /// Its directory, relative to the storage's root.
    pub dir: PathBuf,
}

/// A slot, as its files show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFound {
    /// Its directory.
    pub slot: SlotDir,
    /// How many bytes of the log are kept for it at most.
    pub cap: u64,
    /// The last acknowledgement; `None` if there is none that is whole.
    pub acknowledged: Option<Acknowledged>,
    /// The last LSN up to which log that it needed is gone; 0: none is.
    pub lost: u64,
}

impl SlotFound {
    /// Whether log that it needs is gone.
    pub fn is_lost(&self) -> bool {
        self.lost > self.acknowledged.map_or(0, |acknowledged| acknowledged.point.lsn)
    }
}

impl SlotDir {
    /// The slot with this name.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it cannot be a name.
    pub fn of(store_dir: &StoreDir, name: &str) -> Result<SlotDir> {
        check_slot_name(name)?;
        Ok(SlotDir { name: name.to_owned(), dir: store_dir.slots().join(name) })
    }

    /// The slots of a store, by name.
    pub fn all(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<SlotDir>> {
        let names = match storage.list(&store_dir.slots()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            done => done.context("list", store_dir.slots())?,
        };
        let mut names: Vec<String> = names.iter().filter_map(|name| Some(name.to_str()?.to_owned())).collect();
        names.sort_unstable();
        let slots = names.iter().filter_map(|name| SlotDir::of(store_dir, name).ok());
        Ok(slots.filter(|slot| storage.stat(&slot.cap_file()).is_ok()).collect())
    }

    /// The file with its cap, which makes the directory a slot.
    pub fn cap_file(&self) -> PathBuf {
        self.dir.join("slot")
    }

    /// The file with the last acknowledgement.
    pub fn acknowledged_file(&self) -> PathBuf {
        self.dir.join("acknowledged")
    }

    /// The file that names the last LSN that is gone.
    pub fn lost_file(&self) -> PathBuf {
        self.dir.join("lost")
    }

    /// The file that a consumer locks.
    pub fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// The slot, as its files show it; `None` if it was removed.
    pub fn look(&self, storage: &dyn Storage) -> Result<Option<SlotFound>> {
        let Some(cap) = read(storage, &self.cap_file(), NUMBER_BYTES)? else { return Ok(None) };
        let acknowledged = read(storage, &self.acknowledged_file(), ACKNOWLEDGED_BYTES)?;
        let lost = read(storage, &self.lost_file(), NUMBER_BYTES)?;
        Ok(Some(SlotFound {
            slot: self.clone(),
            cap: decode_number(CAP_MAGIC, &cap).unwrap_or(0),
            acknowledged: acknowledged.and_then(|b| Acknowledged::decode(&b)),
            lost: lost.and_then(|b| decode_number(LOST_MAGIC, &b)).unwrap_or(0),
        }))
    }
}

/// The first bytes of a file, or `None` if there is none.
fn read(storage: &dyn Storage, path: &Path, bytes: usize) -> Result<Option<Vec<u8>>> {
    let file = match storage.open(path, Open::READ) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        done => done.context("open", path)?,
    };
    let mut b = vec![0; bytes];
    let n = read_full_at(&*file, &mut b, 0).context("read", path)?;
    b.truncate(n);
    Ok(Some(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_round_trip_and_every_flipped_bit_is_seen() {
        let point = Point { epoch: 5, lsn: 6 };
        let acknowledged = Acknowledged { point, hash: [7; 32], time_ns: 8, generation: 9 };
        let good = acknowledged.encode();
        assert_eq!(Acknowledged::decode(&good), Some(acknowledged));
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 1 << (at % 8);
            assert_eq!(Acknowledged::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Acknowledged::decode(&[]), None);
        let number = encode_number(LOST_MAGIC, 11);
        assert_eq!((decode_number(LOST_MAGIC, &number), decode_number(CAP_MAGIC, &number)), (Some(11), None));
    }

    #[test]
    fn names_of_slots() {
        for good in ["backup", "a.b-c_D9"] {
            check_slot_name(good).unwrap();
        }
        for bad in ["", ".", "..", ".new", "a/b", "a b", &"a".repeat(65)] {
            assert!(check_slot_name(bad).is_err(), "{bad:?}");
        }
    }
}
