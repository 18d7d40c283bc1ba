//! Quarantined journals: the list of files that still wait for commits in such a journal.

use crate::commits::record::check_path;
use crate::directories::spare::{open_or_create, set_apart};
use crate::error::{Context, Error, Result};
use crate::format::{VERSION, crc64, u32_at, u64_at};
use crate::sync_point;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn_os::{Open, Storage, read_full_at, write_all_at};

const MAGIC: &[u8; 8] = b"UNTORN-Q";
const NAME: &str = "pending-files";
/// The list while it is being written.
pub(crate) const NAME_NEW: &str = "pending-files.new";
/// Reserved space for a list.
pub(crate) const NAME_SPARE: &str = "pending-files.spare";
/// Bytes reserved for a list: a thousand files, or some dozens with reasons.
const SPARE_BYTES: u64 = 8 << 10;
/// Most bytes of a reason in the list.
const REASON_BYTES_MAX: usize = 512;
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
    /// Files that still wait for commits in this journal, and why. The reasons are empty if the list had no room for
    /// them.
    pub files: BTreeMap<u64, String>,
    /// Directories that still wait for commits in this journal, and why. A directory without a reason is only needed
    /// for a file in it.
    pub dirs: BTreeMap<PathBuf, String>,
}

impl PendingFiles {
    /// The identities of the files.
    pub fn file_ids(&self) -> BTreeSet<u64> {
        self.files.keys().copied().collect()
    }

    /// The paths of the directories.
    pub fn dir_paths(&self) -> BTreeSet<PathBuf> {
        self.dirs.keys().cloned().collect()
    }

    fn encode(&self, with_reasons: bool) -> Vec<u8> {
        let mut b = Vec::with_capacity(HEAD_BYTES + 8 * self.files.len() + 8);
        b.extend(MAGIC);
        b.extend(VERSION.to_le_bytes());
        let paths = self.dirs.keys().flat_map(|dir| dir.as_os_str().as_bytes().iter().copied().chain([0]));
        let paths: Vec<u8> = paths.collect();
        b.extend((paths.len() as u32).to_le_bytes());
        b.extend(self.last_lsn.to_le_bytes());
        b.extend(self.last_crc.to_le_bytes());
        b.extend(self.epoch.to_le_bytes());
        b.extend((self.files.len() as u32).to_le_bytes());
        let reasons = self.files.values().chain(self.dirs.values()).filter(|_| with_reasons);
        let reasons: Vec<u8> = reasons.flat_map(|reason| cut(reason).bytes().chain([0])).collect();
        b.extend((reasons.len() as u32).to_le_bytes());
        debug_assert_eq!(b.len(), HEAD_BYTES, "the head of a list");
        for id in self.files.keys() {
            b.extend(id.to_le_bytes());
        }
        b.extend(paths);
        b.extend(reasons);
        let crc = crc64(&b);
        b.extend(crc.to_le_bytes());
        b
    }

    /// Decodes a list.
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
        let (dir_bytes, count, reason_bytes) = (u32_at(b, 12), u32_at(b, 40), u32_at(b, 44));
        let parts = body[HEAD_BYTES..].split_at_checked((count as usize).saturating_mul(8));
        let Some((ids, (paths, reasons))) =
            parts.and_then(|(ids, rest)| Some((ids, rest.split_at_checked(dir_bytes as usize)?)))
        else {
            return bad("its length is wrong");
        };
        if reasons.len() != reason_bytes as usize {
            return bad("its length is wrong");
        }
        let paths = paths.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let mut reasons = reasons.split(|byte| *byte == 0).map(|reason| String::from_utf8_lossy(reason).into_owned());
        let mut reason = || reasons.next().unwrap_or_default();
        let files = ids.chunks(8).map(|c| (u64_at(c, 0), reason())).collect();
        let dirs: BTreeMap<PathBuf, String> = paths.map(|path| (path, reason())).collect();
        if dirs.keys().any(|dir| check_path(dir).is_err()) {
            return bad("a directory in it is outside of the store");
        }
        Ok(PendingFiles { last_lsn: u64_at(b, 16), last_crc: u64_at(b, 24), epoch: u64_at(b, 32), files, dirs })
    }

    /// Writes the list into a journal, and replaces an older one as a whole. On a full disk it goes into the reserved
    /// space, without reasons if these are too long.
    pub fn write(&self, storage: &dyn Storage, journal: &Path) -> Result<()> {
        debug_assert!(!self.files.is_empty() || !self.dirs.is_empty(), "nothing waits for {journal:?}");
        let (new, path) = (journal.join(NAME_NEW), journal.join(NAME));
        // A new file each time: if a flush of the old one failed, a later flush may succeed without writing anything.
        remove(storage, &new)?;
        match write_list(storage, &new, &self.encode(true)) {
            Err(e @ Error::NoSpace { .. }) => {
                remove(storage, &new)?;
                let spare = journal.join(NAME_SPARE);
                match storage.rename(&spare, &new, false) {
                    Err(missing) if missing.kind() == ErrorKind::NotFound => return Err(e),
                    done => done.context("rename", &spare)?,
                }
                match write_list(storage, &new, &self.encode(true)) {
                    Err(Error::NoSpace { .. }) => write_list(storage, &new, &self.encode(false))?,
                    done => done?,
                }
            }
            done => done?,
        }
        storage.rename(&new, &path, true).context("rename to", &path)?;
        storage.sync_dir(journal, sync_point::QUARANTINE_CONTENTS).context("flush", journal)
    }

    /// Reserves space for a list.
    pub fn set_apart(storage: &dyn Storage, journal: &Path) -> std::io::Result<()> {
        set_apart(storage, &journal.join(NAME_SPARE), SPARE_BYTES)
    }

    /// Removes the list durably: no file waits for this journal any more, even if the rest of it remains.
    pub fn remove(storage: &dyn Storage, journal: &Path) -> Result<()> {
        let path = journal.join(NAME);
        storage.unlink(&path).context("remove", &path)?;
        storage.sync_dir(journal, sync_point::QUARANTINE_CONTENTS).context("flush", journal)
    }

    /// Reads the list in a journal, or returns `None` if this journal is not quarantined.
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

fn remove(storage: &dyn Storage, path: &Path) -> Result<()> {
    match storage.unlink(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done.context("remove", path),
    }
}

fn write_list(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> Result<()> {
    let (file, _) = open_or_create(storage, path, false).context("create", path)?;
    write_all_at(&*file, bytes, 0).context("write", path)?;
    file.set_len(bytes.len() as u64).context("truncate", path)?;
    file.sync_all(sync_point::QUARANTINE_CONTENTS).context("flush", path)
}

/// A reason, cut to the length that the list stores.
fn cut(reason: &str) -> &str {
    let reason = reason.split('\0').next().unwrap_or_default();
    match reason.char_indices().map(|(at, _)| at).find(|at| *at > REASON_BYTES_MAX) {
        Some(end) => &reason[..end],
        None => reason,
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
            files: [(1, "no space".to_owned()), (9, String::new())].into(),
            dirs: [("d".into(), "denied".to_owned()), ("d/e".into(), String::new())].into(),
        };
        let short = PendingFiles::decode(&pending.encode(false), Path::new("pending-files")).unwrap();
        assert_eq!((short.file_ids(), short.dir_paths()), (pending.file_ids(), pending.dir_paths()));
        assert!(short.files.values().chain(short.dirs.values()).all(String::is_empty));
        let b = pending.encode(true);
        assert_eq!(PendingFiles::decode(&b, Path::new("pending-files")).unwrap(), pending);
        for at in 0..b.len() {
            let mut bad = b.clone();
            bad[at] ^= 4;
            assert!(PendingFiles::decode(&bad, Path::new("pending-files")).is_err(), "byte {at}");
            assert!(PendingFiles::decode(&b[..at], Path::new("pending-files")).is_err());
        }
    }
}
