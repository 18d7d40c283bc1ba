//! Quarantined journals: the list of files that still wait for commits in such a journal.

use crate::error::{Context, Error, Result};
use crate::format::{VERSION, crc64, u32_at, u64_at};
use crate::record::check_path;
use crate::sync_point;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn_os::{Open, Storage, read_full_at, write_all_at};

const MAGIC: &[u8; 8] = b"UNTORN-Q";
const NAME: &str = "pending-files";
/// The list while it is being written.
pub(crate) const NAME_NEW: &str = "pending-files.new";
/// Bytes before the list of files.
const HEAD_BYTES: usize = 48;

/// The list `pending-files` in a journal that is quarantined, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingFiles {
    /// LSN of the last commit of this journal.
    pub last_lsn: u64,
    /// Checksum of that commit's record.
    pub last_crc: u64,
    /// The epoch in which the journal was written.
    pub epoch: u64,
    /// Files that still wait for commits in this journal.
    pub files: BTreeSet<u64>,
    /// Directories that still wait for commits in this journal.
    pub dirs: BTreeSet<PathBuf>,
}

impl PendingFiles {
    fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(HEAD_BYTES + 8 * self.files.len() + 8);
        b.extend(MAGIC);
        b.extend(VERSION.to_le_bytes());
        let paths = self.dirs.iter().flat_map(|dir| dir.as_os_str().as_bytes().iter().copied().chain([0]));
        let paths: Vec<u8> = paths.collect();
        b.extend((paths.len() as u32).to_le_bytes());
        b.extend(self.last_lsn.to_le_bytes());
        b.extend(self.last_crc.to_le_bytes());
        b.extend(self.epoch.to_le_bytes());
        b.extend((self.files.len() as u64).to_le_bytes());
        for id in &self.files {
            b.extend(id.to_le_bytes());
        }
        b.extend(paths);
        let crc = crc64(&b);
        b.extend(crc.to_le_bytes());
        b
    }

    /// Reads the list's bytes.
    pub fn decode(b: &[u8], path: &Path) -> Result<PendingFiles> {
        let bad = |what: &str| Err(Error::corrupt(path, what));
        if b.len() < HEAD_BYTES + 8 || &b[..8] != MAGIC {
            return bad("it is not a list of files");
        }
        let body = &b[..b.len() - 8];
        if crc64(body) != u64_at(b, b.len() - 8) {
            return bad("its checksum is wrong");
        }
        let version = u32_at(b, 8);
        if version > VERSION {
            return Err(Error::NewerVersion { path: path.to_owned(), found: version, supported: VERSION });
        }
        let dir_bytes = u32_at(b, 12) as usize;
        let Some((ids, paths)) =
            body[HEAD_BYTES..].split_at_checked((body.len() - HEAD_BYTES).saturating_sub(dir_bytes))
        else {
            return bad("its length is wrong");
        };
        if ids.len() as u64 != u64_at(b, 40).saturating_mul(8) || paths.len() != dir_bytes {
            return bad("its length is wrong");
        }
        let paths = paths.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let dirs: BTreeSet<PathBuf> = paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
        if dirs.iter().any(|dir| check_path(dir).is_err()) {
            return bad("a directory in it is outside of the store");
        }
        Ok(PendingFiles {
            last_lsn: u64_at(b, 16),
            last_crc: u64_at(b, 24),
            epoch: u64_at(b, 32),
            files: ids.chunks(8).map(|c| u64_at(c, 0)).collect(),
            dirs,
        })
    }

    /// Writes the list into a journal, replacing an older one whole.
    pub fn write(&self, storage: &dyn Storage, journal: &Path) -> Result<()> {
        let (new, path) = (journal.join(NAME_NEW), journal.join(NAME));
        match storage.unlink(&new) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("remove", &new, e)),
            _ => {}
        }
        let file = storage.open(&new, Open::create(0o600)).context("create", &new)?;
        write_all_at(&*file, &self.encode(), 0).context("write", &new)?;
        file.sync_all(sync_point::QUARANTINE_CONTENTS).context("flush", &new)?;
        storage.rename(&new, &path, true).context("rename to", &path)?;
        storage.sync_dir(journal, sync_point::QUARANTINE_CONTENTS).context("flush", journal)
    }

    /// Removes the list, durably: no file waits for this journal any more, whatever is left of it.
    pub fn remove(storage: &dyn Storage, journal: &Path) -> Result<()> {
        let path = journal.join(NAME);
        storage.unlink(&path).context("remove", &path)?;
        storage.sync_dir(journal, sync_point::QUARANTINE_CONTENTS).context("flush", journal)
    }

    /// Reads the list in a journal; `None`: this journal is not quarantined.
    pub fn read(storage: &dyn Storage, journal: &Path) -> Result<Option<PendingFiles>> {
        let path = journal.join(NAME);
        let file = match storage.open(&path, Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let size = file.meta().context("stat", &path)?.size;
        if size > 1 << 30 {
            return Err(Error::corrupt(path, "it is too long"));
        }
        let mut b = vec![0; size as usize];
        read_full_at(&*file, &mut b, 0).context("read", &path)?;
        PendingFiles::decode(&b, &path).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let pending = PendingFiles {
            last_lsn: 5,
            last_crc: 6,
            epoch: 7,
            files: [1, 9].into(),
            dirs: ["d".into(), "d/e".into()].into(),
        };
        let b = pending.encode();
        assert_eq!(PendingFiles::decode(&b, Path::new("pending-files")).unwrap(), pending);
        for at in 0..b.len() {
            let mut bad = b.clone();
            bad[at] ^= 4;
            assert!(PendingFiles::decode(&bad, Path::new("pending-files")).is_err(), "byte {at}");
            assert!(PendingFiles::decode(&b[..at], Path::new("pending-files")).is_err());
        }
    }
}
